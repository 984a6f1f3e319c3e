"""State machine: in a pool that never fills, exactly the published prefixes are found, to the token."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Lease

NAMESPACES = [(), ("a", "bc"), ("ab", "c")]
TOKENS = st.lists(st.integers(0, 1), max_size=11).map(tuple)


def longest(tokens: tuple[int, ...], prefixes: set[tuple[int, ...]]) -> int:
    return max(length for length in range(len(tokens) + 1) if tokens[:length] in prefixes)


class TreeModel(RuleBasedStateMachine):
    """Oracle: for each namespace, the set of all prefixes that were published in it."""

    leases = Bundle("leases")

    @initialize(page_size=st.sampled_from([1, 2, 4]), eviction=st.sampled_from(["lru", "priority"]))
    def start(self, page_size: int, eviction: str) -> None:
        self.cache = PrefixCache(1_000, page_size, eviction=eviction)  # type: ignore[arg-type]
        self.prefixes: dict[tuple[str, ...], set[tuple[int, ...]]] = {name: {()} for name in NAMESPACES}

    def record(self, lease: Lease, tokens: tuple[int, ...], upto: int) -> None:
        self.cache.publish(lease, tokens, upto)
        self.prefixes[lease.namespace] |= {tokens[:length] for length in range(upto + 1)}

    @rule(
        target=leases, tokens=TOKENS, namespace=st.sampled_from(NAMESPACES), twins=st.sampled_from([1, 1, 2])
    )
    def acquire(self, tokens: tuple[int, ...], namespace: tuple[str, ...], twins: int) -> object:
        taken = []
        for _ in range(twins):
            lease = self.cache.acquire(tokens, namespace, len(tokens))
            assert lease is not None
            assert lease.cached_tokens == longest(tokens, self.prefixes[namespace])
            taken.append((lease, tokens))
        return multiple(*taken)

    @rule(held=leases, data=st.data())
    def publish(self, held: tuple[Lease, tuple[int, ...]], data: st.DataObject) -> None:
        lease, tokens = held
        self.cache.take_copies()
        self.record(lease, tokens, data.draw(st.integers(0, len(tokens))))

    @rule(target=leases, held=consumes(leases), more=TOKENS)
    def append(self, held: tuple[Lease, tuple[int, ...]], more: tuple[int, ...]) -> object:
        lease, tokens = held[0], held[1] + more
        assert self.cache.grow(lease, len(tokens))
        self.cache.take_copies()
        self.record(lease, tokens, len(tokens))
        return lease, tokens

    @rule(target=leases, held=leases, data=st.data())
    def fork(self, held: tuple[Lease, tuple[int, ...]], data: st.DataObject) -> object:
        lease, tokens = held
        upto = data.draw(st.integers(0, len(tokens)))
        self.cache.take_copies()
        child = self.cache.fork(lease, tokens, upto, upto)
        assert child is not None
        assert child.cached_tokens == upto
        self.prefixes[lease.namespace] |= {tokens[:length] for length in range(upto + 1)}
        return child, tokens[:upto]

    @rule(target=leases, held=consumes(leases), data=st.data())
    def truncate(self, held: tuple[Lease, tuple[int, ...]], data: st.DataObject) -> object:
        lease, tokens = held
        length = data.draw(st.integers(0, len(tokens)))
        assert self.cache.truncate(lease, tokens, length)
        return lease, tokens[:length]

    @rule(held=consumes(leases))
    def release(self, held: tuple[Lease, tuple[int, ...]]) -> None:
        self.cache.release(held[0])

    @rule()
    def finish_step(self) -> None:
        self.cache.take_copies()
        self.cache.settle()

    @rule(tokens=TOKENS, namespace=st.sampled_from(NAMESPACES))
    def look(self, tokens: tuple[int, ...], namespace: tuple[str, ...]) -> None:
        assert self.cache.peek(tokens, namespace).cached_tokens == longest(tokens, self.prefixes[namespace])

    @invariant()
    def recount(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()


TestTreeModel = TreeModel.TestCase
TestTreeModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
