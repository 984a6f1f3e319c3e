"""The process of a CompileWorker: what it does, and how both sides speak.

Messages are pickles behind their length. The first is the setup, each other one a job with its limits; each
gets one answer. Once set up, the process does nothing itself: it forks, and where a job ends what it has
forked, it says so and forks again, in milliseconds where a start takes a third of a second. (Where forking
is not safe, a job ends the process itself.) Limits of time are timers of the system, which end a process. Its
main thread reads, so that the end of the parent is noticed in the midst of a job, and another one works.
Importing this must stay cheap: it is what a start costs.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import pickle
import queue
import signal
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple, NoReturn

from ..errors import InvalidRequest

try:
    import resource
except ImportError:  # not on Windows: processor time and memory are then bounded by real time alone
    resource = None  # type: ignore[assignment]

_LENGTH = struct.Struct("<Q")
_NICENESS = 10  # of equal rights, it takes half of a core from what answers requests
_STACK_BYTES = 4 << 20  # less than where the work is done again: what does not overflow here will not there
_MOST_GROWTH_BYTES = 512 << 20
_NO_MORE, _RENEWED = 64, 65  # exit statuses: the parent has closed its end; it wants another process


@dataclass(frozen=True, slots=True)
class JobLimits:
    """`seconds` of processor time, and `wall_seconds` from sending the job to having its answer."""

    seconds: float
    wall_seconds: float
    memory_bytes: int
    answer_bytes: int


class Answer(NamedTuple):
    """What became of a job; `value` is its result, or a message, or what `ended` the process: an exit status
    or minus the number of a signal. `is_last`: the process has grown, and wants RENEW before another job."""

    outcome: Literal["done", "invalid", "failed", "ended"]
    value: object
    is_last: bool = False


RENEW = b""


class _Pipes(NamedTuple):
    questions: BinaryIO
    answers: BinaryIO
    nowhere: int


def main() -> None:
    """Until the parent closes its end, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    pipes = _own_pipes()
    try:
        setup, args, kwargs = pickle.loads(received(pipes.questions))
        answer = _outcome(setup, *args, **kwargs)
        ready = Answer("done", None) if answer.outcome == "done" else answer
        send(pipes.answers, pickle.dumps(ready))
    except EOFError:
        os._exit(0)
    if hasattr(os, "nice"):
        os.nice(_NICENESS)  # for jobs: setting up is bounded, and somebody waits for it
    os.dup2(pipes.nowhere, 2)  # what engines say of hostile input, to the last words of a crash
    if sys.platform == "linux":
        _serve_in_children(answer.value, pipes)
    _serve(answer.value, pipes, bytearray(1))


def _own_pipes() -> _Pipes:
    """The pipes under other numbers: nothing that prints may write between the answers."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    while nowhere < 3:  # a program may have closed its standard streams: what is opened takes their numbers
        nowhere = os.open(os.devnull, os.O_RDWR)
    pipes = _Pipes(os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb"), nowhere)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    return pipes


def _serve_in_children(context: object, pipes: _Pipes) -> NoReturn:
    warnings.simplefilter("ignore")  # of threads, which libraries for arrays start: they fork well
    gc.freeze()
    is_busy = mmap.mmap(-1, 1)  # shared with the children
    while True:
        child = os.fork()
        if not child:
            _serve(context, pipes, is_busy)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == _NO_MORE:
            os._exit(0)
        if is_busy[0]:
            is_busy[0] = 0
            send(pipes.answers, pickle.dumps(Answer("ended", status)))


def _serve(context: object, pipes: _Pipes, is_busy: mmap.mmap | bytearray) -> NoReturn:
    """`is_busy[0]` is 1 from reading a job to answering it."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.stack_size(_STACK_BYTES)
    threading.Thread(target=_work, args=(jobs, context, pipes, is_busy), daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            job = received(pipes.questions)
            if job == RENEW:
                os._exit(_RENEWED)
            is_busy[0] = 1
            jobs.put(job)
    os._exit(_NO_MORE)


def _work(
    jobs: queue.SimpleQueue[bytes], context: object, pipes: _Pipes, is_busy: mmap.mmap | bytearray
) -> None:
    try:
        size = address_space()
        while True:
            limits, job, args, kwargs = pickle.loads(jobs.get())
            message = _bounded(limits, size + _MOST_GROWTH_BYTES, job, context, *args, **kwargs)
            is_busy[0] = 0
            send(pipes.answers, message)
    finally:
        os._exit(1)  # nobody would answer from now on


def _bounded(
    limits: JobLimits, most: int, job: Callable[..., object], *args: object, **kwargs: object
) -> bytes:
    """The answer as a message; it is the last if the process is then larger than `most`."""
    with _limited_memory(limits.memory_bytes):
        if not hasattr(signal, "setitimer"):
            return _packed(_outcome(job, *args, **kwargs), limits, most)
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds)
        try:
            return _packed(_outcome(job, *args, **kwargs), limits, most)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)


def _outcome(function: Callable[..., object], *args: object, **kwargs: object) -> Answer:
    try:
        return Answer("done", function(*args, **kwargs))
    except InvalidRequest as error:
        return Answer("invalid", str(error))
    except MemoryError:
        return Answer("failed", "takes more memory than there is for it")
    except RecursionError:
        return Answer("failed", "is nested too deeply")
    except Exception as error:
        return Answer("failed", f"failed with {type(error).__name__}: {error}")


def _packed(answer: Answer, limits: JobLimits, most: int) -> bytes:
    is_last = address_space() > most
    packed = _outcome(pickle.dumps, answer._replace(is_last=is_last))
    if isinstance(packed.value, bytes) and len(packed.value) > limits.answer_bytes:
        packed = Answer("failed", f"has a result of more than {limits.answer_bytes >> 20} MiB")
    return packed.value if isinstance(packed.value, bytes) else pickle.dumps(packed._replace(is_last=is_last))


@contextlib.contextmanager
def _limited_memory(more: int) -> Iterator[None]:
    size = address_space()
    if resource is None or not size:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = size + more if hard == resource.RLIM_INFINITY else min(hard, size + more)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def send(pipe: BinaryIO, message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def received(pipe: BinaryIO) -> bytes:
    return _exactly(pipe, _LENGTH.unpack(_exactly(pipe, _LENGTH.size))[0])


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    parts = []
    while size:
        part = pipe.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def address_space() -> int:
    """In bytes; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return 0
