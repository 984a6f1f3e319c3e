"""A server from start to end, as a process and in this one: signals, dead engines, steps that raise."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event as Flag

import httpx
import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.lifecycle import listen
from radixlm.runtime.server.settings import ServerSettings
from testkit.http_server import Endpoint, running_server, wait_until
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]
PATIENCE = 60
LONG = {"prompt": [5, 6, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


def lines_of(url: str, started: Flag, body: dict[str, object] = LONG) -> list[str]:
    """The data of each server-sent event."""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as reply:
        assert reply.status_code == 200
        found = []
        for line in reply.iter_lines():
            if line.startswith("data: "):
                found.append(line.removeprefix("data: "))
                started.set()
        return found


@pytest.fixture
def server_process(tiny_folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`radixlm serve` as a user starts it, and its address."""
    command = [sys.executable, "-P", "-m", "radixlm", "serve", "--model", str(tiny_folder), "--port", "0"]
    command += ["--shutdown-timeout", "0.2", "--num-pages", "512", "--page-size", "4", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if "serving at" in line:
                address = line.split()[-1]
                break
        assert address, "it says where it serves"
        yield process, address
    finally:
        process.kill()
        process.communicate()


def test_sigterm_under_load_answers_everybody_and_ends_the_process(
    server_process: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = server_process
    flags = [Flag() for _ in range(8)]
    with ThreadPoolExecutor(len(flags)) as pool:
        streams = [pool.submit(lines_of, url, flag) for flag in flags]
        assert all(flag.wait(PATIENCE) for flag in flags)
        process.send_signal(signal.SIGTERM)
        ends = [stream.result(PATIENCE)[-2:] for stream in streams]
    _, logs = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    for last, done in ends:
        assert done == "[DONE]"
        chunk = json.loads(last)
        if "error" in chunk:
            assert chunk["error"]["message"] == "the server is shutting down"
        else:
            assert chunk["choices"][0]["finish_reason"] == "length"
    requests = [json.loads(line) for line in logs.splitlines() if '"message": "request"' in line]
    assert len(requests) == len(flags)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.fixture
def engine(tiny_folder: Path) -> Iterator[Engine]:
    opened = Engine(str(tiny_folder), page_size=4, num_pages=128)
    yield opened
    opened.cache.check()
    assert opened.cache.leased_pages == 0


@pytest.fixture
def endpoint(engine: Engine) -> Iterator[Endpoint]:
    local = LocalEngine(engine)
    with running_server(local) as found:
        yield found
    local.close()


def complete(url: str, **more: object) -> httpx.Response:
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0, "ignore_eos": True, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)


def test_a_step_that_raises_fails_its_requests_and_the_server_goes_on(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = complete(endpoint.url).json()["choices"][0]["text"]
    forward = engine._model.forward

    def failing(*inputs: object) -> object:
        monkeypatch.setattr(engine._model, "forward", forward)
        raise ArithmeticError("no numbers today")

    monkeypatch.setattr(engine._model, "forward", failing)
    failed = complete(endpoint.url)
    assert failed.status_code == 500
    assert failed.json()["error"]["message"] == "the step failed: ArithmeticError: no numbers today"
    assert complete(endpoint.url).json()["choices"][0]["text"] == before
    assert httpx.get(f"{endpoint.url}/ready").status_code == 200


def test_a_dead_engine_is_told_at_once_and_by_health(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying() -> None:
        raise SystemExit("out of order")

    monkeypatch.setattr(engine, "step", dying)
    assert complete(endpoint.url).status_code in (500, 503)
    assert complete(endpoint.url).status_code == 503
    for path in ("/health", "/ready", "/health_generate"):
        reply = httpx.get(f"{endpoint.url}{path}")
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert "the engine has stopped" in reply.json()["error"]["message"]


def test_health_answers_while_a_step_takes_long(
    engine: Engine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, entered, leave = engine._model.forward, Flag(), Flag()

    def slow(*inputs: object) -> object:
        entered.set()
        assert leave.wait(PATIENCE)
        return forward(*inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(engine._model, "forward", slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, endpoint.url)
        assert entered.wait(PATIENCE)
        assert httpx.get(f"{endpoint.url}/health", timeout=1).status_code == 200
        assert httpx.get(f"{endpoint.url}/ready", timeout=1).status_code == 200
        leave.set()
        assert answer.result(PATIENCE).status_code == 200
    assert httpx.get(f"{endpoint.url}/health_generate", timeout=PATIENCE).status_code == 200


def test_an_engine_that_makes_no_step_is_not_ready_but_alive(open_face: OpenFace) -> None:
    face = open_face(lambda _: "")
    face.quiet_for = 1000.0
    with running_server(face) as endpoint:
        assert httpx.get(f"{endpoint.url}/health").status_code == 200
        reply = httpx.get(f"{endpoint.url}/ready")
    assert reply.status_code == 503
    assert "has made no step for 1000 s" in reply.json()["error"]["message"]


def test_a_client_that_leaves_frees_its_pages(engine: Engine, endpoint: Endpoint) -> None:
    with httpx.stream("POST", f"{endpoint.url}/v1/completions", json=LONG, timeout=PATIENCE) as reply:
        next(reply.iter_lines())
    service = endpoint.context.service
    for _ in range(1000):
        if not service.waiting.active and not service.engine.pulse().busy:
            break
        httpx.get(f"{endpoint.url}/health")
    assert service.waiting.active == 0
    assert engine.cache.leased_pages == 0


def opened(url: str, sent: bytes) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    found = socket.create_connection((host, int(port)), timeout=PATIENCE)
    found.sendall(sent)
    return found


def test_a_client_that_leaves_behind_a_second_request_is_noticed(open_face: OpenFace) -> None:
    body = json.dumps({**LONG, "stream": False}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    with running_server(open_face(lambda _: "abc", hold=1)) as endpoint:
        service = endpoint.context.service
        connection = opened(endpoint.url, head + body + b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: service.waiting.active == 1 and service.waiting.requests == 0)
        connection.close()
        wait_until(lambda: service.waiting.active == 0)


def test_half_a_request_does_not_hold_up_the_end(open_face: OpenFace) -> None:
    with running_server(open_face(lambda _: "")) as endpoint:
        half = b'POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{"te'
        with opened(endpoint.url, half) as connection:
            wait_until(lambda: bool(endpoint.server.server_state.tasks))
            endpoint.stop()
            answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"the server is shutting down" in answer


def test_a_request_aborted_by_name_is_not_one_to_be_sent_again(open_face: OpenFace) -> None:
    with running_server(open_face(lambda _: "abc", hold=1)) as endpoint, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, endpoint.url)
        service = endpoint.context.service
        wait_until(lambda: service.waiting.active == 1 and service.waiting.requests == 0)
        assert httpx.post(f"{endpoint.url}/abort_request", json={"abort_all": True}).json() == {"aborted": 1}
        assert answer.result(PATIENCE).status_code == 499


@pytest.mark.parametrize("field", ["json_schema", "structural_tag", "logit_bias", "prompt"])
def test_what_is_nested_too_deeply_is_refused(open_face: OpenFace, field: str) -> None:
    with running_server(open_face(lambda _: "")) as endpoint:
        for depth in (100, 500, *range(900, 1000, 7), 5000):
            deep = "[" * depth + "]" * depth
            text = f'{{"prompt": "a", "max_tokens": 1, "{field}": {deep}}}'
            reply = httpx.post(f"{endpoint.url}/v1/completions", content=text, timeout=PATIENCE)
            assert reply.status_code == 400, (depth, reply.text)


def test_a_method_that_a_path_has_not_is_told_all_it_has(open_face: OpenFace) -> None:
    with running_server(open_face(lambda _: "")) as endpoint:
        reply = httpx.put(f"{endpoint.url}/flush_cache")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD, POST")
        assert reply.json()["error"]["message"] == "/flush_cache takes GET, HEAD, POST, got PUT"
        assert httpx.get(f"{endpoint.url}/v1/completions").headers["allow"] == "POST"
        assert "GET" in httpx.post(f"{endpoint.url}/openapi.json").headers["allow"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/chat/completions", "; did you mean '/v1/chat/completions'?"),
        ("/v1/v1/chat/completions", "; did you mean '/v1/chat/completions'?"),
        ("/v1/completions/", "; did you mean '/v1/completions'?"),
        ("/nothing-like-it", ""),
        ("/" + "x" * 5000, ""),
    ],
)
def test_a_path_that_is_not_served_is_named(open_face: OpenFace, path: str, said: str) -> None:
    with running_server(open_face(lambda _: "")) as endpoint:
        reply = httpx.post(f"{endpoint.url}{path}", json={})
    assert reply.status_code == 404
    message = reply.json()["error"]["message"]
    assert message.startswith(f"there is no '{path[:70]}")
    assert message.endswith(f" here{said}")
    assert len(message) < 200


def test_a_page_that_may_call_can_read_why_it_was_refused(open_face: OpenFace) -> None:
    settings = ServerSettings(api_keys=("k",), cors_origins=("http://friend.example",))
    origin = {"origin": "http://friend.example"}
    with running_server(open_face(lambda _: ""), settings) as endpoint:
        reply = httpx.post(f"{endpoint.url}/v1/completions", json={}, headers=origin)
        asked = {**origin, "access-control-request-method": "POST"}
        preflight = httpx.options(f"{endpoint.url}/v1/completions", headers=asked)
    assert (reply.status_code, preflight.status_code) == (401, 200)
    for each in (reply, preflight):
        assert each.headers["access-control-allow-origin"] == "http://friend.example"
    assert "X-Request-ID" in reply.headers["access-control-expose-headers"]


def test_a_prompt_that_never_fits_has_the_code_that_clients_look_for(open_face: OpenFace) -> None:
    with running_server(open_face(lambda _: "", max_length=20)) as endpoint:
        for path, body in (
            ("/v1/completions", {"prompt": [5] * 30}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 20}]}),
            ("/generate", {"input_ids": [5] * 30}),
        ):
            reply = httpx.post(f"{endpoint.url}{path}", json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("name", ["served_model_name", "data_dir"])
def test_a_name_that_cannot_be_told_to_clients_is_refused(name: str) -> None:
    for value in ("a\udcff", ""):
        with pytest.raises(InvalidConfig, match=name):
            ServerSettings(**{name: value})  # type: ignore[arg-type]  # one of two fields


def test_all_that_is_logged_is_json() -> None:
    program = (
        "import logging, warnings\n"
        "from radixlm.runtime.server.logs import set_up_logs\n"
        "set_up_logs('info')\n"
        "logging.getLogger('a.library').warning('one')\n"
        "warnings.warn('two')\n"
        "logging.getLogger('radixlm.server').info('three')\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "warning", "info"]
    assert "two" in lines[1]["message"]


def test_an_address_in_use_is_said_before_anything_is_loaded() -> None:
    with listen(ServerSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InvalidConfig, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            listen(ServerSettings(port=port))
