"""Answers of /generate as they are written: cumulative, as JSON, with log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.server.native_reply import NativeAnswer
from radixlm.runtime.types import Event, FinishReason, TokenLogprob


def event(text: str = "", ids: tuple[int, ...] = (), **more: Any) -> Event:
    return Event("r", 0, text, ids, prompt_tokens=3, cached_tokens=2, **more)


def read(answer: NativeAnswer, index: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.written(0.5, index))
    return found


def test_an_answer_is_cumulative_and_ends_with_a_reason() -> None:
    answer = NativeAnswer("name", reports=False)
    answer.add(event("a", (5,)))
    first = read(answer)
    answer.add(event('"\né', (6, 7), finish_reason="length"))
    assert first == {
        "text": "a",
        "output_ids": [5],
        "meta_info": {
            "id": "name",
            "finish_reason": None,
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "cached_tokens": 2,
            "e2e_latency": 0.5,
        },
    }
    whole = read(answer)
    assert (whole["text"], whole["output_ids"]) == ('a"\né', [5, 6, 7])
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert whole["meta_info"]["completion_tokens"] == 3


def test_the_place_in_a_list_is_told_where_it_is_known() -> None:
    answer = NativeAnswer("name", reports=True)
    assert read(answer, 0)["index"] == 0
    assert "index" not in read(answer)


@pytest.mark.parametrize(
    ("reason", "more", "said"),
    [
        ("stop", {"matched_stop": "END"}, {"type": "stop", "matched": "END"}),
        ("stop", {"matched_stop": 1}, {"type": "stop", "matched": 1}),
        ("stop", {}, {"type": "stop", "matched": 9}),
        ("length", {}, {"type": "length", "length": 2}),
        ("abort", {}, {"type": "abort", "message": "the request was aborted"}),
        (
            "abort",
            {"error": "the engine has stopped"},
            {"type": "abort", "message": "the engine has stopped"},
        ),
    ],
)
def test_reasons_say_what_ended_the_text(
    reason: FinishReason, more: dict[str, Any], said: dict[str, Any]
) -> None:
    answer = NativeAnswer("name", reports=False)
    answer.add(event("ab", (8, 9), finish_reason=reason, **more))
    assert answer.finish == said


def test_log_probabilities_are_cumulative_triples_of_prompt_and_text() -> None:
    answer = NativeAnswer("name", reports=True)
    prompt = (TokenLogprob(4, None), TokenLogprob(5, -1.5, ((6, -0.5), (5, -1.5))))
    answer.add(event("a", (7,), prompt_logprobs=prompt, logprobs=(TokenLogprob(7, -2.0, ((7, -2.0),)),)))
    answer.add(event("b", (8,), logprobs=(TokenLogprob(8, -3.0, ((9, -1.0),)),)))
    meta = read(answer)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 4, None], [-1.5, 5, None]]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 6, None], [-1.5, 5, None]]]
    assert meta["output_token_logprobs"] == [[-2.0, 7, None], [-3.0, 8, None]]
    assert meta["output_top_logprobs"] == [[[-2.0, 7, None]], [[-1.0, 9, None]]]
    assert meta["output_token_logprobs_length"] == 2


def test_without_alternatives_there_is_a_null_in_their_place() -> None:
    answer = NativeAnswer("name", reports=True)
    answer.add(event("a", (7,), logprobs=(TokenLogprob(7, -2.0),)))
    meta = read(answer)["meta_info"]
    assert (meta["input_top_logprobs"], meta["output_top_logprobs"]) == ([], [None])


def test_texts_of_tokens_come_where_they_are_asked_for() -> None:
    answer = NativeAnswer("name", reports=True, token_text=lambda token: f"<{token}>")
    answer.add(event("a", (7,), logprobs=(TokenLogprob(7, -2.0, ((9, -1.0),)),)))
    meta = read(answer)["meta_info"]
    assert meta["output_token_logprobs"] == [[-2.0, 7, "<7>"]]
    assert meta["output_top_logprobs"] == [[[-1.0, 9, "<9>"]]]


def test_the_first_position_alone_can_be_without_a_value_as_in_sglang() -> None:
    answer = NativeAnswer("name", reports=True, null_first=True)
    for token in (4, 5):
        answer.add(event(prompt_logprobs=(TokenLogprob(token, -1.0, ((token, -1.0),)),)))
    meta = read(answer)["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 4, None], [-1.0, 5, None]]
    assert meta["input_top_logprobs"] == [None, [[-1.0, 5, None]]]


def test_thousands_of_log_probabilities_are_all_there_in_order() -> None:
    answer = NativeAnswer("name", reports=True)
    answer.add(event(prompt_logprobs=tuple(TokenLogprob(token, -1.0) for token in range(2501))))
    answer.add(event(prompt_logprobs=(TokenLogprob(2501, -1.0),)))
    listed = read(answer)["meta_info"]["input_token_logprobs"]
    assert [token for _, token, _ in listed] == list(range(2502))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=6))
def test_any_text_in_any_pieces_is_read_as_it_was(pieces: list[str]) -> None:
    answer = NativeAnswer("name", reports=False)
    for piece in pieces:
        answer.add(event(piece))
    assert read(answer)["text"] == "".join(pieces)
