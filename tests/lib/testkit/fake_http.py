"""FakeHttp: an HTTP/1.1 server of a test's own, in the test's event loop, that can answer badly.

It speaks just enough of the protocol for a client that keeps connections, and knows how many there were, how
many are open, and when a client left.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

# Any: bodies are JSON, and tests know what is in them.
Json = Any


@dataclass(slots=True)
class Asked:
    """A request, and the ways to answer it: `json`, or `begin`, events and `end`, or `drop`."""

    method: str
    path: str
    headers: dict[str, str]
    body: Json
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def json(self, value: Json, status: int = 200, **headers: str) -> None:
        await self.content(json.dumps(value).encode(), status, **headers)

    async def content(self, content: bytes, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(content)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await self.writer.drain()

    async def begin(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await self.writer.drain()

    async def event(self, value: Json) -> None:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        await self.piece(f"data: {text}\n\n".encode())

    async def piece(self, content: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(content), content))
        await self.writer.drain()

    async def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def drop(self) -> None:
        self.writer.transport.abort()

    async def gone(self) -> None:
        """Until the client has left."""
        with suppress(ConnectionError):
            await self.reader.read(1)


Handler = Callable[[Asked], Awaitable[None]]


@dataclass(slots=True)
class FakeHttp:
    """`accepted` connections in all, `open` ones now."""

    url: str = ""
    accepted: int = 0
    open: int = 0
    asked: list[Asked] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [each.path for each in self.asked]

    def bodies(self, path: str) -> list[Json]:
        return [each.body for each in self.asked if each.path == path]


@asynccontextmanager
async def fake_http(handler: Handler) -> AsyncIterator[FakeHttp]:
    fake = FakeHttp()
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection runs as a task"
        tasks[task] = writer
        fake.accepted += 1
        fake.open += 1
        try:
            while (asked := await _next_request(reader, writer)) is not None:
                fake.asked.append(asked)
                await handler(asked)
        except ConnectionError:
            pass
        finally:
            fake.open -= 1
            del tasks[task]
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()
        left = dict(tasks)
        for writer in left.values():
            writer.transport.abort()
        await asyncio.gather(*left)
        await server.wait_closed()


async def _next_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, json.loads(content) if content else None, reader, writer)


@contextmanager
def served(answer: Handler) -> Iterator[FakeHttp]:
    """`fake_http` on a loop of its own, beside the test; what has come can be looked at from there."""
    loop, ready, leave = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[FakeHttp] = []

    async def main() -> None:
        async with fake_http(answer) as fake:
            found.append(fake)
            ready.set()
            await leave.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(10)
        loop.close()
