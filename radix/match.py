"""Match: the longest cached prefix of some tokens, and the walk down the tree that finds it.

Whole pages are found by their exact tokens, and what goes on inside a page by the nearest of the sorted keys.
Nothing is changed, so a match is also what a command looks at before it does anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .node import Key, Node, common_prefix


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of some tokens. It holds until the tree next changes.

    `pages` are the whole pages, the last of which is page `at` - 1 of `node`'s run. Where the prefix goes
    on inside a page, the first `slots` slots of one more page match: the page after `at` where `source`
    is `node`, the first page of `source` where it is a child.
    `pins` and `source_pins` count the pages that pinning either would keep from eviction.
    """

    node: Node | None = None
    at: int = 0
    pages: tuple[int, ...] = ()
    source: Node | None = None
    slots: int = 0
    pins: int = 0
    source_pins: int = 0

    def all_pages(self) -> tuple[int, ...]:
        """The pages that hold the prefix, with the one in which it ends."""
        if self.source is None:
            return self.pages
        return (*self.pages, self.source.pages[self.at if self.source is self.node else 0])

    def unheld(self) -> int:
        """Pages that no hold keeps yet, the one in which the prefix ends included."""
        count = int(self.source is not None and self.source.holds == 0)
        node, pages = self.node, self.at
        while node is not None and node.holds == 0:
            count += pages
            node = node.parent
            pages = 0 if node is None else len(node.pages)
        return count


def match_from(root: Node, tokens: Sequence[int], page_size: int) -> Match:
    """The match of `tokens` below `root`."""
    node, size, at, pins = root, page_size, 0, 0
    pages: list[int] = []
    while True:
        key = tuple(tokens[len(pages) * size : (len(pages) + 1) * size])
        if len(key) < size:
            break
        if at == len(node.keys):
            child = node.children.get(key)
            if child is None:
                break
            node, at = child, 0
        elif node.keys[at] != key:
            break
        pages.append(node.pages[at])
        at += 1
        pins += node.locks == 0
    source, slots = _inside(node, at, key)
    source_pins = int(source is not None and source.locks == 0)
    return Match(node, at, tuple(pages), source, slots, pins, source_pins)


def _inside(node: Node, at: int, query: Key) -> tuple[Node | None, int]:
    """Where `query` goes on inside a page after the first `at` pages of `node`: the node and the slots."""
    if at < len(node.keys):
        slots = common_prefix(node.keys[at], query)
        return (node if slots else None), slots
    return node.nearest(query)
