"""The order of a batch: depth-first over the trie of first prompts."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from radixlm.frontend.item_order import item_order as order_of_pieces


def item_order(keys: list[str]) -> list[int]:
    return order_of_pieces([(key,) for key in keys])


HEAD = "You answer questions about one text, in one word." * 2


def test_items_that_begin_alike_stand_together_in_the_order_of_their_first() -> None:
    keys = [f"{HEAD}{'text ' + str(i % 3):40}question {i}" for i in range(9)]
    assert item_order(keys) == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def test_items_with_nothing_but_a_constant_beginning_in_common_keep_their_order() -> None:
    assert item_order([f"{HEAD}{i * 7919 % 100:02} and so on" for i in range(50)]) == list(range(50))


def test_documents_that_many_items_share_are_not_copied() -> None:
    documents = [chr(97 + i % 26) * 50_000 + str(i) for i in range(20)]
    shared = [("Read this:\n", documents[i % 20], f"\nQuestion {i}") for i in range(2000)]
    apart = [(f"{i} " * 3000,) for i in range(500)]
    for keys, size in ((shared, 20), (apart, 500)):
        tracemalloc.start()
        order = order_of_pieces(keys)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000
        if keys is shared:
            assert len([i for i in range(1, 2000) if order[i] % 20 != order[i - 1] % 20]) == size - 1


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


def simple_order(keys: list[str]) -> list[int]:
    """Step by step."""

    def of(members: list[int], start: int) -> list[int]:
        parts: dict[str, list[int]] = {}
        for index in members:
            parts.setdefault(keys[index][start : start + 32], []).append(index)
        if len(members) < 2 or parts.keys() == {""}:
            return members
        return [index for part in parts.values() for index in of(part, start + 32)]

    return of(list(range(len(keys))), 0)


texts = st.lists(st.sampled_from(["a" * 31, "b", "c" * 40, "a" * 64]), max_size=6)


@given(st.lists(st.tuples(texts, st.integers(0, 70)), max_size=12))
def test_how_a_text_is_cut_into_pieces_changes_nothing(keys: list[tuple[list[str], int]]) -> None:
    whole = ["".join(pieces) for pieces, _ in keys]
    cut = [("".join(pieces)[:at], "", "".join(pieces)[at:]) for pieces, at in keys]
    expected = simple_order(whole)
    assert item_order(whole) == expected
    assert order_of_pieces([pieces for pieces, _ in keys]) == expected
    assert order_of_pieces(cut) == expected


@given(
    st.text("ab", min_size=1, max_size=200),
    st.lists(st.tuples(st.integers(0, 200), st.text("ab")), max_size=20),
)
def test_texts_that_begin_each_other_come_in_the_order_of_the_tree(
    text: str, cuts: list[tuple[int, str]]
) -> None:
    keys = [text[:at] + rest for at, rest in cuts]
    assert item_order(keys) == simple_order(keys)


def test_turns_of_a_conversation_are_looked_at_once_each() -> None:
    """Each prompt is the beginning of the next; a step more for each pair of them would take a minute."""
    looks = 0

    class Counting(str):
        __slots__ = ()

        def __getitem__(self, key: object) -> str:
            nonlocal looks
            looks += 1
            return super().__getitem__(key)  # type: ignore[index]  # as it was given

    talk = "".join(f"turn {number}: what was said\n" for number in range(8000))
    keys = [(Counting(talk[: 100 * number]),) for number in range(2000)]
    assert order_of_pieces(keys) == list(range(2000))
    assert looks < 2000 * 40
