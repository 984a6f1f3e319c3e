"""Owners: which program alone has used a node, so that what it leaves behind is found when it ends.

A node has one owner, or none: NOBODY stands for nodes that a second program has used, or a request without a
program, and for good. An ended owner has no nodes any more: those it had are *spent* and the first to be
evicted, until anybody uses them again. The index has an entry for an owner only while it has nodes, so
programs that come and go leave nothing here. It knows neither pins nor pages; the tree says who uses what.

What must hold: a node below an owner's has the same owner, since whoever reaches it uses all above it.
"""

from __future__ import annotations

from .node import NOBODY, Node


class Owners:
    """Nodes by owner, each in the order in which it got them."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, Node]] = {}

    def __len__(self) -> int:
        """How many there are that have nodes."""
        return len(self._nodes)

    def nodes_of(self, owner: str) -> list[Node]:
        return list(self._nodes.get(owner, {}).values())

    def give(self, node: Node, owner: str) -> None:
        """A new node, of somebody or nobody."""
        node.owner = owner
        if owner != NOBODY:
            self._nodes.setdefault(owner, {})[node.serial] = node

    def use(self, node: Node, user: str) -> None:
        """Whoever uses the node of another, or one that is spent, makes it nobody's."""
        if node.owner != user:
            self.forget(node)
        node.spent = False

    def forget(self, node: Node) -> None:
        """The node is nobody's now, or is going."""
        if node.owner == NOBODY:
            return
        nodes = self._nodes[node.owner]
        del nodes[node.serial]
        if not nodes:
            del self._nodes[node.owner]
        node.owner = NOBODY

    def end(self, owner: str) -> list[Node]:
        """Nothing is this owner's any more; the nodes that were, which are spent now."""
        nodes = list(self._nodes.pop(owner, {}).values())
        for node in nodes:
            node.owner, node.spent = NOBODY, True
        return nodes
