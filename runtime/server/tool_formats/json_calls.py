"""JsonCallParser: calls written as JSON objects with a name and arguments, in the surroundings of some
format.

    text  marker opening {"name": "f", "arguments":  {...}  closing  link {"name": ...  closing  end  text
          '------------- head ---------------------'  args           '--- head ---'

A head is read as a whole before anything is told of it, so that what only begins like a call stays text.
Blanks around calls belong to no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import regex

from .protocol import CallArguments, CallBegin, Part, Text

_BRACKETS = regex.compile(r'["\\{}\[\]]')


@dataclass(frozen=True, slots=True)
class Shape:
    """`marker` is a text, empty if calls stand at the start of the answer and nowhere else. The others are
    patterns: between marker and call, behind a call, between two calls (None: each has its marker), and
    behind the last (None: nothing)."""

    marker: str
    opening: str
    closing: str
    link: str | None = None
    end: str | None = None


class JsonCallParser:
    """See CallParser, and ToolFormat.parser for `live`."""

    def __init__(self, shape: Shape, names: Iterable[str], *, live: bool) -> None:
        call = _head_of(names)
        self._marker, self._live = shape.marker, live
        self._head = regex.compile(regex.escape(shape.marker) + shape.opening + call)
        self._closing = regex.compile(shape.closing)
        self._link = None if shape.link is None else regex.compile(shape.link + call)
        self._end = None if shape.end is None else regex.compile(shape.end)
        self._buffer = ""
        self._blanks = ""  # before a marker: part of the text if no call follows
        self._raw = ""  # what was read of a call that is not told yet
        self._parts: list[Part] = []
        self._held: list[Part] = []
        self._value = _ObjectEnd()
        self._has_called = False
        self._state: Callable[[], bool] = self._in_text if shape.marker else self._at_head

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        while self._state():
            pass
        return self._told()

    def finish(self) -> list[Part]:
        state, rest = self._state, self._buffer
        self._buffer = ""
        if state == self._in_arguments or (state == self._in_closing and self._is_right()):
            self._release()
        elif state == self._in_closing:
            self._withdraw()
            self._tell_text(rest)
        elif rest.strip() or self._blanks or not self._has_called:
            self._tell_text(self._blanks + rest)
        return self._told()

    # -- states: each takes what it can from the buffer, and says whether another one should go on ----------

    def _in_text(self) -> bool:
        at = self._buffer.find(self._marker) if self._marker else -1
        if at >= 0:
            text, self._buffer = self._buffer[:at], self._buffer[at:]
            kept = text.rstrip()
            self._tell_text(kept)
            self._blanks = text[len(kept) :]
            self._state = self._at_head
            return True
        safe = len(self._buffer) - _begun(self._marker, self._buffer)
        kept = self._buffer[:safe].rstrip()
        self._tell_text(kept)
        self._buffer = self._buffer[len(kept) :]
        return False

    def _at_head(self) -> bool:
        found = self._head.match(self._buffer, partial=True)
        if found is None:
            size = len(self._marker)
            self._tell_text(self._blanks + self._buffer[:size])
            self._blanks, self._buffer, self._state = "", self._buffer[size:], self._in_text
            return True
        return False if found.partial else self._begin(found)

    def _in_arguments(self) -> bool:
        size = self._value.find(self._buffer)
        piece = self._buffer if size is None else self._buffer[:size]
        self._buffer = self._buffer[len(piece) :]
        if piece:
            self._raw += piece
            self._held.append(CallArguments(piece))
        if self._live:
            self._release()
        if size is None:
            return False
        self._state = self._in_closing
        return True

    def _in_closing(self) -> bool:
        found = self._closing.match(self._buffer, partial=True)
        if found is not None and found.partial:
            return False
        if found is not None and self._is_right():
            self._buffer = self._buffer[found.end() :]
            self._release()
            self._state = self._behind_call
        else:
            self._withdraw()
            self._state = self._in_text
        return True

    def _behind_call(self) -> bool:
        if self._link is not None:
            found = self._link.match(self._buffer, partial=True)
            if found is not None:
                return False if found.partial else self._begin(found)
        if self._end is not None:
            found = self._end.match(self._buffer, partial=True)
            if found is not None and found.partial:
                return False
            if found is not None:
                self._buffer = self._buffer[found.end() :]
        self._state = self._in_text
        return True

    # -- steps ----------------------------------------------------------------------------------------------

    def _begin(self, found: regex.Match[str]) -> bool:
        at = found.start("value")
        self._raw, self._buffer = self._blanks + self._buffer[:at], self._buffer[at:]
        self._blanks = ""
        self._held = [CallBegin(found["name"])]
        self._value = _ObjectEnd()
        self._state = self._in_arguments
        return True

    def _is_right(self) -> bool:
        """Of a call whose arguments are complete. Those that are told already count as right."""
        try:
            json.loads("".join(part.text for part in self._held if isinstance(part, CallArguments)) or "{}")
        except (ValueError, RecursionError):
            return False
        return True

    def _release(self) -> None:
        self._parts += self._held
        self._held, self._raw, self._has_called = [], "", True

    def _withdraw(self) -> None:
        """What was read and not told was no call."""
        if self._held:
            self._tell_text(self._raw)
            self._held = []
        self._raw = ""

    def _tell_text(self, text: str) -> None:
        if text:
            self._parts.append(Text(text))

    def _told(self) -> list[Part]:
        told, self._parts = self._parts, []
        return told


class _ObjectEnd:
    """Finds where an object ends, piece by piece, by its brackets."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def find(self, text: str) -> int | None:
        """How many characters of this piece belong to the object, if it ends in it."""
        at = 0
        while True:
            if self._is_escaped and at < len(text):
                self._is_escaped, at = False, at + 1
            found = _BRACKETS.search(text, at)
            if found is None:
                return None
            at, one = found.end(), found[0]
            if one == "\\":
                self._is_escaped = self._in_string
            elif one == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if one in "{[" else -1
                if self._depth == 0:
                    return at


def _head_of(names: Iterable[str]) -> str:
    """A pattern up to the bracket of the arguments."""
    known = "|".join(map(regex.escape, names))
    return rf'\{{\s*"name"\s*:\s*"(?P<name>{known})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?P<value>\{{)'


def _begun(marker: str, text: str) -> int:
    """How many characters at the end of the text may be the beginning of the marker."""
    most = min(len(marker) - 1, len(text))
    return next((size for size in range(most, 0, -1) if text.endswith(marker[:size])), 0)
