"""Placeholders of arguments whose values are not known: they can be written into text, and nothing else.

An Argument notes what is looked up in it (an item, an attribute, a plain method of a text) and formats into
a mark, which `Places` finds again in the text that a body made of it. A Place does the same look-ups in real
values. Whatever would depend on the value (its length, its truth, an iteration) raises TraceEnds. No call
of a run may hold one: `refuse_placeholders` is asked for every argument of a run and every text of a call.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from .errors import InvalidCall
from .expressions import Appendable, Chain, Expression, as_expression


class TraceEnds(BaseException):
    """The body wants to know what a trace cannot tell. No Exception: a body that catches those must end."""


class Unfilled(Exception):
    """The value of a place cannot be told without running more of the program than looking something up."""


_METHODS = frozenset(
    [
        "capitalize",
        "casefold",
        "center",
        "expandtabs",
        "get",
        "join",
        "ljust",
        "lower",
        "lstrip",
        "removeprefix",
        "removesuffix",
        "replace",
        "rjust",
        "rstrip",
        "strip",
        "swapcase",
        "title",
        "translate",
        "upper",
        "zfill",
    ]
)
"""Methods of texts, and of dicts, that change nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """One look-up. `kind`: item, attribute, call (of a method, with `inputs`), or one of those that make
    text: format (with `key` as its specification), repr."""

    kind: str
    key: object
    inputs: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an argument, or what is looked up in it, stands in a text."""

    name: str
    steps: tuple[Step, ...] = ()

    def fill(self, arguments: Mapping[str, object]) -> str:
        """The text that stands there for these arguments; an argument that is a text is that text itself, and
        no copy. Raises Unfilled."""
        if self.name not in arguments:
            raise Unfilled(self.name)
        value = arguments[self.name]
        try:
            for step in self.steps:
                value = _looked_up(value, step)
            return str(value)
        except Exception as error:  # what is looked up is not there, or its text is made by code that fails
            raise Unfilled(self.name) from error


class Argument(Expression):
    """A placeholder. It is an expression, so that blocks and `+` take it as they take a text."""

    __slots__ = ("_place", "_places")

    def __init__(self, places: Places, place: Place) -> None:
        self._places = places
        self._place = place

    def __str__(self) -> str:
        return self._places.mark(self._place)

    def __format__(self, specification: str) -> str:
        if not specification:
            return str(self)
        return str(self._then(Step("format", specification)))

    def __repr__(self) -> str:
        return str(self._then(Step("repr", "")))

    def __add__(self, other: Appendable) -> Chain:
        if isinstance(other, str):
            return str(self) + other  # type: ignore[return-value]  # as a text would: a body may go on with it
        return super().__add__(other)

    def __radd__(self, other: Appendable) -> Chain:
        if isinstance(other, str):
            return other + str(self)  # type: ignore[return-value]  # as above
        return as_expression(other) + self

    def __getitem__(self, key: object) -> Argument:
        if isinstance(key, Argument):
            _refuse(self)
        return self._then(Step("item", key))

    def __getattr__(self, name: str) -> Argument:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._then(Step("attribute", name))

    def __call__(self, *inputs: object, **keywords: object) -> Argument:
        *before, last = (*self._place.steps, Step("", ""))[: len(self._place.steps) or 1]
        if last.kind != "attribute" or last.key not in _METHODS or keywords:
            _refuse(self)
        if any(isinstance(value, Argument) for value in inputs):
            _refuse(self)
        return Argument(self._places, Place(self._place.name, (*before, Step("call", last.key, inputs))))

    def _then(self, step: Step) -> Argument:
        return Argument(self._places, Place(self._place.name, (*self._place.steps, step)))


def _refuse(argument: Argument, *_: object) -> NoReturn:
    raise TraceEnds(f"the value of {argument._place.name} is asked for")


for _name in (
    *("bool", "len", "int", "float", "index", "complex", "iter", "next", "reversed", "contains", "hash"),
    *(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "mul",
        "rmul",
        "mod",
        "rmod",
        "sub",
        "rsub",
        "truediv",
        "neg",
        "bytes",
    ),
    *("enter", "exit", "await", "aiter", "setitem", "delitem", "floordiv", "pow", "round"),
):
    setattr(Argument, f"__{_name}__", _refuse)


def _digits() -> str:
    return str(random.SystemRandom().randrange(10**15, 10**16))


_OURS = _digits()
"""In each mark of this process. Digits, which no change of case or encoding touches, and which no text of a
program holds by chance."""
_BEGUN = f"\ue000{_OURS[:3]}"


def refuse_placeholders(values: Iterable[object]) -> None:
    """Raises InvalidCall where one is a placeholder, or a text with the mark of one or its beginning."""
    for value in values:
        if isinstance(value, Argument) or (isinstance(value, str) and (_OURS in value or _BEGUN in value)):
            raise InvalidCall(
                "a body that is being traced started this run on another thread, with a placeholder in the "
                "place of an argument that is not known: nothing is asked of a model with it"
            )


class Places:
    """The arguments of one trace, and the marks by which they are known in a text."""

    def __init__(self) -> None:
        self._token = _OURS + _digits()
        self._marked: list[Place] = []
        self._mark = re.compile(f"\ue000{self._token}-([0-9]+)\ue001")

    def argument(self, name: str) -> Argument:
        return Argument(self, Place(name))

    def mark(self, place: Place) -> str:
        self._marked.append(place)
        return f"\ue000{self._token}-{len(self._marked) - 1}\ue001"

    def split(self, text: str) -> tuple[list[str | Place], bool]:
        """Texts and places; and whether all of it could be told apart. Where a mark was damaged (cut, or
        encoded) the text ends before it."""
        found: list[str | Place] = []
        at = 0
        for match in self._mark.finditer(text):
            if not self._add(found, text[at : match.start()]):
                return found, False
            found.append(self._marked[int(match[1])])
            at = match.end()
        return found, self._add(found, text[at:])

    def _add(self, found: list[str | Place], text: str) -> bool:
        damaged = re.search(f"\ue000|\ue001|(\\\\+(ue000|xee\\\\+x80\\\\+x80))?{self._token}", text)
        kept = text if damaged is None else text[: damaged.start()]
        if kept:
            found.append(kept)
        return damaged is None


def texts_of_value(value: object) -> Iterator[str]:
    """Texts for plain data, equal for equal values; nothing for whatever else there is. No text is copied."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from texts_of_value(key)
            yield "\x00"
            yield from texts_of_value(each)
            yield "\x00"
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_of_value(each)
            yield "\x00"
    elif value is None or isinstance(value, str | int | float):
        yield str(value)


def _looked_up(value: object, step: Step) -> object:
    """Only what runs no code of the program's: its properties and methods may do anything."""
    match step.kind:
        case "item" if isinstance(value, str | list | tuple | dict):
            return value[step.key]  # type: ignore[index, call-overload]  # fails as it would in the body
        case "attribute":
            return vars(value)[str(step.key)]
        case "call" if type(value) in (str, dict):
            return getattr(value, str(step.key))(*step.inputs)
        case "format":
            return format(value, str(step.key))
        case "repr":
            return repr(value)
    raise Unfilled(step.key)
