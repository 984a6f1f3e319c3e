"""The order in which the items of a batch start: depth-first over the trie of their first prompts.

Items whose prompts begin alike stand together, so that what they share is needed without a break and is then
done with; subtrees come in the order of their first item. Prompts are compared in steps of some characters,
about as long as what a cache keeps at a time: items that have no more than that in common stay in the order
in which they were given. A pure function of texts, which are compared where they lie: a document that many
prompts share, or one that is long, is not copied.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_STEP = 32
"""Characters."""
_MOST = 1 << 16
"""Characters that are compared at a time."""


def item_order(keys: Sequence[Sequence[str]]) -> list[int]:
    """Every index once; `keys` are the first prompts, as far as they are known, in pieces of any length."""
    texts = [_Pieces(key) for key in keys]
    found: list[int] = []
    groups = [(list(range(len(keys))), 0)]
    while groups:  # no recursion: prompts may have a long beginning in common
        members, start = groups.pop()
        if len(members) < 2:
            found += members
            continue
        start += _common([texts[index] for index in members], start) // _STEP * _STEP
        parts: dict[str, list[int]] = {}
        for index in members:
            parts.setdefault(texts[index].read(start, start + _STEP), []).append(index)
        if parts.keys() == {""}:  # equal to the end
            found += members
            continue
        groups += [(part, start + _STEP) for part in reversed(parts.values())]
    return found


class _Pieces:
    """One text in pieces; `ends` is where each of them ends."""

    __slots__ = ("ends", "pieces")

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(filter(None, pieces))
        self.ends = list(accumulate(map(len, self.pieces)))

    def read(self, start: int, end: int) -> str:
        found = ""
        place = bisect_right(self.ends, start)
        while start < end and place < len(self.pieces):
            piece, stop = self.pieces[place], self.ends[place]
            inside = start - stop + len(piece)
            found += piece[inside : inside + end - start]
            start, place = stop, place + 1
        return found


def _common(texts: Sequence[_Pieces], start: int) -> int:
    """Characters that all of them have in common from there on; 0 may stand for less than a step."""
    first, *others = texts
    most = first.ends[-1] - start if first.ends else 0
    for other in others:
        most = _common_of_two(first, other, start, most)
        if most < _STEP:
            return 0
    return most


def _common_of_two(one: _Pieces, other: _Pieces, start: int, most: int) -> int:
    """At most `most`."""
    at, end = start, start + most
    while at < end:
        mine, my_place, my_left = _piece_at(one, at)
        its, its_place, its_left = _piece_at(other, at)
        length = min(my_left, its_left, end - at)
        if not length:
            break
        if mine is its and my_place == its_place:
            at += length
            continue
        length = min(length, _MOST)
        if mine[my_place : my_place + length] != its[its_place : its_place + length]:
            return at - start + _common_part(mine, my_place, its, its_place, length)
        at += length
    return at - start


def _piece_at(text: _Pieces, at: int) -> tuple[str, int, int]:
    """The piece in which that character is, its place there, and how much of the piece is left."""
    place = bisect_right(text.ends, at)
    if place == len(text.pieces):
        return "", 0, 0
    piece = text.pieces[place]
    left = text.ends[place] - at
    return piece, len(piece) - left, left


def _common_part(one: str, at_one: int, other: str, at_other: int, length: int) -> int:
    """Of two stretches of that length: looked for in ever longer parts, since most differ early."""
    known, part = 0, min(_STEP, length)
    while part > 0:
        if one[at_one + known : at_one + known + part] == other[at_other + known : at_other + known + part]:
            known += part
            part = min(2 * part, length - known)
        else:
            part //= 2
    return known
