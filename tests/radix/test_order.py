"""Depth-first order: what it keeps together, what comes first, and that it reaches the best hit rate."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from radixlm.radix.order import shared_with_previous, trie_order
from radixlm.radix.replay import optimal_hit_rate, replay

PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12)


def depth_first(prompts: list[list[int]], indices: list[int], depth: int) -> list[int]:
    """The order from its definition: children by their first prompt, then those that end here."""
    ends = [index for index in indices if len(prompts[index]) == depth]
    children: dict[int, list[int]] = {}
    for index in indices:
        if len(prompts[index]) > depth:
            children.setdefault(prompts[index][depth], []).append(index)
    below = (depth_first(prompts, child, depth + 1) for child in children.values())
    return [index for child in below for index in child] + ends


@given(PROMPTS)
def test_it_is_a_permutation_that_keeps_every_subtree_together(prompts: list[list[int]]) -> None:
    order = trie_order(prompts)
    assert sorted(order) == list(range(len(prompts)))
    prefixes = {tuple(prompt[:length]) for prompt in prompts for length in range(len(prompt) + 1)}
    for prefix in prefixes:
        turns = [turn for turn, at in enumerate(order) if tuple(prompts[at][: len(prefix)]) == prefix]
        assert turns == list(range(turns[0], turns[0] + len(turns)))


@given(PROMPTS)
def test_subtrees_come_by_their_first_prompt_and_prompts_that_end_come_last(prompts: list[list[int]]) -> None:
    assert trie_order(prompts) == depth_first(prompts, list(range(len(prompts))), 0)


@given(PROMPTS)
def test_equal_prompts_keep_their_order(prompts: list[list[int]]) -> None:
    order = trie_order(prompts)
    for one, other in pairwise(order):
        assert prompts[one] != prompts[other] or one < other


def test_what_shares_nothing_keeps_its_order() -> None:
    assert trie_order([[3, 1], [1, 1], [2], [0, 5]]) == [0, 1, 2, 3]


def test_the_longest_of_a_conversation_comes_first_and_the_rest_are_found_whole() -> None:
    turns = [list(range(length)) for length in (2, 4, 6, 8)]
    assert trie_order(turns) == [3, 2, 1, 0]
    assert shared_with_previous([turns[index] for index in trie_order(turns)]) == [0, 6, 4, 2]


def test_token_ids_may_need_several_bytes_and_lie_on_both_sides_of_a_power_of_two() -> None:
    prompts = [[255, 256], [256, 255], [1 << 40], [255, 257], [256, 1], [(1 << 40) + 1]]
    assert trie_order(prompts) == [0, 3, 1, 4, 2, 5]


def test_nothing_and_prompts_of_nothing_have_an_order() -> None:
    assert trie_order([]) == []
    assert trie_order([[], [1], []]) == [1, 0, 2]
    assert shared_with_previous([]) == []


def test_a_trie_as_deep_as_the_batch_is_long_needs_no_stack() -> None:
    prompts = [[0] * length for length in range(3000)]
    assert trie_order(prompts) == list(reversed(range(3000)))


@given(PROMPTS)
def test_what_neighbours_share_adds_up_to_what_an_endless_cache_finds(prompts: list[list[int]]) -> None:
    trie = {tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)}
    shared = shared_with_previous(prompts[index] for index in trie_order(prompts))
    assert sum(shared) == sum(map(len, prompts)) - len(trie)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=12))
def test_in_this_order_a_pool_for_the_longest_prompt_finds_all_there_is(prompts: list[list[int]]) -> None:
    ordered = [prompts[index] for index in trie_order(prompts)]
    report = replay(ordered, max(map(len, prompts)), 1)
    assert report.hit_rate == optimal_hit_rate(prompts)
