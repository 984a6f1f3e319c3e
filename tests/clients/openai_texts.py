"""The openai package: models and completions."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import openai
from checks import KEY, MODEL, URL, post, raised
from openai import OpenAI
from openai_common import FRANCE, GREEDY, OPTIONS, client


def the_model_is_listed_and_described() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    found = client.models.retrieve(MODEL)
    assert (found.id, found.object) == (MODEL, "model")
    raised(openai.NotFoundError, client.models.retrieve, model="another")


def a_completion_continues_a_text() -> None:
    found = client.completions.create(prompt=FRANCE, max_tokens=6, **GREEDY)
    [choice] = found.choices
    assert "Paris" in choice.text, choice.text
    assert choice.finish_reason == "length"
    assert found.object == "text_completion"
    usage = found.usage
    assert usage is not None
    assert usage.completion_tokens == 6
    assert usage.total_tokens == usage.prompt_tokens + 6
    assert usage.prompt_tokens_details is not None
    again = client.completions.create(prompt=FRANCE, max_tokens=6, **GREEDY)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= usage.prompt_tokens - 1
    assert again.choices[0].text == choice.text


def a_completion_takes_texts_and_token_ids() -> None:
    ids = post("/tokenize", {"prompt": FRANCE})["tokens"]
    given: list[Any] = [FRANCE, ids, [FRANCE, "One, two,"], [ids, ids]]
    found = [client.completions.create(prompt=one, max_tokens=4, **GREEDY).choices for one in given]
    assert [len(choices) for choices in found] == [1, 1, 2, 2]
    assert {choices[0].text for choices in found} == {found[0][0].text}
    assert [choice.index for choice in found[2]] == [0, 1]
    assert "three" in found[2][1].text, found[2][1].text


def a_streamed_completion_is_the_same_text() -> None:
    whole = client.completions.create(prompt=FRANCE, max_tokens=12, **GREEDY)
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    events = list(client.completions.create(prompt=FRANCE, max_tokens=12, **asked, **GREEDY))
    assert "".join(event.choices[0].text for event in events if event.choices) == whole.choices[0].text
    assert [e.choices[0].finish_reason for e in events if e.choices and e.choices[0].finish_reason] == [
        "length"
    ]
    assert events[-1].choices == []
    assert events[-1].usage is not None
    assert whole.usage is not None
    assert events[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({event.id for event in events}) == 1


def echo_scores_the_prompt_without_generating() -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 0}
    found = client.completions.create(prompt=FRANCE, **asked, **GREEDY)
    choice = found.choices[0]
    assert choice.text == FRANCE
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert told.text_offset is not None
    assert "".join(told.tokens) == FRANCE
    assert told.token_logprobs[0] is None
    assert all(value < 0 for value in told.token_logprobs[1:])
    assert [FRANCE[at:].startswith(token) for at, token in zip(told.text_offset, told.tokens, strict=True)]
    assert all(len(top) >= 2 for top in told.top_logprobs[1:])
    assert found.usage is not None
    assert found.usage.completion_tokens == 0


def choices_differ_and_a_seed_repeats_them() -> None:
    asked: dict[str, Any] = {"prompt": "My favourite word is", "max_tokens": 8, "n": 4, "seed": 7}
    first, second = (
        client.completions.create(model=MODEL, temperature=1.5, **asked).choices for _ in range(2)
    )
    assert [choice.index for choice in first] == [0, 1, 2, 3]
    assert [choice.text for choice in first] == [choice.text for choice in second]
    assert len({choice.text for choice in first}) > 1


def a_stop_text_ends_a_completion_and_is_not_shown() -> None:
    asked: dict[str, Any] = {"prompt": "One, two, three,", "max_tokens": 20, "stop": [" five", "\n"]}
    [choice] = client.completions.create(**asked, **GREEDY).choices
    assert choice.text == " four,", choice.text
    assert choice.finish_reason == "stop"
    streamed = client.completions.create(stream=True, **asked, **GREEDY)
    assert "".join(event.choices[0].text for event in streamed) == choice.text


def a_stream_of_choices_ends_each_of_them() -> None:
    asked: dict[str, Any] = {"prompt": "My favourite word is", "max_tokens": 6, "n": 3, "seed": 7}
    whole = client.completions.create(model=MODEL, temperature=1.5, **asked).choices
    events = list(client.completions.create(model=MODEL, temperature=1.5, stream=True, **asked))
    for index in range(3):
        mine = [event.choices[0] for event in events if event.choices and event.choices[0].index == index]
        assert "".join(one.text for one in mine) == whole[index].text
        assert [one.finish_reason for one in mine if one.finish_reason] == ["length"]


def a_client_that_gives_up_frees_its_place() -> None:
    hasty = OpenAI(api_key=KEY, **{**OPTIONS, "timeout": 0.5})
    long: dict[str, Any] = {"prompt": "Once", "max_tokens": 1800, "extra_body": {"ignore_eos": True}}
    raised(openai.APITimeoutError, hasty.completions.create, **long, **GREEDY)
    limit = time.monotonic() + 10
    while _running() and time.monotonic() < limit:
        time.sleep(0.05)
    assert _running() == 0


def a_bias_and_penalties_change_the_text() -> None:
    [paris] = post("/tokenize", {"prompt": " Paris", "add_special_tokens": False})["tokens"]
    asked: dict[str, Any] = {"prompt": FRANCE, "max_tokens": 12, "logit_bias": {str(paris): -100}}
    assert "Paris" not in client.completions.create(**asked, **GREEDY).choices[0].text
    asked = {"prompt": "One One One One", "max_tokens": 12, "frequency_penalty": 2, "presence_penalty": 2}
    assert client.completions.create(**asked, **GREEDY).choices[0].text.count("One") < 6


def _running() -> float:
    with urllib.request.urlopen(f"{URL}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))
