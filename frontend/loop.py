"""The one event loop that runs every call of every program, on a thread of its own.

Started when it is first needed; a process that was forked off starts its own. What runs on it never blocks:
whoever wants to wait does so on another thread, and is told so if he tries it here, or in an async body.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_body_is_async: ContextVar[bool] = ContextVar("radixlm_body_is_async", default=False)


def the_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    if _loop is None:
        with _lock:
            if _loop is None:
                loop = asyncio.new_event_loop()
                _thread = threading.Thread(target=loop.run_forever, name="radixlm-programs", daemon=True)
                _thread.start()
                _loop = loop
    return _loop


def is_here() -> bool:
    """Whether the caller is on that loop's thread, where nothing may wait."""
    return _thread is not None and threading.get_ident() == _thread.ident


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


def wait_for(future: Future[T], what: str) -> T:
    """The result, as soon as it is there. Where nothing may block it is there, or raises RuntimeError."""
    if not future.done() and not may_block():
        raise RuntimeError(f"{what} is not there yet, and an async program cannot block: await it instead")
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


def _forget() -> None:
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
