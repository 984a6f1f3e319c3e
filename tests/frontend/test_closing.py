"""Closing backends: alike for all, from any thread and any loop, once; and a call after it is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import radixlm as rx
from radixlm.frontend.closing import Closing
from radixlm.frontend.errors import InvalidCall
from radixlm.frontend.loop import run_on_loop
from testkit.fake_http import Asked, served

META = {"finish_reason": {"type": "stop"}, "prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
ANSWERS: dict[str, object] = {
    "/get_server_info": {"runtime": "radixlm", "version": "1"},
    "/generate": {"text": "a", "output_parts": ["a"], "meta_info": META},
    "/v1/completions": {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]},
    "/chat_frame": {"before": "<", "after": ">"},
}
Make = Callable[[str], Closing]
MAKES: dict[str, Make] = {
    "RuntimeEndpoint": rx.RuntimeEndpoint,
    "OpenAI": lambda url: rx.OpenAI("m", base_url=f"{url}/v1", server="other"),
    "Scripted": lambda url: rx.Scripted("a"),
}
every_backend = pytest.mark.parametrize("make", MAKES.values(), ids=list(MAKES))
over_http = pytest.mark.parametrize("make", list(MAKES.values())[:2], ids=list(MAKES)[:2])


@rx.function
def body(s: rx.ProgramState) -> None:
    s += "text" + rx.gen("x")


@rx.function
def talk(s: rx.ProgramState) -> None:
    s += rx.user("text")


async def answer(asked: Asked) -> None:
    await asked.json(ANSWERS.get(asked.path, {}))


@every_backend
def test_a_plain_caller_closes_by_with_and_a_call_after_that_is_refused(make: Make) -> None:
    with served(answer) as fake:
        with make(fake.url) as backend:
            assert body.run(backend=backend)["x"] == "a"
        for program in (body, talk):
            error = program.run(backend=backend).error()
            assert isinstance(error, InvalidCall)
            assert "this backend was closed; make another one" in str(error)
        with pytest.raises(InvalidCall, match="was closed"), backend:
            pass


@every_backend
def test_an_async_caller_closes_by_async_with_on_a_loop_of_his_own(make: Make) -> None:
    async def main(url: str) -> None:
        async with make(url) as backend:
            assert (await body.run_async(backend=backend))["x"] == "a"
        await backend.aclose()
        assert "was closed" in str((await body.run_async(backend=backend)).error())

    with served(answer) as fake:
        asyncio.run(main(fake.url))


@every_backend
def test_closing_twice_or_before_any_call_is_closing_once(make: Make) -> None:
    with served(answer) as fake:
        used, unused = make(fake.url), make(fake.url)
        body.run(backend=used).sync()
        for backend in (used, unused):
            backend.close()
            backend.close()
            asyncio.run(backend.aclose())
            assert "was closed" in str(body.run(backend=backend).error())


@over_http
def test_closing_ends_the_connections_of_the_programs_loop_from_another_thread(make: Make) -> None:
    with served(answer) as fake:
        backend = make(fake.url)
        body.run(backend=backend).sync()
        thread = threading.Thread(target=backend.close)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        accepted = fake.accepted
        body.run(backend=backend).sync()
        assert fake.accepted == accepted


def test_what_became_of_branches_is_told_before_the_connections_close() -> None:
    with served(answer) as fake:
        with rx.RuntimeEndpoint(fake.url) as backend:
            body.run(backend=backend).sync()
            backend.end(["p"], "done")
        assert fake.asked[-1].path == "/end_programs"


@over_http
def test_a_plain_close_on_the_loop_that_it_would_block_says_what_to_write(make: Make) -> None:
    async def main(url: str) -> None:
        backend = make(url)
        await body.run_async(backend=backend)
        with pytest.raises(RuntimeError, match=r"await aclose\(\), or use async with"):
            backend.close()
        await backend.aclose()

    with served(answer) as fake:
        run_on_loop(main(fake.url)).result(30)
