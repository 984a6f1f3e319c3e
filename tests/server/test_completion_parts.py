"""Choices of /v1/completions part by part: places and names of tokens, alternatives, ends, usage."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.errors import RequestFailed
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.completion_body import CompletionCall
from radixlm.runtime.server.completion_reply import ChoiceParts, encoded_prompt
from radixlm.runtime.server.failures import Aborted
from radixlm.runtime.server.openai_body import StreamOptions
from radixlm.runtime.server.openai_reply import chunk_usage, tally_of, usage_of
from radixlm.runtime.token_names import token_bytes, token_text
from radixlm.runtime.tokenizer import Tokenizer
from radixlm.runtime.types import Event, TokenLogprob
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE


def call_of(*, echo: bool = False, names: bool = False, ids: bool = False, **sampling: Any) -> CompletionCall:
    return CompletionCall(
        prompts=("",),
        sampling=SamplingParams(**sampling),
        echo=echo,
        stream=False,
        options=StreamOptions(),
        salt="",
        priority=0,
        adds_special=True,
        names=names,
        returns_ids=ids,
    )


def parts(
    tokenizer: Tokenizer, prompt: str | tuple[int, ...], call: CompletionCall, index: int = 0
) -> ChoiceParts:
    ids = tuple(tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
    return ChoiceParts(index, encoded_prompt(prompt, ids, call, tokenizer), call, tokenizer)


def entries(ids: list[int] | tuple[int, ...], first: float | None = -0.5) -> tuple[TokenLogprob, ...]:
    """Each the best where it stands."""
    return tuple(
        TokenLogprob(token, value, () if value is None else ((token, value),))
        for token, value in zip(ids, [first, *[-0.5] * len(ids)], strict=False)
    )


def logprobs_of(part: dict[str, object] | None) -> dict[str, Any]:
    assert part is not None
    found = part["logprobs"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("text", ["the cat", "naïve 中文 🙂 the", "<eos> in text", ""])
def test_every_token_of_an_echoed_text_is_found_at_its_place(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text)
    part = parts(byte_tokenizer, text, call_of(echo=True, logprobs=1)).part(
        Event("", 0, prompt_logprobs=entries(ids, None), finish_reason="length")
    )
    assert part is not None
    assert part["text"] == text
    found = logprobs_of(part)
    for token, place in zip(found["tokens"][1:], found["text_offset"][1:], strict=True):
        if token.startswith("bytes:"):
            assert text[place].encode().find(bytes.fromhex(token[6:].replace("\\x", ""))) >= 0
        else:
            assert text[place : place + len(token)] == token


def test_a_token_that_the_tokenizer_put_before_a_text_is_not_a_part_of_it(byte_tokenizer: Tokenizer) -> None:
    event = Event("", 0, prompt_logprobs=entries(byte_tokenizer.encode("in"), None), finish_reason="length")
    part = parts(byte_tokenizer, "in", call_of(echo=True, logprobs=0)).part(event)
    assert part is not None
    assert part["text"] == "in"
    assert logprobs_of(part)["tokens"] == ["<bos>", "in"]
    assert logprobs_of(part)["text_offset"] == [0, 0]
    assert logprobs_of(part)["token_logprobs"][0] is None
    assert logprobs_of(part)["top_logprobs"][0] is None


@pytest.mark.parametrize("skip", [True, False])
def test_echoed_ids_show_control_tokens_only_where_they_are_asked_for(
    byte_tokenizer: Tokenizer, skip: bool
) -> None:
    ids = (BOS_ID, *byte_tokenizer.encode("the in", bos=False))
    call = call_of(echo=True, logprobs=1, skip_special_tokens=skip)
    part = parts(byte_tokenizer, ids, call).part(
        Event("", 0, " a", prompt_logprobs=entries(ids, None), logprobs=entries(byte_tokenizer.encode(" a")))
    )
    assert part is not None
    shown = "the in" if skip else "<bos>the in"
    assert part["text"] == shown + " a"
    starts = dict(zip(logprobs_of(part)["tokens"], logprobs_of(part)["text_offset"], strict=True))
    assert starts["the"] == shown.index("the")
    assert starts[" a"] == len(shown) + (0 if skip else len("<bos>"))


def test_places_go_on_from_part_to_part(byte_tokenizer: Tokenizer) -> None:
    choice = parts(byte_tokenizer, "a", call_of(logprobs=0))
    words = [" a", "the", "in"]
    found = [
        choice.part(Event("", 0, word, logprobs=entries(byte_tokenizer.encode(word, bos=False))))
        for word in words
    ]
    assert [logprobs_of(part)["text_offset"] for part in found] == [[0], [2], [5]]


def test_a_part_with_nothing_new_is_not_sent_and_the_prompt_is_shown_once(byte_tokenizer: Tokenizer) -> None:
    choice = parts(byte_tokenizer, (FIRST_BYTE_ID + 65,), call_of(echo=True))
    assert [choice.part(Event("", 0, text)) for text in ("x", "")] == [
        {"index": 0, "text": "Ax", "logprobs": None, "finish_reason": None, "stop_reason": None},
        None,
    ]
    silent = parts(byte_tokenizer, "A", call_of(ids=True))
    assert silent.part(Event("", 0)) is None
    part = silent.part(Event("", 0, token_ids=(7,)))
    assert part is not None
    assert (part["prompt_token_ids"], part["token_ids"]) == ((BOS_ID, FIRST_BYTE_ID + 65), (7,))


def test_alternatives_hold_the_token_itself_and_the_very_number_that_it_has(
    byte_tokenizer: Tokenizer,
) -> None:
    a, b, c = (FIRST_BYTE_ID + ord(letter) for letter in "abc")
    choice = parts(byte_tokenizer, "a", call_of(logprobs=2))
    best, worse = -0.30000001192092896, -4.199999809265137
    found = logprobs_of(
        choice.part(
            Event(
                "",
                0,
                "ac",
                logprobs=(
                    TokenLogprob(a, best, ((a, best), (b, worse))),
                    TokenLogprob(c, -9.0, ((a, best), (b, worse))),
                ),
            )
        )
    )
    assert found["top_logprobs"] == [{"a": best, "b": worse}, {"a": best, "b": worse, "c": -9.0}]
    for value, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert value in top.values()
    assert found["token_logprobs"][0] == max(found["top_logprobs"][0].values())
    assert found["token_logprobs"][1] != max(found["top_logprobs"][1].values())


def test_two_tokens_with_one_text_do_not_hide_each_other() -> None:
    """A byte piece and the letter itself are such."""
    vocabulary = {"x": 0, "<0x78>": 1, "y": 2, "<0x79>": 3}
    core = Core(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=core))  # type: ignore[no-untyped-call]
    choice = parts(tokenizer, (0,), call_of(logprobs=4))
    top = ((0, -0.1), (1, -0.2), (2, -1.0), (3, -2.0))
    found = logprobs_of(choice.part(Event("", 0, "x", logprobs=(TokenLogprob(1, -0.2, top),))))
    assert found["tokens"] == ["x"]
    assert found["top_logprobs"] == [{"token_id:0": -0.1, "x": -0.2, "y": -1.0}]


def test_an_impossible_token_has_a_number_that_json_can_write(byte_tokenizer: Tokenizer) -> None:
    token = TokenLogprob(5, -math.inf, ((6, -0.0),))
    found = logprobs_of(
        parts(byte_tokenizer, "a", call_of(logprobs=1)).part(Event("", 0, "x", logprobs=(token,)))
    )
    assert found["token_logprobs"] == [-9999.0]
    assert sorted(found["top_logprobs"][0].values()) == [-9999.0, 0.0]


def test_a_token_has_a_text_whatever_it_is(byte_tokenizer: Tokenizer) -> None:
    assert token_text(byte_tokenizer, EOS_ID) == "<eos>"
    assert token_text(byte_tokenizer, byte_tokenizer.encode(" the", bos=False)[0]) == " the"
    assert token_text(byte_tokenizer, FIRST_BYTE_ID + 0xE4) == "bytes:\\xe4"
    assert token_bytes(byte_tokenizer, FIRST_BYTE_ID + 0xE4) == [0xE4]
    assert token_text(byte_tokenizer, VOCAB_SIZE + 3) == f"token_id:{VOCAB_SIZE + 3}"
    texts = {token_text(byte_tokenizer, token) for token in range(VOCAB_SIZE)}
    assert len(texts) == VOCAB_SIZE


def test_tokens_are_named_by_their_ids_where_that_is_asked_for(byte_tokenizer: Tokenizer) -> None:
    choice = parts(byte_tokenizer, "a", call_of(logprobs=1, names=True))
    found = logprobs_of(choice.part(Event("", 0, "x", logprobs=entries([9]))))
    assert found["tokens"] == ["token_id:9"]
    assert found["top_logprobs"] == [{"token_id:9": -0.5}]


@pytest.mark.parametrize(
    ("matched", "reason"), [("END", "END"), (7, 7), (EOS_ID, None), (None, None)], ids=str
)
def test_the_stop_that_ended_a_choice_is_told(
    byte_tokenizer: Tokenizer, matched: int | str | None, reason: int | str | None
) -> None:
    choice = parts(byte_tokenizer, "a", call_of(stop="END", stop_token_ids=[7]))
    part = choice.part(Event("", 0, finish_reason="stop", matched_stop=matched))
    assert part is not None
    assert (part["finish_reason"], part["stop_reason"]) == ("stop", reason)


def test_a_choice_that_failed_or_was_ended_is_an_error(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestFailed, match="not finite"):
        parts(byte_tokenizer, "a", call_of()).part(
            Event("", 0, finish_reason="error", error="logits are not finite")
        )
    with pytest.raises(Aborted, match="the request was aborted"):
        parts(byte_tokenizer, "a", call_of()).part(Event("", 0, finish_reason="abort"))


def test_usage_counts_a_prompt_once_and_what_was_cached_before_it_came() -> None:
    event = Event("", 0, prompt_tokens=10, cached_tokens=4, completion_tokens=3)
    jobs = [
        [replace(event, completion_tokens=1), event, replace(event, index=1, cached_tokens=9)],
        [replace(event, prompt_tokens=5, cached_tokens=0, finish_reason="stop")],
    ]
    assert usage_of(jobs) == {
        "prompt_tokens": 15,
        "completion_tokens": 9,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    figures = {"prompt_tokens": 15, "cached_tokens": 4, "completion_tokens": 9, "finish_reason": "stop"}
    assert tally_of(jobs).figures() == figures


def test_chunks_tell_of_usage_as_it_was_asked_for() -> None:
    tally = tally_of([])
    assert chunk_usage(StreamOptions(), tally) == {}
    assert chunk_usage(StreamOptions(include_usage=True), tally) == {"usage": None}
    assert chunk_usage(StreamOptions(True, True), tally) == {"usage": tally.usage()}
