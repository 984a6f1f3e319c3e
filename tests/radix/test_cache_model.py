"""State machine: in pools that are far too small, no lease ever reads a slot that is not its own prefix, and
what a hold keeps is found until it ends.

The oracle is a store that keeps, for each slot of each page, the whole token prefix whose KV was
written there. Pages handed out are poisoned; a copy moves contents only when its step runs, as late as
`settle` allows. Whatever is shared wrongly, freed early or overwritten shows as a wrong slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Hold, Lease, PageCopy

NAMESPACES = [(), ("a", "bc"), ("ab", "c")]
# Mostly one namespace and one token: the rarer the difference, the more is shared and the deeper.
NAMESPACE = st.sampled_from([(), (), (), (), *NAMESPACES[1:]])
TOKEN = st.sampled_from([0, 0, 0, 1])
TOKENS = st.lists(TOKEN, min_size=1, max_size=13)
OWNER = st.sampled_from(["", "a", "a", "b"])
Slot = tuple[tuple[str, ...], tuple[int, ...]] | None
POISON = None


@dataclass(eq=False)
class Sequence:
    """A lease and the tokens of its sequence, `computed` of which have their KV in the store."""

    lease: Lease
    tokens: list[int]
    computed: int


class CacheModel(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(2, 12),
        page_size=st.sampled_from([1, 2, 4]),
        eviction=st.sampled_from(["lru", "priority"]),
        enabled=st.sampled_from([True] * 7 + [False]),
    )
    def start(self, num_pages: int, page_size: int, eviction: str, enabled: bool) -> None:
        self.size, self.enabled = page_size, enabled
        self.cache = PrefixCache(num_pages, page_size, eviction=eviction, enabled=enabled)  # type: ignore[arg-type]
        self.store: list[list[Slot]] = [[POISON] * page_size for _ in range(num_pages)]
        self.live: list[Sequence] = []
        self.holds: dict[Hold, tuple[tuple[str, ...], list[int]]] = {}
        self.flying: list[PageCopy] = []
        self.unmade: set[Sequence] = set()
        self.published: dict[tuple[str, ...], set[tuple[int, ...]]] = {name: {()} for name in NAMESPACES}

    # -- the store -------------------------------------------------------------------------------

    def make_copies(self) -> None:
        """Run what the engine runs first in a step."""
        self.flying += self.cache.take_copies()
        for copy in self.flying:
            kept = self.store[copy.source][: copy.slots]
            assert POISON not in kept, "a copy reads written slots only"
            self.store[copy.target][: copy.slots] = kept
        self.flying.clear()
        self.unmade.clear()

    def poison(self, pages: list[int]) -> None:
        for page in pages:
            self.store[page] = [POISON] * self.size

    def verify(self, seq: Sequence) -> None:
        for at in range(seq.computed):
            slot = self.store[seq.lease.pages[at // self.size]][at % self.size]
            assert slot == (seq.lease.namespace, tuple(seq.tokens[: at + 1])), f"slot {at} of {seq}"

    def state(self) -> object:
        leases = [
            (seq.lease.pages[:], seq.lease.version, seq.lease.shared, seq.lease.published)
            for seq in self.live
        ]
        return self.cache.stats(), self.cache.dump(), leases

    def admit(self, lease: Lease, tokens: list[int]) -> None:
        seq = Sequence(lease, tokens, lease.cached_tokens)
        assert lease.cached_tokens <= len(tokens)
        assert tuple(tokens[: lease.cached_tokens]) in self.published[lease.namespace]
        self.poison(lease.pages[lease.cached_tokens // self.size :])
        self.live.append(seq)
        self.unmade.add(seq)

    def some(self, data: st.DataObject) -> Sequence:
        return data.draw(st.sampled_from(self.live))

    # -- rules -----------------------------------------------------------------------------------

    @rule(
        tokens=TOKENS,
        namespace=NAMESPACE,
        extra=st.integers(-3, 6),
        priority=st.integers(0, 2),
        owner=OWNER,
    )
    def acquire(
        self, tokens: list[int], namespace: tuple[str, ...], extra: int, priority: int, owner: str
    ) -> None:
        length = max(0, len(tokens) + extra)
        peek, fits = self.cache.peek(tokens, namespace), self.cache.fits(tokens, namespace, length)
        before = self.state()
        lease = self.cache.acquire(tokens, namespace, length, priority=priority, owner=owner)
        assert (lease is not None) == fits
        if lease is None:
            assert peek.needed(length) > peek.room
            assert (
                self.live
                or length > self.cache.num_pages * self.size
                or self.holds
                or self.cache.evictable_pages < (self.cache.cached_pages)
            ), "alone, whatever fits the pool is granted"
            assert self.state() == before
            return
        assert lease.cached_tokens == peek.granted(length)
        assert peek.needed(length) > peek.room or lease.cached_tokens == peek.cached_tokens
        assert lease.cached_tokens >= peek.cached_tokens // self.size * self.size
        assert len(lease.pages) == -(-max(length, lease.cached_tokens) // self.size)
        self.admit(lease, tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6), publishes=st.booleans(), settles=st.booleans())
    def compute(self, data: st.DataObject, count: int, publishes: bool, settles: bool) -> None:
        """One step of one sequence: copies first, then its KV is written, then it may be published."""
        seq = self.some(data)
        stop = seq.computed + count
        before, had = self.state(), list(seq.lease.pages)
        if not self.cache.grow(seq.lease, stop):
            assert -(-stop // self.size) - len(had) > self.cache.free_pages + self.cache.evictable_pages
            assert self.state() == before
            return
        assert seq.lease.pages[: len(had)] == had
        self.poison(seq.lease.pages[len(had) :])
        missing = max(0, stop - len(seq.tokens))
        seq.tokens = seq.tokens + data.draw(st.lists(TOKEN, min_size=missing, max_size=missing))
        self.make_copies()
        for at in range(seq.computed, stop):
            page = self.store[seq.lease.pages[at // self.size]]
            page[at % self.size] = (seq.lease.namespace, tuple(seq.tokens[: at + 1]))
        seq.computed = stop
        if publishes:
            self.publish_to(seq, stop)
        if settles:
            self.cache.settle()

    @precondition(lambda self: any(seq not in self.unmade for seq in self.live))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.live if seq not in self.unmade]))
        self.publish_to(seq, data.draw(st.integers(0, seq.computed)))

    def publish_to(self, seq: Sequence, upto: int) -> None:
        before, version = list(seq.lease.pages), seq.lease.version
        self.cache.publish(seq.lease, seq.tokens, upto)
        assert (seq.lease.version > version) == (seq.lease.pages != before)
        self.note(seq, upto)
        if self.enabled:
            assert self.cache.peek(seq.tokens[:upto], seq.lease.namespace).cached_tokens == upto

    def note(self, seq: Sequence, upto: int) -> None:
        if self.enabled:
            prefixes = {tuple(seq.tokens[:length]) for length in range(upto + 1)}
            self.published[seq.lease.namespace] |= prefixes

    @precondition(lambda self: any(seq not in self.unmade for seq in self.live))
    @rule(data=st.data(), extra=st.integers(0, 5))
    def fork(self, data: st.DataObject, extra: int) -> None:
        seq = data.draw(st.sampled_from([seq for seq in self.live if seq not in self.unmade]))
        upto = data.draw(st.integers(0, seq.computed))
        child = self.cache.fork(seq.lease, seq.tokens, upto, upto + extra)
        self.note(seq, upto)
        if child is not None:
            assert child.namespace == seq.lease.namespace
            # Less only where the page to copy from made room for the child itself.
            assert not self.enabled or child.cached_tokens in (upto, upto // self.size * self.size)
            self.admit(child, seq.tokens[:upto])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        seq = self.some(data)
        length = data.draw(st.integers(0, seq.computed))
        before, had, version = self.state(), list(seq.lease.pages), seq.lease.version
        if not self.cache.truncate(seq.lease, seq.tokens, length):
            assert length % self.size, "only a part of a page needs a fresh one"
            assert self.state() == before
            return
        assert len(seq.lease.pages) == -(-length // self.size)
        assert (seq.lease.version > version) == (seq.lease.pages != had)
        self.poison([page for page in seq.lease.pages if page not in had])
        if seq.lease.pages != had[: len(seq.lease.pages)]:
            # The fresh page may be one the lease gave up just now.
            self.poison(seq.lease.pages[-1:])
            self.unmade.add(seq)
        seq.tokens, seq.computed = seq.tokens[:length], length

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seq = self.some(data)
        self.live.remove(seq)
        self.unmade.discard(seq)
        self.cache.release(seq.lease)

    @rule(tokens=TOKENS, namespace=NAMESPACE, owner=OWNER)
    def visit(self, tokens: list[int], namespace: tuple[str, ...], owner: str) -> None:
        peek = self.cache.peek(tokens, namespace)
        assert self.cache.visit(tokens, namespace, owner=owner) == peek

    @rule(data=st.data(), budget=st.integers(0, 12), owner=OWNER, replaces=st.booleans())
    def hold(self, data: st.DataObject, budget: int, owner: str, replaces: bool) -> None:
        known = [(seq.lease.namespace, seq.tokens) for seq in self.live]
        tokens = data.draw(TOKENS)
        namespace, tokens = data.draw(st.sampled_from([*known, (data.draw(NAMESPACE), tokens)]))
        old = data.draw(st.lists(st.sampled_from(list(self.holds)), unique=True)) if self.holds else []
        old = old if replaces else []
        peek, before, held = self.cache.peek(tokens, namespace), self.state(), self.cache.held_pages
        hold = self.cache.hold(tokens, namespace, budget, owner=owner, instead_of=old)
        if hold is None:
            assert not peek.cached_tokens or held + len(peek.pages) > budget
            assert self.state() == before
            return
        assert hold.tokens == peek.cached_tokens > 0
        assert self.cache.held_pages <= budget
        for each in old:
            del self.holds[each]
        self.holds[hold] = (namespace, tokens[: hold.tokens])

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release_hold(self, data: st.DataObject) -> None:
        hold = data.draw(st.sampled_from(list(self.holds)))
        del self.holds[hold]
        self.cache.release_hold(hold)

    @rule(owner=st.sampled_from(["a", "b", "nobody known"]), drop=st.booleans())
    def end_owner(self, owner: str, drop: bool) -> None:
        free, evictable, spent = self.cache.free_pages, self.cache.evictable_pages, self.idle_spent()
        dropped = self.cache.end_owner(owner, drop=drop)
        assert f"owner {owner!r}" not in self.cache.dump()
        assert (self.cache.free_pages, self.cache.evictable_pages) == (free + dropped, evictable - dropped)
        if drop:
            assert self.idle_spent() <= spent, "what nothing has pinned went at once"
        else:
            assert dropped == 0

    def idle_spent(self) -> set[str]:
        lines = self.cache.dump().splitlines()
        return {line for line in lines if line.endswith(" spent") and " locks 0 " in line}

    @rule()
    def take_copies(self) -> None:
        self.flying += self.cache.take_copies()

    @rule()
    def finish_step(self) -> None:
        self.make_copies()
        self.cache.settle()

    @rule(sure=st.sampled_from([False, False, False, True]))
    def flush(self, sure: bool) -> None:
        if not sure:
            return
        dropped, free = self.cache.flush(), self.cache.free_pages
        assert dropped <= free
        assert self.cache.evictable_pages == 0

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def recount(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()
            counts = self.cache.free_pages + self.cache.cached_pages + self.cache.leased_pages
            assert counts == self.cache.num_pages

    @invariant()
    def a_view_is_true_and_bounded(self) -> None:
        if hasattr(self, "cache"):
            whole, some = self.cache.view(1000), self.cache.view(3)
            assert sum(node.tokens for node in whole.nodes) == self.cache.cached_tokens
            assert sum(node.pages for node in whole.nodes) == self.cache.cached_pages
            assert (whole.left_out, whole.total_nodes) == (0, len(whole.nodes))
            assert len(some.nodes) == min(3, whole.total_nodes)
            assert set(some.nodes) <= set(whole.nodes)
            assert {node.parent for node in some.nodes} <= {None, *(node.id for node in some.nodes)}

    @invariant()
    def saved_pages_are_those_named_more_than_once(self) -> None:
        if hasattr(self, "cache") and not self.unmade and not self.flying:
            named = [page for seq in self.live for page in seq.lease.pages]
            assert self.cache.stats().saved_pages <= len(named) - len(set(named))

    @invariant()
    def every_sequence_reads_its_own_prefix(self) -> None:
        if hasattr(self, "cache"):
            for seq in self.live:
                if seq not in self.unmade:
                    self.verify(seq)

    @invariant()
    def what_is_held_is_found(self) -> None:
        if hasattr(self, "cache"):
            for namespace, tokens in self.holds.values():
                peek = self.cache.peek(tokens, namespace)
                assert peek.cached_tokens == len(tokens)
                for at in range(len(tokens)):
                    slot = self.store[peek.pages[at // self.size]][at % self.size]
                    assert slot == (namespace, tuple(tokens[: at + 1]))

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for hold in self.holds:
            self.cache.release_hold(hold)
        assert (self.cache.held_pages, self.cache.idle_held_pages) == (0, 0)
        self.make_copies()
        for seq in self.live:
            self.verify(seq)
            self.cache.release(seq.lease)
        self.cache.settle()
        self.cache.check()
        assert self.cache.evictable_pages == self.cache.cached_pages
        assert self.cache.leased_pages == 0
        self.cache.flush()
        assert self.cache.free_pages == self.cache.num_pages
        assert self.cache.dump() == ""
        assert self.cache.owners == 0


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
