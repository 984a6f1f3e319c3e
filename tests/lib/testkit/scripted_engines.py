"""Engines that do what the text to compile says, for tests of who compiles what, where and when.

A text is a command and a word: `word X` compiles; `spin S` takes S seconds of processor time first; `wait
FILE` waits until there is such a file; `loop`, `crash` and `eat` go on for ever, end the process or take all
memory, but in the process of the test they fail an assertion; `refuse X` raises InvalidRequest. Commands that
begin with `index-` are obeyed by the index engine and are words to the other. Each call is written to a log.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.compile_jobs import WARM_UP, Engines
from radixlm.runtime.grammar.protocol import CompiledGrammar, Grammar, Report, Unenforced
from radixlm.runtime.grammar.spec import GrammarSpec

_EXACT = Report()


@dataclass(frozen=True, slots=True)
class ScriptedGrammar:
    """Remembers what it was made of; `size_bytes` is the number after `size`, or 100."""

    kind: str
    text: str
    engine: str
    report: Report = _EXACT

    @property
    def size_bytes(self) -> int:
        command, _, word = self.text.partition(" ")
        return int(word.split()[0]) if command == "size" else 100

    def start(self) -> Grammar:
        raise AssertionError("nothing is generated with it")

    def check(self, text: str) -> str | None:
        return None


class ScriptedSchema(NamedTuple):
    """A schema whose `x-leave-out` keywords are what masks do not enforce."""

    schema: object
    unenforced: tuple[Unenforced, ...] = ()


class Call(NamedTuple):
    engine: str
    kind: str
    text: str
    is_here: bool


@dataclass(frozen=True, slots=True)
class Log:
    """What the engines of all processes were asked for."""

    path: Path
    here: int

    @property
    def calls(self) -> list[Call]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        fields = (line.split("\t") for line in lines)
        return [Call(engine, kind, text, int(pid) == self.here) for engine, kind, text, pid in fields]


def scripted(folder: Path) -> tuple[Callable[[object], Engines], Log]:
    """What builds the engines, and their log."""
    log = Log(folder / "calls.txt", os.getpid())
    return partial(_build, log), log


@dataclass(frozen=True, slots=True)
class _Scripted:
    log: Log
    name: str

    def json(
        self, schema: object, *, compact: bool, unenforced: Sequence[Unenforced] = ()
    ) -> ScriptedGrammar:
        assert isinstance(schema, dict)
        return self._obey("json", str(schema.get("const")), Report(tuple(unenforced)))

    def regex(self, pattern: str) -> ScriptedGrammar:
        return self._obey("regex", pattern)

    def choice(self, texts: Sequence[str]) -> ScriptedGrammar:
        return self._obey("choice", texts[0])

    def lark(self, text: str) -> ScriptedGrammar:
        return self._obey("lark", text)

    def gbnf(self, text: str) -> ScriptedGrammar:
        return self._obey("gbnf", text)

    def tags(self, text: str, compact: bool) -> ScriptedGrammar:
        return self._obey("tags", text)

    def try_out(self, compiled: CompiledGrammar) -> None:
        assert isinstance(compiled, ScriptedGrammar)

    def load(self, index: ScriptedGrammar) -> ScriptedGrammar:
        return index

    def _obey(self, kind: str, text: str, report: Report = _EXACT) -> ScriptedGrammar:
        if text == WARM_UP:
            return ScriptedGrammar(kind, text, self.name)
        with self.log.path.open("a") as file:
            file.write(f"{self.name}\t{kind}\t{text}\t{os.getpid()}\n")
        command, _, word = text.removeprefix("index-" if self.name == "index" else "").partition(" ")
        is_here = os.getpid() == self.log.here
        if command == "refuse":
            raise InvalidRequest(f"{self.name} refuses {word!r}")
        if command == "wait":
            while not Path(word).exists():
                time.sleep(0.001)
        elif command == "spin":
            end = time.process_time() + float(word)
            while time.process_time() < end and not is_here:
                pass
        elif command in _HOSTILE:
            assert not is_here, f"{text!r} is for the worker process alone"
            _HOSTILE[command]()
        return ScriptedGrammar(kind, text, self.name, report)


def _loop() -> None:
    while True:
        pass


def _eat() -> None:
    held = []
    while True:
        held.append(bytearray(1 << 22))


_HOSTILE: dict[str, Callable[[], None]] = {"loop": _loop, "crash": os.abort, "eat": _eat}


def _build(log: Log, vocabulary: object) -> Engines:
    direct, index = _Scripted(log, "direct"), _Scripted(log, "index")
    return Engines(direct, index, _normalise, _check, _to_rust, _to_lark)


def _normalise(schema: object) -> ScriptedSchema:
    assert isinstance(schema, dict)
    left_out = schema.get("x-leave-out", [])
    return ScriptedSchema(schema, tuple(Unenforced(key, f"/{key}", "it is left out") for key in left_out))


def _check(schema: object, text: str) -> str | None:
    assert isinstance(schema, dict)
    if text == "loop":
        _loop()
    return None if text == schema["const"] else f"{text!r} is not {schema['const']!r}"


def _to_lark(spec: GrammarSpec) -> str:
    return f"{spec.text}, as lark"


def _to_rust(pattern: str) -> str:
    if pattern.startswith("not-rust"):
        raise InvalidRequest("regex holds what is not supported")
    return pattern
