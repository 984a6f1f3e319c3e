"""LiteLLM, through its provider for endpoints like OpenAI's."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network

import litellm
from checks import KEY, MODEL, V1, main, raised
from pydantic import BaseModel, Field

litellm.telemetry = False
CHAT: dict[str, Any] = {
    "model": f"openai/{MODEL}",
    "api_base": V1,
    "api_key": KEY,
    "temperature": 0,
    "timeout": 60,
}
TEXT: dict[str, Any] = {**CHAT, "model": f"text-completion-openai/{MODEL}"}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
TOKENS = 8  # of the answer and its end
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str = Field(max_length=20)
    size: Literal["small", "large"]


def a_completion_answers() -> None:
    found = litellm.completion(messages=QUESTION, max_tokens=20, **CHAT)
    assert found.choices[0].message.content == ANSWER
    assert found.choices[0].finish_reason == "stop"
    assert found.usage.completion_tokens == TOKENS, found.usage
    assert found.usage.prompt_tokens_details.cached_tokens is not None


def a_stream_is_the_same_answer() -> None:
    events = list(
        litellm.completion(
            messages=QUESTION, max_tokens=20, stream=True, stream_options={"include_usage": True}, **CHAT
        )
    )
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == ANSWER
    rebuilt = litellm.stream_chunk_builder(events, messages=QUESTION)
    assert rebuilt.choices[0].message.content == ANSWER
    assert rebuilt.usage.completion_tokens == TOKENS, rebuilt.usage


async def an_asynchronous_stream_too() -> None:
    stream = await litellm.acompletion(messages=QUESTION, max_tokens=20, stream=True, **CHAT)
    assert "".join([event.choices[0].delta.content or "" async for event in stream]) == ANSWER


def a_text_is_continued() -> None:
    found = litellm.text_completion(prompt="The capital of France is", max_tokens=6, **TEXT)
    assert "Paris" in found.choices[0].text, found.choices[0].text
    events = litellm.text_completion(prompt="The capital of France is", max_tokens=6, stream=True, **TEXT)
    assert "".join(event.choices[0].text or "" for event in events) == found.choices[0].text


def several_texts_are_continued() -> None:
    prompts = ["The capital of France is", "One, two,"]
    found = litellm.text_completion(prompt=prompts, max_tokens=4, logprobs=1, **TEXT)
    assert [choice.index for choice in found.choices] == [0, 1]
    assert all(len(choice.logprobs.token_logprobs) == 4 for choice in found.choices)


def a_tool_is_called() -> None:
    asked: dict[str, Any] = {
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 80,
    }
    message = litellm.completion(**asked, **CHAT).choices[0].message
    [call, *_] = message.tool_calls
    assert call.function.name == "get_weather"
    assert list(json.loads(call.function.arguments)) == ["city"]
    events = list(litellm.completion(stream=True, **asked, **CHAT))
    rebuilt = litellm.stream_chunk_builder(events).choices[0].message
    assert rebuilt.tool_calls[0].function.arguments == call.function.arguments


def a_python_type_shapes_the_answer() -> None:
    found = litellm.completion(messages=QUESTION, response_format=City, max_tokens=80, **CHAT)
    City.model_validate_json(found.choices[0].message.content)


def fields_of_other_engines_go_through() -> None:
    found = litellm.completion(
        messages=QUESTION, max_tokens=8, extra_body={"guided_choice": ["red", "blue"]}, **CHAT
    )
    assert found.choices[0].message.content in ("red", "blue")


def many_are_answered_at_once() -> None:
    found = litellm.batch_completion(messages=[QUESTION] * 6, max_tokens=20, **CHAT)
    assert [one.choices[0].message.content for one in found] == [ANSWER] * 6


def failures_are_the_clients_own_kinds() -> None:
    raised(litellm.BadRequestError, litellm.completion, messages=QUESTION, **{**CHAT, "temperature": -1})
    raised(
        litellm.AuthenticationError, litellm.completion, messages=QUESTION, **{**CHAT, "api_key": "another"}
    )


if __name__ == "__main__":
    main(sys.modules[__name__])
