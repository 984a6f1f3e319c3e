"""Service: jobs to an engine and their events back, for one event loop. No route has another way to it.

It owns admission (how much may wait), the grammars that must be ready first, deadlines, aborts by id,
draining for a shutdown, and what readiness is judged by. It knows no HTTP and no wire format. What must hold:
a run yields exactly one terminal event for each choice of each job, unless it raises; leaving a run early, or
being cancelled anywhere in it, aborts what it started; the counts of what waits go back to zero in any case.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from time import monotonic
from typing import Protocol, TypeAlias

from ..errors import EngineStopped, InvalidRequest, TooLarge
from ..hints import NO_HINT
from ..post import Mailbox, Post
from ..sampling_params import SamplingParams
from ..types import Ending, Event, Hint, Request
from .engine_face import EngineFace
from .failures import Busy, TookTooLong
from .settings import ServerSettings

_Events: TypeAlias = "Mailbox[tuple[int, Event] | None]"
"""Events with the place of their job; None when the time is over."""


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt. `id` is what a client knows it by and may abort it with; equal ones are told apart inside.
    `tenant` is whose it is: tenants share no pages, whatever their salts are, nor do different pairs of
    `salt` and `extra_key`. The names in `hint` are those that the tenant knows. `continuations` see Request.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    id: str
    salt: str = ""
    priority: int = 0
    tenant: str = ""
    extra_key: str = ""
    hint: Hint = NO_HINT
    continuations: tuple[tuple[int, ...], ...] = ()

    @property
    def length(self) -> int:
        """Tokens that are read."""
        return len(self.prompt_ids) + sum(map(len, self.continuations))

    @property
    def longest(self) -> int:
        """Tokens that one sequence of it begins with."""
        return len(self.prompt_ids) + max(map(len, self.continuations), default=0)


class Watch(Protocol):
    """Is told of one job: each event, and once that it is over, with what ended it before its time."""

    def event(self, event: Event) -> None: ...
    def over(self, cause: BaseException | None) -> None: ...


class Watcher(Protocol):
    """Opens a Watch for each job that was let in, and counts those that were turned away."""

    def arrived(self, job: Job) -> Watch: ...
    def turned_away(self, job: Job) -> None: ...


@dataclass(slots=True, eq=False)
class _Run:
    """A job under way. `waits`: no token of it has come yet."""

    job: Job
    id: str
    watch: Watch
    open: set[int] = field(default_factory=set)
    waits: bool = True
    submitted: bool = False
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    since: float = field(default_factory=monotonic)
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What has been let in and gave no token yet, and what runs or waits in all."""

    requests: int
    tokens: int
    active: int


