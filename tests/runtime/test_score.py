"""Scores of an engine are transformers' own, whatever was cached, and nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import EngineStopped, InvalidRequest
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.score_items import ScoreItem
from radixlm.runtime.types import ItemScore, Request
from testkit.byte_tokenizer import BOS_ID, VOCAB_SIZE, save_byte_tokenizer
from testkit.tiny_model import byte_llama, save_tiny

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OpenEngine = Callable[..., Engine]
CONTINUATIONS = [[50], [60, 61, 62], [50, 71], [80]]


def numbers(count: int, start: int = 0) -> list[int]:
    return [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(start, start + count)]


def greedy(max_tokens: int, **more: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)


def log_softmax(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].double(), dim=-1)


def assert_scores(
    model: PreTrainedModel, score: ItemScore, context: Sequence[int], continuations: Sequence[Sequence[int]]
) -> None:
    assert score.error is None
    for found, tokens in zip(score.continuations, continuations, strict=True):
        rows = log_softmax(model, [*context, *tokens])[len(context) - 1 : -1]
        expected = [rows[i, token].item() for i, token in enumerate(tokens)]
        assert found.token_ids == tuple(tokens)
        assert found.token_logprobs == pytest.approx(expected, abs=1e-4)
        assert found.logprob == pytest.approx(sum(expected), abs=1e-4 * len(tokens))
        assert found.mean_logprob == pytest.approx(found.logprob / len(tokens))
        assert found.is_greedy == (rows.argmax(dim=1).tolist() == list(tokens))
    sums = [found.logprob for found in score.continuations]
    assert score.best == sums.index(max(sums))


@pytest.mark.parametrize("chunk_size", [1, 3, 512])
@pytest.mark.parametrize("page_size", [1, 16])
def test_scores_are_the_models_own_and_need_no_step_the_second_time(
    open_engine: OpenEngine, tiny_llama: Any, page_size: int, chunk_size: int
) -> None:
    engine = open_engine(page_size=page_size, num_pages=256 // page_size, chunk_size=chunk_size)
    context = numbers(37)
    cold = engine.score(context, CONTINUATIONS)
    assert_scores(tiny_llama.model, cold, context, CONTINUATIONS)
    assert (cold.cached_tokens, cold.computed_tokens) == (0, 37 + 7)
    steps = engine.stats().steps
    again = engine.score(context, CONTINUATIONS)
    assert again.continuations == cold.continuations
    assert (again.cached_tokens, again.computed_tokens) == (37, 0)
    assert engine.stats().steps == steps


@pytest.mark.parametrize("page_size", [1, 16])
def test_scores_after_generating_are_the_models_own(
    open_engine: OpenEngine, tiny_llama: Any, page_size: int
) -> None:
    engine, context = open_engine(page_size=page_size, num_pages=256 // page_size), numbers(21)
    [completion] = engine.generate([context], greedy(4))
    continuations = [completion.output_ids[:1], completion.output_ids[:3], [9], completion.output_ids]
    score = engine.score(context, continuations)
    assert_scores(tiny_llama.model, score, context, continuations)
    assert [one.is_greedy for one in score.continuations] == [True, True, False, True]
    assert score.cached_tokens == 21
    steps = engine.stats().steps
    assert engine.score(context, continuations).computed_tokens == 0
    assert engine.stats().steps == steps


def test_a_warm_context_computes_one_query_and_the_tokens_of_the_continuations(
    open_engine: OpenEngine, tiny_llama: Any
) -> None:
    engine, context = open_engine(), numbers(22)
    engine.generate([context], greedy(0))
    score = engine.score(context, CONTINUATIONS)
    assert_scores(tiny_llama.model, score, context, CONTINUATIONS)
    assert (score.cached_tokens, score.computed_tokens) == (22, 1 + 7)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_scores_in_a_pool_that_evicts_are_the_models_own(
    open_engine: OpenEngine, tiny_llama: Any, prefix_cache: bool
) -> None:
    engine = open_engine(num_pages=14, chunk_size=9, prefix_cache=prefix_cache)
    items = [ScoreItem(tuple(numbers(12) + numbers(20, 31 * i)), ((5,), (6, 7), (8,))) for i in range(6)]
    for _ in range(2):
        for item, score in zip(items, engine.score(items), strict=True):
            assert isinstance(item.context, tuple)
            assert_scores(tiny_llama.model, score, item.context, [(5,), (6, 7), (8,)])
    assert engine.stats().evicted_pages > 0 or not prefix_cache


def test_items_that_share_a_context_are_scored_from_one_computation(open_engine: OpenEngine) -> None:
    engine = open_engine(chunk_size=64)
    items = [ScoreItem(tuple(numbers(32)), ((5,), (6,))), ScoreItem(tuple(numbers(32)), ((5,), (6,)))]
    one, other = engine.score(items)
    assert one.continuations == other.continuations
    assert (one.computed_tokens, other.computed_tokens) == (34, 1)


def test_results_come_in_the_order_of_the_items_and_of_their_continuations(open_engine: OpenEngine) -> None:
    engine = open_engine()
    items = [
        ScoreItem((*numbers(8, i % 3), 5 + i), ((9, 9), (8,)), id=f"item {i}" if i % 2 else None)
        for i in range(9)
    ]
    scores = engine.score(items)
    assert [score.id for score in scores] == [f"item {i}" if i % 2 else str(i) for i in range(9)]
    assert all([one.token_ids for one in score.continuations] == [(9, 9), (8,)] for score in scores)
    alone = [open_engine().score(item) for item in items]
    for score, single in zip(scores, alone, strict=True):
        for one, other in zip(score.continuations, single.continuations, strict=True):
            assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)


def test_items_of_different_namespaces_share_nothing(open_engine: OpenEngine) -> None:
    items = [ScoreItem(tuple(numbers(20)), ((5,), (6,)), salt=salt) for salt in ("", "a")]
    assert [score.computed_tokens for score in open_engine().score(items)] == [22, 22]


def test_a_refused_item_says_why_and_the_others_are_scored(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=6)
    items = [
        ScoreItem((5, 6), ((7,), (8,))),
        ScoreItem((5, 6), ((VOCAB_SIZE,), (8,))),
        ScoreItem((5, 6), ((8,), tuple(numbers(30)))),
        ScoreItem((5, 6), ((9,),)),
    ]
    fine, unknown, long, last = engine.score(items)
    assert fine.error is last.error is None
    assert unknown.error == f"token id {VOCAB_SIZE} is not in the vocabulary, ids are 0 to {VOCAB_SIZE - 1}"
    assert "needs room for 32 tokens" in (long.error or "")
    assert (long.continuations, long.best, long.computed_tokens) == ((), None, 0)


def test_what_is_no_item_has_its_error_among_the_results(open_engine: OpenEngine) -> None:
    wrong, fine = open_engine().score([5, ScoreItem("a", ("b",))])  # type: ignore[list-item]
    assert wrong.error == "item 0 must be a ScoreItem, got 5"
    assert fine.error is None


def test_no_items_give_no_scores(open_engine: OpenEngine) -> None:
    assert open_engine().score([]) == []


def test_texts_are_scored_by_the_tokens_the_model_would_read(open_engine: OpenEngine) -> None:
    engine = open_engine()
    score = engine.score("say", [" the", " a", "ing"])
    encode = engine.tokenizer.encode
    assert [one.text for one in score.continuations] == [" the", " a", "ing"]
    for one in score.continuations:
        assert [*encode("say"), *one.token_ids] == encode("say" + one.text)


def test_a_token_over_the_border_belongs_to_the_continuation(
    open_engine: OpenEngine, tiny_llama: Any
) -> None:
    engine = open_engine()
    encode = engine.tokenizer.encode
    score = engine.score("bat", ["he", "x", "hx"])
    merged, plain, half = score.continuations
    assert encode("bathe") == [*encode("ba"), *merged.token_ids]
    assert len(merged.token_ids) == 1
    assert plain.token_ids == tuple(encode("x", bos=False))
    assert half.token_ids == tuple(encode("thx", bos=False))
    assert merged.text == "he"
    for one, context in ((merged, "ba"), (plain, "bat"), (half, "ba")):
        assert_scores(
            tiny_llama.model,
            ItemScore("", (one,), 0, 0),
            encode(context),
            [one.token_ids],
        )


def test_text_after_ids_is_encoded_by_itself(open_engine: OpenEngine) -> None:
    engine = open_engine()
    encode = engine.tokenizer.encode
    score = engine.score(encode("bat"), ["he", encode("he", bos=False)])
    assert [one.token_ids for one in score.continuations] == [tuple(encode("he", bos=False))] * 2
    assert [one.text for one in score.continuations] == ["he", "he"]


@pytest.mark.parametrize("context", ["", ()])
def test_an_empty_context_is_the_token_that_begins_a_text(
    open_engine: OpenEngine, tiny_llama: Any, context: str | tuple[int, ...]
) -> None:
    score = open_engine().score(context, [[50], [60, 61]])
    assert_scores(tiny_llama.model, score, [BOS_ID], [[50], [60, 61]])


def test_without_such_a_token_an_empty_context_is_refused(open_engine: OpenEngine, tmp_path: Path) -> None:
    folder = save_tiny(byte_llama(), tmp_path)
    save_byte_tokenizer(folder, adds_bos=False)
    engine = open_engine(folder)
    assert engine.score("", ["a"]).error is None  # not added to texts, but the model has it
    engine.tokenizer.bos_id = None
    score = engine.score("", ["a"])
    assert "the model has no token that begins a text" in (score.error or "")
    merged = engine.score("t", ["he"])
    assert "the model has no token that begins a text" in (merged.error or "")


def test_a_context_of_one_token_is_enough(open_engine: OpenEngine, tiny_llama: Any) -> None:
    score = open_engine().score([7], [[8], [9, 10]])
    assert_scores(tiny_llama.model, score, [7], [[8], [9, 10]])


def test_equal_continuations_have_equal_scores(open_engine: OpenEngine) -> None:
    one, other = open_engine().score(numbers(9), [[5, 6], [5, 6]]).continuations
    assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)


def test_scoring_needs_an_idle_engine(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.add(Request("r", (5, 6), greedy(3)))
    with pytest.raises(InvalidRequest, match="score needs an idle engine"):
        engine.score("a", ["b"])


def test_a_closed_engine_scores_nothing(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.close()
    with pytest.raises(EngineStopped):
        engine.score("a", ["b"])


def test_progress_counts_items(open_engine: OpenEngine) -> None:
    seen = []
    items = [ScoreItem((5, i), ((7,), (8,))) for i in range(4)]
    open_engine(max_running=2).score(items, on_progress=lambda p: seen.append((p.done, p.total)))
    assert seen[-1] == (4, 4)
    assert seen == sorted(seen)


def test_a_callback_that_raises_ends_the_batch_and_leaves_nothing(open_engine: OpenEngine) -> None:
    engine = open_engine(chunk_size=4)

    def stop(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.score(numbers(20), [[5], [6]], on_progress=stop)
    assert not engine.has_work
    assert engine.score(numbers(20), [[5], [6]]).error is None


def test_logits_that_are_no_numbers_fail_their_item_and_no_other(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    model = byte_llama()
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = torch.nan
    save_byte_tokenizer(save_tiny(model, tmp_path))
    engine = open_engine(tmp_path)
    items = [
        ScoreItem((5, 77), ((6,), (7,))),
        ScoreItem((5, 6), ((7,), (8, 77, 9))),
        ScoreItem((5, 6), ((7,), (8, 9))),
    ]
    context, continuation, fine = engine.score(items)
    assert "logits are not finite" in (context.error or "")
    assert "logits are not finite" in (continuation.error or "")
    assert fine.error is None
    assert engine.score(items)[1].error == continuation.error


def test_stats_count_a_context_once(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.score(numbers(20), [[5], [6, 7]])
    engine.score(numbers(20), [[5], [6, 7]])
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (46, 23, 23)
    assert stats.optimal_hit_rate == 0.0  # each call for itself


def test_continuations_of_a_request_are_scored_beside_other_work(
    open_engine: OpenEngine, tiny_llama: Any
) -> None:
    engine, context = open_engine(), tuple(numbers(10))
    sampling = SamplingParams(max_tokens=0, logprobs=1)
    engine.add(Request("s", context, sampling, continuations=((5,), (6, 7))))
    engine.add(Request("g", context, greedy(3)))
    events = [event for _ in range(20) if engine.has_work for event in engine.step()]
    ends = [(event.request_id, event.index) for event in events if event.finish_reason == "length"]
    assert sorted(ends) == [("g", 0), ("s", -1), ("s", 0), ("s", 1)]
    [found] = [event.prompt_logprobs for event in events if (event.request_id, event.index) == ("s", 1)]
    rows = log_softmax(tiny_llama.model, [*context, 6, 7])[9:-1]
    assert [entry.logprob for entry in found] == pytest.approx(
        [rows[0, 6].item(), rows[1, 7].item()], abs=1e-4
    )


@pytest.mark.parametrize(
    ("prompt", "continuations", "sampling", "message"),
    [
        ((), ((5,),), SamplingParams(max_tokens=0), "the context has no tokens"),
        ((5,), ((5,), ()), SamplingParams(max_tokens=0), "continuation 1 has no tokens"),
        ((5,), ((5,),), SamplingParams(max_tokens=3), "max_tokens 0, n 1 .* got 3, 1 and None"),
    ],
)
def test_a_request_with_continuations_that_makes_no_sense_is_refused(
    open_engine: OpenEngine, prompt: Any, continuations: Any, sampling: SamplingParams, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        open_engine().add(Request("r", prompt, sampling, continuations=continuations))


@pytest.mark.parametrize("own", [False, True])
def test_generate_gives_log_probabilities_of_prompts_from_a_start(
    open_engine: OpenEngine, tiny_llama: Any, own: bool
) -> None:
    engine, prompt = open_engine(), numbers(12)
    given = Prompt(tuple(prompt), sampling=greedy(2)) if own else prompt
    for _ in range(2):
        [completion] = engine.generate([given], greedy(2), prompt_logprobs=4)
        rows = log_softmax(tiny_llama.model, prompt)
        expected = [rows[i - 1, prompt[i]].item() for i in range(4, 12)]
        assert [entry.logprob for entry in completion.prompt_logprobs] == pytest.approx(expected, abs=1e-4)
        assert len(completion.output_ids) == 2
    assert engine.stats().computed_tokens == 12 + 1 + 1 + 1


def test_a_wrong_start_is_refused(open_engine: OpenEngine) -> None:
    with pytest.raises(InvalidRequest, match="prompt_logprobs_start"):
        open_engine().generate("ab", prompt_logprobs=-1)
