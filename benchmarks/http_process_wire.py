"""What an engine process and the process that asks it say to each other, as msgpack.

Calls go one way and carry a number where they are answered; news come back: answers, and one message a step
with all its events. Whatever crosses is plain data, checked against its type when it arrives.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeAlias

import msgspec

from radixlm.radix.tree_view import TreeView
from radixlm.runtime import errors
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.grammar.spec import GrammarSpec
from radixlm.runtime.metrics import EngineInfo, EngineStats
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request


class Open(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The first call: which engine. Answered by Opened or Died."""

    config: EngineConfig


class Submit(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A request as plain data. `sampling`: what SamplingParams is made from."""

    call: int
    id: str
    prompt_ids: tuple[int, ...]
    sampling: dict[str, Any]  # Any: SamplingParams checks each value when it is made
    salt: str
    adapter: str
    priority: int
    continuations: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, call: int, request: Request) -> Submit:
        sampling = {name: getattr(request.sampling, name) for name in _SAMPLING}
        return cls(
            call,
            request.id,
            request.prompt_ids,
            sampling,
            request.salt,
            request.adapter,
            request.priority,
            request.continuations,
        )

    def request(self) -> Request:
        return Request(
            self.id,
            self.prompt_ids,
            SamplingParams(**self.sampling),
            self.salt,
            self.adapter,
            self.priority,
            self.continuations,
        )


class Abort(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int
    request_id: str


class Compile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int
    spec: GrammarSpec


class Forget(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Nobody waits for the answer to this Compile any more."""

    call: int


class Flush(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int


class ViewTree(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int
    most_nodes: int


class StartProfile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int


class StopProfile(msgspec.Struct, tag=True, array_like=True, frozen=True):
    call: int
    file: str


class Stop(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """End what runs, unanswered, and the process."""


Asked: TypeAlias = Submit | Abort | Compile | Flush | ViewTree | StartProfile | StopProfile
"""Calls that are answered."""
Call: TypeAlias = Open | Asked | Forget | Stop


Value: TypeAlias = bool | int | TreeView | None


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """To one call: its value, or which error of errors.py it was."""

    call: int
    value: Value = None
    error: str = ""
    message: str = ""


class Opened(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """`config`: as settled."""

    info: EngineInfo
    config: EngineConfig
    max_length: int
    stats: EngineStats


class Answers(msgspec.Struct, tag=True, array_like=True, frozen=True):
    answers: list[Answer]


class Step(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What one step came to, if only that it was made."""

    events: list[Event]
    stats: EngineStats


class Died(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The last message of an engine that cannot be opened, or cannot go on."""

    error: str
    message: str


News: TypeAlias = Opened | Answers | Step | Died

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_news = msgspec.msgpack.Decoder(News).decode

_SAMPLING = tuple(each.name for each in fields(SamplingParams) if each.init)


def address(folder: str, name: str) -> str:
    """Of one of the two sockets, "calls" and "news", which lie in a folder of the parent's."""
    return f"ipc://{folder}/{name}"


def failed(call: int, error: BaseException) -> Answer:
    return Answer(call, None, *words(error))


def words(error: BaseException) -> tuple[str, str]:
    """The class and the text of an error, as they cross."""
    if isinstance(error, errors.RadixError):
        return type(error).__name__, str(error)
    return errors.RequestFailed.__name__, f"{type(error).__name__}: {error}"


def error_of(name: str, message: str) -> errors.RadixError:
    """The error with these words. One that this side does not know is a failed request."""
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, errors.RadixError):
        return found(message)
    return errors.RequestFailed(message)
