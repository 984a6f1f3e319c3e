"""/v1/chat/completions over HTTP: prompts, answers, tools, reasoning, streams that are the same as whole
replies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidRequest, RequestFailed
from radixlm.runtime.server.chat import answer
from radixlm.runtime.server.chat_body import ChatCall, parse
from radixlm.runtime.server.chat_reply import ChoiceChunks, reply_of
from radixlm.runtime.server.chat_tools import plan_of
from radixlm.runtime.server.context import ServerContext
from radixlm.runtime.server.engine_face import EngineFace, LocalEngine
from radixlm.runtime.server.failures import Aborted
from radixlm.runtime.server.metrics import ServerMetrics
from radixlm.runtime.server.reasoning import Start
from radixlm.runtime.server.service import Service
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from radixlm.runtime.types import Event
from testkit.byte_tokenizer import EOS_ID, build_byte_tokenizer, save_byte_tokenizer
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace
from testkit.tiny_model import byte_llama, save_tiny

Json = dict[str, Any]

TOOLS_TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}<tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
SILENT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
THINKING_TEMPLATE = f"{TOOLS_TEMPLATE}{{% if add_generation_prompt %}}{SILENT}{{% endif %}}"
USER = [{"role": "user", "content": "the weather in Oslo"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


class Talk:
    """A client of a server; of a scripted one, what it says next."""

    def __init__(self, client: httpx.Client, face: EngineFace) -> None:
        self._client, self.face, self.said = client, face, ""

    @property
    def asked(self) -> Any:
        """The last request that the scripted engine got."""
        assert isinstance(self.face, ScriptedFace)
        return self.face.requests[-1]

    @property
    def prompt(self) -> str:
        return self.face.tokenizer.decode(self.asked.prompt_ids, False)

    def post(self, messages: object, **body: Any) -> httpx.Response:
        body = {"messages": messages, "temperature": 0, **body}
        return self._client.post("/v1/chat/completions", json=body)

    def ask(self, messages: object = USER, said: str = "", **body: Any) -> Json:
        self.said = said
        reply = self.post(messages, **body)
        assert reply.status_code == 200, reply.text
        found: Json = reply.json()
        return found

    def choice(self, messages: object = USER, said: str = "", **body: Any) -> Json:
        [found] = self.ask(messages, said, **body)["choices"]
        return dict(found)

    def tokenized(self, messages: object, **body: Any) -> list[int]:
        reply = self._client.post("/tokenize", json={"messages": messages, **body})
        assert reply.status_code == 200, reply.text
        found: list[int] = reply.json()["tokens"]
        return found

    def refused(self, messages: object = USER, status: int = 400, **body: Any) -> str:
        reply = self.post(messages, **body)
        assert reply.status_code == status, reply.text
        return str(reply.json()["error"]["message"])

    def chunks(self, messages: object = USER, said: str = "", **body: Any) -> list[Json]:
        """Of a stream, which ends with [DONE]."""
        self.said = said
        reply = self.post(messages, stream=True, **body)
        assert reply.status_code == 200, reply.text
        lines = reply.text.removesuffix("\n\n").split("\n\n")
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def put_together(chunks: list[Json]) -> list[Json]:
    """The choices of a stream as they are in one piece. The role comes first, and an end ends it."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            delta = part["delta"]
            if part["index"] not in choices:
                assert delta == {"role": "assistant", "content": ""}
                message = {"role": "assistant", "content": "", "refusal": None}
                choices[part["index"]] = {"index": part["index"], "message": message, "finish_reason": None}
                choices[part["index"]]["logprobs"] = None
                continue
            whole = choices[part["index"]]
            assert whole["finish_reason"] is None
            message = whole["message"]
            for name in ("content", "reasoning_content"):
                if name in delta:
                    assert delta[name]
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    assert set(call) == {"index", "id", "type", "function"}
                    calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                    assert call["function"]["arguments"] == ""
                else:
                    assert set(call) == {"index", "function"}
                    assert call["index"] == len(calls) - 1
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
            if part["logprobs"]:
                whole["logprobs"] = whole["logprobs"] or {"content": [], "refusal": None}
                whole["logprobs"]["content"] += part["logprobs"]["content"]
            if "token_ids" in part:
                whole.setdefault("token_ids", []).extend(part["token_ids"])
            whole["finish_reason"] = part["finish_reason"]
            if part["finish_reason"]:
                whole["stop_reason"] = part["stop_reason"]
                if message.get("tool_calls"):
                    message["content"] = message["content"] or None
    return [choices[index] for index in sorted(choices)]


