"""Standard output and standard error of the commands.

Output is UTF-8 whatever the locale, and goes out at once, so that a disk that is full is one line and a
status and not a surprise when the process ends. A process may have been started with either stream closed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from ..errors import InvalidInput, RadixError


def require_output() -> None:
    """Raises InvalidInput if there is no standard output, which is best known before any work."""
    if sys.stdout is None or sys.stdout.closed:
        raise InvalidInput("standard output is closed: there is nowhere to write to")


def write_output(text: str) -> None:
    """Writes all of the text. Raises RadixError if that cannot be done; later output is then dropped."""
    require_output()
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    try:
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            while data:
                data = data[sys.stdout.buffer.write(data) or 0 :]  # unbuffered, it may take a part only
        else:  # a caller's stand-in that takes text alone
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
        raise RadixError("the reader of the output went away") from None
    except OSError as error:
        _drop(sys.stdout)
        raise RadixError(f"cannot write to standard output: {error.strerror or error}") from error


def write_note(line: str) -> None:
    """Writes a line on standard error, as far as there is one: the exit status says the same."""
    if sys.stderr is None or sys.stderr.closed:
        return
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Sends what the stream still holds nowhere, or the flush at the end of the process would fail again."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
