"""What a spec costs, as far as its form tells: which are compiled at once, and which no automaton is made of.

A schema is cheap if it is short and never asks two things of one value that would have to be combined
(patterns with lengths, alternatives with properties beside them): its grammar is then about as long as
itself. So is a short choice. Nothing is compiled here, and no engine is known.
"""

from __future__ import annotations

import json
import re

from .spec import GrammarSpec

_MOST_SCHEMA_CHARACTERS = 2 << 10
_MOST_CHOICE_CHARACTERS = 8 << 10
_NOTES = {
    "$schema", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "$defs", "definitions",
}  # fmt: skip
_PLAIN = _NOTES | {
    "type", "properties", "required", "additionalProperties", "items", "enum", "const", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
    "maxItems",
}  # fmt: skip
_ALONE = ("$ref", "anyOf")
_REFERENCE = re.compile(r"#/(\$defs|definitions)/[^/]*")
_LENGTHS = {"minLength", "maxLength"}
_BY_NAME = ("properties", "$defs", "definitions")
_WITHIN = ("items", "additionalProperties")


def is_cheap(spec: GrammarSpec) -> bool:
    """Compiling it takes milliseconds, whatever it says."""
    if spec.kind == "choice":
        return len(spec.text) <= _MOST_CHOICE_CHARACTERS
    is_short = len(spec.text) <= _MOST_SCHEMA_CHARACTERS
    return spec.kind == "json" and is_short and _is_plain(json.loads(spec.text))


def _is_plain(schema: object) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        return False
    allowed = next((_NOTES | {alone} for alone in _ALONE if alone in schema), _PLAIN)
    if not schema.keys() <= allowed or ("format" in schema and _LENGTHS & schema.keys()):
        return False
    parts: list[object] = [schema[key] for key in _WITHIN if key in schema]
    for key in _BY_NAME:
        named = schema.get(key, {})
        if not isinstance(named, dict):
            return False
        parts += named.values()
        if key != "properties" and any(map(_stands_for_another, named.values())):
            return False
    branches = schema.get("anyOf", [])
    if not isinstance(branches, list) or not _REFERENCE.fullmatch(str(schema.get("$ref", "#/$defs/-"))):
        return False
    return all(map(_is_plain, [*parts, *branches]))


def _stands_for_another(schema: object) -> bool:
    """A definition that is nothing but other ones: a chain of these may have no end."""
    return isinstance(schema, dict) and any(key in schema for key in _ALONE)


_PART = re.compile(
    r"\\[pPxuU]\{[^}]*\}"  # a character by its property or number, not a repetition
    r"|\\."
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"
    r"|\{\s*(\d+)\s*,?\s*(\d*)\s*\}"
    r"|.",
    re.DOTALL,
)


def repetitions(pattern: str) -> int:
    """About how many characters long the pattern is with its counted repetitions written out, those within
    each other multiplied. What is between brackets counts as one."""
    open_groups = [0]
    last = 0
    for part in _PART.finditer(pattern):
        text = part[0]
        if part[1] is not None:
            most = max(_number(part[1]), _number(part[2]))
            open_groups[-1] += last * (most - 1)
            last *= most
        elif text == "(":
            open_groups.append(0)
            last = 0
        elif text == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] += last
        elif text != "|":
            last = 1
            open_groups[-1] += 1
    return sum(open_groups)


def _number(digits: str) -> int:
    return int(digits or "0") if len(digits) < 10 else 10**9
