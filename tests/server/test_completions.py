"""/v1/completions over HTTP: forms of prompts, echo and log-probabilities, streams, structure, refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.server.completions import answer
from radixlm.runtime.server.context import ServerContext
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.metrics import ServerMetrics
from radixlm.runtime.server.service import Service
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

PROMPT = "the cat in the hat"
Client = httpx.Client


@pytest.fixture(scope="module")
def client(local_engine: LocalEngine) -> Iterator[Client]:
    settings = ServerSettings(served_model_name="org/tiny", max_prompts=40, max_choices=16)
    with (
        running_server(local_engine, settings) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as found,
    ):
        yield found


def ask(client: Client, prompt: object = PROMPT, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, **body})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def refused(client: Client, status: int = 400, **body: Any) -> str:
    reply = client.post("/v1/completions", json={"prompt": PROMPT, **body})
    assert reply.status_code == status, reply.text
    return str(reply.json()["error"]["message"])


def chunks(client: Client, prompt: object = PROMPT, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, which ends with [DONE]."""
    body = {"prompt": prompt, "temperature": 0, "stream": True, **body}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.text.removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def put_together(found: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices of a stream as they would be in one piece. Each ends once, and nothing comes after that."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in found:
        for part in chunk["choices"]:
            whole = choices.setdefault(part["index"], {"text": "", "finish_reason": None, "logprobs": None})
            assert whole["finish_reason"] is None
            whole["text"] += part["text"]
            whole["finish_reason"] = part["finish_reason"]
            for name, values in (part["logprobs"] or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                whole["logprobs"].setdefault(name, []).extend(values)
            if "token_ids" in part:
                whole.setdefault("token_ids", []).extend(part["token_ids"])
            if "prompt_token_ids" in part:
                assert "prompt_token_ids" not in whole
                whole["prompt_token_ids"] = part["prompt_token_ids"]
    return choices


def scores(reply: dict[str, Any], lengths: list[int]) -> list[tuple[float, bool]]:
    """Read as log-likelihood clients do: the sum behind the context, and whether each token is the best."""
    found = []
    for choice, length in zip(sorted(reply["choices"], key=lambda one: one["index"]), lengths, strict=True):
        values = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        found.append((sum(values), all(v == max(top.values()) for v, top in zip(values, tops, strict=True))))
    return found


# -- replies in one piece --------------------------------------------------------------------------------


def test_a_text_is_continued_by_16_tokens_if_nothing_else_is_said(client: Client) -> None:
    reply = ask(client, ignore_eos=True)
    [choice] = reply["choices"]
    assert reply["object"] == "text_completion"
    assert reply["id"].startswith("cmpl-")
    assert reply["model"] == "org/tiny"
    assert choice["index"] == 0
    assert choice["text"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    usage = reply["usage"]
    assert usage["completion_tokens"] == 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + 16
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0


def test_a_prompt_gives_the_same_in_every_form(client: Client, byte_tokenizer: Tokenizer) -> None:
    ids, other = byte_tokenizer.encode(PROMPT), byte_tokenizer.encode("a")
    alone, second = ask(client)["choices"][0]["text"], ask(client, "a")["choices"][0]["text"]
    for prompt in (ids, [PROMPT], [ids]):
        assert [choice["text"] for choice in ask(client, prompt)["choices"]] == [alone]
    for prompt in ([PROMPT, "a"], [ids, other], [ids, "a"]):
        choices = ask(client, prompt)["choices"]
        assert [choice["index"] for choice in choices] == [0, 1]
        assert [choice["text"] for choice in choices] == [alone, second]


def test_choices_of_prompts_are_numbered_through_and_differ(client: Client) -> None:
    asked = {"n": 3, "seed": 5, "temperature": 1.5, "ignore_eos": True}
    reply = ask(client, [PROMPT, "a"], **asked)
    texts = [choice["text"] for choice in reply["choices"]]
    assert [choice["index"] for choice in reply["choices"]] == list(range(6))
    assert len(set(texts)) == 6
    assert texts[3:] == [choice["text"] for choice in ask(client, "a", **asked)["choices"]]
    assert reply["usage"]["completion_tokens"] == 6 * 16


def test_prompt_tokens_count_once_whatever_the_number_of_choices(client: Client) -> None:
    one, three = (ask(client, PROMPT, n=n)["usage"]["prompt_tokens"] for n in (1, 3))
    assert one == three


def test_the_second_time_a_prompt_comes_it_is_cached_unless_its_salt_is_another(client: Client) -> None:
    def cached(**body: Any) -> int:
        usage = ask(client, "in the cached in", max_tokens=1, **body)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one") > 0
    assert cached(cache_salt="two") == 0


def test_a_stop_text_ends_the_text_and_is_told(client: Client) -> None:
    whole = ask(client, max_tokens=12, ignore_eos=True)["choices"][0]["text"]
    stop = whole[3:5]
    [choice] = ask(client, max_tokens=12, ignore_eos=True, stop=[stop, "never"])["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_token_ids_are_returned_where_they_are_asked_for(client: Client, byte_tokenizer: Tokenizer) -> None:
    [choice] = ask(client, return_token_ids=True, max_tokens=5, ignore_eos=True)["choices"]
    assert choice["prompt_token_ids"] == byte_tokenizer.encode(PROMPT)
    assert len(choice["token_ids"]) == 5
    assert byte_tokenizer.decode(choice["token_ids"]) == choice["text"]
    assert "token_ids" not in ask(client)["choices"][0]


def test_what_the_model_puts_before_a_text_can_be_left_out(client: Client) -> None:
    with_first, without = (
        ask(client, max_tokens=0, add_special_tokens=adds)["usage"]["prompt_tokens"] for adds in (True, False)
    )
    assert with_first == without + 1


def test_an_empty_text_is_continued_as_a_text_that_begins(client: Client) -> None:
    assert ask(client, "")["usage"]["prompt_tokens"] == 1
    assert ask(client, "", add_special_tokens=False)["usage"]["prompt_tokens"] == 1


# -- echo and log-probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 1, 3])
@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_an_echoed_prompt_comes_first_in_text_and_log_probabilities(
    client: Client, byte_tokenizer: Tokenizer, as_ids: bool, logprobs: int | None, max_tokens: int
) -> None:
    ids = byte_tokenizer.encode(PROMPT)
    asked = {"max_tokens": max_tokens, "logprobs": logprobs, "ignore_eos": True}
    [plain] = ask(client, **asked)["choices"]
    [choice] = ask(client, ids if as_ids else PROMPT, echo=True, **asked)["choices"]
    assert choice["text"] == PROMPT + plain["text"]
    assert choice["finish_reason"] == "length"
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    found, own = choice["logprobs"], plain["logprobs"] or {"token_logprobs": [], "tokens": []}
    assert {len(values) for values in found.values()} == {len(ids) + max_tokens}
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert found["token_logprobs"][len(ids) :] == own["token_logprobs"]
    assert found["tokens"][len(ids) :] == own["tokens"]
    assert "".join(found["tokens"][1:]).startswith(PROMPT)
    for value, top in zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True):
        assert value in top.values()
        assert max(1, logprobs) <= len(top) <= logprobs + 1


def test_scores_are_the_same_cold_and_cached_alone_and_in_a_batch(
    client: Client, byte_tokenizer: Tokenizer
) -> None:
    context = byte_tokenizer.encode("in the beginning a cat")
    tails = [byte_tokenizer.encode(tail, bos=False) for tail in (" the", " a hat", " in it")]
    prompts = [context + tail for tail in tails]
    lengths = [len(context)] * len(prompts)
    asked = {"echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
    cold = [
        scores(ask(client, prompt, **asked, cache_salt=f"{i}"), lengths[:1])
        for i, prompt in enumerate(prompts)
    ]
    together = ask(client, prompts, **asked, cache_salt="together")
    again = ask(client, prompts, **asked, cache_salt="together")
    many = ask(client, prompts, **{**asked, "logprobs": 4}, cache_salt="many")
    assert scores(together, lengths) == [one for [one] in cold]
    assert scores(again, lengths) == scores(together, lengths) == scores(many, lengths)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= sum(map(len, prompts)) - len(prompts)


def test_a_continuation_is_greedy_exactly_if_the_model_would_write_it(
    client: Client, byte_tokenizer: Tokenizer
) -> None:
    context = byte_tokenizer.encode("the cat")
    own = ask(client, context, max_tokens=5, ignore_eos=True, return_token_ids=True)["choices"][0][
        "token_ids"
    ]
    for place in range(len(own)):
        other = [*own[:place], own[place] + 1 if own[place] < 200 else own[place] - 1, *own[place + 1 :]]
        reply = ask(client, [context + own, context + other], echo=True, logprobs=1, max_tokens=1)
        [greedy, changed] = scores(reply, [len(context)] * 2)
        assert greedy[1]
        assert not changed[1]


def test_choices_of_an_echoed_prompt_each_have_its_log_probabilities(client: Client) -> None:
    asked = {"echo": True, "logprobs": 1, "n": 2, "max_tokens": 2, "temperature": 1.0, "ignore_eos": True}
    first, second = ask(client, **asked)["choices"]
    assert len(first["logprobs"]["tokens"]) == len(second["logprobs"]["tokens"])
    assert first["logprobs"]["token_logprobs"][:-2] == second["logprobs"]["token_logprobs"][:-2]


def test_the_log_tells_of_tokens_and_ends_but_of_no_text(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "radixlm.server")
    for stream in (False, True):
        client.post("/v1/completions", json={"prompt": "secret in", "max_tokens": 2, "stream": stream})
    ids = len("secret ") + len(["<bos>", "in"])
    for record in caplog.records[-2:]:
        fields = record.__dict__["fields"]
        assert (fields["prompt_tokens"], fields["completion_tokens"]) == (ids, 2)
        assert fields["finish_reason"] == "length"
        assert "secret" not in str(fields)


# -- streams ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"n": 3, "temperature": 1.4, "seed": 3},
        {"echo": True},
        {"echo": True, "logprobs": 2, "max_tokens": 4},
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        {"logprobs": 0, "n": 2, "temperature": 1.4, "seed": 9},
        {"return_token_ids": True, "temperature": 1.4, "seed": 4, "max_tokens": 30},
        {"max_tokens": 0},
        {"stop": ["a", "e", "\n"], "temperature": 1.4, "seed": 6, "max_tokens": 40},
        {"regex": "(yes|no)!", "logprobs": 1},
    ],
    ids=str,
)
def test_a_stream_put_together_is_the_reply_in_one_piece(client: Client, body: dict[str, Any]) -> None:
    prompts = [PROMPT, "a"]
    whole = ask(client, prompts, **body)
    found = put_together(chunks(client, prompts, **body))
    names = ("text", "logprobs", "finish_reason", "token_ids", "prompt_token_ids")
    for choice in whole["choices"]:
        expected = {name: choice[name] for name in names if name in choice}
        assert found.pop(choice["index"]) == expected
    assert not found


def test_usage_comes_last_without_choices_and_is_null_before(client: Client) -> None:
    options = {"include_usage": True}
    *others, last = chunks(client, [PROMPT, "a"], stream_options=options)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == ask(client, [PROMPT, "a"])["usage"]["completion_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert others
    for chunk in others:
        assert chunk["usage"] is None
        assert {name: chunk[name] for name in ("id", "object", "created", "model")} == {
            name: last[name] for name in ("id", "object", "created", "model")
        }
    assert all("usage" not in chunk for chunk in chunks(client))
    continuous = chunks(client, stream_options={**options, "continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in continuous] == sorted(
        chunk["usage"]["completion_tokens"] for chunk in continuous
    )


def test_a_stream_that_is_refused_is_an_ordinary_error(client: Client) -> None:
    reply = client.post("/v1/completions", json={"prompt": [5000], "stream": True})
    assert reply.status_code == 400
    assert "5000 is not in the vocabulary" in reply.json()["error"]["message"]


def test_a_stream_that_is_aborted_ends_with_an_error(byte_tokenizer: Tokenizer) -> None:
    face = ScriptedFace(byte_tokenizer, lambda _: "a text of some length", hold=2)
    body = {"prompt": ["a", "b"], "stream": True}
    with (
        running_server(face) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as client,
        client.stream("POST", "/v1/completions", json=body) as reply,
    ):
        lines = reply.iter_lines()
        assert "choices" in next(lines)
        assert client.post("/abort_request", json={"abort_all": True}).status_code == 200
        *_, error, done = [line for line in lines if line]
    assert json.loads(error.removeprefix("data: "))["error"]["message"] == "the request was aborted"
    assert done == "data: [DONE]"


# -- structure -------------------------------------------------------------------------------------------

_DIGIT = r"[0-9]\.[0-9]"


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        ({"regex": _DIGIT}, _DIGIT),
        ({"guided_regex": _DIGIT}, _DIGIT),
        ({"structured_outputs": {"regex": _DIGIT}}, _DIGIT),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"ebnf": 'root ::= "up" | "down"'}, "up|down"),
        ({"guided_grammar": 'start: "up" | "down"'}, "up|down"),
        ({"json_schema": '{"enum": ["a", 1]}'}, '"a"|1'),
        ({"guided_json": {"enum": ["a", 1]}}, '"a"|1'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["a", 1]}}}},
            '"a"|1',
        ),
        ({"response_format": {"type": "json_object"}, "max_tokens": 1}, r"\{"),
    ],
    ids=str,
)
def test_the_form_that_is_asked_for_is_kept(client: Client, body: dict[str, Any], pattern: str) -> None:
    [choice] = ask(client, **body)["choices"]
    assert re.fullmatch(pattern, choice["text"])
    assert re.fullmatch(pattern, put_together(chunks(client, **body))[0]["text"])


