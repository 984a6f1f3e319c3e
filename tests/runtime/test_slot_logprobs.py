"""What is kept beside the slots of pages, and what the cache carries along when pages move."""

from __future__ import annotations

import numpy as np

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Lease
from radixlm.runtime.slot_logprobs import SlotLogprobs
from radixlm.runtime.types import SlotValue

NS = ("",)


def value(number: int) -> SlotValue:
    return SlotValue(-float(number), number, -number / 2)


def values(*numbers: int) -> list[SlotValue]:
    return [value(number) for number in numbers]


def store_and_cache(num_pages: int = 8) -> tuple[SlotLogprobs, PrefixCache]:
    store = SlotLogprobs(num_pages, 4)
    return store, PrefixCache(num_pages, 4, values=store)


def lease_of(cache: PrefixCache, tokens: list[int]) -> Lease:
    lease = cache.acquire(tokens, NS, len(tokens))
    assert lease is not None
    cache.take_copies()
    cache.settle()
    return lease


def computed(cache: PrefixCache, store: SlotLogprobs, tokens: list[int], known: bool = True) -> Lease:
    """A lease on tokens, all computed; the value of the token at position i is number i."""
    lease = lease_of(cache, tokens)
    if known:
        store.put(lease.pages, 1, values(*range(1, len(tokens))))
    return lease


def found(cache: PrefixCache, store: SlotLogprobs, tokens: list[int]) -> list[SlotValue]:
    peek = cache.peek(tokens, NS)
    return store.read(peek.pages, 1, peek.cached_tokens)


def test_nothing_is_known_of_a_new_store() -> None:
    store = SlotLogprobs(4, 4)
    assert store.count([2, 0], 0, 8) == 0
    assert store.read([2, 0], 3, 7) == []


def test_values_come_back_as_they_were_put_across_pages() -> None:
    store = SlotLogprobs(4, 4)
    store.put([3, 1, 2], 2, values(2, 3, 4, 5, 6, 7, 8))
    assert store.read([3, 1, 2], 2, 9) == values(2, 3, 4, 5, 6, 7, 8)
    assert store.read([3, 1, 2], 5, 7) == values(5, 6)
    assert store.read([0, 1], 4, 8) == values(4, 5, 6, 7)


def test_a_run_ends_at_the_first_unknown_value_and_at_the_end_asked_for() -> None:
    store = SlotLogprobs(4, 4)
    store.put([0, 1], 1, values(1, 2))
    store.put([0, 1], 4, values(4))
    assert (store.count([0, 1], 1, 8), store.count([0, 1], 4, 8), store.count([0, 1], 3, 8)) == (2, 1, 0)
    assert (store.count([0, 1], 1, 2), store.count([0, 1], 2, 2), store.count([0, 1], 2, 1)) == (1, 0, 0)


def test_what_is_known_is_never_overwritten() -> None:
    store = SlotLogprobs(2, 4)
    store.put([0], 1, values(1))
    store.put([0], 0, values(10, 11, 12))
    assert store.read([0], 0, 4) == values(10, 1, 12)


def test_values_are_float32_and_a_best_token_has_one_number() -> None:
    store = SlotLogprobs(1, 4)
    number = float(np.float32(-0.1))
    store.put([0], 0, [SlotValue(number, 49_151, number)])
    [kept] = store.read([0], 0, 1)
    assert kept.logprob == kept.best_logprob == number
    assert kept.best_id == 49_151


def test_minus_infinity_is_a_value_like_any_other() -> None:
    store = SlotLogprobs(1, 2)
    store.put([0], 0, [SlotValue(float("-inf"), 1, 0.0)])
    assert store.count([0], 0, 2) == 1


def test_what_is_published_is_found_with_its_values() -> None:
    store, cache = store_and_cache()
    lease = computed(cache, store, [5, 6, 7, 8, 9, 10])
    cache.publish(lease, [5, 6, 7, 8, 9, 10], 6)
    cache.release(lease)
    assert found(cache, store, [5, 6, 7, 8, 9, 10]) == values(1, 2, 3, 4, 5)
    assert found(cache, store, [5, 6, 7]) == values(1, 2)


def test_a_copied_page_has_the_values_of_the_slots_that_match_and_no_others() -> None:
    store, cache = store_and_cache()
    lease = computed(cache, store, [5, 6, 7, 8])
    cache.publish(lease, [5, 6, 7, 8], 4)
    cache.release(lease)
    lease = lease_of(cache, [5, 6, 7, 99])
    assert store.read(lease.pages, 1, 4) == values(1, 2)
    cache.release(lease)


def test_a_page_that_is_taken_again_knows_nothing() -> None:
    store, cache = store_and_cache(2)
    for tokens in ([1, 2, 3, 4, 5, 6, 7, 8], [11, 12, 13, 14, 15, 16, 17, 18]):
        lease = lease_of(cache, tokens)
        assert store.count(lease.pages, 0, 8) == 0
        store.put(lease.pages, 0, values(*range(8)))
        cache.publish(lease, tokens, 8)
        cache.release(lease)


