"""What the engine finds again: turns of a chat, namespaces, forks inside a page, and log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request, TokenLogprob
from testkit.byte_tokenizer import BOS_ID, VOCAB_SIZE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OpenEngine = Callable[..., Engine]


def greedy(max_tokens: int = 6, **more: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **more})


def numbers(count: int, start: int = 0) -> list[int]:
    return [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(start, start + count)]


def ask(engine: Engine, prompt: Sequence[int], **more: Any) -> int:
    """How many tokens of the prompt are found."""
    engine.add(Request("ask", tuple(prompt), greedy(1), **more))
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    return events[-1].cached_tokens


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_the_next_turn_finds_prompt_and_answer_but_for_the_last_token(
    open_engine: OpenEngine, page_size: int
) -> None:
    engine = open_engine(page_size=page_size)
    prompt = numbers(30)
    for turn in range(3):
        [completion] = engine.generate([prompt], greedy(7))
        assert completion.cached_tokens == (len(prompt) - 5 - 1 if turn else 0)
        prompt = [*prompt, *completion.output_ids, *numbers(5, 60 + 10 * turn)]


@pytest.mark.parametrize("common", [1, 3, 4, 5, 8, 19])
def test_a_prompt_that_leaves_another_inside_a_page_finds_all_they_have_in_common(
    open_engine: OpenEngine, common: int
) -> None:
    engine = open_engine()
    assert ask(engine, numbers(20)) == 0
    assert ask(engine, numbers(20)[:common] + [BOS_ID] * 6) == common


def test_a_prompt_that_is_known_whole_is_found_whole(open_engine: OpenEngine) -> None:
    engine = open_engine()
    for prompt in (numbers(8), numbers(9), numbers(1)):
        engine.generate([prompt], greedy(1))
        assert ask(engine, prompt) == len(prompt)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"salt": "a", "adapter": "bc"}, {"salt": "ab", "adapter": "c"}),
        ({"salt": "x"}, {"adapter": "x"}),
        ({"salt": "x"}, {}),
        ({"adapter": "x"}, {}),
    ],
)
def test_prompts_of_different_namespaces_share_nothing_those_of_equal_ones_all(
    open_engine: OpenEngine, one: dict[str, str], other: dict[str, str]
) -> None:
    engine = open_engine()
    found = [ask(engine, numbers(20), **namespace) for namespace in (one, other, one, other)]
    assert found == [0, 0, 20, 20]


def test_prompts_of_one_batch_share_by_salt(open_engine: OpenEngine) -> None:
    ids = tuple(numbers(20))
    prompts = [Prompt(ids, salt=salt) for salt in ("a", "b", "a", "")]
    completions = open_engine().generate(prompts, greedy(3))
    assert [completion.cached_tokens for completion in completions] == [0, 0, 20, 0]
    assert len({completion.output_ids for completion in completions}) == 1


def test_without_a_prefix_cache_nothing_is_found_or_kept(open_engine: OpenEngine) -> None:
    engine = open_engine(prefix_cache=False)
    assert [ask(engine, numbers(20)) for _ in range(2)] == [0, 0]
    assert engine.cache.free_pages == engine.cache.num_pages


# -- log-probabilities -----------------------------------------------------------------------------


def expected(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Row i: log-softmax of what follows tokens[:i + 1], by transformers."""
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)])).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


def assert_agrees(found: Sequence[TokenLogprob], tokens: Sequence[int], rows: torch.Tensor, top: int) -> None:
    """found[i] is of tokens[i] under rows[i]."""
    assert [entry.token_id for entry in found] == list(tokens)
    for entry, row in zip(found, rows, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        best = row.topk(top).values.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best, abs=1e-4)
        assert all(value == pytest.approx(float(row[token]), abs=1e-4) for token, value in entry.top)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_log_probabilities_of_the_output_are_the_models_own(
    open_engine: OpenEngine, tiny_llama: Any, temperature: float
) -> None:
    prompt = numbers(11)
    sampling = greedy(8, logprobs=3, temperature=temperature, seed=1, logit_bias=((7, 2.0),))
    [completion] = open_engine().generate([prompt], sampling)
    rows = expected(tiny_llama.model, [*prompt, *completion.output_ids])[10:-1]
    assert_agrees(completion.logprobs, completion.output_ids, rows, 3)


def test_none_are_reported_unless_asked_for(open_engine: OpenEngine) -> None:
    engine = open_engine()
    [without], [with_own] = engine.generate("ab", greedy()), engine.generate("ab", greedy(logprobs=0))
    assert without.logprobs == ()
    assert without.prompt_logprobs == ()
    assert [entry.top for entry in with_own.logprobs] == [()] * 6


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("chunk_size", [3, 512])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("start", [0, 1, 7, 16, 20, 21])
def test_log_probabilities_of_a_prompt_are_the_models_own_from_any_start(
    open_engine: OpenEngine, tiny_llama: Any, start: int, max_tokens: int, chunk_size: int, warm: bool
) -> None:
    engine, prompt = open_engine(chunk_size=chunk_size), numbers(21)
    if warm:
        engine.generate([prompt[:18]], greedy(1))
    sampling = greedy(max_tokens, prompt_logprobs_start=start, logprobs=2)
    [completion] = engine.generate([prompt], sampling)
    found = completion.prompt_logprobs
    if start == 0:
        assert (found[0].token_id, found[0].logprob, found[0].top) == (prompt[0], None, ())
        found = found[1:]
    first = max(start, 1)
    assert_agrees(found, prompt[first:], expected(tiny_llama.model, prompt)[first - 1 : -1], 2)
    assert completion.cached_tokens == (18 if warm else 0)
    assert len(completion.output_ids) == max_tokens


