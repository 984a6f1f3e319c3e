"""The openai package: conversations."""

from __future__ import annotations

import asyncio
from typing import Any

from checks import KEY
from openai import AsyncOpenAI
from openai_common import GREEDY, OPTIONS, QUESTION, client


def a_chat_answers() -> None:
    found = client.chat.completions.create(messages=QUESTION, max_completion_tokens=20, **GREEDY)
    [choice] = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "The capital of France is Paris."
    assert choice.message.refusal is None
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.prompt_tokens_details is not None


def a_streamed_chat_is_the_same_answer() -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 20, "n": 2}
    events = list(
        client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked, **GREEDY)
    )
    for index in (0, 1):
        mine = [e.choices[0] for e in events if e.choices and e.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert "".join(one.delta.content or "" for one in mine) == "The capital of France is Paris."
        assert [one.finish_reason for one in mine if one.finish_reason] == ["stop"]
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert all(event.usage is None for event in events[:-1])


def the_stream_helper_gathers_the_answer() -> None:
    with client.chat.completions.stream(messages=QUESTION, max_tokens=20, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content == "The capital of France is Paris."


async def requests_at_once_answer_as_alone() -> None:
    async with AsyncOpenAI(api_key=KEY, **OPTIONS) as many:
        prompts = [f"{number} and {number} make" for number in range(12)]
        one_by_one = [
            (await many.completions.create(prompt=prompt, max_tokens=8, **GREEDY)).choices[0].text
            for prompt in prompts
        ]
        calls = [many.completions.create(prompt=prompt, max_tokens=8, **GREEDY) for prompt in prompts]
        together = [found.choices[0].text for found in await asyncio.gather(*calls)]
        assert together == one_by_one
        stream = await many.chat.completions.create(messages=QUESTION, max_tokens=20, stream=True, **GREEDY)
        parts = [event.choices[0].delta.content or "" async for event in stream]
    assert "".join(parts) == "The capital of France is Paris."


def a_stream_that_is_left_lets_others_on() -> None:
    stream = client.completions.create(prompt="Once", max_tokens=1500, stream=True, **GREEDY)
    next(iter(stream))
    stream.close()
    a_chat_answers()


def log_probabilities_of_a_chat_have_bytes_and_alternatives() -> None:
    found = client.chat.completions.create(
        messages=QUESTION, max_tokens=20, logprobs=True, top_logprobs=3, **GREEDY
    )
    told = found.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    text = b"".join(bytes(one.bytes or []) for one in told.content).decode()
    assert text.startswith(found.choices[0].message.content or "?"), text
    for one in told.content:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].token == one.token
        assert one.top_logprobs[0].logprob == one.logprob <= 0


def streamed_log_probabilities_are_the_same() -> None:
    asked: dict[str, Any] = {"messages": QUESTION, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked, **GREEDY).choices[0].logprobs
    assert whole is not None
    told: list[Any] = []
    for event in client.chat.completions.create(stream=True, **asked, **GREEDY):
        told += (event.choices[0].logprobs and event.choices[0].logprobs.content) or []
    assert told == whole.content


def fields_that_change_no_answer_are_taken() -> None:
    found = client.chat.completions.create(
        messages=[{"role": "developer", "content": "Answer in one sentence."}, *QUESTION],
        max_completion_tokens=20,
        user="somebody",
        metadata={"of": "ours"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        **GREEDY,
    )
    assert "Paris" in (found.choices[0].message.content or ""), found.choices[0].message.content


def a_system_message_and_text_parts_are_read() -> None:
    messages: Any = [
        {"role": "system", "content": "Answer in one sentence."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is the capital"},
                {"type": "text", "text": "of France?"},
            ],
        },
        {"role": "assistant", "content": "The capital of France is Paris."},
        {"role": "user", "content": "And of Italy?"},
    ]
    found = client.chat.completions.create(messages=messages, max_tokens=20, **GREEDY)
    assert "Rome" in (found.choices[0].message.content or ""), found.choices[0].message.content


def an_answer_has_the_id_of_its_request() -> None:
    found = client.chat.completions.with_raw_response.create(
        messages=QUESTION, max_tokens=2, extra_headers={"X-Request-Id": "mine-1"}, **GREEDY
    )
    assert found.headers["x-request-id"] == "mine-1"
    assert found.parse()._request_id == "mine-1"