@dataclass(frozen=True, slots=True)
class JobUnderWay:
    """A job as the one who sent it may see it; `key` tells jobs of equal ids apart. `age` is in seconds,
    completion_tokens those of all its choices so far."""

    key: str
    id: str
    waits: bool
    age: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Service:
    """Made in the event loop that uses it."""

    def __init__(self, engine: EngineFace, settings: ServerSettings, watcher: Watcher) -> None:
        self.engine = engine
        self.settings = settings
        self._watcher = watcher
        self._post = Post()
        self._runs: dict[str, _Run] = {}
        self._names = count()
        self._waiting = self._waiting_tokens = 0
        self._ended = asyncio.Event()
        self.draining = False

    # -- questions ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> Waiting:
        return Waiting(self._waiting, self._waiting_tokens, len(self._runs))

    def under_way(self, tenant: str, most: int) -> list[JobUnderWay]:
        """Jobs of a tenant that run or wait, the oldest first, at most so many. Ours have no id."""
        now = monotonic()
        theirs = (run for run in self._runs.values() if run.job.tenant == tenant and run.job.id)
        return [
            JobUnderWay(
                run.id,
                run.job.id,
                run.waits,
                now - run.since,
                len(run.job.prompt_ids),
                run.cached_tokens,
                run.completion_tokens,
            )
            for run in islice(theirs, most)
        ]

    def unready(self) -> str | None:
        """Why nothing should be sent here now, None if all is well. Never waits for the engine."""
        pulse = self.engine.pulse()
        if not pulse.alive:
            return "the engine has stopped"
        if self.draining:
            return "the server is shutting down"
        if pulse.quiet_for > self.settings.stuck_after:
            return f"the engine has work and has made no step for {pulse.quiet_for:.0f} s"
        return None

    # -- commands ----------------------------------------------------------------------------------

    async def run(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Event], None]:
        """The events of all jobs as they come, each with the index of its job.

        Raises before the first event, and then nothing runs: InvalidRequest for a job that is refused, Busy
        when too much waits, EngineStopped. Later: TookTooLong at the deadline.
        """
        runs = self._let_in(jobs)
        limit = self.settings.request_timeout or None
        due = monotonic() + (limit or math.inf)
        events: _Events = Mailbox()
        alarm: asyncio.TimerHandle | None = None
        try:
            async with asyncio.timeout(limit):
                await self._compile(runs)
                await self._submit(runs, events)
            if limit is not None:
                alarm = asyncio.get_running_loop().call_later(due - monotonic(), events.put, None)
            left = sum(len(run.open) for run in runs)
            while left:
                found = await events.get()
                # None wakes who waits, but comes behind all that a slow client left unread.
                if found is None or monotonic() >= due:
                    raise TimeoutError
                index, event = found
                if event.refused:
                    raise InvalidRequest(event.error)
                if event.finish_reason == "abort" and self.draining:
                    event = replace(event, error="the server is shutting down")
                run = runs[index]
                self._note(run, event)
                left -= event.finish_reason is not None
                yield index, event
        except TimeoutError:
            raise TookTooLong(f"the request took longer than the {limit:g} s it may take") from None
        finally:
            cause = sys.exception()
            if alarm is not None:
                alarm.cancel()
            for run in runs:
                self._let_go(run, cause)

    async def collect(self, jobs: Sequence[Job]) -> list[list[Event]]:
        """All events of each job, when all have ended."""
        found: list[list[Event]] = [[] for _ in jobs]
        async with aclosing(self.run(jobs)) as events:
            async for index, event in events:
                found[index].append(event)
        return found

    def abort(self, job_id: str, tenant: str) -> int:
        """End the jobs of that id and tenant, whose runs go on to their last events. How many there were."""
        return self._abort(
            run for run in self._runs.values() if (run.job.id, run.job.tenant) == (job_id, tenant)
        )

    def abort_all(self, tenant: str | None = None) -> int:
        """End every job, or every one of a tenant."""
        return self._abort(run for run in self._runs.values() if tenant in (None, run.job.tenant))

    def end_programs(self, program_ids: Sequence[str], how: Ending, tenant: str) -> Future[None]:
        """What becomes of these branches of a tenant's."""
        return self.engine.end_programs([_owned(tenant, name) for name in program_ids], how)

    async def flush(self, timeout: float = 0.0) -> int:
        """Forget what is cached, when nothing runs. Raises InvalidRequest if that takes longer than so."""
        if not await self._idle(timeout):
            raise InvalidRequest(f"the cache is flushed when nothing runs, but {len(self._runs)} requests do")
        return await asyncio.wrap_future(self.engine.flush())

    async def drain(self, timeout: float) -> None:
        """Take nothing more; let what runs end within the time, then abort it."""
        self.draining = True
        if not await self._idle(timeout):
            self.abort_all()
            await self._idle(_ABORT_SECONDS)

    # -- inside ------------------------------------------------------------------------------------

    def _let_in(self, jobs: Sequence[Job]) -> list[_Run]:
        """All of them or none."""
        settings, tokens = self.settings, sum(job.length for job in jobs)
        if len(jobs) > settings.max_queued:
            most = settings.max_queued
            raise InvalidRequest(f"a request may have {most} prompts, as many as may wait, got {len(jobs)}")
        longest, most = max(job.longest for job in jobs), self.engine.max_length
        if longest > most:  # known here at once; the engine would look at every token first
            raise TooLarge(f"a prompt has {longest} tokens, but context and pool hold {most}")
        reason = None
        if self.draining:
            reason = "the server is shutting down"
        elif self._waiting + len(jobs) > settings.max_queued:
            most = settings.max_queued
            reason = f"{self._waiting} requests wait already, and {len(jobs)} more would be over {most}"
        elif self._waiting_tokens + tokens > settings.max_queued_tokens and self._waiting:
            reason = (
                f"{self._waiting_tokens} tokens of prompts wait already, and {tokens} more would be over "
                f"{settings.max_queued_tokens}"
            )
        if reason is not None:
            for job in jobs:
                self._watcher.turned_away(job)
            raise Busy(f"{reason}; try again later")
        return [self._opened(job) for job in jobs]

    def _opened(self, job: Job) -> _Run:
        run = _Run(job, f"r{next(self._names)}", self._watcher.arrived(job))
        self._runs[run.id] = run
        self._waiting += 1
        self._waiting_tokens += job.length
        return run

    async def _compile(self, runs: Sequence[_Run]) -> None:
        """Until the engine need not wait for the grammars: one that is refused is known before anything runs.
        Jobs that are aborted meanwhile are not waited for."""
        specs = {run.job.sampling.structure: run for run in runs}
        for spec, run in specs.items():
            if spec is None:
                continue
            ready = asyncio.ensure_future(asyncio.wrap_future(self.engine.compile(spec)))
            aborted = asyncio.ensure_future(run.aborted.wait())
            try:
                await asyncio.wait((ready, aborted), return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    await ready
            finally:
                ready.cancel()
                aborted.cancel()

    async def _submit(self, runs: Sequence[_Run], events: _Events) -> None:
        accepted = []
        for index, run in enumerate(runs):
            request = _request(run)
            run.open = set(request.choices)
            run.submitted = True
            accepted.append(self.engine.submit(request, partial(self._deliver, events, index)))
            if run.aborted.is_set():
                self.engine.abort(run.id)
        for run, future in zip(runs, accepted, strict=True):
            try:
                await asyncio.wrap_future(future)
            except (InvalidRequest, EngineStopped):
                run.open.clear()  # it never ran: there is nothing to abort
                raise

    def _deliver(self, events: _Events, index: int, event: Event) -> None:
        self._post.send(partial(events.put, (index, event)))

    def _note(self, run: _Run, event: Event) -> None:
        if run.waits:
            self._stop_waiting(run)
        run.cached_tokens = max(run.cached_tokens, event.cached_tokens)
        run.completion_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            run.open.discard(event.index)
        run.watch.event(event)

    def _stop_waiting(self, run: _Run) -> None:
        run.waits = False
        self._waiting -= 1
        self._waiting_tokens -= run.job.length

    def _let_go(self, run: _Run, cause: BaseException | None) -> None:
        if run.waits:
            self._stop_waiting(run)
        if run.open and run.submitted:
            self.engine.abort(run.id)
        del self._runs[run.id]
        run.watch.over(cause)
        if not self._runs:
            self._ended.set()
            self._ended = asyncio.Event()

    def _abort(self, runs: Iterable[_Run]) -> int:
        found = list(runs)
        for run in found:
            run.aborted.set()
            if run.submitted:
                self.engine.abort(run.id)
        return len(found)

    async def _idle(self, timeout: float) -> bool:
        """Whether nothing runs, now or within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._runs:
                    await self._ended.wait()
        return not self._runs


_ABORT_SECONDS = 5.0


def _request(run: _Run) -> Request:
    job = run.job
    salt = namespace_salt(job.tenant, job.salt, job.extra_key)
    return Request(
        run.id,
        job.prompt_ids,
        job.sampling,
        salt,
        priority=job.priority,
        continuations=job.continuations,
        tenant=job.tenant,
        hint=_hint_of(job),
    )


def _hint_of(job: Job) -> Hint:
    """Its names as the engine knows them, which knows those of all tenants."""
    hint, tenant = job.hint, job.tenant
    if not tenant or hint == NO_HINT:
        return hint
    return replace(
        hint,
        program_id=_owned(tenant, hint.program_id),
        parent_id=_owned(tenant, hint.parent_id),
        fork_group=_owned(tenant, hint.fork_group),
    )


def _owned(tenant: str, name: str) -> str:
    """A name that no two tenants share: of a tenant, the part before the slash has one length."""
    return f"{tenant}/{name}" if tenant and name else name


def namespace_salt(*parts: str) -> str:
    """One text for all of them, such that different ones give different texts."""
    return json.dumps(parts) if any(parts) else ""


def tenant_of(api_key: str) -> str:
    """What stands for a key where the key itself must not."""
    return hashlib.sha256(api_key.encode()).hexdigest()[:32]
