"""TreeView: the tree as plain numbers for people to look at: sizes, hits and ages, no tokens, no page ids.

A view is bounded. Half of its places go to the nodes used last (those in use before all others), the rest to
the largest ones, and each node comes with its ancestors. Only children of nodes in the view are looked at, so
it is made between two steps. Namespaces are numbered from the oldest on, since their names may be secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from .node import Node
from .tree import PrefixTree


@dataclass(frozen=True, slots=True)
class NodeView:
    """A run of pages. `id` stays the same from view to view; `parent` is None for the root of a namespace,
    which has no tokens. tokens and pages: its own. hits: how many acquires found it. last_used: by the view's
    clock. pins: how many sequences and copies hold it or something below it."""

    id: int
    parent: int | None
    namespace: int
    tokens: int
    pages: int
    hits: int
    last_used: int
    pins: int
    priority: int
    tier: Literal["device"] = "device"


@dataclass(frozen=True, slots=True)
class TreeView:
    """`nodes`: parents before their children; `left_out` more are in the tree, `total_nodes` in all. `clock`
    counts uses. Leased pages are those of sequences that the tree does not have (yet)."""

    nodes: tuple[NodeView, ...]
    total_nodes: int
    left_out: int
    clock: int
    num_pages: int
    free_pages: int
    cached_pages: int
    leased_pages: int
    page_size: int


def view_nodes(tree: PrefixTree, most: int) -> tuple[NodeView, ...]:
    """At most so many nodes of the tree, see the module's head."""
    ordinals = {namespace: number for number, namespace in enumerate(tree.roots)}
    nodes = _all(tree) if tree.node_count <= most else _some(tree, most)
    return tuple(_view(node, ordinals[node.namespace], tree.page_size) for node in nodes)


def _all(tree: PrefixTree) -> Iterable[Node]:
    nodes = list(tree.roots.values())
    for node in nodes:  # it grows as it is read
        nodes += node.children.values()
    return nodes


def _some(tree: PrefixTree, most: int) -> Iterable[Node]:
    taken: dict[int, Node] = {}
    _take(taken, tree.roots.values(), _by_use, most // 2)
    _take(taken, tree.roots.values(), _by_size, most)
    return taken.values()


# Any: ranks of one rule compare with each other.
def _take(taken: dict[int, Node], roots: Iterable[Node], rank: Callable[[Node], Any], most: int) -> None:
    """Add nodes until there are `most`, lowest rank first, each after its parent. A root comes with the first
    of its children, whatever its own rank."""
    first = [child for root in roots for child in root.children.values() or (root,)]
    heap = [(rank(node), node.serial, node) for node in first]
    heapify(heap)
    while heap and len(taken) < most:
        node = heappop(heap)[2]
        for step in (node.parent, node):
            if step is not None and len(taken) < most:
                taken.setdefault(step.serial, step)
        for child in node.children.values():
            heappush(heap, (rank(child), child.serial, child))


def _by_use(node: Node) -> tuple[bool, int]:
    return node.locks == 0, -node.last_used


def _by_size(node: Node) -> int:
    return -len(node.pages)


def _view(node: Node, namespace: int, page_size: int) -> NodeView:
    keys = node.keys
    return NodeView(
        id=node.serial,
        parent=None if node.parent is None else node.parent.serial,
        namespace=namespace,
        tokens=(len(keys) - 1) * page_size + len(keys[-1]) if keys else 0,
        pages=len(node.pages),
        hits=node.hits,
        last_used=node.last_used,
        pins=node.locks,
        priority=node.priority,
    )
