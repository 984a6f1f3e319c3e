"""Team: the threads that compute, woken and joined in less than a microsecond.

A step of a small model is hundreds of pieces of work of some tens of microseconds each, which is what a pool
of OpenMP needs to wake a thread. Here the members of a team look for work for some milliseconds before they
sleep, and nobody waits for a member who has not begun: the caller shares a job out by a counter, works on it
itself, closes it, and waits only for those who had joined. So a busy neighbour on a core costs that core and
no more, and after a fork the caller simply works alone.

One word, the gate, decides who takes part: the number of the job, whether it is closed, and how many members
are in it. Members join by compare-and-swap, so nobody can join a job that is closed. What must hold: one
thread at a time calls `run`; a job's items may be done in any order and by any thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import cache, cached_property
from glob import escape
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from weakref import WeakSet

import numpy as np
from numba import njit, types
from numba.core.caching import IndexDataCacheFile
from numba.core.ccallback import CFunc
from numba.core.sigutils import normalize_signature
from numpy.typing import NDArray

from .cpu_ir import (
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    atomic_swap,
    call_job,
    load_int,
    pause,
    store_int,
    yield_processor,
)

# Byte offsets in the memory that a team shares, each in a cache line of its own.
_GATE, _NEXT, _SLEEPERS, _STOP, _JOB, _SINGLE, _SIZE = 0, 128, 256, 384, 512, 640, 1024
_CLOSED, _MEMBERS, _STEP = 1 << 8, (1 << 8) - 1, 1 << 9
MOST_THREADS = 128
ARGUMENTS, WORDS = 12, 16
"""A job is 16 words: its function, up to 12 arguments, how many items it has (-1: as many as word 14 points
at)."""
_ITEMS, _COUNT = 13, 14
_PAUSES = 2_000
"""Looks for work before a member begins to give way to other threads: about 0.1 ms."""
_YIELDS = 30_000
"""Times it gives way before it sleeps: some milliseconds, longer than what lies between two steps."""


class Job:
    """Compiled code of the shape void (address of the job's words, item), made when it is first needed.

    Word 0 is the function itself, words 1 to 12 are its arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @cached_property
    def address(self) -> int:
        normalize: Any = normalize_signature  # untyped, as is CFunc
        signature = normalize(types.void(types.int64, types.int64))
        made: Any = CFunc(self._function, signature, locals={}, options={})
        _keep_compiled(made)
        made.compile()
        self._compiled = made  # the code lives as long as this does
        address: int = made.address
        return address


def job(function: Callable[..., Any]) -> Job:
    return Job(function)


def _compiled(function: Callable[..., Any]) -> Any:
    made: Any = njit(function, nogil=True)
    _keep_compiled(made)
    return made


def _keep_compiled(made: Any) -> None:
    """Have what numba makes of a function kept on disk, for these very sources.

    By itself numba looks at the function's own file, and would go on with old code for what that calls.
    """
    try:
        made.enable_caching()
    except RuntimeError:  # no folder to keep it in
        return
    made._cache._cache_file = _Kept(made._cache._cache_file)


class _Kept(IndexDataCacheFile):
    """Files named by what they are of: these sources, this signature, these variables, this processor.

    numba numbers them and keeps an index, neither of which is safe when several processes compile at once:
    one finds under its number what another has put there, such as the code for another number format.
    """

    def __init__(self, numbas: Any) -> None:
        base = numbas._index_name.removesuffix(".nbi")
        stamp_of_all = (*numbas._source_stamp, _sources())
        super().__init__(numbas._cache_path, base, stamp_of_all)  # type: ignore[no-untyped-call]
        stamp = sha256(repr((self._source_stamp, self._version)).encode()).hexdigest()
        self._prefix = f"{base}.{stamp[:16]}."
        self._others = f"{escape(base)}.*.nbc"

    def save(self, key: object, data: object) -> None:
        self._save_data(self._name_of(key), data)  # type: ignore[no-untyped-call]
        for path in Path(self._cache_path).glob(self._others):  # of other sources
            if not path.name.startswith(self._prefix):
                path.unlink(missing_ok=True)

    def load(self, key: object) -> object:
        """None if it is not there."""
        try:
            return self._load_data(self._name_of(key))  # type: ignore[no-untyped-call]
        except OSError:
            return None

    def _name_of(self, key: object) -> str:
        return f"{self._prefix}{sha256(repr(key).encode()).hexdigest()[:24]}.nbc"


@cache
def _sources() -> str:
    """A digest of all modules beside this one."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@_compiled
def _take_items(shared: int, job: int, items: int) -> None:
    item = atomic_add(shared + _NEXT, 1)
    while item < items:
        call_job(job, item)
        item = atomic_add(shared + _NEXT, 1)


@_compiled
def _do(shared: int, job: int) -> None:
    """Do one job, with whoever joins."""
    items = load_int(job + 8 * _ITEMS)
    if items < 0:
        items = load_int(load_int(job + 8 * _COUNT))
    if items < 2:
        for item in range(items):
            call_job(job, item)
        return
    store_int(shared + _JOB, job)
    store_int(shared + _JOB + 8, items)
    gate = (atomic_load(shared + _GATE) | _CLOSED) + _STEP - _CLOSED
    atomic_store(shared + _NEXT, 0)
    atomic_store(shared + _GATE, gate)
    _take_items(shared, job, items)
    atomic_add(shared + _GATE, _CLOSED)
    looks = 0
    while atomic_load(shared + _GATE) & _MEMBERS:
        looks += 1
        if looks < _PAUSES:
            pause()
        else:
            yield_processor()


@_compiled
def _play(shared: int, jobs: int, count: int) -> None:
    """Do jobs one after the other."""
    for n in range(count):
        _do(shared, jobs + 8 * WORDS * n)


@_compiled
def _take_sleepers(shared: int) -> int:
    """How many members sleep and have to be woken."""
    count: int = atomic_swap(shared + _SLEEPERS, 0)
    return count


@_compiled
def _run(shared, function, a, b, c, d, e, f, g, h, i, j, k, l, items, count):  # type: ignore[no-untyped-def] # noqa: E741
    """Do a job that is given in words."""
    values = (function, a, b, c, d, e, f, g, h, i, j, k, l, items, count)
    for n in range(len(values)):
        store_int(shared + _SINGLE + 8 * n, values[n])
    _play(shared, shared + _SINGLE, 1)


@_compiled
def _serve(shared: int) -> int:
    """Take part in jobs until there were none for a while (1) or the team is dissolved (0)."""
    seen, idle = -1, 0
    while atomic_load(shared + _STOP) == 0:
        gate = atomic_load(shared + _GATE)
        if not gate & _CLOSED and gate // _STEP != seen:
            if atomic_replace(shared + _GATE, gate, gate + 1):
                seen, idle = gate // _STEP, 0
                _take_items(shared, load_int(shared + _JOB), load_int(shared + _JOB + 8))
                atomic_add(shared + _GATE, -1)
            continue
        idle += 1
        if idle < _PAUSES:
            pause()
        elif idle < _PAUSES + _YIELDS:
            yield_processor()
        else:
            atomic_add(shared + _SLEEPERS, 1)
            return 1
    return 0


class Team:
    """`threads` threads in all, the caller among them. They end when the team is no longer used."""

    def __init__(self, threads: int) -> None:
        self.threads = min(max(threads, 1), MOST_THREADS)
        memory = np.zeros(_SIZE // 8 + 16, dtype=np.int64)
        self._shared = int(memory.ctypes.data + 127) // 128 * 128
        self._sleepers = memory[(self._shared + _SLEEPERS - memory.ctypes.data) // 8 :][:1]
        atomic = _Shared(memory, self._shared)
        atomic.close_gate()
        self._alarm: SimpleQueue[None] = SimpleQueue()
        self.recording: list[int] | None = None
        """Where `run` puts its words instead of doing the job, while a list is here."""
        for number in range(1, self.threads):
            threading.Thread(
                target=_member, args=(atomic, self._alarm), name=f"radixlm-{number}", daemon=True
            ).start()
        self._end = weakref.finalize(self, _dissolve, atomic, self._alarm, self.threads - 1)

    def run(self, function: int, items: int, *arguments: int, count: int = 0) -> None:
        """Do items 0 .. items-1 of the job at this address with up to 12 integers as its arguments.

        count: address of the number of items, for a job that is played again with another one.
        """
        words = (function, *arguments, *_PADDING[len(arguments)], -1 if count else items, count, 0)
        if self.recording is not None:
            self.recording += words
        else:
            self._wake()
            _run(self._shared, *words[:-1])

    def play(self, jobs: NDArray[np.int64]) -> None:
        """Do jobs that were recorded, in order."""
        self._wake()
        _play(self._shared, jobs.ctypes.data, len(jobs) // WORDS)

    def _wake(self) -> None:
        if self._sleepers[0]:
            for _ in range(_take_sleepers(self._shared)):
                self._alarm.put(None)


_PADDING = [(0,) * (ARGUMENTS - n) for n in range(ARGUMENTS + 1)]


class _Shared:
    """The memory of a team; what its threads hold, so that a team itself can go."""

    def __init__(self, memory: Any, address: int) -> None:
        self._memory = memory
        self.address = address
        _alive.add(self)

    def close_gate(self) -> None:
        _set(self.address + _GATE, _CLOSED)

    def stop(self) -> None:
        _set(self.address + _STOP, 1)


_alive: WeakSet[_Shared] = WeakSet()


def _after_fork() -> None:
    """In a child there are no members, and nobody is in the middle of a job."""
    for shared in _alive:
        shared.close_gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@_compiled
def _set(address: int, value: int) -> None:
    atomic_store(address, value)


def _member(shared: _Shared, alarm: SimpleQueue[None]) -> None:
    while _serve(shared.address):
        alarm.get()


def _dissolve(shared: _Shared, alarm: SimpleQueue[None], members: int) -> None:
    shared.stop()
    for _ in range(members):
        alarm.put(None)
