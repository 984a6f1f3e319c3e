"""One sequence's way from tokens to events: text held back, the end it comes to, what is told when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.output import OutputStream
from radixlm.runtime.random_stream import stream_key
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.sequence import Sequence
from radixlm.runtime.types import Event, Request, TokenLogprob
from testkit.byte_tokenizer import EOS_ID, FIRST_BYTE_ID, build_byte_tokenizer

TOKENIZER = build_byte_tokenizer()


def stream_of(*, index: int = 0, **sampling: Any) -> OutputStream:  # Any: fields of SamplingParams
    seq = Sequence(Request("r", (5, 6), SamplingParams(**{"max_tokens": 1000, **sampling})), index)
    return OutputStream(seq, TOKENIZER, (EOS_ID,), seed=3, max_length=10_000)


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


def run(stream: OutputStream, tokens: list[int]) -> tuple[list[Event], Event]:
    """Push until it ends; an event after every token, as the engine asks for. The last one is apart."""
    events = []
    for token in tokens:
        outcome = stream.push(token, None)
        assert outcome.new_tokens == (token,)
        if outcome.finish is not None:
            return events, stream.last_event(outcome.finish, None)
        events.append(stream.event())
    return events, stream.last_event("length", None)


def text_of(events: list[Event], last: Event) -> str:
    return "".join(event.text for event in [*events, last])


def test_events_tell_what_is_new_and_totals_so_far() -> None:
    events, last = run(stream_of(), ids("abc"))
    assert [event.text for event in events] == ["a", "b", "c"]
    assert [event.completion_tokens for event in events] == [1, 2, 3]
    assert [event.token_ids for event in events] == [(token,) for token in ids("abc")]
    assert (last.text, last.token_ids, last.completion_tokens) == ("", (), 3)
    assert {(event.prompt_tokens, event.request_id, event.index) for event in events} == {(2, "r", 0)}


def test_half_a_character_waits_for_the_rest_and_is_replaced_if_none_comes() -> None:
    events, last = run(stream_of(), ids("é€")[:-1])
    assert [event.text for event in events] == ["", "é", "", ""]
    assert last.text == "\ufffd"


@pytest.mark.parametrize("stop", ["end", "ende", "d", "€n"])
def test_no_part_of_a_stop_string_is_ever_shown(stop: str) -> None:
    events, last = run(stream_of(stop=(stop,)), ids(f"x{stop[:-1]}y{stop}z"))
    assert text_of(events, last) == f"x{stop[:-1]}y"
    assert (last.finish_reason, last.matched_stop) == ("stop", stop)


def test_text_held_back_is_released_at_the_end() -> None:
    events, last = run(stream_of(stop=("stop",)), ids("a sto"))
    assert text_of(events, last) == "a sto"
    assert last.text == "sto"
    assert last.matched_stop is None


def test_a_stop_id_releases_text_held_back_and_leaves_no_text_itself() -> None:
    stream = stream_of(stop=("stop",), stop_token_ids=(ids("!")[0],))
    events, last = run(stream, ids("a sto!x"))
    assert text_of(events, last) == "a sto"
    assert (last.finish_reason, last.matched_stop, last.completion_tokens) == ("stop", ids("!")[0], 6)


def test_a_stop_that_the_last_half_character_completes_is_a_stop() -> None:
    events, last = run(stream_of(stop=("a\ufffd",)), ids("xa€")[:-1])
    assert text_of(events, last) == "x"
    assert (last.finish_reason, last.matched_stop) == ("stop", "a\ufffd")


def test_end_of_text_ends_unless_ignored() -> None:
    assert run(stream_of(), [*ids("a"), EOS_ID, *ids("b")])[1].matched_stop == EOS_ID
    events, last = run(stream_of(ignore_eos=True), [*ids("a"), EOS_ID, *ids("b")])
    assert text_of(events, last) == "ab", "special tokens leave no text"
    shown, last = run(stream_of(ignore_eos=True, skip_special_tokens=False), [*ids("a"), EOS_ID, *ids("b")])
    assert text_of(shown, last) == "a<eos>b"


def test_a_stop_string_counts_from_the_least_number_of_tokens_on() -> None:
    events, last = run(stream_of(stop=("b",), min_tokens=4), ids("abcab"))
    assert text_of(events, last) == "abca"
    assert last.completion_tokens == 5


def test_the_most_tokens_end_a_text_and_a_stop_in_the_last_one_goes_first() -> None:
    assert run(stream_of(max_tokens=2), ids("abc"))[1].finish_reason == "length"
    assert run(stream_of(max_tokens=2, stop=("b",)), ids("abc"))[1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "tokens", "shown"),
    [
        ({"stop": ("end",)}, ids("an ending"), "an end"),
        ({"stop_regex": ("e.d",)}, ids("an eXd!"), "an eXd"),
        ({"stop": ("x",), "stop_regex": ("é+",)}, ids("aéx"), "aé"),
        ({"stop_token_ids": (ids("!")[0],)}, ids("a!x"), "a!"),
        ({"stop": ("stop",), "stop_token_ids": (ids("!")[0],)}, ids("a sto!x"), "a sto!"),
        ({"stop_token_ids": (ids("!")[0],)}, [*ids("é")[:1], *ids("!")], "\ufffd!"),
        ({}, [*ids("a"), EOS_ID], "a"),
        ({"skip_special_tokens": False}, [*ids("a"), EOS_ID], "a<eos>"),
        ({"stop": ("x",)}, ids("a sto"), "a sto"),
    ],
)
def test_what_ends_the_text_is_part_of_it_where_it_is_not_trimmed(
    options: dict[str, Any], tokens: list[int], shown: str
) -> None:
    events, last = run(stream_of(no_stop_trim=True, **options), tokens)
    assert text_of(events, last) == shown
    trimmed = run(stream_of(**options), tokens)[1]
    assert (last.matched_stop, last.completion_tokens) == (trimmed.matched_stop, trimmed.completion_tokens)


def test_log_probabilities_are_told_once() -> None:
    stream = stream_of(logprobs=0, prompt_logprobs_start=0)
    stream.add_prompt_logprobs([TokenLogprob(6, -1.0)])
    stream.push(9, TokenLogprob(9, -2.0))
    event, last = stream.event(), stream.last_event("length", None)
    assert event.prompt_logprobs == (TokenLogprob(5, None), TokenLogprob(6, -1.0))
    assert event.logprobs == (TokenLogprob(9, -2.0),)
    assert last.prompt_logprobs == last.logprobs == ()


def test_an_error_is_told_with_the_text_so_far() -> None:
    stream = stream_of(stop=("stop",))
    stream.push(ids("s")[0], None)
    last = stream.last_event("error", "the step failed")
    assert (last.text, last.finish_reason, last.error) == ("s", "error", "the step failed")


def test_a_row_names_its_choice_its_position_and_the_key_of_its_seed() -> None:
    stream = stream_of(index=2)
    row = stream.sample_row()
    assert (row.key, row.choice, row.position) == (stream_key(3, ()), 2, 2)
    assert stream_of(index=1).sample_row().choice == 1


@given(
    text=st.text(alphabet="abд€", max_size=20),
    stops=st.lists(st.text("abд", min_size=1, max_size=3), max_size=32),
)
def test_joined_text_is_what_comes_before_the_first_stop(text: str, stops: list[str]) -> None:
    events, last = run(stream_of(stop=tuple(stops)), ids(text))
    shown = text_of(events, last)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text
        return
    complete = text[: min(ends)]
    longest = max((stop for stop in stops if complete.endswith(stop)), key=len)
    assert shown == complete.removesuffix(longest)
    assert last.matched_stop == longest
