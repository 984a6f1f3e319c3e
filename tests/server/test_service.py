"""The service between routes and engine: admission, deadlines, aborts, tenants, draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.failures import Busy, TookTooLong
from radixlm.runtime.server.service import Job, Service, namespace_salt
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.types import Event
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]
PATIENCE = 20


class Tally:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.arrivals = self.refusals = self.overs = self.events = 0

    def arrived(self, _: Job) -> Tally:
        self.arrivals += 1
        return self

    def turned_away(self, _: Job) -> None:
        self.refusals += 1

    def event(self, _: Event) -> None:
        self.events += 1

    def over(self, cause: BaseException | None) -> None:
        self.overs += 1


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await test

    asyncio.run(bounded())


def job(name: str = "a", max_tokens: int = 8, ids: tuple[int, ...] = (5, 6, 7), **more: Any) -> Job:
    fields = {key: more.pop(key) for key in ("tenant", "salt", "priority") if key in more}
    return Job(ids, SamplingParams(max_tokens=max_tokens, temperature=0.0, **more), name, **fields)


def text_of(events: list[Event], index: int = 0) -> str:
    return "".join(event.text for event in events if event.index == index)


def test_events_of_several_jobs_and_choices_come_with_one_end_each(open_face: OpenFace) -> None:
    async def test() -> None:
        face, tally = open_face(lambda _: "abc"), Tally()
        service = Service(face, ServerSettings(), tally)
        found = await service.collect([job("a"), job("b", n=3)])
        assert [sum(e.finish_reason is not None for e in events) for events in found] == [1, 3]
        assert [text_of(found[0]), *(text_of(found[1], i) for i in range(3))] == ["abc"] * 4
        assert service.waiting.active == service.waiting.requests == service.waiting.tokens == 0
        assert (tally.arrivals, tally.overs) == (2, 2)

    run(test())


def test_what_is_over_the_queue_is_turned_away_and_what_waits_is_not_harmed(open_face: OpenFace) -> None:
    async def test() -> None:
        face, tally = open_face(lambda _: "abc", hold=0), Tally()
        service = Service(face, ServerSettings(max_queued=2, max_queued_tokens=1000), tally)
        first = asyncio.ensure_future(service.collect([job(), job()]))
        while service.waiting.requests < 2:
            await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 requests wait already, and 1 more would be over 2"):
            await service.collect([job()])
        face.release()
        assert [text_of(events) for events in await first] == ["abc", "abc"]
        assert [text_of(events) for events in await service.collect([job()])] == ["abc"]
        assert (tally.refusals, tally.arrivals) == (1, 3)

    run(test())


def test_tokens_that_wait_are_bounded_but_one_long_prompt_alone_is_let_in(open_face: OpenFace) -> None:
    async def test() -> None:
        face = open_face(lambda _: "x", hold=0)
        service = Service(face, ServerSettings(max_queued_tokens=10), Tally())
        long = asyncio.ensure_future(service.collect([job(ids=(5,) * 50)]))
        while not service.waiting.requests:
            await asyncio.sleep(0)
        with pytest.raises(Busy, match="50 tokens of prompts wait already, and 3 more would be over 10"):
            await service.collect([job()])
        face.release()
        await long

    run(test())


def test_at_the_deadline_a_request_is_ended_and_aborted(open_face: OpenFace) -> None:
    async def test() -> None:
        face = open_face(lambda _: "abcdef", hold=2)
        service = Service(face, ServerSettings(request_timeout=0.05), Tally())
        with pytest.raises(TookTooLong, match=r"longer than the 0\.05 s it may take"):
            await service.collect([job()])
        assert service.waiting.active == 0

    run(test())


def test_what_a_slow_client_left_unread_is_no_way_around_the_deadline(open_face: OpenFace) -> None:
    async def test() -> None:
        service = Service(open_face(lambda _: "abcdef"), ServerSettings(request_timeout=0.2), Tally())
        seen: list[Event] = []

        async def read_slowly() -> None:
            async with aclosing(service.run([job(max_tokens=6)])) as events:
                async for _, event in events:
                    seen.append(event)
                    await asyncio.sleep(0.15)

        with pytest.raises(TookTooLong):
            await read_slowly()
        assert 1 <= len(seen) < 6
        assert service.waiting.active == 0

    run(test())


def test_leaving_a_run_early_aborts_it(local_engine: LocalEngine) -> None:
    async def test() -> None:
        service = Service(local_engine, ServerSettings(), Tally())
        async with aclosing(service.run([job(max_tokens=200, ignore_eos=True)])) as events:
            async for _ in events:
                break
        assert service.waiting.active == 0
        while local_engine.pulse().busy:
            await asyncio.sleep(0.001)
        assert local_engine.snapshot().generated_tokens < 150

    run(test())


def test_a_job_is_aborted_by_its_id_and_only_by_its_tenant(open_face: OpenFace) -> None:
    async def test() -> None:
        service = Service(open_face(lambda _: "abc", hold=1), ServerSettings(), Tally())
        running = asyncio.ensure_future(service.collect([job("mine", tenant="t")]))
        while service.waiting.active == 0 or service.waiting.requests:
            await asyncio.sleep(0)
        assert service.abort("mine", "other") == service.abort("min", "t") == 0
        assert service.abort("mine", "t") == 1
        [events] = await running
        assert events[-1].finish_reason == "abort"

    run(test())


def test_tenants_share_nothing_and_equal_salts_share_pages(local_engine: LocalEngine) -> None:
    ids = tuple(range(10, 60))

    async def test() -> None:
        service = Service(local_engine, ServerSettings(), Tally())

        async def cached(**who: str) -> int:
            [events] = await service.collect([job(ids=ids, max_tokens=1, **who)])
            return events[-1].cached_tokens

        whose: list[dict[str, str]] = [{}, {"tenant": "a"}, {"tenant": "b"}, {"salt": "a"}]
        whose += [{"tenant": "a", "salt": "bc"}, {"tenant": "ab", "salt": "c"}]
        assert [await cached(**who) for who in whose] == [0] * len(whose)
        assert min([await cached(**who) for who in whose]) == len(ids)

    run(test())


@pytest.mark.parametrize("pair", [("", ""), ("a", ""), ("", "a"), ("a", "bc"), ("ab", "c"), ('a"', ',"')])
def test_different_pairs_of_tenant_and_salt_are_different_namespaces(pair: tuple[str, str]) -> None:
    pairs = [("", ""), ("a", ""), ("", "a"), ("a", "bc"), ("ab", "c"), ('a"', ',"')]
    assert [other for other in pairs if namespace_salt(*other) == namespace_salt(*pair)] == [pair]


def test_a_refused_job_takes_the_others_of_its_request_with_it(local_engine: LocalEngine) -> None:
    async def test() -> None:
        service = Service(local_engine, ServerSettings(), Tally())
        with pytest.raises(InvalidRequest, match="token id 99999 is not in the vocabulary"):
            await service.collect([job(max_tokens=200), job(ids=(99_999,))])
        assert service.waiting.active == service.waiting.tokens == 0
        while local_engine.pulse().busy:
            await asyncio.sleep(0.001)

    run(test())


def test_a_grammar_that_is_refused_is_known_before_anything_runs(local_engine: LocalEngine) -> None:
    async def test() -> None:
        service = Service(local_engine, ServerSettings(), Tally())
        before = local_engine.snapshot().steps
        with pytest.raises(InvalidRequest, match="json_schema asks for what cannot be enforced"):
            await service.collect(
                [job(), job(json_schema={"type": "array", "items": {}, "uniqueItems": True})]
            )
        assert local_engine.snapshot().steps == before

    run(test())


def test_draining_takes_nothing_more_and_ends_what_runs_by_the_deadline(open_face: OpenFace) -> None:
    async def test() -> None:
        service = Service(open_face(lambda _: "abc", hold=1), ServerSettings(), Tally())
        running = asyncio.ensure_future(service.collect([job(), job()]))
        while service.waiting.active < 2 or service.waiting.requests:
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(service.drain(0.05))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="shutting down"):
            await service.collect([job()])
        await draining
        assert [events[-1].finish_reason for events in await running] == ["abort", "abort"]

    run(test())


def test_draining_lets_what_runs_end_in_time(open_face: OpenFace) -> None:
    async def test() -> None:
        face = open_face(lambda _: "abc", hold=1)
        service = Service(face, ServerSettings(), Tally())
        running = asyncio.ensure_future(service.collect([job()]))
        while service.waiting.active < 1 or service.waiting.requests:
            await asyncio.sleep(0)
        draining = asyncio.ensure_future(service.drain(PATIENCE))
        await asyncio.sleep(0)
        face.release()
        await draining
        [events] = await running
        assert events[-1].finish_reason == "stop"

    run(test())


def test_the_cache_is_flushed_when_nothing_runs(local_engine: LocalEngine) -> None:
    async def test() -> None:
        service = Service(local_engine, ServerSettings(), Tally())
        running = asyncio.ensure_future(service.collect([job(max_tokens=200, ignore_eos=True)]))
        while not service.waiting.active:
            await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="1 requests do"):
            await service.flush()
        assert await service.flush(PATIENCE) > 0
        await running

    run(test())


def test_an_engine_that_is_dead_stuck_or_leaving_is_not_ready(open_face: OpenFace) -> None:
    async def test() -> None:
        face = open_face(lambda _: "")
        service = Service(face, ServerSettings(stuck_after=10), Tally())
        assert service.unready() is None
        face.quiet_for = 11.0
        assert service.unready() == "the engine has work and has made no step for 11 s"
        face.alive = False
        assert service.unready() == "the engine has stopped"
        face.alive, face.quiet_for = True, 0.0
        await service.drain(0.0)
        assert service.unready() == "the server is shutting down"

    run(test())
