"""Journal: which items of a batch have finished, and with what, as JSON lines that outlive the process.

The first line says which batch it is, each further one is an item that finished. A line is written at once,
whole; one that was torn by a kill is cut off when the file is opened again. An item counts as finished only
where it stands at the same place in the batch with the same arguments. One process at a time has a journal.
What comes back equals what was kept: tuples and keys that JSON has not are written in a way of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from .errors import InvalidCall, ProgramError

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of a finished item. `values` has what `s.value(name)` gave, where that is plain data, and
    `unread` says why not. `variables`, `values` and `returned` hold plain data, and come back as that."""

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
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise InvalidCall(f"resume: {self._quoted} is no file that keeps what is written to it")
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
            except _DAMAGE:
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
        except _DAMAGE:
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
        return ["named", f"{getattr(value, '__module__', '')}.{name}", _canonical(_bound_to(value), where)]
    if dataclasses.is_dataclass(value):
        held = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return [type(value).__qualname__, _canonical(held, where)]
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return [type(value).__qualname__, _canonical(dump(), where)]
    raise InvalidCall(
        f"resume needs arguments that are told apart by what they hold: plain data, dataclasses, Pydantic "
        f"models; got {type(value).__qualname__} in {where}"
    )


def _bound_to(value: object) -> object:
    """What else tells functions of one name apart: the object of a method, what a program has bound."""
    owner = getattr(value, "__self__", None)
    if owner is None or inspect.ismodule(owner):
        owner = getattr(value, "bound", None)
        return owner if isinstance(owner, Mapping) else None
    return owner


# -- plain data


def exactly(value: object) -> object:
    """JSON from which `restored` makes an equal value. Raises TypeError for what is no plain data."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [exactly(each) for each in value]
    if type(value) is tuple:
        return {_TUPLE: [exactly(each) for each in value]}
    if type(value) is not dict:
        raise TypeError(f"a {type(value).__qualname__} would not come back as what it is")
    if all(type(key) is str for key in value) and value.keys().isdisjoint((_TUPLE, _DICT)):
        return {key: exactly(each) for key, each in value.items()}
    return {_DICT: [[exactly(key), exactly(each)] for key, each in value.items()]}


def restored(value: object) -> object:
    if isinstance(value, list):
        return [restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(restored(each) for each in value[_TUPLE])
    if _DICT in value:
        return {restored(key): restored(each) for key, each in value[_DICT]}
    return {key: restored(each) for key, each in value.items()}


_TUPLE, _DICT = "()", "{}"
_EXACT = ("variables", "values", "returned")
"""Fields of a record that are kept so."""


# -- lines


_DAMAGE = (ValueError, TypeError, KeyError, RecursionError)
"""What reading a line raises that nobody wrote so."""


def _fields(record: Record) -> dict[str, object]:
    found = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return found | {name: exactly(found[name]) for name in _EXACT}


def _encoded(line: Mapping[str, object]) -> bytes:
    return json.dumps(line, default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__qualname__} cannot be written as JSON")


def _decoded(line: bytes) -> tuple[int, str, Record]:
    """Raises what is in _DAMAGE."""
    fields = json.loads(line)
    if type(fields) is not dict:
        raise TypeError("a line is an object")
    index, item = fields.pop("index"), fields.pop("item")
    if type(index) is not int or index < 0 or type(item) is not str:
        raise TypeError("an index is a place in a list, and an item is known by a text")
    if fields.keys() != _KINDS.keys() | {"returned"}:
        raise KeyError("the fields are those of a record")
    for name, kind in _KINDS.items():
        if type(fields[name]) is not kind:
            raise TypeError(f"{name} is a {kind.__name__}")
    texts = [fields["unread"], *fields["messages"]]
    if not all(type(each) is dict and all(type(text) is str for text in each.values()) for each in texts):
        raise TypeError("messages, and why a value could not be read, are texts")
    if not all(type(each) in (dict, list) for each in fields["meta"].values()):
        raise TypeError("what is told of a variable is an object, or a list of them")
    return index, item, Record(**fields | {name: restored(fields[name]) for name in _EXACT})


_KINDS = {"text": str, "variables": dict, "meta": dict, "values": dict, "unread": dict, "messages": list}


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
