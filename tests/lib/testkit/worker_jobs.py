"""Jobs for the process of a CompileWorker, which imports them by name."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from radixlm.runtime.errors import InvalidRequest


def keep(value: object) -> object:
    """A setup: the context of the jobs."""
    return value


def fail(message: str) -> object:
    raise ValueError(message)


def echo(context: object, value: object) -> object:
    return context, value


def process_id(context: object) -> int:
    return os.getpid()


def loop(context: object) -> None:
    while True:
        pass


def sleep_long(context: object, started: str) -> None:
    Path(started).touch()
    time.sleep(600)


def overflow_the_stack(context: object) -> None:
    ctypes.string_at(0)


def abort(context: object) -> None:
    os.abort()


def be_killed(context: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def eat_memory(context: object) -> None:
    held = []
    while True:
        held.append(bytearray(1 << 22))


def hold_memory(context: list[bytes], size: int) -> int:
    context.append(bytes(size))
    return os.getpid()


def many_bytes(context: object, size: int) -> bytes:
    return bytes(size)


def refuse(context: object) -> None:
    raise InvalidRequest("regex must not be 'this'")


def divide_by_zero(context: object) -> float:
    return 1 / 0


def recurse(context: object) -> None:
    recurse(context)


def write_to_standard_output(context: object) -> bytes:
    print("noise")
    os.write(1, b"noise" * 10_000)
    return os.read(0, 10)


def interrupt_itself(context: object) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "alive"


def modules(context: object) -> list[str]:
    import sys

    return sorted(sys.modules)