def without_ids(choices: list[Json]) -> list[Json]:
    """Ids of calls are new each time."""
    for choice in choices:
        for call in choice["message"].get("tool_calls", ()):
            assert call.pop("id")
    return choices


def same_in_both_ways(talk: Talk, messages: object = USER, said: str = "", **body: Any) -> Json:
    """The only choice, which is the same in one piece and in chunks."""
    whole = without_ids(talk.ask(messages, said, **body)["choices"])
    streamed = without_ids(put_together(talk.chunks(messages, said, **body)))
    assert streamed == whole
    return whole[0]


@contextmanager
def talking(engine: EngineFace, settings: ServerSettings | None = None) -> Iterator[Talk]:
    with (
        running_server(engine, settings) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as client,
    ):
        yield Talk(client, engine)


@contextmanager
def scripted(tokenizer: Tokenizer, max_length: int = 4096, **settings: Any) -> Iterator[Talk]:
    talks: list[Talk] = []
    face = ScriptedFace(tokenizer, lambda _: talks[0].said, max_length=max_length)
    with talking(face, ServerSettings(served_model_name="tiny", **settings)) as talk:
        talks.append(talk)
        yield talk


@pytest.fixture(scope="module")
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def plain(servers: ExitStack) -> Talk:
    """Of a template without tools."""
    return servers.enter_context(scripted(build_byte_tokenizer()))


@pytest.fixture(scope="module")
def tools(servers: ExitStack) -> Talk:
    return servers.enter_context(scripted(build_byte_tokenizer(chat_template=TOOLS_TEMPLATE)))


@pytest.fixture(scope="module")
def thinking(servers: ExitStack) -> Talk:
    return servers.enter_context(scripted(build_byte_tokenizer(chat_template=THINKING_TEMPLATE)))


# -- prompts ---------------------------------------------------------------------------------------------


def test_the_prompt_is_what_the_template_writes_and_no_more(plain: Talk) -> None:
    tokenizer = plain.face.tokenizer
    reply = plain.ask(return_token_ids=True)
    assert plain.asked.prompt_ids == tuple(tokenizer.apply_chat_template(USER))
    assert plain.asked.prompt_ids == tuple(tokenizer.encode(tokenizer.render_chat(USER), bos=False))
    assert reply["prompt_token_ids"] == list(plain.asked.prompt_ids)


def test_control_tokens_that_are_typed_stay_text(plain: Talk) -> None:
    plain.ask([{"role": "user", "content": [{"type": "text", "text": "an <eos> and <bos>"}]}])
    assert plain.prompt == "<bos>[user] an <eos> and <bos><eos>\n[assistant] "
    assert plain.asked.prompt_ids.count(EOS_ID) == 1


def test_a_long_conversation_is_answered_if_there_is_room_for_it(plain: Talk) -> None:
    messages = [{"role": "user", "content": "x" * 30_000}]
    reason = plain.refused(messages)
    assert re.match("a text of 300.. characters can never fit: context and pool hold 4096 tokens", reason)
    with scripted(build_byte_tokenizer(), max_length=40_000) as talk:
        assert talk.ask(messages)["usage"]["prompt_tokens"] == 30_022


def test_malformed_messages_are_a_400_with_the_reason(plain: Talk) -> None:
    assert "messages must be a list" in plain.refused(None)
    assert "messages must not be empty" in plain.refused([])
    assert "role robot is not supported" in plain.refused([{"role": "robot", "content": ""}])
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert "a part that is not text" in plain.refused([{"role": "user", "content": [image]}])
    assert "messages[0].content must be text" in plain.refused([{"role": "user", "content": None}])


def test_variables_reach_the_template(thinking: Talk) -> None:
    thinking.ask(said="hi", chat_template_kwargs={"enable_thinking": False})
    assert thinking.prompt.endswith("[assistant] <think>\n\n</think>\n\n")
    thinking.ask(said="hi", add_generation_prompt=False)
    assert thinking.prompt.endswith("<eos>\n")


