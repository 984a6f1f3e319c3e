"""An HTTP client that costs next to nothing while it measures: it keeps what comes, with its time, and reads
it after the connection has ended.

Imports nothing but the standard library. A request has a connection of its own, which the server closes
behind its answer.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate
from time import perf_counter
from typing import Any

HOST = "127.0.0.1"


def request(
    method: str, path: str, body: object = None, *, key: str | None = None, raw: bytes | None = None
) -> bytes:
    """The bytes of one request. `raw` is sent as it is, in place of a body to be written as JSON."""
    content = raw if raw is not None else b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {HOST}",
        "Connection: close",
        f"Content-Length: {len(content)}",
    ]
    if content:
        lines.append("Content-Type: application/json")
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class Reply(asyncio.Protocol):
    """What came of one request. `problem`: why there is no answer, None while all is well.

    Times are those of perf_counter; `started` is when the connection was asked for. `on_part` is called with
    each piece of the answer, `self` included, and may end the connection with `drop`.
    """

    def __init__(self, sent: bytes, on_part: Callable[[Reply], None] | None = None) -> None:
        self._sent, self._on_part = sent, on_part
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = perf_counter()
        self.parts: list[tuple[float, bytes]] = []
        self.problem: str | None = None

    # -- while it runs -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream of bytes"
        self._transport = transport
        transport.write(self._sent)

    def data_received(self, data: bytes) -> None:
        self.parts.append((perf_counter(), data))
        if self._on_part is not None:
            self._on_part(self)

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.problem is None:
            self.problem = repr(error)
        if not self._over.done():
            self._over.set_result(None)

    def drop(self) -> None:
        """End the connection at once, whatever was still to come."""
        self.problem = "dropped"
        if self._transport is not None:
            self._transport.abort()

    async def whole(self) -> Reply:
        """Itself, when the connection has ended."""
        try:
            await self._over
        except asyncio.CancelledError:
            self.drop()
            raise
        return self

    # -- afterwards --------------------------------------------------------------------------------

    @property
    def raw(self) -> bytes:
        return b"".join(data for _, data in self.parts)

    @property
    def seconds(self) -> float:
        return self.parts[-1][0] - self.started if self.parts else 0.0

    @property
    def status(self) -> int:
        """0 where there is none."""
        line = self.raw[:16].split(b" ")
        return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0

    @property
    def body(self) -> bytes:
        return self._read()[0]

    @property
    def is_whole(self) -> bool:
        """Whether the answer has the end that its head announces."""
        return self._read()[1]

    def json(self) -> Any:  # Any: answers are JSON
        return json.loads(self.body)

    def events(self) -> list[tuple[float, bytes]]:
        """Server-sent events, each with the time at which its last byte came."""
        ends = list(accumulate(len(data) for _, data in self.parts))
        raw, found, place = self.raw, [], 0
        while (begin := raw.find(b"data: ", place)) >= 0 and (end := raw.find(b"\n\n", begin)) >= 0:
            place = end + 2
            found.append((self.parts[bisect_left(ends, place)][0], raw[begin + 6 : end]))
        return found

    def _read(self) -> tuple[bytes, bool]:
        head, found, rest = self.raw.partition(b"\r\n\r\n")
        if not found:
            return b"", False
        names = _headers(head)
        if names.get(b"transfer-encoding") == b"chunked":
            return _joined(rest)
        length = int(names.get(b"content-length", b"0"))
        return rest[:length], len(rest) == length


async def begin(port: int, sent: bytes, on_part: Callable[[Reply], None] | None = None) -> Reply:
    """A request under way; with `problem` if nobody listens."""
    loop = asyncio.get_running_loop()
    reply = Reply(sent, on_part)
    try:
        await loop.create_connection(lambda: reply, HOST, port)
    except OSError as error:
        reply.problem = repr(error)
        reply.connection_lost(None)
    return reply


async def ask(port: int, sent: bytes, timeout: float | None = None) -> Reply:
    """A request and the whole of its answer. Past the time the connection is dropped."""
    reply = await begin(port, sent)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await reply.whole()
    return reply


def _headers(head: bytes) -> Mapping[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _joined(chunks: bytes) -> tuple[bytes, bool]:
    """The body that came in chunks, and whether the last of them is there."""
    parts: list[bytes] = []
    place = 0
    while (end := chunks.find(b"\r\n", place)) >= 0:
        size = int(chunks[place:end].split(b";")[0], 16)
        if not size:
            return b"".join(parts), chunks[end:] == b"\r\n\r\n"
        parts.append(chunks[end + 2 : end + 2 + size])
        place = end + 2 + size + 2
    return b"".join(parts), False
