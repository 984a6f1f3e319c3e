"""Connection: HTTP/1.1 as uvicorn speaks it, one request at a time, and within limits.

uvicorn queues requests that come before the answer to the one before them, stops reading until then, and so
does not notice that the client has left. Few clients do this; here such a request is not answered, and the
connection ends with the answer under way: a client may then send it again (RFC 9112, section 9.3.2). An
answer whose last byte is sent is no longer under way, though the app may not have said so yet.

uvicorn bounds neither heads nor the time they take, and waits for ever for a client that does not read. An
offer to upgrade (`Upgrade: h2c`) is ignored, as a server may: the parser would take a body behind it for
requests of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .failures import error_body
from .replies import dumped

_MOST_HEAD_BYTES = 64 << 10
_HEAD_SECONDS = 30.0
_REST_SECONDS = 30.0
"""For what is still to come of a request that has its answer."""
_END_OF_HEAD = b"\r\n\r\n"
_UPGRADE = re.compile(rb"(?im)^upgrade[ \t]*:[^\r\n]*\r\n")


class Connection(HttpToolsProtocol):
    idle_timeout = 60.0
    """Seconds that a client may leave unread what it is sent; 0: any time."""
    _is_over = False  # what still comes belongs to a request that is not answered
    _in_head = True  # no message is under way, or not all of its head has come
    _head = b""
    _header_bytes = 0

    # -- the socket ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for what in tuple(self._due):
            self._expect_no_more(what)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._expect_no_more("reading")
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._in_head:
            super().data_received(data)
        elif self._is_answering():
            self._end_with_answer()
        else:
            self._take_head(self._head + data)

    def _take_head(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        end = data.find(_END_OF_HEAD)
        if (end if end >= 0 else len(data)) > _MOST_HEAD_BYTES:
            self._refuse(431, f"a head may have {_MOST_HEAD_BYTES} bytes, got more")
        elif end < 0 and data[:1].isalpha():  # else it is none, as the parser says
            self._head = data
            self._expect_head()
        else:
            self._head = b""
            for what in ("head", "reading"):
                self._expect_no_more(what)
            behind = end + len(_END_OF_HEAD)
            super().data_received(_UPGRADE.sub(b"", data[:behind]) + data[behind:])

    # -- waiting ---------------------------------------------------------------------------------------

    def _expect(self, what: str, seconds: float, is_late: Callable[[], None]) -> None:
        """From the first call on, until it is not expected any more."""
        if what not in self._due:
            self._due[what] = self.loop.call_later(seconds, self._is_late, what, is_late)

    def _expect_no_more(self, what: str) -> None:
        if (handle := self._due.pop(what, None)) is not None:
            handle.cancel()

    def _is_late(self, what: str, then: Callable[[], None]) -> None:
        del self._due[what]
        then()

    def _expect_head(self) -> None:
        self._expect("head", _HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head:
            self._refuse(408, f"a head must come within {_HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _expect_reading(self) -> None:
        if self.idle_timeout:
            self._expect("reading", self.idle_timeout, self._reading_is_late)

    def _reading_is_late(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    # -- what the parser and the answers call ----------------------------------------------------------

    def on_message_begin(self) -> None:
        self._header_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEAD_BYTES:  # of a head in pieces, and behind a body
            raise ValueError(f"headers may have {_MOST_HEAD_BYTES} bytes, got more")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._is_answering():
            self._end_with_answer()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_over:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._expect_no_more("rest")
        if not self._is_over:
            super().on_message_complete()
            if not self._is_answering():  # what came late has ended uvicorn's wait for another request
                self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._expect_reading()
        if not self._in_head:
            self._expect("rest", _REST_SECONDS, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP. An answer under way goes on if that came behind its request."""
        if not self._is_answering():
            self._refuse(400, msg)
        elif self._in_head:
            self._end_with_answer()
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """In JSON, as every other error."""
        body = dumped(error_body(message, "invalid_request_error", status))
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self._is_over = True
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not _has_all(self.cycle)

    def _end_with_answer(self) -> None:
        self._is_over = True
        self.cycle.keep_alive = False


def connections(idle_timeout: float) -> type[Connection]:
    return type("Connection", (Connection,), {"idle_timeout": idle_timeout})


def _has_all(cycle: RequestResponseCycle) -> bool:
    """Whether the client has all of the answer: it may know so by its length before the app ends it."""
    if cycle.response_complete:
        return True
    has_no_more = not cycle.chunked_encoding and cycle.expected_content_length == 0
    return cycle.response_started and (has_no_more or cycle.scope["method"] == "HEAD")
