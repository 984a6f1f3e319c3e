"""OpenAI: what is sent to which server, what is read, and what is said that cannot be done."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

from radixlm.frontend.errors import BackendError, InvalidCall, Unreachable, Unsupported
from radixlm.frontend.openai import OpenAI
from radixlm.frontend.openai_servers import SERVERS, server_from_models
from radixlm.frontend.protocol import Frame, GenerateCall, Hint, Message, Sampling, ScoreCall

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

    async def main() -> T:
        settings = {"base_url": "http://x/v1", "transport": httpx.MockTransport(handle), **options}
        backend = OpenAI("some-model", **settings)
        try:
            return await test(backend)
        finally:
            await backend.close()

    return asyncio.run(main()), sent


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
            (call(hint=Hint("p", hold_s=1.0)), {}, "cannot hold a prefix.*RuntimeEndpoint"),
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

    @pytest.mark.parametrize(("model", "options"), [("", {}), ("m", {"server": "nope"})])
    def test_wrong_options_are_refused(self, model: str, options: Json) -> None:
        with pytest.raises(InvalidCall):
            OpenAI(model, base_url="http://x/v1", **options)

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
        assert scored.prompt_tokens == 3

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
        assert [choice.logprobs for choice in scored.choices] == [(-math.inf,), (0.0,)]

    def test_an_answer_that_is_no_choice_is_said(self) -> None:
        asked = ScoreCall((), ("yes", "no"), messages=ASKED)
        with pytest.raises(BackendError, match="wrote 'maybe'"):
            run(chat("maybe"), lambda backend: backend.score(asked), server="vllm")


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
