"""The body of a request as a JSON object, within limits: size, depth, numbers, Unicode.

What comes out is plain data that can be written again: no lone surrogates, no NaN. Knows no field.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import NoReturn

from starlette.requests import Request

from ..errors import InvalidRequest
from ..text import quote
from .failures import BodyTooLarge

_SECONDS = 60
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_object(request: Request, most_bytes: int) -> dict[str, object]:
    """Raises BodyTooLarge, and InvalidRequest for what is no JSON object."""
    body = parse_json(await read_bytes(request, most_bytes))
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {quote(body)}")
    return body


async def read_bytes(request: Request, most_bytes: int) -> bytes:
    """Raises BodyTooLarge before more than that is kept, InvalidRequest if it is too long in coming."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise BodyTooLarge(f"the body may have {most_bytes} bytes, got {length[:20]}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise BodyTooLarge(f"the body may have {most_bytes} bytes, got more")
                parts.append(part)
    except TimeoutError:
        raise InvalidRequest(f"the body must come within {_SECONDS} s, got {size} bytes of it") from None
    return b"".join(parts)


def parse_json(data: bytes, what: str = "the body") -> object:
    """Raises InvalidRequest, which calls the data `what`."""
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{what} must be UTF-8, got byte {error.object[error.start]:#04x} at {error.start}"
        ) from None
    except ValueError as error:
        raise InvalidRequest(f"{what} must be JSON: {error}") from None
    if _SURROGATE.search(data):
        _check_surrogates(value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise InvalidRequest(f"text must be valid Unicode, got the lone surrogate {found!a}") from None
