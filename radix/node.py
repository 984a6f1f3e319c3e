"""Node: a run of pages of the prefix tree, and the order of its children.

A page is known by its key, the exact tuple of tokens it holds: `page_size` tokens, or fewer in the
last page of a leaf (a partial page). Children are found by the key of their first page. Their keys are
also kept sorted, because among sorted tuples the one with the longest common prefix with a query is a
neighbour of the place where the query would be inserted. A node knows its parent and children only;
pins, eviction and the page pool are the tree's business.
"""

from __future__ import annotations

from bisect import bisect_left, insort

Key = tuple[int, ...]
Namespace = tuple[str, ...]
Rank = tuple[int, bool, int, int]
NOBODY = ""
"""The owner of nodes that no single program has for itself."""


class Node:
    """A run of pages; a root has none. `locks` counts the pins on this node and everything below it.

    `rank` is the node's place in the eviction order, None while it is not in it. `hits` counts the matches
    that ended in the run or below it, whatever pages it had then; a root has none. `holds` counts the locks
    that are holds. `owner` and `spent`: see owners.py.
    """

    __slots__ = (
        "children",
        "hits",
        "holds",
        "keys",
        "last_used",
        "locks",
        "namespace",
        "order",
        "owner",
        "pages",
        "parent",
        "priority",
        "rank",
        "serial",
        "spent",
    )

    def __init__(self, namespace: Namespace, parent: Node | None, serial: int) -> None:
        self.namespace = namespace
        self.parent = parent
        self.serial = serial
        self.keys: list[Key] = []
        self.pages: list[int] = []
        self.children: dict[Key, Node] = {}
        self.order: list[Key] = []
        self.locks = 0
        self.holds = 0
        self.owner = NOBODY
        self.spent = False
        self.last_used = 0
        self.priority = 0
        self.hits = 0
        self.rank: Rank | None = None

    def add_child(self, child: Node) -> None:
        key = child.keys[0]
        assert key not in self.children, f"two siblings with the same first page {key}"
        self.children[key] = child
        insort(self.order, key)

    def remove_child(self, child: Node) -> None:
        key = child.keys[0]
        assert self.children.pop(key) is child, "a node is found under its first page"
        del self.order[bisect_left(self.order, key)]

    def replace_child(self, child: Node) -> None:
        """Put `child` in the place of the child with the same first page."""
        assert child.keys[0] in self.children, "only a child that is there can be replaced"
        self.children[child.keys[0]] = child

    def extender(self, key: Key) -> Node | None:
        """A child whose first page is `key` or goes on after it."""
        return self._starting_with(key, bisect_left(self.order, key))

    def outgrower(self, key: Key) -> Node | None:
        """Beside the child `key`, another one whose first page goes on after it."""
        return self._starting_with(key, bisect_left(self.order, key) + 1)

    def _starting_with(self, key: Key, at: int) -> Node | None:
        """The child at that place of the order, if its first page starts with `key`."""
        if at < len(self.order) and self.order[at][: len(key)] == key:
            return self.children[self.order[at]]
        return None

    def nearest(self, query: Key) -> tuple[Node | None, int]:
        """The child whose first page has the longest common prefix with `query`, and its length (0: none)."""
        best, most = None, 0
        at = bisect_left(self.order, query)
        for key in self.order[max(0, at - 1) : at + 1]:
            if (common := common_prefix(key, query)) > most:
                best, most = self.children[key], common
        return best, most

    def prefixes(self, key: Key) -> list[Node]:
        """The children whose first page is a strict prefix of `key`, longest first.

        The greatest sibling below `key` bounds what can be a prefix: anything longer than their common
        prefix would lie between the two. So each turn of the loop shortens the search to that prefix.
        """
        found = []
        while (at := bisect_left(self.order, key)) > 0:
            key = key[: common_prefix(self.order[at - 1], key)]
            if (child := self.children.get(key)) is not None:
                found.append(child)
        return found


def common_prefix(a: Key, b: Key) -> int:
    """Number of leading tokens that are equal."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
