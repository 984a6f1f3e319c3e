"""GrammarCompiler: specs to compiled grammars, off the caller's thread.

Equal specs in progress are compiled once; what came of a spec is cached. Work waits in lanes, each a thread
with a worker process of its own, so that what is cheap never waits for what is not: what is cheap by its
form; schemas and tags; everything else; and what turned out to take long in one of these two. How a kind is
compiled is not known here, nor who asks. What must hold: every future is answered, with a grammar, with
InvalidRequest, or, once the compiler is closed, with EngineStopped.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from ..errors import EngineStopped, InvalidRequest, RadixError, RequestFailed
from .cheap_specs import is_cheap
from .compile_jobs import (
    WARM_UP,
    Attempt,
    CompileLimits,
    Engines,
    NotQuick,
    compile_at_once,
    compile_spec,
    warmed,
)
from .compile_lanes import Lane
from .compile_worker import CompileWorker, JobFailed
from .grammar_cache import CacheStats, Failure, GrammarCache
from .protocol import CompiledGrammar
from .spec import GrammarSpec

if TYPE_CHECKING:
    from .vocabulary import GrammarVocabulary

_CLOSED = "the grammar compiler is closed"

Build: TypeAlias = "Callable[[GrammarVocabulary], Engines]"
Recipe: TypeAlias = Callable[[Attempt, GrammarSpec], CompiledGrammar]


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """`pending` are waiting or being compiled; the rest counts from the beginning. `put_aside` took longer
    than a quick job may; `failed` were answered with an error; `worker_starts` are processes."""

    cache: CacheStats
    pending: int
    compiled: int
    failed: int
    put_aside: int
    worker_starts: int


class GrammarCompiler:
    """Compiles for one vocabulary. `build` makes the engines: here, and again in each worker process, so it
    is a function of a module. Nothing is started or loaded before the first spec."""

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        *,
        cache_bytes: int = 256 << 20,
        limits: CompileLimits | None = None,
        build: Build | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        cache = GrammarCache(cache_bytes, now=now)
        self._core = _Core(vocabulary, cache, limits or CompileLimits(), build or build_engines, now)
        self._finalizer = weakref.finalize(self, self._core.close)

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """Its future is the caller's own: cancelling it takes the answer from nobody else. Done callbacks run
        on a thread of the compiler, or at once, and must return at once."""
        return self._core.submit(spec)

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Waits for it."""
        return self.submit(spec).result()

    def prepare(self) -> None:
        """Load the engines and start the processes now, which the first specs would else wait for."""
        self._core.prepare()

    def stats(self) -> CompilerStats:
        return self._core.stats()

    def close(self) -> None:
        """End threads and processes; what is pending is answered with EngineStopped. Grammars remain usable,
        but the texts of relaxed ones are no longer checked. Closing twice is one close."""
        self._finalizer()


def build_engines(vocabulary: GrammarVocabulary) -> Engines:
    """The real ones, whose libraries are loaded here and not with this module."""
    from .gbnf import gbnf_to_lark
    from .llguidance_backend import LlguidanceBackend
    from .outlines_backend import OutlinesBackend
    from .regex_dialect import to_rust
    from .schema_check import check_instance
    from .schema_normalise import normalise
    from .tags import tags_grammar

    def to_lark(spec: GrammarSpec) -> str:
        if spec.kind == "gbnf":
            return gbnf_to_lark(spec.text)
        return tags_grammar(spec.text, vocabulary, normalise, spec.compact)[0]

    direct, index = LlguidanceBackend(vocabulary), OutlinesBackend(vocabulary)
    return Engines(direct, index, normalise, check_instance, to_rust, to_lark)


@dataclass(slots=True)
class _Job:
    spec: GrammarSpec
    asked: float
    futures: list[Future[CompiledGrammar]] = field(default_factory=list)
    spent: float = 0.0

    @property
    def is_wanted(self) -> bool:
        return not all(future.cancelled() for future in self.futures)

    def answer(self, outcome: CompiledGrammar | RadixError) -> None:
        for future in self.futures:
            _answer(future, outcome)


