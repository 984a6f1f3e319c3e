"""What a form of tool calls is: how a model writes them, and how such text is read, enforced and recognised.

A format is a value without state; a parser reads one answer, piece by piece, and gives the same parts joined
however the text is cut. What looks like a call and is none stays text. Knows no wire format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Json: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. `schema` is that of its arguments, of an object; `strict`: all of it is
    enforced or the request is refused, else as much as can be."""

    name: str
    schema: Json
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins; its arguments follow, up to the next part of another kind."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of the last call, JSON once joined."""

    text: str


Part: TypeAlias = Text | CallBegin | CallArguments


class CallParser(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[Part]:
        """What more text makes known. Text that may become a call is held back."""
        ...

    def finish(self) -> list[Part]:
        """The rest, once no text will follow. A call that was cut off keeps what there is of its
        arguments."""
        ...


class ToolFormat(Protocol):
    """`shown` are texts that mark calls; where they are control tokens, these must not be left out of the
    text. `enforceable`: a grammar holds offered calls to the form and to the schemas."""

    @property
    def name(self) -> str: ...
    @property
    def shown(self) -> tuple[str, ...]: ...
    @property
    def enforceable(self) -> bool: ...

    def offered(self, tools: Sequence[Tool], parallel: bool) -> Json | None:
        """The format of a structural tag for text that may hold calls, if it is enforceable; several only if
        `parallel`."""
        ...

    def forced(self, tools: Sequence[Tool], parallel: bool) -> Json:
        """That of a text that is one call, or several if `parallel`. Only of an enforceable format."""
        ...

    def parser(self, names: Iterable[str], *, live: bool) -> CallParser:
        """Of an answer to a request with tools of these names. `live`: arguments are told as they come, for
        text that a grammar holds to the form; else when the call is complete and right, or cut off."""
        ...

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls, as names and JSON texts of arguments, in the words of the model."""
        ...

    def new_id(self) -> str:
        """An id for a call, of a form that the model's template takes."""
        ...


def tool_tag(tool: Tool, begin: str, end: str) -> Json:
    """A tag of one call with its arguments between two texts."""
    content = {"type": "json_schema", "json_schema": tool.schema, "relaxed": not tool.strict}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def one_or_more(tags: Sequence[Json], separator: str, parallel: bool) -> Json:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
