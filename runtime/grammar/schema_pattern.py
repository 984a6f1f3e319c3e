"""Patterns of JSON Schema: regular expressions that look for a match anywhere in a text.

Anchors are resolved, so that a Pattern's tree stands for whole texts: those that hold a match. An anchor is
understood at either end of an alternative; elsewhere it is Unsupported.
"""

from __future__ import annotations

from functools import lru_cache

import regex

from .schema_ecma import read_pattern
from .schema_regex import (
    ANYTHING,
    EMPTY,
    Alt,
    Cat,
    Edge,
    Repeat,
    Tree,
    Unsupported,
    parts_of,
    writable,
    write,
)

MAX_PATTERN = 8192
MAX_BRANCHES = 64
"""Most alternatives that resolving anchors may lead to."""
MATCH_SECONDS = 0.05


class Pattern:
    """A pattern as it was written, and the tree of the texts that hold a match of it."""

    __slots__ = ("_matcher", "source", "tree")

    def __init__(self, tree: Tree, source: str | None = None) -> None:
        self.tree = tree
        self.source = write(tree) if source is None else source
        self._matcher: regex.Pattern[str] | None = None

    def written(self) -> str:
        """As the engine takes it: anchored at both ends, of characters that it can write."""
        return f"^(?:{write(writable(self.tree))})$"

    def matches(self, text: str) -> bool:
        """Raises Unsupported when that takes too long to say."""
        if self._matcher is None:
            self._matcher = regex.compile(write(self.tree), regex.V1)
        try:
            return self._matcher.fullmatch(text, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            raise Unsupported("it takes too long to match") from None


@lru_cache(maxsize=1024)
def parse_pattern(source: str) -> Pattern:
    """Raises Unsupported or BadPattern."""
    if len(source) > MAX_PATTERN:
        raise Unsupported(f"a pattern of more than {MAX_PATTERN} characters")
    try:
        tree = read_pattern(source)
        options = tuple(_anchored(items) for items in _branches(tree, []))
    except RecursionError:
        raise Unsupported("a pattern nested too deep") from None
    return Pattern(options[0] if len(options) == 1 else Alt(options), source)


def _branches(tree: Tree, after: list[Tree]) -> list[list[Tree]]:
    """The alternatives of `tree` followed by `after`, split as far as an anchor stands in one of them."""
    if not _has_edge(tree) or isinstance(tree, Edge | Repeat):
        return [[tree, *after]]
    if isinstance(tree, Alt):
        found = [branch for option in tree.options for branch in _branches(option, after)]
    else:
        found = [after]
        for item in reversed(parts_of(tree)):
            found = [branch for rest in found for branch in _branches(item, rest)]
    if len(found) > MAX_BRANCHES:
        raise Unsupported("too many alternatives with anchors")
    return found


def _has_edge(tree: Tree) -> bool:
    return isinstance(tree, Edge) or any(map(_has_edge, parts_of(tree)))


def _anchored(items: list[Tree]) -> Tree:
    """The whole texts that hold the items one after the other, where only the ends may be anchors."""
    first = next((index for index, item in enumerate(items) if item != Edge(True)), len(items))
    last = next((index for index in range(len(items), first, -1) if items[index - 1] != Edge(False)), first)
    if any(_has_edge(item) for item in items[first:last]):
        raise Unsupported("an anchor inside a pattern")
    is_started, is_ended = first > 0, last < len(items)
    if first == last:
        return EMPTY if is_started and is_ended else ANYTHING
    before = () if is_started else (ANYTHING,)
    return Cat((*before, *items[first:last], *(() if is_ended else (ANYTHING,))))