def test_the_last_message_can_be_continued(plain: Talk) -> None:
    messages = [*USER, {"role": "assistant", "content": "It is "}]
    found = same_in_both_ways(plain, messages, " sunny", continue_final_message=True)
    assert plain.prompt.endswith("[assistant] It is ")
    assert found["message"]["content"] == " sunny"


# -- answers ---------------------------------------------------------------------------------------------


def test_an_answer_has_the_shape_that_clients_know(plain: Talk) -> None:
    reply = plain.ask(said="It is sunny.")
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-")
    assert reply["model"] == "tiny"
    [choice] = reply["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "It is sunny.", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    prompt = len(plain.asked.prompt_ids)
    assert reply["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 13,
        "total_tokens": prompt + 13,
        "prompt_tokens_details": {"cached_tokens": prompt // 2},
    }


def test_a_streamed_answer_is_the_same(plain: Talk) -> None:
    for said in ("", "x", "Sunny, и \N{SUN BEHIND CLOUD}.", "<tool_call>{}"):
        assert same_in_both_ways(plain, said=said)["message"]["content"] == said
    found = same_in_both_ways(plain, said="It is sunny.", n=3, max_tokens=5)
    assert found["finish_reason"] == "length"


def test_a_stop_text_ends_an_answer_and_is_told(plain: Talk) -> None:
    found = same_in_both_ways(plain, said="one, two, three", stop=[", three", "four"])
    assert found["message"]["content"] == "one, two"
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", ", three")


def test_chunks_of_a_stream_belong_together(plain: Talk) -> None:
    found = plain.chunks(said="sunny", n=2, stream_options={"include_usage": True}, return_token_ids=True)
    assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in found}) == 1
    assert [chunk["choices"] == [] for chunk in found] == [False] * (len(found) - 1) + [True]
    assert [chunk["usage"] is None for chunk in found] == [True] * (len(found) - 1) + [False]
    assert found[-1]["usage"] == plain.ask(said="sunny", n=2)["usage"]
    assert found[0]["prompt_token_ids"] == list(plain.asked.prompt_ids)
    assert not any("prompt_token_ids" in chunk for chunk in found[1:])
    finishes = [part for chunk in found for part in chunk["choices"] if part["finish_reason"]]
    assert sorted(part["index"] for part in finishes) == [0, 1]


def test_log_probabilities_have_bytes_and_alternatives(plain: Talk) -> None:
    found = same_in_both_ways(plain, said="и a", logprobs=True, top_logprobs=2, return_token_ids=True)
    entries = found["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "и a<eos>"
    assert [entry["token"] for entry in entries] == ["и", " a", "<eos>"]
    assert all(entry["logprob"] == -0.25 for entry in entries)
    assert [top["logprob"] for top in entries[0]["top_logprobs"]] == [-0.25, -0.5]
    assert len(found["token_ids"]) == len(entries)
    assert same_in_both_ways(plain, said="a", logprobs=True)["logprobs"]["content"][0]["top_logprobs"] == []
    named = plain.choice(said="a", logprobs=True, return_tokens_as_token_ids=True)["logprobs"]["content"]
    assert named[-1]["token"] == f"token_id:{EOS_ID}"


def test_a_form_of_the_answer_is_a_grammar(plain: Talk) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY, "strict": True}}
    for asked, kind in (({"response_format": form}, "json"), ({"regex": "a+"}, "regex")):
        plain.ask(said="{}", **asked)
        structure = plain.asked.sampling.structure
        assert (structure.kind, structure.relaxed, structure.after) == (kind, False, None)
    plain.ask(said="{}", response_format={"type": "text"})
    assert plain.asked.sampling.structure is None


# -- tools -----------------------------------------------------------------------------------------------


