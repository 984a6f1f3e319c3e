"""A sequence with a grammar: how masks, ends, forced tokens and log-probabilities meet what else is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixlm.runtime.errors import RequestFailed
from radixlm.runtime.guide import Guide
from radixlm.runtime.output import OutputStream
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.sequence import Sequence
from radixlm.runtime.types import Request, TokenLogprob
from testkit.byte_tokenizer import EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE, build_byte_tokenizer
from testkit.text_grammar import Texts

TOKENIZER = build_byte_tokenizer()
WORDS = -(-VOCAB_SIZE // 32)


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


def guide_of(texts: Texts, **sampling: Any) -> Guide:  # Any: fields of SamplingParams
    return Guide(texts, SamplingParams(**sampling), (EOS_ID,), WORDS)


def stream_of(texts: Texts, *, max_length: int = 1000, **sampling: Any) -> OutputStream:
    params = SamplingParams(**sampling)
    stream = OutputStream(Sequence(Request("r", (5, 6), params)), TOKENIZER, (EOS_ID,), 3, max_length)
    stream.guide = Guide(texts, params, (EOS_ID,), WORDS)
    return stream


def allowed(guide: Guide, count: int = 0) -> set[int]:
    guide.fill(count)
    bits = np.unpackbits(guide.mask.view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


# -- masks ------------------------------------------------------------------------------------------


def test_a_mask_is_what_the_grammar_allows() -> None:
    guide = guide_of(Texts(("ab", "a", "cd")))
    assert allowed(guide) == {*ids("a"), *ids("c")}
    guide.accept(ids("a")[0])
    assert allowed(guide) == {*ids("b"), EOS_ID}


def test_an_end_is_forbidden_where_the_sequence_shall_go_on_and_can() -> None:
    texts = Texts(("a", "ab"))
    for guide in (guide_of(texts, ignore_eos=True), guide_of(texts, min_tokens=2)):
        guide.accept(ids("a")[0])
        assert allowed(guide, 1) == set(ids("b"))
        guide.accept(ids("b")[0])
        assert allowed(guide, 2) == {EOS_ID}, "nothing else is left"
    guide = guide_of(texts, min_tokens=1)
    guide.accept(ids("a")[0])
    assert allowed(guide, 1) == {*ids("b"), EOS_ID}


def test_stop_ids_are_forbidden_below_min_tokens_unless_they_are_all_there_is() -> None:
    [a, b] = ids("ab")
    guide = guide_of(Texts(("a", "b")), min_tokens=1, stop_token_ids=[a])
    assert allowed(guide) == {b}
    assert allowed(guide, 1) == {a, b}
    assert allowed(guide_of(Texts(("a",)), min_tokens=1, stop_token_ids=[a])) == {a}


def test_bits_up_to_the_last_of_a_word_can_be_cleared() -> None:
    [a, b] = ids("?@")  # 31 of one word and the first of the next but one byte
    assert {a % 32, b % 32} >= {1}
    for token in range(FIRST_BYTE_ID + 30, FIRST_BYTE_ID + 66):
        text = bytes([token - FIRST_BYTE_ID]).decode("latin-1")
        guide = guide_of(Texts((text, "q")), min_tokens=1, stop_token_ids=[token])
        assert allowed(guide) == set(ids("q")), f"token {token}"


def test_what_the_engine_of_a_grammar_does_wrong_is_its_error() -> None:
    guide = guide_of(Texts(("ab",), raises=True))
    guide.fill(0)
    assert guide.error == "the grammar cannot go on: ValueError: it broke"
    guide = guide_of(Texts(("ab",), gives_up_after=0))
    with pytest.raises(RequestFailed, match="it gave up"):
        guide.accept(ids("a")[0])
    guide = guide_of(Texts(()))
    guide.fill(0)
    assert guide.error == "the grammar cannot go on: no token of the vocabulary may come next"


def test_a_token_that_the_grammar_refuses_is_an_error() -> None:
    with pytest.raises(RequestFailed, match="refused token 100"):
        guide_of(Texts(("ab",))).accept(100)


# -- ends -------------------------------------------------------------------------------------------


def test_a_grammar_that_ends_stops_the_sequence_at_once() -> None:
    stream = stream_of(Texts(("ab", "cb")))
    outcome = stream.push(ids("a")[0], None)
    assert outcome.new_tokens == tuple(ids("ab"))
    assert outcome.finish == "stop"
    event = stream.last_event("stop", None)
    assert (event.text, event.matched_stop, event.forced_tokens, event.completion_tokens) == (
        "ab",
        None,
        1,
        2,
    )


def test_the_end_of_text_stops_it_where_it_may_end() -> None:
    stream = stream_of(Texts(("a", "ab")))
    assert stream.push(ids("a")[0], None).finish is None
    outcome = stream.push(EOS_ID, None)
    assert (outcome.finish, stream.last_event("stop", None).matched_stop) == ("stop", EOS_ID)


def test_a_sequence_that_ignores_the_end_still_ends_with_its_grammar() -> None:
    stream = stream_of(Texts(("a", "b")), ignore_eos=True)
    assert stream.push(ids("a")[0], None).finish == "stop"


def test_a_stop_text_inside_forced_tokens_ends_it_there() -> None:
    stream = stream_of(Texts(("abcdef", "x")), stop=["cd"])
    outcome = stream.push(ids("a")[0], None)
    assert (outcome.new_tokens, outcome.finish) == (tuple(ids("abcd")), "stop")
    event = stream.last_event("stop", None)
    assert (event.text, event.matched_stop) == ("ab", "cd")


def test_forced_tokens_end_at_the_length_asked_for_and_at_the_room_there_is() -> None:
    stream = stream_of(Texts(("abcdef", "x")), max_tokens=3)
    outcome = stream.push(ids("a")[0], None)
    assert (outcome.new_tokens, outcome.finish) == (tuple(ids("abc")), "length")
    stream = stream_of(Texts(("abcdef", "x")), max_length=2 + 4)
    outcome = stream.push(ids("a")[0], None)
    assert (outcome.new_tokens, outcome.finish) == (tuple(ids("abcd")), None), "the scheduler sees the end"


def test_a_relaxed_grammar_leaves_its_text_to_be_checked() -> None:
    stream = stream_of(Texts(("ab", "c"), wrong="no good"))
    stream.push(ids("a")[0], None)
    stream.last_event("stop", None)
    assert stream.unchecked == "ab"
    assert stream_of(Texts(("ab", "c"))).unchecked is None


# -- tokens that are forced before anything is sampled -------------------------------------------------


def test_what_is_forced_at_the_beginning_leaves_one_token_to_ask_for() -> None:
    assert stream_of(Texts(("abc", "abd"))).begin() == ids("ab")
    assert stream_of(Texts(("abc",))).begin() == ids("ab"), "the last one would end it"
    assert stream_of(Texts(("abc", "abd")), max_tokens=2).begin() == ids("a")
    assert stream_of(Texts(("abc", "abd")), max_tokens=1).begin() == []
    assert stream_of(Texts(("abc", "abd")), stop=["b"]).begin() == []
    assert stream_of(Texts(("abc", "abd")), prompt_logprobs_start=0, logprobs=1).begin() == []


def test_a_token_forced_at_the_beginning_that_would_stop_it_is_left_to_be_sampled() -> None:
    [a, b] = ids("ab")
    assert stream_of(Texts(("abc", "abd")), stop_token_ids=[b]).begin() == [a]
    assert stream_of(Texts(("abc", "abd")), stop_token_ids=[a]).begin() == []


def test_tokens_forced_at_the_beginning_are_told_with_the_first_event() -> None:
    stream = stream_of(Texts(("abc", "abd")))
    stream.begin()
    stream.push(ids("d")[0], None)
    event = stream.last_event("stop", None)
    assert (event.text, event.token_ids, event.forced_tokens) == ("abd", tuple(ids("abd")), 2)


# -- log-probabilities ---------------------------------------------------------------------------------


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(token, -1.0)


def test_forced_tokens_are_told_when_their_log_probabilities_are_known() -> None:
    stream = stream_of(Texts(("abcd", "abce", "x")), logprobs=0)
    [a, b, c, d] = ids("abcd")
    assert stream.push(a, logprob(a)).new_tokens == (a, b, c)
    event = stream.event()
    assert (event.text, event.token_ids, event.logprobs) == ("a", (a,), (logprob(a),))
    stream.add_logprobs([logprob(b), logprob(c)])
    assert stream.push(d, logprob(d)).finish == "stop"
    event = stream.last_event("stop", None)
    assert (event.text, event.token_ids) == ("bcd", (b, c, d))
    assert [entry.token_id for entry in event.logprobs] == [b, c, d]


def test_with_log_probabilities_the_model_is_always_asked_behind_forced_tokens() -> None:
    [a, b] = ids("ab")
    stream = stream_of(Texts(("abc", "x")), logprobs=0)
    assert stream.push(a, logprob(a)).new_tokens == (a, b), "c would end it without a step"
    assert stream_of(Texts(("abc", "x")), logprobs=0, stop=["b"]).push(a, logprob(a)).new_tokens == (a,)
    stream = stream_of(Texts(("abcdef", "x")), logprobs=0, max_tokens=3)
    outcome = stream.push(a, logprob(a))
    assert (outcome.new_tokens, outcome.finish) == ((a, b), None)


def test_an_end_from_outside_tells_no_token_without_its_log_probability() -> None:
    stream = stream_of(Texts(("abcd", "abce", "x")), logprobs=0)
    [a, *_] = ids("a")
    stream.push(a, logprob(a))
    event = stream.last_event("abort", None)
    assert (event.text, event.token_ids, len(event.logprobs)) == ("a", (a,), 1)
