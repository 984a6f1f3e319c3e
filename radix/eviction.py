"""EvictionOrder: the unpinned leaves, in the order in which their pages are given up.

The order is (priority, spent or not, last use, serial): lowest priority first, of those what ended programs
left, then the least recently used, then the oldest node. Under `lru` every priority counts as 0. A node's
place is computed when it enters and kept on the node, so leaving is exact. It does not decide what is a leaf
or pinned: the tree does.
"""

from __future__ import annotations

from typing import Literal

from sortedcontainers import SortedSet

from .node import Node, Rank

Policy = Literal["lru", "priority"]


class EvictionOrder:
    """A sorted set of ranks beside the nodes they stand for; every operation is O(log n)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ranks: SortedSet[Rank] = SortedSet()
        self._nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, node: Node) -> None:
        assert node.rank is None, "a leaf enters the eviction order once"
        node.rank = self.rank_of(node)
        self._ranks.add(node.rank)
        self._nodes[node.serial] = node

    def discard(self, node: Node) -> None:
        """Take the node out if it is in."""
        if node.rank is not None:
            self._ranks.remove(node.rank)
            del self._nodes[node.serial]
            node.rank = None

    def first(self) -> Node:
        """The leaf to give up next."""
        return self._nodes[self._ranks[0][-1]]

    def rank_of(self, node: Node) -> Rank:
        priority = node.priority if self._policy == "priority" else 0
        return priority, not node.spent, node.last_used, node.serial
