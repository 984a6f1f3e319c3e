"""Characters and sets of characters of Python's `re`, written in the syntax of Rust's regex crate.

Python's meaning is written out wherever Rust has another: what \\s is, which letters are the same to (?i)
(asked of `re` itself, on all letters that have a case), which characters are special, and, since a text is to
match here too, which were not assigned yet when this Python was made.

U+0000 is taken only where a pattern names it alone: not by `.`, nor by a range, a property or the complement
of anything. No text needs it, and the byte automata of regexes begin with it.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_LETTERS_END = 0x20000  # no letter above has a case
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")
_COMPLETE = re.compile(r"\[|\\p\{[^}]*\}\Z")  # a class of its own as it stands
_NEVER_NULL = re.compile(r"[LMNPSZ][a-z]?")

_AGE = rf"\p{{age={unicodedata.unidata_version.rpartition('.')[0]}}}"  # assigned by then
_DIGITS = {False: rf"[\p{{Nd}}&&{_AGE}]", True: "0-9"}
_WORD = {False: rf"[\p{{L}}\p{{N}}_&&{_AGE}]", True: "0-9A-Za-z_"}
_SPACE = {
    False: r" \t\n\x0B\x0C\r\x1C-\x1F\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}"
    r"\x{202F}\x{205F}\x{3000}",
    True: r" \t\n\x0B\x0C\r",
}
_CATEGORIES = {  # by whether (?a) holds, and whether it is the complement
    r"\d": (_DIGITS, False),
    r"\D": (_DIGITS, True),
    r"\w": (_WORD, False),
    r"\W": (_WORD, True),
    r"\s": (_SPACE, False),
    r"\S": (_SPACE, True),
}


def escape(text: str) -> str:
    """A pattern that matches this text and no other."""
    return "".join(map(_character, map(ord, text)))


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """What one character of a text may be. `ranges` are pairs of code points, both included; categories
    are written as in a pattern; properties are names in \\p{..} and whether their complement is meant."""

    ranges: tuple[tuple[int, int], ...] = ()
    categories: tuple[str, ...] = ()
    properties: tuple[tuple[str, bool], ...] = ()
    is_negated: bool = False

    def written(self, flags: int) -> str | None:
        """Under these flags of `re`; None where no character is in the set."""
        ascii_only = bool(flags & re.ASCII)
        named = _writable(self.ranges)
        if flags & re.IGNORECASE:
            named += tuple((point, point) for point in _other_cases(named, ascii_only))
        named = _joined(named)
        single = len(named) == 1 and named[0][0] == named[0][1]
        if single and not (self.categories or self.properties or self.is_negated):
            return _character(named[0][0])
        if self.is_negated and self._is_everything(named):
            return None
        items = self._items(named, ascii_only)
        if self.is_negated:
            return rf"[^\x00{''.join(items)}]"
        if len(items) == 1 and _COMPLETE.match(items[0]):
            return items[0]
        return f"[{''.join(items)}]" if items else None

    def _items(self, named: Sequence[tuple[int, int]], ascii_only: bool) -> list[str]:
        items = [_range(first, last) for first, last in named]
        for category in self.categories:
            by_mode, is_complement = _CATEGORIES[category]
            within = by_mode[ascii_only]
            items.append(rf"[^\x00{within}]" if is_complement else within)
        items += [_property(name, is_complement) for name, is_complement in self.properties]
        return items

    def _is_everything(self, named: Sequence[tuple[int, int]]) -> bool:
        """As far as ranges show it, or a category beside its complement."""
        if any(category.swapcase() in self.categories for category in self.categories):
            return True
        return _joined([*named, (0, 0), _SURROGATES]) == ((0, _LAST),)


def _other_cases(ranges: Iterable[tuple[int, int]], ascii_only: bool) -> set[int]:
    """The letters that are one of these but for their case. Categories hold all cases of what they hold."""
    points = _letter_points()
    found: set[int] = set()
    for first, last in ranges:
        for point in points[bisect_left(points, first) : bisect_right(points, last)]:
            found.update(_cases(point, ascii_only))
    return found


@lru_cache(maxsize=1)
def _letters() -> str:
    """All characters that have a case."""
    every = map(chr, range(_LETTERS_END))
    return "".join(letter for letter in every if letter.lower() != letter or letter.upper() != letter)


@lru_cache(maxsize=1)
def _letter_points() -> tuple[int, ...]:
    return tuple(map(ord, _letters()))


@lru_cache(maxsize=8192)
def _cases(point: int, ascii_only: bool) -> tuple[int, ...]:
    flags = re.IGNORECASE | (re.ASCII if ascii_only else 0)
    return tuple(map(ord, re.findall(re.escape(chr(point)), _letters(), flags)))


def _writable(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Without surrogates, which no text can hold, and without U+0000, but for where it stands alone."""
    low, high = _SURROGATES
    parts: list[tuple[int, int]] = []
    for first, last in ranges:
        if first == 0 < last:
            first = 1
        parts += [(first, min(last, low - 1)), (max(first, high + 1), last)]
    return tuple((first, last) for first, last in parts if first <= last)


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """In order, none of them touching another."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _range(first: int, last: int) -> str:
    between = "-" if last > first + 1 else ""
    return _character(first) + (between + _character(last) if last > first else "")


def _property(name: str, is_complement: bool) -> str:
    if is_complement:
        return rf"[^\x00\p{{{name}}}]"
    written = rf"\p{{{name}}}"
    return written if _NEVER_NULL.fullmatch(name) else rf"[{written}--\x00]"


def _character(point: int) -> str:
    character = chr(point)
    if character in _SPECIAL:
        return "\\" + character
    if character.isprintable():
        return character
    return f"\\x{point:02X}" if point < 0x80 else f"\\x{{{point:X}}}"
