"""Prompts as callers write them."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.prompts import Prompt, as_prompt


def test_text_token_ids_and_chats_each_show_in_their_own_field_only() -> None:
    text, ids = as_prompt("hello"), as_prompt([3, 1, 4])
    chat = as_prompt({"messages": [{"role": "user", "content": "hi"}]})
    assert (text.text, text.token_ids, text.messages) == ("hello", None, None)
    assert (ids.text, ids.token_ids, ids.messages) == (None, (3, 1, 4), None)
    assert (chat.text, chat.token_ids, chat.messages) == (None, None, ({"role": "user", "content": "hi"},))


def test_a_prompt_stays_the_one_that_was_given() -> None:
    prompt = Prompt("hello", salt="tenant", id="a", priority=2)
    assert as_prompt(prompt) is prompt


def test_integers_of_numpy_become_plain_ones() -> None:
    ids = as_prompt(list(np.array([5, 6]))).token_ids
    assert ids == (5, 6)
    assert all(type(item) is int for item in ids or ())


def test_a_chat_is_copied_so_that_later_changes_do_not_reach_it() -> None:
    message = {"role": "user", "content": "hi"}
    prompt = as_prompt({"messages": [message]})
    message["content"] = "bye"
    assert prompt.messages == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("empty", ["", [], {"messages": []}])
def test_an_empty_prompt_is_refused(empty: object) -> None:
    with pytest.raises(InvalidRequest, match="the prompt is empty"):
        as_prompt(empty)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1, -2], "token id 1 must be an integer of at least 0, got -2"),
        ([1, 1 << 63], "token id 1 must be below 2147483648, got 9223372036854775808"),
        ([True], "token id 0 must be an integer of at least 0, got True"),
        ([1.5], "token id 0 must be an integer of at least 0, got 1.5"),
        (17, "token ids must be a list of integers, got 17"),
        (b"bytes", "token ids must be a list of integers, got b'bytes'"),
        ({"text": "x"}, "a mapping must have the one key \"messages\", got {'text': 'x'}"),
        ({"messages": "hi"}, "messages must be a list, got 'hi'"),
        ({"messages": ["hi"]}, 'message 0 must be {"role": ..., "content": ...}, got \'hi\''),
        ({"messages": [{"role": "user"}]}, 'message 0 has no "content"'),
        ({"messages": [{"role": "user", "content": None}]}, "'content' of message 0 must be text, got None"),
        ("half an emoji \ud83d", "prompt is not valid Unicode: '\\ud83d' at character 14"),
    ],
)
def test_a_malformed_prompt_is_refused_with_what_came(wrong: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_prompt(wrong)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_long_value_is_cut_short_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_prompt({"messages": "x" * 10_000})
    assert len(str(caught.value)) < 120


def test_a_priority_is_an_integer() -> None:
    with pytest.raises(InvalidRequest, match="priority must be an integer, got 'high'"):
        Prompt("x", priority="high")  # type: ignore[arg-type]
