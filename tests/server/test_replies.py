"""Streams and answers that end when the client does, driven by hand as a server would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from radixlm.runtime.errors import InvalidRequest, RequestFailed
from radixlm.runtime.server.replies import (
    CLIENT_GONE,
    DONE,
    SEND_PARTS,
    STREAM_END,
    EventStream,
    dumped,
    event_of,
    until_gone,
)

PATIENCE = 20
SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await test

    asyncio.run(bounded())


class Client:
    """What a server hands to an app: the client leaves when `leave` is set, and reads so many messages."""

    def __init__(self, reads: int = 1000) -> None:
        self.leave = asyncio.Event()
        self.got: list[Message] = []
        self._reads = reads

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if len(self.got) == self._reads:
            await asyncio.Event().wait()
        self.got.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


class Source:
    """Events of a stream: as many as `more` is released for; notes that it was closed."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.closed = False
        self._parts = parts

    async def events(self, endless: bool = False) -> AsyncGenerator[bytes, None]:
        try:
            for part in self._parts:
                if isinstance(part, Exception):
                    raise part
                yield part
            if endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


def test_a_stream_is_sent_to_its_end() -> None:
    async def test() -> None:
        client, source = Client(), Source(b"a", b"b", DONE)
        await EventStream(source.events())(SCOPE, client.receive, client.send)
        assert client.body == b"ab" + DONE
        assert [message["type"] for message in client.got[:1]] == ["http.response.start"]
        headers = dict(client.got[0]["headers"])
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert b"content-length" not in headers
        assert client.got[-1]["more_body"] is False
        assert source.closed

    run(test())


def test_an_error_before_the_first_event_is_an_ordinary_reply() -> None:
    async def test() -> None:
        client = Client()
        source = Source(InvalidRequest("n must be an integer, got 'x'"))
        await EventStream(source.events())(SCOPE, client.receive, client.send)
        assert client.got[0]["status"] == 400
        assert b"n must be an integer, got 'x'" in client.body

    run(test())


def test_a_later_error_is_an_event_and_then_the_stream_is_done() -> None:
    async def test() -> None:
        client = Client()
        source = Source(event_of({"a": 1}), RequestFailed("the step failed: it did"))
        await EventStream(source.events())(SCOPE, client.receive, client.send)
        first, second, last = client.body.split(b"\n\n")[:3]
        assert first == b'data: {"a":1}'
        assert b'"message":"the step failed: it did","type":"server_error"' in second
        assert last == b"data: [DONE]"
        assert client.got[-1]["more_body"] is False

    run(test())


def test_an_error_that_is_not_ours_tells_only_its_kind() -> None:
    async def test() -> None:
        client = Client()
        await EventStream(Source(b"a", KeyError("secret")).events())(SCOPE, client.receive, client.send)
        assert b"internal error: KeyError" in client.body
        assert b"secret" not in client.body

    run(test())


def test_a_client_that_leaves_ends_the_stream_while_it_waits_for_more() -> None:
    async def test() -> None:
        client, source = Client(), Source(b"a")
        scope = dict(SCOPE)
        sending = asyncio.ensure_future(
            EventStream(source.events(endless=True))(scope, client.receive, client.send)
        )
        while client.body != b"a":
            await asyncio.sleep(0)
        client.leave.set()
        await sending
        assert source.closed
        assert scope[STREAM_END] == CLIENT_GONE

    run(test())


def test_a_client_that_leaves_before_the_first_event_ends_the_stream() -> None:
    async def test() -> None:
        client, source = Client(), Source()
        client.leave.set()
        await EventStream(source.events(endless=True))(SCOPE, client.receive, client.send)
        assert source.closed
        assert client.got == []

    run(test())


def test_work_is_cancelled_when_its_client_leaves_and_has_ended_then() -> None:
    async def test() -> None:
        client, ended = Client(), asyncio.Event()

        async def work() -> int:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()
            return 1

        client.leave.set()
        assert await until_gone(Request(SCOPE, client.receive), work()) is None
        assert ended.is_set()

    run(test())


def test_work_that_ends_is_the_answer_and_its_error_is_the_error() -> None:
    async def test() -> None:
        client = Client()

        async def work() -> int:
            return 7

        async def failing() -> int:
            raise InvalidRequest("no")

        assert await until_gone(Request(SCOPE, client.receive), work()) == 7
        with pytest.raises(InvalidRequest, match="no"):
            await until_gone(Request(SCOPE, client.receive), failing())

    run(test())


def test_parts_of_a_stream_go_past_what_looks_at_its_start_only() -> None:
    async def test() -> None:
        around, below = Client(), Client()
        scope = {**SCOPE, SEND_PARTS: below.send}
        await EventStream(Source(b"a", DONE).events())(scope, around.receive, around.send)
        assert [message["type"] for message in around.got] == ["http.response.start"]
        assert below.body == b"a" + DONE
        assert [message["more_body"] for message in below.got] == [True, True, False]

    run(test())


def test_what_is_written_is_json() -> None:
    assert dumped({"a": (1, 2.5, None, True, "é\u2028\n")}) == '{"a":[1,2.5,null,true,"é\u2028\\n"]}'.encode()
    assert dumped([float("nan"), float("inf"), 10**30]) == b"[null,null,1" + b"0" * 30 + b"]"
    for value in (object(), {"a": "\ud800"}):
        with pytest.raises((TypeError, ValueError)):
            dumped(value)
