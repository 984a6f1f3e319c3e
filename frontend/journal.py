"""Journal: which items of a batch have finished, and with what, as JSON lines that outlive the process.

The first line says which batch it is, each further one is an item that finished. A line is written at once,
whole; one that was torn by a kill is cut off when the file is opened again. An item counts as finished only
where it stands at the same place in the batch with the same arguments. One process at a time has a journal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from .errors import InvalidCall, ProgramError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a finished item. `values` has what `s.value(name)` gave, where that is plain data, and
    else [why not]. Everything is as JSON has it: a tuple comes back as a list."""

    text: str
    variables: Mapping[str, object] = field(default_factory=dict)
    meta: Mapping[str, object] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    messages: Sequence[Mapping[str, str]] = ()
    returned: object = None


class Journal:
    """The file at `path`, locked for as long as it is open. `finished`: records by the place of their item.

    Raises InvalidCall if the file is of another batch, is none, or is in use; ProgramError if it cannot be
    read or written.
    """

    def __init__(self, path: str | os.PathLike[str], batch: str, items: Sequence[str]) -> None:
        self._path = Path(path)
        self._items = items
        self.finished: dict[int, Record] = {}
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except (OSError, ValueError) as error:
            raise InvalidCall(f"resume: cannot open {str(path)!r}: {error}") from error
        try:
            _lock(self._file, self._path)
            self._take_up(batch)
        except BaseException:
            os.close(self._file)
            raise

    def add(self, index: int, record: Record) -> None:
        """Raises TypeError if a variable is no plain data, ProgramError if the disk refuses."""
        line = {"index": index, "item": self._items[index], **_fields(record)}
        self._write(_encoded(line))

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _take_up(self, batch: str) -> None:
        header = {"radixlm_batch": _VERSION, "batch": batch}
        content = _read(self._file)
        if _encoded(header).startswith(content):  # new, or killed while it was begun
            os.ftruncate(self._file, 0)
            self._write(_encoded(header))
            return
        first, *lines = content.split(b"\n")
        self._check_header(first, header)
        good = len(first) + 1
        fitting = others = 0
        for number, line in enumerate(lines, start=2):
            try:
                index, item, record = _decoded(line)
            except (ValueError, TypeError, KeyError):
                if number <= len(lines):  # a line follows, be it an empty one: this one was written whole
                    raise InvalidCall(f"resume: line {number} of {self._quoted} is damaged") from None
                break
            if number > len(lines):  # whole, but for its end
                break
            good += len(line) + 1
            if index < len(self._items) and self._items[index] == item:
                fitting += 1
                self.finished[index] = record
            else:
                others += 1
        if others and not fitting:
            raise InvalidCall(
                f"resume: {self._quoted} is of another batch: of the {others} items that finished in it, "
                f"none has the place and the arguments of one of these {len(self._items)}"
            )
        os.ftruncate(self._file, good)

    def _check_header(self, line: bytes, header: Mapping[str, object]) -> None:
        try:
            found = json.loads(line)
            version, batch = found["radixlm_batch"], found["batch"]
        except (ValueError, TypeError, KeyError):
            raise InvalidCall(
                f"resume: {self._quoted} is no journal of a batch: it is left as it is"
            ) from None
        if version != _VERSION:
            raise InvalidCall(f"resume: {self._quoted} was written by another version of radixlm")
        if batch != header["batch"]:
            raise InvalidCall(
                f"resume: {self._quoted} is of another batch: its program or its sampling parameters "
                f"are others"
            )

    def _write(self, line: bytes) -> None:
        before = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            os.ftruncate(self._file, before)
            raise ProgramError(f"resume: cannot write {self._quoted}: {error.strerror}") from error

    @property
    def _quoted(self) -> str:
        return repr(str(self._path))


def batch_digest(program: str, constants: Mapping[str, object], defaults: Mapping[str, object]) -> str:
    """What a batch is known by: the name of its program, what is bound, and the sampling parameters."""
    return _digest([program, _canonical(constants, "a bound argument"), _canonical(defaults, "a default")])


def item_digest(index: int, arguments: Mapping[str, object]) -> str:
    """What an item is known by. Raises InvalidCall for arguments that what they hold does not tell apart."""
    return _digest({name: _canonical(value, f"item {index}: {name}") for name, value in arguments.items()})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _canonical(value: object, where: str) -> object:
    """JSON in which values of different types, and dicts of different order, are not the same by chance."""
    if value is None or isinstance(value, str | int | float):  # bool among them
        return [type(value).__name__, repr(value)]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list | tuple):
        return ["list", [_canonical(each, where) for each in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(_canonical(each, where)) for each in value)]
    if isinstance(value, Mapping):
        pairs = [[_canonical(key, where), _canonical(each, where)] for key, each in value.items()]
        return ["dict", sorted(pairs, key=json.dumps)]
    if isinstance(value, os.PathLike):
        return ["path", os.fspath(value)]
    if "<" not in (name := getattr(value, "__qualname__", "<")):  # a function or a class that has a name
        return ["named", f"{getattr(value, '__module__', '')}.{name}"]
    if dataclasses.is_dataclass(value):
        held = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return [type(value).__qualname__, _canonical(held, where)]
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return [type(value).__qualname__, _canonical(dump(), where)]
    raise InvalidCall(
        f"resume needs arguments that are told apart by what they hold: plain data, dataclasses, Pydantic "
        f"models; got {type(value).__qualname__} in {where}"
    )


# -- lines


def _fields(record: Record) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}


def _encoded(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__qualname__} cannot be written as JSON")


def _decoded(line: bytes) -> tuple[int, str, Record]:
    """Raises ValueError, TypeError or KeyError."""
    fields = json.loads(line)
    index, item = fields.pop("index"), fields.pop("item")
    if not isinstance(index, int):
        raise TypeError("an index is an integer")
    return index, item, Record(**fields)


def _read(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    pieces = []
    while piece := os.read(file, 1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _lock(file: int, path: Path) -> None:
    """The lock goes with the process, however that ends. Where there is no such lock, nothing is locked."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidCall(f"resume: another process writes {str(path)!r}") from None
