"""The engine on a thread of its own: submitted to, streamed from, aborted and closed from other threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import aclosing
from queue import Queue
from typing import Any

import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import EngineStopped, InvalidRequest
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request
from radixlm.runtime.worker import EngineThread
from testkit.byte_tokenizer import VOCAB_SIZE

OpenEngine = Callable[..., Engine]
StartThread = Callable[[Engine], EngineThread]
PATIENCE = 30
"""Seconds after which a test that waits has failed; nothing here takes nearly as long."""


@pytest.fixture
def start_thread() -> Iterator[StartThread]:
    threads: list[EngineThread] = []

    def start(engine: Engine) -> EngineThread:
        threads.append(EngineThread(engine))
        return threads[-1]

    yield start
    for thread in threads:
        thread.close(PATIENCE)
        assert not thread.is_alive


def request(name: str, start: int = 0, length: int = 10, max_tokens: int = 5, **more: Any) -> Request:
    ids = tuple(2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(start, start + length))
    sampling = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **more}
    return Request(name, ids, SamplingParams(**sampling))


ENDLESS = 240
"""Tokens that fit the context of the tiny model, and are more than any of these tests waits for."""


def until_end(events: Queue[Event], choices: int = 1) -> list[Event]:
    """Events up to the terminal one of each choice."""
    found: list[Event] = []
    while choices:
        found.append(events.get(timeout=PATIENCE))
        choices -= found[-1].finish_reason is not None
    return found


async def collect(thread: EngineThread, asked: Request) -> list[Event]:
    return [event async for event in thread.stream(asked)]


def ids_of(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.token_ids]


# -- from threads ----------------------------------------------------------------------------------


def test_submitted_requests_give_the_tokens_of_generate(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    asked = [request(f"r{i}", 20 * i) for i in range(4)]
    wanted = open_engine().generate([list(one.prompt_ids) for one in asked], asked[0].sampling)
    thread = start_thread(open_engine())
    queues: list[Queue[Event]] = [Queue() for _ in asked]
    for one, events in zip(asked, queues, strict=True):
        thread.submit(one, events.put).result(PATIENCE)
    found = [until_end(events) for events in queues]
    assert [tuple(ids_of(events)) for events in found] == [c.output_ids for c in wanted]


def test_many_threads_submit_at_once(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine(max_running=3))
    ends: Queue[tuple[str, list[Event]]] = Queue()

    def work(name: str) -> None:
        for i in range(5):
            events: Queue[Event] = Queue()
            thread.submit(request(f"{name}-{i}", 7 * i, n=2), events.put).result(PATIENCE)
            ends.put((f"{name}-{i}", until_end(events, 2)))

    workers = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    found = [ends.get_nowait() for _ in range(20)]
    assert len({name for name, _ in found}) == 20
    for name, events in found:
        assert {event.request_id for event in events} == {name}
        assert Counter(e.index for e in events if e.finish_reason is not None) == Counter([0, 1])


def test_a_refused_request_raises_where_it_was_submitted(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine())
    heard: list[Event] = []
    refused = thread.submit(Request("bad", (VOCAB_SIZE,), SamplingParams()), heard.append)
    with pytest.raises(InvalidRequest, match="not in the vocabulary"):
        refused.result(PATIENCE)
    assert heard == []
    assert asyncio.run(collect(thread, request("good")))[-1].finish_reason == "length"


def test_an_abort_ends_a_request_and_says_whether_there_was_one(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine())
    events: Queue[Event] = Queue()
    thread.submit(request("r", max_tokens=ENDLESS), events.put).result(PATIENCE)
    assert thread.abort("r").result(PATIENCE)
    assert until_end(events)[-1].finish_reason == "abort"
    assert not thread.abort("r").result(PATIENCE)
    assert not thread.abort("never there").result(PATIENCE)


def test_a_call_runs_on_the_engines_thread_and_its_error_is_the_callers(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine())
    assert thread.call(lambda: threading.current_thread().name).result(PATIENCE) == "radixlm-engine"
    wrong = thread.call(lambda: {}["no such key"])
    with pytest.raises(KeyError):
        wrong.result(PATIENCE)
    assert thread.call(lambda: 1).result(PATIENCE) == 1


def test_a_snapshot_tells_what_calls_changed_too(open_engine: OpenEngine, start_thread: StartThread) -> None:
    engine, events = open_engine(), Queue[Event]()
    thread = start_thread(engine)
    thread.submit(request("r"), events.put).result(PATIENCE)
    until_end(events)
    used = thread.snapshot()
    assert used.evictable_pages > 0
    assert used.free_pages + used.evictable_pages == used.num_pages
    thread.call(engine.flush).result(PATIENCE)
    thread.call(lambda: None).result(PATIENCE)  # the figures are taken before the next call is made
    assert thread.snapshot().free_pages == used.num_pages


def test_a_call_that_was_cancelled_is_not_made(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine())
    made: list[str] = []
    gate = threading.Event()
    thread.call(lambda: gate.wait(PATIENCE))
    cancelled = thread.call(lambda: made.append("cancelled"))
    kept = thread.call(lambda: made.append("kept"))
    assert cancelled.cancel()
    gate.set()
    kept.result(PATIENCE)
    assert made == ["kept"]


def test_an_idle_engine_uses_no_processor_time(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine())
    asyncio.run(collect(thread, request("r")))
    before = thread.call(time.thread_time).result(PATIENCE)
    idle = threading.Event()
    assert not idle.wait(0.2)
    assert thread.call(time.thread_time).result(PATIENCE) - before < 0.02


# -- from asyncio ----------------------------------------------------------------------------------


def test_two_streams_at_once_have_each_their_own_events(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    asked = request("a", 0, n=2), request("b", 40)
    thread = start_thread(open_engine())

    async def both() -> list[list[Event]]:
        return list(await asyncio.gather(*(collect(thread, one) for one in asked)))

    for one, events in zip(asked, asyncio.run(both()), strict=True):
        assert {event.request_id for event in events} == {one.id}
        assert len([e for e in events if e.finish_reason is not None]) == one.sampling.n
        assert events[-1].finish_reason == "length"
        assert len(ids_of(events)) == 5 * one.sampling.n


def test_a_refused_stream_raises_in_the_caller(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine())
    with pytest.raises(InvalidRequest, match="the context is 256"):
        asyncio.run(collect(thread, request("long", length=256)))


def test_a_stream_refused_for_its_id_does_not_abort_the_one_that_has_it(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine())

    async def twice() -> list[Event]:
        async with aclosing(thread.stream(request("r", max_tokens=60))) as stream:
            events = [await anext(stream)]
            with pytest.raises(InvalidRequest, match="already in use"):
                await collect(thread, request("r"))
            return events + [event async for event in stream]

    assert asyncio.run(twice())[-1].finish_reason == "length"


def idle_pages(thread: EngineThread, engine: Engine) -> bool:
    """Whether nothing is leased, once what was asked before has been done."""
    deadline = time.monotonic() + PATIENCE
    while thread.call(lambda: engine.has_work).result(PATIENCE):
        assert time.monotonic() < deadline, "something still runs"
    return thread.call(lambda: engine.cache.leased_pages).result(PATIENCE) == 0


@pytest.mark.parametrize("events", [1, 3])
def test_leaving_a_stream_early_ends_its_request_and_frees_its_pages(
    open_engine: OpenEngine, start_thread: StartThread, events: int
) -> None:
    engine = open_engine(num_pages=200)
    thread = start_thread(engine)

    async def leave() -> None:
        async with aclosing(thread.stream(request("r", max_tokens=ENDLESS, n=2))) as stream:
            for _ in range(events):
                await anext(stream)

    asyncio.run(leave())
    assert idle_pages(thread, engine)
    assert thread.call(engine.stats).result(PATIENCE).generated_tokens < 2 * ENDLESS


def test_a_cancelled_stream_ends_its_request(open_engine: OpenEngine, start_thread: StartThread) -> None:
    engine = open_engine()
    thread = start_thread(engine)

    async def cancel() -> None:
        started = asyncio.Event()

        async def follow() -> None:
            async for _ in thread.stream(request("r", max_tokens=ENDLESS)):
                started.set()

        task = asyncio.create_task(follow())
        await asyncio.wait_for(started.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert idle_pages(thread, engine)


def test_a_stream_cancelled_while_it_is_accepted_does_not_run_on(
    open_engine: OpenEngine, start_thread: StartThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    thread = start_thread(engine)
    adding, go_on = threading.Event(), threading.Event()
    add = engine.add

    def slow_add(asked: Request) -> None:
        adding.set()
        assert go_on.wait(PATIENCE)
        add(asked)

    monkeypatch.setattr(engine, "add", slow_add)

    async def cancel() -> None:
        task = asyncio.create_task(collect(thread, request("r", max_tokens=ENDLESS)))
        assert await asyncio.to_thread(adding.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(cancel())
    assert idle_pages(thread, engine)
    assert thread.call(engine.stats).result(PATIENCE).generated_tokens < ENDLESS // 2


def test_a_loop_that_was_closed_with_events_on_their_way_harms_nobody(
    open_engine: OpenEngine, start_thread: StartThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    thread = start_thread(engine)
    step, gate, waiting = engine.step, threading.Event(), threading.Event()

    def held_step() -> list[Event]:
        events = step()
        if any(event.completion_tokens == 3 for event in events):
            waiting.set()
            assert gate.wait(PATIENCE)
        return events

    monkeypatch.setattr(engine, "step", held_step)

    async def leave() -> None:
        async with aclosing(thread.stream(request("r", max_tokens=ENDLESS))) as stream:
            await anext(stream)
            assert await asyncio.to_thread(waiting.wait, PATIENCE)

    asyncio.run(leave())
    gate.set()
    assert idle_pages(thread, engine)
    assert asyncio.run(collect(thread, request("next")))[-1].finish_reason == "length"


# -- the end ---------------------------------------------------------------------------------------


def test_close_ends_every_choice_that_runs_with_one_event(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine(num_pages=200))
    events: Queue[Event] = Queue()
    thread.submit(request("r", max_tokens=ENDLESS, n=3), events.put).result(PATIENCE)
    events.get(timeout=PATIENCE)
    thread.close(PATIENCE)
    ended = [event for event in until_end(events, 3) if event.finish_reason is not None]
    assert {(event.index, event.finish_reason) for event in ended} == {(i, "abort") for i in range(3)}
    assert events.empty()
    thread.close(PATIENCE)


def test_close_while_streaming_ends_the_stream(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine())

    async def follow() -> list[Event]:
        events = []
        async for event in thread.stream(request("r", max_tokens=ENDLESS)):
            events.append(event)
            if len(events) == 1:
                await asyncio.to_thread(thread.close, PATIENCE)
        return events

    assert asyncio.run(follow())[-1].finish_reason == "abort"


def test_after_close_everything_is_refused(open_engine: OpenEngine, start_thread: StartThread) -> None:
    thread = start_thread(open_engine())
    thread.close(PATIENCE)
    with pytest.raises(EngineStopped, match="the engine has stopped"):
        thread.submit(request("r"), lambda event: None).result(PATIENCE)
    with pytest.raises(EngineStopped):
        asyncio.run(collect(thread, request("r")))


def test_close_on_the_engines_own_thread_answers_those_who_wait(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    thread = start_thread(open_engine())
    gate = threading.Event()
    thread.call(lambda: gate.wait(PATIENCE))
    thread.call(thread.close)
    pending = [thread.call(lambda: None) for _ in range(3)]
    gate.set()
    for future in pending:
        future.exception(PATIENCE)
    thread.close(PATIENCE)
    assert not thread.is_alive


def test_calls_that_still_wait_at_the_end_are_refused_and_cancelled_ones_do_no_harm(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    engine = open_engine()
    thread = start_thread(engine)
    futures: list[Any] = []

    def ask_then_close() -> None:
        futures.extend(thread.call(lambda: None) for _ in range(2))
        futures[0].cancel()
        thread.close()

    thread.call(ask_then_close).result(PATIENCE)
    thread.close(PATIENCE)
    with pytest.raises(CancelledError):
        futures[0].result(PATIENCE)
    with pytest.raises(EngineStopped):
        futures[1].result(PATIENCE)
    with pytest.raises(EngineStopped):
        engine.add(request("r"))


def test_a_death_of_the_engine_reaches_everyone_who_waits(
    open_engine: OpenEngine, start_thread: StartThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine()
    thread = start_thread(engine)
    step, calls = engine.step, iter(range(3))

    def dies_at_last() -> list[Event]:
        if next(calls, None) is None:
            raise AssertionError("an invariant is broken")
        return step()

    monkeypatch.setattr(engine, "step", dies_at_last)
    queues: list[Queue[Event]] = [Queue(), Queue()]

    def submit_both() -> None:
        for i, events in enumerate(queues):
            thread.submit(request(f"r{i}", 40 * i, max_tokens=ENDLESS, n=2), events.put)

    thread.call(submit_both).result(PATIENCE)
    for events in queues:
        ended = [event for event in until_end(events, 2) if event.finish_reason is not None]
        assert {(event.index, event.finish_reason) for event in ended} == {(0, "error"), (1, "error")}
        cause = "the engine has stopped: AssertionError: an invariant is broken"
        assert {event.error for event in ended} == {cause}
    with pytest.raises(EngineStopped, match="an invariant is broken"):
        thread.submit(request("late"), lambda event: None).result(PATIENCE)
    thread.close(PATIENCE)
    assert not thread.is_alive


def test_a_listener_that_raises_loses_its_request_and_nobody_elses(
    open_engine: OpenEngine, start_thread: StartThread
) -> None:
    engine = open_engine()
    thread = start_thread(engine)
    first: Queue[Event] = Queue()
    last: Queue[Event] = Queue()

    def fail(event: Event) -> None:
        raise ValueError(event.request_id)

    thread.submit(request("first", max_tokens=20), first.put).result(PATIENCE)
    thread.submit(request("bad", 30, max_tokens=ENDLESS), fail).result(PATIENCE)
    thread.submit(request("last", 60, max_tokens=20), last.put).result(PATIENCE)
    assert [until_end(queue)[-1].finish_reason for queue in (first, last)] == ["length", "length"]
    assert thread.is_alive
