"""Run: one run of a program, and where its body runs.

A plain body runs on a thread that only ever waits, that of the caller where he waits for it anyway; an async
one runs on the loop of whoever awaits it, or on the programs' own. Calls run on the programs' loop in any
case. A body that raises ends its run with that error, which is kept on the state, and cancels what it left.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from .branch import Branch
from .errors import Cancelled, InvalidCall, TimedOut
from .loop import body_here, result_of, run_on_loop, the_loop
from .protocol import Backend
from .session import Defaults, Session
from .state import ProgramState

if TYPE_CHECKING:
    from .program import Program

_tasks: set[asyncio.Task[None]] = set()
"""Bodies on loops of callers: a loop itself does not keep its tasks alive."""


class Run:
    """One run under way; `state` may be read at any time. Started by Program.launch."""

    def __init__(
        self,
        program: Program,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        defaults: Defaults,
        backend: Backend,
        *,
        stream: bool,
        timeout: float | None,
    ) -> None:
        self._program, self._args, self._kwargs = program, args, kwargs
        self._session = Session(backend, defaults, stream=stream)
        self.state = ProgramState(Branch(self._session))
        self.ended: Future[None] = Future()
        """Done when the body is over and so is all that it queued."""
        self._body_over: Future[None] = Future()
        self.raised: BaseException | None = None
        """By the body."""
        self._timeout = timeout
        self._task: asyncio.Task[Any] | None = None  # of an async body; Any: what it returns is not looked at
        if timeout is not None:
            self._limit(timeout)

    def body(self) -> None:
        """Run a plain body here. Raises what it raises."""
        try:
            with self._session.inside(), body_here(is_async=False):
                self.state.ret_value = self._program.func(self.state, *self._args, **self._kwargs)
                if inspect.iscoroutine(self.state.ret_value):
                    self.state.ret_value.close()
                    raise InvalidCall("the body gave a coroutine: decorate the async def itself")
        except BaseException as error:
            self._failed(error)
            raise
        self._over()

    async def body_async(self) -> None:
        """Run an async body on the loop that this is awaited on."""
        limit = asyncio.timeout(self._timeout)
        self._task = asyncio.current_task()
        try:
            with self._session.inside(), body_here(is_async=True):
                async with limit:
                    self.state.ret_value = await self._program.func(self.state, *self._args, **self._kwargs)
        except BaseException as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            told = self._too_late() if late else error
            self._failed(told)
            if late:
                raise told from error
            raise
        self._over()

    def start(self) -> None:
        """Run the body elsewhere: see `ended`."""
        self._session.body = self._body_over if self._session.stream else None
        if self._program.is_async:
            run_on_loop(self.quietly())
            return
        run = copy_context().run
        threading.Thread(target=run, args=(self._quietly_here,), name="radixlm-program", daemon=True).start()

    def start_here(self) -> None:
        """Run an async body on the loop that the caller is on."""
        self._session.body = self._body_over if self._session.stream else None
        task = asyncio.get_running_loop().create_task(self.quietly())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    def wait(self) -> None:
        """Until all has ended. What went wrong is in `state.error()`."""
        self.ended.result()

    async def done(self) -> None:
        """The same for async callers."""
        await result_of(self.ended)

    def cancel(self, error: BaseException) -> None:
        """End all that is under way with this error. A body that waits for a value gets it, an async body is
        cancelled wherever it waits."""
        if self.ended.done():
            return
        self._session.cancel(error)
        if self._task is not None and not self._body_over.done():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _quietly_here(self) -> None:
        try:
            self.body()
        except BaseException:  # it is on the state
            return

    async def quietly(self) -> None:
        """`body_async`, of which `raised` tells what it raised."""
        try:
            await self.body_async()
        except BaseException:  # as above
            return

    def _failed(self, error: BaseException) -> None:
        self.raised = error
        left = isinstance(error, asyncio.CancelledError)
        self._session.cancel(Cancelled("the program was cancelled") if left else error)
        self._over()

    def _over(self) -> None:
        self._body_over.set_result(None)
        finished = self._session.finish()
        finished.add_done_callback(self._note_end)

    def _note_end(self, finished: Future[None]) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _limit(self, seconds: float) -> None:
        error = self._too_late()

        def begin() -> None:
            timer = the_loop().call_later(seconds, self._session.cancel, error)
            self.ended.add_done_callback(lambda _: the_loop().call_soon_threadsafe(timer.cancel))

        the_loop().call_soon_threadsafe(begin)

    def _too_late(self) -> TimedOut:
        return TimedOut(f"the program took longer than the {self._timeout:g} s it may take")
