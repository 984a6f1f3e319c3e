"""Prompt: what a caller asks to continue, before it has an id and token ids of its own.

Owns the three forms a prompt may take (text, token ids, chat messages) and what is wrong with a badly
formed one. Knows no tokenizer: whether ids lie in the vocabulary and whether the prompt fits is the
engine's to say. A Prompt that exists is never empty and holds only text that UTF-8 can carry.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias, cast

from .errors import InvalidRequest
from .sampling_params import SamplingParams
from .text import quote, require_text

Message: TypeAlias = Mapping[str, str]
"""One turn of a chat: "role" and "content", and whatever else the chat template reads."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt and what is special about it. Raises InvalidRequest if it is empty or malformed.

    `sampling`, where given, replaces the sampling of the whole batch. Prompts with different `salt`
    never share cached pages. `id` comes back on the completion; None lets the engine choose one.
    """

    content: str | tuple[int, ...] | tuple[Message, ...]
    sampling: SamplingParams | None = None
    salt: str = ""
    id: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.content, str):
            require_text("prompt", self.content)
        if not self.content:
            raise InvalidRequest("the prompt is empty")
        require_text("namespace", self.salt)
        if self.id is not None:
            require_text("id", self.id)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise InvalidRequest(f"priority must be an integer, got {quote(self.priority)}")

    @property
    def text(self) -> str | None:
        """The prompt if it is text, else None."""
        return self.content if isinstance(self.content, str) else None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The prompt if it is token ids, else None."""
        if isinstance(self.content, str) or isinstance(self.content[0], Mapping):
            return None
        return self.content

    @property
    def messages(self) -> tuple[Message, ...] | None:
        """The prompt if it is a chat, else None."""
        if isinstance(self.content, str) or not isinstance(self.content[0], Mapping):
            return None
        return self.content


PromptInput: TypeAlias = str | Sequence[int] | Mapping[str, object] | Prompt
"""What callers may write for a prompt: text, token ids, {"messages": [...]} or a Prompt."""


def as_prompt(value: PromptInput) -> Prompt:
    """Any accepted spelling as a Prompt. Raises InvalidRequest that quotes what came."""
    if isinstance(value, Prompt):
        return value
    if isinstance(value, str):
        return Prompt(value)
    if isinstance(value, Mapping):
        if set(value) != {"messages"}:
            raise InvalidRequest(f'a mapping must have the one key "messages", got {quote(value)}')
        return Prompt(as_messages(value["messages"]))
    return Prompt(as_token_ids(value))


def as_prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt | InvalidRequest]:
    """One prompt or several; a list of integers is one. A malformed one of several stands for itself."""
    if not isinstance(prompts, str | Prompt | Mapping | Sequence):
        raise InvalidRequest(f"prompts must be one prompt or a list of them, got {prompts!r}")
    if isinstance(prompts, str | Prompt | Mapping):
        return [as_prompt(prompts)]
    if len(prompts) and all(isinstance(item, SupportsIndex) for item in prompts):
        return [as_prompt(cast("Sequence[int]", prompts))]
    found: list[Prompt | InvalidRequest] = []
    for prompt in cast("Sequence[PromptInput]", prompts):
        try:
            found.append(as_prompt(prompt))
        except InvalidRequest as error:
            found.append(error)
    return found


_ID_LIMIT = 1 << 31
"""More than any vocabulary has; ids below it fit into every array."""


def as_token_ids(value: object) -> tuple[int, ...]:
    """A list of token ids as a tuple; integers of other libraries become plain ones."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise InvalidRequest(f"token ids must be a list of integers, got {quote(value)}")
    return tuple(_token_id(index, item) for index, item in enumerate(value))


def as_messages(value: object) -> tuple[Message, ...]:
    """A list of {"role": ..., "content": ...} as a tuple of copies."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidRequest(f"messages must be a list, got {quote(value)}")
    return tuple(_message(index, item) for index, item in enumerate(value))


def _token_id(index: int, item: SupportsIndex) -> int:
    try:
        token = -1 if isinstance(item, bool) else operator.index(item)
    except TypeError:
        token = -1
    if token < 0:
        raise InvalidRequest(f"token id {index} must be an integer of at least 0, got {quote(item)}")
    if token >= _ID_LIMIT:
        raise InvalidRequest(f"token id {index} must be below {_ID_LIMIT}, got {quote(item)}")
    return token


def _message(index: int, item: object) -> Message:
    if not isinstance(item, Mapping):
        raise InvalidRequest(f'message {index} must be {{"role": ..., "content": ...}}, got {quote(item)}')
    for key in ("role", "content"):
        if key not in item:
            raise InvalidRequest(f'message {index} has no "{key}"')
    return {str(key): require_text(f"{key!r} of message {index}", value) for key, value in item.items()}
