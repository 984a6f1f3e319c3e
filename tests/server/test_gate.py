"""Keys, request ids, the log line, and limits of bodies, through a small app of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import Response

from radixlm.runtime.errors import RadixError
from radixlm.runtime.server.body import read_object
from radixlm.runtime.server.context import tenant
from radixlm.runtime.server.failures import TookTooLong
from radixlm.runtime.server.gate import Gate
from radixlm.runtime.server.replies import EventStream, error_reply, json_reply

KEY = {"authorization": "Bearer other-key"}


@pytest.fixture
def client() -> httpx.AsyncClient:
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return json_reply({"tenant": tenant(request), "body": await read_object(request, 64)})

    @app.get("/health")
    async def health() -> Response:
        return json_reply({})

    @app.get("/broken")
    async def broken() -> Response:
        raise KeyError("-".join(("text", "of", "prompts")))

    @app.get("/stream/{end}/{begun}")
    async def stream(end: str, begun: int) -> Response:
        async def parts() -> AsyncGenerator[bytes, None]:
            if begun:
                yield b"data: a\n\n"
            raise KeyError("-".join(("text", "of", "prompts"))) if end == "fault" else TookTooLong("late")

        return EventStream(parts())

    async def failed(_: Request, error: Exception) -> Response:
        return error_reply(error)

    app.add_exception_handler(RadixError, failed)
    app.add_middleware(Gate, api_keys=("first-key", "other-key"), origins=("http://friend.example",))
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def post(client: httpx.AsyncClient, content: bytes = b"{}", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(client.post("/echo", content=content, headers=sent))


@pytest.mark.parametrize(
    "given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first-key"}]
)
def test_without_a_key_of_the_server_nothing_is_answered(
    client: httpx.AsyncClient, given: dict[str, str]
) -> None:
    reply = post(client, **given)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["type"] == "authentication_error"


def test_a_key_that_no_header_can_hold_well_is_only_wrong(client: httpx.AsyncClient) -> None:
    headers = {b"authorization": "Bearer first-key\xe9".encode("latin-1")}
    assert asyncio.run(client.post("/echo", content=b"{}", headers=headers)).status_code == 401


def test_each_key_is_a_tenant_and_is_not_shown(client: httpx.AsyncClient) -> None:
    first = post(client, authorization="Bearer first-key").json()["tenant"]
    second = post(client, authorization="bearer other-key").json()["tenant"]
    third = post(client, x_api_key="other-key").json()["tenant"]
    assert first != second
    assert second == third
    assert "key" not in first + second


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_origins_may_not_call(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    reply = asyncio.run(client.post("/echo", content=b"{}", headers={**KEY, **headers}))
    assert reply.status_code == 403
    assert "--cors-origin allows one" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://test", "sec-fetch-site": "same-origin"},
        {"origin": "http://friend.example"},
        {"sec-fetch-site": "none"},
        {},
    ],
)
def test_our_own_page_allowed_ones_and_programs_may(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert asyncio.run(client.post("/echo", content=b"{}", headers={**KEY, **headers})).status_code == 200


def test_head_is_get_without_a_key_too(client: httpx.AsyncClient) -> None:
    assert asyncio.run(client.head("/health")).status_code == 200


def test_health_needs_no_key(client: httpx.AsyncClient) -> None:
    assert asyncio.run(client.get("/health")).status_code == 200


def test_a_request_keeps_a_good_id_and_gets_one_for_a_bad_one(client: httpx.AsyncClient) -> None:
    assert post(client, x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    assert post(client, x_request_id="two words").headers["x-request-id"].startswith("req-")
    assert post(client).headers["x-request-id"] != post(client).headers["x-request-id"]


def test_the_log_line_says_how_it_ended_and_holds_no_text(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "radixlm.server"):
        post(client, b'{"prompt": "secret"}', authorization="Bearer other-key", x_request_id="r1")
    [record] = [record for record in caplog.records if record.name == "radixlm.server"]
    fields = record.fields  # type: ignore[attr-defined]
    assert (fields["request_id"], fields["path"], fields["status"]) == ("r1", "/echo", 200)
    assert "secret" not in str(fields)
    assert "key" not in str(fields)


def test_a_body_over_the_limit_is_refused_whether_or_not_it_says_its_length(
    client: httpx.AsyncClient,
) -> None:
    async def chunks() -> object:
        for _ in range(10):
            yield b'{"a": 1}' * 4

    async def send() -> list[httpx.Response]:
        headers = {"authorization": "Bearer other-key"}
        whole = await client.post("/echo", content=b" " * 65, headers=headers)
        parts = await client.post("/echo", content=chunks(), headers=headers)  # type: ignore[arg-type]
        return [whole, parts]

    replies = asyncio.run(send())
    assert [reply.status_code for reply in replies] == [413, 413]
    assert "may have 64 bytes, got 65" in replies[0].json()["error"]["message"]


def test_a_fault_of_ours_is_a_500_and_its_place_is_logged_without_its_text(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "radixlm.server"):
        reply = asyncio.run(client.get("/broken", headers={"authorization": "Bearer other-key"}))
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "internal error: KeyError"
    [record] = [record for record in caplog.records if record.name == "radixlm.server"]
    assert record.levelname == "ERROR"
    fields = record.fields  # type: ignore[attr-defined]
    assert fields["failure"] == "KeyError"
    assert "in broken" in "".join(fields["trace"])
    assert "text-of-prompts" not in str(fields)


def test_a_body_that_is_no_object_is_refused(client: httpx.AsyncClient) -> None:
    reply = post(client, b"[1]", authorization="Bearer other-key")
    assert reply.status_code == 400
    assert "must be a JSON object, got [1]" in reply.json()["error"]["message"]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(("end", "level"), [("fault", "ERROR"), ("late", "INFO")])
def test_the_log_says_how_a_stream_failed(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, begun: bool, end: str, level: str
) -> None:
    with caplog.at_level(logging.INFO, "radixlm.server"):
        reply = asyncio.run(client.get(f"/stream/{end}/{int(begun)}", headers=KEY))
    status = 200 if begun else 500 if end == "fault" else 504
    assert reply.status_code == status
    [record] = [record for record in caplog.records if record.name == "radixlm.server"]
    fields = record.fields  # type: ignore[attr-defined]
    assert (record.levelname, fields["status"]) == (level, status)
    if end == "fault":
        assert fields["failure"] == "KeyError"
        assert "in parts" in "".join(fields["trace"])
        assert "text-of-prompts" not in str(fields)
    else:
        assert (fields["failure"], "trace" in fields) == ("TookTooLong", False)


def test_a_wrong_key_and_none_are_told_apart(client: httpx.AsyncClient) -> None:
    wrong = post(client, authorization="Bearer wrong").json()["error"]
    none = post(client).json()["error"]
    assert ("the one that came is none" in wrong["message"], "none came" in none["message"]) == (True, True)
    assert wrong["code"] == none["code"] == "invalid_api_key"
