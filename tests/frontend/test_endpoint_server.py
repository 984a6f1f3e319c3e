"""The HTTP backends on RadixLM's own server, over the tiny Llama: the real thing at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from radixlm.frontend.chat_formats import FORMATS
from radixlm.frontend.endpoint import RuntimeEndpoint
from radixlm.frontend.errors import InvalidCall, Unsupported
from radixlm.frontend.http_calls import HttpCalls
from radixlm.frontend.openai import OpenAI
from radixlm.frontend.protocol import GenerateCall, Hint, Part, Plain, Sampling, ScoreCall
from radixlm.frontend.sglang_api import SglangApi
from radixlm.runtime.engine import Engine
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.settings import ServerSettings
from testkit.byte_tokenizer import save_byte_tokenizer
from testkit.http_server import Endpoint, running_server
from testkit.tiny_model import byte_llama, save_tiny

T = TypeVar("T")

KEY = "sk-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = _tiny(tmp_path_factory.mktemp("tiny"))
    engine = Engine(str(folder), page_size=4, num_pages=512)
    local = LocalEngine(engine)
    settings = ServerSettings(api_keys=(KEY,), served_model_name="tiny", shutdown_timeout=5.0)
    with running_server(local, settings) as endpoint:
        yield endpoint
    local.close()
    engine.cache.check()
    assert engine.cache.leased_pages == 0


def _tiny(folder: Path) -> Path:
    save_tiny(byte_llama(), folder)
    save_byte_tokenizer(folder)
    return folder


def run(server: Endpoint, test: Callable[[RuntimeEndpoint], Awaitable[T]]) -> T:
    async def main() -> T:
        endpoint = RuntimeEndpoint(server.url, KEY)
        try:
            return await test(endpoint)
        finally:
            await endpoint.aclose()

    return asyncio.run(main())


def run_openai(server: Endpoint, test: Callable[[OpenAI], Awaitable[T]], **options: object) -> T:
    async def main() -> T:
        backend = OpenAI("tiny", base_url=f"{server.url}/v1", api_key=KEY, **options)  # type: ignore[arg-type]
        try:
            return await test(backend)
        finally:
            await backend.aclose()

    return asyncio.run(main())


def generate(*parts: Part, hint: Hint | None = None, **sampling: object) -> GenerateCall:
    options = {"max_new_tokens": 8, "temperature": 0.0, "ignore_eos": True, **sampling}
    return GenerateCall(parts, Sampling(**options), hint or Hint())  # type: ignore[arg-type]


class TestRuntimeEndpoint:
    def test_the_next_call_reuses_all_but_the_last_generated_token(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            (first,) = await endpoint.generate(generate("The beginning of a program. "))
            (second,) = await endpoint.generate(
                generate("The beginning of a program. ", *first.parts, " And on.")
            )
            assert any(isinstance(part, tuple) for part in first.parts)
            assert second.cached_tokens >= first.prompt_tokens + first.completion_tokens - 1

        run(server, test)

    def test_a_stream_is_the_same_text(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            call = generate("Streaming: ", max_new_tokens=20)
            (whole,) = await endpoint.generate(call)
            deltas = [delta async for delta in endpoint.stream(call)]
            done = deltas[-1].done
            assert done is not None
            assert "".join(delta.text for delta in deltas) == whole.text == done.text
            assert done.parts == whole.parts

        run(server, test)

    def test_two_texts_and_a_hold(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            call = generate("Two texts", n=2, temperature=1.0, seed=1, hint=Hint("two", hold_s=5.0))
            first, second = await endpoint.generate(call)
            assert first.text != second.text
            assert (first.prompt_tokens > 0, second.prompt_tokens) == (True, 0)
            assert first.held_tokens is not None
            endpoint.end(["two"], "done")

        run(server, test)

    def test_nothing_at_all_and_ids_and_plain_text_are_prompts(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            for parts in ((), ((40, 41),), (Plain("<|im_end|>"),), ("a", (40,), "b")):
                (found,) = await endpoint.generate(generate(*parts, max_new_tokens=2))
                assert found.completion_tokens == 2

        run(server, test)

    @pytest.mark.parametrize("prompt", ["The answer is", "x", "The answer is "])
    def test_scores_are_the_same_by_whole_texts(self, server: Endpoint, prompt: str) -> None:
        """As a server of SGLang's would be asked."""
        call = ScoreCall((prompt,), (" yes", " no", " yesterday"), unconditional=True)

        async def test(endpoint: RuntimeEndpoint) -> None:
            ours = await endpoint.score(call)
            calls = HttpCalls(server.url, headers={"Authorization": f"Bearer {KEY}"})
            theirs = await SglangApi(calls, FORMATS["plain"]).score(call)
            await calls.close()
            for one, other in zip(ours.choices, theirs.choices, strict=True):
                assert one.token_ids == other.token_ids
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
                assert len(one.unconditional) == len(one.token_ids)

        run(server, test)

    def test_frames_put_together_are_a_conversation(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            text = ""
            for count, content in enumerate(("Be kind.", "Hello", "Hi"), 1):
                frame = await endpoint.frame(("system", "user", "assistant")[:count])
                text += frame.before + content + frame.after
            assert [text.index(each) for each in ("Be kind.", "Hello", "Hi")] == sorted(
                text.index(each) for each in ("Be kind.", "Hello", "Hi")
            )

        run(server, test)

    def test_a_cancelled_call_ends_on_the_server(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            stream = endpoint.stream(generate("On and on", max_new_tokens=1900))
            await anext(stream)
            running = asyncio.create_task(endpoint.generate(generate("And on", max_new_tokens=1900)))
            while await _running(endpoint) < 2:
                pass
            running.cancel()
            await stream.aclose()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with asyncio.timeout(20):
                while await _running(endpoint):
                    pass

        run(server, test)

    def test_info_and_flush(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            await endpoint.generate(generate("Something to forget, long enough for pages"))
            await endpoint.flush()
            (again,) = await endpoint.generate(generate("Something to forget, long enough for pages"))
            assert again.cached_tokens == 0
            assert (await endpoint.info())["runtime"] == "radixlm"

        run(server, test)

    def test_wrong_calls_have_the_server_s_words(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            with pytest.raises(InvalidCall, match="temperature"):
                await endpoint.generate(generate("a", temperature=-1.0))
            with pytest.raises(InvalidCall, match="temperature"):
                async for _ in endpoint.stream(generate("a", temperature=-1.0)):
                    pass

        run(server, test)

    def test_a_wrong_key_is_said(self, server: Endpoint) -> None:
        async def main() -> None:
            endpoint = RuntimeEndpoint(server.url, "wrong")
            with pytest.raises(InvalidCall, match="api_key"):
                await endpoint.generate(generate("a"))
            await endpoint.aclose()

        asyncio.run(main())

    def test_many_calls_at_a_time_all_come_back(self, server: Endpoint) -> None:
        async def test(endpoint: RuntimeEndpoint) -> None:
            calls = [endpoint.generate(generate(f"Call {number}", max_new_tokens=3)) for number in range(100)]
            found = await asyncio.gather(*calls)
            assert {each.completion_tokens for (each,) in found} == {3}

        run(server, test)


async def _running(endpoint: RuntimeEndpoint) -> int:
    info = await endpoint.info()
    (state,) = info["internal_states"]  # type: ignore[misc]
    return state["running"]  # type: ignore[no-any-return,has-type]


MESSAGES = ({"role": "user", "content": "Say something"}, {"role": "assistant", "content": ""})


class TestOpenAI:
    def test_texts_where_nothing_stands_in_role_blocks(self, server: Endpoint) -> None:
        async def test(backend: OpenAI) -> None:
            call = generate("Once upon a time", n=2, temperature=1.0, seed=1)
            first, second = await backend.generate(call)
            assert first.text != second.text
            assert (first.parts, first.finish_reason) == ((first.text,), "length")
            assert (first.completion_tokens, second.prompt_tokens) == (8, 0)
            (again,) = await backend.generate(generate("Once upon a time"))
            assert again.cached_tokens > 0
            deltas = [delta async for delta in backend.stream(generate("Once upon a time"))]
            done = deltas[-1].done
            assert done is not None
            assert "".join(delta.text for delta in deltas) == done.text == again.text
            assert done.prompt_tokens == again.prompt_tokens

        run_openai(server, test)

    def test_chat_where_all_stands_in_role_blocks(self, server: Endpoint) -> None:
        async def test(backend: OpenAI) -> None:
            call = GenerateCall(("ignored",), generate(return_logprob=True).sampling, Hint("p"), MESSAGES)
            (whole,) = await backend.generate(call)
            assert whole.completion_tokens == 8
            assert len(whole.meta["output_token_logprobs"]) == 8  # type: ignore[arg-type]
            deltas = [delta async for delta in backend.stream(call)]
            assert "".join(delta.text for delta in deltas) == whole.text
            begun = ({"role": "user", "content": "Go"}, {"role": "assistant", "content": "I "})
            (more,) = await backend.generate(GenerateCall((), generate().sampling, Hint(), begun))
            assert more.completion_tokens == 8

        run_openai(server, test)

    def test_what_the_server_is_known_to_take_is_used(self, server: Endpoint) -> None:
        async def test(backend: OpenAI) -> None:
            (found,) = await backend.generate(generate("A number: ", regex="[0-9]{4}", ignore_eos=False))
            assert found.text.isdecimal()
            schema = '{"type": "boolean"}'
            for messages in (None, MESSAGES):
                asked = generate("x", json_schema=schema, ignore_eos=False).sampling
                (found,) = await backend.generate(GenerateCall(("x",), asked, Hint(), messages))
                assert found.text in ("true", "false")
            assert (await backend.info())["server"] == "radixlm"

        run_openai(server, test)

    def test_select_by_echo_is_select_by_scores(self, server: Endpoint) -> None:
        call = ScoreCall(("The answer is",), (" yes", " no", " yesterday"))
        ours = run(server, lambda endpoint: endpoint.score(call))
        theirs = run_openai(server, lambda backend: backend.score(call))
        for one, other in zip(ours.choices, theirs.choices, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)

    def test_select_on_chat_is_an_answer_that_is_held_to_the_choices(self, server: Endpoint) -> None:
        call = ScoreCall((), ("yes", "no"), messages=MESSAGES)
        scored = run_openai(server, lambda backend: backend.score(call))
        assert scored.chosen in (0, 1)
        assert scored.choices == ()

    def test_what_the_api_cannot_do_is_said(self, server: Endpoint) -> None:
        async def test(backend: OpenAI) -> None:
            with pytest.raises(Unsupported, match="only read"):
                await backend.generate(generate("a", max_new_tokens=0))

        run_openai(server, test)