def test_calls_are_told_apart_from_text(tools: Talk) -> None:
    found = same_in_both_ways(tools, said=f"I look.\n{OSLO}\n{NOW}", tools=[WEATHER, CLOCK])
    assert found["finish_reason"] == "tool_calls"
    assert found["message"]["content"] == "I look."
    assert found["message"]["tool_calls"] == [
        {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    assert same_in_both_ways(tools, said=OSLO, tools=[WEATHER])["message"]["content"] is None


def test_every_call_has_an_id_of_its_own(tools: Talk) -> None:
    calls = tools.choice(said=OSLO + NOW, tools=[WEATHER, CLOCK])["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") for call in calls)


def test_what_only_looks_like_a_call_is_text(tools: Talk) -> None:
    for said in (
        "no call",
        "a <tool_call",
        "<tool_call>\nis how",
        OSLO.replace("weather", "unknown"),
        OSLO.replace("arguments", "args"),
        " \n",
    ):
        found = same_in_both_ways(tools, said=said, tools=[WEATHER])
        assert (found["message"]["content"], found["finish_reason"]) == (said, "stop")
        assert "tool_calls" not in found["message"]
    broken = OSLO.replace('"Oslo"', "Oslo")
    assert tools.choice(said=broken, tools=[WEATHER])["message"]["content"] == broken


def test_a_call_is_text_where_no_tool_is_offered(tools: Talk) -> None:
    for asked in ({}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}):
        assert same_in_both_ways(tools, said=OSLO, **asked)["message"]["content"] == OSLO
        assert "weather <tool_call>" not in tools.prompt
        assert tools.asked.sampling.structure is None


def test_a_call_that_was_cut_off_keeps_what_there_is(tools: Talk) -> None:
    shown = OSLO[: OSLO.index("}")]
    most = len(tools.face.tokenizer.encode(shown, bos=False))
    found = same_in_both_ways(tools, said=OSLO, tools=[WEATHER], max_tokens=most)
    assert found["finish_reason"] == "length"
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"'


def test_arguments_are_streamed_as_they_come(tools: Talk) -> None:
    found = tools.chunks(said=OSLO, tools=[WEATHER])
    parts = [part for chunk in found for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert len(parts) == 1 + len('{"city": "Oslo"}')
    assert [part["index"] for part in parts] == [0] * len(parts)


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        ({}, "triggered_tags"),
        ({"parallel_tool_calls": False}, "triggered_tags"),
        ({"tool_choice": "required"}, "tags_with_separator"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tags_with_separator"),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tags_with_separator"),
        ({"response_format": {"type": "json_object"}}, "or"),
    ],
)
def test_calls_are_held_by_a_grammar(tools: Talk, asked: Json, form: str) -> None:
    tools.ask(said=NOW, tools=[WEATHER, CLOCK], **asked)
    structure = tools.asked.sampling.structure
    found = json.loads(structure.text)["format"]
    assert (structure.kind, found["type"]) == ("tags", form)
    calls = found["elements"][0] if form == "or" else found
    named = isinstance(asked.get("tool_choice"), dict)
    assert len(calls["tags"]) == (1 if named else 2)
    assert calls["stop_after_first"] == (named or asked.get("parallel_tool_calls") is False)


def test_another_form_of_the_answer_does_not_go_with_tools(tools: Talk) -> None:
    assert "regex does not go with tools" in tools.refused(tools=[WEATHER], regex="a")
    assert "choice does not go with" in tools.refused(tools=[WEATHER], tool_choice="required", choice=["a"])
    tools.ask(said="a", tools=[WEATHER], tool_choice="none", regex="a")


def test_earlier_calls_and_results_reach_the_template(tools: Talk) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "21 degrees <eos>"},
    ]
    tools.ask(messages, "Warm.", tools=[WEATHER])
    assert tools.prompt == (
        'weather <tool_call>[user] the weather in Oslo<eos>\n[assistant] {"city": "Oslo"}<eos>\n'
        "[tool] 21 degrees <eos><eos>\n[assistant] "
    )
    assert tools.asked.prompt_ids.count(EOS_ID) == 3


