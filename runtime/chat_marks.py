"""Marks: characters that show in a rendered prompt what a caller typed and what the template wrote.

A control token such as <|im_end|> may be spelled out in a message. In the rendered text it looks like one of
the template's own, so each spelling is put between two marks before rendering. Marks are private-use
characters that are nowhere in what is rendered; templates pass them on like any other character. Knows no
template and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from .errors import InvalidRequest

_CODES = range(0xE000, 0xF900)
_PRIVATE = re.compile("[\ue000-\uf8ff]")
_PRIVATE_ESCAPED = re.compile(r"\\u([ef][0-9a-f]{3})")


@dataclass(frozen=True, slots=True)
class Marked:
    """A rendered text without its marks. `typed` are the places (first character, one past the last) of
    spellings that stood between marks, in order; `cut` is where the cut mark stood last, None if nowhere."""

    text: str
    typed: tuple[tuple[int, int], ...]
    cut: int | None


@dataclass(frozen=True, slots=True)
class Marks:
    """Three characters: before a spelling, behind it, and one for a place where the text shall end."""

    before: str
    behind: str
    cut: str

    @classmethod
    def absent_from(cls, texts: Sequence[str]) -> Marks:
        """Raises InvalidRequest if the texts hold every private-use character that there is."""
        used: set[str] = set()
        for text in texts:
            used.update(_PRIVATE.findall(text))
            used.update(chr(int(code, 16)) for code in _PRIVATE_ESCAPED.findall(text))
        free = list(islice((character for character in map(chr, _CODES) if character not in used), 3))
        if len(free) < 3:
            raise InvalidRequest("the messages hold too many different private-use characters")
        return cls(*free)

    def put(self, value: object, spellings: re.Pattern[str]) -> object:
        """A copy of a JSON value with marks around every spelling, in keys as well."""
        if isinstance(value, str):
            return spellings.sub(f"{self.before}\\g<0>{self.behind}", value)
        if isinstance(value, Mapping):
            return {self.put(key, spellings): self.put(item, spellings) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.put(item, spellings) for item in value]
        return value

    def take(self, rendered: str, spellings: re.Pattern[str]) -> Marked:
        """The text without marks. A mark that lost its partner, or whose spelling the template changed, is of
        no meaning. Marks may have been escaped, as JSON and Python do it."""
        forms = {form: mark for mark in self._all for form in (mark, _escaped(mark))}
        parts: list[str] = []
        typed: list[tuple[int, int]] = []
        length, begin, cut = 0, None, None
        for piece in re.split(f"({any_of(forms).pattern})", rendered):
            mark = forms.get(piece)
            if mark is None:
                parts.append(piece)
                length += len(piece)
            elif mark == self.cut:
                cut = length
            elif mark == self.before:
                begin = length
            else:
                if begin is not None and begin + len(parts[-1]) == length and spellings.fullmatch(parts[-1]):
                    typed.append((begin, length))
                begin = None
        return Marked("".join(parts), tuple(typed), cut)

    @property
    def _all(self) -> tuple[str, str, str]:
        return (self.before, self.behind, self.cut)


def texts_in(value: object) -> Iterator[str]:
    """Every text in a JSON value, keys as well."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item


def any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    """Matches each of the texts, the longest where several begin; of none, nothing."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"
