"""Hints through a real engine: what events tell, how programs end, and the same on the engine's thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.types import Event, Hint, Request
from testkit.soak import save_tiny_config

PROMPT = tuple(range(40, 72))


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(tiny_folder: Path) -> Iterator[Engine]:
    with Engine(str(tiny_folder), load_format="dummy", page_size=4, num_pages=48, hold_budget=0.5) as opened:
        yield opened


def sampling(max_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, n=n, temperature=0.0, ignore_eos=True)


def call(engine: Engine, name: str, prompt: tuple[int, ...], hint: Hint, *, n: int = 1) -> list[Event]:
    """One call to its end: its terminal events."""
    engine.add(Request(name, prompt, sampling(6, n), hint=hint))
    return last_events(engine)


def last_events(engine: Engine) -> list[Event]:
    events = []
    while engine.has_work:
        events += [event for event in engine.step() if event.finish_reason is not None]
        engine.cache.check()
    return events


def output(engine: Engine, name: str, prompt: tuple[int, ...], hint: Hint) -> tuple[int, ...]:
    engine.add(Request(name, prompt, sampling(6), hint=hint))
    tokens: tuple[int, ...] = ()
    while engine.has_work:
        for event in engine.step():
            tokens += event.token_ids
    return tokens


def flood(engine: Engine) -> None:
    engine.generate([[first] * 30 for first in range(100, 112)], sampling(8))


def test_the_terminal_event_of_each_choice_says_what_is_held(engine: Engine) -> None:
    events = call(engine, "a", PROMPT, Hint("agent", hold_s=60.0), n=2)
    assert [event.held_tokens for event in events] == [32 + 6 - 1] * 2
    assert [event.held_tokens for event in call(engine, "b", PROMPT, Hint("other"))] == [None]
    assert [event.held_tokens for event in call(engine, "c", (1,) * 100, Hint("c", hold_s=60.0))] == [0]
    stats = engine.stats()
    assert (stats.holds, stats.holds_granted, stats.holds_refused) == (1, 2, 1)
    assert stats.held_pages == engine.cache.held_pages > 0


def test_events_before_the_last_one_say_nothing_of_holds(engine: Engine) -> None:
    engine.add(Request("a", PROMPT, sampling(3), hint=Hint("agent", hold_s=60.0)))
    events = []
    while engine.has_work:
        events += engine.step()
    assert [event.held_tokens for event in events] == [None, None, 34]


@pytest.mark.parametrize(("hold_s", "reused"), [(60.0, 37), (None, 0)])
def test_a_held_prefix_survives_a_flood(engine: Engine, hold_s: float | None, reused: int) -> None:
    hint = Hint("agent", hold_s=hold_s)
    state = (*PROMPT, *output(engine, "a", PROMPT, hint), 7, 8, 9)
    flood(engine)
    (event,) = call(engine, "b", state, hint)
    assert event.cached_tokens == reused


def test_the_same_tokens_come_with_and_without_hints(tiny_folder: Path) -> None:
    found = []
    for hinted in (False, True):
        with Engine(str(tiny_folder), load_format="dummy", page_size=4, num_pages=40) as engine:
            outputs: dict[str, tuple[int, ...]] = {}
            for number in range(12):
                prompt = (*PROMPT[: 8 * (number % 4)], number)
                hint = Hint(f"p{number % 5}", "", f"f{number % 2}", 60.0, number % 6 == 5)
                engine.add(Request(str(number), prompt, sampling(5), hint=hint if hinted else Hint()))
            while engine.has_work:
                for event in engine.step():
                    outputs[event.request_id] = outputs.get(event.request_id, ()) + event.token_ids
            found.append(outputs)
    assert found[0] == found[1]


def test_a_cancelled_program_is_aborted_and_leaves_no_page(engine: Engine) -> None:
    call(engine, "stays", (1, 2, 3, 4, 5), Hint("other"))
    before = engine.cache.free_pages
    for name in ("a", "b"):
        engine.add(Request(name, (*PROMPT, ord(name)), sampling(30, 2), hint=Hint("agent")))
    for _ in range(4):
        engine.step()
    engine.end_programs(["agent"], "cancelled")
    events = last_events(engine)
    assert {(e.request_id, e.index, e.finish_reason) for e in events} == {
        (name, index, "abort") for name in "ab" for index in range(2)
    }
    assert engine.cache.free_pages == before


def test_flushing_ends_holds(engine: Engine) -> None:
    call(engine, "a", PROMPT, Hint("agent", hold_s=60.0))
    assert engine.flush() == 10
    assert (engine.cache.held_pages, engine.stats().holds) == (0, 0)


def test_statistics_tell_of_no_hold_whose_time_is_over(engine: Engine) -> None:
    call(engine, "a", PROMPT, Hint("agent", hold_s=0.0))
    stats = engine.stats()
    assert (stats.holds, stats.holds_granted, stats.held_pages, engine.cache.held_pages) == (0, 1, 0, 0)
    assert engine.next_hold_end is None
    call(engine, "b", PROMPT, Hint("agent", hold_s=60.0))
    assert engine.stats().holds == 1
    assert 0 < (engine.next_hold_end or 0) <= 60


def test_an_idle_engine_on_a_thread_wakes_to_end_a_hold(tiny_folder: Path) -> None:
    engine = Engine(str(tiny_folder), load_format="dummy", page_size=4, num_pages=48, hold_budget=0.5)
    local = LocalEngine(engine)
    ended = threading.Event()
    try:
        for name, seconds in (("long", sys.float_info.max), ("brief", 0.2)):
            request = Request(name, PROMPT, sampling(1), hint=Hint(name, hold_s=seconds))
            ended.clear()
            local.submit(request, lambda event: ended.set() if event.finish_reason else None).result(60)
            assert ended.wait(60)
        until = monotonic() + 60
        while local.snapshot().holds_granted < 2 or local.snapshot().holds > 1:
            assert monotonic() < until, "nobody asked it for anything, and the hold stayed"
        assert local.snapshot().holds == 1
    finally:
        local.close()


def test_an_ending_that_there_is_not_and_impossible_seconds_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="a program is released, done, cancelled, got 'killed'"):
        engine.end_programs(["agent"], "killed")  # type: ignore[arg-type]
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match=f"hold_s must be a number of seconds from 0, got {seconds}"):
            engine.add(Request("a", PROMPT, sampling(1), hint=Hint("agent", hold_s=seconds)))
    assert not engine.has_work


def test_an_engine_on_a_thread_ends_programs_there(tiny_folder: Path) -> None:
    engine = Engine(str(tiny_folder), load_format="dummy", page_size=4, num_pages=48)
    local = LocalEngine(engine)
    try:
        events: list[Event] = []
        hint = Hint("agent", hold_s=60.0)
        local.submit(Request("a", PROMPT, sampling(400), hint=hint), events.append).result(60)
        local.end_programs(["agent"], "cancelled").result(60)
        while not (events and events[-1].finish_reason):
            local.flush().result(60)
        assert (events[-1].finish_reason, events[-1].held_tokens) == ("abort", 0)
        local.end_programs(["agent", "unknown"], "released").result(60)
        assert local.snapshot().free_pages == 48
    finally:
        local.close()
