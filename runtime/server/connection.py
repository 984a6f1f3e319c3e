"""Connection: HTTP/1.1 as uvicorn speaks it, one request at a time.

uvicorn queues requests that come before the answer to the one before them, stops reading until then, and so
does not notice that the client has left. Few clients do this; here such a request is not answered, and the
connection ends with the answer under way: a client may then send it again (RFC 9112, section 9.3.2). An
answer whose last byte is sent is no longer under way, though the app may not have said so yet.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..errors import InvalidRequest
from .failures import body_of
from .replies import dumped


class Connection(HttpToolsProtocol):
    _is_over = False  # what still comes belongs to a request that is not answered

    def data_received(self, data: bytes) -> None:
        if not self._is_over:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """To what is no HTTP: in JSON, as every other error."""
        body = dumped(body_of(InvalidRequest(msg)))
        head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + body)
        self.transport.close()

    def on_headers_complete(self) -> None:
        cycle = self.cycle
        if cycle is not None and not _has_all(cycle):
            self._is_over = True
            cycle.keep_alive = False
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_over:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_over:
            super().on_message_complete()


def _has_all(cycle: RequestResponseCycle) -> bool:
    """Whether the client has all of the answer: it may know so by its length before the app ends it."""
    if cycle.response_complete:
        return True
    has_no_more = not cycle.chunked_encoding and cycle.expected_content_length == 0
    return cycle.response_started and (has_no_more or cycle.scope["method"] == "HEAD")
