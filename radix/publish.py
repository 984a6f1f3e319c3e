"""publish: put the computed tokens of a lease into the tree. It takes no page and cannot fail.

              published                     upto
    tokens  ──────┬──────────────────────────┬─────────────────
            known │ computed since           │ not yet computed
    pages   ──────┴───┬───────────┬──────┬───┴──┬──────────────
            in the    │  twins    │ new  │ tail │ private
            tree, own │  in the   │ whole│ part │ (not yet
            tail page │  tree     │ pages│ page │  computed)
                      shared

    own tail   a partial page of the tree that this lease may append to: it gets its longer key. If that
               makes it equal to a whole sibling, the lease moves there and gives its own page up. If a
               sibling already holds all of it, it keeps its old key: nothing would be gained.
    twins      whole pages the tree has already: the lease is re-pointed to them, its duplicates are freed
    new        whole pages the tree does not have: they pass from the lease to the tree
    tail       what is computed of one more page: it passes to the tree as a partial page whose owner is
               this lease, unless a sibling holds all of it already; then it stays private

What is known beside a page's keys and values (beside.py) goes on to the page that is kept in its place.

Nothing before `published` is looked at, so the cost is that of the new pages. Afterwards `shared` and
`published` end where the tree's part ends, and the lease's pin lies there.
"""

from __future__ import annotations

from collections.abc import Sequence

from .lease import Lease
from .node import Node
from .tree import PrefixTree


def publish(tree: PrefixTree, lease: Lease, tokens: Sequence[int], upto: int) -> list[int]:
    """Insert tokens[:upto], all of them computed. Returns the lease's duplicates, to be freed."""
    node = lease.node
    assert node is not None, "a released lease publishes nothing"
    if upto <= lease.published:
        return []
    if lease.published % tree.page_size and not _extend_tail(tree, lease, node, tokens, upto):
        return []
    return _insert(tree, lease, tokens, upto)


def _extend_tail(tree: PrefixTree, lease: Lease, node: Node, tokens: Sequence[int], upto: int) -> bool:
    """Bring the owned partial page up to date; whether it is whole now, so that others may follow it."""
    size, last = tree.page_size, lease.shared - 1
    stop = min(upto, lease.shared * size)
    key = tuple(tokens[last * size : stop])
    whole = len(key) == size
    # Only the first page of a run has siblings.
    longer = node.parent.extender(key) if len(node.keys) == 1 and node.parent is not None else None
    if longer is not None:
        if not whole:
            tree.values.fill(longer.pages[0], lease.pages[last], len(key))
            return False
        lease.node = tree.move_to_twin(node, key, lease.priority, lease.owner)
        lease.pages[last] = lease.node.pages[0]
        lease.version += 1
    else:
        tree.lengthen(node, key)
    lease.published = stop
    return whole


def _insert(tree: PrefixTree, lease: Lease, tokens: Sequence[int], upto: int) -> list[int]:
    """Insert the pages after the shared ones; see the picture."""
    size, start = tree.page_size, lease.shared
    assert lease.node is not None, "a released lease publishes nothing"
    keys = [tuple(tokens[at : at + size]) for at in range(start * size, upto - size + 1, size)]
    node, twins = tree.follow(lease.node, keys, lease.priority, lease.owner)
    new = keys[len(twins) :]
    tail = tuple(tokens[upto - upto % size : upto])
    longer = node.extender(tail) if tail and not new else None
    owns_tail = bool(tail) and longer is None
    if owns_tail:
        new.append(tail)
    elif longer is not None:
        tree.values.fill(longer.pages[0], lease.pages[start + len(twins)], len(tail))
    duplicates = lease.pages[start : start + len(twins)]
    for twin, duplicate in zip(twins, duplicates, strict=True):
        tree.values.fill(twin, duplicate, size)
    if twins:
        lease.pages[start : start + len(twins)] = twins
        lease.version += 1
    lease.shared += len(twins)
    if new:
        pages = lease.pages[lease.shared : lease.shared + len(new)]
        node = tree.attach(node, new, pages, lease.priority, lease.owner)
        lease.shared += len(new)
    lease.node = node
    lease.published = upto if owns_tail else lease.shared * size
    return duplicates
