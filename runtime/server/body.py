"""The body of a request as a JSON object, within limits: size, depth, numbers, Unicode.

What comes out is plain data that can be written again: no lone surrogates, no NaN. Knows no field.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request

from ..errors import InvalidRequest
from ..text import quote
from .failures import BodyTooLarge

_SECONDS = 60
_PART_SECONDS = 60.0
_RULES = "in UTF-8, with finite numbers and no lone surrogates"


async def read_object(request: Request, most_bytes: int) -> dict[str, object]:
    """Raises BodyTooLarge, and InvalidRequest for what is no JSON object."""
    data = await read_bytes(request, most_bytes)
    if not data:
        raise InvalidRequest("the body must be a JSON object, but it is empty")
    body = parse_json(data)
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {quote(body)}")
    return body


async def read_bytes(request: Request, most_bytes: int) -> bytes:
    """Raises BodyTooLarge before more than that is kept, InvalidRequest if it is too long in coming."""
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(_SECONDS):
            async for part in body_parts(request, most_bytes):
                parts.append(part)
    except TimeoutError:
        size = sum(map(len, parts))
        raise InvalidRequest(f"the body must come within {_SECONDS} s, got {size} bytes of it") from None
    return b"".join(parts)


async def body_parts(request: Request, most_bytes: int) -> AsyncIterator[bytes]:
    """The body as it comes. Raises BodyTooLarge at once if it says that it has more bytes, or when more have
    come, and InvalidRequest when nothing comes any more."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise BodyTooLarge(f"the body may have {most_bytes} bytes, got {length[:20]}")
    size, parts = 0, request.stream()
    while True:
        try:
            async with asyncio.timeout(_PART_SECONDS):
                part = await anext(parts, None)
        except TimeoutError:
            raise InvalidRequest(
                f"each part of the body must come within {_PART_SECONDS:g} s, got {size} bytes of it"
            ) from None
        if part is None:
            return
        size += len(part)
        if size > most_bytes:
            raise BodyTooLarge(f"the body may have {most_bytes} bytes, got more")
        yield part


def parse_json(data: bytes, what: str = "the body") -> object:
    """Raises InvalidRequest, which calls the data `what`. msgspec holds the interpreter, and with it the
    engine, for a third of the time that the standard library's parser does. A mark at the start is taken."""
    try:
        value: object = msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8))
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{what} must be JSON, {_RULES}: {_where_not_text(data) or error}") from None
    return value


def _where_not_text(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"got byte {data[error.start]:#04x} at {error.start}"
    return ""