def test_a_page_taken_to_grow_knows_nothing() -> None:
    store, cache = store_and_cache(3)
    first = computed(cache, store, list(range(8)))
    cache.release(first)
    lease = lease_of(cache, [1, 2])
    assert cache.grow(lease, 12)
    assert [store.count(lease.pages, at, 12) for at in range(12)] == [0] * 12


def test_a_duplicate_that_is_given_up_fills_what_the_kept_page_does_not_know() -> None:
    store, cache = store_and_cache()
    tokens = [5, 6, 7, 8, 9, 10, 11, 12]
    ignorant, knowing = computed(cache, store, tokens, known=False), computed(cache, store, tokens)
    store.put(ignorant.pages, 3, values(33))
    cache.publish(ignorant, tokens, 8)
    cache.publish(knowing, tokens, 8)
    assert found(cache, store, tokens) == values(1, 2, 33, 4, 5, 6, 7)


def test_a_partial_page_that_a_longer_one_replaces_leaves_its_values() -> None:
    store, cache = store_and_cache()
    short = computed(cache, store, [5, 6, 7])
    cache.publish(short, [5, 6, 7], 3)
    long = computed(cache, store, [5, 6, 7, 8, 9], known=False)
    store.clear(long.pages)
    cache.release(short)
    cache.publish(long, [5, 6, 7, 8, 9], 5)
    assert found(cache, store, [5, 6, 7, 8, 9]) == values(1, 2)


def test_a_partial_page_in_use_leaves_its_values_when_it_is_let_go() -> None:
    store, cache = store_and_cache()
    long = computed(cache, store, [5, 6, 7, 8], known=False)
    short = computed(cache, store, [5, 6, 7])
    cache.publish(short, [5, 6, 7], 3)
    cache.publish(long, [5, 6, 7, 8], 4)
    assert found(cache, store, [5, 6, 7, 8]) == []
    cache.release(short)
    assert found(cache, store, [5, 6, 7, 8]) == values(1, 2)


def test_a_page_of_its_own_that_became_equal_to_another_leaves_its_values_there() -> None:
    store, cache = store_and_cache()
    tokens = [5, 6, 7, 8]
    mine, other = computed(cache, store, tokens), computed(cache, store, tokens, known=False)
    cache.publish(mine, tokens, 2)
    cache.publish(other, tokens, 4)
    cache.publish(mine, tokens, 4)
    assert mine.pages == other.pages
    assert found(cache, store, tokens) == values(1, 2, 3)


def test_a_tail_that_a_longer_page_holds_already_leaves_its_values_there() -> None:
    store, cache = store_and_cache()
    tokens = [5, 6, 7, 8]
    long, tail = computed(cache, store, tokens, known=False), computed(cache, store, tokens)
    cache.publish(long, tokens, 4)
    cache.publish(tail, tokens, 3)
    assert found(cache, store, tokens) == values(1, 2)


def test_a_partial_page_of_its_own_that_may_not_grow_leaves_its_values_to_the_longer_one() -> None:
    store, cache = store_and_cache()
    tokens = [5, 6, 7, 8]
    mine, other = computed(cache, store, tokens), computed(cache, store, tokens, known=False)
    cache.publish(mine, tokens, 2)
    cache.publish(other, tokens, 4)
    cache.publish(mine, tokens, 3)
    assert found(cache, store, tokens) == values(1, 2)


def test_a_lease_that_is_cut_back_forgets_what_it_knew_beyond() -> None:
    store, cache = store_and_cache()
    tokens = list(range(20, 28))
    lease = computed(cache, store, tokens)
    assert cache.truncate(lease, tokens, 6)
    assert cache.grow(lease, 8)
    assert store.read(lease.pages, 1, 8) == values(1, 2, 3, 4, 5)


def test_a_lease_cut_back_into_the_tree_keeps_the_values_of_what_is_left() -> None:
    store, cache = store_and_cache()
    tokens = list(range(20, 28))
    lease = computed(cache, store, tokens)
    cache.publish(lease, tokens, 8)
    assert cache.truncate(lease, tokens, 6)
    assert store.read(lease.pages, 1, 8) == values(1, 2, 3, 4, 5)


def test_a_visit_takes_nothing_and_counts_as_use() -> None:
    store, cache = store_and_cache(2)
    for tokens in ([1, 2, 3, 4], [11, 12, 13, 14]):
        lease = computed(cache, store, tokens)
        cache.publish(lease, tokens, 4)
        cache.release(lease)
    assert cache.visit([1, 2, 3], NS).cached_tokens == 3
    before = cache.stats()
    assert (before.leases, before.evictable_pages, before.cached_tokens) == (0, 2, 3)
    cache.check()
    lease_of(cache, [7])
    assert cache.peek([1, 2, 3, 4], NS).cached_tokens == 4
    assert cache.peek([11, 12, 13, 14], NS).cached_tokens == 0


def test_a_visit_where_nothing_is_cached_finds_nothing() -> None:
    _, cache = store_and_cache()
    assert cache.visit([1, 2], NS) == cache.peek([1, 2], NS)
    cache.check()
