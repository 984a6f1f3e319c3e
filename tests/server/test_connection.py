"""HTTP/1.1 on raw sockets: what stands between requests, what is too much, and who does not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest

from radixlm.runtime.server import connection
from radixlm.runtime.server.settings import ServerSettings
from testkit.http_server import Endpoint, received_until, running_server, wait_until
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]
PATIENCE = 30
GET = b"GET /get_model_info HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body: dict[str, object], *headers: str, path: str = "/v1/completions") -> bytes:
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(content)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


ASKED = {"prompt": "a", "max_tokens": 4}


@contextmanager
def connected(endpoint: Endpoint, *, buffer: int | None = None) -> Iterator[socket.socket]:
    host, _, port = endpoint.url.removeprefix("http://").partition(":")
    with socket.socket() as found:
        if buffer is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        found.settimeout(PATIENCE)
        found.connect((host, int(port)))
        yield found


def all_of(found: socket.socket) -> bytes:
    """What comes until the server closes."""
    return b"".join(iter(lambda: found.recv(65536), b""))


@pytest.fixture
def endpoint(open_face: OpenFace) -> Iterator[Endpoint]:
    with running_server(open_face(lambda _: "text")) as found:
        yield found


# -- between requests --------------------------------------------------------------------------------


def test_what_is_no_http_is_refused_in_json(endpoint: Endpoint) -> None:
    for garbage in (b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n"):
        with connected(endpoint) as raw:
            raw.sendall(garbage)
            head, _, body = all_of(raw).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), garbage
        assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "garbage", [b"garbage\r\n\r\n", b"\x00\x01", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_bytes_behind_a_request_leave_its_answer_whole(
    open_face: OpenFace, garbage: bytes, together: bool, stream: bool
) -> None:
    face = open_face(lambda _: "text", hold=1)
    with running_server(face) as endpoint, connected(endpoint) as raw:
        asked = post({**ASKED, "stream": stream})
        raw.sendall(asked + garbage if together else asked)
        wait_until(lambda: bool(face.requests))
        if not together:
            raw.sendall(garbage)
            with httpx.Client(base_url=endpoint.url) as other:  # by then they have been read
                assert other.get("/health").status_code == 200
        face.release()
        found = all_of(raw)
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert found.count(b"HTTP/1.1") == 1
    assert b"text" in found or stream
    assert not stream or found.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0"])
@pytest.mark.parametrize("later", [True, False])
def test_an_offer_to_upgrade_is_ignored(endpoint: Endpoint, offer: str, later: bool) -> None:
    """The body behind it stays a body, even one that looks like a request."""
    body = json.dumps({"prompt": GET.decode(), "max_tokens": 4}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        f"Upgrade: {offer}\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    with connected(endpoint) as raw:
        raw.sendall(head if later else head + body)
        if later:
            with httpx.Client(base_url=endpoint.url) as other:
                assert other.get("/health").status_code == 200
            raw.sendall(body)
        assert received_until(raw, b'"text_completion"').startswith(b"HTTP/1.1 200 OK")
        raw.sendall(GET)
        assert received_until(raw, b'"scripted"'), "the connection goes on"


def test_a_head_may_come_in_pieces(endpoint: Endpoint) -> None:
    sent = post(ASKED) + GET
    for size in (1, 7, 100):
        with connected(endpoint) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = len(sent) - len(GET)
            for start in range(0, head, size):
                raw.sendall(sent[start : min(start + size, head)])
            assert raw.recv(65536).startswith(b"HTTP/1.1 200 OK"), size


# -- too much ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [b"a: b\r\n", b"x" * 1000])
def test_a_head_without_end_is_refused(endpoint: Endpoint, piece: bytes) -> None:
    with connected(endpoint) as raw:
        raw.sendall(b"GET /" + b"x" * 10 + b" HTTP/1.1\r\nHost: a\r\n")
        for _ in range(100_000):
            try:
                raw.sendall(piece * 100)
            except OSError:
                return
    raise AssertionError("it is taken for ever")


def test_a_head_that_is_too_long_is_told_so(endpoint: Endpoint) -> None:
    with connected(endpoint) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 65_600)
        head, _, body = all_of(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["message"] == "a head may have 65536 bytes, got more"


def test_headers_behind_a_body_are_bounded(endpoint: Endpoint) -> None:
    start = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with connected(endpoint) as raw:
        raw.sendall(start)
        for _ in range(100_000):
            try:
                raw.sendall(b"a: b\r\n" * 1000)
            except OSError:
                return
    raise AssertionError("they are taken for ever")


def test_a_client_that_sends_no_whole_head_is_not_waited_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_HEAD_SECONDS", 0.1)
    with connected(endpoint) as silent, connected(endpoint) as half:
        half.sendall(b"GET /health HTTP/1.1\r\nHos")
        assert all_of(silent) == b""
        assert all_of(half).startswith(b"HTTP/1.1 408 ")


def test_the_rest_of_a_request_that_has_its_answer_is_not_waited_for(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_REST_SECONDS", 0.2)
    asked = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{"
    with connected(endpoint) as raw:
        raw.sendall(asked)
        assert received_until(raw, b"}}").startswith(b"HTTP/1.1 400 ")
        raw.sendall(b"x")  # ends uvicorn's own wait for another request
        assert all_of(raw) == b""


def test_a_client_that_has_sent_the_rest_is_waited_for_like_any_other(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = b"POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{"
    with connected(endpoint) as raw:
        raw.sendall(asked)
        assert received_until(raw, b"}}").startswith(b"HTTP/1.1 400 ")
        monkeypatch.setattr(connection, "_HEAD_SECONDS", 0.5)
        raw.sendall(b"xx")
        raw.sendall(GET)
        received_until(raw, b"model_path")
        raw.sendall(asked)
        received_until(raw, b"}}")
        raw.sendall(b"xx")
        assert all_of(raw) == b""


# -- who does not read -------------------------------------------------------------------------------


def large() -> bytes:
    """A request whose answer no buffer takes."""
    return post({"prompt": "word " * 200_000}, path="/tokenize")


def buffered(endpoint: Endpoint) -> int:
    """Bytes that wait for readers."""
    transports = [each.transport for each in list(endpoint.server.server_state.connections)]
    return sum(each.get_write_buffer_size() for each in transports)


def test_an_answer_that_nobody_reads_is_given_up(open_face: OpenFace) -> None:
    settings = ServerSettings(stream_idle_timeout=0.2)
    with (
        running_server(open_face(lambda _: "", max_length=8_000_000), settings) as endpoint,
        connected(endpoint, buffer=2048) as raw,
    ):
        raw.sendall(large())
        wait_until(lambda: buffered(endpoint) > 0)
        wait_until(lambda: not endpoint.server.server_state.connections)


@pytest.mark.parametrize("closing", [True, False])
def test_a_client_that_does_not_read_does_not_hold_up_the_end(open_face: OpenFace, closing: bool) -> None:
    settings = ServerSettings(shutdown_timeout=1.0)
    with (
        running_server(open_face(lambda _: "", max_length=8_000_000), settings) as endpoint,
        connected(endpoint, buffer=2048) as raw,
    ):
        raw.sendall(large().replace(b"Host: a", b"Host: a\r\nConnection: close" if closing else b"Host: a"))
        wait_until(lambda: buffered(endpoint) > 0)
        begun = monotonic()
        endpoint.stop()
        assert monotonic() - begun < 10, "a client that does not read would hold it for ever"


# -- files -------------------------------------------------------------------------------------------


def test_a_part_of_a_file_that_is_asked_for_is_the_file(open_face: OpenFace, tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=str(tmp_path))
    with (
        running_server(open_face(lambda _: ""), settings) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=PATIENCE) as client,
    ):
        sent = {"files": {"file": ("a", b"0123456789")}, "data": {"purpose": "batch"}}
        path = f"/v1/files/{client.post('/v1/files', **sent).json()['id']}/content"
        for asked in ("bytes=0-1", "bytes=90-", "xx=0-1"):
            reply = client.get(path, headers={"Range": asked})
            assert (reply.status_code, reply.content) == (200, b"0123456789")
