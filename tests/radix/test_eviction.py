"""Which pages go first when room is needed."""

from __future__ import annotations

from collections.abc import Sequence

from radixlm.radix.cache import PrefixCache


def keep(cache: PrefixCache, tokens: Sequence[int], priority: int = 0) -> None:
    lease = cache.acquire(tokens, (), len(tokens), priority=priority)
    assert lease is not None
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    cache.release(lease)


def need(cache: PrefixCache, pages: int) -> None:
    """Make `pages` pages free by an acquire that is given back unused."""
    lease = cache.acquire([], ("other",), pages * cache.page_size)
    assert lease is not None
    cache.release(lease)
    cache.check()


def found(cache: PrefixCache, tokens: Sequence[int]) -> int:
    return cache.peek(tokens, ()).cached_tokens


def test_the_least_recently_used_prompt_goes_first() -> None:
    cache = PrefixCache(6, 2)
    a, b, c = [1] * 4, [2] * 4, [3] * 4
    for tokens in (a, b, c, a):
        keep(cache, tokens)
    need(cache, 2)
    assert [found(cache, tokens) for tokens in (a, b, c)] == [4, 0, 4]
    need(cache, 4)
    assert [found(cache, tokens) for tokens in (a, b, c)] == [4, 0, 0]


def test_a_prompt_is_given_up_from_its_tail_and_only_as_far_as_needed() -> None:
    cache = PrefixCache(5, 2)
    keep(cache, range(10))
    for pages in range(6):
        need(cache, pages)
        assert found(cache, range(10)) == 10 - 2 * pages
    assert cache.stats().evicted_pages == 5


def test_a_branch_goes_before_its_trunk() -> None:
    cache = PrefixCache(6, 2)
    trunk = [1, 1, 1, 1]
    keep(cache, [*trunk, 2, 2])
    keep(cache, [*trunk, 3, 3])
    need(cache, 3)
    assert found(cache, [*trunk, 2, 2]) == 4
    assert found(cache, [*trunk, 3, 3]) == 6
    need(cache, 4)
    assert found(cache, [*trunk, 3, 3]) == 4
    need(cache, 6)
    assert cache.dump() == ""


def test_a_lookup_by_peek_does_not_count_as_a_use() -> None:
    cache = PrefixCache(4, 2)
    keep(cache, [1] * 4)
    keep(cache, [2] * 4)
    cache.peek([1] * 4, ())
    need(cache, 2)
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (0, 4)


def test_low_priority_goes_first_under_the_priority_policy_only() -> None:
    for policy, left in (("priority", [4, 0]), ("lru", [0, 4])):
        cache = PrefixCache(4, 2, eviction=policy)  # type: ignore[arg-type]
        keep(cache, [1] * 4, priority=5)
        keep(cache, [2] * 4, priority=1)
        need(cache, 2)
        assert [found(cache, [token] * 4) for token in (1, 2)] == left


def test_a_match_of_higher_priority_raises_the_prefix_it_uses() -> None:
    cache = PrefixCache(8, 2, eviction="priority")
    keep(cache, [1] * 4)
    keep(cache, [1, 1], priority=9)
    keep(cache, [2] * 4, priority=5)
    need(cache, 7)
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (2, 0)


def test_equal_priorities_fall_back_to_the_least_recently_used() -> None:
    cache = PrefixCache(4, 2, eviction="priority")
    keep(cache, [1] * 4, priority=2)
    keep(cache, [2] * 4, priority=2)
    need(cache, 2)
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (0, 4)


def test_pinned_pages_are_passed_over() -> None:
    cache = PrefixCache(6, 2)
    keep(cache, [1] * 4)
    pinned = cache.acquire([1] * 4, (), 4)
    keep(cache, [2] * 4)
    need(cache, 4)
    assert pinned is not None
    assert (found(cache, [1] * 4), found(cache, [2] * 4)) == (4, 0)


def test_an_endless_stream_of_prompts_evicts_what_it_needs_and_no_more() -> None:
    cache = PrefixCache(10, 2)
    for prompt in range(100):
        keep(cache, [1000 + prompt] * 4)
        cache.check()
    assert cache.stats().evicted_pages == 100 * 2 - 10
    assert cache.free_pages == 0
