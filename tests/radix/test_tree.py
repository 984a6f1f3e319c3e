"""What the tree finds: token-exact prefixes, namespaces, duplicates and partial pages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.radix.lease import Lease, PageCopy


def acquire(
    cache: PrefixCache, tokens: Sequence[int], namespace: tuple[str, ...] = (), length: int = 0
) -> Lease:
    lease = cache.acquire(tokens, namespace, max(length, len(tokens)))
    assert lease is not None
    return lease


def keep(cache: PrefixCache, tokens: Sequence[int], namespace: tuple[str, ...] = ()) -> None:
    """Run a prompt to its end: everything of it is cached afterwards."""
    lease = acquire(cache, tokens, namespace)
    cache.take_copies()
    cache.settle()
    cache.publish(lease, tokens, len(tokens))
    cache.release(lease)
    cache.check()


def found(cache: PrefixCache, tokens: Sequence[int], namespace: tuple[str, ...] = ()) -> int:
    return cache.peek(tokens, namespace).cached_tokens


@pytest.mark.parametrize("page_size", [1, 2, 4, 16])
def test_a_prefix_is_found_to_the_token(page_size: int) -> None:
    cache = PrefixCache(64, page_size)
    kept = list(range(11))
    keep(cache, kept)
    for length in range(12):
        assert found(cache, [*kept[:length], 99, 98, 97]) == length
    assert found(cache, [*kept, 11]) == 11


def test_an_empty_cache_and_an_empty_prompt_match_nothing() -> None:
    cache = PrefixCache(4, 4)
    assert found(cache, [1, 2]) == 0
    keep(cache, [1, 2])
    assert found(cache, []) == 0
    keep(cache, [])
    assert cache.cached_pages == 1


def test_namespaces_that_join_to_the_same_text_share_nothing() -> None:
    cache = PrefixCache(16, 2)
    keep(cache, [1, 2, 3, 4], ("a", "bc"))
    assert found(cache, [1, 2, 3, 4], ("ab", "c")) == 0
    assert found(cache, [1, 2, 3, 4], ("a", "bc")) == 4


def test_many_salts_leave_nothing_behind() -> None:
    cache = PrefixCache(4, 2)
    for salt in range(100):
        keep(cache, [1, 2, 3], (str(salt),))
    assert cache.dump().count(",) pages []") <= 2
    cache.flush()
    assert cache.dump() == ""
    assert cache.free_pages == 4


def test_a_namespace_without_pages_lives_as_long_as_its_lease() -> None:
    cache = PrefixCache(4, 2)
    lease = acquire(cache, [1], ("s",))
    assert "'s'" in cache.dump()
    cache.release(lease)
    assert cache.dump() == ""


def test_duplicates_computed_at_the_same_time_are_re_pointed_and_freed() -> None:
    cache = PrefixCache(6, 2)
    first, second = acquire(cache, [1, 2, 3, 4]), acquire(cache, [1, 2, 3, 4])
    assert first.pages != second.pages
    cache.publish(first, [1, 2, 3, 4], 4)
    assert first.version == 0
    cache.publish(second, [1, 2, 3, 4], 4)
    assert second.pages == first.pages
    assert second.version == 1
    assert cache.free_pages == 4
    third = acquire(cache, [7] * 8)
    assert cache.free_pages == 0
    assert not set(third.pages) & set(first.pages)
    cache.check()


def test_a_duplicate_is_re_pointed_up_to_where_it_differs() -> None:
    cache = PrefixCache(16, 2)
    a, b = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9, 9]
    first, second = acquire(cache, a), acquire(cache, b)
    cache.publish(first, a, 6)
    own = second.pages[2]
    cache.publish(second, b, 6)
    assert second.pages == [*first.pages[:2], own]
    assert found(cache, a) == found(cache, b) == 6
    cache.check()


def test_the_owner_appends_to_its_partial_page_and_others_copy_it() -> None:
    cache = PrefixCache(16, 4)
    owner = acquire(cache, [1, 2], length=4)
    cache.publish(owner, [1, 2], 2)
    other = acquire(cache, [1, 2, 9])
    assert other.cached_tokens == 2
    assert cache.take_copies() == (PageCopy(owner.pages[0], other.pages[0], 2),)
    cache.settle()
    cache.publish(owner, [1, 2, 3], 3)
    assert cache.cached_pages == 1
    assert found(cache, [1, 2, 3]) == 3
    cache.publish(other, [1, 2, 9], 3)
    assert found(cache, [1, 2, 9]) == 3
    cache.publish(owner, [1, 2, 3, 4], 4)
    assert owner.version == other.version == 0
    cache.check()


def test_the_second_turn_of_a_chat_reuses_all_but_the_last_token() -> None:
    cache = PrefixCache(32, 4)
    turn = [1, 2, 3, 4, 5]
    lease = acquire(cache, turn)
    cache.publish(lease, turn, 5)
    for token in range(10, 17):
        turn.append(token)
        assert cache.grow(lease, len(turn))
    cache.publish(lease, turn, len(turn) - 1)
    cache.release(lease)
    again = acquire(cache, [*turn, 50, 51])
    assert again.cached_tokens == len(turn) - 1


def test_a_chat_of_many_turns_does_not_keep_the_partial_pages_of_old_turns() -> None:
    cache = PrefixCache(64, 4)
    chat: list[int] = []
    for turn in range(10):
        chat += [100 + turn] * 5
        lease = acquire(cache, chat)
        cache.take_copies()
        cache.publish(lease, chat, len(chat))  # while the copied page is still pinned
        cache.settle()
        cache.release(lease)
        cache.check()
    assert cache.cached_pages == -(-len(chat) // 4)


def test_a_partial_page_gives_way_to_a_longer_sibling() -> None:
    cache = PrefixCache(16, 4)
    keep(cache, [1, 2])
    keep(cache, [1, 2, 3])
    assert cache.cached_pages == 1
    keep(cache, [1, 2, 3, 4, 5])
    assert cache.cached_pages == 2
    keep(cache, [1, 2, 3])
    assert cache.cached_pages == 2
    assert found(cache, [1, 2, 3, 4, 5]) == 5


def test_every_shorter_partial_page_gives_way_at_once() -> None:
    cache = PrefixCache(16, 4)
    leases = []
    for tokens in ([1], [1, 1, 5], [1, 2], [1, 2, 3]):
        leases.append(acquire(cache, tokens))
        cache.publish(leases[-1], tokens, len(tokens))
    cache.take_copies()
    cache.settle()
    assert cache.cached_pages == 4
    for lease in leases[:3]:
        cache.release(lease)
        cache.check()
    assert cache.cached_pages == 2
    assert found(cache, [1, 1, 5]) == 3
    assert found(cache, [1, 2, 3]) == 3


def test_a_pinned_partial_page_stays_beside_its_longer_sibling_until_unpinned() -> None:
    cache = PrefixCache(16, 4)
    owner = acquire(cache, [1, 2])
    cache.publish(owner, [1, 2], 2)
    keep(cache, [1, 2, 3, 4])
    assert cache.cached_pages == 2
    cache.release(owner)
    assert cache.cached_pages == 1
    cache.check()


def test_an_owner_whose_page_becomes_equal_to_a_whole_sibling_moves_there() -> None:
    cache = PrefixCache(16, 4)
    owner = acquire(cache, [1, 2], length=8)
    cache.publish(owner, [1, 2], 2)
    keep(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert cache.cached_pages == 3
    cache.publish(owner, [1, 2, 3, 4, 5], 5)
    assert cache.cached_pages == 2
    assert owner.version == 1
    assert owner.pages[0] == acquire(cache, [1, 2, 3, 4]).pages[0]
    cache.check()


def test_an_owner_that_moves_leaves_its_page_to_those_who_copy_from_it() -> None:
    cache = PrefixCache(16, 4)
    owner = acquire(cache, [1, 2], length=4)
    cache.publish(owner, [1, 2], 2)
    old = owner.pages[0]
    twin = acquire(cache, [1, 2, 3, 4])
    reader = acquire(cache, [1, 2])
    assert [copy.source for copy in cache.take_copies()] == [old, old]
    cache.publish(twin, [1, 2, 3, 4], 4)
    cache.publish(owner, [1, 2, 3, 4], 4)
    assert owner.pages == twin.pages
    assert cache.cached_pages == 2
    cache.settle()
    assert cache.cached_pages == 1
    cache.release(reader)
    cache.check()


def test_an_owner_keeps_its_page_where_a_partial_sibling_holds_all_of_it() -> None:
    cache = PrefixCache(16, 4)
    owner, other = acquire(cache, [1, 2], length=4), acquire(cache, [1, 2, 3])
    cache.publish(owner, [1, 2], 2)
    cache.publish(other, [1, 2, 3], 3)
    cache.publish(owner, [1, 2, 3], 3)
    assert owner.pages != other.pages
    assert owner.version == 0
    cache.check()
    cache.publish(owner, [1, 2, 3, 9], 4)
    assert found(cache, [1, 2, 3, 9]) == 4
    cache.check()


def test_the_best_of_ten_thousand_siblings_is_found_inside_a_page() -> None:
    cache = PrefixCache(40_000, 4)
    lease = acquire(cache, [])
    root = acquire(cache, [0, 0, 0, 0])
    cache.publish(root, [0, 0, 0, 0], 4)
    for branch in range(10_000):
        tokens = [0, 0, 0, 0, 2 * branch, 7, 7, 7]
        child = acquire(cache, tokens)
        cache.publish(child, tokens, 8)
        cache.release(child)
    cache.take_copies()
    cache.settle()
    assert found(cache, [0, 0, 0, 0, 2 * 7_321, 7, 7, 1]) == 7
    assert found(cache, [0, 0, 0, 0, 2 * 7_321, 7, 9, 9]) == 6
    assert found(cache, [0, 0, 0, 0, 2 * 7_321 + 1, 7, 7, 7]) == 4
    assert found(cache, [0, 0, 0, 0, 2 * 7_321]) == 5
    cache.release(lease)


def test_publishing_token_by_token_gives_the_same_tree_as_at_once() -> None:
    slow, fast = PrefixCache(16, 4), PrefixCache(16, 4)
    tokens = list(range(14))
    lease = acquire(slow, tokens)
    for upto in range(15):
        slow.publish(lease, tokens, upto)
        slow.check()
        assert found(slow, tokens) == upto
    other = acquire(fast, tokens)
    fast.publish(other, tokens, 14)
    assert slow.dump().count("\n") == fast.dump().count("\n") == 1
    assert slow.stats() == fast.stats()


def test_publishing_less_than_before_changes_nothing() -> None:
    cache = PrefixCache(16, 4)
    lease = acquire(cache, range(9))
    cache.publish(lease, range(9), 9)
    before = cache.dump()
    cache.publish(lease, range(9), 5)
    assert cache.dump() == before
    cache.check()


def test_publishing_does_not_read_what_is_published_already() -> None:
    class Guarded(list[int]):
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            assert isinstance(at, slice)
            assert at.start >= 96, "only the page that is being filled is read"
            return super().__getitem__(at)

    cache = PrefixCache(64, 16)
    tokens = list(range(100))
    lease = acquire(cache, tokens, length=120)
    cache.publish(lease, tokens, 100)
    cache.publish(lease, Guarded([*tokens, 1, 2]), 102)
    cache.publish(lease, Guarded([*tokens, *range(20)]), 117)
    cache.check()
