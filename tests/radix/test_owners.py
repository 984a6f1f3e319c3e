"""What programs leave in the cache: which pages are one's own, what becomes of them, and holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Hold, Lease


def take(cache: PrefixCache, tokens: Sequence[int], owner: str = "") -> Lease:
    """A lease with all of its tokens published."""
    lease = cache.acquire(tokens, (), len(tokens), owner=owner)
    assert lease is not None
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    cache.check()
    return lease


def keep(cache: PrefixCache, tokens: Sequence[int], owner: str = "") -> None:
    cache.release(take(cache, tokens, owner))
    cache.check()


def need(cache: PrefixCache, pages: int) -> None:
    """Make `pages` pages free by an acquire that is given back unused."""
    lease = cache.acquire([], ("other",), pages * cache.page_size)
    assert lease is not None
    cache.release(lease)
    cache.check()


def found(cache: PrefixCache, tokens: Sequence[int]) -> int:
    return cache.peek(tokens, ()).cached_tokens


def hold(cache: PrefixCache, tokens: Sequence[int], budget: int = 100) -> Hold:
    made = cache.hold(tokens, (), budget)
    assert made is not None
    cache.check()
    return made


# -- owners --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eviction", ["lru", "priority"])
def test_what_an_ended_program_left_goes_before_what_is_older(eviction: str) -> None:
    cache = PrefixCache(6, 2, eviction=eviction)  # type: ignore[arg-type]
    keep(cache, [1] * 4)
    keep(cache, [2] * 4, "a")
    keep(cache, [3] * 4, "b")
    cache.end_owner("b", drop=False)
    need(cache, 2)
    assert [found(cache, [token] * 4) for token in (1, 2, 3)] == [4, 4, 0]
    need(cache, 4)
    assert [found(cache, [token] * 4) for token in (1, 2, 3)] == [0, 4, 0]


def test_under_the_priority_policy_it_goes_first_of_its_priority_only() -> None:
    cache = PrefixCache(6, 2, eviction="priority")
    for token, owner, priority in ((1, "", 0), (2, "a", 1), (3, "", 1)):
        lease = cache.acquire([token] * 4, (), 4, priority=priority, owner=owner)
        assert lease is not None
        cache.publish(lease, [token] * 4, 4)
        cache.release(lease)
    keep(cache, [3] * 4)
    cache.end_owner("a", drop=False)
    need(cache, 2)
    assert [found(cache, [token] * 4) for token in (1, 2, 3)] == [0, 4, 4]
    need(cache, 4)
    assert [found(cache, [token] * 4) for token in (1, 2, 3)] == [0, 0, 4]


def test_what_a_second_program_used_is_not_the_first_ones_any_more() -> None:
    cache = PrefixCache(20, 2)
    trunk = [1, 1, 1, 1]
    keep(cache, [*trunk, 2, 2], "a")
    keep(cache, [*trunk, 3, 3], "b")
    assert cache.end_owner("a", drop=True) == 1
    cache.check()
    assert (found(cache, [*trunk, 2, 2]), found(cache, [*trunk, 3, 3])) == (4, 6)
    assert cache.end_owner("b", drop=True) == 1
    assert found(cache, [*trunk, 3, 3]) == 4
    assert cache.owners == 0


def test_a_request_without_a_program_makes_what_it_finds_everybodys() -> None:
    cache = PrefixCache(20, 2)
    keep(cache, [1] * 6, "a")
    keep(cache, [1] * 4)
    assert cache.end_owner("a", drop=True) == 1
    assert found(cache, [1] * 6) == 4


def test_a_page_that_another_only_copied_from_stays_its_owners() -> None:
    cache = PrefixCache(20, 4)
    keep(cache, [1, 1, 1, 1, 2, 2, 2, 2], "a")
    keep(cache, [1, 1, 1, 1, 2, 2, 3, 3], "b")
    assert cache.end_owner("a", drop=True) == 1
    assert found(cache, [1, 1, 1, 1, 2, 2, 2, 2]) == 6


def test_a_program_that_goes_on_owns_what_it_adds_however_it_comes() -> None:
    cache = PrefixCache(40, 2)
    for length in range(1, 12):
        keep(cache, [1] * length, "a")
    lease = take(cache, [1] * 8 + [2] * 4, "a")
    for length in (13, 15, 18):
        assert cache.grow(lease, length)
        cache.publish(lease, [1] * 8 + [2] * 10, length)
    cache.release(lease)
    pages = cache.cached_pages
    assert cache.end_owner("a", drop=True) == pages
    assert (cache.cached_pages, cache.owners, cache.dump()) == (0, 0, "")


def test_growing_what_is_everybodys_adds_nodes_of_ones_own() -> None:
    cache = PrefixCache(20, 2)
    keep(cache, [1] * 4)
    keep(cache, [1] * 8, "a")
    assert cache.end_owner("a", drop=True) == 2
    assert found(cache, [1] * 8) == 4


def test_what_an_ended_program_left_is_ordinary_once_it_is_used_again() -> None:
    cache = PrefixCache(6, 2)
    for token in (1, 2, 3):
        keep(cache, [token] * 4, "a")
    cache.end_owner("a", drop=False)
    keep(cache, [1] * 4, "a")
    keep(cache, [2] * 4)
    need(cache, 2)
    assert [found(cache, [token] * 4) for token in (1, 2, 3)] == [4, 4, 0]
    assert cache.end_owner("a", drop=True) == 0, "its owner has ended: it is everybody's now"


def test_what_is_pinned_is_not_dropped_but_goes_first_later() -> None:
    cache = PrefixCache(8, 2)
    lease = take(cache, [1] * 4, "a")
    keep(cache, [1] * 4 + [2] * 2, "a")
    keep(cache, [3] * 4)
    assert cache.end_owner("a", drop=True) == 1
    cache.check()
    assert found(cache, [1] * 4) == 4
    cache.release(lease)
    need(cache, 6)
    assert (found(cache, [1] * 4), found(cache, [3] * 4)) == (0, 4)


def test_ending_a_program_looks_at_its_own_nodes_only() -> None:
    cache = PrefixCache(30_000, 1)
    for number in range(10_000):
        keep_quietly(cache, [7, 100 + number], f"program {number}")
    serials = [len(cache._tree.owners.nodes_of(f"program {number}")) for number in range(10_000)]
    assert set(serials) == {1}
    assert sum(cache.end_owner(f"program {number}", drop=True) for number in range(10_000)) == 10_000
    assert (cache.cached_pages, cache.owners) == (1, 0)
    cache.check()


def keep_quietly(cache: PrefixCache, tokens: Sequence[int], owner: str) -> None:
    lease = cache.acquire(tokens, (), len(tokens), owner=owner)
    assert lease is not None
    cache.publish(lease, tokens, len(tokens))
    cache.release(lease)


def test_programs_that_never_end_are_forgotten_with_their_pages() -> None:
    cache = PrefixCache(6, 2)
    for number in range(100):
        keep(cache, [1000 + number] * 4, f"program {number}")
    assert cache.owners == 3
    cache.flush()
    assert cache.owners == 0


# -- holds ---------------------------------------------------------------------------------------------


def test_what_is_held_survives_whatever_else_needs_room_and_goes_when_it_is_released() -> None:
    cache = PrefixCache(8, 2)
    keep(cache, [1] * 5)
    held = hold(cache, [1] * 5 + [9])
    assert (held.tokens, cache.held_pages, cache.evictable_pages) == (5, 3, 0)
    for token in range(2, 9):
        keep(cache, [token] * 6)
    assert found(cache, [1] * 5) == 5
    assert cache.acquire([], ("other",), 12) is None
    cache.release_hold(held)
    cache.check()
    assert (cache.held_pages, cache.evictable_pages) == (0, cache.cached_pages)
    need(cache, 8)
    assert found(cache, [1] * 5) == 0


def test_only_the_prefix_is_held_not_what_follows_it() -> None:
    cache = PrefixCache(10, 2)
    keep(cache, [1] * 10)
    hold(cache, [1] * 5 + [2])
    need(cache, 7)
    assert found(cache, [1] * 10) == 6


def test_pages_that_several_holds_keep_are_counted_once() -> None:
    cache = PrefixCache(20, 2)
    trunk = [1] * 6
    for token in (2, 3):
        keep(cache, [*trunk, token, token])
    first, second = (hold(cache, [*trunk, token, token], budget=5) for token in (2, 3))
    assert cache.held_pages == 5
    cache.release_hold(first)
    assert (cache.held_pages, cache.evictable_pages) == (4, 1)
    cache.release_hold(second)
    assert (cache.held_pages, cache.evictable_pages) == (0, 5)


def test_a_hold_that_exceeds_the_budget_is_refused_and_changes_nothing() -> None:
    cache = PrefixCache(20, 2)
    keep(cache, [1] * 8)
    keep(cache, [2] * 8)
    hold(cache, [1] * 8)
    before = cache.dump(), cache.stats()
    assert cache.hold([2] * 8, (), 7) is None
    assert cache.hold([3] * 8, (), 7) is None, "nothing of it is there to be held"
    assert (cache.dump(), cache.stats()) == before
    assert cache.hold([2] * 6, (), 7) is not None
    cache.check()


def test_a_hold_in_the_place_of_another_needs_room_for_the_difference_only() -> None:
    cache = PrefixCache(20, 2)
    keep(cache, [1] * 6)
    old = hold(cache, [1] * 6)
    keep(cache, [1] * 6 + [2] * 4)
    keep(cache, [3] * 10)
    assert cache.hold([3] * 10, (), 4, instead_of=[old]) is None
    assert cache.held_pages == 3, "a refused one leaves the old one in its place"
    new = cache.hold([1] * 6 + [2] * 4, (), 5, instead_of=[old])
    assert new is not None
    assert (new.tokens, cache.held_pages, old.node) == (10, 5, None)
    cache.check()
    other = cache.hold([3] * 10, (), 5, instead_of=[new])
    assert other is not None
    assert (other.tokens, cache.held_pages, found(cache, [1] * 6 + [2] * 4)) == (10, 5, 10)
    cache.check()


def test_the_end_of_a_hold_is_no_use_of_what_it_kept() -> None:
    cache = PrefixCache(4, 2)
    keep(cache, [1] * 4)
    held = hold(cache, [1] * 4)
    keep(cache, [2] * 4)
    cache.release_hold(held)
    need(cache, 2)
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (0, 4)


def test_pages_that_holds_alone_keep_are_told_from_those_in_use_and_save_nothing() -> None:
    cache = PrefixCache(20, 2)
    lease = take(cache, [1] * 6)
    held = hold(cache, [1] * 6)
    assert (cache.held_pages, cache.idle_held_pages) == (3, 0)
    cache.release(lease)
    assert (cache.idle_held_pages, cache.stats().saved_pages) == (3, 0)
    first, second = take(cache, [1] * 6), take(cache, [1] * 4)
    assert (cache.idle_held_pages, cache.stats().saved_pages) == (0, 2)
    for pin in (first, second):
        cache.release(pin)
    assert cache.idle_held_pages == 3
    cache.release_hold(held)
    assert (cache.idle_held_pages, cache.evictable_pages) == (0, 3)


def test_a_held_partial_page_outlives_the_longer_one_of_the_next_call_until_it_is_released() -> None:
    cache = PrefixCache(20, 4)
    keep(cache, [1] * 6, "a")
    held = hold(cache, [1] * 6)
    keep(cache, [1] * 11, "a")
    assert cache.cached_pages == 4
    cache.release_hold(held)
    cache.check()
    assert (cache.cached_pages, found(cache, [1] * 11)) == (3, 11)


def test_what_is_held_is_not_dropped_with_its_owner_but_goes_first_later() -> None:
    cache = PrefixCache(8, 2)
    keep(cache, [1] * 4, "a")
    held = cache.hold([1] * 4, (), 8, owner="a")
    assert held is not None
    keep(cache, [2] * 4)
    assert cache.end_owner("a", drop=True) == 0
    assert found(cache, [1] * 4) == 4
    cache.release_hold(held)
    cache.check()
    need(cache, 6)
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (0, 4)


def test_a_hold_of_a_disabled_cache_is_refused() -> None:
    cache = PrefixCache(8, 2, enabled=False)
    keep(cache, [1] * 4)
    assert cache.hold([1] * 4, (), 8) is None


def test_a_released_hold_is_not_used_again() -> None:
    cache = PrefixCache(8, 2)
    keep(cache, [1] * 4)
    held = hold(cache, [1] * 4)
    cache.release_hold(held)
    with pytest.raises(AssertionError, match="not used again"):
        cache.release_hold(held)
