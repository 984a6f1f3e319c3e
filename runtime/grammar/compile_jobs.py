"""What is done to compile each kind of grammar, and where: in the worker process, then here.

Nothing bounds what engines do with hostile text: llguidance overflows the stack, which ends the process, or
takes seconds and hundreds of megabytes whatever its limits are, and outlines_core takes all the memory. So
the worker does it first, with limits, and what it has been able to do is done again here, since most results
cannot be sent (an index of outlines_core can). Only what costs next to nothing by its form is done here at
once. Queues, caches and time that is spent waiting are not known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ..errors import InvalidRequest, RadixError
from .cheap_specs import repetitions
from .compile_worker import CompileWorker, JobFailed, JobTimedOut
from .protocol import CompiledGrammar, Grammar, Report, Unenforced
from .spec import FIELDS, GrammarSpec
from .worker_process import JobLimits

P = ParamSpec("P")
T = TypeVar("T")

_MOST_NAMED = 8
WARM_UP = "a"


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Seconds are of processor time in the worker. `quick_seconds`: what a job may take before it is put
    aside for those that take long, and begun again. `total_seconds` is real time, without that of waiting.
    An index takes some 60 us for each character of a choice, the other engine a few milliseconds for all:
    `most_indexed_choice` is in characters."""

    quick_seconds: float = 0.05
    index_seconds: float = 1.0
    prove_seconds: float = 2.0
    total_seconds: float = 5.0
    index_bytes: int = 1 << 30
    prove_bytes: int = 256 << 20
    answer_bytes: int = 32 << 20
    most_repetitions: int = 10_000
    most_indexed_choice: int = 64
    most_waiting: int = 1024
    most_waiting_seconds: float = 30.0


class DirectEngine(Protocol):
    """Compiles every kind where it is asked to (llguidance)."""

    def json(
        self, schema: object, *, compact: bool, unenforced: Sequence[Unenforced] = ()
    ) -> CompiledGrammar: ...
    def regex(self, pattern: str) -> CompiledGrammar: ...
    def choice(self, texts: Sequence[str]) -> CompiledGrammar: ...
    def lark(self, text: str) -> CompiledGrammar: ...
    def gbnf(self, text: str) -> CompiledGrammar: ...
    def tags(self, text: str, compact: bool) -> CompiledGrammar: ...
    def try_out(self, compiled: CompiledGrammar) -> None: ...


class IndexEngine(Protocol):
    """Compiles to something that can be sent from process to process (outlines_core)."""

    def regex(self, pattern: str) -> object: ...
    def choice(self, texts: Sequence[str]) -> object: ...
    def load(self, index: Any) -> CompiledGrammar: ...  # Any: what the two above give, of the engine's own


class Normalised(Protocol):
    @property
    def schema(self) -> object: ...
    @property
    def unenforced(self) -> tuple[Unenforced, ...]: ...


@dataclass(frozen=True, slots=True)
class Engines:
    """What compiles, for one vocabulary, in this process or in the worker. `to_rust` takes patterns,
    `to_lark` gbnf and tags specs, for `direct.lark`."""

    direct: DirectEngine
    index: IndexEngine
    normalise: Callable[[object], Normalised]
    check: Callable[[object, str], str | None]
    to_rust: Callable[[str], str]
    to_lark: Callable[[GrammarSpec], str]


class NotQuick(Exception):
    """It takes longer than a quick job may."""


