"""What each keyword of JSON Schema means, as shapes.

Keywords about one type make up the shapes of a place; those that apply schemas to the same value are then met
with them one by one. A keyword whose rule cannot be told in shapes is reported and left out, which only ever
allows more. Keywords that are in no table here are notes, by the standard, and allow everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import TypeAlias

from .schema_keywords import Schema, own_shapes
from .schema_nodes import Reading
from .schema_oneof import one_of
from .schema_regex import Unsupported
from .schema_shapes import (
    ANY,
    FALSE,
    TRUE,
    Fields,
    Node,
    Object,
    Place,
    Shape,
    Union,
)
from .schema_unevaluated import unevaluated_items, unevaluated_properties

Rule: TypeAlias = Callable[[Reading, Place, Schema, Union, bool], Union]

MAX_OPTIONS = 4096
"""Most shapes that alternatives come to."""
MAX_TOGETHER = 4
"""Most alternatives that are looked at in every combination, where it matters which of them hold."""

_WITH_KEYS = frozenset(("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf"))


def union_of(reading: Reading, place: Place, annotates: bool) -> Union:
    schema = place.schema
    assert isinstance(schema, Mapping), "true and false are no places of their own"
    annotates = annotates or "unevaluatedProperties" in schema or "unevaluatedItems" in schema
    own = own_shapes(reading, place, schema)
    before, after = _rules_around(schema)
    union: Union = ANY
    for keyword in before:
        union = _RULES[keyword](reading, place, schema, union, annotates)
    union = reading.meet(union, own, place, "properties")
    for keyword in after:
        union = _RULES[keyword](reading, place, schema, union, annotates)
    for keyword, finish in _LAST.items():
        if keyword in schema:
            union = finish(reading, place, union)
    return union


def _rules_around(schema: Schema) -> tuple[list[str], list[str]]:
    """The keywords with a rule: those whose keys come before the place's own ones, and the others. Keys are
    written in the order in which the schema, read from top to bottom, speaks of them."""
    before: list[str] = []
    after: list[str] = []
    is_later = "properties" in schema
    for keyword in schema:
        is_later = is_later and keyword != "properties"
        if keyword in _RULES:
            (before if is_later and keyword in _WITH_KEYS else after).append(keyword)
    return before, after


def _enum(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    return reading.meet(union, reading.value_shapes(schema["enum"], place), place, "enum")


def _const(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    return reading.meet(union, reading.value_shapes([schema["const"]], place), place, "const")


def _all_of(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    for index in range(len(schema["allOf"])):
        part = reading.document.child(place, "allOf", str(index))
        union = reading.meet(union, reading.use(reading.node_at(part, annotates)), part, "allOf")
    return union


def _options(reading: Reading, place: Place, keyword: str, count: int, annotates: bool) -> list[Node]:
    return [
        reading.node_at(reading.document.child(place, keyword, str(index)), annotates)
        for index in range(count)
    ]


def _any_of(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    options = _options(reading, place, "anyOf", len(schema["anyOf"]), annotates)
    if not annotates and any(option is TRUE for option in options):
        return union
    unions = [reading.use(option) for option in options]
    if annotates:
        if len(options) > MAX_TOGETHER:
            reading.report(place, "anyOf", "too many alternatives beside an unevaluated keyword")
            return union
        unions += [_together(reading, place, chosen) for chosen in _several(unions)]
    found = {id(shape): shape for option in unions for shape in option}
    if len(found) > MAX_OPTIONS:
        reading.report(place, "anyOf", "too many alternatives")
        return union
    return reading.meet(union, tuple(found.values()), place, "anyOf")


def _several(unions: list[Union]) -> Iterator[tuple[Union, ...]]:
    for size in range(2, len(unions) + 1):
        yield from combinations(unions, size)


def _together(reading: Reading, place: Place, unions: tuple[Union, ...]) -> Union:
    both: Union = ANY
    for union in unions:
        both = reading.meet(both, union, place, "anyOf")
    return both


def _one_of(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    options = _options(reading, place, "oneOf", len(schema["oneOf"]), annotates)
    return reading.meet(union, one_of(reading, options, place), place, "oneOf")


def _reference(keyword: str) -> Rule:
    def rule(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
        target = reading.document.follow(place, keyword)
        if target is None:
            reading.report(place, keyword, "where it leads depends on the way taken")
            return union
        return reading.meet(union, reading.use(reading.node_at(target, annotates)), place, keyword)

    return rule


def _not(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    node = reading.child(place, "not")
    if node is FALSE:
        return union
    try:
        return reading.meet(union, () if node is TRUE else reading.complement(node, place), place, "not")
    except Unsupported as reason:
        reading.report(place, "not", str(reason))
        return union


def _if(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
    if "then" not in schema and "else" not in schema and not annotates:
        return union
    document = reading.document
    condition = reading.node_at(document.child(place, "if"), annotates)
    positive, negative = (
        reading.use(reading.node_at(document.child(place, branch), annotates)) if branch in schema else ANY
        for branch in ("then", "else")
    )
    if condition is TRUE or condition is FALSE:
        return reading.meet(union, positive if condition is TRUE else negative, place, "if")
    positive = reading.meet(reading.use(condition), positive, place, "if")
    try:
        negative = reading.meet(reading.complement(condition, place), negative, place, "if")
    except Unsupported as reason:
        reading.report(place, "if", str(reason))
    return reading.meet(union, positive + negative, place, "if")


def _dependent(reading: Reading, place: Place, key: str, keyword: str, union: Union, then: Union) -> Union:
    """Objects without the key, or what is asked of those with it; other types are left alone."""
    without: Shape = Object((Fields({key: FALSE}, (), TRUE, is_seen=False),), place=place)
    held = reading.meet((Object(required=(key,), place=place),), then, place, keyword)
    others = tuple(shape for shape in ANY if not isinstance(shape, Object))
    return reading.meet(union, (*others, without, *held), place, keyword)


def _dependencies(keyword: str) -> Rule:
    def rule(reading: Reading, place: Place, schema: Schema, union: Union, annotates: bool) -> Union:
        if keyword == "dependencies" and not reading.document.is_old:
            reading.doubt()
        for key, asked in schema[keyword].items():
            if isinstance(asked, list):
                then: Union = (Object(required=tuple(dict.fromkeys(asked)), place=place),)
            else:
                then = reading.use(reading.node_at(reading.document.child(place, keyword, key), annotates))
            union = _dependent(reading, place, key, keyword, union, then)
        return union

    return rule


_RULES: dict[str, Rule] = {
    "enum": _enum,
    "const": _const,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "$ref": _reference("$ref"),
    "$dynamicRef": _reference("$dynamicRef"),
    "$recursiveRef": _reference("$recursiveRef"),
    "not": _not,
    "if": _if,
    "dependentRequired": _dependencies("dependentRequired"),
    "dependentSchemas": _dependencies("dependentSchemas"),
    "dependencies": _dependencies("dependencies"),
}
_LAST = {"unevaluatedItems": unevaluated_items, "unevaluatedProperties": unevaluated_properties}
