"""When something goes wrong in a step: who hears of it, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm.runtime.engine import Engine
from radixlm.runtime.outcomes import NO_TOKEN
from radixlm.runtime.progress import EngineProgress
from radixlm.runtime.prompts import PromptInput
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request
from testkit.byte_tokenizer import VOCAB_SIZE, save_byte_tokenizer
from testkit.soak import check_pages
from testkit.tiny_model import byte_llama, save_tiny

OpenEngine = Callable[..., Engine]
POISON = 77
"""A token whose embedding is NaN in the poisoned model: whatever comes after it is NaN."""


def greedy(max_tokens: int = 6, **more: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **more})


def numbers(count: int, start: int = 0) -> list[int]:
    """Token ids without the poisonous one."""
    ids = [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(start, start + 2 * count)]
    return [token for token in ids if token != POISON][:count]


def raise_once(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: BaseException, after: int = 0) -> None:
    """Let the model's forward raise, once, after `after` calls that work."""
    forward, calls = engine._model.forward, iter(range(after + 1))

    def failing(*arguments: Any) -> torch.Tensor:  # Any: passed on as they come
        if next(calls, None) == after:
            raise error
        return forward(*arguments)

    monkeypatch.setattr(engine._model, "forward", failing)


def run_out(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        check_pages(engine)
    return events


def ends(events: list[Event]) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in events:
        if event.finish_reason is not None:
            assert event.request_id not in found, "one terminal event each"
            found[event.request_id] = event.finish_reason
    return found


# -- a step that raises ----------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_step_that_raises_ends_those_in_it_and_no_other(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    engine = open_engine(chunk_size=8, max_running=2)
    for i in range(4):
        engine.add(Request(f"r{i}", tuple(numbers(10, 30 * i)), greedy(4)))
    raise_once(engine, monkeypatch, RuntimeError("no more memory"), after)
    events = run_out(engine)
    found = ends(events)
    assert len(found) == 4
    failed = [name for name, reason in found.items() if reason == "error"]
    assert 1 <= len(failed) <= 2
    errors = {event.error for event in events if event.finish_reason == "error"}
    assert errors == {"the step failed: RuntimeError: no more memory"}


def test_nothing_of_a_step_that_raised_is_found_again(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    wanted = open_engine().generate([numbers(10)], greedy())
    raise_once(engine, monkeypatch, RuntimeError("broken"))
    [failed] = engine.generate([numbers(10)], greedy())
    assert failed.error == "the step failed: RuntimeError: broken"
    assert engine.cache.free_pages == engine.cache.num_pages
    [again] = engine.generate([numbers(10)], greedy())
    assert (again.cached_tokens, again.output_ids) == (0, wanted[0].output_ids)


def test_what_an_earlier_step_published_outlives_one_that_raises(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    wanted = engine.generate([numbers(10)], greedy())
    raise_once(engine, monkeypatch, RuntimeError("broken"))
    # It leaves the cached prompt inside a page, so the step that raises has a page to copy.
    [failed] = engine.generate([numbers(7) + numbers(5, 90)], greedy())
    assert (failed.finish_reason, failed.cached_tokens) == ("error", 7)
    [again] = engine.generate([numbers(10)], greedy())
    assert (again.cached_tokens, again.output_ids) == (10, wanted[0].output_ids)


def test_a_request_aborted_in_a_step_that_raises_is_aborted(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    forward = engine._model.forward

    def abort_and_fail(*arguments: Any) -> torch.Tensor:
        monkeypatch.setattr(engine._model, "forward", forward)
        engine.abort("r")
        raise RuntimeError("broken")

    monkeypatch.setattr(engine._model, "forward", abort_and_fail)
    engine.add(Request("r", tuple(numbers(10)), greedy()))
    engine.add(Request("s", tuple(numbers(10, 50)), greedy()))
    assert ends(run_out(engine)) == {"r": "abort", "s": "error"}


# -- interruptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 4])
def test_an_interrupted_batch_leaves_nothing_behind(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    engine = open_engine(max_running=2, chunk_size=8)
    raise_once(engine, monkeypatch, KeyboardInterrupt(), after)
    prompts: list[PromptInput] = [numbers(10, 30 * i) for i in range(5)]
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, greedy(n=2))
    assert not engine.has_work
    assert engine.cache.leased_pages == 0
    engine.cache.check()
    assert [len(c.output_ids) for c in engine.generate(prompts, greedy())] == [6] * 5


def test_a_batch_interrupted_while_it_is_read_leaves_nothing_behind(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    encode = engine.tokenizer.encode

    def interrupted(text: str) -> list[int]:
        if text == "third":
            raise KeyboardInterrupt
        return encode(text)

    monkeypatch.setattr(engine.tokenizer, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["first", "second", "third"], greedy())
    assert not engine.has_work
    assert engine.stats().steps == 0


def test_a_callback_that_raises_ends_its_batch_only(open_engine: OpenEngine) -> None:
    engine = open_engine()

    def stop(progress: EngineProgress) -> None:
        engine.add(Request("other", tuple(numbers(5)), greedy(9)))
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        engine.generate(["ab", "cd"], greedy(), on_progress=stop)
    assert ends(run_out(engine)) == {"other": "length"}


# -- logits that are no numbers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model of the other tests, but the embedding of POISON is NaN."""
    model = byte_llama()
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    folder = save_tiny(model, tmp_path_factory.mktemp("poisoned"))
    save_byte_tokenizer(folder)
    return folder


def test_only_the_request_with_logits_that_are_no_numbers_fails(
    open_engine: OpenEngine, poisoned: Path
) -> None:
    prompts: list[PromptInput] = [numbers(10), [*numbers(9), POISON], numbers(6)]
    wanted = open_engine().generate(prompts, greedy(logit_bias=((POISON, -100.0),)))
    found = open_engine(poisoned).generate(prompts, greedy(logit_bias=((POISON, -100.0),)))
    assert found[1].finish_reason == "error"
    assert found[1].error == NO_TOKEN
    assert found[1].output_ids == ()
    assert [found[i].output_ids for i in (0, 2)] == [wanted[i].output_ids for i in (0, 2)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_pages_full_of_what_is_no_number_are_fit_for_others(
    open_engine: OpenEngine, poisoned: Path, page_size: int, dtype: str
) -> None:
    """Nothing reads a slot that its own request, or an owner of the same prefix, has not written."""
    options = {"page_size": page_size, "num_pages": 96 // page_size, "dtype": dtype}
    prompts: list[PromptInput] = [numbers(3 + 11 * i, 40 * i) for i in range(4)] + [numbers(9)]
    sampling = greedy(7, logit_bias=((POISON, -100.0),))
    wanted = open_engine(**options).generate(prompts, sampling)
    engine = open_engine(poisoned, **options)
    [failed] = engine.generate([[POISON, *numbers(94)]], sampling)
    assert failed.finish_reason == "error"
    engine.flush()
    found = engine.generate(prompts, sampling)
    assert [c.output_ids for c in found] == [c.output_ids for c in wanted]


def test_when_all_that_could_be_chosen_is_forbidden_the_request_fails(open_engine: OpenEngine) -> None:
    engine = open_engine()
    everything = tuple(range(VOCAB_SIZE))
    [failed] = engine.generate("ab", greedy(min_tokens=2, stop_token_ids=everything))
    assert failed.finish_reason == "error"
    assert engine.generate("ab", greedy())[0].error is None


def test_a_stop_pattern_that_takes_too_long_fails_its_request_only(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlm.runtime.stops.SLOW_SEARCH", 0.0)
    monkeypatch.setattr("radixlm.runtime.stops.REGEX_SECONDS", 0.0)
    slow = greedy(20, stop_regex=("never there",), temperature=1.0, seed=1)
    failed, fine = open_engine().generate(["ab", "ab"], [slow, greedy(20)])
    assert failed.finish_reason == "error"
    assert failed.error is not None
    assert "stop_regex 'never there' took over" in failed.error
    assert fine.finish_reason == "length"
