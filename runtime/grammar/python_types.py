"""Python types and terms of Outlines as what a request asks for: JSON Schema, choices, pattern or grammar.

Every type means JSON, whose schema pydantic makes (type_schema.py); only texts to choose from at the top are
written as they are, without quotes. Terms of Outlines keep their own meaning. Neither pydantic nor Outlines
is imported before one of their values, or a type, is met. Nothing is compiled here.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, get_args, get_origin

from ..errors import InvalidRequest
from ..text import quote
from .spec import choice_texts

if TYPE_CHECKING:
    from outlines.types.dsl import JsonSchema, Term

_ALLOWED = (
    "allowed are a pydantic model, a dataclass, a TypedDict, a NamedTuple, an Enum, a typing expression such "
    "as list[int] or Literal['a', 'b'], a function, a term of Outlines, a genson SchemaBuilder"
)


def options_for(output_type: object) -> dict[str, object]:
    """The options of SamplingParams that hold a text to the type.

    choice: a list of texts, and a Literal or an Enum of texts, which are written without quotes.
    regex, grammar, json_schema: what a term of Outlines says. json_schema: a mapping as it is, and any other
    type. Raises InvalidRequest.
    """
    if _is_term(output_type):
        return _options_of_term(output_type)
    choices = _listed(output_type)
    if choices is not None and (isinstance(output_type, list | tuple) or _all_texts(choices)):
        return {"choice": choice_texts(choices)}
    return {"json_schema": schema_of(output_type)}


def choices_of(choices: object) -> tuple[str, ...]:
    """The texts of a list, a tuple, a Literal, an Enum (the values) or a Choice of Outlines, each once.
    Raises InvalidRequest."""
    listed = _listed(choices)
    if listed is None and _is_term(choices):
        listed = getattr(choices, "items", None)
    if listed is None:
        raise InvalidRequest(
            f"choice must be a list of texts, a Literal or an Enum of texts, got {_shown(choices)}"
        )
    return choice_texts(listed)


def schema_of(python_type: object) -> dict[str, object]:
    """The JSON Schema of a type; of a function, of its parameters as an object, described by its docstring.

    Objects take no keys beyond the declared ones, unless the type says so (extra="allow"). A mapping, and the
    schema of a JsonSchema or a SchemaBuilder, is a schema and comes back as it is. Raises InvalidRequest.
    """
    if isinstance(python_type, Mapping):
        return dict(python_type)
    if _is_json_schema(python_type):
        if python_type.whitespace_pattern is not None:
            raise _refused_whitespace(python_type.whitespace_pattern)
        return _loaded(python_type)
    if type(python_type).__module__.startswith("genson"):
        return dict(python_type.to_schema())  # type: ignore[attr-defined]
    if python_type is None or isinstance(python_type, str | bytes | bool | int | float | list | tuple | set):
        raise InvalidRequest(f"a type is needed, got the value {quote(python_type)}; {_ALLOWED}")
    if isinstance(python_type, functools.partial) or inspect.isroutine(python_type):
        return _parameters(python_type)
    return _of_type(python_type)


def _parameters(function: Any) -> dict[str, object]:  # Any: whatever can be called
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidRequest(f"function {_shown(function)} does not say what its parameters are") from None
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InvalidRequest(
                f"function {_shown(function)} must take its parameters by name, got {str(parameter)!r}, "
                f"which is {parameter.kind.description}"
            )
    from .type_schema import function_schema

    schema = _made(function, lambda: function_schema(function, signature))
    told = inspect.getdoc(getattr(function, "func", function))
    return schema if told is None else {"description": told, **schema}


def _of_type(python_type: object) -> dict[str, object]:
    from .type_schema import type_schema

    return _made(python_type, lambda: type_schema(python_type))


def _made(python_type: object, make: Callable[[], dict[str, object]]) -> dict[str, object]:
    try:
        return make()
    except Exception as error:  # types bring hooks of their own, which can fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InvalidRequest(f"no JSON Schema for {_shown(python_type)}: {reason}; {_ALLOWED}") from error


# -- texts to choose from


def _listed(value: object) -> list[object] | None:
    """What a list holds, a Literal names or the members of an Enum are worth."""
    if isinstance(value, list | tuple):
        return list(value)
    while get_origin(value) is Annotated or hasattr(value, "__value__"):  # the latter: `type Name = ...`
        value = getattr(value, "__value__", None) or get_args(value)[0]
    if get_origin(value) is Literal:
        return list(get_args(value))
    if isinstance(value, type) and issubclass(value, Enum):
        return [member.value for member in value]
    return None


def _all_texts(choices: list[object]) -> bool:
    return all(isinstance(choice, str) for choice in choices)


# -- terms of Outlines


def _is_term(value: object) -> TypeGuard[Term]:
    """Without importing Outlines: a value of its classes cannot come from anywhere else."""
    return any(kind.__module__.startswith("outlines.") for kind in type(value).__mro__)


def _is_json_schema(value: object) -> TypeGuard[JsonSchema]:
    if not _is_term(value):
        return False
    from outlines.types import dsl

    return isinstance(value, dsl.JsonSchema)


def _options_of_term(term: Term) -> dict[str, object]:
    from outlines.types import dsl

    if isinstance(term, dsl.Regex):
        return {"regex": term.pattern}
    if isinstance(term, dsl.CFG):
        return {"grammar": term.definition, "grammar_kind": "lark"}
    if isinstance(term, dsl.JsonSchema):
        if term.whitespace_pattern not in (None, ""):
            raise _refused_whitespace(term.whitespace_pattern)
        compact = {} if term.whitespace_pattern is None else {"compact": True}
        return {"json_schema": _loaded(term), **compact}
    if isinstance(term, dsl.Choice) and _all_texts(list(term.items)):
        return {"choice": choice_texts(list(term.items))}
    return {"regex": _pattern(term)}


def _pattern(term: Term) -> str:
    from outlines.types import dsl

    _require_regular(term)
    try:
        pattern: str = dsl.to_regex(term)
    except Exception as error:  # a term's own conversion
        raise InvalidRequest(f"no pattern for {_shown(term)}: {error}") from error
    return pattern


def _require_regular(term: object) -> None:
    """Outlines writes types and schemas inside of a pattern in Python's spelling, or drops parts of them."""
    from outlines.types import dsl

    parts: list[object] = [term]
    while parts:
        part = parts.pop()
        if not isinstance(part, dsl.Term | str | int | float) or isinstance(part, dsl.JsonSchema | dsl.CFG):
            what = "a JSON Schema, a grammar or a Python type cannot be a part of a pattern"
            raise InvalidRequest(f"{what}, got {_shown(part)} in {_shown(term)}")
        for name in ("term", "terms", "items"):
            inner = getattr(part, name, ())
            parts += inner if isinstance(inner, list | tuple) else [inner]


def _loaded(term: JsonSchema) -> dict[str, object]:
    schema = json.loads(term.schema)
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    assert isinstance(schema, dict), "Outlines has checked that it is a schema"
    return schema


def _refused_whitespace(pattern: object) -> InvalidRequest:
    return InvalidRequest(
        f"whitespace_pattern must be left out, or empty for JSON without whitespace, got {quote(pattern)}"
    )


def _shown(value: object) -> str:
    """A type or a function by its name: the representation may be a page long."""
    named = isinstance(value, type) or inspect.isroutine(value)
    return quote(value.__qualname__ if named else value)  # type: ignore[attr-defined]
