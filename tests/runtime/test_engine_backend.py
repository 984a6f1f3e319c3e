"""Programs' calls on an engine of this process: its own answers, carried as ids, aborted when left."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import pytest
import torch

from radixlm.frontend.errors import BackendError, InvalidCall
from radixlm.frontend.protocol import (
    Delta,
    GenerateCall,
    Generated,
    Hint,
    Part,
    Plain,
    Sampling,
    ScoreCall,
    text_of,
)
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.embedded import resolve_model
from radixlm.runtime.engine import Engine
from radixlm.runtime.engine_backend import EngineBackend
from radixlm.runtime.errors import EngineStopped, InvalidConfig, InvalidModel, InvalidRequest
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.score_items import ScoreItem
from radixlm.runtime.sglang_runtime import Runtime
from radixlm.runtime.token_names import token_text
from testkit.byte_tokenizer import BOS_ID

OpenEngine = Callable[..., Engine]
T = TypeVar("T")
PATIENCE = 30
GREEDY = Sampling(max_new_tokens=6, temperature=0.0)
PROMPT = "the cat in the hat"


def run(work: Coroutine[Any, Any, T]) -> T:
    async def within() -> T:
        async with asyncio.timeout(PATIENCE):
            return await work

    return asyncio.run(within())


def ask(backend: EngineBackend, *parts: Part, **options: Any) -> list[Generated]:
    hint = options.pop("hint", Hint())
    return run(backend.generate(GenerateCall(parts, replace(GREEDY, **options), hint)))


def one(backend: EngineBackend, *parts: Part, **options: Any) -> Generated:
    [found] = ask(backend, *parts, **options)
    return found


async def all_of(backend: EngineBackend, call: GenerateCall) -> list[Delta]:
    async with aclosing(backend.stream(call)) as deltas:
        return [delta async for delta in deltas]


@pytest.fixture
def backend(open_engine: OpenEngine) -> EngineBackend:
    return open_engine(num_pages=256).endpoint


# -- answers ---------------------------------------------------------------------------------------


def test_an_answer_is_the_engines_own(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    [expected] = engine.generate(PROMPT, SamplingParams(max_tokens=6, temperature=0.0))
    found = one(engine.endpoint, PROMPT)
    assert (found.text, found.parts) == (expected.text, (expected.output_ids,))
    assert (found.finish_reason, found.completion_tokens) == ("length", 6)
    assert found.prompt_tokens == expected.prompt_tokens
    assert found.cached_tokens > 0
    assert found.held_tokens is None
    assert found.meta["finish_reason"] == {"type": "length", "length": 6}
    assert "output_token_logprobs" not in found.meta


def test_choices_differ_and_repeat_with_a_seed_and_count_the_prompt_once(backend: EngineBackend) -> None:
    found = ask(backend, PROMPT, n=3, temperature=2.0, seed=5)
    assert [each.text for each in found] == [
        e.text for e in ask(backend, PROMPT, n=3, temperature=2.0, seed=5)
    ]
    assert len({each.text for each in found}) == 3
    assert [each.prompt_tokens > 0 for each in found] == [True, False, False]


@pytest.mark.parametrize("stop", ["", "e", " "])
def test_the_next_call_finds_all_but_the_last_token_that_was_generated(
    open_engine: OpenEngine, stop: str
) -> None:
    engine = open_engine(num_pages=256)
    first = one(
        engine.endpoint, PROMPT, max_new_tokens=12, temperature=1.0, seed=1, stop=(stop,) if stop else ()
    )
    ids = [part for part in first.parts if isinstance(part, tuple)]
    carried = len(ids[0]) if ids else 0
    second = one(engine.endpoint, PROMPT, *first.parts, " and then")
    known = first.prompt_tokens + carried
    assert second.cached_tokens >= known - (carried == first.completion_tokens)
    third = one(engine.endpoint, PROMPT, *first.parts, " and then", *second.parts, "!")
    assert third.cached_tokens == second.prompt_tokens + second.completion_tokens - 1


def test_a_prompt_is_only_read_where_nothing_is_asked_for(backend: EngineBackend) -> None:
    read = one(backend, PROMPT, max_new_tokens=0)
    assert (read.text, read.parts, read.finish_reason) == ("", (), "length")
    assert one(backend, PROMPT, " x").cached_tokens >= read.prompt_tokens - 1


def test_log_probabilities_are_sglangs_triples(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    found = one(
        engine.endpoint,
        PROMPT,
        return_logprob=True,
        top_logprobs_num=2,
        logprob_start_len=1,
        return_text_in_logprobs=True,
    )
    [expected] = engine.generate(
        PROMPT, SamplingParams(max_tokens=6, temperature=0.0, logprobs=2, prompt_logprobs_start=1)
    )
    output: Any = found.meta["output_token_logprobs"]
    assert [(value, token) for value, token, _ in output] == [
        (e.logprob, e.token_id) for e in expected.logprobs
    ]
    names = [token_text(engine.tokenizer, token) for _, token, _ in output]
    assert [name for *_, name in output] == names
    inputs: Any = found.meta["input_token_logprobs"]
    assert [value for value, *_ in inputs] == [entry.logprob for entry in expected.prompt_logprobs]
    tops: Any = found.meta["output_top_logprobs"]
    assert [len(top) for top in tops] == [2] * 6
    assert found.meta["output_token_logprobs_length"] == 6


def test_a_stream_joins_to_the_text_and_ends_with_the_whole(backend: EngineBackend) -> None:
    sampling = replace(GREEDY, max_new_tokens=20, temperature=1.0, seed=3, return_logprob=True)
    whole = one(backend, PROMPT, max_new_tokens=20, temperature=1.0, seed=3, return_logprob=True)
    deltas = run(all_of(backend, GenerateCall((PROMPT,), sampling)))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [delta.done is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]
    done = deltas[-1].done
    assert done is not None
    assert (done.text, done.parts) == (whole.text, whole.parts)
    counts = [delta.meta["completion_tokens"] for delta in deltas]
    assert counts == sorted(counts)  # type: ignore[type-var]
    lists: list[Any] = [delta.meta["output_token_logprobs"] for delta in deltas]
    assert all(after[: len(before)] == before for before, after in pairwise(lists))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"max_new_tokens": -1}, "max_tokens"),
        ({"min_new_tokens": 9}, "min_tokens"),
        ({"top_p": 2.0}, "top_p"),
        ({"regex": "a", "json_schema": "{}"}, "regex"),
        ({"json_schema": "no json"}, "json_schema"),
        ({"regex": "("}, "regex"),
        ({"return_logprob": True, "logprob_start_len": 999}, "prompt_logprobs_start"),
        ({"hint": Hint(hold_s=-1.0)}, "hold_s"),
        ({"hint": Hint(program_id="x" * 201)}, "program_id"),
    ],
)
def test_bad_values_are_refused_and_nothing_else_is_harmed(
    backend: EngineBackend, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidCall, match=reason):
        ask(backend, PROMPT, **options)
    assert one(backend, PROMPT).completion_tokens == 6


def test_a_prompt_that_can_never_fit_and_a_stream_of_several_are_refused(backend: EngineBackend) -> None:
    with pytest.raises(InvalidCall, match="token"):
        one(backend, "x" * 400)
    with pytest.raises(InvalidCall, match="stream"):
        run(all_of(backend, GenerateCall((PROMPT,), replace(GREEDY, n=2))))
    with pytest.raises(InvalidCall, match="choices"):
        run(backend.score(ScoreCall((PROMPT,), ())))
    with pytest.raises(InvalidCall, match="choice 1"):
        run(backend.score(ScoreCall((PROMPT,), ("a", ""))))


# -- scores ----------------------------------------------------------------------------------------


def expected_logprobs(model: Any, context: tuple[int, ...], ids: tuple[int, ...]) -> list[float]:
    with torch.inference_mode():
        rows = torch.log_softmax(model(torch.tensor([[*context, *ids]])).logits[0].double(), dim=-1)
    return [rows[len(context) - 1 + i, token].item() for i, token in enumerate(ids)]


@pytest.mark.parametrize(
    ("parts", "choices"),
    [
        ((PROMPT,), (" a", " the", "in")),
        (("a cat in t",), ("he", "o", "ha")),
        (("t",), ("he", "o")),
        ((), ("the", "in")),
        (("the", (70, 71)), ("the", "in the")),
        (("x ", Plain("<eos>t")), ("he",)),
    ],
)
def test_scores_are_the_models_own_also_where_prompt_and_choice_merge(
    open_engine: OpenEngine, tiny_llama: Any, parts: tuple[Part, ...], choices: tuple[str, ...]
) -> None:
    engine = open_engine(num_pages=256)
    found = run(engine.endpoint.score(ScoreCall(parts, choices, unconditional=True)))
    for choice, score in zip(choices, found.choices, strict=True):
        prompt = engine.endpoint._encoder.ids((*parts, choice))
        context = prompt[: len(prompt) - len(score.token_ids)] or (BOS_ID,)
        assert context[-len(prompt) :] + score.token_ids in (prompt, (BOS_ID, *prompt))
        assert found.prompt_tokens == len(context)
        assert score.logprobs == pytest.approx(
            expected_logprobs(tiny_llama.model, context, score.token_ids), abs=1e-4
        )
        alone = expected_logprobs(tiny_llama.model, (BOS_ID,), score.token_ids)
        assert score.unconditional == pytest.approx(alone, abs=1e-4)


def test_scores_equal_those_of_the_engine(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    [whole] = engine.score([ScoreItem("a cat in t", ("o",))])
    found = run(engine.endpoint.score(ScoreCall(("a cat in t",), ("o",))))
    assert found.choices[0].token_ids == whole.continuations[0].token_ids
    assert found.choices[0].logprobs == pytest.approx(whole.continuations[0].token_logprobs, abs=1e-4)
    assert found.choices[0].unconditional == ()
    again = run(engine.endpoint.score(ScoreCall(("a cat in t",), ("o",))))
    assert again.choices == found.choices
    assert again.computed_tokens == 0


# -- cancelling, ending ----------------------------------------------------------------------------


def works(engine: Engine) -> bool:
    """Asked between two steps. What it leaves behind is checked when a test is over."""
    return engine.endpoint.call(lambda: engine.has_work)


async def begun(engine: Engine) -> None:
    while not await asyncio.to_thread(works, engine):
        pass


async def idle(engine: Engine) -> int:
    """Steps until there is no work."""
    steps = engine.stats().steps
    while await asyncio.to_thread(works, engine):
        pass
    assert engine.endpoint.call(lambda: engine.cache.leased_pages) == 0
    return engine.stats().steps - steps


@pytest.mark.parametrize("n", [1, 3])
def test_a_cancelled_call_frees_its_pages(open_engine: OpenEngine, n: int) -> None:
    engine = open_engine(num_pages=256)

    async def work() -> None:
        sampling = Sampling(max_new_tokens=200, ignore_eos=True, n=n)
        call = asyncio.ensure_future(engine.endpoint.generate(GenerateCall((PROMPT,), sampling)))
        await begun(engine)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await idle(engine) <= 4
        assert (await engine.endpoint.generate(GenerateCall((PROMPT,), GREEDY)))[0].completion_tokens == 6

    run(work())


def test_a_call_that_is_cancelled_before_it_is_accepted_does_not_run(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    go_on = threading.Event()

    async def work() -> None:
        engine.endpoint._thread.call(go_on.wait)
        sampling = Sampling(max_new_tokens=200, ignore_eos=True)
        call = asyncio.ensure_future(engine.endpoint.generate(GenerateCall((PROMPT,), sampling)))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        await idle(engine)

    run(work())
    assert engine.stats().generated_tokens == 0


def test_a_stream_that_is_left_frees_its_pages(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)

    async def work() -> None:
        sampling = Sampling(max_new_tokens=200, ignore_eos=True)
        async with aclosing(engine.endpoint.stream(GenerateCall((PROMPT,), sampling))) as deltas:
            async for _ in deltas:
                break
        assert await idle(engine) <= 4

    run(work())


def test_a_score_that_is_cancelled_frees_its_pages(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256, chunk_size=1)

    async def work() -> None:
        call = ScoreCall((PROMPT * 5,), ("a" * 60, "b" * 60))
        task = asyncio.ensure_future(engine.endpoint.score(call))
        await begun(engine)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(engine)

    run(work())


def test_a_program_that_is_cancelled_has_its_call_aborted(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)

    async def work() -> list[Generated]:
        sampling = Sampling(max_new_tokens=200, ignore_eos=True)
        call = GenerateCall((PROMPT,), sampling, Hint("branch"))
        task = asyncio.ensure_future(engine.endpoint.generate(call))
        await begun(engine)
        engine.endpoint.end(["branch", "unknown"], "cancelled")
        return await task

    [found] = run(work())
    assert found.finish_reason == "abort"
    assert found.completion_tokens < 200


def test_a_hold_is_told(backend: EngineBackend) -> None:
    held = one(backend, PROMPT, hint=Hint("a", hold_s=60.0))
    assert held.held_tokens is not None
    assert held.held_tokens > 0
    assert held.meta["held_tokens"] == held.held_tokens
    backend.end(["a"], "released")
    run(backend.flush())
    assert one(backend, PROMPT).cached_tokens == 0


def test_the_cache_is_flushed_when_nothing_runs(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)

    async def work() -> None:
        sampling = Sampling(max_new_tokens=200, ignore_eos=True)
        task = asyncio.ensure_future(engine.endpoint.generate(GenerateCall((PROMPT,), sampling)))
        await begun(engine)
        with pytest.raises(InvalidCall, match="nothing runs"):
            await engine.endpoint.flush()
        task.cancel()
        await idle(engine)
        await asyncio.sleep(0)
        await engine.endpoint.flush()

    run(work())
    assert one(engine.endpoint, PROMPT).cached_tokens == 0


# -- beside it -------------------------------------------------------------------------------------


def test_frames_and_contents_joined_are_what_the_template_writes(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    roles = ("system", "user", "assistant", "user", "assistant")
    text = ""
    for count in range(1, len(roles) + 1):
        frame = run(engine.endpoint.frame(roles[:count]))
        text += f"{frame.before}c{count}{frame.after}"
    messages = [{"role": role, "content": f"c{count}"} for count, role in enumerate(roles, 1)]
    assert text == engine.tokenizer.render_chat(messages, False)
    with pytest.raises(InvalidCall, match="not supported"):
        run(engine.endpoint.frame(("judge",)))


def test_info_tells_what_was_found_and_what_could_have_been(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    backend = engine.endpoint
    before = run(backend.info())
    assert before["runtime"] == "radixlm"
    assert (before["prompt_tokens"], before["optimal_tokens"]) == (0, 0)
    first = one(backend, PROMPT)
    second = one(backend, PROMPT, *first.parts, " on")
    run(backend.score(ScoreCall((PROMPT,), (" a", " in"))))
    info = run(backend.info())
    assert info["generated_tokens"] == 12
    shared = first.prompt_tokens + first.completion_tokens - 1
    assert info["prompt_tokens"] == first.prompt_tokens * 2 + second.prompt_tokens
    assert info["optimal_tokens"] == shared + first.prompt_tokens
    assert info["cached_tokens"] == info["optimal_tokens"]
    run(backend.flush())
    one(backend, PROMPT)
    info = run(backend.info())
    assert info["optimal_tokens"] == shared + 2 * first.prompt_tokens
    assert info["cached_tokens"] == shared + first.prompt_tokens


def test_other_threads_may_use_the_engine_while_programs_have_it(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    [expected] = engine.generate(PROMPT, SamplingParams(max_tokens=6, temperature=0.0))
    backend = engine.endpoint
    assert engine.endpoint is backend
    [found] = engine.generate(Prompt(PROMPT), SamplingParams(max_tokens=6, temperature=0.0))
    assert found.output_ids == expected.output_ids
    assert engine.score("in", ["the"]).error is None
    assert one(backend, PROMPT).text == expected.text
    assert engine.stats().generated_tokens == 18
    assert engine.flush() > 0
    with pytest.raises(InvalidRequest):
        engine.generate({"nothing": 1}, SamplingParams())


def test_an_engine_that_is_closed_ends_what_programs_wait_for(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)

    async def work() -> None:
        sampling = Sampling(max_new_tokens=200, ignore_eos=True)
        task = asyncio.ensure_future(engine.endpoint.generate(GenerateCall((PROMPT,), sampling)))
        await begun(engine)
        await asyncio.to_thread(engine.close)
        with pytest.raises(BackendError, match="stopped"):
            await task
        with pytest.raises(BackendError, match="stopped"):
            await engine.endpoint.generate(GenerateCall((PROMPT,), GREEDY))
        engine.endpoint.end(["x"], "done")
        await engine.endpoint.close()

    run(work())
    with pytest.raises(EngineStopped):
        engine.generate(PROMPT)
    with pytest.raises(EngineStopped):
        _ = closed(open_engine).endpoint


def closed(open_engine: OpenEngine) -> Engine:
    engine = open_engine()
    engine.close()
    return engine


def test_many_calls_at_once_are_each_answered(backend: EngineBackend) -> None:
    async def work() -> list[list[Generated]]:
        sampling = replace(GREEDY, ignore_eos=True)
        calls = [GenerateCall((PROMPT, f" {i}"), sampling) for i in range(40)]
        return await asyncio.gather(*map(backend.generate, calls))

    found = run(work())
    assert [[each.completion_tokens for each in answer] for answer in found] == [[6]] * 40


# -- SGLang's name ---------------------------------------------------------------------------------


@pytest.fixture
def runtime(tiny_llama: Any) -> Iterator[Runtime]:
    with Runtime(
        str(tiny_llama.folder), page_size=4, num_pages=128, chunked_prefill_size=64, schedule_policy="lpm"
    ) as found:
        yield found


def test_a_runtime_answers_by_sglangs_names(runtime: Runtime) -> None:
    found = json.loads(runtime.generate(PROMPT, {"max_new_tokens": 4, "temperature": 0}, return_logprob=True))
    assert (len(found["output_ids"]), len(found["meta_info"]["output_token_logprobs"])) == (4, 4)
    assert found["text"] == one(runtime.endpoint, PROMPT, max_new_tokens=4).text
    assert len(json.loads(runtime.generate([PROMPT, "x"], {"n": 2, "max_new_tokens": 1}))) == 4
    assert runtime.get_server_info()["chunk_size"] == 64
    assert runtime.get_tokenizer().bos_token_id == BOS_ID
    runtime.flush_cache()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mem_fraction_static": 0.8}, "kv_memory"),
        ({"tp_size": 2}, "not split"),
        ({"unheard_of": 1}, "no meaning here"),
        ({"schedule_policy": "random"}, "lpm"),
        ({"seed": 1, "random_seed": 2}, "seed"),
        ({"disable_radix_cache": 1}, "true or false"),
        ({"model": "other"}, "model_path and model"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        Runtime("nowhere", **options)


# -- the real model --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[Engine]:
    try:
        resolve_model("smollm2-135m", with_weights=True)
    except InvalidModel:
        pytest.skip("the embedded model is not installed")
    with Engine(config=EngineConfig(num_pages=128)) as engine:
        yield engine


def test_a_conversation_of_the_real_model_computes_what_is_new_and_nothing_else(real: Engine) -> None:
    backend = real.endpoint
    roles: tuple[str, ...] = ()
    parts: list[Part] = []
    known = 0
    for question in ("What is the capital of France?", "And of Italy? 😀", "漢字 <|im_end|> what?"):
        roles += ("user",)
        frame = run(backend.frame(roles))
        parts += [frame.before, Plain(question), frame.after]
        roles += ("assistant",)
        frame = run(backend.frame(roles))
        answer = one(backend, *parts, frame.before, max_new_tokens=12)
        assert answer.cached_tokens >= known
        carried = sum(len(part) for part in answer.parts if isinstance(part, tuple))
        known = answer.prompt_tokens + carried - (answer.finish_reason == "length")
        parts += [frame.before, *answer.parts, frame.after]
    assert (
        sum(part.count("<|im_end|>") for part in parts if isinstance(part, str)) == 7
    )  # one is the system's
    assert text_of(parts).startswith("<|im_start|>system\n")


def test_the_real_model_prefers_the_right_choice_at_a_border_that_merges(real: Engine) -> None:
    found = run(
        real.endpoint.score(ScoreCall(("The capital of France is",), (" Paris", " Rome", " a potato")))
    )
    sums = [sum(score.logprobs) for score in found.choices]
    assert sums.index(max(sums)) == 0
    whole = real.score("The capital of France is", [" Paris", " Rome", " a potato"])
    assert sums == pytest.approx([each.logprob for each in whole.continuations], abs=1e-4)
    merged = run(real.endpoint.score(ScoreCall(("The capital of France is P",), ("aris", "rague", "!"))))
    assert real.tokenizer.decode(merged.choices[0].token_ids) == " Paris"
    direct = real.score("The capital of France is", [" Paris", " Prague"])
    for score, expected in zip(merged.choices, direct.continuations, strict=False):
        assert score.token_ids == expected.token_ids
        assert score.logprobs == pytest.approx(expected.token_logprobs, abs=1e-4)
