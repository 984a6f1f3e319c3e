"""HttpCalls against a server that answers well and badly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from radixlm.frontend.errors import BackendError, InvalidCall, Unreachable, Unsupported
from radixlm.frontend.http_calls import HttpCalls
from radixlm.frontend.http_options import Retries, checked_url, retry_after_s
from testkit.fake_http import Asked, FakeHttp, Handler, fake_http

T = TypeVar("T")
Test = Callable[[HttpCalls, FakeHttp], Awaitable[T]]


def at_once(times: int = 3) -> tuple[Retries, list[float]]:
    """Retries that wait for nothing, and what they would have waited."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    return Retries(times, sleep=sleep, chance=lambda: 1.0), waited


def run(handler: Handler, test: Test[T], **options: object) -> T:
    async def main() -> T:
        async with fake_http(handler) as fake:
            calls = HttpCalls(fake.url, **options)  # type: ignore[arg-type]
            try:
                return await test(calls, fake)
            finally:
                await calls.close()
                for _ in range(5):  # what Python itself does about generators that were left
                    await asyncio.sleep(0)
                assert len(asyncio.all_tasks()) <= 1 + fake.open, "no task is left but the server's"

    return asyncio.run(main())


async def echo(asked: Asked) -> None:
    await asked.json({"got": asked.body})


def statuses(*answers: tuple[int, dict[str, str]]) -> Handler:
    """Answers with these statuses and headers, then well."""
    left = list(answers)

    async def handle(asked: Asked) -> None:
        if left:
            status, headers = left.pop(0)
            await asked.json({"error": {"message": f"said {status}", "code": status}}, status, **headers)
        else:
            await asked.json("good")

    return handle


async def post(calls: HttpCalls, fake: FakeHttp) -> object:
    return await calls.post("/generate", {"text": "x"})


