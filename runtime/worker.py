"""EngineThread: an engine on a thread of its own, with an asyncio face.

The thread owns the engine: everyone else sends it commands and gets events. It sleeps while there is
nothing to do. If it dies, every request that waits gets the cause as its terminal event, and later ones are
refused with EngineStopped. What must hold: each accepted request gets exactly one terminal event a choice,
whatever happens.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar

from .engine import Engine
from .errors import EngineStopped, InvalidRequest
from .metrics import EngineStats
from .types import Event, FinishReason, Request

T = TypeVar("T")
Deliver = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Pulse:
    """Whether the engine lives, whether it has work, and for how many seconds it has had some without the end
    of a step: 0 while it has none."""

    alive: bool
    busy: bool
    quiet_for: float


class EngineThread:
    """Runs `engine` until `close`. Methods may be called from any thread; events arrive on the engine's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wake = threading.Condition()
        self._process = os.getpid()
        self._commands: deque[_Command[Any]] = deque()  # Any: each has a result of its own type
        self._listeners: dict[str, tuple[Deliver, set[int]]] = {}
        self._stopping = False
        self._cause: BaseException | None = None
        self._busy_since: float | None = None  # the end of the last step, while there is work
        self._stats = engine.stats()
        self._thread = threading.Thread(target=self._run, name="radixlm-engine", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the engine's thread."""
        return threading.current_thread() is self._thread

    def snapshot(self) -> EngineStats:
        """The figures as they were after the last step or call, without waiting for one."""
        return self._stats

    def pulse(self) -> Pulse:
        """Without waiting for the engine."""
        since = self._busy_since
        quiet_for = 0.0 if since is None else monotonic() - since
        return Pulse(self.is_alive and self._cause is None, since is not None, quiet_for)

    def submit(self, request: Request, deliver: Deliver) -> Future[None]:
        """Queue a request. The future holds InvalidRequest or EngineStopped if it is refused; from then on
        `deliver` gets its events, on the engine's thread, where it must return at once. One that raises gets
        no more of them, and its request is aborted."""
        return self.call(partial(self._add, request, deliver))

    def abort(self, request_id: str) -> Future[bool]:
        """End all choices of a request; their terminal events follow. False if there is no such request."""
        return self.call(partial(self._engine.abort, request_id))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the engine's thread, between two steps."""
        future: Future[T] = Future()
        if os.getpid() != self._process:
            future.set_exception(
                EngineStopped("an engine works in the process that opened it, and this is a fork")
            )
            return future
        with self._wake:
            if self._stopping or self._cause is not None:
                future.set_exception(EngineStopped(f"the engine has stopped{_because(self._cause)}"))
            else:
                self._commands.append(_Command(future, function))
                self._wake.notify()
        return future

    async def stream(self, request: Request) -> AsyncIterator[Event]:
        """The events of one request, up to the terminal one of each choice. Raises what `submit` refuses
        with, and InvalidRequest if its grammar is refused later. Leaving the iteration early, or cancelling
        it, aborts the request."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def deliver(event: Event) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the rest of the events
                loop.call_soon_threadsafe(events.put_nowait, event)

        accepted = self.submit(request, deliver)
        left = len(request.choices)
        try:
            await asyncio.wrap_future(accepted)
            while left:
                event = await events.get()
                left -= event.finish_reason is not None
                if event.refused:
                    raise InvalidRequest(event.error)
                yield event
        finally:
            if left:
                # Left while it is still being accepted, it is aborted then. If it was refused, the request of
                # that id is somebody else's.
                accepted.add_done_callback(partial(self._abort_accepted, request.id))

    def close(self, timeout: float | None = None) -> None:
        """Abort what runs, deliver its terminal events and end the thread. Closing twice is one close; on the
        engine's own thread it does not wait for the end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # -- on the engine's thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._next():
                events = self._engine.step()
                self._stats = self._engine.stats()
                self._busy_since = monotonic()
                self._deliver(events)
        except BaseException as error:  # whatever it is, those who wait must hear of it
            self._cause = error
        self._end()

    def _next(self) -> bool:
        """Carry out waiting commands; sleep while there is no work. False when it is time to stop."""
        while True:
            with self._wake:
                while not (self._commands or self._stopping or self._engine.has_work):
                    self._busy_since = None
                    self._stats = self._engine.stats()  # without holds that ended while it slept
                    self._wake.wait(_bounded(self._engine.next_hold_end))
                    self._busy_since = monotonic()
                if self._stopping:
                    return False
                commands, self._commands = self._commands, deque()
            for command in commands:
                command.run()
            if commands:
                self._stats = self._engine.stats()
            if self._engine.has_work:
                return True

    def _add(self, request: Request, deliver: Deliver) -> None:
        self._engine.add(request)
        self._listeners[request.id] = (deliver, set(request.choices))

    def _abort_accepted(self, request_id: str, accepted: Future[None]) -> None:
        if not accepted.cancelled() and accepted.exception() is None:
            self.abort(request_id)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            listener = self._listeners.get(event.request_id)
            if listener is None:
                continue
            deliver, open_choices = listener
            if event.finish_reason is not None:
                open_choices.discard(event.index)
                if not open_choices:
                    del self._listeners[event.request_id]
            if not _tell(deliver, event):
                self._listeners.pop(event.request_id, None)
                self._engine.abort(event.request_id)

    def _end(self) -> None:
        """Answer everybody: those who run with a terminal event, those who ask with EngineStopped."""
        with self._wake:
            self._stopping = True
            commands, self._commands = self._commands, deque()
        reason = f"the engine has stopped{_because(self._cause)}"
        for request_id, (deliver, open_choices) in self._listeners.items():
            for index in open_choices:
                ended: FinishReason = "abort" if self._cause is None else "error"
                _tell(deliver, Event(request_id, index, finish_reason=ended, error=reason))
        self._listeners.clear()
        for command in commands:
            command.refuse(EngineStopped(reason))
        self._engine.close()


@dataclass(frozen=True, slots=True)
class _Command(Generic[T]):
    """Something to do on the engine's thread, and where its result is waited for."""

    future: Future[T]
    function: Callable[[], T]

    def run(self) -> None:
        """Whatever it raises belongs to who waits for the result: the engine's thread goes on."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)

    def refuse(self, error: EngineStopped) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def _bounded(seconds: float | None) -> float | None:
    """As long as a lock can be waited for."""
    return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)


def _tell(deliver: Deliver, event: Event) -> bool:
    """Whether the listener took the event. Its failure is its own: others wait for theirs."""
    try:
        deliver(event)
    except Exception:
        return False
    return True


def _because(cause: BaseException | None) -> str:
    return "" if cause is None else f": {type(cause).__name__}: {cause}"
