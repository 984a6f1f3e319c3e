"""GrammarSpec: what a text must look like, as a request asks for it, in one normal form.

Two specs that mean the same by their spelling compare and hash alike: this is the key of the compiler's
cache. Sizes are limited here, before anything is compiled; no engine is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRequest
from ..text import quote, require_text

Kind = Literal["json", "regex", "choice", "lark", "gbnf", "tags"]
FIELDS: Mapping[str, str] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "lark": "grammar",
    "gbnf": "grammar",
    "tags": "structural_tag",
}
"""The field of SamplingParams that asks for each kind."""

MAX_BYTES = 256 << 10
MAX_REGEX_BYTES = 8 << 10
MAX_DEPTH = 64
MAX_CHOICES = 20_000


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`text` is a JSON Schema (json), a pattern (regex), a JSON list of texts (choice), a grammar (lark,
    gbnf) or a JSON object of triggers and tags (tags).

    relaxed: what masks cannot enforce of a schema is left to a check of the finished text, else refused.
    compact: JSON without whitespace between its parts, which lets forced tokens be appended at once.
    after: the grammar begins behind this text (a model's end of reasoning); before it, everything goes.
    """

    kind: Kind
    text: str
    relaxed: bool = False
    compact: bool = False
    after: str | None = None


def schema_text(schema: object) -> str:
    """The JSON text of a schema given as such a text, an object, or true or false; keys keep their order.
    Raises InvalidRequest for what is no schema, is too large or too deep."""
    return _json_text("json_schema", schema)


def tags_text(tags: object) -> str:
    """As schema_text, of a structural tag."""
    return _json_text("structural_tag", tags)


def regex_text(pattern: object) -> str:
    return _limited("regex", require_text("regex", pattern), MAX_REGEX_BYTES)


def grammar_text(grammar: object) -> str:
    return _limited("grammar", require_text("grammar", grammar), MAX_BYTES)


def choice_texts(choices: object) -> tuple[str, ...]:
    """The texts to choose from, each once."""
    if not isinstance(choices, list | tuple) or not choices:
        raise InvalidRequest(f"choice must be a list of one text or more, got {quote(choices)}")
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(f"choice must hold at most {MAX_CHOICES:,} texts, got {len(choices):,}")
    texts = [require_text("choice: an entry", choice) for choice in choices]
    if "" in texts:
        raise InvalidRequest("choice must hold no empty text, got ''")
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_BYTES:
        raise InvalidRequest(f"choice must be at most {MAX_BYTES:,} bytes together, got {size:,}")
    return tuple(dict.fromkeys(texts))


def _limited(name: str, text: str, most: int) -> str:
    size = len(text.encode())
    if not 0 < size <= most:
        raise InvalidRequest(f"{name} must be a text of 1 to {most:,} bytes, got {size:,}")
    return text


def _json_text(name: str, value: object) -> str:
    if isinstance(value, str):
        value = _parsed(name, _limited(name, require_text(name, value), MAX_BYTES))
    if not isinstance(value, Mapping | bool):
        raise InvalidRequest(f"{name} must be a JSON object (or true or false), got {quote(value)}")
    _check_depth(name, value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name} must hold JSON values only, got {quote(value)}: {error}") from None
    return _limited(name, require_text(name, text), MAX_BYTES)


def _parsed(name: str, text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} must be JSON: {error}, got {quote(text)}") from None
    return value


def _check_depth(name: str, value: object) -> None:
    """By levels, without recursion; what holds itself is too deep as well."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for item in level
            if isinstance(item, Mapping | list | tuple)
            for part in (item.values() if isinstance(item, Mapping) else item)
            if isinstance(part, Mapping | list | tuple)
        ]
        if not level:
            return
    raise InvalidRequest(f"{name} must be nested at most {MAX_DEPTH} levels deep")
