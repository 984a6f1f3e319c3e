"""The openai package: tools, and answers of a given form."""

from __future__ import annotations

import json
from typing import Any

import openai
from checks import MODEL
from openai_common import CITY, CITY_FORMAT, GREEDY, QUESTION, WEATHER, City, client, named

TIME: Any = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}


def a_tool_that_is_required_is_called() -> None:
    found = client.chat.completions.create(
        messages=CITY, tools=[WEATHER, TIME], tool_choice="required", max_tokens=120, **GREEDY
    )
    [choice] = found.choices
    assert choice.finish_reason == "tool_calls", choice.finish_reason
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.type == "function"
        assert call.id
        _expect_call(call.function.name, call.function.arguments)


def a_tool_that_is_named_is_called() -> None:
    asked: dict[str, Any] = {"tools": [WEATHER, TIME], "tool_choice": named("get_weather")}
    found = client.chat.completions.create(messages=CITY, max_tokens=120, **asked, **GREEDY)
    [call] = found.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    _expect_call(call.function.name, call.function.arguments)
    assert found.choices[0].finish_reason in ("stop", "tool_calls")


def a_streamed_tool_call_is_the_same_call() -> None:
    asked: dict[str, Any] = {
        "messages": CITY,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 120,
    }
    whole = client.chat.completions.create(**asked, **GREEDY).choices[0].message.tool_calls
    assert whole
    calls: dict[int, dict[str, str]] = {}
    reasons = []
    for event in client.chat.completions.create(stream=True, **asked, **GREEDY):
        [choice] = event.choices
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for part in choice.delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            assert part.function is not None
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    assert reasons == ["tool_calls"]
    found = [(calls[index]["name"], calls[index]["arguments"]) for index in sorted(calls)]
    assert found == [
        (call.function.name, call.function.arguments) for call in whole if call.type == "function"
    ]
    assert all(call["id"] for call in calls.values())


def the_stream_helper_gathers_tool_calls() -> None:
    tool = openai.pydantic_function_tool(City)
    asked: dict[str, Any] = {"messages": CITY, "tools": [tool], "tool_choice": "required", "max_tokens": 120}
    with client.chat.completions.stream(**asked, **GREEDY) as stream:
        final = stream.get_final_completion()
    [call, *_] = final.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, City)


def tools_that_may_be_called_leave_an_answer_or_calls() -> None:
    found = client.chat.completions.create(messages=CITY, tools=[WEATHER], max_tokens=60, **GREEDY)
    message = found.choices[0].message
    assert message.content or message.tool_calls
    none = client.chat.completions.create(
        messages=CITY, tools=[WEATHER], tool_choice="none", max_tokens=20, **GREEDY
    )
    assert none.choices[0].message.content
    assert not none.choices[0].message.tool_calls


def the_result_of_a_tool_is_answered_to() -> None:
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Paris", "unit": "celsius"}'}  # type: ignore[assignment]
    messages: Any = [
        *CITY,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is 21 degrees in Paris."},
    ]
    found = client.chat.completions.create(messages=messages, tools=[WEATHER], max_tokens=30, **GREEDY)
    message = found.choices[0].message
    assert message.content or message.tool_calls


def a_python_type_is_parsed_from_the_answer() -> None:
    found = client.chat.completions.parse(messages=CITY, response_format=City, max_tokens=100, **GREEDY)
    city = found.choices[0].message.parsed
    assert isinstance(city, City)
    assert found.choices[0].finish_reason == "stop"


def a_python_type_is_parsed_from_a_stream() -> None:
    with client.chat.completions.stream(
        messages=CITY, response_format=City, max_tokens=100, **GREEDY
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)


def a_schema_and_plain_json_are_kept_to() -> None:
    asked: dict[str, Any] = {"messages": CITY, "max_tokens": 100}
    found = client.chat.completions.create(response_format=CITY_FORMAT, **asked, **GREEDY)
    City.model_validate_json(found.choices[0].message.content or "")
    plain = client.chat.completions.create(response_format={"type": "json_object"}, **asked, **GREEDY)
    if plain.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(plain.choices[0].message.content or ""), dict)


def extra_fields_of_other_engines_are_taken() -> None:
    wanted: list[tuple[dict[str, Any], Any]] = [
        ({"regex": "(yes|no)"}, ("yes", "no")),
        ({"guided_choice": ["red", "blue"]}, ("red", "blue")),
        ({"structured_outputs": {"choice": ["red", "blue"]}}, ("red", "blue")),
    ]
    for extra, allowed in wanted:
        found = client.chat.completions.create(messages=CITY, max_tokens=8, extra_body=extra, **GREEDY)
        assert found.choices[0].message.content in allowed, (extra, found.choices[0].message.content)
    sampled = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True}
    found = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=5, extra_body=sampled)
    assert found.usage is not None
    assert found.usage.completion_tokens == 5


def _expect_call(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    assert isinstance(found, dict)
    if name == "get_weather":
        assert sorted(found) == ["city", "unit"], arguments
        assert found["unit"] in ("celsius", "fahrenheit")
    else:
        assert name == "get_time"
