"""The items of a batch: read from what the caller gave, and states as records of a journal and back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .branch import Branch
from .errors import InvalidCall, ProgramError
from .journal import Record, exactly
from .placeholders import refuse_placeholders
from .protocol import Backend
from .session import Defaults, Session
from .state import ProgramState
from .types import Reader, Unreadable
from .variable import Meta, Variable

if TYPE_CHECKING:
    from .program import Program


class ItemFailed(ProgramError):
    """An item of a batch failed: the message says which and why, the cause is chained. `index`: its place."""

    def __init__(self, index: int, cause: BaseException) -> None:
        super().__init__(f"item {index} failed: {type(cause).__name__}: {cause}")
        self.index = index
        self.__cause__ = cause


@dataclass(frozen=True, slots=True)
class Item:
    """`arguments` as they were given; `named`: each by its parameter's name, with what is bound, without
    defaults."""

    arguments: Mapping[str, object] | Sequence[object]
    named: Mapping[str, object]


def read_items(program: Program, batch: Iterable[object]) -> list[Item]:
    """Raises InvalidCall, which names the first item that does not fit the program."""
    if isinstance(batch, str | bytes | Mapping) or not isinstance(batch, Iterable):
        raise InvalidCall(f"a batch is a list of dicts or tuples of arguments, got {batch!r:.200}")
    signature = inspect.signature(program.func)
    return [_item(program, signature, index, given) for index, given in enumerate(batch)]


def _item(program: Program, signature: inspect.Signature, index: int, given: object) -> Item:
    positional: Sequence[object] = ()
    keywords: Mapping[str, object] = program.bound
    if isinstance(given, Mapping):
        keywords = {**keywords, **given}
    elif isinstance(given, list | tuple):
        positional = given
    else:
        raise InvalidCall(f"item {index} must be a dict or a tuple of arguments, got {given!r:.200}")
    try:
        _, *named = signature.bind(None, *positional, **keywords).arguments.items()
    except TypeError as error:
        names = ", ".join(program.arg_names) or "none"
        message = f"item {index} does not fit the program: {error}; its parameters are {names}"
        raise InvalidCall(message) from None
    refuse_placeholders(value for _, value in named)
    return Item(given, dict(named))


# -- records


def to_record(state: ProgramState) -> Record:
    """Of a state in which all has ended, well. Raises TypeError for what is no plain data."""
    variables: dict[str, object] = {}
    meta: dict[str, object] = {}
    values: dict[str, object] = {}
    unread: dict[str, str] = {}
    for name, variable in state.branch.variables.items():
        if not variable.future.done() or variable.future.exception() is not None:
            continue  # of a branch that failed, which the program did not mind
        variables[name] = _plain(variable.future.result(), f"variable {name!r}")
        meta[name] = json.loads(json.dumps(variable.meta, default=_written))
        if variable.reader is not None:
            _note_value(state, name, values, unread)
    line = state.branch.line
    returned = _plain(state.ret_value, "what the program returned")
    return Record(line.text, variables, meta, values, unread, line.messages, returned)


def restored_state(record: Record, backend: Backend, defaults: Defaults) -> ProgramState:
    """The state that the record was made of, finished."""
    state = empty_state(backend, defaults)
    branch = state.branch
    branch.line.parts, branch.line.texts = [record.text], [record.text]
    branch.line.messages = [dict(message) for message in record.messages]
    for name, value in record.variables.items():
        found: Meta = record.meta.get(name, {})  # type: ignore[assignment]  # as it was written
        branch.variables[name] = variable = Variable.of(value, found)
        if name in record.values or name in record.unread:
            variable.reader = _reader(name, value, record)
    branch.feed.add(record.text, {})
    branch.feed.close()
    state.ret_value = record.returned
    return state


def empty_state(backend: Backend, defaults: Defaults) -> ProgramState:
    session = Session(backend, defaults)
    session.is_over = True
    return ProgramState(Branch(session))


def _plain(value: object, what: str) -> object:
    try:
        json.dumps(exactly(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"resume keeps plain data alone, and {what} is none: {error}") from None
    return value


def _written(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _note_value(state: ProgramState, name: str, values: dict[str, object], unread: dict[str, str]) -> None:
    try:
        values[name] = _plain(state.value(name), "it")
    except Unreadable as error:
        unread[name] = str(error)
    except Exception:  # a reader may be anybody's
        unread[name] = f"the value of {name!r} was no plain data, and a journal keeps no other: read its text"


def _reader(name: str, texts: object, record: Record) -> Reader:
    """Gives the values that were read when the item ran."""
    values = record.values.get(name)
    many = isinstance(texts, list) and isinstance(values, list)
    table = [*zip(texts, values, strict=True)] if many else [(texts, values)]  # type: ignore[call-overload]

    def read(text: str) -> object:
        if name in record.unread:
            raise Unreadable(record.unread[name])
        return next(value for known, value in table if known == text)

    return read
