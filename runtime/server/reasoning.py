"""Reasoning: what a model thinks aloud between <think> and </think>, told apart from its answer.

Whether an answer begins inside is seen from the end of the prompt; templates open the first tag, or close
both to have no reasoning, or leave it to the model. Line breaks next to the tags are theirs and belong to
neither text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidConfig, InvalidRequest
from ..text import quote

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

BEGIN, END = "<think>", "</think>"

AUTO, NONE, THINK = "auto", "none", "think"
REASONING_PARSERS = (AUTO, NONE, THINK)
"""What may be set: as the template shows, never, or for a model that is known to write the tags."""

_TAIL = 16


class Start(Enum):
    """Where an answer begins: within the reasoning, before it, or behind it (or there is none)."""

    INSIDE = "inside"
    BEFORE = "before"
    BEHIND = "behind"


class Split(NamedTuple):
    """What is new of both texts."""

    reasoning: str
    content: str


def check_reasoning_parser(name: str) -> None:
    if name not in REASONING_PARSERS:
        known = ", ".join(REASONING_PARSERS)
        raise InvalidConfig(f"reasoning_parser must be one of {known}, got {quote(name)}")


@dataclass(frozen=True, slots=True)
class ReasoningHabit:
    """Of a model. `thinks`: where the prompt says nothing of it, the model writes the tags by itself.
    `is_read`: reasoning is told apart at all."""

    thinks: bool
    is_read: bool = True

    def start(self, tokenizer: Tokenizer, prompt_ids: tuple[int, ...], continued: str | None) -> Start:
        """Of the answer to a prompt; `continued` is the text of the last message if the answer continues
        it."""
        if not self.is_read:
            return Start.BEHIND
        if continued is not None:
            return Start.INSIDE if continued.rfind(BEGIN) > continued.rfind(END) else Start.BEHIND
        tail = tokenizer.decode(prompt_ids[-_TAIL:], skip_special_tokens=False).rstrip()
        if tail.endswith(END):
            return Start.BEHIND
        if tail.endswith(BEGIN):
            return Start.INSIDE
        return Start.BEFORE if self.thinks else Start.BEHIND


@lru_cache(maxsize=8)
def habit_of(setting: str, tokenizer: Tokenizer) -> ReasoningHabit:
    """A template whose prompt closes the tags when it is told not to think is one of a model that does."""
    if setting != AUTO:
        return ReasoningHabit(setting == THINK, is_read=setting != NONE)
    if END not in (tokenizer.chat_template() or ""):
        return ReasoningHabit(False)
    silent: Mapping[str, object] = {"enable_thinking": False, "thinking": False}
    try:
        default, without = (
            tokenizer.render_chat([{"role": "user", "content": "?"}], template_kwargs=options).rstrip()
            for options in (None, silent)
        )
    except InvalidRequest:  # a template that takes no such conversation
        return ReasoningHabit(False)
    return ReasoningHabit(without.endswith(END) and not default.endswith(END))


class ReasoningSplitter:
    """Reads one answer. The same texts come out, joined, however it is cut."""

    def __init__(self, start: Start) -> None:
        self._place = start
        self._has_been_inside = start is Start.INSIDE
        self._buffer = ""
        self._at_first = start is not Start.BEHIND  # line breaks that come next belong to a tag

    def push(self, text: str) -> Split:
        self._buffer += text
        if self._place is Start.BEFORE:
            self._look_for_begin()
        reasoning = self._take_reasoning() if self._place is Start.INSIDE else ""
        content = self._take_content() if self._place is Start.BEHIND else ""
        return Split(reasoning, content)

    @property
    def has_ended(self) -> bool:
        """Whether reasoning was told, and is over."""
        return self._place is Start.BEHIND and self._has_been_inside

    def finish(self) -> Split:
        """The rest, once no text will follow."""
        rest, self._buffer = self._buffer, ""
        return Split(rest, "") if self._place is Start.INSIDE else Split("", rest)

    def _look_for_begin(self) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(BEGIN):
            self._buffer, self._place = begun[len(BEGIN) :], Start.INSIDE
            self._has_been_inside = True
        elif not BEGIN.startswith(begun):
            self._place, self._at_first = Start.BEHIND, False

    def _take_reasoning(self) -> str:
        self._drop_breaks()
        text, found, rest = self._buffer.partition(END)
        if found:
            self._buffer, self._place, self._at_first = rest, Start.BEHIND, True
            return text.rstrip("\n")
        sizes = range(min(len(END) - 1, len(text)), 0, -1)
        held = next((size for size in sizes if text.endswith(END[:size])), 0)
        told = text[: len(text) - held].rstrip("\n")
        self._buffer = text[len(told) :]
        return told

    def _take_content(self) -> str:
        self._drop_breaks()
        content, self._buffer = self._buffer, ""
        return content

    def _drop_breaks(self) -> None:
        if self._at_first:
            self._buffer = self._buffer.lstrip("\n")
            self._at_first = not self._buffer
