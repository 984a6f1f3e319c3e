"""From the fields of SamplingParams that ask for structure to their normal form, and one GrammarSpec.

At most one of regex, json_schema, choice, grammar and structural_tag is given. Python types become a schema
or choices here; nothing is compiled. Torch-free.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import InvalidRequest
from .grammar.spec import GrammarSpec, Kind, choice_texts, grammar_text, regex_text, schema_text, tags_text
from .text import quote, require_text

if TYPE_CHECKING:
    from .sampling_params import SamplingParams

STRUCTURES = ("regex", "json_schema", "choice", "grammar", "structural_tag")
"""Fields of which one says what the text must look like."""
WAYS = ("grammar_kind", "relaxed", "compact", "grammar_after")
"""Fields that say how."""

_KINDS: Mapping[str, Kind] = {"lark": "lark", "gbnf": "gbnf", "ebnf": "gbnf"}
_OF_JSON = ("json_schema", "structural_tag")


def normal_form(params: SamplingParams) -> dict[str, object]:
    """The fields among STRUCTURES and WAYS that are set, as they are kept. Raises InvalidRequest."""
    given = [name for name in STRUCTURES if getattr(params, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(f"at most one of {', '.join(STRUCTURES)} is allowed, got {' and '.join(given)}")
    _check_ways(params, given)
    found: dict[str, object] = {}
    if params.regex is not None:
        found["regex"] = regex_text(params.regex)
    if params.json_schema is not None:
        found["json_schema"] = schema_text(_as_schema(params.json_schema))
    if params.choice is not None:
        found["choice"] = choice_texts(_as_choices(params.choice))
    if params.grammar is not None:
        found["grammar"] = text = grammar_text(params.grammar)
        found["grammar_kind"] = _kind(params.grammar_kind, text)
    if params.structural_tag is not None:
        found["structural_tag"] = tags_text(params.structural_tag)
    return found


def spec_of(params: SamplingParams) -> GrammarSpec | None:
    """What normalised params ask for; None if nothing."""
    kind: Kind
    if params.regex is not None:
        kind, text = "regex", params.regex
    elif params.json_schema is not None:
        kind, text = "json", str(params.json_schema)
    elif params.choice is not None:
        kind, text = "choice", json.dumps(params.choice, ensure_ascii=False)
    elif params.grammar is not None:
        kind, text = _KINDS[str(params.grammar_kind)], params.grammar
    elif params.structural_tag is not None:
        kind, text = "tags", str(params.structural_tag)
    else:
        return None
    return GrammarSpec(kind, text, params.relaxed, params.compact, params.grammar_after)


def _check_ways(params: SamplingParams, given: list[str]) -> None:
    for name in ("relaxed", "compact"):
        value = getattr(params, name)
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} must be true or false, got {quote(value)}")
        if value and not set(given) & set(_OF_JSON):
            raise InvalidRequest(f"{name} goes with {' or '.join(_OF_JSON)}, got it with neither")
    if params.grammar_kind is not None and "grammar" not in given:
        raise InvalidRequest(f"grammar_kind goes with grammar, got {quote(params.grammar_kind)} without one")
    if params.grammar_after is not None:
        if not given:
            raise InvalidRequest(f"grammar_after goes with one of {', '.join(STRUCTURES)}, got it alone")
        if not require_text("grammar_after", params.grammar_after):
            raise InvalidRequest("grammar_after must be a text that is not empty, got ''")


def _kind(kind: object, text: str) -> Kind:
    """As it is named; without a name, rules written with ::= are GBNF."""
    if kind is None:
        return "gbnf" if "::=" in text else "lark"
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidRequest(f"grammar_kind must be one of {', '.join(_KINDS)}, got {quote(kind)}")
    return _KINDS[kind]


def _as_schema(value: object) -> object:
    if isinstance(value, str | Mapping | bool):
        return value
    from .grammar.python_types import schema_of

    return schema_of(value)


def _as_choices(value: object) -> object:
    if isinstance(value, list | tuple):
        return value
    from .grammar.python_types import choices_of

    return choices_of(value)
