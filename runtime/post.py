"""Post: from the engine's thread to coroutines, waking their loop once for all that comes together; and
Mailbox, where one of them waits for its own.

A wake-up costs a system call and a change of threads; a step of 64 rows has 64 events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Post:
    """Carries calls to the loop it was made in. `send` may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._is_due = False

    def send(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._is_due:
            self._is_due = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._is_due = False  # before looking: what comes from here on asks for another round
        while self._calls:
            self._calls.popleft()()


class Mailbox(Generic[T]):
    """Items for one coroutine, in the order they come. Belongs to one loop; `asyncio.Queue` does the same for
    many takers, at several times the cost."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wanted: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        wanted, self._wanted = self._wanted, None
        if wanted is not None and not wanted.done():
            wanted.set_result(None)

    async def get(self) -> T:
        """The next item, waiting for it if need be."""
        while not self._items:
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        return self._items.popleft()
