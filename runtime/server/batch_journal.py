"""Journal: the results of a batch so far, two files of JSON lines that grow: output and errors.

Each line is there for good once `write` returns, and nothing else says that a line of the input is done. If
the process ends inside a write, a torn line is left at the end: it is cut off when the journal is opened
again, and that line of the input runs again. So no line is there twice, and none is lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .batch_store import ERRORS, OUTPUT
from .replies import dumped


@dataclass(frozen=True, slots=True)
class WholeLines:
    """Of one file: whose results they are, and up to which byte they go."""

    ids: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class Results:
    """What a journal holds."""

    output: WholeLines
    errors: WholeLines


class Journal:
    """Opened to go on behind `results`; what comes after those is cut off. Raises OSError."""

    def __init__(self, folder: Path, results: Results) -> None:
        self._output = _Lines(folder / OUTPUT, results.output.size)
        self._errors = _Lines(folder / ERRORS, results.errors.size)
        self.done = {*results.output.ids, *results.errors.ids}
        self.completed, self.failed = len(results.output.ids), len(results.errors.ids)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of output and errors."""
        return self._output.size, self._errors.size

    def write(self, line: Mapping[str, object], *, failed: bool) -> None:
        """Add a result. Raises OSError, or TypeError or ValueError for what is no JSON; then nothing has
        changed."""
        custom_id = line["custom_id"]
        assert isinstance(custom_id, str), "results have the id of their line"
        assert custom_id not in self.done, "a line of the input runs once"
        (self._errors if failed else self._output).write(dumped(line) + b"\n")
        self.done.add(custom_id)
        self.failed += failed
        self.completed += not failed

    def sync(self) -> None:
        """Until the disk has it. Raises OSError."""
        self._output.sync()
        self._errors.sync()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.close()
        self._errors.close()


class _Lines:
    """A file of whole lines, whatever happens to the process or the disk."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)

    def write(self, line: bytes) -> None:
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(line)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_journal(folder: Path) -> Results:
    """What is whole of what was written until the end of a process, or of its machine. Raises OSError."""
    return Results(_read_back(folder / OUTPUT), _read_back(folder / ERRORS))


def _read_back(path: Path) -> WholeLines:
    ids: set[str] = set()
    size = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                custom_id = _id_of(line)
                if custom_id is None:
                    break
                ids.add(custom_id)
                size += len(line)
    return WholeLines(frozenset(ids), size)


def _id_of(line: bytes) -> str | None:
    """None if the line is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)["custom_id"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, str) else None
