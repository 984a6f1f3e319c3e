"""Endings: what became of branches, told to a server in the background, many at a time.

Whoever says it may be on any thread, never waits and never gets an error: the hints are of use to the server,
not to the program. One request is under way at a time, and what is said meanwhile goes with the next;
only `cancelled` does not wait for more to come. What is said is put into a queue without a lock, since who
says it may be code that a collection runs, on a thread that is just saying something itself.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from .protocol import Ending

Send = Callable[[list[str], Ending], Awaitable[None]]

_LINGER_SECONDS = 0.05
_CLOSING_SECONDS = 2.0
_MOST = 1000
"""Branches in a request."""
_ORDER: dict[Ending, int] = {"released": 0, "done": 1, "cancelled": 2}


class Endings:
    """`send` tells a server; if it fails, nothing else does."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._process = os.getpid()
        self._said: deque[tuple[tuple[str, ...], Ending]] = deque()
        self._called = False  # the loop will look, and has not yet
        self._pending: dict[str, Ending] = {}  # of the loop alone
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._quiet = asyncio.Event()  # nothing is being told
        self._quiet.set()

    def attach(self) -> None:
        """From now on, send on the running loop: that of the calls whose branches may end."""
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():  # what was to be told is for the process before the fork to tell
            self._process, self._said, self._pending = os.getpid(), deque(), {}
        if self._loop is not loop:
            self._called = False
            self._loop, self._task, self._hurry, self._quiet = loop, None, asyncio.Event(), asyncio.Event()
            self._quiet.set()

    def add(self, program_ids: Sequence[str], how: Ending) -> None:
        """Of two endings of a branch the one that gives up more is told. Before the first call there is
        nobody who knows any branch, and nothing is told."""
        if self._loop is None or self._process != os.getpid():
            return
        self._said.append((tuple(filter(None, program_ids)), how))
        if not self._called or how == "cancelled":
            self._called = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._start, how == "cancelled")

    async def before_hold(self, program_id: str) -> None:
        """A new hold takes the place of the one before, whose release must not come behind it."""
        self._take()
        if self._pending.get(program_id) == "released":
            del self._pending[program_id]
        await self._quiet.wait()

    async def close(self) -> None:
        """Tell what is left, for a short time."""
        if self._loop is not asyncio.get_running_loop():
            return
        self._start(True)
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._task, _CLOSING_SECONDS)
        self._loop = None

    def _start(self, hurry: bool) -> None:
        self._called = False
        self._take()
        if hurry:
            self._hurry.set()
        if self._task is None and self._loop is not None and self._pending:
            self._task = self._loop.create_task(self._run())

    def _take(self) -> None:
        while self._said:
            program_ids, how = self._said.popleft()
            for program_id in program_ids:
                if _ORDER[how] >= _ORDER[self._pending.get(program_id, "released")]:
                    self._pending[program_id] = how

    async def _run(self) -> None:
        try:
            while self._pending:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), _LINGER_SECONDS)
                self._hurry.clear()
                self._take()
                pending, self._pending = self._pending, {}
                await self._tell(pending)
        finally:
            self._task = None

    async def _tell(self, pending: dict[str, Ending]) -> None:
        self._quiet.clear()
        try:
            for how in reversed(_ORDER):
                ids = [program_id for program_id, its in pending.items() if its == how]
                for start in range(0, len(ids), _MOST):
                    with suppress(Exception):
                        await self._send(ids[start : start + _MOST], how)
        finally:
            self._quiet.set()
