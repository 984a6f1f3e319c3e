"""CompileWorker: a child process for work on hostile input, which may never end, take all memory or crash.

One job at a time, bounded in processor time, real time, address space and size of the answer; whatever a job
does, it fails alone. The process is started by the first job, with the interpreter and the import path of
this one, whatever its main module is; it ignores Ctrl-C and ends when its parent does. Jobs are functions of
modules, sent by name; what they are about is not known here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar, cast

from ..errors import EngineStopped, InvalidRequest, RequestFailed
from . import worker_process
from .worker_process import RENEW, Answer, JobLimits, received, send

P = ParamSpec("P")
T = TypeVar("T")

_START_SECONDS = 60.0
_END_SECONDS = 0.5
_GRACE_SECONDS = 2.0  # the process itself knows the time of a job; this is for one that cannot end it
_PACKAGE = __name__.split(".")[0]
_BOOT = """
import importlib, importlib.util, json, sys
sys.path[:], package, root, name = json.loads(sys.argv[1])
init = root + "/__init__.py"
spec = importlib.util.spec_from_file_location(package, init, submodule_search_locations=[root])
sys.modules[package] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[package])
importlib.import_module(name).main()
"""


class JobFailed(Exception):
    """A job that came to nothing; the message ends a sentence that begins with what was tried."""


class JobTimedOut(JobFailed):
    """It was stopped, after the processor time or the real time it had."""


class CompileWorker:
    """Runs `job(context, *args)` in the process, where context is what `setup(*args)` gave when it started.

    All methods may be called from any thread; jobs of several threads wait for each other.
    """

    def __init__(self, setup: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        self._setup = (setup, args, kwargs)
        self._one_job = threading.Lock()
        self._process: _Process | None = None
        self._closed = False
        self.starts = 0

    @property
    def process_id(self) -> int | None:
        """Of what was started, which is not what jobs run in; None where nothing is running."""
        process = self._process
        return None if process is None or process.has_ended else process.pid

    def start(self) -> None:
        """Start the process if it does not run, which the next job would else have to wait for."""
        with self._one_job:
            self._running()

    def run(
        self, limits: JobLimits, job: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:  # Any: the context is of the type that `setup` returns
        """Raises JobFailed; InvalidRequest, if that is what the job raised; EngineStopped, once closed; and
        RequestFailed, if no process can be started."""
        with self._one_job:
            process = self._running()
            try:
                answer = process.ask((limits, job, args, kwargs), limits.wall_seconds + _GRACE_SECONDS)
            except _Ended as end:
                self._discard()
                self._refuse_if_closed()
                raise _failure(end, limits) from None
            except BaseException:  # Ctrl-C, if this is the main thread: nobody waits for the answer now
                self._discard()
                raise
        if answer.outcome == "ended":
            raise _failure(_Ended(cast(int, answer.value)), limits)
        return cast(T, _opened(answer))

    def hang_up(self) -> None:
        """Let the process end by itself, as `close` does, without waiting for that."""
        self._closed = True
        process = self._process
        if process is not None:
            process.hang_up()

    def close(self) -> None:
        """End the process, in the midst of a job too, which then raises EngineStopped and clears up."""
        self._closed = True
        is_idle = self._one_job.acquire(blocking=False)
        process = self._process
        if not is_idle and process is not None:
            process.interrupt()
        if is_idle or self._one_job.acquire(timeout=1.0):
            try:
                self._discard()
            finally:
                self._one_job.release()

    def _running(self) -> _Process:
        if self._process is not None and not self._process.is_usable:
            self._discard()
        self._refuse_if_closed()
        if self._process is None:
            self._process = self._started()
        return self._process

    def _started(self) -> _Process:
        try:
            process = self._process = _Process()
        except (OSError, RuntimeError) as error:  # RuntimeError: the interpreter is shutting down
            raise RequestFailed(f"the compile process cannot be started: {error}") from None
        self.starts += 1
        self._refuse_if_closed()  # `close` may have looked for a process just before there was this one
        try:
            _opened(process.ask(self._setup, _START_SECONDS))
        except (_Ended, JobFailed) as error:
            self._discard()
            self._refuse_if_closed()
            raise RequestFailed(f"the compile process cannot be started: {error}") from None
        except BaseException:
            self._discard()
            raise
        return process

    def _discard(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _refuse_if_closed(self) -> None:
        if self._closed:
            self._discard()
            raise EngineStopped("the grammar compiler is closed")


class _Ended(Exception):
    """The process, or what it had forked for the job, ended without an answer: with this exit status, or by
    the signal of minus this number, if not for time that ran out."""

    def __init__(self, status: int, out_of_time: bool = False) -> None:
        super().__init__("it took too long" if out_of_time else _words_for(status))
        self.status = status
        self.out_of_time = out_of_time


class _Process:
    """A child process, asked by one thread at a time."""

    def __init__(self) -> None:
        if not sys.executable:
            raise OSError("this interpreter does not know its own executable")
        root = os.path.dirname(os.path.abspath(cast(str, sys.modules[_PACKAGE].__file__)))
        path = [entry for entry in sys.path if isinstance(entry, str)]
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, json.dumps([path, _PACKAGE, root, worker_process.__name__])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the parent; niceness counts for nothing in a session of its own
        )
        self._question = threading.Lock()
        self._asked = 0
        self._out_of_time = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    @property
    def is_usable(self) -> bool:
        """It may be no more without a job: killed where the machine has no memory left, or by a watch whose
        time ran out as the answer came."""
        return not (self.has_ended or self._out_of_time)

    def ask(self, message: object, wall_seconds: float) -> Answer:
        """Raises _Ended; after that, there is no process to ask."""
        with self._question:
            self._asked += 1
            watch = threading.Timer(wall_seconds, self._stop, [self._asked])
        watch.daemon = True
        watch.start()
        try:
            send(cast(BinaryIO, self._popen.stdin), pickle.dumps(message))
            answer: Answer = pickle.loads(received(cast(BinaryIO, self._popen.stdout)))
            if answer.is_last:
                send(cast(BinaryIO, self._popen.stdin), RENEW)
        except (OSError, EOFError, ValueError):  # ValueError: the pipe was closed by `end`
            self.end()
            raise _Ended(self._popen.returncode, self._out_of_time) from None
        finally:
            watch.cancel()
            with self._question:
                self._asked += 1  # a watch that is late must not stop what comes next
        return answer

    def end(self) -> None:
        self.interrupt()
        self._popen.wait()
        cast(BinaryIO, self._popen.stdout).close()

    def interrupt(self) -> None:
        """End it, while another thread asks or not. Closing its pipe does, and leaves nothing behind. If it
        is too busy to notice, it is killed, which leaves a dead grandchild to whoever has orphans to reap."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(_END_SECONDS)
        self._kill()

    def hang_up(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # what cannot be written is for nobody
            cast(BinaryIO, self._popen.stdin).close()

    def _kill(self) -> None:
        if self.has_ended:
            return
        if sys.platform == "win32":
            self._popen.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)  # it leads a group of its own

    def _stop(self, question: int) -> None:
        with self._question:
            if question == self._asked:
                self._out_of_time = True
                self._kill()


def _opened(answer: Answer) -> object:
    if answer.outcome == "invalid":
        raise InvalidRequest(str(answer.value))
    if answer.outcome == "failed":
        raise JobFailed(str(answer.value))
    return answer.value


def _failure(end: _Ended, limits: JobLimits) -> JobFailed:
    if end.out_of_time or _is_signal(end.status, "SIGALRM"):
        return JobTimedOut(f"takes longer than {limits.wall_seconds:.2g} s")
    if _is_signal(end.status, "SIGPROF"):
        return JobTimedOut(f"takes longer than {limits.seconds:.2g} s")
    return JobFailed(f"is more than its engine can do ({end})")


def _is_signal(status: int, name: str) -> bool:
    return hasattr(signal, name) and status == -getattr(signal, name)


def _words_for(status: int) -> str:
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended with status {status}"