class TestConnections:
    def test_two_hundred_calls_one_after_another_use_one_connection(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            for number in range(200):
                assert await calls.post("/x", {"n": number}) == {"got": {"n": number}}
            return fake.accepted

        assert run(echo, test) == 1

    def test_calls_at_a_time_use_no_more_connections_than_are_allowed(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            await asyncio.gather(*(calls.post("/x", number) for number in range(200)))
            return fake.accepted

        assert run(echo, test, max_connections=7) <= 7

    def test_nothing_is_open_after_close_and_a_call_is_refused(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            await calls.post("/x", 1)
            assert fake.open == 1
            await calls.close()
            while fake.open:
                await asyncio.sleep(0)
            with pytest.raises(InvalidCall, match="this backend was closed; make another one"):
                await calls.post("/x", 2)
            return fake.accepted

        assert run(echo, test) == 1

    def test_close_works_where_nothing_was_called(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            await calls.close()
            await calls.close()
            return fake.accepted

        assert run(echo, test) == 0

    def test_a_call_that_is_cancelled_closes_its_connection_and_gives_its_place_back(self) -> None:
        came, left = asyncio.Event(), asyncio.Event()

        async def handle(asked: Asked) -> None:
            if asked.body == "quick":
                await asked.json("here")
                return
            came.set()
            await asked.gone()
            left.set()

        async def test(calls: HttpCalls, fake: FakeHttp) -> object:
            slow = asyncio.create_task(calls.post("/x", "slow"))
            await came.wait()
            slow.cancel()
            await asyncio.wait_for(left.wait(), 10)
            return await calls.post("/x", "quick")

        assert run(handle, test, max_connections=1) == "here"

    def test_a_call_that_waits_for_a_place_can_be_cancelled(self) -> None:
        came = asyncio.Event()

        async def handle(asked: Asked) -> None:
            came.set()
            await asked.gone()

        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            first = asyncio.create_task(calls.post("/x", 1))
            second = asyncio.create_task(calls.post("/x", 2))
            await came.wait()
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return fake.accepted

        assert run(handle, test, max_connections=1) == 1

    def test_cancelling_many_calls_while_they_connect_takes_no_place_away(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> object:
            for turns in range(30):
                task = asyncio.create_task(calls.post("/x", "lost"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return await asyncio.wait_for(calls.post("/x", "kept"), 10)

        assert run(echo, test, max_connections=2) == {"got": "kept"}

    def test_two_loops_at_a_time_are_refused(self) -> None:
        async def test(calls: HttpCalls, fake: FakeHttp) -> None:
            await calls.post("/x", 1)
            with pytest.raises(InvalidCall, match="two event loops"):
                await asyncio.to_thread(asyncio.run, calls.post("/x", 2))

        run(echo, test)


class TestRetries:
    def test_busy_is_asked_again_after_what_the_server_says(self) -> None:
        retries, waited = at_once()
        handler = statuses((503, {"Retry_After": "4"}), (429, {}), (503, {}))
        assert run(handler, post, retries=retries) == "good"
        assert waited == [5.0, 0.5, 1.0]

    def test_it_gives_up_after_so_many_times_with_the_server_s_words(self) -> None:
        retries, waited = at_once(2)
        with pytest.raises(Unreachable, match="said 503"):
            run(statuses(*[(503, {})] * 9), post, retries=retries)
        assert len(waited) == 2

    def test_a_retry_after_that_is_too_long_is_not_waited_for(self) -> None:
        retries, waited = at_once()
        with pytest.raises(Unreachable, match="503"):
            run(statuses((503, {"Retry_After": "3600"})), post, retries=retries)
        assert waited == []

    def test_a_spent_quota_is_not_asked_again(self) -> None:
        retries, waited = at_once()

        async def spent(asked: Asked) -> None:
            await asked.json({"error": {"message": "pay", "code": "insufficient_quota"}}, 429)

        with pytest.raises(BackendError, match="pay"):
            run(spent, post, retries=retries)
        assert waited == []

    def test_a_refused_connection_is_tried_again_and_then_said(self) -> None:
        with socket.socket() as taken:  # bound, so that nobody else gets the port, and not listening
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            retries, waited = at_once()

            async def main() -> None:
                calls = HttpCalls(url, retries=retries)
                with pytest.raises(
                    Unreachable, match=f"{url} is not reached .* is the server running"
                ) as caught:
                    await calls.post("/x", 1)
                error = caught.value
                assert (error.__cause__, error.__context__) == (None, None), "no pages of another library"
                await calls.close()

            asyncio.run(main())
        assert waited == [0.25, 0.5, 1.0]

    def test_what_may_have_run_is_not_asked_again_unless_it_changes_nothing(self) -> None:
        retries, waited = at_once(1)

        async def drop(asked: Asked) -> None:
            asked.drop()

        with pytest.raises(Unreachable, match="before it answered"):
            run(drop, post, retries=retries)
        assert waited == []
        with pytest.raises(Unreachable):
            run(drop, lambda calls, fake: calls.get("/x"), retries=retries)
        assert len(waited) == 1

    def test_delays_double_up_to_the_most_and_are_spread_by_chance(self) -> None:
        retries = Retries(chance=lambda: 0.0, most_s=3.0)
        assert [retries.delay(failures, None) for failures in range(6)] == [0.125, 0.25, 0.5, 1.0, 1.5, 1.5]

    def test_retry_after_may_be_a_date(self) -> None:
        assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60.0
        assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 400.0) == 0.0
        assert retry_after_s("soon", 0.0) is None
        assert retry_after_s(None, 0.0) is None

    @pytest.mark.parametrize("times", [-1, True, 1.5])
    def test_a_wrong_count_is_refused(self, times: object) -> None:
        with pytest.raises(InvalidCall, match="retries"):
            Retries(times)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["first_s", "most_s"])
    @pytest.mark.parametrize("value", ["1", 0, None, float("inf")])
    def test_wrong_seconds_are_refused(self, name: str, value: object) -> None:
        with pytest.raises(InvalidCall, match=f"{name} of Retries must be seconds above 0, got {value!r}"):
            Retries(**{name: value})  # type: ignore[arg-type]


class TestFailures:
    @pytest.mark.parametrize(
        ("status", "kind", "words"),
        [
            (400, InvalidCall, "^said 400$"),
            (413, InvalidCall, "^said 413$"),
            (422, InvalidCall, "^said 422$"),
            (401, InvalidCall, "not allowed.*said 401.*api_key"),
            (403, InvalidCall, "not allowed.*said 403"),
            (404, Unsupported, "does not exist on this server"),
            (405, Unsupported, "not supported by this server"),
            (499, BackendError, "said 499"),
            (500, BackendError, "said 500"),
            (502, Unreachable, "said 502"),
            (504, Unreachable, "said 504"),
        ],
    )
    def test_each_status_is_an_error_with_the_server_s_words(
        self, status: int, kind: type[BackendError], words: str
    ) -> None:
        with pytest.raises(BackendError, match=words) as caught:
            run(statuses((status, {})), post)
        assert type(caught.value) is kind

    def test_a_redirect_says_where_to(self) -> None:
        with pytest.raises(InvalidCall, match="https://elsewhere/generate"):
            run(statuses((308, {"Location": "https://elsewhere/generate"})), post)

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"plain words", "plain words"),
            (b'{"detail": "in detail"}', "in detail"),
            (b'{"detail": [{"loc": ["x"]}]}', "loc"),
            (b'{"object": "error", "message": "at the top"}', "at the top"),
            (b'{"error": "only text"}', "only text"),
            (b"[1]", "1"),
            (b"", "was refused \\(400\\)"),
        ],
    )
    def test_messages_are_found_as_different_servers_write_them(self, content: bytes, words: str) -> None:
        async def handle(asked: Asked) -> None:
            await asked.content(content, 400)

        with pytest.raises(InvalidCall, match=words):
            run(handle, post)

    def test_a_model_that_is_not_there_is_a_wrong_call(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.json({"error": {"message": "no model x", "code": "model_not_found"}}, 404)

        with pytest.raises(InvalidCall, match="no model x"):
            run(handle, post)

    def test_an_answer_that_is_no_json_is_quoted(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.content(b"<html>hello")

        with pytest.raises(BackendError, match="<html>hello"):
            run(handle, post)

    def test_silence_is_a_timeout_that_says_so(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.gone()

        with pytest.raises(Unreachable, match=r"nothing came for 0.05 s \(timeout\)"):
            run(handle, post, timeout=0.05)

    def test_an_answer_that_breaks_off_is_said(self) -> None:
        async def handle(asked: Asked) -> None:
            asked.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            await asked.writer.drain()
            asked.writer.close()

        with pytest.raises(Unreachable, match="in the middle of its answer"):
            run(handle, post)

    @pytest.mark.parametrize("body", [float("nan"), {"x": object()}])
    def test_what_json_cannot_write_is_refused(self, body: object) -> None:
        with pytest.raises(InvalidCall, match="JSON"):
            run(echo, lambda calls, fake: calls.post("/x", body))

    def test_half_a_character_is_left_to_the_server(self) -> None:
        assert run(echo, lambda calls, fake: calls.post("/x", "\ud83d")) == {"got": "\ud83d"}

    @pytest.mark.parametrize(
        "url", ["localhost:8000", "127.0.0.1", "ftp://x", "http://", "", "http://x:y", "http://x?y=1", None]
    )
    def test_a_url_that_is_none_is_refused_with_an_example(self, url: object) -> None:
        with pytest.raises(InvalidCall, match="base_url must be"):
            checked_url(url)  # type: ignore[arg-type]

    def test_slashes_at_the_end_of_a_url_are_left_out(self) -> None:
        assert checked_url(" https://host:1/v1// ") == "https://host:1/v1"

    @pytest.mark.parametrize(
        "options",
        [
            {"timeout": 0},
            {"timeout": -1.0},
            {"timeout": "5"},
            {"timeout": True},
            {"timeout": float("nan")},
            {"max_connections": 0},
            {"max_connections": 1.5},
            {"retries": "3"},
            {"retries": None},
            {"verify": ["a"]},
            {"verify": "/no/such/file"},
            {"transport": "socket"},
        ],
    )
    def test_wrong_options_are_quoted(self, options: dict[str, object]) -> None:
        [(name, value)] = options.items()
        with pytest.raises(InvalidCall, match=name) as caught:
            HttpCalls("http://x", **options)  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)

    def test_a_file_without_certificates_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "empty.pem"
        file.write_text("nothing")

        async def main() -> None:
            with pytest.raises(InvalidCall, match=r"no certificates can be read from .*empty\.pem"):
                await HttpCalls("https://127.0.0.1:1", verify=file).get("/x")

        asyncio.run(main())

    @pytest.mark.parametrize("url", ["http://a b", "http://a\tb", "http://a\u2028b"])
    def test_a_url_that_no_request_can_have_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidCall, match="base_url"):
            checked_url(url)


class TestStreams:
    @staticmethod
    async def read(calls: HttpCalls, fake: FakeHttp) -> list[object]:
        return [event async for event in calls.stream("/x", {})]

    def test_events_come_whole_however_they_are_cut_and_the_connection_is_kept(self) -> None:
        written = (
            'data: {"a": "\u2028ü"}\r\n\r\n: a comment\n\ndata: [1,\ndata: 2]\n\ndata: [DONE]\n\n'.encode()
        )

        async def handle(asked: Asked) -> None:
            await asked.begin()
            for at in range(len(written)):
                await asked.piece(written[at : at + 1])
            await asked.end()

        async def test(calls: HttpCalls, fake: FakeHttp) -> int:
            for _ in range(3):
                assert await self.read(calls, fake) == [{"a": "\u2028ü"}, [1, 2]]
            return fake.accepted

        assert run(handle, test) == 1

    def test_a_server_that_dies_in_the_middle_is_said(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.begin()
            await asked.event({"text": "a"})
            asked.drop()

        with pytest.raises(Unreachable, match="in the middle of its answer"):
            run(handle, self.read)

    def test_a_stream_without_its_end_is_said(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.begin()
            await asked.event({"text": "a"})
            await asked.piece(b'data: {"text": "half')
            await asked.end()

        with pytest.raises(Unreachable, match="before its end was told"):
            run(handle, self.read)

    def test_leaving_a_stream_closes_its_connection(self) -> None:
        left = asyncio.Event()

        async def handle(asked: Asked) -> None:
            await asked.begin()
            await asked.event(1)
            await asked.gone()
            left.set()

        async def test(calls: HttpCalls, fake: FakeHttp) -> None:
            stream = calls.stream("/x", {})
            assert await anext(stream) == 1
            await stream.aclose()
            await asyncio.wait_for(left.wait(), 10)

        run(handle, test, max_connections=1)

    def test_a_stream_that_falls_silent_is_a_timeout(self) -> None:
        async def handle(asked: Asked) -> None:
            await asked.begin()
            await asked.event(1)
            await asked.gone()

        with pytest.raises(Unreachable, match="timeout"):
            run(handle, self.read, timeout=0.05)

    def test_a_busy_server_is_asked_again_before_a_stream_begins(self) -> None:
        retries, waited = at_once()
        busy = True

        async def handle(asked: Asked) -> None:
            nonlocal busy
            if busy:
                busy = False
                await asked.json({"error": {"message": "later"}}, 503)
                return
            await asked.begin()
            await asked.event(1)
            await asked.event("[DONE]")
            await asked.end()

        assert run(handle, self.read, retries=retries) == [1]
        assert len(waited) == 1
