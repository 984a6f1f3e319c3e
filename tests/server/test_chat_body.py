"""Bodies of /v1/chat/completions: what fields come to, and what is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.server.chat_body import FIELDS, ChatCall, parse
from radixlm.runtime.server.context import ServerContext
from radixlm.runtime.server.failures import ModelNotFound
from radixlm.runtime.server.metrics import ServerMetrics
from radixlm.runtime.server.service import Service
from radixlm.runtime.server.settings import ServerSettings

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def context() -> ServerContext:
    """Of a server that runs nothing, and takes 500 tokens."""
    service = cast(Service, SimpleNamespace(engine=SimpleNamespace(max_length=500)))
    return ServerContext(service, ServerSettings(max_choices=8), cast(ServerMetrics, None), model="tiny")


def call(**body: Any) -> ChatCall:
    return parse({"messages": USER, **body}, context())


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def test_a_call_that_says_nothing_has_all_the_room_there_is() -> None:
    found = call()
    assert found.sampling.max_tokens == 500
    assert (found.choice, found.named, found.parallel, found.conversation.tools) == ("auto", None, True, ())
    assert (found.conversation.add_generation_prompt, found.conversation.continue_final, found.stream) == (
        True,
        False,
        False,
    )
    assert not found.offers_tools


def test_null_is_the_default_of_every_field() -> None:
    assert call(**dict.fromkeys({*FIELDS, "max_tokens", "stream", "model"} - {"messages"})) == call()


def test_unknown_fields_are_ignored() -> None:
    assert call(user="me", store=False, metadata={"a": 1}, service_tier="auto") == call()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("audio", {"voice": "x"}),
        ("web_search_options", {"a": 1}),
        ("chat_template", "{{ messages }}"),
        ("documents", [{"text": "x"}]),
        ("echo", True),
        ("best_of", 2),
        ("suffix", "x"),
        ("use_beam_search", True),
    ],
)
def test_what_would_change_the_answer_and_is_not_done_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field):
        call(**{field: value})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"modalities": ["text", "audio"]}, "modalities may be ['text'], got ['text', 'audio']"),
        ({"logprobs": 3}, "logprobs must be true or false, got 3"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be at most 20, got 21"),
        ({"n": 9}, "n must be at most 8, got 9"),
        ({"max_tokens": -1}, "max_tokens must be an integer of at least 0, got -1"),
        ({"stream_options": {"include_usage": True}}, "stream_options goes with stream"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs must be an object, got [1]"),
        ({"reasoning_effort": 5}, "reasoning_effort must be text, got 5"),
        ({"continue_final_message": "x"}, "continue_final_message must be true or false, got 'x'"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message needs add_generation_prompt to be false",
        ),
        ({"tools": {}}, "tools must be a list, got {}"),
        ({"tools": ["f"]}, "tools[0] must be an object, got 'f'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function must be an object, got None"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type must be 'function', got 'web_search'"),
        ({"tools": [tool("a b")]}, "tools[0].function.name must be 1 to 128 letters"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name must be there once, got 'f' again"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters must be an object, got []"),
        ({"tools": [tool(parameters={"type": "array"})]}, "parameters.type must be 'object', got 'array'"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict must be true or false, got 'yes'"),
        ({"tool_choice": "required"}, "tool_choice needs tools, got 'required' without any"),
        ({"tools": [tool()], "tool_choice": "any"}, "tool_choice must be 'auto', 'none', 'required' or"),
        ({"tools": [tool()], "tool_choice": {"type": "x"}}, "tool_choice must be 'auto'"),
        ({"tools": [tool()], "tool_choice": tool("g")}, "tool_choice must name one of the tools, got 'g'"),
        ({"tools": [tool()], "parallel_tool_calls": 1}, "parallel_tool_calls must be true or false, got 1"),
    ],
)
def test_a_wrong_value_is_named_and_quoted(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        call(**body)


def test_a_model_that_is_not_served_is_refused() -> None:
    with pytest.raises(ModelNotFound):
        call(model="gpt-4")


def test_tools_are_shown_as_they_came_and_called_by_their_schemas() -> None:
    shown = tool(parameters=SCHEMA, strict=True, description="x")
    [found] = call(tools=[shown]).conversation.tools
    assert call(tools=[shown]).conversation.tool_list == (shown,)
    assert (found.name, found.schema, found.strict) == ("f", SCHEMA, True)


@pytest.mark.parametrize(
    ("parameters", "added"),
    [
        (None, {"type": "object", "properties": {}, "additionalProperties": False}),
        (SCHEMA, {"additionalProperties": False}),
        ({"properties": {}}, {"type": "object", "additionalProperties": False}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        ({}, {"type": "object"}),
        ({**SCHEMA, "additionalProperties": True}, {}),
        ({**SCHEMA, "anyOf": [{"required": ["city"]}]}, {}),
        ({**SCHEMA, "patternProperties": {"x": {}}}, {}),
    ],
)
def test_a_tool_takes_what_it_declares(parameters: Any, added: dict[str, object]) -> None:
    [found] = call(tools=[tool(parameters=parameters)]).conversation.tools
    assert found.schema == {**(parameters or {}), **added}


def test_a_choice_of_tools_is_a_word_or_a_name() -> None:
    tools = [tool("f"), tool("g")]
    for value, expected in (
        (None, ("auto", None)),
        ("auto", ("auto", None)),
        ("none", ("none", None)),
        ("required", ("required", None)),
        ({"type": "function", "function": {"name": "g"}}, ("required", "g")),
        ({"type": "function", "name": "g"}, ("required", "g")),
    ):
        found = call(tools=tools, tool_choice=value)
        assert (found.choice, found.named) == expected
        assert found.offers_tools == (value != "none")


def test_variables_of_the_template_are_gathered() -> None:
    assert call(reasoning_effort="low").conversation.template_kwargs == {"reasoning_effort": "low"}
    both = call(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high", "x": 1})
    assert both.conversation.template_kwargs == {"reasoning_effort": "high", "x": 1}


def test_to_continue_a_message_needs_no_head_of_an_answer() -> None:
    found = call(continue_final_message=True)
    assert (found.conversation.continue_final, found.conversation.add_generation_prompt) == (True, False)
