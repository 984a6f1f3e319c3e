"""PrefixTree: the pages that are cached, by token prefix; pins, splits and eviction.

One root per namespace, made when it is first pinned and removed when it is neither pinned nor has
children. A pin on a node locks the node and all its ancestors, so nodes without locks form whole
subtrees and every page in them can be evicted, leaf by leaf. A split leaves the lower part its
identity: pins on it stay valid. The tree knows no lease: callers pass nodes and keep the pins they took.

What must hold: whole pages everywhere but at the end of a leaf; siblings differ in their first page;
the eviction order holds exactly the leaves without locks; `evictable` counts the pages without locks, `held`
those with holds, `idle_held` those with nothing but holds; no node has more hits than the one above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .beside import PageValues
from .eviction import EvictionOrder, Policy
from .match import Match, match_from
from .node import NOBODY, Key, Namespace, Node
from .owners import Owners
from .pool import PagePool


class PrefixTree:
    """Owns the cached pages; takes them from callers and gives evicted ones back to the pool."""

    def __init__(self, page_size: int, pool: PagePool, policy: Policy, values: PageValues) -> None:
        self.page_size = page_size
        self.cached = 0
        self.tokens = 0
        self.evictable = 0
        self.held = 0
        self.idle_held = 0
        self.node_count = 0
        self.clock = 0
        self.roots: dict[Namespace, Node] = {}
        self.leaves = EvictionOrder(policy)
        self.owners = Owners()
        self.values = values
        self._pool = pool
        self._serial = 0

    # -- queries ---------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int], namespace: Namespace) -> Match:
        """The longest cached prefix of `tokens`. Changes nothing."""
        node = self.roots.get(namespace)
        return Match() if node is None else match_from(node, tokens, self.page_size)

    def nodes(self) -> Iterator[Node]:
        """Every node, roots included, parents before children, in the order of the keys."""
        for namespace in sorted(self.roots):
            pending = [self.roots[namespace]]
            while pending:
                node = pending.pop()
                yield node
                pending.extend(node.children[key] for key in reversed(node.order))

    # -- pins ------------------------------------------------------------------------------------

    def root(self, namespace: Namespace) -> Node:
        """The root of a namespace, made if need be. The caller pins it at once."""
        if namespace not in self.roots:
            self.roots[namespace] = self._new_node(namespace, None, NOBODY)
        return self.roots[namespace]

    def pin(self, node: Node, priority: int, owner: str | None) -> None:
        """Keep the path from the root to `node` from eviction; None: it is no use of anybody's."""
        step: Node | None = node
        while step is not None:
            self._lock(step, priority, owner)
            step = step.parent

    def unpin(self, node: Node) -> None:
        """Take one pin back; the whole path counts as used now."""
        self.clock += 1
        step: Node | None = node
        while step is not None:
            parent = step.parent
            step.last_used = self.clock
            self._unlock(step)
            step = parent

    def hold(self, node: Node, owner: str) -> None:
        """A pin that is counted apart. It lasts, and so its end is no use."""
        step: Node | None = node
        while step is not None:
            self._lock(step, step.priority, owner)
            step = step.parent
        self.count_hold(node)

    def end_hold(self, node: Node) -> None:
        self.uncount_hold(node)
        self.unlock_hold(node)

    def count_hold(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            step.holds += 1
            if step.holds == 1:
                self.held += len(step.pages)
            if step.locks == step.holds:
                self.idle_held += len(step.pages)
            step = step.parent

    def uncount_hold(self, node: Node) -> None:
        """What `count_hold` can take back. The pin stays: `unlock_hold` ends it."""
        step: Node | None = node
        while step is not None:
            if step.locks == step.holds:
                self.idle_held -= len(step.pages)
            step.holds -= 1
            if step.holds == 0:
                self.held -= len(step.pages)
            step = step.parent

    def unlock_hold(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            parent = step.parent
            self._unlock(step)
            step = parent

    def count_hit(self, node: Node) -> None:
        """A match ended in `node`: the whole path counts it."""
        step = node
        while step.parent is not None:
            step.hits += 1
            step = step.parent

    def cut(self, node: Node, at: int) -> Node:
        """The node that ends `at` pages into the run of `node`, splitting the run if it goes on.

        The new node is the upper part with the same locks (each pin on or below the lower part passes
        through it); at 0 the answer is the parent.
        """
        if at == len(node.pages):
            return node
        if at == 0:
            assert node.parent is not None, "a root has no pages to cut before"
            return node.parent
        upper = self._new_node(node.namespace, node.parent, node.owner)
        upper.keys, upper.pages = node.keys[:at], node.pages[:at]
        upper.locks, upper.last_used, upper.priority = node.locks, node.last_used, node.priority
        upper.hits, upper.holds, upper.spent = node.hits, node.holds, node.spent
        assert node.parent is not None, "a run has a parent"
        node.parent.replace_child(upper)
        node.keys, node.pages = node.keys[at:], node.pages[at:]
        node.parent = upper
        upper.add_child(node)
        return upper

    # -- growth: the caller holds a pin on `node` and afterwards holds it on the returned node --------

    def follow(self, node: Node, keys: Sequence[Key], priority: int, owner: str) -> tuple[Node, list[int]]:
        """Move a pin from the end of `node` down the whole pages `keys`, as far as they are cached."""
        pages: list[int] = []
        while len(pages) < len(keys) and (child := node.children.get(keys[len(pages)])) is not None:
            node = self.cut(child, _run_in(child, keys, len(pages)))
            self._lock(node, priority, owner)
            pages += node.pages
        return node, pages

    def attach(
        self, node: Node, keys: Sequence[Key], pages: Sequence[int], priority: int, owner: str
    ) -> Node:
        """Put new pages below `node`. A leaf of the same owner that nobody else has pinned grows in place."""
        self.cached += len(pages)
        self.tokens += sum(map(len, keys))
        is_own = node.owner == owner and not node.spent
        if is_own and node.parent is not None and not node.children and node.locks == 1:
            assert len(node.keys[-1]) == self.page_size, "only whole pages are followed by others"
            node.keys += keys
            node.pages += pages
            return node
        child = self._new_node(node.namespace, node, owner)
        child.keys, child.pages = list(keys), list(pages)
        child.locks, child.priority = 1, priority
        node.add_child(child)
        self._drop_prefixes(node, child.keys[0])
        return child

    def lengthen(self, node: Node, key: Key) -> None:
        """Give the partial page at the end of `node` its longer key; no sibling may have it or extend it."""
        self.tokens += len(key) - len(node.keys[-1])
        if len(node.keys) > 1:
            node.keys[-1] = key
            return
        assert node.parent is not None, "a run has a parent"
        node.parent.remove_child(node)
        node.keys[0] = key
        node.parent.add_child(node)
        self._drop_prefixes(node.parent, key)

    def move_to_twin(self, node: Node, key: Key, priority: int, owner: str) -> Node:
        """Move a pin from `node`, one partial page, to the start of its sibling whose first page is `key`.

        `key` extends the page of `node`, which is dropped unless something else has it pinned.
        """
        assert node.parent is not None, "a run has a parent"
        twin = self.cut(node.parent.children[key], 1)
        self.values.fill(twin.pages[0], node.pages[0], len(key))
        self._lock(twin, priority, owner)
        node.last_used = self.clock
        self._unlock(node)
        return twin

    # -- eviction --------------------------------------------------------------------------------

    def evict(self, count: int) -> None:
        """Free `count` pages, each time from the tail of the first leaf of the eviction order."""
        assert count <= self.evictable, f"{count} pages to evict where {self.evictable} are evictable"
        while count > 0:
            leaf = self.leaves.first()
            keep = max(0, len(leaf.pages) - count)
            count -= len(leaf.pages) - keep
            self._free_tail(leaf, keep)

    def end_owner(self, owner: str, *, drop: bool) -> int:
        """What nobody but `owner` used goes first from now on. With `drop`, what of it nothing has pinned
        goes at once: how many pages."""
        nodes = self.owners.end(owner)
        for node in nodes:
            if node.rank is not None:
                self.leaves.discard(node)
                self.leaves.add(node)
        return self._drop(nodes) if drop else 0

    # -- inside ----------------------------------------------------------------------------------

    def _new_node(self, namespace: Namespace, parent: Node | None, owner: str) -> Node:
        self._serial += 1
        self.node_count += 1
        node = Node(namespace, parent, self._serial)
        self.owners.give(node, owner)
        return node

    def _lock(self, node: Node, priority: int, owner: str | None) -> None:
        if node.locks == 0:
            self.evictable -= len(node.pages)
            self.leaves.discard(node)
        elif node.locks == node.holds:
            self.idle_held -= len(node.pages)
        node.locks += 1
        node.priority = max(node.priority, priority)
        if owner is not None and (node.owner != owner or node.spent):
            self.owners.use(node, owner)

    def _unlock(self, node: Node) -> None:
        assert node.locks > 0, "a pin is taken back once"
        node.locks -= 1
        if node.locks == 0:
            self.evictable += len(node.pages)
            self._settle(node)
        elif node.locks == node.holds:
            self.idle_held += len(node.pages)

    def _drop(self, nodes: Sequence[Node]) -> int:
        """Free those of some nodes that are not pinned and have nothing else below them."""
        before, left = self.cached, {node.serial: node for node in nodes}
        for node in nodes:
            step: Node | None = node
            while step is not None and step.serial in left and step.locks == 0 and not step.children:
                del left[step.serial]
                parent = step.parent
                self._free_tail(step, 0)
                step = parent
        return before - self.cached

    def _settle(self, node: Node) -> None:
        """Give a node without locks its due: a leaf can be evicted, an empty root goes."""
        if node.children:
            return
        if node.parent is None:
            del self.roots[node.namespace]
            self.node_count -= 1
            return
        self.leaves.add(node)
        if len(node.keys) == 1 and (longer := node.parent.outgrower(node.keys[0])) is not None:
            self._give_up_for(node, longer)

    def _drop_prefixes(self, parent: Node, key: Key) -> None:
        """Drop the unpinned partial pages that `key` extends: whatever they serve, the longer page serves."""
        for node in parent.prefixes(key):
            if node.locks == 0:
                self._give_up_for(node, parent.children[key])

    def _give_up_for(self, node: Node, longer: Node) -> None:
        """Free an unpinned partial page that the first page of its sibling `longer` extends."""
        self.values.fill(longer.pages[0], node.pages[0], len(node.keys[0]))
        self._free_tail(node, 0)

    def _free_tail(self, leaf: Node, keep: int) -> None:
        """Free the pages of an unpinned leaf from `keep` on, and the node if none is left."""
        dropped = leaf.pages[keep:]
        self._pool.give(dropped)
        self.cached -= len(dropped)
        self.tokens -= sum(map(len, leaf.keys[keep:]))
        self.evictable -= len(dropped)
        if keep:
            del leaf.pages[keep:], leaf.keys[keep:]
            return
        self.leaves.discard(leaf)
        self.owners.forget(leaf)
        parent = leaf.parent
        assert parent is not None, "a run has a parent"
        parent.remove_child(leaf)
        self.node_count -= 1
        if parent.locks == 0:
            self._settle(parent)


def _run_in(node: Node, keys: Sequence[Key], start: int) -> int:
    """Number of leading pages of `node` that equal `keys` from `start` on."""
    count = 0
    while count < len(node.keys) and start + count < len(keys) and node.keys[count] == keys[start + count]:
        count += 1
    return count
