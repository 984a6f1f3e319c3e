"""Reads the prompts of `radixlm generate`: one JSON object a line.

A line has exactly one of `prompt` (text), `prompt_ids` (token ids) and `messages` (a chat), and may have
`sampling`, `namespace`, `id` and `priority`. The whole file is checked before anything is computed; the
first fault raises InvalidInput that names the file and the line. Blank lines are skipped, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from .errors import InvalidInput, InvalidRequest
from .prompts import Message, Prompt, as_messages, as_token_ids
from .sampling_params import SamplingParams
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
    lines: list[PromptLine] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(_read(path).split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            line = _parse(number, raw, str(len(lines)), defaults)
            if (first := seen.setdefault(str(line.id), number)) != number:
                raise InvalidRequest(f"id {line.id!r} is already the id of line {first}")
        except InvalidRequest as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from error
        lines.append(line)
    if not lines:
        raise InvalidInput(f"{path} holds no prompts")
    return lines


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL character
        raise InvalidInput(f"cannot read {str(path)!r}: {error}") from error


def _parse(number: int, raw: bytes, default_id: str, defaults: SamplingParams) -> PromptLine:
    fields = _decode(raw)
    unknown = sorted(fields.keys() - {*_CONTENT, *_OPTIONS})
    if unknown:
        raise InvalidRequest(f"unknown key {unknown[0]!r}; the keys are {', '.join(_CONTENT + _OPTIONS)}")
    identity = fields.get("id", default_id)
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise InvalidRequest(f"id must be text or an integer, got {quote(identity)}")
    prompt = Prompt(
        content=_content(fields),
        sampling=_sampling(fields.get("sampling"), defaults),
        salt=require_text("namespace", fields.get("namespace", "")),
        id=str(identity),
        priority=cast("int", fields.get("priority", 0)),  # Prompt checks it
    )
    return PromptLine(number, identity, prompt)


def _decode(raw: bytes) -> dict[str, object]:
    try:
        value = json.loads(raw.decode())
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"not valid JSON: {error.msg} at column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not valid UTF-8 at byte {error.start}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise InvalidRequest(f"not usable JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"must be a JSON object, got {type(value).__name__}")
    return value


def _content(fields: Mapping[str, object]) -> str | tuple[int, ...] | tuple[Message, ...]:
    given = [key for key in _CONTENT if key in fields]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InvalidRequest(f"needs exactly one of {', '.join(_CONTENT)}, got {got}")
    value = fields[given[0]]
    if given[0] == "prompt_ids":
        return as_token_ids(value)
    return as_messages(value) if given[0] == "messages" else require_text("prompt", value)


def _sampling(value: object, defaults: SamplingParams) -> SamplingParams | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(f"sampling must be a JSON object, got {quote(value)}")
    return SamplingParams.from_mapping(value, base=defaults)
