"""Closing: how a backend with connections is closed, by plain callers and by async ones, at most once.

Calls of a backend run on one loop, as a rule that of the programs, and its connections belong to that loop;
so what closes them runs there too, wherever it was asked for. What must hold: after it, a call is refused.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self

from .errors import InvalidCall


class Closing(ABC):
    """`close()` and `with` for plain callers, `aclose()` and `async with` for async ones, as httpx has it."""

    def close(self) -> None:
        """Tell the server what is left to tell, and close all connections; calls under way fail, and later
        ones are refused. From any thread but that of the loop its calls run on, which it would block: there
        it raises RuntimeError. Closing twice is closing once."""
        loop = self._home()
        if loop is None or not loop.is_running():
            self._drop()
        elif loop is asyncio._get_running_loop():
            raise RuntimeError(
                "close() would block the loop that it waits for: await aclose(), or use async with"
            )
        else:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()

    async def aclose(self) -> None:
        """The same for async callers, on any loop."""
        loop = self._home()
        if loop is None or not loop.is_running():
            self._drop()
        elif loop is asyncio.get_running_loop():
            await self._end()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), loop))

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    def _home(self) -> asyncio.AbstractEventLoop | None:
        """The loop of what is open, None if nothing is."""

    @abstractmethod
    async def _end(self) -> None:
        """Close all, on that loop. Done again, it does nothing."""

    @abstractmethod
    def _drop(self) -> None:
        """The same where no such loop runs (any more)."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raises InvalidCall after either."""


def is_closed(who: str) -> InvalidCall:
    """What a call gets that comes too late."""
    return InvalidCall(f"{who}: this backend was closed; make another one")
