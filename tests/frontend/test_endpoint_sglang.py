"""RuntimeEndpoint on a server that speaks SGLang's native API and nothing of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

import radixlm as rx
from radixlm.frontend.endpoint import RuntimeEndpoint
from radixlm.frontend.errors import BackendError, InvalidCall, Unsupported
from radixlm.frontend.loop import run_on_loop
from radixlm.frontend.protocol import ChoiceScore, Frame, GenerateCall, Hint, Plain, Sampling, ScoreCall
from testkit.fake_http import Asked, FakeHttp, fake_http
from testkit.fake_sglang import FakeSglang

T = TypeVar("T")


def run(model: FakeSglang, test: Callable[[RuntimeEndpoint, FakeHttp], Awaitable[T]], **options: object) -> T:
    async def main() -> T:
        async with fake_http(model) as fake:
            endpoint = RuntimeEndpoint(fake.url, **options)  # type: ignore[arg-type]
            try:
                return await test(endpoint, fake)
            finally:
                await endpoint.aclose()

    return asyncio.run(main())


def run_program(model: FakeSglang, test: Callable[[RuntimeEndpoint, FakeHttp], Awaitable[T]]) -> T:
    """On the loop that runs all programs."""

    async def main() -> T:
        async with fake_http(model) as fake:
            endpoint = RuntimeEndpoint(fake.url)
            try:
                return await test(endpoint, fake)
            finally:
                await endpoint.aclose()

    return run_on_loop(main()).result(30)


def generate(
    *parts: str | Plain | tuple[int, ...], hint: Hint | None = None, **sampling: object
) -> GenerateCall:
    return GenerateCall(parts, Sampling(**sampling), hint or Hint())  # type: ignore[arg-type]


class TestGenerate:
    def test_text_is_sent_and_text_comes_back_as_a_part(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            (found,) = await endpoint.generate(
                generate("Hello", Plain("<s>"), stop=("\n",), seed=3, hint=Hint("p", hold_s=1.0))
            )
            assert (found.text, found.parts, found.finish_reason) == (" world", (" world",), "stop")
            assert (found.prompt_tokens, found.completion_tokens, found.held_tokens) == (5, 6, 0)
            assert fake.bodies("/generate") == [
                {
                    "text": "Hello<s>",
                    "sampling_params": {
                        "max_new_tokens": 128,
                        "temperature": 1.0,
                        "sampling_seed": 3,
                        "stop": ["\n"],
                    },
                }
            ]

        run(FakeSglang(), test)

    def test_two_texts_come_as_a_list_whose_prompt_counts_once(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            found = await endpoint.generate(generate("Hello", n=2))
            assert [each.text for each in found] == [" world", " world"]
            assert [each.prompt_tokens for each in found] == [2, 0]

        run(FakeSglang(), test)

    def test_what_the_server_is_is_asked_once_for_all_calls(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> int:
            await asyncio.gather(*(endpoint.generate(generate("a")) for _ in range(20)))
            return fake.paths().count("/get_server_info")

        assert run(FakeSglang(), test) == 1

    def test_all_options_have_the_names_of_the_server(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(
                generate(
                    "a",
                    max_new_tokens=3,
                    min_new_tokens=1,
                    stop_token_ids=(5,),
                    stop_regex=("x+",),
                    temperature=0.5,
                    top_p=0.9,
                    top_k=4,
                    min_p=0.1,
                    frequency_penalty=0.2,
                    presence_penalty=0.3,
                    repetition_penalty=1.1,
                    ignore_eos=True,
                    grammar="root ::= x",
                    return_logprob=True,
                    logprob_start_len=1,
                    top_logprobs_num=4,
                    return_text_in_logprobs=True,
                )
            )
            (body,) = fake.bodies("/generate")
            assert body.pop("sampling_params") == {
                "max_new_tokens": 3,
                "min_new_tokens": 1,
                "stop_token_ids": [5],
                "stop_regex": ["x+"],
                "temperature": 0.5,
                "top_p": 0.9,
                "top_k": 4,
                "min_p": 0.1,
                "frequency_penalty": 0.2,
                "presence_penalty": 0.3,
                "repetition_penalty": 1.1,
                "ignore_eos": True,
                "ebnf": "root ::= x",
            }
            assert body == {
                "text": "a",
                "return_logprob": True,
                "logprob_start_len": 1,
                "top_logprobs_num": 4,
                "return_text_in_logprobs": True,
            }

        run(FakeSglang(), test)

    def test_what_is_off_and_one_of_several_texts_are_said_in_its_words(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(generate("a", top_k=0, choice=("yes", "no.")))
            (body,) = fake.bodies("/generate")
            assert body["sampling_params"]["top_k"] == -1
            assert body["sampling_params"]["regex"] == r"(yes)|(no\.)"
            for name in ("relaxed", "compact"):
                with pytest.raises(Unsupported, match=name):
                    await endpoint.generate(generate("a", json_schema="{}", **{name: True}))

        run(FakeSglang(), test)

    def test_ids_alone_are_sent_as_ids_and_ids_among_texts_are_refused(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(generate((1, 2), (3,)))
            assert fake.bodies("/generate")[0]["input_ids"] == [1, 2, 3]
            with pytest.raises(InvalidCall, match="token ids among its texts"):
                await endpoint.generate(generate("a", (1, 2)))

        run(FakeSglang(), test)


class TestStream:
    def test_deltas_joined_are_the_text_and_the_last_has_all(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            deltas = [delta async for delta in endpoint.stream(generate("Hello"))]
            assert [delta.text for delta in deltas] == list(" world")
            assert [delta.done is None for delta in deltas] == [True] * 5 + [False]
            done = deltas[-1].done
            assert done is not None
            assert (done.text, done.parts, done.completion_tokens) == (" world", (" world",), 6)
            await endpoint.generate(generate("Hello"))
            assert fake.accepted == 1, "a stream that was read to its end leaves its connection usable"

        run(FakeSglang(), test)

    @pytest.mark.parametrize("whole_lists", [True, False])
    def test_a_server_that_streams_pieces_gives_the_whole_in_the_end(self, whole_lists: bool) -> None:
        """Lists of what was generated are in pieces as well, but in some versions of it."""
        entries = [[-0.5, 7, None], [-1.5, 8, None], [-2.5, 9, None]]

        async def handle(asked: Asked) -> None:
            if asked.path == "/get_server_info":
                await asked.json({"model_path": "m", "incremental_streaming_output": True})
                return
            await asked.begin()
            for end, piece in enumerate(("a", "b", "c"), 1):
                meta = {"completion_tokens": end, "prompt_tokens": 1, "cached_tokens": 0}
                meta["finish_reason"] = {"type": "length", "length": 3} if end == 3 else None
                meta["output_token_logprobs"] = entries[0 if whole_lists else end - 1 : end]
                await asked.event({"text": piece, "meta_info": meta})
            await asked.event("[DONE]")
            await asked.end()

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                found = [each async for each in endpoint.stream(generate("a", return_logprob=True))]
                await endpoint.aclose()
            done = found[-1].done
            assert done is not None
            assert (done.text, done.meta["output_token_logprobs"]) == ("abc", entries)

        asyncio.run(main())

    @pytest.mark.parametrize(
        ("events", "words"),
        [
            ([{"error": {"message": "no room", "code": 503}}], "no room"),
            ([{"text": "ab", "meta_info": {}}, {"text": "b", "meta_info": {}}], "took back text"),
            ([{"text": "ab", "meta_info": {}}], "ended before the text did"),
            ([{"text": 1, "meta_info": {}}], "should be a text"),
            ([[]], "should be an object"),
        ],
    )
    def test_a_stream_that_makes_no_sense_is_said(self, events: list[object], words: str) -> None:
        async def handle(asked: Asked) -> None:
            if asked.path != "/generate":
                await FakeSglang()(asked)
                return
            await asked.begin()
            for event in events:
                await asked.event(event)
            await asked.event("[DONE]")
            await asked.end()

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                with pytest.raises(BackendError, match=words):
                    async for _ in endpoint.stream(generate("a")):
                        pass
                await endpoint.aclose()

        asyncio.run(main())


def right_scores(model: FakeSglang, prompt: str, choices: list[str]) -> list[ChoiceScore]:
    """By the definition: from the first token that any choice changes."""
    whole = [model.tokens(prompt + choice) for choice in choices]
    before = model.tokens(prompt)
    start = next(
        (at for at in range(len(before)) if any(ids[at : at + 1] != before[at : at + 1] for ids in whole)),
        len(before),
    )
    newline = FakeSglang(bos=False).tokens("\n")
    front = newline if not start else []  # no token stands before the first one
    return [
        ChoiceScore(
            tuple(ids[start:]),
            tuple(model.logprob([*front, *ids[:at]], ids[at]) for at in range(start, len(ids))),
        )
        for ids in whole
    ]


class TestScore:
    @pytest.mark.parametrize("bos", [True, False])
    @pytest.mark.parametrize(
        ("prompt", "choices"),
        [
            ("The capital is", [" the", " wor", " world"]),
            ("Say Hel", ["lo", "p", ""]),  # merges with the end of the prompt
            ("Hel", ["lo world", "d"]),  # a prompt of one token, which a choice changes
            ("x", ["lo", "p"]),
            ("", ["Hello", "wo"]),
            ("a" * 200 + " wo", ["rld", "x"]),
        ],
    )
    def test_scores_are_those_from_the_first_token_that_a_choice_changes(
        self, bos: bool, prompt: str, choices: list[str]
    ) -> None:
        model = FakeSglang(bos=bos)

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            scored = await endpoint.score(ScoreCall((prompt,), tuple(choices)))
            assert list(scored.choices) == right_scores(model, prompt, choices)
            assert scored.prompt_tokens == (len(model.tokens(prompt)) if prompt else 0)

        run(model, test)

    @pytest.mark.parametrize("bos", [True, False])
    def test_unconditional_scores_are_of_the_same_ids_after_nothing(self, bos: bool) -> None:
        model = FakeSglang(bos=bos)
        front = model.tokens("") or model.tokens("\n")

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            scored = await endpoint.score(ScoreCall(("Say Hel",), ("lo", "p"), unconditional=True))
            for choice in scored.choices:
                assert choice.unconditional == tuple(
                    model.logprob([*front, *choice.token_ids[:at]], token)
                    for at, token in enumerate(choice.token_ids)
                )

        run(model, test)

    def test_a_long_prompt_is_read_once_and_two_requests_are_enough(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.score(ScoreCall(("abc" * 100,), ("x", "y")))
            first, second = fake.bodies("/generate")
            assert "return_logprob" not in first
            assert second["logprob_start_len"] == 301 - 8

        run(FakeSglang(), test)

    def test_no_choices_are_refused(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            with pytest.raises(InvalidCall, match="choices"):
                await endpoint.score(ScoreCall(("a",), ()))

        run(FakeSglang(), test)


class TestFrames:
    def test_the_template_is_guessed_from_the_model(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            frame = await endpoint.frame(("user",))
            assert frame == Frame("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>")

        run(FakeSglang(), test)

    @pytest.mark.parametrize("option", ["chat_template", "chat_template_name"])
    def test_it_may_be_named(self, option: str) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> Frame:
            return await endpoint.frame(("system", "user"))

        assert run(FakeSglang(), test, **{option: "llama-2"}) == Frame("", " [/INST]")

    def test_an_unknown_name_is_refused_with_those_known(self) -> None:
        with pytest.raises(InvalidCall, match="chatml"):
            RuntimeEndpoint("http://x", chat_template="nope")

    def test_no_roles_are_refused(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            with pytest.raises(InvalidCall, match="roles"):
                await endpoint.frame(())

        run(FakeSglang(), test)


class TestServer:
    def test_info_and_flush(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            info = await endpoint.info()
            assert (info["version"], info["is_generation"]) == ("0.5.1", True)
            await endpoint.flush()
            assert fake.paths()[-1] == "/flush_cache"

        run(FakeSglang(), test)

    def test_a_server_that_has_dropped_the_old_names_is_known_by_the_new_ones(self) -> None:
        model, renamed = FakeSglang(), ("/server_info", "/model_info")

        async def handle(asked: Asked) -> None:
            if asked.path in ("/get_server_info", "/get_model_info"):
                await asked.json({"detail": "Not Found"}, 404)
                return
            if asked.path in renamed:
                asked.path = asked.path.replace("/", "/get_")
            await model(asked)

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                assert (await endpoint.generate(generate("a")))[0].text == " world"
                assert (await endpoint.info())["is_generation"] is True
                await endpoint.aclose()

        asyncio.run(main())

    def test_a_hold_holds_nothing_and_its_report_says_so(self) -> None:
        @rx.function
        def body(s: rx.ProgramState) -> None:
            s += "a"
            assert s.pin(5) == 0
            s += rx.gen("x")

        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> str:
            state = await body.run_async(backend=endpoint)
            assert state.error() is None
            return str(state.cache_report())

        assert "SGLang's servers cannot hold a prefix" in run_program(FakeSglang(), test)

    def test_endings_are_not_sent_to_it(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> None:
            await endpoint.generate(generate("a"))
            endpoint.end(["p"], "cancelled")
            await endpoint.aclose()
            assert set(fake.paths()) == {"/get_server_info", "/generate"}

        run(FakeSglang(), test)

    @pytest.mark.parametrize("answer", ["html", "other json", "nothing"])
    def test_a_server_that_is_none_is_said_with_what_to_do(self, answer: str) -> None:
        async def handle(asked: Asked) -> None:
            if answer == "html":
                await asked.content(b"<html>")
            elif answer == "other json":
                await asked.json({"hello": 1})
            else:
                await asked.content(b"", 404)

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                for _ in range(2):  # asked again after a failure
                    with pytest.raises(InvalidCall, match=r"neither a RadixLM nor an SGLang.*OpenAI\(model"):
                        await endpoint.generate(generate("a"))
                assert fake.paths().count("/get_server_info") == 2
                await endpoint.aclose()

        asyncio.run(main())

    def test_the_root_is_wanted_not_the_folder_of_openai_s_routes(self) -> None:
        with pytest.raises(InvalidCall, match="without /v1"):
            RuntimeEndpoint("http://127.0.0.1:8000/v1/")

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"timeout": "5"}, "timeout must be seconds above 0, or None for no limit, got '5'"),
            ({"max_connections": "5"}, "max_connections must be a count of at least 1, got '5'"),
            ({"retries": 1.5}, "retries must be a count of at least 0, or Retries.*, got 1.5"),
            ({"verify": 3}, "verify must be .*, got 3"),
            ({"api_key": 3}, "api_key must be"),
            ({"chat_template": 3}, "chat_template must be one of .*, got 3"),
            ({"chat_template_name": ""}, "chat_template must be one of .*, got ''"),
            ({"transport": object}, "transport must be an async transport of httpx"),
            ({"base_url": None}, "base_url must be text .*, got None"),
        ],
    )
    def test_wrong_arguments_are_quoted_with_what_is_allowed(
        self, options: dict[str, object], words: str
    ) -> None:
        with pytest.raises(InvalidCall, match=words):
            RuntimeEndpoint(**{"base_url": "http://x", **options})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("backend", "words"),
        [
            (RuntimeEndpoint, r"got the class: make one with RuntimeEndpoint\(\.\.\.\)"),
            ("http://127.0.0.1:8000", r"reached by RuntimeEndpoint\('http://127.0.0.1:8000'\)"),
            (7, "a backend is an Engine, .*, got 7"),
        ],
    )
    def test_what_is_no_backend_is_said(self, backend: object, words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            rx.set_default_backend(backend)

    @pytest.mark.parametrize("key", ["", "a\nb", "schlüssel"])
    def test_a_key_that_no_header_holds_is_refused_and_not_shown(self, key: str) -> None:
        with pytest.raises(InvalidCall, match="api_key") as caught:
            RuntimeEndpoint("http://x", key)
        assert not key or key not in str(caught.value)

    def test_the_key_is_sent(self) -> None:
        async def test(endpoint: RuntimeEndpoint, fake: FakeHttp) -> str:
            await endpoint.generate(generate("a"))
            return fake.asked[-1].headers["authorization"]

        assert run(FakeSglang(), test, api_key="sk-1") == "Bearer sk-1"

    def test_an_abort_with_a_status_is_that_failure(self) -> None:
        async def handle(asked: Asked) -> None:
            if asked.path != "/generate":
                await FakeSglang()(asked)
                return
            reason = {"type": "abort", "message": "too long", "status_code": 400}
            await asked.json({"text": "", "meta_info": {"finish_reason": reason}})

        async def main() -> None:
            async with fake_http(handle) as fake:
                endpoint = RuntimeEndpoint(fake.url)
                with pytest.raises(InvalidCall, match="too long"):
                    await endpoint.generate(generate("a"))
                await endpoint.aclose()

        asyncio.run(main())

    def test_close_works_where_nothing_was_called_and_on_another_loop(self) -> None:
        endpoint = RuntimeEndpoint("http://127.0.0.1:1")
        endpoint.end(["p"], "done")
        asyncio.run(endpoint.aclose())
        asyncio.run(endpoint.aclose())
