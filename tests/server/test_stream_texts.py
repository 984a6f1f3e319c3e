"""However the bytes of a text are cut, a stream tells the text that one answer tells, on every route."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from radixlm.runtime.types import Request
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

TEXTS = 500
PIECES = (
    "a",
    "the",
    " in",
    "\n",
    "é",
    "и",
    "中文",
    "日本",
    "👍",
    "👩‍👩‍👧",
    "🇳🇴",
    "\u200b",
    "\ufffd",
    "<eos",
    "STOP",
    "ST",
    "。",
)
STOPS = ("STOP", "。", "👍👍", "中文日", "\n\n", "ST👍")


def text_of(seed: int) -> str:
    return "".join(random.Random(seed).choices(PIECES, k=24))


def stops_of(seed: int) -> list[str]:
    chance = random.Random(-seed)
    return chance.sample(STOPS, chance.randrange(4))


@pytest.fixture(scope="module")
def client(byte_tokenizer: Any) -> Iterator[httpx.Client]:
    """Of a server whose answer is the text of the seed."""

    def script(request: Request) -> str:
        return text_of(int(request.sampling.seed or 0))

    with (
        running_server(ScriptedFace(byte_tokenizer, script)) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30) as found,
    ):
        yield found


def completion(reply: dict[str, Any]) -> tuple[str, str]:
    [choice] = reply["choices"]
    return choice["text"], choice["finish_reason"]


def chat(reply: dict[str, Any]) -> tuple[str, str]:
    [choice] = reply["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def native(reply: dict[str, Any]) -> tuple[str, str]:
    return reply["text"], reply["meta_info"]["finish_reason"]["type"]


def joined(chunks: list[dict[str, Any]]) -> tuple[str, str]:
    """Of OpenAI's routes: deltas, and the one finish reason."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(each.get("text") or each.get("delta", {}).get("content") or "" for each in choices)
    [finish] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return text, finish


def cumulative(chunks: list[dict[str, Any]]) -> tuple[str, str]:
    """Of the native route: each text begins with the one before."""
    texts = [chunk["text"] for chunk in chunks]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    return native(chunks[-1])


Read = Callable[[dict[str, Any]], tuple[str, str]]
ReadAll = Callable[[list[dict[str, Any]]], tuple[str, str]]


def body_of(path: str, seed: int) -> dict[str, Any]:
    options = {"stop": stops_of(seed), "temperature": 0}
    if path == "/generate":
        sampling = {**options, "max_new_tokens": 400, "sampling_seed": seed}
        return {"input_ids": [5, 6], "sampling_params": sampling}
    if path == "/v1/completions":
        return {"prompt": [5, 6], "max_tokens": 400, "seed": seed, **options}
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "seed": seed, **options}


def chunks_of(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = client.post(path, json={**body, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def expected(seed: int) -> str:
    """The text up to the stop that is complete first; of several there, the one that began first."""
    text = text_of(seed)
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops_of(seed) if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@pytest.mark.parametrize(
    ("path", "read", "read_all"),
    [
        ("/v1/completions", completion, joined),
        ("/v1/chat/completions", chat, joined),
        ("/generate", native, cumulative),
    ],
)
def test_a_stream_tells_the_text_of_the_whole_answer(
    client: httpx.Client, path: str, read: Read, read_all: ReadAll
) -> None:
    for seed in range(1, TEXTS + 1):
        body = body_of(path, seed)
        told = read_all(chunks_of(client, path, body))
        assert told == (expected(seed), "stop"), body
        if seed % 10 == 0:
            assert told == read(client.post(path, json=body).json()), body