class _Core:
    """All but the object that callers hold, so that dropping that one ends the threads."""

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        cache: GrammarCache,
        limits: CompileLimits,
        build: Build,
        now: Callable[[], float],
    ) -> None:
        self._vocabulary = vocabulary
        self._cache = cache
        self._limits = limits
        self._build = build
        self._now = now
        self._lock = threading.RLock()  # the garbage collector may close it within any of these methods
        self._building = threading.Lock()
        self._engines: Engines | None = None
        self._jobs: dict[GrammarSpec, _Job] = {}
        self._closed = False
        self._compiled = self._failed = self._put_aside = 0
        schemas, others, long, self._checker = self._workers = tuple(
            CompileWorker(_in_worker, build, vocabulary) for _ in range(4)
        )
        self._cheap = Lane("cheap", partial(self._work, schemas, compile_at_once, False))
        self._schemas = Lane("schemas", partial(self._work, schemas, compile_spec, True))
        self._others = Lane("others", partial(self._work, others, compile_spec, True))
        self._long = Lane("long", partial(self._work, long, compile_spec, False))
        self._lanes = (self._cheap, self._schemas, self._others, self._long)

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        known = self._known_or_queued(spec, future)
        if known is not None:
            _answer(future, known)
        return future

    def prepare(self) -> None:
        self._own_engines().direct.regex(WARM_UP)
        for worker in self._workers:
            worker.start()

    def stats(self) -> CompilerStats:
        with self._lock:
            return CompilerStats(
                cache=self._cache.stats(),
                pending=len(self._jobs),
                compiled=self._compiled,
                failed=self._failed,
                put_aside=self._put_aside,
                worker_starts=sum(worker.starts for worker in self._workers),
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            jobs = list(self._jobs.values())
            self._jobs.clear()
        for lane in self._lanes:
            lane.stop()
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.close()
        for job in jobs:
            job.answer(EngineStopped(_CLOSED))
        for lane in self._lanes:
            lane.join()

    def _known_or_queued(
        self, spec: GrammarSpec, future: Future[CompiledGrammar]
    ) -> CompiledGrammar | RadixError | None:
        with self._lock:
            if self._closed:
                return EngineStopped(_CLOSED)
            if spec in self._jobs:
                self._jobs[spec].futures.append(future)
                return None
            found = self._cache.find(spec)
            if found is not None:
                return InvalidRequest(found.message) if isinstance(found, Failure) else found
            if len(self._jobs) >= self._limits.most_waiting:
                return InvalidRequest(f"{len(self._jobs):,} grammars wait to be compiled; try again later")
            job = _Job(spec, self._now(), [future])
            self._lane_of(spec).put(job)
            self._jobs[spec] = job
            return None

    def _lane_of(self, spec: GrammarSpec) -> Lane[_Job]:
        if is_cheap(spec):
            return self._cheap
        return self._schemas if spec.kind in ("json", "tags") else self._others

    # -- on the threads of the lanes ---------------------------------------------------------------

    def _work(self, worker: CompileWorker, how: Recipe, is_quick: bool, job: _Job) -> None:
        if not self._may_begin(job):
            return
        try:
            attempt = Attempt(self._own_engines(), worker, self._checker, self._limits, is_quick, job.spent)
            try:
                self._end(job, self._compile(attempt, how, job.spec))
            except NotQuick:
                self._set_aside(job, attempt.spent)
        except RadixError as error:
            self._end(job, error)
        except Exception as error:  # a fault of ours: who waits must hear of it, and the lane goes on
            failure = RequestFailed(f"compiling the grammar failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._end(job, failure)

    def _may_begin(self, job: _Job) -> bool:
        with self._lock:
            if self._jobs.get(job.spec) is not job:  # closed
                return False
            if not job.is_wanted:
                del self._jobs[job.spec]
                return False
        most = self._limits.most_waiting_seconds
        if self._now() - job.asked <= most:
            return True
        text = f"the grammar waited more than {most:g} s for others to be compiled; try again later"
        self._end(job, InvalidRequest(text), keep=False)
        return False

    def _compile(self, attempt: Attempt, how: Recipe, spec: GrammarSpec) -> CompiledGrammar:
        if spec.after is None:
            return how(attempt, spec)
        inner_spec = replace(spec, after=None)
        inner = self._cache.find(inner_spec)
        if isinstance(inner, Failure):
            raise InvalidRequest(inner.message)
        if inner is None:
            inner = how(attempt, inner_spec)
            self._cache.keep(inner_spec, inner)
        from .after import AfterMarker

        return AfterMarker(inner, spec.after, self._vocabulary)

    def _set_aside(self, job: _Job, spent: float) -> None:
        job.spent = spent
        with self._lock:
            self._put_aside += 1
        self._long.put(job)

    def _end(self, job: _Job, outcome: CompiledGrammar | RadixError, keep: bool = True) -> None:
        """Whoever takes the job out of the dictionary answers it: nobody else does."""
        with self._lock:
            if self._jobs.get(job.spec) is not job:
                return
            del self._jobs[job.spec]
            if isinstance(outcome, RadixError):
                self._failed += 1
                if keep and isinstance(outcome, InvalidRequest):
                    for_good = not isinstance(outcome.__cause__, JobFailed)
                    self._cache.keep_failure(job.spec, str(outcome), for_good=for_good)
            else:
                self._compiled += 1
                self._cache.keep(job.spec, outcome)
        job.answer(outcome)

    def _own_engines(self) -> Engines:
        with self._building:
            if self._engines is None:
                self._engines = self._build(self._vocabulary)
            return self._engines


def _answer(future: Future[CompiledGrammar], outcome: CompiledGrammar | RadixError) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, RadixError):
        error = type(outcome)(*outcome.args)  # each thread that raises it adds to its traceback
        error.__cause__ = outcome.__cause__
        future.set_exception(error)
    else:
        future.set_result(outcome)


def _in_worker(build: Build, vocabulary: GrammarVocabulary) -> Engines:
    return warmed(build(vocabulary))
