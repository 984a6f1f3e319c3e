"""OpenAI: what is sent to which server, what is read, and what is said that cannot be done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import httpx
import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, InvalidCall, Unreachable, Unsupported
from radixlm.frontend.loop import run_on_loop
from radixlm.frontend.openai import OpenAI
from radixlm.frontend.openai_servers import SERVERS, server_from_models
from radixlm.frontend.protocol import Frame, GenerateCall, Hint, Message, Sampling, ScoreCall
from radixlm.programs import react_agent
from radixlm.programs.shared.library import Library

T = TypeVar("T")

# Any: bodies are JSON, and tests know what is in them.
Json = Any
Answer = Callable[[Json], Json]

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
ASKED = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""})


def chat(*texts: str, reason: str = "stop", **more: Json) -> Json:
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": reason, **more}
        for index, text in enumerate(texts)
    ]
    return {"choices": choices[::-1], "usage": USAGE}


def run(
    answer: Answer | Json, test: Callable[[OpenAI], Awaitable[T]], **options: Json
) -> tuple[T, list[tuple[str, Json]]]:
    """What the test gives, and the bodies that were sent, with their paths."""
    sent: list[tuple[str, Json]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404)
        body = json.loads(request.content)
        sent.append((request.url.path.removeprefix("/v1"), body))
        given = answer(body) if callable(answer) else answer
        if isinstance(given, bytes):
            return httpx.Response(200, content=given)
        return httpx.Response(200, json=given)

    return run_handler(handle, test, **options), sent


def run_handler(
    handle: Callable[[httpx.Request], httpx.Response],
    test: Callable[[OpenAI], Awaitable[T]],
    *,
    on: Callable[[Coroutine[Json, Json, T]], T] = asyncio.run,
    **options: Json,
) -> T:
    async def main() -> T:
        settings = {"base_url": "http://x/v1", "transport": httpx.MockTransport(handle), **options}
        backend = OpenAI("some-model", **settings)
        try:
            return await test(backend)
        finally:
            await backend.aclose()

    return on(main())


def run_on_programs_loop(
    answer: Answer | Json, test: Callable[[OpenAI], Awaitable[T]], **options: Json
) -> tuple[T, list[tuple[str, Json]]]:
    return run(answer, test, on=lambda main: run_on_loop(main).result(30), **options)


def call(
    *, messages: tuple[Message, ...] | None = ASKED, hint: Hint | None = None, **sampling: Json
) -> GenerateCall:
    return GenerateCall(("Hi",), Sampling(**sampling), hint or Hint(), messages)


def sent_for(asked: GenerateCall, **options: Json) -> tuple[str, Json]:
    answer = (
        chat("a") if asked.messages else {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
    )
    _, (sent,) = run(answer, lambda backend: backend.generate(asked), **options)
    return sent


class TestBodies:
    def test_a_conversation_goes_to_the_chat_route_without_the_empty_answer(self) -> None:
        path, body = sent_for(call(seed=3, stop=("\n",), top_p=0.5, presence_penalty=0.1, n=1))
        assert path == "/chat/completions"
        assert body == {
            "model": "some-model",
            "messages": [{"role": "user", "content": "Hi"}],
            "temperature": 1.0,
            "top_p": 0.5,
            "presence_penalty": 0.1,
            "seed": 3,
            "stop": ["\n"],
            "max_tokens": 128,
        }

    def test_text_outside_of_role_blocks_goes_to_completions(self) -> None:
        path, body = sent_for(call(messages=None, return_logprob=True))
        assert (path, body["prompt"], body["logprobs"]) == ("/completions", "Hi", 1)

    def test_openai_s_own_server_gets_its_own_names_and_no_defaults(self) -> None:
        path, body = sent_for(call(), base_url="https://api.openai.com/v1", api_key="k")
        assert path == "/chat/completions"
        assert body == {
            "model": "some-model",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_completion_tokens": 128,
        }

    def test_a_schema_goes_as_a_response_format(self) -> None:
        _, body = sent_for(call(json_schema='{"type": "object"}'))
        assert body["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
        }

    def test_hints_and_the_rest_go_to_servers_that_take_them(self) -> None:
        asked = call(
            hint=Hint("p", done=True),
            top_k=5,
            min_p=0.1,
            repetition_penalty=1.2,
            min_new_tokens=2,
            stop_token_ids=(3,),
            stop_regex=("x",),
            ignore_eos=True,
            regex="a+",
        )
        _, body = sent_for(asked, server="radixlm")
        for name, value in {
            "hint": {"program_id": "p", "done": True},
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "min_tokens": 2,
            "stop_token_ids": [3],
            "stop_regex": ["x"],
            "ignore_eos": True,
            "regex": "a+",
        }.items():
            assert body[name] == value

    @pytest.mark.parametrize(
        ("server", "sampling", "field", "value"),
        [
            ("vllm", {"regex": "a"}, "structured_outputs", {"regex": "a"}),
            ("vllm", {"grammar": "g"}, "structured_outputs", {"grammar": "g"}),
            ("sglang", {"grammar": "g"}, "ebnf", "g"),
            ("sglang", {"regex": "a"}, "regex", "a"),
        ],
    )
    def test_each_server_has_its_own_words_for_a_form(
        self, server: str, sampling: Json, field: str, value: Json
    ) -> None:
        assert sent_for(call(**sampling), server=server)[1][field] == value

    def test_an_answer_that_has_begun_is_continued_where_that_is_known(self) -> None:
        begun = (ASKED[0], {"role": "assistant", "content": "I"})
        _, body = sent_for(call(messages=begun), server="vllm")
        assert body["messages"] == list(begun)
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)

    def test_options_that_say_nothing_are_left_out_everywhere(self) -> None:
        _, body = sent_for(call(top_k=-1, min_p=0.0, repetition_penalty=1.0, min_new_tokens=0))
        assert not {"top_k", "min_p", "repetition_penalty", "min_tokens"} & body.keys()


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "options", "words"),
        [
            (call(regex="a"), {}, "not known to take a regex.*RuntimeEndpoint"),
            (call(grammar="a"), {}, "not known to take a grammar"),
            (call(messages=None, json_schema="{}"), {}, "not known to take a json_schema"),
            (call(top_k=3), {}, "not known to take top_k"),
            (call(stop_regex=("a",)), {"server": "vllm"}, "not known to take stop_regex"),
            (call(choice=("a", "b")), {}, "not known to take a choice"),
            (call(relaxed=True, json_schema="{}"), {"server": "vllm"}, "not known to take relaxed"),
            (call(max_new_tokens=0), {}, "cannot only read a prompt"),
            (call(return_logprob=True, logprob_start_len=0), {}, "logprob_start_len"),
            (call(messages=None), {"is_chat_model": True}, "text outside of role blocks"),
            (
                call(messages=(ASKED[0], {"role": "assistant", "content": "I"})),
                {},
                "cannot continue an answer that has begun with 'I'",
            ),
        ],
    )
    def test_what_cannot_be_done_is_said_with_what_to_do(
        self, asked: GenerateCall, options: Json, words: str
    ) -> None:
        with pytest.raises(Unsupported, match=words):
            run(chat("a"), lambda backend: backend.generate(asked), **options)

    @pytest.mark.parametrize(
        "asked", [call(json_schema="{"), call(n=0), GenerateCall(("a", (1,)), Sampling())]
    )
    def test_wrong_values_are_refused(self, asked: GenerateCall) -> None:
        with pytest.raises(InvalidCall):
            run(chat("a"), lambda backend: backend.generate(asked))

    def test_a_cache_cannot_be_emptied(self) -> None:
        with pytest.raises(Unsupported, match="empty a cache"):
            run(None, lambda backend: backend.flush())

    def test_openai_needs_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(InvalidCall, match="OPENAI_API_KEY"):
            OpenAI("gpt-4o")

    def test_the_environment_says_where_and_with_which_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", "http://here/v1/")
        assert OpenAI("m").base_url == "http://here/v1"

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"model": ""}, "model must be a name, got ''"),
            ({"model": 3}, "model must be a name, got 3"),
            ({"server": "nope"}, "server must be one of .*, got 'nope'"),
            ({"server": ["vllm"]}, "server must be one of"),
            ({"is_chat_model": "yes"}, "is_chat_model must be True, False or None, got 'yes'"),
            ({"base_url": ""}, "base_url must be"),
            ({"base_url": 8000}, "base_url must be text .*, got 8000"),
            ({"api_key": 5}, "api_key must be"),
            ({"api_key": ""}, "api_key must be"),
            ({"chat_template": 5}, "chat_template must be one of .*, got 5"),
            ({"timeout": "5"}, "timeout must be seconds above 0, or None for no limit, got '5'"),
            ({"max_connections": "5"}, "max_connections must be a count of at least 1, got '5'"),
            ({"retries": "5"}, "retries must be a count .*, got '5'"),
            ({"verify": 5}, "verify must be a file with certificates, True or False, got 5"),
            ({"verify": "/no/such/file"}, "verify must be .*no file '/no/such/file'"),
            ({"transport": 5}, "transport must be an async transport of httpx, got 5"),
        ],
    )
    def test_wrong_arguments_are_quoted_with_what_is_allowed(self, options: Json, words: str) -> None:
        with pytest.raises(InvalidCall, match=words):
            OpenAI(**{"model": "m", "base_url": "http://x/v1", **options})

    @pytest.mark.parametrize(
        ("model", "is_chat"), [("gpt-4o", True), ("gpt-3.5-turbo-instruct", False), ("babbage-002", False)]
    )
    def test_openai_s_models_are_known_by_their_names(self, model: str, is_chat: bool) -> None:
        backend = OpenAI(model, base_url="https://api.openai.com/v1", api_key="k")
        assert backend._is_chat_model is is_chat


class TestReplies:
    def test_texts_are_in_order_with_what_they_took(self) -> None:
        found, _ = run(chat("a", "b"), lambda backend: backend.generate(call(n=2)))
        assert [each.text for each in found] == ["a", "b"]
        assert [each.prompt_tokens for each in found] == [7, 0]
        assert [each.cached_tokens for each in found] == [4, 0]
        assert [each.completion_tokens for each in found] == [3, 2]
        assert found[0].parts == ("a",)

    def test_log_probabilities_are_in_sglang_s_form(self) -> None:
        content = [{"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1.0}]}]
        asked = call(return_logprob=True, top_logprobs_num=1)
        (found,), ((_, body),) = run(
            chat("a", logprobs={"content": content}), lambda backend: backend.generate(asked)
        )
        assert (body["logprobs"], body["top_logprobs"]) == (True, 1)
        assert found.meta["output_token_logprobs"] == [[-0.5, None, "a"]]
        assert found.meta["output_top_logprobs"] == [[[-1.0, None, "b"]]]

    @pytest.mark.parametrize(
        ("reply", "kind", "words"),
        [
            (chat("a", "b"), BackendError, "gave 2 texts"),
            (chat("a", reason="content_filter"), BackendError, "content filter"),
            (chat("a", reason="new"), BackendError, "not known"),
            (chat("a", reason="abort"), Unreachable, "broke the call off"),
            ({"choices": [{"message": {"refusal": "I will not"}}]}, BackendError, "I will not"),
            ({"hello": 1}, BackendError, "choices should be a list"),
            ([], BackendError, "should be an object"),
        ],
    )
    def test_replies_that_are_none_are_said(self, reply: Json, kind: type[Exception], words: str) -> None:
        with pytest.raises(kind, match=words):
            run(reply, lambda backend: backend.generate(call()))

    def test_a_stream_is_joined_and_ends_with_usage(self) -> None:
        chunks: list[Json] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant"}}]},
            {"choices": [{"index": 0, "delta": {"content": "Hel"}}], "usage": None},
            {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "length"}]},
            {"choices": [], "usage": USAGE},
        ]
        found, ((_, body),) = run(events(*chunks, "[DONE]"), read_stream)
        assert body["stream_options"] == {"include_usage": True}
        assert [delta.text for delta in found] == ["", "Hel", "lo", ""]
        done = found[-1].done
        assert done is not None
        assert (done.text, done.finish_reason, done.cached_tokens) == ("Hello", "length", 4)

    @pytest.mark.parametrize(
        ("content", "kind", "words"),
        [
            (
                [{"choices": [{"delta": {"content": "a"}}]}, "[DONE]"],
                Unreachable,
                "ended before the text did",
            ),
            (
                [{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}],
                Unreachable,
                "before its end",
            ),
            ([{"error": {"message": "no room", "code": 503}}, "[DONE]"], Unreachable, "no room"),
            ([{"error": {"message": "bad", "type": "invalid_request_error"}}], InvalidCall, "bad"),
        ],
    )
    def test_streams_that_break_off_are_said(self, content: Json, kind: type[Exception], words: str) -> None:
        with pytest.raises(kind, match=words):
            run(events(*content), read_stream)


async def read_stream(backend: OpenAI) -> list[Json]:
    return [delta async for delta in backend.stream(call())]


def events(*values: Json) -> bytes:
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def echo(body: Json) -> Json:
    """Tokens are words with the space before them; the n-th of a text has log-probability -n."""
    choices = []
    for index, text in enumerate(body["prompt"]):
        tokens = [word if not at else f" {word}" for at, word in enumerate(text.split(" "))]
        places = [sum(map(len, tokens[:at])) for at in range(len(tokens))]
        logprobs = {
            "tokens": [*tokens, "!"],
            "token_logprobs": [None, *(-1.0 * at for at in range(1, len(tokens) + 1))],
            "text_offset": [*places, len(text)],
        }
        choices.append({"index": index, "text": text + "!", "logprobs": logprobs, "finish_reason": "length"})
    return {"choices": choices, "usage": {"prompt_tokens": 30}}


class TestScore:
    def test_choices_are_scored_by_echo_from_the_first_token_they_change(self) -> None:
        asked = ScoreCall(("It is qu",), ("ite so", "ick"))
        scored, ((path, body),) = run(echo, lambda backend: backend.score(asked))
        assert (path, body["echo"], body["max_tokens"]) == ("/completions", True, 1)
        assert [choice.logprobs for choice in scored.choices] == [(-2.0, -3.0), (-2.0,)]
        assert scored.choices[0].token_ids[0] != scored.choices[1].token_ids[0]
        assert (scored.prompt_tokens, scored.tells_cached) == (3, False)

    @pytest.mark.parametrize(
        ("asked", "words"),
        [
            (ScoreCall(("a b",), ("c",), unconditional=True), "unconditional_likelihood_normalized"),
            (ScoreCall(("",), ("c",)), "very beginning"),
            (ScoreCall(("a",), ("b", "c")), "change the first token"),
            (ScoreCall((), ("b", "c"), messages=ASKED), "select needs log-probabilities.*json_schema"),
        ],
    )
    def test_what_cannot_be_scored_is_said(self, asked: ScoreCall, words: str) -> None:
        with pytest.raises(Unsupported, match=words):
            run(echo, lambda backend: backend.score(asked))

    @pytest.mark.parametrize("logprobs", [None, {"tokens": [], "token_logprobs": [], "text_offset": []}])
    def test_a_server_without_echo_is_said(self, logprobs: Json) -> None:
        reply = {"choices": [{"text": "a", "logprobs": logprobs}] * 2}
        with pytest.raises(Unsupported, match="echo with logprobs"):
            run(reply, lambda backend: backend.score(ScoreCall(("a b",), ("c",))))

    def test_no_choices_are_refused(self) -> None:
        with pytest.raises(InvalidCall, match="choices"):
            run(echo, lambda backend: backend.score(ScoreCall(("a",), ())))

    @pytest.mark.parametrize(
        ("server", "field", "value"),
        [
            ("vllm", "structured_outputs", {"choice": ["yes", "no."]}),
            ("radixlm", "choice", ["yes", "no."]),
            ("sglang", "regex", r"(yes)|(no\.)"),
        ],
    )
    def test_a_chat_server_that_can_be_held_to_choices_chooses(
        self, server: str, field: str, value: Json
    ) -> None:
        asked = ScoreCall((), ("yes", "no."), messages=ASKED)
        scored, ((_, body),) = run(chat("no."), lambda backend: backend.score(asked), server=server)
        assert body[field] == value
        assert (scored.chosen, scored.choices) == (1, ())

    def test_where_a_server_chooses_nothing_is_told_but_what_it_chose(self) -> None:
        @rx.function
        def body(s: rx.ProgramState, method: object = None) -> None:
            s += rx.user("Yes or no?")
            s += rx.assistant(rx.select("x", ["yes", "no"], choices_method=method))

        async def test(backend: OpenAI) -> rx.ProgramState:
            return await body.run_async(backend=backend)

        state, _ = run_on_programs_loop(chat("no"), test, server="vllm")
        assert state["x"] == "no"
        assert state.get_meta_info("x") == {
            "prompt_tokens": 7,
            "cached_tokens": 4,
            "computed_tokens": 8,
            "method": "chosen_by_backend",
            "index": 1,
        }

        async def by_sum(backend: OpenAI) -> rx.ProgramState:
            return await body.run_async(method=rx.total, backend=backend)

        state, _ = run_on_programs_loop(chat("no"), by_sum, server="vllm")
        with pytest.raises(rx.ProgramError, match="total needs log-probabilities"):
            state["x"]

    def test_an_answer_that_is_no_choice_is_said(self) -> None:
        asked = ScoreCall((), ("yes", "no"), messages=ASKED)
        with pytest.raises(BackendError, match="wrote 'maybe'"):
            run(chat("maybe"), lambda backend: backend.score(asked), server="vllm")


class TestHolds:
    def test_a_hold_asks_nobody_holds_nothing_and_is_said_in_the_report(self) -> None:
        @rx.function
        def agent(s: rx.ProgramState) -> None:
            s += "I look it up."
            with s.hold(30) as held:
                s.set_var("held", held.tokens)
            s += rx.gen("x")

        answer = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}

        async def test(backend: OpenAI) -> rx.ProgramState:
            return await agent.run_async(backend=backend)

        state, sent = run_on_programs_loop(answer, test, server="radixlm")
        assert (state["held"], state["x"], len(sent)) == (0, "a", 1)
        assert "cannot hold a prefix: 0 tokens are held" in str(state.cache_report())

    def test_a_call_that_would_hold_is_made_without(self) -> None:
        asked = call(hint=Hint("p", hold_s=1.0))
        (found,), ((_, body),) = run(chat("a"), lambda backend: backend.generate(asked), server="radixlm")
        assert (found.text, found.held_tokens) == ("a", 0)
        assert body["hint"] == {"program_id": "p"}

    def test_the_agent_runs_on_an_endpoint_of_that_api(self) -> None:
        def answer(body: Json) -> Json:
            text = " finish[4]\n" if body["prompt"].endswith("Observation: 4\nThought:\nAction:") else ""
            text = text or (" calculate[2 + 2]\n" if body["prompt"].endswith("Action:") else "")
            return {"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}

        async def test(backend: OpenAI) -> rx.ProgramState:
            return await react_agent.agent.run_async(question="?", library=Library([]), backend=backend)

        state, _ = run_on_programs_loop(answer, test, server="radixlm")
        assert (state.error(), state["answer"]) == (None, "4")


class TestReports:
    @pytest.mark.parametrize("details", [None, {"cached_tokens": 0}])
    def test_what_a_server_does_not_tell_is_not_called_evicted(self, details: Json) -> None:
        @rx.function
        def body(s: rx.ProgramState) -> None:
            s += "a" + rx.gen("x") + "b" + rx.gen("y")

        usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": details}
        answer = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}], "usage": usage}

        async def test(backend: OpenAI) -> rx.ProgramState:
            return await body.run_async(backend=backend)

        state, _ = run_on_programs_loop(answer, test)
        report = str(state.cache_report())
        assert ("does not say what it reused" in report) == (details is None)
        assert ("? of 7 reused" in report) == (details is None)
        assert state.cache_report().recomputed == 0 or details is not None


class TestAddresses:
    def test_routes_that_are_below_v1_are_found_out(self) -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/models":
                return httpx.Response(200, json={"data": [{"owned_by": "vllm"}]})
            return httpx.Response(404)

        with pytest.raises(InvalidCall, match="must end with /v1: use 'http://x/v1', got 'http://x'"):
            run_handler(handle, lambda backend: backend.generate(call()), base_url="http://x")

    def test_a_route_that_is_not_there_is_said_with_what_is_forgotten_most_often(self) -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            return httpx.Response(404)

        with pytest.raises(Unsupported, match=r"does not exist.*usually ends with /v1, got 'http://x/api'"):
            run_handler(handle, lambda backend: backend.generate(call()), base_url="http://x/api")
        with pytest.raises(Unsupported, match="does not exist") as caught:
            run_handler(handle, lambda backend: backend.generate(call()), base_url="http://x/v1")
        assert "usually" not in str(caught.value)


class TestServers:
    @pytest.mark.parametrize(
        ("models", "name"),
        [
            ({"data": [{"owned_by": "radixlm"}]}, "radixlm"),
            ({"data": [{"owned_by": "vllm"}]}, "vllm"),
            ({"data": [{"owned_by": "sglang"}]}, "sglang"),
            ({"data": [{"owned_by": "openai"}]}, "other"),
            ({"data": []}, "other"),
            ([], "other"),
        ],
    )
    def test_they_are_known_by_who_owns_their_models(self, models: Json, name: str) -> None:
        assert server_from_models(models) is SERVERS[name]

    def test_role_blocks_as_text_are_plain_unless_named(self) -> None:
        async def test(backend: OpenAI) -> Frame:
            return await backend.frame(("user",))

        assert run(None, test)[0] == Frame("USER: ", "\n")
        assert run(None, test, chat_template="chatml")[0] == Frame("<|im_start|>user\n", "<|im_end|>\n")

    def test_info_says_what_the_server_is_taken_for(self) -> None:
        info, _ = run(None, lambda backend: backend.info())
        assert (info["model"], info["server"], info["models"]) == ("some-model", "other", None)

    def test_endings_are_taken_and_not_sent(self) -> None:
        async def test(backend: OpenAI) -> None:
            backend.end(["p"], "cancelled")

        assert run(None, test)[1] == []