def test_a_template_without_tools_has_them_in_words(plain: Talk) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    results = [{"role": "tool", "tool_call_id": "1", "content": text} for text in ("noon", "night")]
    messages = [*USER, {"role": "assistant", "content": "So:", "tool_calls": [call]}, *results]
    found = same_in_both_ways(plain, messages, OSLO, tools=[WEATHER])
    assert found["finish_reason"] == "tool_calls"
    system, rest = plain.prompt.split("<eos>\n", 1)
    assert system.startswith("<bos>[system] You can call functions.")
    assert json.dumps(WEATHER["function"]) in system
    assert (
        '<tool_call>\n{"name": "function_name", "arguments": {"argument": "value"}}\n</tool_call>' in system
    )
    assert rest == (
        f"[user] the weather in Oslo<eos>\n[assistant] So:\n{NOW}<eos>\n"
        "[user] <tool_response>\nnoon\n</tool_response>\n<tool_response>\nnight\n</tool_response><eos>\n"
        "[assistant] "
    )
    plain.ask(
        [{"role": "system", "content": "Be kind."}, *messages], "x", tools=[WEATHER], tool_choice="none"
    )
    assert plain.prompt.startswith("<bos>[system] Be kind.<eos>\n[user]")
    plain.ask([{"role": "system", "content": "Be kind."}, *USER], "x", tools=[WEATHER])
    assert plain.prompt.startswith("<bos>[system] Be kind.\n\nYou can call functions.")


@pytest.mark.parametrize("talk", ["plain", "tools"])
def test_tokenize_tells_the_prompt_that_chat_sends(talk: str, request: pytest.FixtureRequest) -> None:
    found: Talk = request.getfixturevalue(talk)
    call = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "1", "content": "noon"}
    history = [*USER, {"role": "assistant", "content": "So:", "tool_calls": [call]}, result]
    for more in ({}, {"tools": [WEATHER, CLOCK]}, {"chat_template_kwargs": {"x": 1}}):
        found.ask(history, "x", **more)
        assert found.tokenized(history, **more) == list(found.asked.prompt_ids)


def test_arguments_that_no_template_can_write_stay_text(plain: Talk, tools: Talk) -> None:
    function = {"name": "weather", "arguments": '{"city": "\\ud800"}'}
    call = {"id": "1", "type": "function", "function": function}
    for talk in (plain, tools):
        talk.ask([*USER, {"role": "assistant", "content": "a", "tool_calls": [call]}, *USER], "x")
        assert "\\ud800" in talk.prompt


def test_a_form_that_is_not_known_is_refused_unless_a_call_is_forced() -> None:
    template = TOOLS_TEMPLATE.replace("<tool_call>", "<function=")
    with scripted(build_byte_tokenizer(chat_template=template)) as talk:
        assert "is not known here" in talk.refused(tools=[WEATHER])
        said = '{"name": "weather", "parameters": {"city": "Oslo"}}'
        found = same_in_both_ways(talk, said=said, tools=[WEATHER], tool_choice="required")
        assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'


def test_a_form_without_grammar_is_read_when_a_call_is_complete() -> None:
    with scripted(build_byte_tokenizer(chat_template=TOOLS_TEMPLATE), tool_parser="pythonic") as talk:
        found = same_in_both_ways(talk, said='[weather(city="Oslo")]', tools=[WEATHER])
        assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'
        assert talk.asked.sampling.structure is None
        two = "[clock(), weather(city='Oslo')]"
        found = same_in_both_ways(talk, said=two, tools=[WEATHER, CLOCK], parallel_tool_calls=False)
        assert [call["function"]["name"] for call in found["message"]["tool_calls"]] == ["clock"]
        for said in ("[weather(city=Oslo)]", "[weather("):
            assert same_in_both_ways(talk, said=said, tools=[WEATHER])["message"]["content"] == said
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        assert "'weather' is strict, but no grammar describes" in talk.refused(tools=[strict])
        reason = talk.refused(tools=[WEATHER], response_format={"type": "json_object"})
        assert "json_schema does not go with tools for this model" in reason
        forced = '{"name": "weather", "parameters": {"city": "Oslo"}}'
        found = same_in_both_ways(talk, said=forced, tools=[strict], tool_choice="required")
        assert found["finish_reason"] == "tool_calls"
        assert talk.asked.sampling.structure is not None


def test_a_marker_that_is_a_control_token_is_shown_to_the_parser() -> None:
    template = TOOLS_TEMPLATE.replace("<tool_call>", "[TOOL_CALLS][")
    fast = build_byte_tokenizer(chat_template=template)._fast
    fast.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    with scripted(Tokenizer(fast)) as talk:
        said = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]'
        found = talk.choice(said=said, tools=[WEATHER])
        assert talk.asked.sampling.skip_special_tokens is False
        [call] = found["message"]["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Oslo"}'
        assert len(call["id"]) == 9


