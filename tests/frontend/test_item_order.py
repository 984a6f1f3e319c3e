"""The order of a batch: depth-first over the trie of first prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixlm.frontend.item_order import item_order

HEAD = "You answer questions about one text, in one word." * 2


def test_items_that_begin_alike_stand_together_in_the_order_of_their_first() -> None:
    keys = [f"{HEAD}{'text ' + str(i % 3):40}question {i}" for i in range(9)]
    assert item_order(keys) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_items_with_nothing_but_a_constant_beginning_in_common_keep_their_order() -> None:
    assert item_order([f"{HEAD}{i * 7919 % 100:02} and so on" for i in range(50)]) == list(range(50))


def test_equal_items_stand_together() -> None:
    assert item_order(["a" * 100, "b" * 100, "a" * 100]) == [0, 2, 1]


def test_a_long_common_beginning_needs_no_recursion() -> None:
    keys = ["x" * 200_000 + str(i) for i in range(3)]
    assert item_order(keys) == [0, 1, 2]


blocks = st.lists(st.sampled_from(["a" * 32, "b" * 32]), max_size=5)


@given(st.lists(blocks.map("".join)))
def test_every_item_comes_once_and_every_subtree_without_a_break(keys: list[str]) -> None:
    order = item_order(keys)
    assert sorted(order) == list(range(len(keys)))
    for prefix in {key[:end] for key in keys for end in range(32, len(key) + 1, 32)}:
        places = [place for place, index in enumerate(order) if keys[index].startswith(prefix)]
        assert places == list(range(places[0], places[0] + len(places)))
