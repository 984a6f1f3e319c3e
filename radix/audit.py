"""Recounts of the cache from scratch (`audit`) and a picture of the tree (`draw`). Both change nothing.

An audit trusts no counter and no index: it walks the tree, leases, holds and waiting copies and compares.
It costs a walk over everything, so it is for tests and for hunting a fault, not for serving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .lease import CopyLedger, Hold, Lease
from .node import NOBODY, Node
from .pool import PagePool, pages_for
from .tree import PrefixTree


def audit(
    tree: PrefixTree, pool: PagePool, leases: Iterable[Lease], copies: CopyLedger, holds: Iterable[Hold]
) -> None:
    """Raise AssertionError, in words, on the first thing that does not hold."""
    leases, holds = list(leases), list(holds)
    nodes = list(tree.nodes())
    for node in nodes:
        _audit_shape(node, tree.page_size)
    _audit_pins(tree, nodes, leases, copies, holds)
    _audit_holds(tree, nodes, holds)
    _audit_owners(tree, nodes)
    private: list[int] = []
    for lease in leases:
        private += _audit_lease(lease, tree.page_size)
    owners = Counter(id(lease.node) for lease in leases if lease.published % tree.page_size)
    assert all(count == 1 for count in owners.values()), "a partial page has one owner at most"
    _audit_pages(tree, pool, nodes, private)
    targets = set(copies.waiting)
    assert targets <= set(private), "a waiting copy goes to a private page of a lease"


def draw(tree: PrefixTree) -> str:
    return "\n".join(_line(node) for node in tree.nodes())


def _audit_shape(node: Node, page_size: int) -> None:
    assert len(node.keys) == len(node.pages), "a run has one key a page"
    assert node.parent is None or node.keys, "only a root has no pages"
    whole = node.keys if node.children else node.keys[:-1]
    assert all(len(key) == page_size for key in whole), "only the last page of a leaf is partial"
    assert all(0 < len(key) <= page_size for key in node.keys), "a page holds 1 to page_size tokens"
    assert node.order == sorted(node.children), "the sorted keys are those of the children"
    assert node.parent is None or node.parent.parent is None or node.hits <= node.parent.hits, (
        "what is found is found with all that lies before it"
    )
    for key, child in node.children.items():
        assert child.keys[0] == key, "a child is found under its first page"
        assert child.parent is node, "a child knows its parent"
        redundant = child.locks == 0 and len(child.keys) == 1 and node.outgrower(key) is not None
        assert not redundant, "an unpinned page that a sibling extends is dropped"


def _audit_pins(
    tree: PrefixTree, nodes: list[Node], leases: list[Lease], copies: CopyLedger, holds: list[Hold]
) -> None:
    pins = [lease.node for lease in leases] + [node for _, node in copies.waiting.values()] + copies.taken
    pins += [hold.node for hold in holds]
    locks: Counter[int] = Counter()
    for pin in pins:
        locks.update(id(node) for node in _path(pin))
    for node in nodes:
        assert node.locks == locks[id(node)], f"{node.locks} locks where {locks[id(node)]} pins pass"
        is_free_leaf = node.locks == 0 and not node.children
        assert is_free_leaf == (node.rank is not None), "the eviction order holds the unpinned leaves"
        assert node.rank is None or node.rank == tree.leaves.rank_of(node), "a leaf stands at its place"
        assert node.parent is not None or node.locks or node.children, "an unused root is removed"
    assert set(locks) <= {id(node) for node in nodes}, "pins lie on nodes of the tree"
    assert tree.node_count == len(nodes), f"{tree.node_count} nodes counted, {len(nodes)} found"
    assert len(tree.leaves) == sum(node.rank is not None for node in nodes), "only leaves can be evicted"


def _audit_holds(tree: PrefixTree, nodes: list[Node], holds: list[Hold]) -> None:
    counts: Counter[int] = Counter()
    for hold in holds:
        assert hold.node is not None, "a live hold has a pin"
        counts.update(id(node) for node in _path(hold.node))
        slots = sum(len(key) for node in _path(hold.node) for key in node.keys)
        assert 0 < hold.tokens <= slots, "a hold keeps the tokens it speaks of"
    for node in nodes:
        assert node.holds == counts[id(node)], f"{node.holds} holds where {counts[id(node)]} pass"
    held = sum(len(node.pages) for node in nodes if node.holds)
    assert tree.held == held, f"{tree.held} held pages counted, {held} found"
    idle = sum(len(node.pages) for node in nodes if node.holds and node.holds == node.locks)
    assert tree.idle_held == idle, f"{tree.idle_held} pages counted that only holds keep, {idle} found"


def _audit_owners(tree: PrefixTree, nodes: list[Node]) -> None:
    owned = {node.owner for node in nodes} - {NOBODY}
    assert len(tree.owners) == len(owned), f"{len(tree.owners)} owners in the index, {len(owned)} found"
    for owner in owned:
        theirs = {id(node) for node in nodes if node.owner == owner}
        assert {id(node) for node in tree.owners.nodes_of(owner)} == theirs, "the index has all of an owner"
    for node in nodes:
        assert not (node.spent and node.owner), "what an ended owner left is nobody's"
        above = NOBODY if node.parent is None else node.parent.owner
        assert above in (NOBODY, node.owner), "below an owner's node all is that owner's"


def _audit_lease(lease: Lease, page_size: int) -> list[int]:
    """The private pages of a lease, once its shared ones are those of its path."""
    path = [page for node in reversed(list(_path(lease.node))) for page in node.pages]
    assert lease.pages[: lease.shared] == path, "the shared pages of a lease are those of its path"
    assert lease.node is not None, "a live lease has a pin"
    keys = [key for node in _path(lease.node) for key in node.keys]
    assert lease.published == sum(map(len, keys)), "published tokens are those of the path"
    assert len(path) == pages_for(lease.published, page_size), "published tokens fill the shared pages"
    return lease.pages[lease.shared :]


def _audit_pages(tree: PrefixTree, pool: PagePool, nodes: list[Node], private: list[int]) -> None:
    cached = [page for node in nodes for page in node.pages]
    tokens = sum(len(key) for node in nodes for key in node.keys)
    assert tree.tokens == tokens, f"{tree.tokens} cached tokens counted, {tokens} there"
    free = sum(len(node.pages) for node in nodes if node.locks == 0)
    assert tree.cached == len(cached), f"{tree.cached} cached pages counted, {len(cached)} found"
    assert tree.evictable == free, f"{tree.evictable} evictable pages counted, {free} found"
    places = Counter(cached) + Counter(private) + Counter(pool.free_pages)
    twice = [page for page, count in places.items() if count > 1]
    assert not twice, f"pages {twice} are in two places"
    missing = set(range(pool.num_pages)) - set(places)
    assert not missing, f"pages {sorted(missing)} are neither free, cached nor leased"


def _path(node: Node | None) -> Iterator[Node]:
    """From a node up to its root."""
    while node is not None:
        yield node
        node = node.parent


def _line(node: Node) -> str:
    depth = sum(1 for _ in _path(node)) - 1
    name = repr(node.namespace) if node.parent is None else " ".join(map(str, node.keys))
    state = f"pages {node.pages} locks {node.locks} used {node.last_used} priority {node.priority}"
    if node.holds:
        state += f" holds {node.holds}"
    if node.owner or node.spent:
        state += " spent" if node.spent else f" owner {node.owner!r}"
    return f"{'  ' * depth}{name} {state}"
