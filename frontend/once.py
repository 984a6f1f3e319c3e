"""Once: what is asked for when it is first needed, once for all who need it. Of one event loop at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Who is cancelled while waiting leaves the others theirs. After a failure it is asked again."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[T] | None = None

    async def get(self) -> T:
        task = self._task
        if task is None or _is_lost(task):
            # In a context of its own, or it would keep that of whoever asked first.
            task = self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
            task.add_done_callback(_look)
        return await asyncio.shield(task)

    def cancel(self) -> None:
        """If it is being asked."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    async def _run(self) -> T:
        return await self._ask()


def _is_lost(task: asyncio.Task[T]) -> bool:
    """Whether nothing will ever come of it here: its loop has gone, or is that of the process before a
    fork."""
    if not task.done():
        return task.get_loop() is not asyncio.get_running_loop()
    return task.cancelled() or task.exception() is not None


def _look(task: asyncio.Task[T]) -> None:
    """A failure of which all who asked have gone is not reported as one that nobody looked at."""
    if not task.cancelled():
        task.exception()
