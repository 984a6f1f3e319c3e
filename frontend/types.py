"""What a generated text has to look like, and the value it then stands for: dtypes, patterns, JSON Schemas.

A caller's Python type becomes a regex or a JSON Schema as text, and a reader from the text to the value. What
is wrong with any of it is said at once, before anything is generated. The schema of a type is pydantic's,
which is imported when a type is met and not before; whether a backend enforces it is the backend's business.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import reduce
from operator import or_
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from .errors import InvalidCall, ProgramError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Reader: TypeAlias = Callable[[str], object]
"""The value of a text. Raises Unreadable."""


class Unreadable(ProgramError, ValueError):
    """The text is not of the type it was asked for: it was cut before its end, or the backend did not hold
    the model to it."""


# An end is part of the pattern of a number, or nothing but a digit or the end of all text could follow one.
INT_PATTERN = r"[-+]?[0-9]+[ \n]?"
FLOAT_PATTERN = r"[-+]?([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][-+]?[0-9]+)?[ \n]?"
BOOL_PATTERN = r"(True|False)"
STRING_PATTERN = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
NUMBER_ENDS = (" ", "\n")


def pattern_of(dtype: object) -> tuple[str, Reader]:
    """The regex and the reader of int, float, str or bool, or of one of their names. A text is written as
    JSON writes it, in double quotes. Raises InvalidCall."""
    for kind, (pattern, read) in _KINDS.items():
        if dtype is kind or dtype == kind.__name__:
            return pattern, _reader(kind.__name__, read)
    raise InvalidCall(f"dtype must be int, float, str or bool, got {dtype!r:.200}")


def ends_of(dtype: object) -> tuple[str, ...]:
    """Texts that end one, beside the stops that the call has anyway. They are no part of the text."""
    return NUMBER_ENDS if dtype in (int, float, "int", "float") else ()


def check_regex(pattern: object) -> str:
    r"""The pattern, if Python can read it; \p{..} may stand in it. Raises InvalidCall."""
    if not isinstance(pattern, str):
        raise InvalidCall(f"regex must be text, got {pattern!r:.200}")
    try:
        with warnings.catch_warnings():  # of what a later Python may read in another way
            warnings.simplefilter("ignore")
            re.compile(_PROPERTY.sub("x", pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidCall(f"regex {pattern!r:.200} cannot be read: {error}") from None
    return pattern


def schema_of(schema: object) -> tuple[str, Reader]:
    """JSON Schema text, and the reader. A mapping or JSON text is a schema already, and its values are plain
    JSON; a Pydantic model, dataclass, TypedDict, Enum or typing expression gives instances of it.

    Objects of a type take no keys but the declared ones. Raises InvalidCall.
    """
    if isinstance(schema, str):
        return _checked_text(schema), _reader("JSON", json.loads)
    if isinstance(schema, Mapping):
        return _dumped(dict(schema), schema), _reader("JSON", json.loads)
    if schema is None or isinstance(schema, bool | int | float | bytes | list | tuple | set):
        raise InvalidCall(f"json_schema must be {_ALLOWED}, got {schema!r:.200}")
    return _of_type(schema)


def choice_of(choice: object) -> tuple[object, Reader | None]:
    """The texts of a Literal or of the values of an Enum, whose members its reader gives; anything else as it
    is, to be checked as a list. Raises InvalidCall."""
    while get_origin(choice) is Annotated or hasattr(choice, "__value__"):  # the latter: `type Name = ...`
        choice = getattr(choice, "__value__", None) or get_args(choice)[0]
    if get_origin(choice) is Literal:
        return _texts_only(get_args(choice), choice), None
    if isinstance(choice, type) and issubclass(choice, Enum):
        return _texts_only([member.value for member in choice], choice), _reader(choice.__name__, choice)
    return choice, None


def _texts_only(values: Sequence[object], given: object) -> tuple[str, ...]:
    texts = tuple(str(value) for value in values if isinstance(value, str))
    if len(texts) < len(values) or not texts:
        raise InvalidCall(
            f"choice must be a list of texts, a Literal or an Enum of texts, got {given!r:.200}"
        )
    return texts


_ALLOWED = "a dict, JSON text, a Pydantic model, a dataclass, a TypedDict, an Enum or a typing expression"
_PROPERTY = re.compile(r"(?<!\\)((?:\\\\)*)\\[pP](\{[^{}]*\}|[A-Za-z])")


def _reader(name: str, read: Callable[[str], object]) -> Reader:
    def value(text: str) -> object:
        try:
            return read(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"{text!r:.200} cannot be read as {name}: {error}") from error

    return value


def _bool(text: str) -> bool:
    if text.strip() not in ("True", "False"):
        raise ValueError("neither True nor False")
    return text.strip() == "True"


def _string(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError("no text in double quotes")
    return value


_KINDS: Mapping[type, tuple[str, Callable[[str], object]]] = {
    bool: (BOOL_PATTERN, _bool),
    int: (INT_PATTERN, int),
    float: (FLOAT_PATTERN, float),
    str: (STRING_PATTERN, _string),
}


# -- JSON Schema


def _checked_text(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidCall(f"json_schema is no JSON: {error}, in {text!r:.200}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidCall(f"json_schema must be a JSON object, got {text!r:.200}")
    return text


def _dumped(schema: object, given: object) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidCall(f"json_schema cannot be written as JSON: {error}, in {given!r:.200}") from None


def _of_type(hint: object) -> tuple[str, Reader]:
    try:
        adapter = _adapter(hint)
        schema = adapter.json_schema()
    except Exception as error:  # types bring hooks of their own, which can fail in any way
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidCall(f"json_schema must be {_ALLOWED}, got {hint!r:.200}: {reason}") from error
    _tidy(schema)
    name = getattr(hint, "__name__", str(hint))
    return _dumped(schema, hint), _reader(name, adapter.validate_json)


def _adapter(hint: Any) -> TypeAdapter[Any]:  # Any: hints have no type
    from pydantic import TypeAdapter

    return TypeAdapter(_readable(hint))


def _readable(hint: Any) -> Any:  # Any: as above
    """The type with each TypedDict of `typing` made one of typing_extensions, which is what pydantic takes
    before Python 3.12. Those in fields of models and dataclasses stay."""
    if sys.version_info >= (3, 12):
        return hint
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        return _renewed(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_readable(arguments[0]), *arguments[1:])]
    if origin is None or origin is Literal:
        return hint
    renewed = tuple(map(_readable, arguments))
    return reduce(or_, renewed) if origin in (Union, UnionType) else origin[renewed]


def _renewed(old: Any) -> Any:  # Any: as above
    from typing import NotRequired, Required

    from typing_extensions import TypedDict

    fields = {
        name: (Required if name in old.__required_keys__ else NotRequired)[_readable(kind)]
        for name, kind in get_type_hints(old).items()
    }
    return TypedDict(old.__name__, fields)  # type: ignore[operator]  # names known at run time alone


def _tidy(root: object) -> None:
    """The schema as a text should be written, where pydantic's says what would be taken: no keys beyond the
    declared ones unless the type says so, a set is a list, unions with tags need no oneOf."""
    places = [root]
    while places:
        place = places.pop()
        if not isinstance(place, dict):
            continue
        if place.get("type") == "object" and "properties" in place:
            place.setdefault("additionalProperties", False)
        if place.get("minItems", 0) < 2:
            place.pop("uniqueItems", None)
        if place.pop("discriminator", None) is not None and "oneOf" in place:
            place["anyOf"] = place.pop("oneOf")
        places += [place.get(key) for key in ("items", "additionalProperties", "not")]
        for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            places += place.get(key, [])
        for key in ("properties", "patternProperties", "$defs"):
            places += place.get(key, {}).values()
