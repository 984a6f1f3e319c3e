"""JSON Schemas of Python types by pydantic, as a text should be written rather than as one is parsed.

Where pydantic takes more than one form, or forms that masks cannot hold a text to, the schema says the one
that is always parsed back: keys that nobody declared are left out, numbers are numbers, a set is a list. The
other way round holds too: what the schema allows, the type takes, unless a validator of its own objects.

pydantic takes a moment to load: this module is imported when a type is met, not before.
"""

from __future__ import annotations

import sys
import typing
from functools import reduce
from inspect import Signature, unwrap
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typing_extensions
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema

_INTEGER_KEY = "^(?:0|-?[1-9][0-9]*)$"


def type_schema(hint: object) -> dict[str, Any]:  # Any: JSON, as pydantic has it
    """Raises what pydantic raises, and what hooks of the type itself do."""
    adapter: TypeAdapter[Any] = TypeAdapter(_without_old_typed_dicts(hint, ()))
    return adapter.json_schema(schema_generator=_Writer)


def function_schema(function: Any, signature: Signature) -> dict[str, Any]:
    """Of the parameters alone, which are all given by name; what the function returns may be anything."""
    if not signature.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}

    def stand_in() -> None: ...

    inner = unwrap(getattr(function, "func", function))  # the first is that of a partial
    stand_in.__annotations__ = {
        name: hint for name, hint in inner.__annotations__.items() if name in signature.parameters
    }
    hints = typing.get_type_hints(stand_in, getattr(inner, "__globals__", None), include_extras=True)
    stand_in.__annotations__ = {name: _without_old_typed_dicts(hint, ()) for name, hint in hints.items()}
    stand_in.__signature__ = signature  # type: ignore[attr-defined]
    return type_schema(stand_in)


class _Writer(GenerateJsonSchema):
    """Defaults are for the reader of a schema alone: one that is no JSON is left out without a word."""

    ignored_warning_kinds: typing.ClassVar[set[JsonSchemaWarningKind]] = {  # type: ignore[misc]
        "skipped-choice",
        "skipped-discriminator",
        "non-serializable-default",
    }

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        if schema.get("keys_schema", {}).get("type") == "int":
            found["patternProperties"] = {_INTEGER_KEY: found.pop("additionalProperties", True)}
        elif names := self._names(found.get("propertyNames", {})):
            del found["propertyNames"]
            values = found["additionalProperties"]
            found["properties"] = dict.fromkeys(names, values)
            found["additionalProperties"] = False
        return _closed(found)

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        found = super().decimal_schema(schema)
        number, *_ = found.get("anyOf", [found])  # the other form is a string
        return dict(number)

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _list_of_set(super().set_schema(schema))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _list_of_set(super().frozenset_schema(schema))

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        found = super().tagged_union_schema(schema)
        found.pop("discriminator", None)
        found["anyOf"] = found.pop("oneOf")  # tags differ, so no value is of two kinds
        return found

    def generate_inner(self, schema: Any) -> JsonSchemaValue:  # Any: pydantic's union of a hundred kinds
        found = super().generate_inner(schema)
        if _is_of_term(schema) and "pattern" in found:
            # A term is about the whole text, a pattern of JSON Schema about any part of it.
            return found | {"pattern": f"^(?:{found['pattern']})$"}
        return found

    def _names(self, keys: JsonSchemaValue) -> list[str]:
        """The only names that keys may have, if there is an end of them."""
        if "$ref" in keys:
            keys = self.get_schema_from_definitions(JsonRef(keys["$ref"])) or {}
        names = keys.get("enum", [keys["const"]] if "const" in keys else [])
        return names if all(isinstance(name, str) for name in names) else []


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Keys beyond the declared ones are no part of a type, unless it says so."""
    if "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _list_of_set(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Equal items fall together when the text is parsed; that matters only where several are required."""
    if schema.get("minItems", 0) < 2:
        schema.pop("uniqueItems", None)
    return schema


def _is_of_term(schema: Any) -> bool:  # Any: see generate_inner
    if schema.get("type") != "function-plain":
        return False
    return str(getattr(schema["function"]["function"], "__module__", "")).startswith("outlines.")


def _without_old_typed_dicts(hint: Any, within: tuple[object, ...]) -> Any:  # Any: hints have no type
    """The type with each TypedDict of `typing` made one of `typing_extensions`, which pydantic asks for
    before Python 3.12. Those in fields of models and of dataclasses stay, and those that hold themselves."""
    if sys.version_info >= (3, 12) or hint in within:
        return hint
    if typing.is_typeddict(hint):
        return _new_typed_dict(hint, (*within, hint)) if type(hint).__module__ == "typing" else hint
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_without_old_typed_dicts(arguments[0], within), *arguments[1:])]
    if origin is None or origin is typing.Literal or not isinstance(arguments, tuple):
        return hint
    renewed = tuple(_without_old_typed_dicts(each, within) for each in arguments)
    if all(new is old for new, old in zip(renewed, arguments, strict=True)):
        return hint
    return reduce(or_, renewed) if origin in (Union, UnionType) else origin[renewed]


def _new_typed_dict(old: Any, within: tuple[object, ...]) -> Any:  # Any: as above
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(old, include_extras=True).items():
        if get_origin(hint) in (typing.Required, typing.NotRequired):
            inner, wrapper = get_args(hint)[0], get_origin(hint)
        else:
            inner = hint
            wrapper = typing.Required if name in old.__required_keys__ else typing.NotRequired
        fields[name] = wrapper[_without_old_typed_dicts(inner, within)]
    make: Any = typing_extensions.TypedDict  # a class of names known at run time alone
    renewed = make(old.__name__, fields)
    renewed.__doc__ = old.__doc__
    return renewed
