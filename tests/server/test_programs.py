"""What programs send over HTTP: prompts in parts, hints, choices to score, frames, and branches ended."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.server.engine_face import EngineFace, LocalEngine
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.text_parts import PartsEncoder, Plain
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import EOS_ID
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]
PROMPT = "the cat in the hat"
GREEDY = {"temperature": 0, "max_new_tokens": 6}


@contextmanager
def opened(engine: EngineFace, key: str | None = None, **settings: Any) -> Iterator[httpx.Client]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with (
        running_server(engine, ServerSettings(shutdown_timeout=5.0, **settings)) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False, headers=headers) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(local_engine: LocalEngine) -> Iterator[httpx.Client]:
    with opened(local_engine, max_choices=8) as client:
        yield client


def post(client: httpx.Client, path: str, body: Any, status: int = 200) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def refusal(client: httpx.Client, path: str, body: Any) -> str:
    return str(post(client, path, body, 400)["error"]["message"])


def ask(client: httpx.Client, parts: Any, options: Any = None, **body: Any) -> Any:
    return post(
        client, "/generate", {"input_parts": parts, "sampling_params": GREEDY | (options or {}), **body}
    )


# -- parts -----------------------------------------------------------------------------------------


def test_parts_are_answered_as_their_ids_are_and_in_parts(
    client: httpx.Client, local_engine: LocalEngine
) -> None:
    parts = ["the <eos>", {"plain": "cat<eos>"}, [70, 71], " in"]
    ids = PartsEncoder(local_engine.tokenizer).ids(["the <eos>", Plain("cat<eos>"), (70, 71), " in"])
    assert ids.count(EOS_ID) == 1
    found = ask(client, parts)
    same = post(client, "/generate", {"input_ids": list(ids), "sampling_params": GREEDY})
    assert (found["text"], found["output_ids"]) == (same["text"], same["output_ids"])
    assert found["output_parts"] == [found["output_ids"]]
    assert found["meta_info"]["forced_tokens"] == 0
    assert "held_tokens" not in found["meta_info"]
    assert "output_parts" not in same
    assert "forced_tokens" not in same["meta_info"]


def test_the_next_call_finds_all_but_the_last_token_that_was_generated(client: httpx.Client) -> None:
    options = {"max_new_tokens": 12, "temperature": 1, "sampling_seed": 7, "ignore_eos": True}
    first = ask(client, [PROMPT], options)
    second = ask(client, [PROMPT, *first["output_parts"], " more"], options)
    meta = first["meta_info"]
    assert second["meta_info"]["cached_tokens"] >= meta["prompt_tokens"] + meta["completion_tokens"] - 1


def test_a_stop_within_a_token_leaves_text_among_the_parts(open_face: OpenFace) -> None:
    face = open_face(lambda _: "in the end")
    with opened(face) as client:
        found = ask(client, ["x"], {"stop": "he", "max_new_tokens": 20})
        assert found["text"] == "in t"
        assert found["output_parts"] == [face.tokenizer.encode("in", bos=False), " t"]
        ended = ask(client, ["x"], {"max_new_tokens": 20})
        assert ended["output_parts"] == [face.tokenizer.encode("in the end", bos=False)]
        assert ended["output_ids"][-1] == EOS_ID


def test_a_stream_has_its_parts_in_the_last_chunk(client: httpx.Client) -> None:
    whole = ask(client, [PROMPT])
    body = {"input_parts": [PROMPT], "sampling_params": GREEDY, "stream": True}
    lines = client.post("/generate", json=body).text.removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert ["output_parts" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["output_parts"] == whole["output_parts"]


def test_choices_have_parts_of_their_own_and_nothing_is_what_begins_a_text(client: httpx.Client) -> None:
    found = ask(client, [], {"n": 2, "temperature": 2, "sampling_seed": 1})
    assert [each["output_parts"][1:] for each in found] == [[each["output_ids"]] for each in found]
    assert [len(each["output_parts"][0]) for each in found] == [1, 1]  # what a text begins with
    assert found[0]["meta_info"]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input_parts": "text"}, "input_parts must be a list"),
        ({"input_parts": [1]}, "input_parts\\[0\\] must be a text"),
        ({"input_parts": ["a", [True]]}, "input_parts\\[1\\]"),
        ({"input_parts": [[-1]]}, "input_parts\\[0\\]"),
        ({"input_parts": [{"plain": 5}]}, "plain must be text"),
        ({"input_parts": [{"plain": "a", "more": 1}]}, "input_parts\\[0\\]"),
        ({"input_parts": ["a"] * 10_001}, "may hold 10000 parts"),
        ({"input_parts": ["a"], "text": "b"}, "text and input_parts"),
        ({"input_parts": [[99_999]]}, "vocabulary"),
        ({"input_parts": ["a" * 5000]}, "never fit"),
        ({"input_parts": [[5] * 5000]}, "5000 tokens"),
        ({"text": "a", "hint": "x"}, "hint must be an object"),
        ({"text": "a", "hint": {"program_id": 5}}, "hint.program_id must be text"),
        ({"text": "a", "hint": {"parent_id": "x" * 201}}, "at most 200 characters"),
        ({"text": "a", "hint": {"hold_s": -1}}, "from 0 to 3600"),
        ({"text": "a", "hint": {"hold_s": 3601}}, "from 0 to 3600"),
        ({"text": "a", "hint": {"hold_s": True}}, "from 0 to 3600"),
        ({"text": "a", "hint": {"done": 1}}, "hint.done must be true or false"),
    ],
)
def test_what_is_wrong_with_parts_and_hints_is_said(client: httpx.Client, body: Any, reason: str) -> None:
    assert re.search(reason, refusal(client, "/generate", body)), refusal(client, "/generate", body)


# -- hints -----------------------------------------------------------------------------------------

HINT = {"program_id": "a", "parent_id": "p", "fork_group": "g", "hold_s": 2, "done": True}


def test_hints_reach_the_engine_from_every_surface(open_face: OpenFace) -> None:
    face = open_face(lambda _: "yes")
    with opened(face) as client:
        post(client, "/generate", {"text": "x", "hint": HINT | {"unknown": 1}})
        post(client, "/v1/completions", {"prompt": "x", "hint": HINT})
        post(client, "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "hint": HINT})
        post(client, "/generate", {"text": "x", "hint": None})
    hints = [request.hint for request in face.requests]
    assert [(h.program_id, h.parent_id, h.fork_group, h.hold_s, h.done) for h in hints[:3]] == [
        ("a", "p", "g", 2.0, True)
    ] * 3
    assert hints[3].program_id == ""
    assert hints[3].hold_s is None


def test_unknown_fields_of_a_hint_are_refused_on_openais_surface(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        assert "'unknown'" in refusal(client, path, body | {"hint": {"unknown": 1}})


def test_branches_of_two_tenants_are_told_apart(open_face: OpenFace) -> None:
    face = open_face(lambda _: "yes")
    with opened(face, key="one", api_keys=("one", "two")) as client:
        for key in ("one", "two"):
            reply = client.post(
                "/generate", json={"text": "x", "hint": HINT}, headers={"Authorization": f"Bearer {key}"}
            )
            assert reply.status_code == 200
    first, second = (request.hint for request in face.requests)
    for name in ("program_id", "parent_id", "fork_group"):
        assert getattr(first, name) != getattr(second, name)
    assert len({request.tenant for request in face.requests}) == 2


def test_a_hold_is_told_and_released(client: httpx.Client) -> None:
    found = ask(client, [PROMPT], hint={"program_id": "holder", "hold_s": 60})
    assert found["meta_info"]["held_tokens"] > 0
    assert post(client, "/end_programs", {"program_ids": ["holder"], "how": "released"}) == {}


def test_a_cancelled_branch_is_aborted(tiny_folder: Path) -> None:
    engine = Engine(str(tiny_folder), page_size=4, num_pages=256)
    local = LocalEngine(engine)
    options = {"max_new_tokens": 220, "ignore_eos": True, "temperature": 1}
    with ThreadPoolExecutor(1) as threads, opened(local) as client:
        body = {"text": "x", "sampling_params": options, "hint": {"program_id": "b"}}
        task = threads.submit(post, client, "/generate", body)
        until(lambda: local.snapshot().generated_tokens > 0)
        post(client, "/end_programs", {"program_ids": ["b", "unknown"], "how": "cancelled"})
        found = task.result(30)
        assert found["meta_info"]["finish_reason"]["type"] == "abort"
        assert found["meta_info"]["completion_tokens"] < 220
    local.close()
    assert engine.cache.leased_pages == 0


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"program_ids": ["a"], "how": "gone"}, "released, done, cancelled"),
        ({"program_ids": "a", "how": "done"}, "program_ids must be a list"),
        ({"program_ids": [], "how": "done"}, "not empty"),
        ({"program_ids": [1], "how": "done"}, "program_ids[0]"),
        ({"program_ids": ["a"] * 10_001, "how": "done"}, "10000"),
    ],
)
def test_endings_that_are_none_are_refused(client: httpx.Client, body: Any, reason: str) -> None:
    assert reason in refusal(client, "/end_programs", body)


# -- scores ----------------------------------------------------------------------------------------


def test_scores_are_the_engines_own(client: httpx.Client, local_engine: LocalEngine) -> None:
    body = {"input_parts": ["a cat in t"], "choices": ["he", "o"], "unconditional": True}
    found = post(client, "/score", body)
    context, continuations = PartsEncoder(local_engine.tokenizer).joint(["a cat in t"], ["he", "o"])
    assert [choice["token_ids"] for choice in found["choices"]] == [list(ids) for ids in continuations]
    assert found["prompt_tokens"] == len(context)
    for choice, ids in zip(found["choices"], continuations, strict=True):
        assert choice["logprobs"] == pytest.approx(
            read_logprobs(client, [*context, *ids], len(context)), abs=1e-4
        )
        assert choice["unconditional"] == pytest.approx(read_logprobs(client, [0, *ids], 1), abs=1e-4)
    again = post(client, "/score", body | {"unconditional": False})
    assert again["computed_tokens"] == 0
    assert again["cached_tokens"] == len(context)
    assert [choice["unconditional"] for choice in again["choices"]] == [[], []]
    other = post(client, "/score", body | {"cache_salt": "s"})
    assert other["cached_tokens"] == 0


def read_logprobs(client: httpx.Client, ids: list[int], start: int) -> list[float]:
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": start,
    }
    found = post(client, "/generate", body)["meta_info"]["input_token_logprobs"]
    return [value for value, *_ in found]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"choices": ["a"]}, "input_parts must be a list"),
        ({"input_parts": ["a"]}, "choices must be a list"),
        ({"input_parts": ["a"], "choices": []}, "not empty"),
        ({"input_parts": ["a"], "choices": ["b", ""]}, "choices[1]"),
        ({"input_parts": ["a"], "choices": ["b"] * 9}, "choices may hold 8 texts, got 9"),
        ({"input_parts": ["a"], "choices": ["b"], "unconditional": 1}, "unconditional"),
        ({"input_parts": ["a"], "choices": ["b" * 5000]}, "never fit"),
        ({"input_parts": [[5] * 250], "choices": ["b" * 30]}, "280 tokens"),
    ],
)
def test_what_is_wrong_with_a_score_is_said(client: httpx.Client, body: Any, reason: str) -> None:
    assert reason in refusal(client, "/score", body)


def test_scores_are_counted(tiny_folder: Path) -> None:
    local = LocalEngine(Engine(str(tiny_folder), page_size=4, num_pages=256))
    with opened(local) as client:
        for _ in range(2):
            post(client, "/score", {"input_parts": [PROMPT], "choices": [" a", " in"]})
        info = client.get("/get_server_info").json()
        assert info["runtime"] == "radixlm"
        tokens = info["prompt_tokens"] // 2
        assert (info["cached_tokens"], info["generated_tokens"]) == (tokens, 0)
        assert 0 <= info["optimal_tokens"] - tokens < 16
        assert info["internal_states"][0]["active_requests"] == 0
    local.close()


# -- frames ----------------------------------------------------------------------------------------


def test_frames_and_contents_joined_are_what_the_template_writes(
    client: httpx.Client, byte_tokenizer: Tokenizer
) -> None:
    roles = ["system", "user", "assistant"]
    text = ""
    for count in range(1, 4):
        frame = post(client, "/chat_frame", {"roles": roles[:count]})
        text += f"{frame['before']}c{count}{frame['after']}"
    messages = [{"role": role, "content": f"c{count}"} for count, role in enumerate(roles, 1)]
    assert text == byte_tokenizer.render_chat(messages, False)
    assert "not supported" in refusal(client, "/chat_frame", {"roles": ["judge"]})
    assert "not empty" in refusal(client, "/chat_frame", {"roles": []})


def test_the_routes_are_described(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/score", "/chat_frame", "/end_programs"} <= set(paths)
    schema = paths["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"input_parts", "hint"} <= set(schema["properties"])
