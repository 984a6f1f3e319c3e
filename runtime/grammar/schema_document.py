"""The document a JSON Schema is: whether its keywords are well-formed, and where its references lead.

Only what stands in the document can be referred to; nothing is fetched. Knows the spellings of the drafts
from 4 to 2020-12, which differ in what an identifier is and in whether keywords beside a reference count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import InvalidRequest
from ..text import quote
from .schema_shapes import Place

TYPE_NAMES = ("null", "boolean", "number", "integer", "string", "array", "object")
_OLD = ("draft-03", "draft-04", "draft-06", "draft-07")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and bool(value >= 0 and value == int(value))


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping | bool)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_types(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPE_NAMES for name in names)


def _is_map(value: object, is_part: Callable[[object], bool] = _is_schema) -> bool:
    return isinstance(value, Mapping) and all(map(is_part, value.values()))


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_schema, value))


ONES = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "not", "if", "then", "else",
)  # fmt: skip
"""Keywords that hold a schema, those that hold a list of them, and those that hold an object of them; some
can do more than one, by the draft."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
    "maxContains",
)  # fmt: skip
_TEXTS = (
    "pattern", "format", "$ref", "$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "$id",
)  # fmt: skip

_Check: TypeAlias = tuple[Callable[[Any], bool], str]
"""Whether a keyword's value is one it can have, and which those are. Any: a value of JSON."""
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(ONES, (_is_schema, "a schema: an object, true or false")),
    **dict.fromkeys(LISTS, (lambda value: value and _is_schemas(value), "a list of one schema or more")),
    **dict.fromkeys(MAPS, (_is_map, "an object of schemas")),
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number from 0 up")),
    **dict.fromkeys(_TEXTS, (lambda value: isinstance(value, str), "text")),
    "type": (_is_types, f"one of {', '.join(TYPE_NAMES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "minimum": (_is_number, "a number"),
    "maximum": (_is_number, "a number"),
    "exclusiveMinimum": (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    "exclusiveMaximum": (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number over 0"),
    "required": (_is_names, "a list of names"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "dependentRequired": (lambda value: _is_map(value, _is_names), "an object of lists of names"),
    "dependencies": (
        lambda value: _is_map(value, lambda part: _is_schema(part) or _is_names(part)),
        "an object of schemas or lists of names",
    ),
    "prefixItems": (_is_schemas, "a list of schemas"),
    "items": (lambda value: _is_schema(value) or _is_schemas(value), "a schema or a list of schemas"),
}


def escaped(key: str) -> str:
    """A key as a step of a JSON pointer."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


class Document:
    """Raises InvalidRequest for what is no schema, and for references that lead nowhere or outside. `is_old`:
    by its own word of a draft up to 7, where nothing beside a reference counts."""

    def __init__(self, schema: object) -> None:
        if not _is_schema(schema):
            raise InvalidRequest(f"json_schema must be an object, true or false, got {quote(schema)}")
        dialect = schema.get("$schema") if isinstance(schema, Mapping) else None
        self.is_old = isinstance(dialect, str) and any(draft in dialect for draft in _OLD)
        self._id = "id" if isinstance(dialect, str) and "draft-04" in dialect else "$id"
        self._places: dict[int, Place] = {}
        self._resources: dict[str, Place] = {}
        self._anchors: dict[tuple[str, str], Place] = {}
        self._dynamic: dict[str, int] = {}
        self.root = Place(schema, None, "", "")
        self._resources[""] = self.root
        self._admit(self.root)

    def child(self, place: Place, *steps: str) -> Place:
        """The schema some steps below a place."""
        for step in steps:
            place = self._step(place, step)
        return place

    def follow(self, place: Place, keyword: str) -> Place | None:
        """Where a reference leads; None if that depends on the way taken to it."""
        assert isinstance(place.schema, Mapping), "only an object holds a reference"
        reference = place.schema[keyword]
        full = place.base + reference if reference.startswith("#") else urljoin(place.base, reference)
        url, fragment = urldefrag(full)
        target = self._target(place, reference, url, fragment)
        name = "" if keyword == "$recursiveRef" else fragment
        return None if keyword != "$ref" and self._dynamic.get(name, 0) > 1 else target

    def _target(self, place: Place, reference: str, url: str, fragment: str) -> Place:
        resource = self._resources.get(url)
        if resource is None:
            raise InvalidRequest(
                f"json_schema: $ref must lead to a place in the schema itself, got {quote(reference)}"
                f" at {place.pointer or '/'}"
            )
        fragment = unquote(fragment)
        target = self._anchors.get((url, fragment)) if fragment and not fragment.startswith("/") else None
        if target is None and (not fragment or fragment.startswith("/")):
            target = self._pointed(resource, fragment)
        if target is None or not _is_schema(target.schema):
            raise InvalidRequest(
                f"json_schema: $ref leads to no schema, got {quote(reference)} at {place.pointer or '/'}"
            )
        self._admit(target)
        return target

    def _pointed(self, place: Place, pointer: str) -> Place | None:
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            holder = place.schema
            is_there = (
                key in holder
                if isinstance(holder, Mapping)
                else isinstance(holder, list) and key.isdecimal() and int(key) < len(holder)
            )
            if not is_there:
                return None
            place = self._step(place, key)
        return place

    def _step(self, place: Place, key: str) -> Place:
        holder = place.schema
        value = holder[int(key)] if isinstance(holder, list) else holder[key]  # type: ignore[index]
        known = self._places.get(id(value)) if isinstance(value, Mapping) else None
        return known or Place(value, place, escaped(key), self._base(place.base, value))

    def _base(self, base: str, value: object) -> str:
        if isinstance(value, Mapping) and not (self.is_old and "$ref" in value):
            name = value.get(self._id)
            if isinstance(name, str) and not name.startswith("#"):
                return urldefrag(urljoin(base, name)).url
        return base

    def _admit(self, place: Place) -> None:
        """Check a schema and all below it, and note what they can be called by."""
        waiting = [place]
        while waiting:
            place = waiting.pop()
            schema = place.schema
            if not isinstance(schema, Mapping) or id(schema) in self._places:
                continue
            self._places[id(schema)] = place
            self._name(place, schema)
            for keyword, value in schema.items():
                check = _CHECKS.get(keyword)
                if check is None:
                    continue
                if not check[0](value):
                    raise InvalidRequest(
                        f"json_schema: {keyword} must be {check[1]}, got {quote(value)} at"
                        f" {place.pointer}{escaped(keyword)}"
                    )
                waiting.extend(self._below(place, keyword, value))

    def _below(self, place: Place, keyword: str, value: object) -> Iterator[Place]:
        if isinstance(value, Mapping) and keyword in ONES:
            yield self.child(place, keyword)
        elif isinstance(value, list) and keyword in LISTS:
            holder = Place(value, place, escaped(keyword), place.base)
            yield from (self._step(holder, str(index)) for index in range(len(value)))
        elif isinstance(value, Mapping) and keyword in MAPS:
            holder = Place(value, place, escaped(keyword), place.base)
            yield from (self._step(holder, key) for key, part in value.items() if isinstance(part, Mapping))

    def _name(self, place: Place, schema: Mapping[str, object]) -> None:
        place.base = self._base(place.base, schema)
        self._resources.setdefault(place.base, place)
        name = schema.get(self._id)
        if isinstance(name, str) and name.startswith("#"):
            self._anchors[place.base, name[1:]] = place
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._anchors[place.base, anchor] = place
        dynamic = schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic[dynamic] = self._dynamic.get(dynamic, 0) + 1
        if schema.get("$recursiveAnchor") is True:
            self._dynamic[""] = self._dynamic.get("", 0) + 1
