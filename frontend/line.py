"""Line: what has been written of a text so far, in the forms in which it is asked for. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import cast

from .protocol import Message, Part, Plain


@dataclass(slots=True)
class Line:
    """What has been written so far. `role` is that of the block that is open; `loose`: text stands outside
    of blocks. `known` tokens of the prompt were computed for this line before; the first `solid` parts stay
    as they are."""

    parts: list[Part] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    role: str | None = None
    role_start: int = 0
    role_after: str = ""
    loose: bool = False
    known: int = 0
    solid: int = 0

    def prompt(self) -> tuple[Part, ...]:
        """The parts, of which neighbouring texts of a kind have been made one."""
        parts = self.parts
        found: list[Part] = []
        for kind, group in groupby(parts[self.solid :], type):
            if kind is str:
                found.append("".join(cast("Iterable[str]", group)))
            elif kind is Plain:
                found.append(Plain("".join(part.text for part in cast("Iterable[Plain]", group))))
            else:
                found += group
        parts[self.solid :] = found
        self.solid = max(self.solid, len(parts) - 1)  # the last one may go on
        return tuple(parts)

    def copy(self) -> Line:
        return Line(
            list(self.parts),
            list(self.texts),
            list(self.messages),
            self.role,
            self.role_start,
            self.role_after,
            self.loose,
            self.known,
        )

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def conversation(self) -> tuple[Message, ...] | None:
        """The same as messages, None where it is more than that."""
        if self.loose or self.role not in (None, "assistant"):
            return None
        if self.role is None:
            return tuple(self.messages)
        written = "".join(self.texts[self.role_start :])
        return (*self.messages, {"role": self.role, "content": written})
