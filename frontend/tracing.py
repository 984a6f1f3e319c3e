"""Tracing: the first prompt of a program, as far as it can be told without asking any model.

The body runs once on a state that only writes down, with placeholders for the arguments that are not known.
The trace ends at the first call to the model, at the first placeholder whose value the body wants to know, at
any error, and after some seconds: what was found until then is the result, so tracing never fails. Whatever
else the body does before that (printing, asking a tool) it does here too, once more than the program is run.

Nothing is shared between two traces, so any number of threads may trace at once. A program that a traced body
starts asks `ensure_not_tracing`, and so is never run. One that it starts on another thread cannot know; if it
is given a placeholder it is refused (placeholders.py), and else it is run, once more than there are items.
What other threads write to the state of a trace ends it, since nobody knows the order.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from .actions import Capture, Mark
from .branch import Branch
from .expressions import Chain, Expression, RoleBegin, RoleEnd, Text
from .loop import refuse_to_block, run_on_loop, wait_for
from .placeholders import Argument, Place, Places, TraceEnds, Unfilled, texts_of_value
from .protocol import Backend, GenerateCall, Sampling
from .session import Defaults, Session
from .state import ProgramState
from .variable import Variable

if TYPE_CHECKING:
    from .program import Program

Piece: TypeAlias = str | Place | RoleBegin | RoleEnd

_LIMIT_SECONDS = 5.0
_tracing: ContextVar[bool] = ContextVar("radixlm_tracing", default=False)


@dataclass(frozen=True, slots=True)
class Trace:
    """The first prompt of a program: constant texts, places of arguments, and where blocks begin and end.
    `reached_call`: it goes as far as the first call to the model; else something stopped the trace before."""

    pieces: tuple[Piece, ...] = ()
    reached_call: bool = False

    def prefix(self) -> Chain:
        """What stands before the first place: every run of the program begins with it."""
        items: list[Expression] = []
        for piece in self.pieces:
            if isinstance(piece, Place):
                break
            items.append(Text(piece) if isinstance(piece, str) else piece)
        return Chain(tuple(items))

    def prefix_text(self) -> str:
        """The same, without what a chat template writes around blocks."""
        return "".join(item.text for item in self.prefix().items if isinstance(item, Text))

    def key(self, arguments: Mapping[str, object]) -> str:
        """The first prompt that these arguments give, as far as it can be told: keys that begin alike stand
        for prompts that begin alike. It is no prompt: blocks are marked in a way of its own."""
        return "".join(self.keys([arguments])[0])

    def keys(self, items: Sequence[Mapping[str, object]]) -> list[tuple[str, ...]]:
        """The key of each item, in pieces: the texts of arguments as they are, and what is made of one and
        the same value once for all items."""
        made: dict[tuple[int, int], str] = {}
        return [self._key(arguments, made) for arguments in items]

    def _key(self, arguments: Mapping[str, object], made: dict[tuple[int, int], str]) -> tuple[str, ...]:
        found: list[str] = []
        with suppress(Unfilled):
            for number, piece in enumerate(self.pieces):
                if not isinstance(piece, Place):
                    found.append(_written(piece))
                    continue
                by = number, id(arguments.get(piece.name))
                if by not in made:
                    made[by] = piece.fill(arguments)
                found.append(made[by])
            if self.reached_call:
                return tuple(found)
        for value in arguments.values():
            found += ("\x00", *texts_of_value(value))
        return tuple(found)


def trace(program: Program, constants: Mapping[str, object] | None = None) -> Trace:
    """The trace of a program. Each parameter has the value that `constants` gives (those of `constants_of`,
    if they are not given), or else a placeholder."""
    if constants is None:
        constants = constants_of(program)
    places = Places()
    recorder = Recorder(places)
    positional, keywords = _arguments(program, constants, places)
    thread = threading.Thread(
        target=_run, args=(program, recorder, positional, keywords), name="radixlm-tracing", daemon=True
    )
    thread.start()
    thread.join(_LIMIT_SECONDS)
    return recorder.trace()


def warm(program: Program, backend: Backend) -> int:
    """Let the backend read the program's constant prefix; its length in tokens, 0 if there is none. Raises
    BackendError."""
    refuse_to_block("await asyncio.to_thread(program.cache, backend)")
    return wait_for(run_on_loop(warm_prefix(trace(program), backend)), "the constant prefix")


async def warm_prefix(found: Trace, backend: Backend) -> int:
    """The same for async callers that have the trace."""
    if not found.prefix_text():
        return 0
    branch = Branch(Session(backend, Defaults()))
    try:
        branch.append(found.prefix())
        await ProgramState(branch).sync_async()
        if branch.error is not None:
            raise branch.error
        line = branch.line
        # No hint: what is read here belongs to every run, and to no branch that will end.
        call = GenerateCall(tuple(line.parts), Sampling(max_new_tokens=0), messages=line.conversation())
        (read, *_) = await backend.generate(call)
        return read.prompt_tokens
    finally:
        branch.feed.close()


def constants_of(program: Program, items: Sequence[Mapping[str, object]] = ()) -> dict[str, object]:
    """The arguments that are plain data and the same in every run: those bound, defaults that no item
    replaces, and what is one and the same in all items. Copies, which a body may change as it likes."""
    found = {
        each.name: each.default
        for each in program.parameters
        if each.default is not each.empty and not any(each.name in item for item in items)
    }
    found |= program.bound
    if len(items) > 1:
        found = {name: value for name, value in found.items() if not any(name in item for item in items)}
        found |= {name: value for name, value in items[0].items() if _is_common(name, value, items)}
    return {name: copy.deepcopy(value) for name, value in found.items() if _is_plain(value)}


def ensure_not_tracing() -> None:
    """Called where a model is about to be asked: if a body is being traced here, its trace ends."""
    if _tracing.get():
        raise TraceEnds("a program is started")


class Recorder:
    """Stands in the place of a state's branch, and writes down what is appended. Whatever else a state asks
    of its branch ends the trace."""

    def __init__(self, places: Places) -> None:
        self.variables: dict[str, Variable] = {}
        self._places = places
        self._pieces: list[Piece] = []
        self._ended = False
        self._reached_call = False
        self._thread: int | None = None

    def begin_here(self) -> None:
        """The body runs on this thread."""
        self._thread = threading.get_ident()

    def trace(self) -> Trace:
        """What was found; nothing that the body does from now on counts."""
        self._ended = True
        return Trace(tuple(_joined(list(self._pieces))), self._reached_call)

    def end(self, *, reached_call: bool = False) -> None:
        if not self._ended:
            self._ended, self._reached_call = True, reached_call

    def append(self, expression: Expression) -> None:
        if self._thread != threading.get_ident():
            self._ended = True
            return  # it is the body that has to end
        if self._ended:
            raise TraceEnds("it has ended before")
        match expression:
            case Chain(items):
                for item in items:
                    self.append(item)
            case Text(text):
                self._write(text)
            case Argument():
                self._write(str(expression))
            case RoleBegin() | RoleEnd():
                self._pieces.append(expression)
            case _:
                self.end(reached_call=True)
                raise TraceEnds("the model is called")

    def submit(self, action: object) -> None:
        if not isinstance(action, Mark | Capture):
            raise TraceEnds("the backend is asked")

    def declare(self, name: str) -> Variable:
        """A variable that never gets a value here."""
        self.variables[name] = Variable()
        return self.variables[name]

    def lookup(self, name: str) -> Variable:
        found = self.variables.get(name)
        if found is None or not found.future.done():
            raise TraceEnds(f"variable {name} is read")
        return found

    def __getattr__(self, name: str) -> NoReturn:
        raise TraceEnds(f"{name} of the state is asked for")

    def _write(self, text: str) -> None:
        pieces, whole = self._places.split(text)
        self._pieces += pieces
        if not whole:
            raise TraceEnds("a text was made of a part of a placeholder")


# -- running a body


def _run(
    program: Program, recorder: Recorder, positional: Sequence[object], keywords: Mapping[str, object]
) -> None:
    _tracing.set(True)  # of this thread alone
    recorder.begin_here()
    state = ProgramState(recorder)  # type: ignore[arg-type]  # all that it has of a branch
    with suppress(Exception, TraceEnds):  # what was written until then is the result
        result = program.func(state, *positional, **keywords)
        if inspect.iscoroutine(result):
            _step(result)
    recorder.end()


def _step(coroutine: Any) -> None:  # Any: of a coroutine nothing is used but these two
    """Up to its first real wait, of which nothing could come."""
    try:
        with suppress(StopIteration):
            coroutine.send(None)
    finally:
        with suppress(RuntimeError):  # it goes on in spite of that
            coroutine.close()


def _arguments(
    program: Program, constants: Mapping[str, object], places: Places
) -> tuple[list[object], dict[str, object]]:
    positional: list[object] = []
    keywords: dict[str, object] = {}
    for each in program.parameters:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        value = constants[each.name] if each.name in constants else places.argument(each.name)
        if each.kind is each.POSITIONAL_ONLY:
            positional.append(value)
        else:
            keywords[each.name] = value
    return positional, keywords


def _is_common(name: str, value: object, items: Sequence[Mapping[str, object]]) -> bool:
    simple = value is None or isinstance(value, str | int | float)
    return all(
        name in item
        and (item[name] is value or (simple and type(item[name]) is type(value) and item[name] == value))
        for item in items
    )


def _is_plain(value: object) -> bool:
    """Data that a body can do nothing with but read; an object might be a tool."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bytes)


# -- pieces


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Neighbouring texts are one."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        text = ""
        yield piece
    if text:
        yield text


def _written(piece: str | RoleBegin | RoleEnd) -> str:
    match piece:
        case str():
            return piece
        case RoleBegin(role):
            return f"\x01{role}\x02"
        case RoleEnd(role):
            return f"\x03{role}\x02"