def test_a_strict_schema_that_cannot_be_enforced_is_refused(client: Client) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    named = {"name": "all_differ", "schema": schema, "strict": True}
    asked = {"type": "json_schema", "json_schema": named}
    assert "uniqueItems" in refused(client, response_format=asked)
    named["strict"] = False
    assert ask(client, response_format=asked, max_tokens=1)["choices"][0]["text"] == "["


def test_a_bad_pattern_is_refused_and_the_server_goes_on(client: Client) -> None:
    assert "regex" in refused(client, regex="(")
    assert "regex" in refused(client, regex="(", stream=True)
    assert ask(client)["choices"]


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": None}, "prompt must be text, token ids or a list of either, got None"),
        ({"prompt": []}, "prompt must be text, token ids or a list of either, got []"),
        ({"prompt": {"text": "a"}}, "prompt must be text"),
        ({"prompt": ["a", 1]}, "prompt[1] must be text or a list of token ids, got 1"),
        ({"prompt": [1, "a"]}, "prompt[1] must be a token id, got 'a'"),
        ({"prompt": [[1], []]}, "prompt[1] must be text or a list of token ids, got []"),
        ({"prompt": [1, -2]}, "prompt[1] must be a token id, got -2"),
        ({"prompt": [1, True]}, "prompt[1] must be a token id, got True"),
        ({"prompt": [1.0]}, "prompt[0] must be text or a list of token ids, got 1.0"),
        ({"prompt": [1 << 40]}, "prompt[0] must be a token id"),
        ({"prompt": ["a"] * 41}, "prompt may hold 40 prompts, got 41"),
        ({"prompt": ["a"] * 21, "n": 2}, "a request may have 40 choices in all, got 21 prompts with n 2"),
        ({"n": 17}, "n must be at most 16, got 17"),
        ({"n": 10**9}, "n must be an integer from 1 to 1024"),
        ({"echo": "yes"}, "echo must be true or false, got 'yes'"),
        ({"stream": 1}, "stream must be true or false, got 1"),
        ({"best_of": 4}, "best_of must be n (1)"),
        ({"suffix": "end"}, "suffix is not supported"),
        ({"logprobs": 21}, "logprobs must be at most 20"),
        ({"prompt": "a" * 400}, "a prompt has 401 tokens, but context and pool allow 256"),
        ({"logit_bias": {"99999": 1}}, "logit_bias must hold token ids below"),
        ({"stream_options": {"include_usage": True}}, "stream_options goes with stream"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_body_is_a_400_that_says_what_is_allowed(
    client: Client, body: dict[str, Any], says: str
) -> None:
    assert says in refused(client, **body)


def test_more_log_probabilities_than_memory_should_hold_are_refused(byte_tokenizer: Tokenizer) -> None:
    face = ScriptedFace(byte_tokenizer, lambda _: "text", max_length=200_000)
    with (
        running_server(face) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as client,
    ):
        says = refused(client, prompt=[[5] * 50_000] * 2, echo=True, logprobs=20)
    assert says == "echo with logprobs may ask for 2000000 log-probabilities of prompts, got 2100000"
    assert not face.requests


def test_a_caller_who_wants_one_answer_is_refused_a_stream(local_engine: LocalEngine) -> None:
    async def ask_twice() -> None:
        settings, metrics = ServerSettings(), ServerMetrics(local_engine)
        service = Service(local_engine, settings, metrics)
        context = ServerContext(service, settings, metrics, "tiny")
        body: dict[str, object] = {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True}
        reply = await answer(context, body, "")
        assert reply["usage"]
        with pytest.raises(InvalidRequest, match="stream must be false"):
            await answer(context, body | {"stream": True}, "")

    asyncio.run(ask_twice())


def test_a_model_that_is_not_served_is_a_404(client: Client) -> None:
    reply = client.post("/v1/completions", json={"prompt": "a", "model": "gpt-4"})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert ask(client, model="org/tiny")["choices"]


def test_openapi_describes_the_body(client: Client) -> None:
    route = client.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["prompt"]
    assert {"prompt", "echo", "temperature", "response_format", "cache_salt"} <= set(schema["properties"])
