"""Lease: what one sequence holds of the cache; Hold, which keeps a prefix without one; copies to be made.

    lease.pages   0 .............. shared-1 | shared ................ len-1
                  in the tree, pinned         private: only this lease has them
    tokens        0 ........... published | computed, or still to be computed

Where `published` ends inside a page, page shared-1 is a partial page of the tree and this lease is the
only one that writes to it. Only the cache writes the fields of a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .node import NOBODY, Namespace, Node


@dataclass(eq=False, slots=True)
class Lease:
    """The block table of one sequence and its pin on the tree.

    pages: page ids in order; cached_tokens: tokens found in the cache when it was acquired;
    version: raised whenever `pages` changes. The other fields belong to the cache: `node` is the pinned
    node (the end of page shared-1), None once the lease is released; `owner` is the program that uses it.
    """

    namespace: Namespace
    priority: int
    cached_tokens: int
    pages: list[int]
    node: Node | None
    shared: int
    published: int
    version: int = 0
    owner: str = NOBODY

    def place_of(self, index: int) -> tuple[Node, int]:
        """Where the shared page `index` is in the tree: its node and its place in the node's run."""
        node = self.node
        assert node is not None, "a released lease has no pages"
        start = self.shared - len(node.pages)
        while start > index:
            node = node.parent
            assert node is not None, "the path of a lease holds all its shared pages"
            start -= len(node.pages)
        return node, index - start

    def replace_from(self, at: int, pages: list[int]) -> list[int]:
        """Put `pages` in the place of the pages from `at` on; the pages that were there."""
        old = self.pages[at:]
        self.pages[at:] = pages
        self.version += old != pages
        return old


@dataclass(eq=False, slots=True)
class Hold:
    """Keeps the first `tokens` tokens of some prompt from eviction until it is released. `node`, where they
    end, belongs to the cache; None once it is released."""

    node: Node | None
    tokens: int


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy slots [0, slots) of page `source` to page `target`, before anything is written to `target`."""

    source: int
    target: int
    slots: int


@dataclass(slots=True)
class CopyLedger:
    """Copies in the order in which they were recorded, each with the node that is pinned for its source.

    A copy waits until it is taken (made by the next step) and its pin is kept until it is settled.
    """

    waiting: dict[int, tuple[PageCopy, Node]] = field(default_factory=dict)
    taken: list[Node] = field(default_factory=list)

    def record(self, copy: PageCopy, source: Node) -> None:
        assert copy.target not in self.waiting, "a page is the target of one waiting copy at most"
        self.waiting[copy.target] = (copy, source)

    def drop(self, target: int) -> Node | None:
        """Forget the waiting copy to `target`; the node to unpin, if there was one."""
        _, source = self.waiting.pop(target, (None, None))
        return source

    def take(self) -> tuple[PageCopy, ...]:
        copies = tuple(copy for copy, _ in self.waiting.values())
        self.taken += [source for _, source in self.waiting.values()]
        self.waiting.clear()
        return copies

    def settle(self) -> list[Node]:
        """The nodes whose copies were taken, to be unpinned now."""
        taken, self.taken = self.taken, []
        return taken
