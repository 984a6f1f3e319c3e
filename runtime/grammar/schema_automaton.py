"""Finite automata over characters: which texts several trees match at once, as trees again.

Used for names of keys that several patterns speak of, and for those that none does. Texts with a character
about which dialects disagree are in no tree. Everything is bounded; what needs more states or longer trees is
Unsupported. Trees that name classes of Unicode are so too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from .schema_regex import EMPTY, NOTHING, TOP, Alt, Cat, Chars, Repeat, Tree, Unsupported, negated, write

MAX_PARTS = 3000
MAX_STATES = 60
MAX_WRITTEN = 8000

Holding: TypeAlias = tuple[bool, ...]
"""For each tree, whether it matches."""


def both(one: Tree, other: Tree) -> Tree:
    """The texts that both trees match. Raises Unsupported."""
    return Automaton((one, other)).tree_of({(True, True)})


class Automaton:
    """All texts, told apart by which of the trees match them. Raises Unsupported."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = tuple(trees)
        self._parts = _Parts()
        ends = []
        starts = []
        for tree in trees:
            start, end = self._parts.new(), self._parts.new()
            self._parts.add(tree, start, end)
            starts.append(start)
            ends.append(end)
        self._ends = ends
        self._letters = self._parts.letters()
        self._has_doubt = sum(high + 1 - low for group in self._letters for low, high in group) <= TOP
        self._states: dict[frozenset[int], int] = {}
        self._moves: list[dict[int, list[int]]] = []
        self._holdings: list[Holding] = []
        self._build(self._parts.closure(starts))

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Which trees match together, for some text each."""
        return tuple(dict.fromkeys(self._holdings))

    def tree_of(self, wanted: set[Holding]) -> Tree:
        """The texts for which exactly so many of the trees match: a tree itself, if it matches alone."""
        for index, tree in enumerate(self._trees):
            if wanted == {holding for holding in self._holdings if holding[index]} and not self._has_doubt:
                return tree
        edges: list[dict[int, Tree]] = [{} for _ in range(len(self._moves) + 2)]
        start, end = len(self._moves), len(self._moves) + 1
        for state, moves in enumerate(self._moves):
            for target, letters in moves.items():
                ranges = tuple(pair for letter in letters for pair in self._letters[letter])
                edges[state][target] = Chars(negated(negated(ranges)))
            if self._holdings[state] in wanted:
                edges[state][end] = EMPTY
        edges[start][0] = EMPTY
        return _eliminated(edges, start, end)

    def _build(self, first: frozenset[int]) -> None:
        self._states[first] = 0
        waiting = [first]
        while waiting:
            parts = waiting.pop(0)
            self._holdings.append(tuple(end in parts for end in self._ends))
            moves: dict[int, list[int]] = {}
            for letter, target in self._parts.targets(parts, len(self._letters)):
                if target not in self._states:
                    if len(self._states) >= MAX_STATES:
                        raise Unsupported("patterns of too many states")
                    self._states[target] = len(self._states)
                    waiting.append(target)
                moves.setdefault(self._states[target], []).append(letter)
            self._moves.append(moves)


class _Parts:
    """Trees taken apart: numbered points, with steps between them that take a character or none."""

    def __init__(self) -> None:
        self._free: list[list[int]] = []
        self._steps: list[list[tuple[Chars, int]]] = []
        self._of_letter: dict[Chars, frozenset[int]] = {}

    def new(self) -> int:
        if len(self._free) >= MAX_PARTS:
            raise Unsupported("patterns with too many parts")
        self._free.append([])
        self._steps.append([])
        return len(self._free) - 1

    def add(self, tree: Tree, start: int, end: int) -> None:
        if isinstance(tree, Chars):
            if tree.inside:
                raise Unsupported("classes of Unicode in patterns that have to be compared")
            self._steps[start].append((tree, end))
        elif isinstance(tree, Cat):
            for item in tree.items:
                between = self.new()
                self.add(item, start, between)
                start = between
            self._free[start].append(end)
        elif isinstance(tree, Alt):
            for option in tree.options:
                self.add(option, start, end)
        else:
            assert isinstance(tree, Repeat), "edges are resolved before a tree is used"
            self._add_repeat(tree, start, end)

    def _add_repeat(self, tree: Repeat, start: int, end: int) -> None:
        for _ in range(tree.least):
            between = self.new()
            self.add(tree.item, start, between)
            start = between
        if tree.most is None:
            loop = self.new()
            self._free[start].append(loop)
            self.add(tree.item, loop, loop)
            start = loop
        for _ in range((tree.most or 0) - tree.least):
            self._free[start].append(end)
            between = self.new()
            self.add(tree.item, start, between)
            start = between
        self._free[start].append(end)

    def letters(self) -> list[list[tuple[int, int]]]:
        """Groups of characters that no step tells apart; those in doubt are in none."""
        used = list(dict.fromkeys(chars for steps in self._steps for chars, _ in steps))
        doubt = [pair for chars in used for pair in chars.doubt]
        cuts = {0, TOP + 1}
        for low, high in (*doubt, *(pair for chars in used for pair in chars.ranges)):
            cuts |= {low, high + 1}
        ordered = sorted(cuts)
        groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for low, stop in pairwise(ordered):
            if any(a <= low <= b for a, b in doubt):
                continue
            holders = tuple(
                index for index, chars in enumerate(used) if any(a <= low <= b for a, b in chars.ranges)
            )
            groups.setdefault(holders, []).append((low, stop - 1))
        for index, chars in enumerate(used):
            self._of_letter[chars] = frozenset(n for n, holders in enumerate(groups) if index in holders)
        return list(groups.values())

    def closure(self, points: Sequence[int]) -> frozenset[int]:
        found = set(points)
        waiting = list(points)
        while waiting:
            for point in self._free[waiting.pop()]:
                if point not in found:
                    found.add(point)
                    waiting.append(point)
        return frozenset(found)

    def targets(self, points: frozenset[int], letters: int) -> list[tuple[int, frozenset[int]]]:
        reached: list[list[int]] = [[] for _ in range(letters)]
        for point in points:
            for chars, target in self._steps[point]:
                for letter in self._of_letter[chars]:
                    reached[letter].append(target)
        return [(letter, self.closure(found)) for letter, found in enumerate(reached)]


def _eliminated(edges: list[dict[int, Tree]], start: int, end: int) -> Tree:
    """One tree for all ways from start to end, with the points between taken out one by one."""
    inner = {point for point in range(len(edges)) if point not in (start, end)}
    sources: list[set[int]] = [set() for _ in edges]
    for source, targets in enumerate(edges):
        for target in targets:
            sources[target].add(source)
    while inner:
        point = min(inner, key=lambda p: (len(edges[p]) * len(sources[p]), p))
        inner.remove(point)
        loop = edges[point].pop(point, None)
        sources[point].discard(point)
        middle: tuple[Tree, ...] = () if loop is None else (Repeat(loop, 0, None),)
        for source in sources[point]:
            before = edges[source].pop(point)
            for target, after in edges[point].items():
                way = _joined(before, *middle, after)
                known = edges[source].get(target)
                edges[source][target] = way if known is None else _either(known, way)
                sources[target].add(source)
        for target in edges[point]:
            sources[target].discard(point)
        edges[point] = {}
    tree = edges[start].get(end, NOTHING)
    if _size(tree) > MAX_WRITTEN:
        raise Unsupported("patterns that are too long when they are combined")
    return tree


def _size(tree: Tree) -> int:
    return len(write(tree))


def _joined(*trees: Tree) -> Tree:
    items: list[Tree] = []
    for tree in trees:
        items += tree.items if isinstance(tree, Cat) else [tree]
    if len(items) > MAX_WRITTEN:
        raise Unsupported("patterns that are too long when they are combined")
    return items[0] if len(items) == 1 else Cat(tuple(items))


def _either(one: Tree, other: Tree) -> Tree:
    options = (
        *(one.options if isinstance(one, Alt) else (one,)),
        *(other.options if isinstance(other, Alt) else (other,)),
    )
    if len(options) > MAX_WRITTEN:
        raise Unsupported("patterns that are too long when they are combined")
    return Alt(tuple(dict.fromkeys(options)))