@dataclass(slots=True)
class Attempt:
    """One go at a spec. `spent` is the real time it and earlier ones took."""

    engines: Engines
    worker: CompileWorker
    checker: CompileWorker
    limits: CompileLimits
    is_quick: bool
    spent: float = 0.0

    def index(self, job: Callable[Concatenate[Engines, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In real time it has half of what is left: there is another engine to go on with."""
        limits = self._limits(self.limits.index_seconds, self.limits.index_bytes, 0.5)
        return self._run(limits, job, *args, **kwargs)

    def prove(self, job: Callable[Concatenate[Engines, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        limits = self._limits(self.limits.prove_seconds, self.limits.prove_bytes, 1.0)
        return self._run(limits, job, *args, **kwargs)

    def _limits(self, seconds: float, memory_bytes: int, share: float) -> JobLimits:
        left = share * max(self.limits.total_seconds - self.spent, 0.01)
        if self.is_quick:
            seconds = min(seconds, self.limits.quick_seconds)
        return JobLimits(min(seconds, left), left, memory_bytes, self.limits.answer_bytes)

    def _run(
        self, limits: JobLimits, job: Callable[Concatenate[Engines, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self.worker.start()  # what a start takes is no fault of the spec
        begun = monotonic()
        try:
            return self.worker.run(limits, job, *args, **kwargs)
        except JobTimedOut:
            if self.is_quick:
                raise NotQuick from None
            raise
        finally:
            self.spent += monotonic() - begun


def compile_at_once(attempt: Attempt, spec: GrammarSpec) -> CompiledGrammar:
    """Without the worker, of a spec that `is_cheap`. Raises InvalidRequest."""
    if spec.kind == "choice":
        return _choice(attempt.engines, spec, attempt.limits)
    assert spec.kind == "json", "only choices and schemas can be cheap"
    return _json_grammar(attempt, spec, _normalised(attempt.engines, spec))


def compile_spec(attempt: Attempt, spec: GrammarSpec) -> CompiledGrammar:
    """Raises NotQuick, and InvalidRequest; its cause is a JobFailed if another time may end otherwise."""
    if spec.kind == "json":
        return _json(attempt, spec)
    if spec.kind == "regex":
        return _regex(attempt, spec)
    try:
        proven = attempt.prove(_prove, spec)
    except JobFailed as error:
        raise InvalidRequest(f"{FIELDS[spec.kind]} cannot be compiled: it {error}") from error
    return _direct(attempt.engines, proven or spec)


def _json(attempt: Attempt, spec: GrammarSpec) -> CompiledGrammar:
    try:
        normalised = attempt.prove(_prove_json, spec)
    except JobFailed as error:
        raise InvalidRequest(f"json_schema cannot be compiled: it {error}") from error
    return _json_grammar(attempt, spec, normalised)


def _json_grammar(attempt: Attempt, spec: GrammarSpec, normalised: Normalised) -> CompiledGrammar:
    unenforced = normalised.unenforced
    compiled = attempt.engines.direct.json(normalised.schema, compact=spec.compact, unenforced=unenforced)
    if not unenforced:
        return compiled
    attempt.checker.start()
    return _Checked(compiled, Report(unenforced), spec.text, attempt.checker, attempt.limits)


def _choice(engines: Engines, spec: GrammarSpec, limits: CompileLimits) -> CompiledGrammar:
    if len(spec.text) > limits.most_indexed_choice:
        return _direct(engines, spec)
    try:
        return engines.index.load(engines.index.choice(json.loads(spec.text)))
    except InvalidRequest:
        return _direct(engines, spec)


def _regex(attempt: Attempt, spec: GrammarSpec) -> CompiledGrammar:
    """By the index engine if that can, else directly."""
    try:
        spec = GrammarSpec("regex", attempt.prove(_translate, spec.text))
    except JobFailed as error:
        raise InvalidRequest(f"regex cannot be compiled: it {error}") from error
    failures: list[InvalidRequest | JobFailed] = []
    if repetitions(spec.text) <= attempt.limits.most_repetitions:
        try:
            return attempt.engines.index.load(attempt.index(_index, spec.text))
        except (InvalidRequest, JobFailed) as error:
            failures.append(error)
    try:
        attempt.prove(_prove, spec)
        return _direct(attempt.engines, spec)
    except (InvalidRequest, JobFailed) as error:
        failures.append(error)
    raise _both_failed(FIELDS[spec.kind], failures)


def _both_failed(name: str, failures: list[InvalidRequest | JobFailed]) -> InvalidRequest:
    start = f"{name} cannot be compiled: "
    reasons = [
        f"it {one}" if isinstance(one, JobFailed) else str(one).removeprefix(start) for one in failures
    ]
    error = InvalidRequest(start + "; ".join(dict.fromkeys(reasons)))
    error.__cause__ = next((one for one in failures if isinstance(one, JobFailed)), None)
    return error


def _direct(engines: Engines, spec: GrammarSpec) -> CompiledGrammar:
    if spec.kind == "choice":
        return engines.direct.choice(json.loads(spec.text))
    if spec.kind == "tags":
        return engines.direct.tags(spec.text, spec.compact)
    if spec.kind == "regex":
        return engines.direct.regex(spec.text)
    assert spec.kind in ("lark", "gbnf"), "schemas have a way of their own"
    return engines.direct.lark(spec.text) if spec.kind == "lark" else engines.direct.gbnf(spec.text)


def _normalised(engines: Engines, spec: GrammarSpec) -> Normalised:
    normalised = engines.normalise(json.loads(spec.text))
    if normalised.unenforced and not spec.relaxed:
        raise InvalidRequest(_refusal(normalised.unenforced))
    return normalised


def _refusal(unenforced: Sequence[Unenforced]) -> str:
    named = "; ".join(map(str, unenforced[:_MOST_NAMED]))
    more = len(unenforced) - _MOST_NAMED
    rest = f"; and {more:,} more" if more > 0 else ""
    return (
        f"json_schema asks for what cannot be enforced token by token: {named}{rest}. "
        "With relaxed, the finished text is checked for it instead"
    )


# -- in the worker process -----------------------------------------------------------------------------


def warmed(engines: Engines) -> Engines:
    """After a first use, so that what is loaded then is loaded once."""
    engines.normalise({})
    engines.direct.regex(WARM_UP)
    engines.index.regex(engines.to_rust(WARM_UP))
    return engines


def _prove_json(engines: Engines, spec: GrammarSpec) -> Normalised:
    normalised = _normalised(engines, spec)
    compiled = engines.direct.json(normalised.schema, compact=spec.compact, unenforced=normalised.unenforced)
    engines.direct.try_out(compiled)
    return normalised


def _prove(engines: Engines, spec: GrammarSpec) -> GrammarSpec | None:
    """A spec that means the same and leaves less to do, if there is one."""
    engines.direct.try_out(_direct(engines, spec))
    return GrammarSpec("lark", engines.to_lark(spec)) if spec.kind in ("gbnf", "tags") else None


def _translate(engines: Engines, pattern: str) -> str:
    return engines.to_rust(pattern)


def _index(engines: Engines, pattern: str) -> object:
    return engines.index.regex(pattern)


def _check(engines: Engines, schema: str, text: str) -> str | None:
    return engines.check(json.loads(schema), text)


# -- relaxed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Checked:
    """A grammar that enforces part of a schema. Checking can take as long as compiling (patterns, references
    that double), so the worker does it, within the time of a quick job."""

    compiled: CompiledGrammar
    report: Report
    schema: str
    checker: CompileWorker
    limits: CompileLimits

    @property
    def size_bytes(self) -> int:
        return self.compiled.size_bytes + len(self.schema.encode())

    def start(self) -> Grammar:
        return self.compiled.start()

    def check(self, text: str) -> str | None:
        limits = self.limits
        seconds = limits.quick_seconds
        bounds = JobLimits(seconds, limits.total_seconds, limits.prove_bytes, limits.answer_bytes)
        try:
            return self.checker.run(bounds, _check, self.schema, text)
        except JobFailed as error:
            return f"the check of the text {error}"
        except RadixError as error:
            return f"the text could not be checked: {error}"
