"""Guides: grammars of an engine's requests, compiled and filled on other threads than the engine's.

A request that needs a grammar which is not ready waits here, outside the scheduler, and joins it when the
grammar is there, or ends with the reason why there is none. Masks are filled on a thread of their own while
the forward pass runs. The last event of a text that has to be checked waits here for the check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

from .errors import InvalidRequest, RadixError
from .grammar.protocol import CompiledGrammar
from .grammar.spec import GrammarSpec
from .guide import Guide
from .metrics import Stopwatch
from .types import Event

if TYPE_CHECKING:
    from .grammar.compiler import GrammarCompiler


class Guides:
    """`open_compiler` is called once, on another thread, when the first grammar is asked for. `fill_time`
    runs while masks are filled, `wait_time` while they are waited for."""

    def __init__(
        self, open_compiler: Callable[[], GrammarCompiler], fill_time: Stopwatch, wait_time: Stopwatch
    ) -> None:
        self._compilers = _Lazily(open_compiler)
        self._waiting: dict[str, Future[CompiledGrammar]] = {}
        self._filler: ThreadPoolExecutor | None = None
        self._checker: ThreadPoolExecutor | None = None
        self._checks: list[tuple[Event, Future[str | None]]] = []
        self._fill_time, self._wait_time = fill_time, wait_time

    @property
    def has_checks(self) -> bool:
        """Whether last events wait for a check."""
        return bool(self._checks)

    def compile(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The grammar, now or later; from any thread. The future holds InvalidRequest if there is none."""
        return self._compilers.submit(spec)

    def prepare(self) -> None:
        """Have everything in place that the first grammars need. Blocks for a second or two."""
        self._compilers.prepare()

    def await_grammar(self, request_id: str, spec: GrammarSpec) -> CompiledGrammar | None:
        """The grammar if it is there; else the request waits, see `take_ready`. Raises InvalidRequest."""
        future = self.compile(spec)
        if not future.done():
            self._waiting[request_id] = future
            return None
        return _result(future)

    def forget(self, request_id: str) -> None:
        """Let a request that waits wait no longer."""
        self._waiting.pop(request_id).cancel()

    def take_ready(self, patience: float) -> list[tuple[str, CompiledGrammar | InvalidRequest]]:
        """The requests whose wait is over, and what it came to. Blocks for up to `patience` seconds, if
        requests wait and none is ready."""
        if patience and self._waiting:
            wait(self._waiting.values(), timeout=patience, return_when=FIRST_COMPLETED)
        ready = [request_id for request_id, future in self._waiting.items() if future.done()]
        return [(request_id, _outcome(self._waiting.pop(request_id))) for request_id in ready]

    def check(self, guide: Guide, text: str, event: Event) -> None:
        """Hold the last event of a finished text until it is known whether the text is what was asked for."""
        if self._checker is None:
            self._checker = ThreadPoolExecutor(1, thread_name_prefix="radixlm-checks")
        self._checks.append((event, self._checker.submit(guide.check, text)))

    def take_checked(self, patience: float) -> list[Event]:
        """The events whose text is checked by now; one that is wrong ends with an error. Blocks for up to
        `patience` seconds if none is there yet."""
        if patience and self._checks:
            wait([future for _, future in self._checks], timeout=patience, return_when=FIRST_COMPLETED)
        done = [held for held in self._checks if held[1].done()]  # asked once: one may end meanwhile
        self._checks = [held for held in self._checks if held not in done]
        return [_checked(event, future) for event, future in done]

    def drop_checks(self, prefix: str) -> list[Event]:
        """Wait no longer for requests whose id begins so: their last events, unchecked."""
        dropped = [event for event, _ in self._checks if event.request_id.startswith(prefix)]
        self._checks = [held for held in self._checks if held[0] not in dropped]
        return dropped

    @contextmanager
    def filling(self, guides: Sequence[tuple[Guide, int]]) -> Iterator[None]:
        """Fill the masks of guides, each after so many generated tokens, while the body runs. They are filled
        when it is left, however that is."""
        if not guides:
            yield
            return
        if self._filler is None:
            self._filler = ThreadPoolExecutor(1, thread_name_prefix="radixlm-masks")
        job = self._filler.submit(self._fill, guides)
        try:
            yield
        finally:
            with self._wait_time:
                job.result()

    def _fill(self, guides: Sequence[tuple[Guide, int]]) -> None:
        with self._fill_time:
            for guide, count in guides:
                guide.fill(count)

    def close(self) -> None:
        """Nothing is compiled or filled from here on."""
        self._waiting.clear()
        self._checks.clear()
        self._compilers.close()
        for pool in (self._filler, self._checker):
            if pool is not None:
                pool.shutdown(cancel_futures=True)


class _Lazily:
    """A compiler that is opened on another thread when it is first needed: its vocabulary takes a while."""

    def __init__(self, open_compiler: Callable[[], GrammarCompiler]) -> None:
        self._open = open_compiler
        self._lock = Lock()
        self._opener: ThreadPoolExecutor | None = None
        self._opened: Future[GrammarCompiler] | None = None

    def prepare(self) -> None:
        self._opening().result().prepare()

    def _opening(self) -> Future[GrammarCompiler]:
        with self._lock:
            if self._opened is None:
                self._opener = ThreadPoolExecutor(1, thread_name_prefix="radixlm-vocabulary")
                self._opened = self._opener.submit(self._open)
            return self._opened

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        opened = self._opening()
        if opened.done() and opened.exception() is None:
            return opened.result().submit(spec)
        promise: Future[CompiledGrammar] = Future()
        opened.add_done_callback(lambda done: _pass_on(done, spec, promise))
        return promise

    def close(self) -> None:
        with self._lock:
            opened, opener = self._opened, self._opener
        if opened is not None and opener is not None:
            opener.shutdown()
            if opened.exception() is None:
                opened.result().close()


def _pass_on(opened: Future[GrammarCompiler], spec: GrammarSpec, promise: Future[CompiledGrammar]) -> None:
    """Have the promise told what the compiler, which is open now, makes of the spec."""
    if not promise.set_running_or_notify_cancel():
        return

    def tell(done: Future[CompiledGrammar]) -> None:
        error = done.exception()
        if error is None:
            promise.set_result(done.result())
        else:
            promise.set_exception(error)

    try:
        opened.result().submit(spec).add_done_callback(tell)
    except Exception as error:
        promise.set_exception(error)


def _checked(event: Event, future: Future[str | None]) -> Event:
    error = future.exception()
    wrong = future.result() if error is None else f"{type(error).__name__}: {error}"
    if wrong is None:
        return event
    message = f"the text is not what was asked for: {wrong}"
    return replace(event, finish_reason="error", error=message)


def _outcome(future: Future[CompiledGrammar]) -> CompiledGrammar | InvalidRequest:
    try:
        return _result(future)
    except InvalidRequest as error:
        return error


def _result(future: Future[CompiledGrammar]) -> CompiledGrammar:
    """Raises InvalidRequest whatever is wrong: a request whose grammar cannot be had is refused."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, InvalidRequest):
        raise error
    reason = str(error) if isinstance(error, RadixError) else f"{type(error).__name__}: {error}"
    raise InvalidRequest(f"the grammar cannot be compiled: {reason}") from error
