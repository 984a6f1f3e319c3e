"""An answer that is a list of calls as Python writes them: [weather(city="Oslo"), clock()].

No grammar holds a model to it, so a list is read when it is complete, and what is not quite such a list stays
text. A call that must be made is asked for as JSON instead, see llama3_json.py.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence

import regex

from .ids import long_id
from .protocol import CallArguments, CallBegin, CallParser, Json, Part, Text, Tool

_JSON_NAMES: dict[str, object] = {"true": True, "false": False, "null": None}
_MOST_CHARACTERS = 100_000
_STEPS = regex.compile(r"""\\.|["'\[\](){}]""", regex.DOTALL)


class Pythonic:
    """See ToolFormat."""

    name = "pythonic"
    shown = ()
    enforceable = False

    def offered(self, tools: Sequence[Tool], parallel: bool) -> None:
        return None

    def forced(self, tools: Sequence[Tool], parallel: bool) -> Json:
        raise AssertionError("only an enforceable format can be forced")

    def parser(self, names: Iterable[str], *, live: bool) -> CallParser:
        return PythonicParser(names)

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        return f"[{', '.join(_written(name, arguments) for name, arguments in calls)}]"

    def new_id(self) -> str:
        return long_id()


class PythonicParser:
    """See CallParser."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._begin = regex.compile(rf"\s*\[\s*(?:{'|'.join(map(regex.escape, self._names))})\s*\(")
        self._buffer = ""
        self._is_text = False
        self._has_called = False

    def push(self, text: str) -> list[Part]:
        if self._is_text:
            return [Text(text)] if text else []
        self._buffer += text
        found = self._begin.match(self._buffer, partial=True)
        if found is None or len(self._buffer) > _MOST_CHARACTERS:
            return self._as_text()
        if found.partial or "]" not in text or (end := _end_of_list(self._buffer)) is None:
            return []
        calls = _calls_in(self._buffer[:end], self._names)
        if calls is None:
            return self._as_text()
        self._buffer, self._has_called = self._buffer[end:], True
        return [*calls, *self._as_text()]

    def finish(self) -> list[Part]:
        return [] if self._is_text else self._as_text()

    def _as_text(self) -> list[Part]:
        text, self._buffer, self._is_text = self._buffer, "", True
        return [Text(text)] if text.strip() or (text and not self._has_called) else []


def _end_of_list(text: str) -> int | None:
    """Where the bracket closes that the text begins with."""
    depth, quote = 0, ""
    for found in _STEPS.finditer(text):
        one = found[0]
        if quote:
            quote = "" if one == quote else quote
        elif one in "\"'":
            quote = one
        elif one in "[({":
            depth += 1
        elif one in "])}":
            depth -= 1
            if depth == 0:
                return found.end()
    return None


def _calls_in(text: str, names: frozenset[str]) -> list[Part] | None:
    """The calls of a list; None if it is anything else than calls of these functions by keyword."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        if not isinstance(body, ast.List):
            return None
        return [part for call in body.elts for part in _call(call, names)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr, names: frozenset[str]) -> list[Part]:
    """Raises ValueError for what is no such call."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or name not in names or node.args:
        raise ValueError("no call by keyword")
    arguments: dict[str, object] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("arguments in a dictionary")
        arguments[keyword.arg] = _value(keyword.value)
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    written.encode()  # a lone surrogate is a ValueError too
    return [CallBegin(name), CallArguments(written)]


def _value(node: ast.expr) -> object:
    """As JSON has it. Raises ValueError for what JSON has not."""
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    value: object = ast.literal_eval(node)
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError("no value of JSON")
    return value


def _key(node: ast.expr | None) -> str:
    value = None if node is None else ast.literal_eval(node)
    if not isinstance(value, str):
        raise ValueError("keys of JSON are texts")
    return value


def _written(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        return f"{name}({arguments})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"