def test_log_probabilities_of_a_prompt_are_bit_equal_cold_warm_and_among_others(
    open_engine: OpenEngine,
) -> None:
    engine, prompt = open_engine(), numbers(33)
    sampling = greedy(2, prompt_logprobs_start=5, logprobs=2)
    cold, *_ = engine.generate([prompt], sampling)
    warm, *_ = engine.generate([prompt], sampling)
    mates = [numbers(20), prompt[:10] + numbers(9, 80), prompt]
    *_, among = open_engine(chunk_size=16).generate(mates, sampling)
    assert cold.cached_tokens == 0
    assert warm.cached_tokens == 33
    assert cold.prompt_logprobs == warm.prompt_logprobs == among.prompt_logprobs
    assert cold.logprobs == warm.logprobs == among.logprobs


def test_they_come_once_and_in_order_through_preemption(open_engine: OpenEngine, tiny_llama: Any) -> None:
    engine = open_engine(num_pages=20, chunk_size=5)
    prompts = [numbers(24), numbers(24, 100)]
    completions = engine.generate(prompts, greedy(20, prompt_logprobs_start=0, logprobs=1))
    assert engine.stats().preemptions > 0
    for prompt, completion in zip(prompts, completions, strict=True):
        tokens = [*prompt, *completion.output_ids]
        rows = expected(tiny_llama.model, tokens)
        assert_agrees(completion.prompt_logprobs[1:], prompt[1:], rows[:23], 1)
        assert_agrees(completion.logprobs, completion.output_ids, rows[23:-1], 1)


def test_every_choice_has_those_of_the_prompt(open_engine: OpenEngine) -> None:
    one, other = open_engine().generate([numbers(9)], greedy(1, n=2, prompt_logprobs_start=0))
    assert one.prompt_logprobs == other.prompt_logprobs
    assert len(one.prompt_logprobs) == 9


def test_the_prompt_of_one_token_has_one_entry_without_a_value(open_engine: OpenEngine) -> None:
    [completion] = open_engine().generate([[5]], greedy(0, prompt_logprobs_start=0))
    assert completion.prompt_logprobs == (TokenLogprob(5, None),)
    assert all(entry.logprob is None or math.isfinite(entry.logprob) for entry in completion.prompt_logprobs)


def test_a_start_beyond_the_prompt_is_refused(open_engine: OpenEngine) -> None:
    sampling = greedy(1, prompt_logprobs_start=4)
    with pytest.raises(InvalidRequest, match="must be at most the 3 tokens of the prompt, got 4"):
        open_engine().add(Request("r", (5, 6, 7), sampling))


def test_keys_that_rows_share_are_read_once_and_counted(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=4096)
    stem = numbers(200)
    engine.generate([stem], greedy(1))
    before = engine.stats()
    engine.generate([stem + [50 + i] * 4 for i in range(8)], greedy(2))
    after = engine.stats()
    read, tiles, unshared = (
        getattr(after, name) - getattr(before, name)
        for name in ("kv_read_bytes", "kv_tile_bytes", "kv_unshared_bytes")
    )
    a_token = engine.info().kv_bytes // (after.num_pages * after.page_size)
    # Two steps of eight rows: 204 and 205 tokens each, of which 192 are read once for all.
    assert unshared == 8 * (204 + 205) * a_token
    assert read == (2 * 192 + 8 * (12 + 13)) * a_token
    assert read <= tiles < unshared


def test_segments_their_queries_and_the_pages_that_sharing_saves_are_counted(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=4096, page_size=16)
    stem = numbers(200)
    engine.generate([stem], greedy(1))
    before = engine.stats()
    for i in range(8):
        engine.add(Request(f"{i}", (*stem, 50 + i, 60, 70), greedy(3)))
    engine.step()
    during = engine.stats()
    segments = during.attention_segments - before.attention_segments
    queries = during.segment_queries - before.segment_queries
    # What all share is one segment, and each row has one of its own: every query, 3 a row, is in two of them.
    assert (segments, queries) == (1 + 8, 2 * 8 * 3)
    assert (during.running, during.waiting) == (8, 0)
    assert during.saved_pages == 7 * (200 // 16)
    while engine.has_work:
        engine.step()
    after = engine.stats()
    assert (after.running, after.saved_pages) == (0, 0)
    assert after.free_pages + after.evictable_pages == after.num_pages


def test_how_long_a_sequence_waited_is_told_once_its_first_step_has_begun(open_engine: OpenEngine) -> None:
    engine = open_engine(max_running=1)
    for name in ("first", "second", "never"):
        engine.add(Request(name, tuple(numbers(8)), greedy(4)))
    events = engine.step()
    engine.abort("never")
    while engine.has_work:
        events += engine.step()
    waits = {event.request_id: event.waited_s for event in events}
    assert waits.pop("never") is None
    assert 0 < (waits["first"] or 0) < (waits["second"] or 0)
    assert len({event.waited_s for event in events if event.request_id == "first"}) == 1
