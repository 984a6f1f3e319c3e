"""Reads input files of the command line: one JSON object a line, each known by an id.

The whole file is checked before anything is computed; the first fault raises InvalidInput that names the file
and the line. Blank lines are skipped, and counted. What the keys mean is the business of prompts_file.py and
score_file.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from .errors import InvalidInput, InvalidRequest
from .text import quote


class Line(Protocol):
    """What a line was read as."""

    @property
    def id(self) -> str | int: ...


L = TypeVar("L", bound=Line)
Fields = Mapping[str, object]


def read_lines(path: Path, parse: Callable[[int, Fields, str | int], L], what: str) -> list[L]:
    """All lines of the file as `parse` reads them: from the number, the fields and the id, which is the
    line's place counted from 0 where it gives none. `parse` may raise InvalidRequest. Raises InvalidInput."""
    lines: list[L] = []
    seen: dict[str, int] = {}
    for number, raw in enumerate(_read(path).split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            fields = _decode(raw)
            line = parse(number, fields, _identity(fields, str(len(lines))))
            if (first := seen.setdefault(str(line.id), number)) != number:
                raise InvalidRequest(f"id {line.id!r} is already the id of line {first}")
        except InvalidRequest as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from error
        lines.append(line)
    if not lines:
        raise InvalidInput(f"{path} holds no {what}")
    return lines


def require_known(fields: Fields, known: Collection[str]) -> None:
    """Raises InvalidRequest, which names the first key that means nothing."""
    unknown = sorted(fields.keys() - set(known))
    if unknown:
        raise InvalidRequest(f"unknown key {unknown[0]!r}; the keys are {', '.join(known)}")


def require_one(fields: Fields, keys: Collection[str]) -> tuple[str, object]:
    """The one of `keys` that is given, with its value. Raises InvalidRequest if it is none or several."""
    given = [key for key in keys if key in fields]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InvalidRequest(f"needs exactly one of {', '.join(keys)}, got {got}")
    return given[0], fields[given[0]]


def _identity(fields: Fields, default: str) -> str | int:
    identity = fields.get("id", default)
    if isinstance(identity, bool) or not isinstance(identity, str | int):
        raise InvalidRequest(f"id must be text or an integer, got {quote(identity)}")
    return identity


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL character
        raise InvalidInput(f"cannot read {str(path)!r}: {error}") from error


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
