"""What an item to score may look like."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.score_items import ScoreItem, as_items


def test_lists_become_tuples() -> None:
    assert ScoreItem([1, 2], [" a", [3]]) == ScoreItem((1, 2), (" a", (3,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("context", "continuations", "message"),
    [
        (5, ("a",), "context: token ids must be a list of integers, got 5"),
        ([-1], ("a",), "context: token id 0 must be an integer of at least 0, got -1"),
        ("\ud83d", ("a",), "context is not valid Unicode"),
        ("c", "a", "continuations must be a list of texts or of lists of ids, got 'a'"),
        ("c", (), "continuations must hold at least one, got none"),
        ("c", ("a", ""), "continuation 1 is empty"),
        ("c", ((), "a"), "continuation 0 is empty"),
        ("c", ("a", 7), "continuation 1: token ids must be a list of integers, got 7"),
        ("c", ([1, True],), "continuation 0: token id 1 must be an integer of at least 0, got True"),
    ],
)
def test_a_malformed_item_is_refused_in_words(context: Any, continuations: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ScoreItem(context, continuations)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"salt": 1}, "namespace must be text, got 1"),
        ({"id": 1}, "id must be text, got 1"),
        ({"priority": True}, "priority must be an integer, got True"),
    ],
)
def test_a_malformed_option_is_refused_in_words(more: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ScoreItem("c", ("a",), **more)


def test_a_context_with_continuations_is_one_item() -> None:
    assert as_items("c", ["a"]) == ([ScoreItem("c", ("a",))], False)
    assert as_items([1, 2], [[3]]) == ([ScoreItem((1, 2), ((3,),))], False)
    assert as_items("", ["a"]) == ([ScoreItem("", ("a",))], False)


def test_items_may_come_alone_and_in_a_list() -> None:
    item = ScoreItem("c", ("a",))
    assert as_items(item, None) == ([item], False)
    assert as_items([item, item], None) == ([item, item], True)
    assert as_items([], None) == ([], True)


def test_what_is_no_item_in_a_list_stands_for_itself() -> None:
    items, _ = as_items([ScoreItem("c", ("a",)), ("c", ["a"])], None)  # type: ignore[list-item]
    assert isinstance(items[1], InvalidRequest)
    assert "item 1 must be a ScoreItem, got ('c', ['a'])" in str(items[1])


@pytest.mark.parametrize(
    ("given", "continuations", "message"),
    [
        ("c", None, "needs a context with continuations, or items, got 'c'"),
        (7, None, "needs a context with continuations, or items, got 7"),
        (ScoreItem("c", ("a",)), ["b"], "continuations must be left out"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(given: Any, continuations: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        as_items(given, continuations)
