"""The one event loop that runs every call of every program, on a thread of its own.

Started when it is first needed; a process that was forked off starts its own. What runs on it never blocks:
whoever wants to wait does so on another thread, and is told so if he tries it here, or in an async body. It
is started without a lock: a collection that comes in the midst of it may run code that needs it as well.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Running:
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @classmethod
    def start(cls) -> _Running:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="radixlm-programs", daemon=True)
        thread.start()
        return cls(loop, thread)


_running: dict[str, _Running] = {}
"""The one of this process, under `programs`, once it is needed."""
_body_is_async: ContextVar[bool] = ContextVar("radixlm_body_is_async", default=False)


def the_loop() -> asyncio.AbstractEventLoop:
    running = _running.get("programs")
    if running is None:
        mine = _Running.start()
        running = _running.setdefault("programs", mine)
        if running is not mine:  # another was quicker
            mine.loop.call_soon_threadsafe(mine.loop.stop)
    return running.loop


def is_here() -> bool:
    """Whether the caller is on that loop's thread, where nothing may wait."""
    running = _running.get("programs")
    return running is not None and threading.get_ident() == running.thread.ident


@contextmanager
def body_here(is_async: bool) -> Iterator[None]:
    """While a body of that kind runs here."""
    token = _body_is_async.set(is_async)
    try:
        yield
    finally:
        _body_is_async.reset(token)


def may_block() -> bool:
    """Whether the caller may wait for what the programs' loop does: not on that loop, and not in an async
    body on any other, which would stand still."""
    if is_here():
        return False
    return not _body_is_async.get() or asyncio._get_running_loop() is None


def run_on_loop(coroutine: Coroutine[Any, Any, T]) -> Future[T]:  # Any: as asyncio's own signature has it
    """Run it there; the future may be waited for on any other thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, the_loop())


def refuse_to_block(instead: str) -> None:
    """Raises RuntimeError where nothing may block: for what might, whether it would this time or not."""
    if not may_block():
        raise RuntimeError(f"an async program cannot block: {instead}")


def wait_for(future: Future[T], what: str, *, is_known: bool = False) -> T:
    """The result, as soon as it is there. Where nothing may block it raises RuntimeError, unless the caller
    knows that it is there because it was awaited: that it came by chance does not count."""
    if not may_block() and not (is_known and future.done()):
        raise RuntimeError(
            f"{what} was not awaited before, and an async program cannot block: await it instead"
        )
    return future.result()


async def result_of(future: Future[T]) -> T:
    """The same for async callers, on any loop. Whoever stops waiting leaves the others their result."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_look)
    return await asyncio.shield(waiting)


def _look(waiting: asyncio.Future[Any]) -> None:
    """A failure that nobody waits for here any more is not reported as one that nobody looked at."""
    if not waiting.cancelled():
        waiting.exception()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


os.register_at_fork(after_in_child=_running.clear)
