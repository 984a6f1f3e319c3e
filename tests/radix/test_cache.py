"""Leases: acquire, grow, fork, truncate, release, copies; refusals change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Lease, PageCopy


def acquire(cache: PrefixCache, tokens: Sequence[int], length: int = 0) -> Lease:
    lease = cache.acquire(tokens, (), max(length, len(tokens)))
    assert lease is not None
    return lease


def keep(cache: PrefixCache, tokens: Sequence[int]) -> None:
    """Run a prompt to its end: everything of it is cached afterwards."""
    lease = acquire(cache, tokens)
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    cache.release(lease)


def running(cache: PrefixCache, tokens: Sequence[int], length: int = 0) -> Lease:
    """A lease whose prompt is computed and published."""
    lease = acquire(cache, tokens, length)
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    return lease


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"page_size": -4}, "page_size must be at least 1, got -4"),
        ({"eviction": "fifo"}, "eviction must be one of lru, priority, got 'fifo'"),
    ],
)
def test_an_impossible_option_is_refused_with_its_value(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixCache(**{"num_pages": 4, "page_size": 4, **options})  # type: ignore[arg-type]


def test_pages_are_counted_as_free_cached_and_leased() -> None:
    cache = PrefixCache(8, 4)
    lease = acquire(cache, range(9), length=16)
    assert (cache.free_pages, cache.cached_pages, cache.leased_pages) == (4, 0, 4)
    cache.publish(lease, range(9), 9)
    assert (cache.free_pages, cache.cached_pages, cache.leased_pages) == (4, 3, 1)
    assert (cache.evictable_pages, cache.cached_tokens) == (0, 9)
    cache.release(lease)
    assert (cache.free_pages, cache.cached_pages, cache.leased_pages) == (5, 3, 0)
    assert cache.evictable_pages == 3


def test_stats_count_what_was_asked_and_found() -> None:
    cache = PrefixCache(8, 4)
    keep(cache, range(6))
    keep(cache, range(8))
    stats = cache.stats()
    assert (stats.acquired, stats.asked_tokens, stats.cached_tokens, stats.leases) == (2, 14, 6, 0)
    assert stats.evicted_pages == 0


def test_saved_pages_are_those_that_leases_share() -> None:
    cache = PrefixCache(16, 4)
    first = running(cache, range(10), length=16)
    assert cache.stats().saved_pages == 0
    others = [acquire(cache, [*range(8), 50 + i]) for i in range(2)]
    assert cache.stats().saved_pages == 2 * 2
    cache.release(first)
    assert cache.stats().saved_pages == 2
    for lease in others:
        cache.release(lease)
    assert cache.stats().saved_pages == 0


def test_a_matched_prefix_survives_evicting_everything() -> None:
    cache = PrefixCache(8, 4)
    keep(cache, range(8))
    lease = acquire(cache, range(8))
    assert cache.flush() == 0
    assert lease.cached_tokens == 8
    big = cache.acquire([9] * 24, (), 24)
    assert big is not None
    assert not set(big.pages) & set(lease.pages)
    assert cache.peek(range(8), ()).cached_tokens == 8
    cache.check()


def test_an_acquire_covers_the_match_even_beyond_the_asked_length() -> None:
    cache = PrefixCache(8, 4)
    keep(cache, range(7))
    lease = cache.acquire(range(7), (), 0)
    assert lease is not None
    assert (lease.cached_tokens, len(lease.pages)) == (7, 2)


def test_a_refused_acquire_changes_nothing() -> None:
    cache = PrefixCache(6, 4)
    keep(cache, [*range(4), 50, 51, 52, 53])
    running(cache, [*range(4), 60, 61])
    before = cache.stats(), cache.dump()
    assert not cache.fits([*range(4), 50, 51], (), 24)
    assert cache.acquire([*range(4), 50, 51], (), 24) is None
    assert cache.acquire([70, 71], ("new",), 24) is None
    assert (cache.stats(), cache.dump()) == before
    assert cache.take_copies() == ()
    cache.check()


def test_queries_change_nothing() -> None:
    cache = PrefixCache(6, 4)
    keep(cache, range(8))
    keep(cache, [9] * 8)
    before = cache.stats(), cache.dump()
    cache.peek(range(6), ())
    cache.peek(range(6), ("new",))
    cache.fits(range(6), (), 24)
    cache.check()
    assert (cache.stats(), cache.dump()) == before


def test_a_request_bigger_than_the_pool_is_refused_and_the_next_one_served() -> None:
    cache = PrefixCache(3, 4)
    keep(cache, range(4))
    assert cache.acquire(range(13), (), 13) is None
    lease = acquire(cache, range(12))
    assert lease.cached_tokens == 4


def test_a_pool_of_three_pages_serves_many_requests() -> None:
    cache = PrefixCache(3, 4)
    for request in range(200):
        keep(cache, [request % 7, request % 5, *range(request % 11)])
        cache.check()
    assert cache.free_pages + cache.evictable_pages == 3
    assert cache.flush() <= 3
    assert cache.free_pages == 3


def test_the_whole_pool_can_be_had_although_a_copy_would_pin_a_page() -> None:
    cache = PrefixCache(3, 4)
    keep(cache, [1, 2])
    peek = cache.peek([1, 2, 3], ())
    assert (peek.cached_tokens, peek.needed(12), peek.room) == (2, 3, 2)
    assert peek.granted(8) == 2
    assert peek.granted(12) == 0
    assert cache.fits([1, 2, 3], (), 12)
    lease = acquire(cache, [1, 2, 3], length=12)
    assert lease.cached_tokens == 0
    assert cache.take_copies() == ()
    cache.check()


def test_room_leaves_out_what_the_match_itself_would_pin() -> None:
    cache = PrefixCache(6, 4)
    keep(cache, range(16))
    peek = cache.peek([*range(10), 99], ())
    assert peek.cached_tokens == 10
    assert peek.room == 6 - 2 - 1
    assert peek.needed(20) == 3
    assert cache.fits([*range(10), 99], (), 20)
    lease = acquire(cache, [*range(10), 99], length=20)
    assert (lease.cached_tokens, cache.free_pages, cache.evictable_pages) == (10, 0, 0)
    cache.check()


def test_growing_covers_more_slots_or_changes_nothing() -> None:
    cache = PrefixCache(3, 4)
    lease = acquire(cache, range(3))
    assert cache.grow(lease, 4)
    assert lease.version == 0
    assert cache.grow(lease, 9)
    assert len(lease.pages) == 3
    assert lease.version == 1
    before = list(lease.pages)
    assert not cache.grow(lease, 13)
    assert lease.pages == before
    assert cache.grow(lease, 2)
    assert lease.pages == before


def test_copy_sources_are_pinned_until_settled() -> None:
    cache = PrefixCache(4, 4)
    keep(cache, [1, 2])
    lease = acquire(cache, [1, 2, 3])
    (copy,) = cache.take_copies()
    assert cache.take_copies() == ()
    assert cache.flush() == 0
    cache.release(lease)
    assert cache.evictable_pages == 0
    cache.settle()
    assert cache.evictable_pages == 1
    assert copy.slots == 2


def test_settling_leaves_copies_alone_that_are_not_yet_taken() -> None:
    cache = PrefixCache(4, 4)
    keep(cache, [1, 2])
    acquire(cache, [1, 2, 3])
    cache.settle()
    assert cache.flush() == 0
    assert len(cache.take_copies()) == 1
    cache.settle()
    assert cache.flush() == 1


def test_releasing_drops_copies_that_are_not_yet_taken() -> None:
    cache = PrefixCache(4, 4)
    keep(cache, [1, 2])
    cache.release(acquire(cache, [1, 2, 3]))
    assert cache.take_copies() == ()
    assert cache.evictable_pages == 1
    cache.check()


def test_flushing_spares_what_live_leases_hold() -> None:
    cache = PrefixCache(8, 4)
    keep(cache, [9] * 8)
    lease = running(cache, range(6), length=12)
    assert cache.flush() == 2
    cache.publish(lease, range(12), 12)
    assert cache.peek(range(12), ()).cached_tokens == 12
    cache.release(lease)
    assert cache.flush() == 3
    assert cache.free_pages == 8
    cache.check()


def test_a_released_lease_is_not_used_again() -> None:
    cache = PrefixCache(4, 4)
    lease = acquire(cache, [1])
    cache.release(lease)
    assert lease.pages == []
    for use in (
        lambda: cache.release(lease),
        lambda: cache.grow(lease, 4),
        lambda: cache.publish(lease, [1], 1),
        lambda: cache.truncate(lease, [1], 0),
    ):
        with pytest.raises(AssertionError, match="released lease"):
            use()


def test_a_lease_is_not_used_with_another_cache() -> None:
    lease = acquire(PrefixCache(4, 4), [1])
    with pytest.raises(AssertionError, match="the cache that gave it"):
        PrefixCache(4, 4).release(lease)


def test_more_than_is_covered_cannot_be_published() -> None:
    cache = PrefixCache(4, 4)
    lease = acquire(cache, [1])
    with pytest.raises(AssertionError, match="5 tokens published in 1 pages"):
        cache.publish(lease, [1] * 5, 5)
    with pytest.raises(AssertionError, match="3 tokens published of 2"):
        cache.publish(lease, [1] * 2, 3)


def test_a_fork_shares_whole_pages_and_copies_the_tail() -> None:
    cache = PrefixCache(8, 4)
    parent = acquire(cache, range(6))
    child = cache.fork(parent, range(6), 6, 10)
    assert child is not None
    assert child.cached_tokens == 6
    assert child.pages[0] == parent.pages[0]
    assert cache.take_copies() == (PageCopy(parent.pages[1], child.pages[1], 2),)
    assert len(child.pages) == 3
    cache.publish(parent, [*range(6), 70], 7)
    cache.release(parent)
    cache.settle()
    cache.publish(child, [*range(6), 80], 7)
    assert cache.peek([*range(6), 70], ()).cached_tokens == 7
    assert cache.peek([*range(6), 80], ()).cached_tokens == 7
    cache.check()


def test_a_refused_fork_keeps_the_parent_running() -> None:
    cache = PrefixCache(2, 4)
    parent = acquire(cache, range(6))
    assert cache.fork(parent, range(6), 6, 8) is None
    cache.publish(parent, range(8), 8)
    assert cache.peek(range(8), ()).cached_tokens == 8


def test_a_fork_has_the_namespace_and_the_priority_of_its_parent() -> None:
    cache = PrefixCache(4, 4)
    parent = cache.acquire(range(4), ("tenant",), 4, priority=3)
    assert parent is not None
    child = cache.fork(parent, range(4), 4, 4)
    assert child is not None
    assert (child.namespace, child.priority) == (("tenant",), 3)


def test_truncating_private_pages_frees_those_past_the_length() -> None:
    cache = PrefixCache(8, 4)
    lease = running(cache, range(5), length=16)
    assert cache.truncate(lease, range(16), 9)
    assert len(lease.pages) == 3
    assert lease.version == 1
    assert cache.truncate(lease, range(9), 5)
    assert len(lease.pages) == 2
    assert cache.take_copies() == ()
    cache.publish(lease, range(7), 7)
    assert cache.cached_pages == 2
    cache.check()


def test_truncating_to_a_page_boundary_of_the_tree_needs_no_page() -> None:
    cache = PrefixCache(3, 4)
    lease = running(cache, range(12))
    first = lease.pages[0]
    assert cache.truncate(lease, range(12), 4)
    assert lease.pages == [first]
    assert (cache.cached_pages, cache.evictable_pages) == (3, 2)
    assert cache.truncate(lease, range(4), 0)
    assert lease.pages == []
    assert cache.evictable_pages == 3
    cache.check()


def test_truncating_inside_a_page_of_the_tree_takes_a_fresh_page_and_copies() -> None:
    cache = PrefixCache(8, 4)
    tokens = list(range(14))
    lease = running(cache, tokens)
    old = list(lease.pages)
    assert cache.truncate(lease, tokens, 6)
    assert lease.pages[0] == old[0]
    assert cache.take_copies() == (PageCopy(old[1], lease.pages[1], 2),)
    assert lease.pages[1] not in old
    assert cache.evictable_pages == 2
    cache.settle()
    assert cache.evictable_pages == 3
    assert cache.peek(tokens, ()).cached_tokens == 14
    cache.publish(lease, [*range(6), 50, 51], 8)
    assert cache.peek([*range(6), 50, 51], ()).cached_tokens == 8
    cache.check()


def test_truncating_inside_the_own_tail_gives_its_ownership_up() -> None:
    cache = PrefixCache(8, 4)
    lease = running(cache, range(7))
    tail = lease.pages[1]
    assert cache.truncate(lease, range(7), 5)
    assert lease.pages[1] != tail
    assert cache.take_copies() == (PageCopy(tail, lease.pages[1], 1),)
    cache.settle()
    cache.publish(lease, [*range(5), 99], 6)
    assert cache.peek(range(7), ()).cached_tokens == 7
    assert cache.peek([*range(5), 99], ()).cached_tokens == 6
    cache.check()


def test_a_refused_truncate_changes_nothing() -> None:
    cache = PrefixCache(2, 4)
    lease = running(cache, range(7))
    before = cache.stats(), cache.dump(), list(lease.pages), lease.version
    assert not cache.truncate(lease, range(7), 5)
    assert (cache.stats(), cache.dump(), lease.pages, lease.version) == before
    assert cache.truncate(lease, range(7), 4)
    cache.check()


@pytest.mark.parametrize("shared_by", [1, 2])
def test_truncating_can_use_a_page_that_the_lease_itself_gives_up(shared_by: int) -> None:
    cache = PrefixCache(3, 4)
    leases = [running(cache, range(12)) for _ in range(shared_by)]
    done = cache.truncate(leases[0], range(12), 2)
    assert done == (shared_by == 1)
    if done:
        assert [copy.slots for copy in cache.take_copies()] == [2]
        assert cache.cached_pages == 2
    cache.check()


def test_truncating_across_branches_finds_the_right_page() -> None:
    cache = PrefixCache(16, 2)
    keep(cache, [1, 2, 3, 4, 5, 6])
    keep(cache, [1, 2, 3, 4, 9, 9])
    lease = running(cache, [1, 2, 3, 4, 9, 9, 7, 7])
    old = list(lease.pages)
    assert cache.truncate(lease, [1, 2, 3, 4, 9, 9, 7, 7], 3)
    assert cache.take_copies() == (PageCopy(old[1], lease.pages[1], 1),)
    assert lease.pages[0] == old[0]
    cache.check()


def test_truncating_drops_a_copy_to_a_page_that_goes() -> None:
    cache = PrefixCache(8, 4)
    keep(cache, range(6))
    lease = acquire(cache, range(6), length=8)
    assert cache.truncate(lease, range(6), 4)
    assert cache.take_copies() == ()
    assert cache.evictable_pages == 1
    cache.check()


def test_a_disabled_cache_finds_nothing_and_keeps_nothing() -> None:
    cache = PrefixCache(4, 4, enabled=False)
    lease = running(cache, range(6), length=8)
    assert cache.peek(range(6), ()).cached_tokens == 0
    assert cache.cached_pages == 0
    child = cache.fork(lease, range(6), 6, 6)
    assert child is not None
    assert child.cached_tokens == 0
    assert not cache.fits(range(6), (), 4)
    assert cache.acquire(range(6), (), 6) is None
    assert cache.truncate(lease, range(8), 3)
    cache.check()
    cache.release(lease)
    cache.release(child)
    assert cache.free_pages == 4
    assert cache.flush() == 0


def test_requests_that_end_in_any_way_leak_no_page() -> None:
    cache = PrefixCache(20, 4)
    for request in range(500):
        prompt = [request % 3, *range(request % 9)]
        lease = acquire(cache, prompt, length=12)
        if request % 5 == 0:  # aborted before its first step
            cache.release(lease)
            continue
        cache.take_copies()
        cache.publish(lease, prompt, len(prompt))
        child = cache.fork(lease, prompt, len(prompt), 12) if request % 4 == 0 else None
        cache.settle()
        cache.release(lease)
        if child is not None:
            cache.release(child)
    cache.take_copies()
    cache.settle()
    cache.check()
    assert cache.free_pages + cache.evictable_pages == 20
    assert cache.leased_pages == 0
