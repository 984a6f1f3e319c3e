"""A JSON Schema as llguidance takes it: with how much whitespace stands between the parts of a value.

Options of the library that the schema itself might hold are dropped. Numbers pass through floats there, so
integers that no float equals are refused, as the library would take others for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..errors import InvalidRequest
from ..text import quote

# Endless whitespace is what models fall into. So a few blanks, or a line break and an indentation.
_WHITESPACE = r"\x20{0,4}|\n\x20{0,24}"
# Each text has one spelling, so that no key that is declared comes in under another: a character is escaped
# only where it must be. Control characters but these five cannot be written at all.
_ESCAPES = '"\\bfnrt'
_STRICT = {
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
    "json_allowed_escapes": _ESCAPES,
}
_COMPACT = {**_STRICT, "whitespace_flexible": False}
_SPACED = {**_STRICT, "whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}
_OPTIONS = "x-guidance"


def json_source(schema: object, *, compact: bool) -> str:
    """The grammar of a normalised schema. Raises InvalidRequest as `with_spacing` does."""
    return json.dumps({"grammars": [{"json_schema": with_spacing(schema, compact=compact)}]})


def with_spacing(schema: object, *, compact: bool) -> dict[str, object]:
    """The schema with its options. Raises InvalidRequest for one that allows no value, and for integers that
    the library would change."""
    if schema is False:
        raise InvalidRequest("json_schema: false allows no value")
    if schema is True:
        schema = {}
    assert isinstance(schema, dict), "a schema is an object, true or false"
    for number in _integers(schema):
        if abs(number) > 2**53 and (abs(number) > 2**63 or int(float(number)) != number):
            raise InvalidRequest(f"json_schema: {quote(number)} lies beyond 2^53 and cannot be kept to")
    return {**schema, _OPTIONS: _COMPACT if compact else _SPACED}


def _integers(schema: object) -> Iterator[int]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif isinstance(part, int) and not isinstance(part, bool):
            yield part
