"""LangChain's ChatOpenAI and OpenAI classes."""

from __future__ import annotations

import sys
from typing import Any, Literal

from checks import KEY, MODEL, V1, main
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

OPTIONS: dict[str, Any] = {"model": MODEL, "base_url": V1, "api_key": KEY, "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(max_tokens=100, timeout=60, stream_usage=True, **OPTIONS)
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
TOKENS = 8  # of the answer and its end


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    size: Literal["small", "large"]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def a_message_is_answered() -> None:
    found = chat.invoke(QUESTION)
    assert found.content == ANSWER
    assert found.response_metadata["finish_reason"] == "stop"
    assert found.response_metadata["model_name"] == MODEL
    assert found.usage_metadata is not None
    assert found.usage_metadata["output_tokens"] == TOKENS
    assert "cache_read" in found.usage_metadata["input_token_details"]


def a_conversation_is_answered() -> None:
    found = chat.invoke([SystemMessage("Answer in one sentence."), HumanMessage(QUESTION)])
    assert "Paris" in str(found.content)


def a_stream_adds_up_to_the_answer() -> None:
    whole: AIMessageChunk | None = None
    for part in chat.stream(QUESTION):
        whole = part if whole is None else whole + part
    assert whole is not None
    assert whole.content == ANSWER
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == TOKENS


async def it_may_be_asynchronous() -> None:
    assert (await chat.ainvoke(QUESTION)).content == ANSWER
    assert "".join([str(part.content) async for part in chat.astream(QUESTION)]) == ANSWER


def many_are_answered_at_once() -> None:
    assert [found.content for found in chat.batch([QUESTION] * 6)] == [ANSWER] * 6


def log_probabilities_come_with_it() -> None:
    found = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    told = found.response_metadata["logprobs"]["content"]
    assert len(told[0]["top_logprobs"]) == 2


def a_bound_tool_is_called_and_its_result_is_read() -> None:
    asked = HumanMessage("What is 2 plus 3?")
    called = chat.bind_tools([add], tool_choice="required").invoke([asked])
    [call, *_] = called.tool_calls
    assert call["name"] == "add"
    assert sorted(call["args"]) == ["a", "b"], call
    assert called.invalid_tool_calls == []
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    answered = chat.bind_tools([add], tool_choice="none").invoke([asked, called, result])
    assert answered.content


def a_streamed_tool_call_adds_up() -> None:
    whole: AIMessageChunk | None = None
    for part in chat.bind_tools([add], tool_choice="add").stream("What is 2 plus 3?"):
        whole = part if whole is None else whole + part
    assert whole is not None
    assert [call["name"] for call in whole.tool_calls] == ["add"]


def structured_output_by_schema() -> None:
    assert isinstance(chat.with_structured_output(City, method="json_schema").invoke(QUESTION), City)


def structured_output_by_strict_schema() -> None:
    shaped = chat.with_structured_output(City, method="json_schema", strict=True)
    assert isinstance(shaped.invoke(QUESTION), City)


def structured_output_by_calling_a_function() -> None:
    assert isinstance(chat.with_structured_output(City, method="function_calling").invoke(QUESTION), City)


def structured_output_as_a_dictionary() -> None:
    found = chat.with_structured_output(City.model_json_schema(), method="json_schema").invoke(QUESTION)
    assert City.model_validate(found)


def a_text_is_continued() -> None:
    model = OpenAI(max_tokens=6, **OPTIONS)
    assert "Paris" in model.invoke("The capital of France is")
    assert "".join(model.stream("The capital of France is")) == model.invoke("The capital of France is")


if __name__ == "__main__":
    main(sys.modules[__name__])
