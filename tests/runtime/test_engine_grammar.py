"""Requests with grammars through the engine: what comes out, who is not affected, and every way to end."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.spec import GrammarSpec
from radixlm.runtime.guide import Guide
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Completion, Event, Hint, Request
from radixlm.runtime.worker import EngineThread
from testkit.byte_tokenizer import EOS_ID
from testkit.text_grammar import Texts

OpenEngine = Callable[..., Engine]
PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["the thin", "a thing"]}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def params(**fields: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(**{"max_tokens": 90, "temperature": 0.0, **fields})


def run_out(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    return events


@contextmanager
def no_forced_tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(Guide, "forced", lambda *_, **__: [])
        yield


@contextmanager
def compiled_as(monkeypatch: pytest.MonkeyPatch, compiled: CompiledGrammar | None) -> Iterator[Future[Any]]:
    """Whatever is asked for, this is what is compiled, or nothing until the future is set."""
    future: Future[Any] = Future()
    if compiled is not None:
        future.set_result(compiled)
    with monkeypatch.context() as patch:
        patch.setattr("radixlm.runtime.guides.Guides.compile", lambda _self, _spec: future)
        yield future


# -- texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_texts_are_what_the_schema_asks_for(
    open_engine: OpenEngine, compact: bool, temperature: float
) -> None:
    engine = open_engine(num_pages=256)
    asked = [params(json_schema=PERSON, compact=compact, temperature=temperature, seed=i) for i in range(6)]
    for completion in engine.generate(["the air", "a thing"] * 3, asked):
        assert completion.finish_reason == "stop", completion
        jsonschema.validate(json.loads(completion.text), PERSON)
        assert compact == (completion.text == json.dumps(json.loads(completion.text), separators=(",", ":")))


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"regex": "(the|a) thin[g]?"}, {"the thin", "the thing", "a thin", "a thing"}),
        ({"choice": ["the", "thin", "a thing"]}, {"the", "thin", "a thing"}),
        ({"grammar": 'start: "the " ("thin" | "air")'}, {"the thin", "the air"}),
        ({"grammar": 'root ::= "the " ("thin" | "air")'}, {"the thin", "the air"}),
        ({"regex": "the"}, {"the"}),
    ],
)
def test_every_kind_of_grammar_is_followed_to_its_end(
    open_engine: OpenEngine, fields: dict[str, object], texts: set[str]
) -> None:
    engine = open_engine()
    for seed, completion in enumerate(engine.generate(["air"] * 3, params(temperature=2.0, **fields))):
        assert (completion.text in texts, completion.finish_reason) == (True, "stop"), (seed, completion)


def test_a_grammar_begins_behind_the_text_it_waits_for(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    asked = params(choice=["a thing"], grammar_after="the", temperature=1.0, max_tokens=400, seed=1)
    [completion] = engine.generate(
        "th", replace(asked, logit_bias=((engine.tokenizer.encode("the")[1], 9.0),))
    )
    assert completion.text.endswith("thea thing"), completion.text
    assert completion.finish_reason == "stop"


def test_choices_of_one_prompt_each_have_their_own_place_in_the_grammar(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    done = engine.generate("the", params(json_schema=PERSON, n=5, temperature=2.0, seed=4))
    assert all(completion.finish_reason == "stop" for completion in done)
    assert len({completion.text for completion in done}) > 1


# -- who is not affected ---------------------------------------------------------------------------------


def test_rows_without_a_grammar_are_what_they_are_alone_to_the_last_bit(open_engine: OpenEngine) -> None:
    plain = params(max_tokens=20, temperature=1.0, seed=5, logprobs=3, ignore_eos=True)
    prompts = ["the air in", "a thing"]
    alone = open_engine().generate(prompts, plain)
    engine = open_engine(num_pages=256)
    guided = [params(json_schema=PERSON), params(choice=["a", "the"], temperature=1.0)]
    mixed = engine.generate([*prompts, *prompts], [plain, plain, *guided])
    assert [replace(a, id="") for a in mixed[:2]] == [replace(a, id="") for a in alone]


def test_a_grammar_changes_nothing_that_it_allows(open_engine: OpenEngine) -> None:
    """The greedy text without a grammar, asked for with one that allows everything of those bytes."""
    [free] = open_engine().generate("the air", params(max_tokens=12, logprobs=2))
    everything = params(grammar=r"start: /(.|\n)*/", max_tokens=12, logprobs=2)
    [guided] = open_engine().generate("the air", everything)
    if "\ufffd" not in free.text:
        assert (guided.output_ids, guided.logprobs) == (free.output_ids, free.logprobs)


def test_a_refused_grammar_ends_its_request_and_no_other(open_engine: OpenEngine) -> None:
    engine = open_engine()
    bad = [params(grammar="start: nothing"), params(json_schema={"type": "object", "minProperties": -1})]
    first, second, good = engine.generate(["the", "a", "in"], [*bad, params(max_tokens=3)])
    assert (good.error, good.completion_tokens) == (None, 3)
    for completion in (first, second):
        assert (completion.finish_reason, completion.text) == ("error", "")
    assert first.error is not None
    assert "nothing" in first.error
    assert second.error is not None
    assert "minProperties" in second.error


def test_what_was_refused_before_is_refused_at_once(open_engine: OpenEngine) -> None:
    engine = open_engine()
    asked = Request("r", (5, 6), params(grammar="start: nothing"))
    engine.add(asked)
    events = run_out(engine)
    assert [(event.refused, event.finish_reason) for event in events] == [(True, "error")]
    with pytest.raises(InvalidRequest, match="nothing"):
        engine.add(asked)
    assert not engine.has_work


def test_what_cannot_be_enforced_is_refused_or_checked_when_the_text_is_done(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    items = {"minItems": 2, "maxItems": 9, "uniqueItems": True}
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, **items}
    [refused] = engine.generate("the", params(json_schema=schema))
    assert refused.error is not None
    assert "uniqueItems" in refused.error
    done = engine.generate("the", params(json_schema=schema, relaxed=True, temperature=2.0, n=12, seed=2))
    reasons = {completion.finish_reason for completion in done if completion.finish_reason != "length"}
    for completion in done:
        if completion.finish_reason == "length":
            continue
        values = json.loads(completion.text)
        assert (completion.finish_reason == "stop") == (len(set(values)) == len(values)), completion
    assert reasons >= {"error"}, "two values and many places: some text repeats one"


# -- forced tokens -----------------------------------------------------------------------------------------


def test_texts_ids_and_log_probabilities_are_the_same_without_forced_tokens(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        params(json_schema=PERSON, compact=True),
        params(json_schema=PERSON, compact=True, logprobs=2),
        params(json_schema=PERSON, compact=True, logprobs=0, temperature=1.0, seed=3),
        params(choice=["xyzzyxyz", "xyzq"], temperature=1.0, seed=8, logprobs=1),
    ]
    prompts = ["the air", "a thing", "in", "the"]
    jumped = open_engine(num_pages=256).generate(prompts, asked)
    with no_forced_tokens(monkeypatch):
        plain = open_engine(num_pages=256).generate(prompts, asked)
    assert all(completion.forced_tokens for completion in jumped)
    assert not any(completion.forced_tokens for completion in plain)
    jumped = [replace(each, forced_tokens=0, cached_tokens=0) for each in jumped]
    assert jumped == [replace(each, cached_tokens=0) for each in plain]


def test_forced_tokens_save_steps_and_are_counted(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(num_pages=256)
    [completion] = engine.generate("the", params(json_schema=PERSON, compact=True))
    stats = engine.stats()
    assert stats.forced_tokens == completion.forced_tokens > 10
    assert stats.steps <= 1 + completion.completion_tokens - completion.forced_tokens
    assert stats.generated_tokens == completion.completion_tokens


@pytest.mark.parametrize(
    "options",
    [{"page_size": 1, "num_pages": 90}, {"chunk_size": 3}, {"num_pages": 24}, {"prefix_cache": False}],
    ids=str,
)
def test_neither_pages_nor_chunks_nor_preemption_nor_the_cache_changes_a_text(
    open_engine: OpenEngine, options: dict[str, object]
) -> None:
    asked = [params(json_schema=PERSON, compact=bool(i % 2), temperature=0.8, seed=i) for i in range(4)]
    prompts = ["the air in the air", "the air in", "a thing", "the air in the"]
    expected = open_engine(num_pages=512).generate(prompts, asked)
    found = open_engine(**options).generate(prompts, asked)
    assert [c.output_ids for c in found] == [c.output_ids for c in expected]
    assert all(completion.error is None for completion in found)


def test_what_was_generated_is_a_hit_for_the_next_prompt(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256, page_size=1)
    prompt = engine.tokenizer.encode("the air")
    [first] = engine.generate([prompt], params(json_schema=PERSON, compact=True))
    [second] = engine.generate([[*prompt, *first.output_ids, 9]], params(max_tokens=1))
    assert first.text.endswith("}"), "which was forced behind the last token sampled"
    assert second.cached_tokens == len(prompt) + len(first.output_ids) - 2
    [again] = engine.generate([prompt], params(json_schema=PERSON, compact=True))
    assert again.cached_tokens <= len(prompt), "what a grammar forced is no part of the prompt"
    assert again.output_ids == first.output_ids


def test_prompt_log_probabilities_are_told_beside_a_grammar(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=256)
    with_both = params(json_schema=PERSON, compact=True, logprobs=1, prompt_logprobs_start=0)
    [both] = engine.generate("the air", with_both)
    [plain] = engine.generate("the air", params(max_tokens=1, logprobs=1, prompt_logprobs_start=0))
    assert both.prompt_logprobs == plain.prompt_logprobs
    assert [entry.token_id for entry in both.logprobs] == list(both.output_ids)


# -- ends ---------------------------------------------------------------------------------------------------


def test_a_text_cut_at_its_length_says_so(open_engine: OpenEngine) -> None:
    [completion] = open_engine().generate("the", params(json_schema=PERSON, max_tokens=3))
    assert (completion.finish_reason, completion.completion_tokens) == ("length", 3)


def test_a_text_that_outgrows_the_context_ends_with_length(open_engine: OpenEngine) -> None:
    engine = open_engine(max_context=12)
    [completion] = engine.generate("the", params(choice=["a thing in the air in the air", "the"]))
    assert completion.finish_reason in ("length", "stop")
    assert completion.prompt_tokens + completion.completion_tokens <= 12


def test_an_end_of_text_that_is_the_likeliest_at_first_is_masked(open_engine: OpenEngine) -> None:
    asked = params(choice=["the", "thin"], logit_bias={EOS_ID: 100.0})
    [completion] = open_engine().generate("the", asked)
    assert completion.text in ("the", "thin")


def test_a_stop_id_among_the_tokens_that_are_forced_first_ends_its_request_alone(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine()
    [first] = engine.generate("a", params(choice=["the thing", "the house"]))
    stops = params(choice=["the thing", "the house"], stop_token_ids=[first.output_ids[0]])
    stopped, other = engine.generate(["a", "in"], [stops, params(max_tokens=3, ignore_eos=True)])
    assert (stopped.finish_reason, stopped.matched_stop) == ("stop", first.output_ids[0])
    assert (other.completion_tokens, other.error) == (3, None)


@pytest.mark.parametrize("nested", ["(((((a{9}){9}){9}){9}){9}){9}", "[bc](((((a{9}){9}){9}){9}){9}){9}"])
def test_a_pattern_that_is_cheap_to_compile_and_dear_to_use_is_refused(
    open_engine: OpenEngine, nested: str
) -> None:
    [completion] = open_engine().generate("the", params(regex=nested, n=1))
    assert completion.error is not None
    assert completion.error.startswith("regex cannot be compiled: ")


def test_a_complement_allows_no_control_token(open_engine: OpenEngine) -> None:
    asked = params(grammar="start: A\nA: ~/ab/", max_tokens=20, logit_bias={0: 100.0})
    [completion] = open_engine().generate("the", asked)
    assert completion.error is None
    assert 0 not in completion.output_ids


def test_a_fault_of_the_grammar_ends_its_request_and_no_other(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    plain = params(max_tokens=4, temperature=1.0, seed=1)
    expected = engine.generate("in", plain)
    for texts, message in (
        (Texts(("abc", "xyz"), raises=True), "ValueError: it broke"),
        (Texts(("abcabc", "abcxyz"), gives_up_after=4), "it gave up"),
        (Texts(()), "no token of the vocabulary may come next"),
    ):
        with compiled_as(monkeypatch, texts):
            broken, good = engine.generate(["the", "in"], [params(regex="a"), plain])
        assert broken.finish_reason == "error"
        assert broken.error is not None
        assert message in broken.error
        assert good.output_ids == expected[0].output_ids


def test_others_go_on_while_a_finished_text_is_checked(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, checked = open_engine(), threading.Event()
    with compiled_as(monkeypatch, Texts(("ab", "xy"), wrong="no good", waits_for=checked)):
        engine.add(Request("checked", (5, 6), params(regex="a")))
    engine.add(Request("other", (5, 6), params(max_tokens=6, ignore_eos=True)))
    events: list[Event] = []
    while not any(event.request_id == "other" and event.finish_reason for event in events):
        events += engine.step()
    assert not any(event.request_id == "checked" and event.finish_reason for event in events)
    with pytest.raises(InvalidRequest, match="in use"):
        engine.add(Request("checked", (5, 6), params()))
    checked.set()
    events += run_out(engine)
    [last] = [event for event in events if event.request_id == "checked" and event.finish_reason]
    assert last.finish_reason == "error"
    assert last.error is not None
    assert last.error.startswith("the text is not what was asked for: no good: ")
    engine.add(Request("checked", (5, 6), params(max_tokens=1)))
    run_out(engine)


def test_an_engine_can_be_closed_while_a_text_is_checked(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, checked = open_engine(), threading.Event()
    with compiled_as(monkeypatch, Texts(("ab", "xy"), wrong="no good", waits_for=checked)):
        engine.add(Request("r", (5, 6), params(regex="a")))
    while engine.stats().forced_tokens == 0:
        engine.step()
    checked.set()
    engine.close()
    assert not engine.has_work


def test_a_request_can_be_aborted_while_its_grammar_is_compiled(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None):
        engine.add(Request("r", (5, 6), params(regex="a", n=2)))
        assert engine.has_work
        assert engine.step() == []
        assert engine.abort("r")
        events = run_out(engine)
    assert sorted((event.index, event.finish_reason) for event in events) == [(0, "abort"), (1, "abort")]
    assert not engine.abort("r")


def test_a_call_of_a_cancelled_program_ends_while_its_grammar_is_compiled(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None):
        engine.add(Request("r", (5, 6), params(regex="a", n=2), hint=Hint("agent")))
        engine.end_programs(["other"], "cancelled")
        engine.end_programs(["agent"], "done")
        assert engine.step() == []
        engine.end_programs(["agent"], "cancelled")
        events = run_out(engine)
    assert [event.finish_reason for event in events] == ["abort", "abort"]


def test_what_was_forked_off_a_cancelled_program_ends_while_its_grammar_is_compiled(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None):
        engine.add(Request("child", (5, 6), params(regex="a", n=2), hint=Hint("child", parent_id="agent")))
        engine.add(Request("grandchild", (5, 6), params(regex="a"), hint=Hint("grand", parent_id="child")))
        engine.end_programs(["another"], "cancelled")
        assert engine.step() == []
        engine.end_programs(["agent"], "cancelled")
        ended = [event.request_id for event in run_out(engine) if event.finish_reason == "abort"]
        assert sorted(ended) == ["child", "child", "grandchild"]


def test_a_child_that_waits_for_its_grammar_goes_on_when_its_parent_is_done(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None) as future:
        engine.add(Request("r", (5, 6), params(regex="a"), hint=Hint("child", parent_id="agent")))
        engine.end_programs(["agent"], "done")
        future.set_result(Texts(("aa", "ab", "ba", "bb")))
        assert [event.finish_reason for event in engine.step()] == [None]
        engine.end_programs(["agent"], "cancelled")  # nobody's parent any more
        assert [event.finish_reason for event in run_out(engine)][-1] == "stop"


def test_others_go_on_while_a_grammar_is_compiled(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None) as future:
        engine.add(Request("waits", (5, 6), params(regex="a")))
        engine.add(Request("runs", (5, 6), params(max_tokens=3, ignore_eos=True)))
        events: list[Event] = []
        while not any(event.finish_reason for event in events):
            events += engine.step()
        assert {event.request_id for event in events} == {"runs"}
        future.set_result(Texts(("the",)))
        events = run_out(engine)
    assert "".join(event.text for event in events) == "the"


def test_an_engine_can_be_closed_while_a_grammar_is_compiled(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    engine.add(Request("r", (5, 6), params(grammar='start: "a"')))
    engine.close()
    assert not engine.has_work


def test_a_compiler_that_fails_refuses_the_request(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    with compiled_as(monkeypatch, None) as future:
        future.set_exception(MemoryError("no more"))
        [completion] = engine.generate("the", params(regex="a"))
    assert completion.error == "the grammar cannot be compiled: MemoryError: no more"


def test_a_stream_of_a_refused_grammar_raises_and_the_thread_goes_on(open_engine: OpenEngine) -> None:
    engine = open_engine()
    thread = EngineThread(engine)

    async def stream(request: Request) -> str:
        return "".join([event.text async for event in thread.stream(request)])

    try:
        with pytest.raises(InvalidRequest, match="nothing"):
            asyncio.run(stream(Request("bad", (5, 6), params(grammar="start: nothing"))))
        assert asyncio.run(stream(Request("good", (5, 6), params(choice=["the"])))) == "the"
    finally:
        thread.close()


def test_a_grammar_compiled_ahead_does_not_make_its_request_wait(open_engine: OpenEngine) -> None:
    engine = open_engine()
    spec = params(choice=["the", "air"]).structure
    assert isinstance(spec, GrammarSpec)
    assert engine.compile(spec).result(30).report.is_exact
    engine.add(Request("r", (5, 6), params(choice=["the", "air"])))
    assert engine.step(), "its first step computes"
    run_out(engine)


def test_options_of_a_prompt_line_may_ask_for_structure(open_engine: OpenEngine) -> None:
    asked = SamplingParams.from_mapping({"choice": ["the"], "max_tokens": 9})
    [completion] = open_engine().generate([Prompt("air", sampling=asked)])
    assert isinstance(completion, Completion)
    assert completion.text == "the"


class EndsBetweenTwoLooks(Future[str | None]):
    """Not done when it is looked at first, and done ever after."""

    looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_check_that_ends_while_they_are_looked_through_is_not_lost(open_engine: OpenEngine) -> None:
    guides = open_engine()._guides
    future = EndsBetweenTwoLooks()
    future.set_result(None)
    event = Event("r", 0, finish_reason="stop")
    guides._checks.append((event, future))
    assert guides.take_checked(0.0) + guides.take_checked(0.0) == [event]
