"""PrefixCache: leases on paged KV memory, with every computed prefix found again, token-exact.

It joins the page pool and the prefix tree and is the only thing the scheduler talks to. Integers only:
it knows no tensors, no clock and no model. Queries change nothing. Commands that can be refused
(`acquire`, `grow`, `truncate`) decide before they change anything, so a refusal needs no undoing.

What must hold: free + cached + leased == num_pages; a page is in the tree, in one lease or free; a
page is freed only when no lease and no copy still to be settled can read it, and no hold keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from .audit import audit, draw
from .beside import NoValues, PageValues
from .eviction import Policy
from .lease import CopyLedger, Hold, Lease, PageCopy
from .match import Match
from .node import NOBODY, Namespace, Node
from .pool import PagePool, pages_for
from .publish import publish
from .tree import PrefixTree
from .tree_view import TreeView, view_nodes
from .views import CacheStats, Peek


class PrefixCache:
    """A pool of `num_pages` pages of `page_size` token slots. Raises ValueError on an impossible option.

    Not enabled, it finds and keeps nothing and only hands out pages. `values` is told what becomes of the
    pages, if something is kept beside their keys and values.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        eviction: Literal["lru", "priority"] = "lru",
        enabled: bool = True,
        values: PageValues | None = None,
    ) -> None:
        for name, value in (("num_pages", num_pages), ("page_size", page_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if eviction not in get_args(Policy):
            raise ValueError(f"eviction must be one of {', '.join(get_args(Policy))}, got {eviction!r}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.enabled = enabled
        self._pool = PagePool(num_pages)
        self._values = values or NoValues()
        self._tree = PrefixTree(page_size, self._pool, eviction, self._values)
        self._copies = CopyLedger()
        self._leases: set[Lease] = set()
        self._holds: set[Hold] = set()
        self._acquired = self._asked = self._hits = self._evicted = 0

    # -- queries ---------------------------------------------------------------------------------

    @property
    def free_pages(self) -> int:
        return self._pool.free

    @property
    def cached_pages(self) -> int:
        """Pages in the tree, pinned or not."""
        return self._tree.cached

    @property
    def cached_tokens(self) -> int:
        """Tokens in the tree, pinned or not: what its pages hold of their slots."""
        return self._tree.tokens

    @property
    def leased_pages(self) -> int:
        """Pages of leases that are not in the tree."""
        return self.num_pages - self._pool.free - self._tree.cached

    @property
    def evictable_pages(self) -> int:
        """Pages in the tree that nothing has pinned."""
        return self._tree.evictable

    @property
    def held_pages(self) -> int:
        """Pages in the tree that holds keep, each counted once."""
        return self._tree.held

    @property
    def idle_held_pages(self) -> int:
        """Those of them that nothing else has pinned: they could be evicted but for the holds."""
        return self._tree.idle_held

    @property
    def owners(self) -> int:
        """How many programs have cached something that nobody else has used."""
        return len(self._tree.owners)

    def peek(self, tokens: Sequence[int], namespace: Namespace) -> Peek:
        return self._peek(self._find(tokens, namespace))

    def fits(self, tokens: Sequence[int], namespace: Namespace, length: int) -> bool:
        """Whether `acquire` with these arguments would succeed now."""
        return self.peek(tokens, namespace).granted(length) is not None

    def stats(self) -> CacheStats:
        return CacheStats(
            num_pages=self.num_pages,
            free_pages=self.free_pages,
            cached_pages=self.cached_pages,
            leased_pages=self.leased_pages,
            evictable_pages=self.evictable_pages,
            held_pages=self.held_pages,
            saved_pages=self._saved_pages(),
            leases=len(self._leases),
            acquired=self._acquired,
            asked_tokens=self._asked,
            cached_tokens=self._hits,
            evicted_pages=self._evicted,
        )

    def view(self, most_nodes: int) -> TreeView:
        """What a person may see of the tree, in at most so many nodes. Raises ValueError below 1."""
        if most_nodes < 1:
            raise ValueError(f"most_nodes must be at least 1, got {most_nodes!r}")
        nodes = view_nodes(self._tree, most_nodes)
        return TreeView(
            nodes=nodes,
            total_nodes=self._tree.node_count,
            left_out=self._tree.node_count - len(nodes),
            clock=self._tree.clock,
            num_pages=self.num_pages,
            free_pages=self.free_pages,
            cached_pages=self.cached_pages,
            leased_pages=self.leased_pages,
            page_size=self.page_size,
        )

    def check(self) -> None:
        """Recount every page, pin and index from scratch; AssertionError says what does not hold."""
        audit(self._tree, self._pool, self._leases, self._copies, self._holds)

    def dump(self) -> str:
        """The tree as text, one node a line: tokens of each page, page ids, locks, holds, last use, priority,
        owner."""
        return draw(self._tree)

    # -- commands --------------------------------------------------------------------------------

    def acquire(
        self,
        tokens: Sequence[int],
        namespace: Namespace,
        length: int,
        *,
        priority: int = 0,
        owner: str = NOBODY,
    ) -> Lease | None:
        """Pin the longest cached prefix and take pages so that max(length, matched) slots are covered.

        None if refused, and then nothing has changed. Where the prefix ends inside a page, the last page
        is a fresh one and a copy is recorded. `cached_tokens` of the lease is what `Peek.granted` said.
        `owner` names the program that uses what is found and owns what the lease publishes; a page that it
        copies from stays its owner's.
        """
        match = self._find(tokens, namespace)
        granted = self._peek(match).granted(length)
        if granted is None:
            return None
        node, copied = self._pin_match(match, namespace, granted, priority, owner)
        self._tree.count_hit(copied or node)
        pages = list(match.pages)
        fresh = self._take(pages_for(max(length, granted), self.page_size) - len(pages))
        if copied is not None:
            self._copy(copied, fresh[0], match.slots)
        shared = len(pages)
        published = shared * self.page_size
        lease = Lease(namespace, priority, granted, pages + fresh, node, shared, published, owner=owner)
        self._leases.add(lease)
        self._count(len(tokens), granted)
        return lease

    def visit(
        self, tokens: Sequence[int], namespace: Namespace, *, priority: int = 0, owner: str = NOBODY
    ) -> Peek:
        """Use the longest cached prefix without taking anything: for what wants only what is kept beside it.

        It counts as an acquire that found it, and as used now.
        """
        match = self._find(tokens, namespace)
        end = match.source or match.node
        if end is not None:
            self._tree.count_hit(end)
        for node in (match.node, match.source):
            if node is not None:
                self._tree.pin(node, priority, owner)
                self._tree.unpin(node)
        found = self._peek(match)
        self._count(len(tokens), found.cached_tokens)
        return found

    def grow(self, lease: Lease, length: int) -> bool:
        """Cover `length` slots. False if refused, and then nothing has changed."""
        self._pinned(lease)
        count = max(0, pages_for(length, self.page_size) - len(lease.pages))
        if count > self._pool.free + self._tree.evictable:
            return False
        if count:
            lease.replace_from(len(lease.pages), self._take(count))
        return True

    def publish(self, lease: Lease, tokens: Sequence[int], upto: int) -> None:
        """Insert tokens[:upto], whose KV is computed. The lease may get other pages of equal content."""
        self._pinned(lease)
        assert upto <= len(tokens), f"{upto} tokens published of {len(tokens)}"
        assert upto <= len(lease.pages) * self.page_size, (
            f"{upto} tokens published in {len(lease.pages)} pages"
        )
        if self.enabled:
            self._free(publish(self._tree, lease, tokens, upto))

    def fork(self, lease: Lease, tokens: Sequence[int], upto: int, length: int) -> Lease | None:
        """Publish tokens[:upto] and acquire them, `length` slots in all, for a second sequence.

        None if the acquire is refused; what was published stays so.
        """
        self.publish(lease, tokens, upto)
        return self.acquire(
            tokens[:upto], lease.namespace, length, priority=lease.priority, owner=lease.owner
        )

    def truncate(self, lease: Lease, tokens: Sequence[int], length: int) -> bool:
        """Roll the lease back to tokens[:length], whose KV stays readable, and give up the pages after them.

        Back inside a page of the tree, that page is replaced by a fresh one and a copy is recorded.
        False if there is no page for that, and then nothing has changed.
        """
        self._pinned(lease)
        assert 0 <= length <= min(len(tokens), len(lease.pages) * self.page_size), (
            f"cannot truncate to {length}"
        )
        if length < lease.published:
            return self._roll_back(lease, length)
        self._free(lease.replace_from(pages_for(length, self.page_size), []))
        if slots := length % self.page_size:
            self._values.clear(lease.pages[-1:], slots)
        return True

    def release(self, lease: Lease) -> None:
        """Give everything back. Published pages stay cached; the lease must not be used again."""
        node = self._pinned(lease)
        self._free(lease.replace_from(lease.shared, []))
        lease.replace_from(0, [])
        lease.node = None
        self._leases.remove(lease)
        self._tree.unpin(node)

    def take_copies(self) -> tuple[PageCopy, ...]:
        """The copies recorded since the last call, to be made in this order before the step writes anything.

        Their sources stay as they are until `settle`. Releasing or truncating a lease drops its copies
        that are not yet taken.
        """
        return self._copies.take()

    def settle(self) -> None:
        """All copies taken so far have been made: their sources may be evicted again."""
        for source in self._copies.settle():
            self._tree.unpin(source)

    def hold(
        self,
        tokens: Sequence[int],
        namespace: Namespace,
        budget: int,
        *,
        owner: str = NOBODY,
        instead_of: Iterable[Hold] = (),
    ) -> Hold | None:
        """Keep the longest cached prefix until `release_hold`, in the place of other holds, which end.

        None if holds would then keep more than `budget` pages, or if nothing is cached; nothing has changed.
        """
        replaced = tuple(instead_of)
        match, others = self._find(tokens, namespace), [self._held(hold) for hold in replaced]
        cached = len(match.pages) * self.page_size + match.slots
        for node in others:
            self._tree.uncount_hold(node)
        if not cached or self._tree.held + match.unheld() > budget:
            for node in others:
                self._tree.count_hold(node)
            return None
        end = self._end_of(match)
        self._tree.hold(end, owner)
        for node in others:
            self._tree.unlock_hold(node)
        for old in replaced:
            self._forget_hold(old)
        hold = Hold(end, cached)
        self._holds.add(hold)
        return hold

    def release_hold(self, hold: Hold) -> None:
        """What it kept can be evicted, as if the hold had not been; it must not be used again."""
        self._tree.end_hold(self._held(hold))
        self._forget_hold(hold)

    def end_owner(self, owner: str, *, drop: bool) -> int:
        """The program asks for nothing any more: what only it has used is evicted first, before all else of
        its priority, until somebody uses it again. With `drop` it goes at once, as far as nothing has it
        pinned: how many pages went."""
        return self._tree.end_owner(owner, drop=drop)

    def flush(self) -> int:
        """Drop every cached page that nothing has pinned; the number dropped."""
        dropped = self._tree.evictable
        self._tree.evict(dropped)
        return dropped

    # -- inside ----------------------------------------------------------------------------------

    def _find(self, tokens: Sequence[int], namespace: Namespace) -> Match:
        return self._tree.find(tokens, namespace) if self.enabled else Match()

    def _peek(self, match: Match) -> Peek:
        room = self._pool.free + self._tree.evictable - match.pins - match.source_pins
        cached = len(match.pages) * self.page_size + match.slots
        return Peek(cached, room, self.page_size, match.source_pins, match.all_pages())

    def _saved_pages(self) -> int:
        """Between steps. During one, sources of copies are in use too, without being in a lease."""
        named = sum(len(lease.pages) for lease in self._leases)
        in_use = self.num_pages - self._pool.free - self._tree.evictable - self._tree.idle_held
        return max(0, named - in_use)

    def _count(self, asked: int, found: int) -> None:
        self._acquired += 1
        self._asked += asked
        self._hits += found

    def _pinned(self, lease: Lease) -> Node:
        assert lease.node is not None, "a released lease is not used again"
        assert lease in self._leases, "a lease is used with the cache that gave it"
        return lease.node

    def _held(self, hold: Hold) -> Node:
        assert hold.node is not None, "a released hold is not used again"
        assert hold in self._holds, "a hold is used with the cache that gave it"
        return hold.node

    def _forget_hold(self, hold: Hold) -> None:
        hold.node = None
        self._holds.remove(hold)

    def _end_of(self, match: Match) -> Node:
        """The node at whose end a match that is not empty ends, or one with the rest of its last page."""
        assert match.node is not None, "what is matched lies below a root"
        node = self._tree.cut(match.node, match.at)
        return node if match.source is None else self._tree.cut(match.source, 1)

    def _pin_match(
        self, match: Match, namespace: Namespace, granted: int, priority: int, owner: str
    ) -> tuple[Node, Node | None]:
        """Pin the whole pages and, if the grant reaches into it, the page to copy from: their nodes."""
        node = self._tree.root(namespace) if match.node is None else self._tree.cut(match.node, match.at)
        self._tree.pin(node, priority, owner)
        if match.source is None or granted % self.page_size == 0:
            return node, None
        source = self._tree.cut(match.source, 1)
        self._tree.pin(source, priority, None)
        return node, source

    def _take(self, count: int) -> list[int]:
        """Fresh pages; the caller has made sure that so many are free or evictable."""
        if (missing := count - self._pool.free) > 0:
            self._tree.evict(missing)
            self._evicted += missing
        pages = self._pool.take(count)
        self._values.clear(pages)
        return pages

    def _copy(self, source: Node, target: int, slots: int) -> None:
        """Slots of the first page of `source`, which the caller has pinned, are to be copied to `target`."""
        page = source.pages[0]
        self._copies.record(PageCopy(page, target, slots), source)
        self._values.copy(page, target, slots)

    def _free(self, pages: Iterable[int]) -> None:
        """Free private pages, and forget the waiting copies to them."""
        for page in pages:
            if (source := self._copies.drop(page)) is not None:
                self._tree.unpin(source)
            self._pool.give((page,))

    def _roll_back(self, lease: Lease, length: int) -> bool:
        """Truncate to a length inside the tree's part of the lease."""
        end = self._pinned(lease)
        whole, slots = divmod(length, self.page_size)
        node, at = lease.place_of(whole)
        if slots and not self._can_take_after(lease, node, at):
            return False
        source = self._tree.cut(node, at + 1) if slots else None
        kept = self._tree.cut(source or node, at)
        self._tree.pin(kept, lease.priority, lease.owner)
        if source is not None:
            self._tree.pin(source, lease.priority, None)
        self._free(lease.replace_from(lease.shared, []))
        self._tree.unpin(end)
        fresh = self._take(1 if slots else 0)
        if source is not None:
            self._copy(source, fresh[0], slots)
        lease.replace_from(whole, fresh)
        lease.node, lease.shared, lease.published = kept, whole, whole * self.page_size
        return True

    def _can_take_after(self, lease: Lease, node: Node, at: int) -> bool:
        """Whether a page can be had once the lease has given up what follows page `at` of `node`."""
        if self._pool.free or self._tree.evictable or len(lease.pages) > lease.shared:
            return True
        # Only this lease's own last pin on the end of its path can make more pages evictable.
        end = self._pinned(lease)
        return end.locks == 1 and (end is not node or at + 1 < len(end.pages))
