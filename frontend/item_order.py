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
from dataclasses import dataclass
from itertools import accumulate

_STEP = 32
"""Characters."""
_MOST = 1 << 16
"""Characters that are compared at a time."""


def item_order(keys: Sequence[Sequence[str]]) -> list[int]:
    """Every index once; `keys` are the first prompts, as far as they are known, in pieces of any length."""
    texts = [_Pieces(key) for key in keys]
    found: list[int] = []
    groups = [_Group(list(range(len(keys))), 0)]
    while groups:  # no recursion: prompts may have a long beginning in common
        group = groups.pop()
        if group.is_sorted or len(group.members) < 2:
            found += group.members
        else:
            groups += reversed(_split(group, texts))
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """Items, as they were given, whose texts are alike up to `start`; sorted if they are alike to the end."""

    members: list[int]
    start: int
    is_sorted: bool = False


def _split(group: _Group, texts: Sequence[_Pieces]) -> list[_Group]:
    """The subtrees beside the path of the longest text, and its end, in the order in which they come. Each
    item is compared with that text alone, so texts of which each begins the next take one pass."""
    longest = max((texts[index] for index in group.members), key=len)
    end = len(longest)
    equal: list[int] = []
    leaving: dict[int, dict[str, list[int]]] = {}  # by the place of the step that differs, and its text
    for index in group.members:
        text = texts[index]
        common = _common_of_two(longest, text, group.start, end - group.start)
        if group.start + common == end:
            equal.append(index)
            continue
        place = group.start + common // _STEP * _STEP
        leaving.setdefault(place, {}).setdefault(text.read(place, place + _STEP), []).append(index)
    before: list[list[_Group]] = []
    after: list[_Group] = []
    first = equal[0]
    for place in sorted(leaving, reverse=True):
        sides = [_Group(part, place + _STEP, len(step) < _STEP) for step, part in leaving[place].items()]
        before.append([side for side in sides if side.members[0] < first])
        after += [side for side in sides if side.members[0] > first]
        first = min(first, sides[0].members[0])
    path = _Group(equal, end, is_sorted=True)
    return [*(side for sides in reversed(before) for side in sides), path, *after]


class _Pieces:
    """One text in pieces; `ends` is where each of them ends."""

    __slots__ = ("ends", "pieces")

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = tuple(filter(None, pieces))
        self.ends = list(accumulate(map(len, self.pieces)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def read(self, start: int, end: int) -> str:
        found = ""
        place = bisect_right(self.ends, start)
        while start < end and place < len(self.pieces):
            piece, stop = self.pieces[place], self.ends[place]
            inside = start - stop + len(piece)
            found += piece[inside : inside + end - start]
            start, place = stop, place + 1
        return found


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
