"""From the many fields by which clients ask for structured output to options of SamplingParams.

One way may be given, by whatever name. What says how a text must look and is not known is refused: a client
that asks for a form must never get a text without it. Whether a schema or a grammar is any good is not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidRequest
from ..structure import WAYS
from ..text import quote
from .field_values import read_mapping, read_switch

Options = dict[str, object]

_FIELDS = {
    "regex": "regex",
    "json_schema": "json_schema",
    "choice": "choice",
    "grammar": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Fields of a body, and the option that each is."""
_PARTS = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""The same of structured_outputs."""
_HOW = {"disable_any_whitespace", "disable_fallback"}
_FORMATS = "text, json_object, json_schema and structural_tag"
_ANY_OBJECT = {"type": "object"}


def structure_of(body: Mapping[str, object]) -> Options:
    """The options that say what the text must look like, none if nothing does. Raises InvalidRequest."""
    found: dict[str, Options] = {
        field: {option: body[field]} for field, option in _FIELDS.items() if not _is_unset(body.get(field))
    }
    if read_switch("guided_json_object", body.get("guided_json_object")):
        found["guided_json_object"] = {"json_schema": _ANY_OBJECT}
    for field, read in (("structured_outputs", _structured_outputs), ("response_format", _response_format)):
        options = {} if body.get(field) is None else read(body[field])
        if options:
            found[field] = options
    _refuse_whitespace("guided_whitespace_pattern", body.get("guided_whitespace_pattern"))
    if len(found) > 1:
        raise InvalidRequest(f"the form of a text is given in one way only, got {' and '.join(found)}")
    for field, options in found.items():
        _check_types(field, options)
    ways = {name: body[name] for name in WAYS if not _is_unset(body.get(name))}
    return next(iter(found.values()), {}) | ways


def _structured_outputs(value: object) -> Options:
    parts = read_mapping("structured_outputs", value)
    known = [*_PARTS, "json_object"]
    for name in parts:
        if name not in (*known, *_HOW) and parts[name] not in (None, False):
            raise InvalidRequest(f"structured_outputs knows {', '.join(known)}, got {quote(name)}")
    given = [name for name in _PARTS if not _is_unset(parts.get(name))]
    if read_switch("structured_outputs.json_object", parts.get("json_object")):
        given.append("json_object")
    if len(given) > 1:
        raise InvalidRequest(f"structured_outputs holds one of {', '.join(known)}, got {' and '.join(given)}")
    if not given:
        return {}
    found: Options = {_PARTS[name]: parts[name] for name in given if name in _PARTS}
    found = found or {"json_schema": _ANY_OBJECT}
    if read_switch("structured_outputs.disable_any_whitespace", parts.get("disable_any_whitespace")):
        found["compact"] = True
    return found


def _response_format(value: object) -> Options:
    form = read_mapping("response_format", value)
    kind = form.get("type")
    if kind == "text":
        return {}
    if kind == "structural_tag":
        return {"structural_tag": form}
    if kind == "json_object":
        schema = form.get("schema")
        return {"json_schema": _ANY_OBJECT} if schema is None else {"json_schema": schema, "relaxed": True}
    if kind == "json_schema":
        return _named_schema(form)
    raise InvalidRequest(f"response_format.type must be one of {_FORMATS}, got {quote(kind)}")


def _named_schema(form: Mapping[str, object]) -> Options:
    """With `strict`, all of the schema is enforced token by token; else a part may be checked at the end."""
    inside = form
    if "schema" not in form:
        inside = read_mapping("response_format.json_schema", form.get("json_schema"))
    schema = inside.get("schema")
    if schema is None:
        raise InvalidRequest(f"response_format.json_schema needs a schema, got {quote(inside)}")
    return {
        "json_schema": schema,
        "relaxed": not read_switch("response_format.json_schema.strict", inside.get("strict")),
    }


def _check_types(field: str, options: Options) -> None:
    """Of what options may also be in Python: a type is no schema here."""
    if not isinstance(options.get("json_schema", {}), Mapping | str | bool):
        schema = quote(options["json_schema"])
        raise InvalidRequest(f"{field} must hold a JSON Schema, an object or its text, got {schema}")
    if not isinstance(options.get("choice", []), list):
        raise InvalidRequest(f"{field} must hold a list of texts, got {quote(options['choice'])}")


def _refuse_whitespace(name: str, value: object) -> None:
    if not _is_unset(value):
        raise InvalidRequest(f"{name} is not supported, use compact; got {quote(value)}")


def _is_unset(value: object) -> bool:
    return value is None or value == ""
