"""RuntimeEndpoint on RadixLM's own routes, on a fake that records them: what is sent, and how often."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import radixlm as rx
from radixlm.frontend.endpoint import RuntimeEndpoint
from radixlm.frontend.errors import BackendError
from radixlm.frontend.loop import run_on_loop
from radixlm.frontend.protocol import (
    ChoiceScore,
    Frame,
    GenerateCall,
    Hint,
    Plain,
    Sampling,
    ScoreCall,
    Scored,
)
from testkit.fake_http import Asked, FakeHttp, Handler, Json, fake_http

T = TypeVar("T")

META = {"finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 3, "cached_tokens": 2}
REPLY = {
    "text": "ab!",
    "output_parts": [[7, 8], {"plain": "c"}, "!"],
    "meta_info": {**META, "completion_tokens": 3, "forced_tokens": 1, "held_tokens": 9},
}
ANSWERS: dict[str, Json] = {
    "/get_server_info": {"runtime": "radixlm", "version": "1"},
    "/generate": REPLY,
    "/chat_frame": {"before": "<", "after": ">"},
    "/score": {
        "choices": [{"token_ids": [4], "logprobs": [-1], "unconditional": [-2.5]}],
        "prompt_tokens": 5,
        "cached_tokens": 3,
        "computed_tokens": 3,
    },
    "/end_programs": {},
}


async def radix(asked: Asked) -> None:
    await asked.json(ANSWERS[asked.path])


def run(
    test: Callable[[RuntimeEndpoint, FakeHttp], Awaitable[T]], handler: Handler = radix, **options: object
) -> T:
    async def main() -> T:
        async with fake_http(handler) as fake:
            endpoint = RuntimeEndpoint(fake.url, **options)  # type: ignore[arg-type]
            try:
                return await test(endpoint, fake)
            finally:
                await endpoint.aclose()

    return asyncio.run(main())


CALL = GenerateCall(("a", Plain("<s>"), (1, 2)), Sampling(), Hint("p", "q", "g", 2.0, True))


class TestCalls:
    def test_parts_and_hints_go_as_they_are_and_parts_come_back(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            (found,) = await endpoint.generate(CALL)
            assert found.parts == ((7, 8), Plain("c"), "!")
            assert (found.text, found.forced_tokens, found.held_tokens) == ("ab!", 1, 9)
            (body,) = fake.bodies("/generate")
            assert body["input_parts"] == ["a", {"plain": "<s>"}, [1, 2]]
            assert body["hint"] == {
                "program_id": "p",
                "parent_id": "q",
                "fork_group": "g",
                "hold_s": 2.0,
                "done": True,
            }

        run(test)

    def test_an_empty_hint_is_left_out(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(GenerateCall((), Sampling()))
            assert "hint" not in fake.bodies("/generate")[0]

        run(test)

    def test_scores_come_as_the_server_gives_them(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            scored = await endpoint.score(ScoreCall((Plain("a"),), ("x",), Hint("p"), unconditional=True))
            assert scored == Scored((ChoiceScore((4,), (-1.0,), (-2.5,)),), 5, 3, 3)
            assert fake.bodies("/score") == [
                {
                    "input_parts": [{"plain": "a"}],
                    "choices": ["x"],
                    "unconditional": True,
                    "hint": {"program_id": "p"},
                }
            ]

        run(test)

    def test_a_frame_is_asked_once_for_all_who_want_it(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            frames = await asyncio.gather(*(endpoint.frame(("user",)) for _ in range(50)))
            assert set(frames) == {Frame("<", ">")}
            await endpoint.frame(("user", "assistant"))
            assert fake.bodies("/chat_frame") == [{"roles": ["user"]}, {"roles": ["user", "assistant"]}]

        run(test)

    @pytest.mark.parametrize(
        ("reply", "words"),
        [
            ([REPLY, REPLY], "gave 2 texts"),
            ({**REPLY, "text": None}, "text should be a text"),
            ({**REPLY, "meta_info": None}, "meta_info should be an object"),
            ({**REPLY, "output_parts": None}, "output_parts should be a list"),
            ({**REPLY, "output_parts": [[1.5]]}, "should be an integer"),
            ({**REPLY, "meta_info": {**META, "prompt_tokens": "3"}}, "prompt_tokens should be"),
            ({**REPLY, "meta_info": {"finish_reason": {"type": "new"}}}, "reason that is not known"),
        ],
    )
    def test_a_reply_that_makes_no_sense_is_said(self, reply: Json, words: str) -> None:
        async def handle(asked: Asked) -> None:
            await asked.json(reply if asked.path == "/generate" else ANSWERS[asked.path])

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            with pytest.raises(BackendError, match=words):
                await endpoint.generate(CALL)

        run(test, handle)

    def test_cancelling_one_of_those_who_wait_for_the_first_answer_leaves_the_others_theirs(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            first = asyncio.create_task(endpoint.generate(CALL))
            second = asyncio.create_task(endpoint.generate(CALL))
            await asyncio.sleep(0)
            first.cancel()
            assert (await second)[0].text == "ab!"
            with pytest.raises(asyncio.CancelledError):
                await first
            assert fake.paths().count("/get_server_info") == 1

        run(test)


class TestEndings:
    def test_a_thousand_endings_take_few_requests_and_all_arrive(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(CALL)
            for number in range(1000):
                endpoint.end([f"p{number}"], "done")
            assert "/end_programs" not in fake.paths(), "nothing waits for the server"
            await endpoint.aclose()
            bodies = fake.bodies("/end_programs")
            assert len(bodies) <= 2
            assert sorted(each for body in bodies for each in body["program_ids"]) == sorted(
                f"p{number}" for number in range(1000)
            )
            assert {body["how"] for body in bodies} == {"done"}

        run(test)

    @pytest.mark.parametrize("slow", [False, True])
    def test_a_hold_is_not_released_by_the_end_of_the_one_before(self, slow: bool) -> None:
        """Whether that end waits to be told, or the server takes its time with it."""
        telling, told = asyncio.Event(), asyncio.Event()
        done: list[str] = []

        async def handle(asked: Asked) -> None:
            if asked.path == "/end_programs":
                telling.set()
                if slow:
                    await told.wait()
            await radix(asked)
            if asked.path == "/end_programs":
                done.append(asked.body["how"])
            elif "hold_s" in asked.body.get("hint", {}) if asked.body else False:
                done.append("held")

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            holding = GenerateCall(("a",), Sampling(max_new_tokens=0), Hint("p", hold_s=5.0))
            await endpoint.generate(holding)
            endpoint.end(["p"], "released")
            if slow:
                await asyncio.wait_for(telling.wait(), 10)
            second = asyncio.create_task(endpoint.generate(holding))
            for _ in range(20):  # as far as it comes by itself
                await asyncio.sleep(0)
            told.set()
            await second
            endpoint.end(["p"], "released")
            await endpoint.aclose()

        run(test, handle)
        assert done == (["held", "released", "held", "released"] if slow else ["held", "held", "released"])

    def test_holds_of_a_program_that_follow_each_other_each_last_to_their_end(self) -> None:
        @rx.function
        def body(s: rx.ProgramState) -> None:
            s += "a"
            for _ in range(5):
                with s.hold(30):
                    pass
            with s.hold(30):
                held.append(len(events))

        events: list[str] = []
        held: list[int] = []

        async def handle(asked: Asked) -> None:
            if asked.path == "/end_programs":
                events.append(asked.body["how"])
            elif asked.path == "/generate":
                events.append("held")
            await radix(asked)

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                await body.run_async(backend=endpoint)
                await endpoint.aclose()

        run_on_loop(main()).result(30)
        assert events.count("held") == 6
        assert "released" not in events[held[0] - 1 : held[0]]
        assert events[-1] in ("released", "done")

    def test_they_may_be_said_on_any_thread(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(CALL)

            def say(name: str) -> None:
                for number in range(100):
                    endpoint.end([f"{name}{number}"], "released")

            threads = [threading.Thread(target=say, args=(name,)) for name in "abcd"]
            for thread in threads:
                thread.start()
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            await endpoint.aclose()
            assert len({each for body in fake.bodies("/end_programs") for each in body["program_ids"]}) == 400

        run(test)

    def test_of_two_endings_the_one_that_gives_up_more_is_told_and_cancelled_goes_first(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(CALL)
            endpoint.end(["a", "b"], "done")
            endpoint.end(["a", "c"], "cancelled")
            endpoint.end(["a", "b"], "released")
            await endpoint.aclose()
            assert fake.bodies("/end_programs") == [
                {"program_ids": ["a", "c"], "how": "cancelled"},
                {"program_ids": ["b"], "how": "done"},
            ]

        run(test)

    def test_cancelled_does_not_wait_for_calls_that_have_all_connections(self) -> None:
        told = asyncio.Event()

        async def handle(asked: Asked) -> None:
            if asked.path == "/generate" and asked.body["input_parts"] == ["long"]:
                await told.wait()
            if asked.path == "/end_programs":
                told.set()
            await radix(asked)

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            running = asyncio.create_task(endpoint.generate(GenerateCall(("long",), Sampling())))
            while "/generate" not in fake.paths():
                await asyncio.sleep(0)
            endpoint.end(["p"], "cancelled")
            await asyncio.wait_for(running, 10)

        run(test, handle, max_connections=1)

    def test_a_server_that_refuses_them_disturbs_nobody(self) -> None:
        async def handle(asked: Asked) -> None:
            if asked.path == "/end_programs":
                await asked.json({"error": {"message": "no"}}, 503)
            else:
                await radix(asked)

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(CALL)
            endpoint.end(["p"], "done")
            await endpoint.aclose()
            assert fake.paths().count("/end_programs") == 1

        run(test, handle)

    def test_after_the_loop_has_gone_they_are_dropped(self) -> None:
        kept: list[RuntimeEndpoint] = []

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(CALL)
            kept.append(endpoint)

        run(test)
        kept[0].end(["p"], "done")
