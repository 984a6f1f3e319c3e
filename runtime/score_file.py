"""Reads the items of `radixlm score`: one JSON object a line.

A line has exactly one of `context` (text) and `context_ids` (token ids), has `continuations` (a list of texts
or of lists of token ids), and may have `namespace`, `id` and `priority`. How lines and faults are treated is
said in json_lines.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .errors import InvalidRequest
from .json_lines import read_lines, require_known, require_one
from .prompts import as_token_ids
from .score_items import ScoreItem, ScoreText
from .text import require_text

_CONTEXT = ("context", "context_ids")
_KEYS = (*_CONTEXT, "continuations", "namespace", "id", "priority")


@dataclass(frozen=True, slots=True)
class ItemLine:
    """One line: `number` counts from 1, `id` is as it was written (text or a number)."""

    number: int
    id: str | int
    item: ScoreItem


def read_items(path: Path) -> list[ItemLine]:
    """All items of the file, in order. A line without `id` is named by its place. Raises InvalidInput."""
    return read_lines(path, _parse, "items")


def _parse(number: int, fields: Mapping[str, object], identity: str | int) -> ItemLine:
    require_known(fields, _KEYS)
    kind, value = require_one(fields, _CONTEXT)
    if "continuations" not in fields:
        raise InvalidRequest("needs continuations, got none")
    item = ScoreItem(
        context=as_token_ids(value) if kind == "context_ids" else require_text("context", value),
        continuations=cast("tuple[ScoreText, ...]", fields["continuations"]),  # ScoreItem checks this
        salt=require_text("namespace", fields.get("namespace", "")),
        id=str(identity),
        priority=cast("int", fields.get("priority", 0)),  # and this
    )
    return ItemLine(number, identity, item)
