"""Chat templates of well-known models, for servers that cannot be asked for theirs. Pure.

A RadixLM server renders its model's own template, which is better: these are what the models were trained
with, as far as a role block is text before it and text behind it. The token that begins a text is not
among it, since servers put it there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import InvalidCall, Unsupported
from .protocol import Frame


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`before` and `after` may name the role as {role} and {ROLE}. `special` are roles with a frame of their
    own, and all that there are if there is no other one. With `joined`, a system message and the user's
    behind it are one block, so that the user's has nothing before it."""

    name: str
    before: str | None = None
    after: str = ""
    special: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    joined: bool = False

    def frame(self, roles: tuple[str, ...]) -> Frame:
        """Around the last of some messages. Raises Unsupported for a role that the format does not have."""
        role = roles[-1]
        if role in self.special:
            before, after = self.special[role]
        elif self.before is not None:
            names = {"role": role, "ROLE": role.upper()}
            before, after = self.before.format(**names), self.after.format(**names)
        else:
            known = ", ".join(self.special)
            raise Unsupported(f"chat template {self.name} has the roles {known}, got {role!r}")
        if self.joined and role == "user" and roles[-2:-1] == ("system",):
            before = ""
        return Frame(before, after)


_FORMATS = (
    ChatFormat("plain", "{ROLE}: ", "\n"),
    ChatFormat("chatml", "<|im_start|>{role}\n", "<|im_end|>\n"),
    ChatFormat("llama-3", "<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"),
    ChatFormat(
        "llama-2",
        special={
            "system": ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
            "user": ("[INST] ", " [/INST]"),
            "assistant": (" ", " </s><s>"),
        },
        joined=True,
    ),
    ChatFormat(
        "mistral",
        special={"system": ("[INST] ", "\n\n"), "user": ("[INST] ", " [/INST]"), "assistant": (" ", "</s>")},
        joined=True,
    ),
    ChatFormat(
        "gemma",
        special={
            "system": ("<start_of_turn>user\n", "\n\n"),
            "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
            "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
        },
        joined=True,
    ),
    ChatFormat("phi-3", "<|{role}|>\n", "<|end|>\n"),
    ChatFormat("zephyr", "<|{role}|>\n", "</s>\n"),
    ChatFormat(
        "vicuna",
        special={"system": ("", " "), "user": ("USER: ", " "), "assistant": ("ASSISTANT:", "</s>")},
    ),
)

FORMATS: Mapping[str, ChatFormat] = {each.name: each for each in _FORMATS}
_OTHER_NAMES = {
    "default": "plain",
    "llama-2-chat": "llama-2",
    "llama-3-instruct": "llama-3",
    "gemma-it": "gemma",
    "vicuna_v1.1": "vicuna",
}
"""Those of SGLang's."""

_PATHS = (
    (r"zephyr|tinyllama.*chat", "zephyr"),
    (r"vicuna", "vicuna"),
    (r"qwen|chatml|hermes|dolphin|internlm|smollm.*(instruct|chat)", "chatml"),
    (r"llama-?3.*instruct", "llama-3"),
    (r"llama-?2.*chat|codellama.*instruct", "llama-2"),
    (r"mi[sx]tral.*(instruct|chat)", "mistral"),
    (r"gemma.*-it", "gemma"),
    (r"phi-3.*instruct", "phi-3"),
)
"""What the name of a model looks like. One that is no chat model has no template of its own."""


def named_format(name: str) -> ChatFormat:
    """Raises InvalidCall."""
    found = FORMATS.get(_OTHER_NAMES.get(name, name)) if isinstance(name, str) else None
    if found is None:
        raise InvalidCall(f"chat_template must be one of {', '.join(FORMATS)}, got {name!r:.200}")
    return found


def format_for(model_path: str) -> ChatFormat:
    """By the name of a model, `plain` if it tells nothing."""
    path = model_path.lower()
    return FORMATS[next((name for pattern, name in _PATHS if re.search(pattern, path)), "plain")]
