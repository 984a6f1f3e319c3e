"""Lane: a queue and the thread that works on it. What the work is is not known here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")

_STACK_BYTES = 16 << 20  # four times what the same work has had in the worker process
_JOIN_SECONDS = 3.0


class Lane(Generic[Item]):
    """A queue and the thread that works on it, started when there is something to do."""

    def __init__(self, name: str, work: Callable[[Item], None]) -> None:
        self._name = name
        self._work = work
        self._queue: SimpleQueue[Item | None] = SimpleQueue()  # its `put` may be called by the collector
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def put(self, job: Item) -> None:
        with self._lock:
            if self._thread is None and not self._stopped:
                self._thread = _started(self._run, f"radixlm-grammar-{self._name}")
        self._queue.put(job)

    def stop(self) -> None:
        """After the job it works on."""
        self._stopped = True
        self._queue.put(None)

    def join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            if self._stopped:
                return
            self._work(job)


_STACK_SIZE = threading.Lock()


def _started(target: Callable[[], None], name: str) -> threading.Thread:
    """A daemon, so that closing at the interpreter's exit can end it; closing waits for what it does."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _STACK_SIZE:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