# -- reasoning -------------------------------------------------------------------------------------------

THOUGHT = "<think>\nHot or cold?\n</think>\n\n"


def test_reasoning_is_told_apart_from_the_answer(thinking: Talk) -> None:
    found = same_in_both_ways(thinking, said=f"{THOUGHT}Hot.")
    assert found["message"]["reasoning_content"] == "Hot or cold?"
    assert found["message"]["content"] == "Hot."
    cut = same_in_both_ways(thinking, said=THOUGHT, max_tokens=14)
    assert (cut["message"]["content"], cut["message"]["reasoning_content"]) == ("", "Hot or c")
    silent = {"chat_template_kwargs": {"enable_thinking": False}}
    assert same_in_both_ways(thinking, said=THOUGHT, **silent)["message"]["content"] == THOUGHT


def test_calls_are_looked_for_behind_the_reasoning_only(thinking: Talk) -> None:
    said = f"<think>\n{OSLO}?\n</think>\n\n{NOW}"
    found = same_in_both_ways(thinking, said=said, tools=[WEATHER, CLOCK])
    assert found["message"]["reasoning_content"] == f"{OSLO}?"
    assert [call["function"]["name"] for call in found["message"]["tool_calls"]] == ["clock"]
    assert thinking.asked.sampling.structure.after == "</think>"


def test_a_call_without_the_reasoning_that_its_grammar_waits_for_is_read_when_it_is_complete(
    thinking: Talk,
) -> None:
    broken = OSLO.replace('"Oslo"', "Oslo")
    assert same_in_both_ways(thinking, said=broken, tools=[WEATHER])["message"]["content"] == broken
    assert same_in_both_ways(thinking, said=OSLO, tools=[WEATHER])["finish_reason"] == "tool_calls"
    behind_text = {"tools": [WEATHER], "grammar_after": "Now:", "response_format": {"type": "json_object"}}
    assert same_in_both_ways(thinking, said=broken, **behind_text)["message"]["content"] == broken


def test_a_form_is_that_of_the_answer_and_not_of_the_reasoning(thinking: Talk) -> None:
    thinking.ask(said=THOUGHT, regex="a+")
    assert thinking.asked.sampling.structure.after == "</think>"
    thinking.ask(said="a", regex="a+", chat_template_kwargs={"enable_thinking": False})
    assert thinking.asked.sampling.structure.after is None
    thinking.ask(said="a", regex="a+", grammar_after="Now:")
    assert thinking.asked.sampling.structure.after == "Now:"


# -- a real engine ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, servers: ExitStack) -> Iterator[Talk]:
    """A random model, which says anything that is not forbidden."""
    folder: Path = save_tiny(byte_llama(), tmp_path_factory.mktemp("tools"))
    save_byte_tokenizer(folder, chat_template=TOOLS_TEMPLATE)
    engine = Engine(str(folder), page_size=4, num_pages=256)
    local = LocalEngine(engine)
    with talking(local) as talk:
        yield talk
    local.close()
    engine.cache.check()
    assert engine.cache.leased_pages == 0


HOT = {"temperature": 1.5, "seed": 3}


def arguments_of(choice: Json) -> list[tuple[str, Any]]:
    calls = choice["message"].get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_is_made_and_is_right(tiny: Talk, seed: int) -> None:
    asked = {"tools": [WEATHER, CLOCK], "tool_choice": "required", "parallel_tool_calls": False}
    found = same_in_both_ways(tiny, **asked, **HOT | {"seed": seed})
    assert found["finish_reason"] == "tool_calls"
    [(name, arguments)] = arguments_of(found)
    if name == "weather":
        jsonschema.validate(arguments, CITY)
    else:
        assert (name, arguments) == ("clock", {})


def test_the_named_tool_is_called_once(tiny: Talk) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    found = tiny.choice(tools=[CLOCK, WEATHER], tool_choice=named, **HOT)
    assert [name for name, _ in arguments_of(found)] == ["weather"]


def test_an_answer_in_json_or_a_call(tiny: Talk) -> None:
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 1}}}}
    for seed in range(4):
        found = tiny.choice(tools=[CLOCK], parallel_tool_calls=False, **asked, **HOT | {"seed": seed})
        assert found["message"]["content"] == "1" or arguments_of(found) == [("clock", {})]


