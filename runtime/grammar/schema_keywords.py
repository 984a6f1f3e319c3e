"""The keywords of JSON Schema that are about values of one type, as shapes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from ..errors import InvalidRequest
from ..text import quote
from .schema_ecma import BadPattern
from .schema_meet import as_fraction, common_step, is_void
from .schema_nodes import Reading
from .schema_pattern import Pattern, parse_pattern
from .schema_regex import Unsupported
from .schema_shapes import (
    ANY,
    TRUE,
    TYPES,
    Array,
    Contains,
    Fields,
    Items,
    Node,
    Number,
    Object,
    Place,
    Shape,
    Text,
    Union,
)

Schema: TypeAlias = Mapping[str, Any]
"""Any: values of JSON, whose form the document has checked."""

_NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_TEXT = frozenset(("minLength", "maxLength", "pattern", "format"))
_ARRAY = frozenset(
    ("prefixItems", "items", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")
)
_OBJECT = frozenset(("properties", "patternProperties", "additionalProperties", "required", "minProperties",
                     "maxProperties", "propertyNames"))  # fmt: skip


def own_shapes(reading: Reading, place: Place, schema: Schema) -> Union:
    names = schema.get("type", _ALL_TYPES)
    names = [names] if isinstance(names, str) else names
    keywords = schema.keys()
    shapes: list[Shape] = []
    for name, plain in TYPES.items():
        if name not in names or (name == "integer" and "number" in names):
            continue
        shape: Shape = plain
        if isinstance(plain, Number):
            if not _NUMBER.isdisjoint(keywords) or name == "integer":
                shape = _number(place, schema, name == "integer")
        elif isinstance(plain, Text):
            if not _TEXT.isdisjoint(keywords):
                shape = _text(reading, place, schema)
        elif isinstance(plain, Array):
            if not _ARRAY.isdisjoint(keywords):
                shape = _array(reading, place, schema)
        elif isinstance(plain, Object) and not _OBJECT.isdisjoint(keywords):
            shape = _object(reading, place, schema)
        if not is_void(shape):
            shapes.append(shape)
    return ANY if len(shapes) == len(ANY) and all(map(_is_same, shapes, ANY)) else tuple(shapes)


_ALL_TYPES = tuple(name for name in TYPES if name != "integer")


def _is_same(one: Shape, other: Shape) -> bool:
    return one is other


def _number(place: Place, schema: Schema, is_integer: bool) -> Shape:
    low, is_low_open = schema.get("minimum"), False
    high, is_high_open = schema.get("maximum"), False
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if isinstance(above, bool):
        is_low_open = above and low is not None
    elif above is not None and (low is None or above >= low):
        low, is_low_open = above, True
    if isinstance(below, bool):
        is_high_open = below and high is not None
    elif below is not None and (high is None or below <= high):
        high, is_high_open = below, True
    step = as_fraction(schema["multipleOf"]) if "multipleOf" in schema else None
    step = common_step(step, Fraction(1)) if is_integer else step
    return Number(None, low, is_low_open, high, is_high_open, step, place=place)


def _text(reading: Reading, place: Place, schema: Schema) -> Shape:
    patterns: tuple[Pattern, ...] = ()
    if "pattern" in schema:
        try:
            patterns = (_pattern(schema["pattern"], place, "pattern"),)
        except Unsupported as reason:
            reading.report(place, "pattern", str(reason))
    formats = (schema["format"],) if "format" in schema else ()
    least, most = _count(schema, "minLength"), _most(schema, "maxLength")
    return Text(None, frozenset(), least, most, patterns, formats, place)


def _pattern(source: str, place: Place, keyword: str) -> Pattern:
    """Raises Unsupported, or InvalidRequest for what is no pattern."""
    try:
        return parse_pattern(source)
    except BadPattern as error:
        raise InvalidRequest(
            f"json_schema: {keyword} must be a regular expression, got {quote(source)} at"
            f" {place.pointer or '/'}: {error}"
        ) from None


def _count(schema: Schema, keyword: str) -> int:
    return int(schema.get(keyword, 0))


def _most(schema: Schema, keyword: str) -> int | None:
    return int(schema[keyword]) if keyword in schema else None


def _array(reading: Reading, place: Place, schema: Schema) -> Shape:
    items, prefix = schema.get("items"), "prefixItems"
    rest: Node | None = None
    if isinstance(items, list):
        prefix = "items"
        rest = reading.child(place, "additionalItems") if "additionalItems" in schema else None
    elif items is not None:
        rest = reading.child(place, "items")
    first = tuple(reading.child(place, prefix, str(index)) for index in range(len(schema.get(prefix, ()))))
    layers = (Items(first, TRUE if rest is None else rest, rest is not None),) if first or rest else ()
    contains: tuple[Contains, ...] = ()
    if "contains" in schema:
        least = int(schema.get("minContains", 1))
        contains = (Contains(reading.child(place, "contains"), least, _most(schema, "maxContains"), place),)
    unique = place if schema.get("uniqueItems") else None
    return Array(layers, _count(schema, "minItems"), _most(schema, "maxItems"), unique, contains, place)


def _object(reading: Reading, place: Place, schema: Schema) -> Shape:
    properties = {key: reading.child(place, "properties", key) for key in schema.get("properties", ())}
    is_said = "additionalProperties" in schema
    rest = reading.child(place, "additionalProperties") if is_said else TRUE
    patterns: list[tuple[Pattern, Node]] = []
    for source in schema.get("patternProperties", ()):
        try:
            pattern = _pattern(source, place, "patternProperties")
        except Unsupported as reason:
            reading.report(place, "patternProperties", str(reason))
            rest = TRUE
            continue
        patterns.append((pattern, reading.child(place, "patternProperties", source)))
    layers = (
        (Fields(properties, tuple(patterns), rest, is_said),) if properties or patterns or is_said else ()
    )
    names = ((reading.child(place, "propertyNames"), place),) if "propertyNames" in schema else ()
    required = tuple(dict.fromkeys(schema.get("required", ())))
    least, most = _count(schema, "minProperties"), _most(schema, "maxProperties")
    return Object(layers, required, least, most, names, place)
