"""Reads the prompts of `radixlm generate`: one JSON object a line.

A line has exactly one of `prompt` (text), `prompt_ids` (token ids) and `messages` (a chat), and may have
`sampling`, `namespace`, `id` and `priority`. How lines and faults are treated is said in json_lines.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .errors import InvalidRequest
from .json_lines import read_lines, require_known, require_one
from .prompts import Message, Prompt, as_messages, as_token_ids
from .sampling_params import SamplingParams, is_sampling_option
from .text import quote, require_text

_CONTENT = ("prompt", "prompt_ids", "messages")
_OPTIONS = ("sampling", "namespace", "id", "priority")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line: `number` counts from 1, `id` is as it was written (text or a number)."""

    number: int
    id: str | int
    prompt: Prompt


def read_prompts(path: Path, defaults: SamplingParams) -> list[PromptLine]:
    """All prompts of the file, in order. A line without `id` is named by its place, counted from 0.

    A line's `sampling` is laid over `defaults`. Raises InvalidInput.
    """

    def parse(number: int, fields: Mapping[str, object], identity: str | int) -> PromptLine:
        _refuse_misplaced(fields)
        require_known(fields, (*_CONTENT, *_OPTIONS))
        prompt = Prompt(
            content=_content(fields),
            sampling=_sampling(fields.get("sampling"), defaults),
            salt=require_text("namespace", fields.get("namespace", "")),
            id=str(identity),
            priority=cast("int", fields.get("priority", 0)),  # Prompt checks it
        )
        return PromptLine(number, identity, prompt)

    return read_lines(path, parse, "prompts")


def _refuse_misplaced(fields: Mapping[str, object]) -> None:
    """Options of sampling that stand beside the prompt, where chat servers want them."""
    for key in sorted(fields.keys() - {*_CONTENT, *_OPTIONS}):
        if is_sampling_option(key):
            raise InvalidRequest(f'{key!r} belongs in sampling, as in {{"sampling": {{"{key}": ...}}}}')


def _content(fields: Mapping[str, object]) -> str | tuple[int, ...] | tuple[Message, ...]:
    kind, value = require_one(fields, _CONTENT)
    if kind == "prompt_ids":
        return as_token_ids(value)
    return as_messages(value) if kind == "messages" else require_text("prompt", value)


def _sampling(value: object, defaults: SamplingParams) -> SamplingParams | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(f"sampling must be a JSON object, got {quote(value)}")
    return SamplingParams.from_mapping(value, base=defaults)
