"""The dialect of regexes that users write: Python's `re`, the whole text having to match (re.fullmatch), and
\\p{..}, \\P{..} for characters by property. `to_rust` translates it to the syntax of Rust's regex crate,
which outlines_core and llguidance take; engines are not known here.

Python's own parser reads the pattern, so what it says and what it means are Python's; what comes out uses
nothing but characters, sets, alternatives and greedy repetitions, of which there is one reading. A whole
match asks which texts there are, never which match is first: laziness, captures and anchors at the ends say
nothing about that and are dropped. What is no regular language is refused, by its name and place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeAlias

from ..errors import InvalidRequest
from ..text import quote
from .regex_characters import CharacterSet, escape

__all__ = ["escape", "to_rust"]

Nodes: TypeAlias = Sequence[tuple[int, Any]]  # Any: each operation of the parser has arguments of its own

_STANDINS = range(0xE000, 0xF900)  # characters for private use: in the parser's input one is a property
_PROPERTY = re.compile(r"\\([pP])(?:\{([A-Za-z][A-Za-z0-9_=: -]*)\}|([A-Za-z]))")
_FUTURE_SET = re.compile(r"\[\[|--|&&|~~|\|\|")  # what `re` warns of, or looks like it
_TYPE_FLAGS = re.ASCII | re.UNICODE

_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
}
_UNSUPPORTED = {
    sre.ASSERT: "look-around",
    sre.ASSERT_NOT: "look-around",
    sre.FAILURE: "look-around",
    sre.GROUPREF: "a back reference",
    sre.GROUPREF_EXISTS: "a conditional",
    sre.ATOMIC_GROUP: "an atomic group",
    sre.POSSESSIVE_REPEAT: "a possessive quantifier",
}
_WRITTEN = {
    "look-around": r"\(\?<?[=!]",
    "a back reference": r"\\[1-9]\d?|\(\?P=",
    "a conditional": r"\(\?\(",
    "an atomic group": r"\(\?>",
    "a possessive quantifier": r"(?<=[*+?}])\+",
    "a word boundary": r"\\[bB]",
    "an anchor that is not at the beginning": r"(?!\A)(?<![(|^:])(?:\^|\\A)",
    "an anchor that is not at the end": r"(?:\$|\\Z)(?![)|$])(?!\Z)",
}
_STARTS = frozenset({sre.AT_BEGINNING, sre.AT_BEGINNING_STRING})
_ENDS = frozenset({sre.AT_END, sre.AT_END_STRING})


def to_rust(pattern: str) -> str:
    """A pattern in Rust's syntax that matches, as a whole, the texts that this one does.

    Raises InvalidRequest for what `re` refuses, for what is no regular expression in the strict sense
    (look-around, back references, word boundaries, anchors inside), and for what matches no text at all.
    """
    readable, properties = _without_properties(pattern)
    try:
        tree = _parsed(pattern, readable, properties)
        piece = _Translator(pattern, properties).sequence(tree, tree.state.flags, True, True)
    except RecursionError:
        raise InvalidRequest(f"regex is nested too deeply: {quote(pattern)}") from None
    if piece is None:
        raise InvalidRequest(f"regex matches no text at all: {quote(pattern)}")
    return piece.text


def _without_properties(pattern: str) -> tuple[str, dict[int, tuple[str, bool]]]:
    """The pattern with a character in place of each property, which Python's parser does not know; and what
    each such character stands for, which is written nowhere in the pattern."""
    free = (point for point in _STANDINS if chr(point) not in pattern and f"{point:x}" not in pattern.lower())
    standins: dict[tuple[str, bool], int] = {}

    def replaced(escaped: re.Match[str]) -> str:
        found = _PROPERTY.match(pattern, escaped.start())
        if found is None:
            return escaped[0]
        meant = (found[2] or found[3], found[1] == "P")
        if meant not in standins:
            standins[meant] = next(free)
        return chr(standins[meant])

    either = re.compile(rf"{_PROPERTY.pattern}|\\.", re.DOTALL)
    return either.sub(replaced, pattern), {point: meant for meant, point in standins.items()}


def _parsed(pattern: str, readable: str, properties: dict[int, tuple[str, bool]]) -> Any:  # Any: its own tree
    try:
        if not _FUTURE_SET.search(readable):
            return _parser.parse(readable)
        with warnings.catch_warnings():
            # Of set operations to come: Python's meaning is what is translated, whatever other syntaxes say.
            warnings.filterwarnings("ignore", "Possible (nested set|set )", FutureWarning)
            return _parser.parse(readable)
    except (re.error, OverflowError, ValueError) as error:
        reason, at = getattr(error, "msg", str(error)), getattr(error, "pos", None)
        for point, (name, is_complement) in properties.items():
            reason = reason.replace(chr(point), rf"\{'P' if is_complement else 'p'}{{{name}}}")
        where = "" if at is None else f" at character {_original(pattern, at)}"
        raise InvalidRequest(f"regex is not valid: {reason}{where}, got {quote(pattern)}") from None


def _original(pattern: str, at: int) -> int:
    """The place in the pattern of one in what the parser reads, where each property is one character."""
    for found in re.finditer(rf"({_PROPERTY.pattern})|\\.", pattern, re.DOTALL):
        if found[1] is not None and found.start() < at:
            at += len(found[0]) - 1
    return at


class _Piece(NamedTuple):
    """A translated part. `is_atom`: a quantifier behind it applies to all of it."""

    text: str
    is_atom: bool

    @property
    def atom(self) -> str:
        return self.text if self.is_atom else f"(?:{self.text})"


class _Translator:
    """Walks the parser's tree. Methods return None where a part matches nothing, not even the empty text.
    `first` and `last` say whether nothing can come before, or after, in the whole text."""

    def __init__(self, pattern: str, properties: dict[int, tuple[str, bool]]) -> None:
        self._pattern = pattern
        self._properties = properties

    def sequence(self, nodes: Nodes, flags: int, first: bool, last: bool) -> _Piece | None:
        is_empty = [_is_empty(node) for node in nodes]
        lead = is_empty.index(False) if False in is_empty else len(nodes)
        tail = len(nodes) - 1 - (is_empty[::-1].index(False) if False in is_empty else len(nodes))
        pieces = [
            self._node(node, flags, first and i <= lead, last and i >= tail) for i, node in enumerate(nodes)
        ]
        known = [piece for piece in pieces if piece is not None]
        if len(known) < len(pieces):
            return None
        written = [piece for piece in known if piece.text]
        return written[0] if len(written) == 1 else _Piece("".join(piece.text for piece in written), False)

    def _node(self, node: tuple[int, Any], flags: int, first: bool, last: bool) -> _Piece | None:
        operation, argument = node
        if operation is sre.BRANCH:
            return self._alternatives(argument[1], flags, first, last)
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            if added & _TYPE_FLAGS:
                flags &= ~_TYPE_FLAGS
            return self.sequence(inner, (flags | added) & ~removed, first, last)
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            return self._repetition(least, most, inner, flags, first, last)
        if operation is sre.AT:
            return self._anchor(argument, first, last)
        if operation in _UNSUPPORTED:
            raise self._refusal(_UNSUPPORTED[operation])
        text = self._characters(operation, argument, flags).written(flags)
        return None if text is None else _Piece(text, True)

    def _alternatives(self, branches: Iterable[Nodes], flags: int, first: bool, last: bool) -> _Piece | None:
        found = [self.sequence(branch, flags, first, last) for branch in branches]
        possible = [piece for piece in found if piece is not None]
        if len(possible) < 2:
            return possible[0] if possible else None
        return _Piece(f"(?:{'|'.join(piece.text for piece in possible)})", True)

    def _repetition(
        self, least: int, most: int, inner: Nodes, flags: int, first: bool, last: bool
    ) -> _Piece | None:
        is_once = most <= 1
        piece = self.sequence(inner, flags, first and is_once, last and is_once)
        if piece is None:
            return None if least else _Piece("", False)
        if not piece.text or not most:
            return _Piece("", False)
        return _Piece(piece.atom + _quantifier(least, most), False) if (least, most) != (1, 1) else piece

    def _anchor(self, where: int, first: bool, last: bool) -> _Piece:
        if where in _STARTS:
            holds, name = first, "an anchor that is not at the beginning"
        elif where in _ENDS:
            holds, name = last, "an anchor that is not at the end"
        else:
            holds, name = False, "a word boundary"
        if not holds:
            raise self._refusal(name)
        return _Piece("", False)

    def _characters(self, operation: int, argument: Any, flags: int) -> CharacterSet:
        if operation is sre.ANY:
            excluded = () if flags & re.DOTALL else ((10, 10),)
            return CharacterSet(excluded, is_negated=True)
        if operation is sre.IN:
            return self._set(argument)
        assert operation in (sre.LITERAL, sre.NOT_LITERAL), f"the parser has no operation {operation}"
        return self._set([(operation, argument)])

    def _set(self, items: Nodes) -> CharacterSet:
        ranges: list[tuple[int, int]] = []
        categories: list[str] = []
        properties: list[tuple[str, bool]] = []
        for operation, argument in items:
            if operation is sre.CATEGORY:
                categories.append(_CATEGORIES[argument])
            elif operation is sre.RANGE:
                self._refuse_properties(argument)
                ranges.append(argument)
            elif argument in self._properties:
                properties.append(self._properties[argument])
            elif operation is not sre.NEGATE:
                ranges.append((argument, argument))
        is_negated = items[0][0] in (sre.NEGATE, sre.NOT_LITERAL)
        return CharacterSet(tuple(ranges), tuple(categories), tuple(properties), is_negated)

    def _refuse_properties(self, ends: tuple[int, int]) -> None:
        if not self._properties.keys().isdisjoint(ends):
            raise InvalidRequest(f"regex has a property as the end of a range: {quote(self._pattern)}")

    def _refusal(self, name: str) -> InvalidRequest:
        at = _place(self._pattern, _WRITTEN[name])
        where = "" if at is None else f" (at character {at})"
        return InvalidRequest(f"regex must not use {name}{where}, got {quote(self._pattern)}")


def _is_empty(node: tuple[int, Any]) -> bool:
    """Whether it never takes a character."""
    operation, argument = node
    if operation is sre.SUBPATTERN:
        return all(map(_is_empty, argument[3]))
    if operation is sre.BRANCH:
        return all(_is_empty(node) for branch in argument[1] for node in branch)
    return operation is sre.AT


def _quantifier(least: int, most: int) -> str:
    short = {(0, 1): "?", (0, sre.MAXREPEAT): "*", (1, sre.MAXREPEAT): "+"}
    if (least, most) in short:
        return short[least, most]
    if least == most:
        return f"{{{least}}}"
    return f"{{{least},}}" if most == sre.MAXREPEAT else f"{{{least},{most}}}"


def _place(pattern: str, written: str) -> int | None:
    """Where a construct first stands, outside of sets, comments and escapes; None where that is in doubt."""
    parts = re.compile(rf"({written})|\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\(\?#[^)]*\)|.", re.DOTALL)
    return next((part.start() for part in parts.finditer(pattern) if part[1] is not None), None)