def test_a_schema_that_masks_cannot_hold_is_refused_if_it_is_strict(tiny: Talk) -> None:
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 2}
    for schema in (unique, {"type": "dict"}):
        function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
        asked = {"tool_choice": "required", "max_tokens": 60}
        found = tiny.choice(tools=[{"type": "function", "function": function}], **asked)
        assert found["message"]["tool_calls"][0]["function"]["name"] == "f"
        strict = {"type": "function", "function": {**function, "strict": True}}
        reason = tiny.refused(tools=[strict], **asked)
        assert reason.startswith("tools that are strict cannot be enforced as they are")


def test_tools_that_are_too_large_for_a_grammar_are_held_to_their_names(tiny: Talk) -> None:
    many = {f"key{i}": {"enum": [f"{i}" * 50]} for i in range(2000)}
    function = {"name": "f", "parameters": {"type": "object", "properties": many}}
    asked = {"tool_choice": "required", "max_tokens": 60}
    found = tiny.choice(tools=[{"type": "function", "function": function}], **asked)
    assert found["message"]["tool_calls"][0]["function"]["name"] == "f"
    strict = {"type": "function", "function": {**function, "strict": True}}
    assert "must be a text of 1 to 262,144 bytes" in tiny.refused(tools=[strict], **asked)


def test_n_choices_of_a_seed_are_the_same_again(tiny: Talk) -> None:
    asked = {"n": 3, "max_tokens": 12, "ignore_eos": True, **HOT}
    found = tiny.ask(**asked)["choices"]
    assert [choice["index"] for choice in found] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in found}) == 3
    assert put_together(tiny.chunks(**asked)) == found


def test_the_second_time_a_conversation_is_cached(tiny: Talk) -> None:
    cached = [
        tiny.ask([{"role": "user", "content": "again"}], max_tokens=1, cache_salt=salt)["usage"]
        for salt in ("a", "a", "b")
    ]
    assert [usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in cached] == [False, True, False]


def test_an_answer_ends_where_the_context_does(tiny: Talk) -> None:
    found = tiny.ask(ignore_eos=True)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] in (255, 256)


# -- ends ------------------------------------------------------------------------------------------------


def served(face: ScriptedFace) -> ServerContext:
    """In the event loop that is to use it."""
    settings, metrics = ServerSettings(), ServerMetrics(face)
    return ServerContext(Service(face, settings, metrics), settings, metrics, "tiny")


def test_an_abort_that_others_asked_for_is_an_error() -> None:
    async def run() -> list[object]:
        face = ScriptedFace(build_byte_tokenizer(), lambda _: "never ends", hold=2)
        context = served(face)
        asking = asyncio.ensure_future(answer(context, {"messages": USER}, ""))
        while not face.requests:
            await asyncio.sleep(0)
        context.service.abort_all()
        return await asyncio.gather(asking, return_exceptions=True)

    [found] = asyncio.run(run())
    assert isinstance(found, Aborted)


def test_an_answer_that_failed_is_an_error_whole_and_in_chunks() -> None:
    tokenizer = build_byte_tokenizer()

    async def parsed() -> ChatCall:
        return parse({"messages": USER}, served(ScriptedFace(tokenizer, lambda _: "")))

    call = asyncio.run(parsed())
    plan = plan_of(call, None, Start.BEHIND, tokenizer)
    failed = Event("r", 0, "text", finish_reason="error", error="not what was asked for")
    with pytest.raises(RequestFailed, match="not what was asked for"):
        ChoiceChunks(0, plan, call, tokenizer).chunks(failed)
    with pytest.raises(RequestFailed, match="not what was asked for"):
        reply_of({}, (), plan, call, tokenizer, [failed])


def test_a_caller_who_wants_one_answer_is_refused_a_stream() -> None:
    async def ask_twice() -> None:
        context = served(ScriptedFace(build_byte_tokenizer(), lambda _: "x"))
        reply: Any = await answer(context, {"messages": USER}, "")
        assert reply["choices"][0]["message"]["content"] == "x"
        with pytest.raises(InvalidRequest, match="stream must be false"):
            await answer(context, {"messages": USER, "stream": True}, "")

    asyncio.run(ask_twice())
