"""The input of a batch: one request a line, checked as a whole before any of them runs.

A file may be large: lines are read one by one, and what is kept of each is its place. The places come in an
order in which what begins alike stands together, so that what prompts share is computed once and used while
it is there. Pure: bytes in, values out.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import BinaryIO
from zlib import crc32

from ..errors import InvalidRequest
from ..text import quote
from .body import parse_json

MOST_LINES = 50_000
MOST_FAULTS = 50
"""That are told; where there are more, the first ones are."""
MOST_ID = 512
OFFLINE_PRIORITY = -1000
"""Of a line that asks for none. Whatever lines ask for, they stand back behind what somebody waits for."""

_BLOCK = 32
"""Bytes of a prompt that are told apart as a whole: some tokens."""


@dataclass(frozen=True, slots=True)
class LineFault:
    """Why a batch cannot run; `line` counts from 1, None where it is not about one."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line is in its file, and how many prompts it has."""

    custom_id: str
    offset: int
    size: int
    prompts: int


@dataclass(frozen=True, slots=True)
class CheckedLines:
    """`places` in the order in which they should run; of a file with faults they mean nothing."""

    places: tuple[LinePlace, ...]
    faults: tuple[LineFault, ...]


class _Fault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


def check_lines(file: BinaryIO, endpoint: str, most_bytes: int) -> CheckedLines:
    """All lines of a file. `most_bytes` are those of one line."""
    found: list[tuple[bytes, LinePlace]] = []
    faults: list[LineFault] = []
    seen: dict[str, int] = {}
    file.seek(0)
    offset = number = 0
    while len(faults) < MOST_FAULTS and (raw := file.readline(most_bytes + 2)):
        number += 1
        if raw.strip():
            try:
                if len(seen) == MOST_LINES:
                    raise _Fault("too_many_lines", f"a batch may have {MOST_LINES} lines, got more")
                body, custom_id = _checked(raw, number, endpoint, most_bytes, seen)
                place = LinePlace(custom_id, offset, len(raw), _count_prompts(body))
                found.append((prefix_key(body), place))
            except RecursionError:
                faults.append(LineFault("invalid_json_line", "the line is nested too deeply", None, number))
            except _Fault as fault:
                faults.append(LineFault(fault.code, str(fault), fault.param, number))
                if fault.code in _LAST:
                    break
        offset += len(raw)
    if not found and not faults:
        faults.append(LineFault("empty_file", "the file has no lines"))
    found.sort(key=lambda one: one[0])
    return CheckedLines(tuple(place for _, place in found), tuple(faults))


def read_body(file: BinaryIO, place: LinePlace) -> dict[str, object]:
    """The request of a line that was checked. May be called from several threads."""
    line = parse_json(os.pread(file.fileno(), place.size, place.offset))
    body = line["body"] if isinstance(line, dict) else None
    assert isinstance(body, dict), "lines are checked before they run"
    return body


def offline_body(body: Mapping[str, object]) -> dict[str, object]:
    """The same request, behind what somebody waits for."""
    asked = body.get("priority")
    if asked is None:
        asked = 0
    if not isinstance(asked, int) or isinstance(asked, bool):
        return dict(body)  # which is refused where priorities are read
    return {**body, "priority": OFFLINE_PRIORITY + max(-999, min(999, asked))}


def prefix_key(body: Mapping[str, object]) -> bytes:
    """Bodies whose prompts begin alike have keys that begin alike, whatever the order of their fields. An
    eighth as long as the prompt; a checksum that two blocks have in common costs reuse and nothing else."""
    parts = [body.get(name) for name in ("cache_salt", "tools", "messages", "prompt")]
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return array("I", [crc32(text[i : i + _BLOCK]) for i in range(0, len(text), _BLOCK)]).tobytes()


def result_line(
    result_id: str, custom_id: str, request_id: str, status: int, body: object
) -> dict[str, object]:
    """A line of what came of a request, in the output or the error file."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": result_id, "custom_id": custom_id, "response": response, "error": None}


def unrun_line(result_id: str, custom_id: str, code: str, message: str) -> dict[str, object]:
    """A line of the error file for a request that never ran."""
    error = {"code": code, "message": message}
    return {"id": result_id, "custom_id": custom_id, "response": None, "error": error}


_LAST = frozenset({"too_many_lines", "line_too_long"})
"""Faults behind which nothing is looked at."""


def _checked(
    raw: bytes, number: int, endpoint: str, most_bytes: int, seen: dict[str, int]
) -> tuple[dict[str, object], str]:
    """The body and the id of a line. Raises _Fault."""
    if len(raw.rstrip(b"\r\n")) > most_bytes:
        raise _Fault("line_too_long", f"a line may have {most_bytes} bytes, got more")
    line = _decoded(raw)
    custom_id = _require_text(line, "custom_id")
    if not 0 < len(custom_id) <= MOST_ID:
        message = f"custom_id must have from 1 to {MOST_ID} characters, got {len(custom_id)}"
        raise _Fault("invalid_custom_id", message, "custom_id")
    if (first := seen.setdefault(custom_id, number)) != number:
        message = f"custom_id must be unique, got {quote(custom_id)}, which line {first} has already"
        raise _Fault("duplicate_custom_id", message, "custom_id")
    if (method := _require_text(line, "method")) != "POST":
        raise _Fault("invalid_method", f"method must be 'POST', got {quote(method)}", "method")
    if (url := _require_text(line, "url")) != endpoint:
        message = f"url must be the endpoint of the batch, {endpoint!r}, got {quote(url)}"
        raise _Fault("invalid_url", message, "url")
    body = _required(line, "body")
    if not isinstance(body, dict):
        raise _Fault("invalid_body", f"body must be a JSON object, got {quote(body)}", "body")
    return body, custom_id


def _decoded(raw: bytes) -> dict[str, object]:
    try:
        line = parse_json(raw, "the line")
    except InvalidRequest as error:
        raise _Fault("invalid_json_line", str(error)) from None
    if not isinstance(line, dict):
        raise _Fault("invalid_json_line", f"the line must be a JSON object, got {quote(line)}")
    return line


def _required(line: Mapping[str, object], name: str) -> object:
    if line.get(name) is None:
        raise _Fault("missing_required_parameter", f"the line must have {name!r}", name)
    return line[name]


def _require_text(line: Mapping[str, object], name: str) -> str:
    value = _required(line, name)
    if not isinstance(value, str):
        raise _Fault(f"invalid_{name}", f"{name} must be text, got {quote(value)}", name)
    return value


def _count_prompts(body: Mapping[str, object]) -> int:
    prompt = body.get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
