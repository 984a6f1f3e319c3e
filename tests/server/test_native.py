"""SGLang's routes over HTTP: /generate in one piece and streamed, names, salts, and what stands beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.runtime.server.engine_face import EngineFace, LocalEngine
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from radixlm.runtime.types import Event, Request
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

PROMPT = "the cat in the hat"
GREEDY = {"temperature": 0, "max_new_tokens": 6}


@contextmanager
def opened(engine: EngineFace, **settings: Any) -> Iterator[httpx.Client]:
    with (
        running_server(engine, ServerSettings(shutdown_timeout=5.0, **settings)) as endpoint,
        httpx.Client(base_url=endpoint.url, timeout=30, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(local_engine: LocalEngine) -> Iterator[httpx.Client]:
    with opened(local_engine, served_model_name="org/tiny", max_prompts=40) as client:
        yield client


def post(client: httpx.Client, status: int = 200, path: str = "/generate", **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def ask(client: httpx.Client, options: Any = None, **body: Any) -> Any:
    """The reply to a greedy request, with more options for its text."""
    if "input_ids" not in body:
        body = {"text": PROMPT, **body}
    return post(client, sampling_params=GREEDY | (options or {}), **body)


def refusal(client: httpx.Client, **body: Any) -> str:
    return str(post(client, 400, **{"text": PROMPT, **body})["error"]["message"])


def streamed(client: httpx.Client, options: Any = None, **body: Any) -> list[Any]:
    """The chunks of a stream, which ends with [DONE]."""
    whole = {"text": PROMPT, "sampling_params": GREEDY | (options or {}), "stream": True, **body}
    reply = client.post("/generate", json=whole)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = reply.text.removesuffix("\n\n").split("\n\n")
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def timeless(answer: Any) -> Any:
    """Without what differs from call to call."""
    meta = {k: v for k, v in answer["meta_info"].items() if k not in ("id", "e2e_latency", "cached_tokens")}
    return {"text": answer["text"], "output_ids": answer["output_ids"], "meta_info": meta}


# -- one piece -------------------------------------------------------------------------------------


def test_one_prompt_is_answered_by_an_object(client: httpx.Client) -> None:
    answer = ask(client, rid="my name")
    meta = answer["meta_info"]
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert len(answer["output_ids"]) == meta["completion_tokens"] == 6
    assert meta["id"] == "my name"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert meta["prompt_tokens"] == len(post(client, path="/tokenize", prompt=PROMPT)["tokens"])
    assert 0 < meta["e2e_latency"] < 30
    assert "output_token_logprobs" not in meta


def test_put_is_the_same_as_post(client: httpx.Client) -> None:
    reply = client.put("/generate", json={"text": PROMPT, "sampling_params": GREEDY})
    assert timeless(reply.json()) == timeless(ask(client))


def test_ids_are_answered_as_their_text_is(client: httpx.Client) -> None:
    ids = post(client, path="/tokenize", prompt=PROMPT)["tokens"]
    assert timeless(ask(client, input_ids=ids)) == timeless(ask(client))


def test_a_list_is_answered_prompt_by_prompt(client: httpx.Client) -> None:
    prompts = ["one", PROMPT, ""]
    options = [GREEDY, GREEDY | {"n": 2}, GREEDY]
    found = post(client, text=prompts, sampling_params=options, rid=["a", "b", "c"])
    assert [answer["meta_info"]["id"] for answer in found] == ["a", "b", "b", "c"]
    alone = [timeless(ask(client, text=text)) for text in ("one", PROMPT, PROMPT, "")]
    assert [timeless(answer) for answer in found] == alone


def test_choices_of_one_prompt_are_a_list_and_differ(client: httpx.Client) -> None:
    found = ask(client, {"n": 3, "temperature": 2, "sampling_seed": 1})
    assert len({answer["text"] for answer in found}) == 3
    assert [a["text"] for a in found] == [
        a["text"] for a in ask(client, {"n": 3, "temperature": 2, "sampling_seed": 1})
    ]


def test_an_empty_text_is_a_text_that_begins(client: httpx.Client) -> None:
    answer = ask(client, text="")
    assert answer["meta_info"]["prompt_tokens"] == 1
    assert timeless(answer) == timeless(ask(client, input_ids=[BOS_ID]))


def test_no_new_tokens_read_the_prompt_into_the_cache(client: httpx.Client) -> None:
    text = "a prompt that nobody has asked about before"
    first = ask(client, {"max_new_tokens": 0}, text=text)
    assert (first["text"], first["output_ids"]) == ("", [])
    meta = first["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["completion_tokens"] == 0
    assert meta["cached_tokens"] < 5
    assert ask(client, text=text)["meta_info"]["cached_tokens"] >= meta["prompt_tokens"] - 1


def test_structure_is_enforced(client: httpx.Client) -> None:
    answer = ask(client, {"regex": "[ab]{3}"})
    assert len(answer["text"]) == 3
    assert set(answer["text"]) <= {"a", "b"}
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": answer["output_ids"][-1]}


def test_a_stop_text_is_cut_off_and_its_tokens_are_kept(client: httpx.Client) -> None:
    answer = ask(client, {"regex": "to the end of it", "stop": "end", "max_new_tokens": 50})
    assert answer["text"] == "to the "
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "end"}
    assert post(client, path="/detokenize", tokens=answer["output_ids"])["text"] == "to the end"


def test_a_stop_text_can_be_kept(client: httpx.Client) -> None:
    options = {"regex": "to the end of it", "stop_regex": "e.d", "max_new_tokens": 50, "no_stop_trim": True}
    assert ask(client, options)["text"] == "to the end"
    assert streamed(client, options)[-1]["text"] == "to the end"


def test_a_stop_token_can_be_kept(client: httpx.Client) -> None:
    options = {"regex": "ab!c", "stop_token_ids": [FIRST_BYTE_ID + ord("!")], "max_new_tokens": 50}
    assert ask(client, options)["text"] == "ab"
    answer = ask(client, options | {"no_stop_trim": True})
    assert answer["text"] == "ab!"
    assert answer["meta_info"]["finish_reason"]["matched"] == FIRST_BYTE_ID + ord("!")


# -- log-probabilities -----------------------------------------------------------------------------


def test_log_probabilities_of_the_text_are_those_of_its_tokens(client: httpx.Client) -> None:
    answer = ask(client, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True)
    meta = answer["meta_info"]
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["output_token_logprobs_length"] == 6
    assert [top[0] for top in meta["output_top_logprobs"]] == meta["output_token_logprobs"]
    assert all(len(top) == 2 and top[0][0] >= top[1][0] for top in meta["output_top_logprobs"])
    assert (meta["input_token_logprobs"], meta["input_top_logprobs"]) == ([], [])


def test_the_prompt_is_reported_from_the_start_that_is_asked_for(client: httpx.Client) -> None:
    ids = post(client, path="/tokenize", prompt=PROMPT)["tokens"]

    def reported(start: int) -> Any:
        meta = ask(client, return_logprob=True, logprob_start_len=start, top_logprobs_num=1)["meta_info"]
        assert len(meta["input_top_logprobs"]) == len(meta["input_token_logprobs"])
        return meta["input_token_logprobs"]

    whole = reported(0)
    assert [token for _, token, _ in whole] == ids
    assert whole[0][0] is None
    assert all(isinstance(logprob, float) for logprob, _, _ in whole[1:])
    for start in (1, 3, len(ids) - 1, len(ids)):
        assert reported(start) == whole[start:]


def test_a_start_behind_a_shared_prefix_has_a_value_and_reuses_the_prefix(client: httpx.Client) -> None:
    prefix = "a question that has two answers:"
    start = ask(client, {"max_new_tokens": 0}, text=prefix)["meta_info"]["prompt_tokens"]
    meta = ask(
        client, {"max_new_tokens": 0}, text=prefix + " yes", return_logprob=True, logprob_start_len=start
    )["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] - start
    assert meta["input_token_logprobs"][0][0] < 0
    assert meta["cached_tokens"] >= start - 1


def test_what_is_only_read_is_reported_from_its_beginning(client: httpx.Client) -> None:
    for more in ({}, {"logprob_start_len": -1}):
        meta = ask(client, {"max_new_tokens": 0}, return_logprob=True, **more)["meta_info"]
        assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
        assert meta["output_token_logprobs"] == []


def test_each_prompt_of_a_list_has_its_own_start(client: httpx.Client) -> None:
    first, second = post(
        client,
        text=["ab", "abcd"],
        sampling_params=GREEDY,
        return_logprob=[False, True],
        logprob_start_len=[0, 3],
    )
    assert "input_token_logprobs" not in first["meta_info"]
    assert [token for _, token, _ in second["meta_info"]["input_token_logprobs"]] == [
        FIRST_BYTE_ID + byte for byte in b"cd"
    ]


def test_a_start_behind_the_prompt_is_refused(client: httpx.Client) -> None:
    message = refusal(client, text="ab", return_logprob=True, logprob_start_len=4)
    assert message == "logprob_start_len must be at most the 3 tokens of the prompt, got 4"


def test_the_first_reported_position_can_be_null(local_engine: LocalEngine) -> None:
    with opened(local_engine, native_null_first_logprob=True) as client:
        listed = ask(client, return_logprob=True, logprob_start_len=2)["meta_info"]["input_token_logprobs"]
    assert listed[0][0] is None
    assert all(isinstance(logprob, float) for logprob, _, _ in listed[1:])


# -- streams ---------------------------------------------------------------------------------------


def test_chunks_are_cumulative_and_the_last_one_is_the_whole_answer(client: httpx.Client) -> None:
    fields = {"return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 2}
    found = streamed(client, **fields)
    assert timeless(found[-1]) == timeless(ask(client, **fields))
    for before, after in pairwise(found):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        listed = before["meta_info"]["output_token_logprobs"]
        assert after["meta_info"]["output_token_logprobs"][: len(listed)] == listed
        assert len(listed) == before["meta_info"]["output_token_logprobs_length"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in found[:-1]] == [None] * (len(found) - 1)
    assert "index" not in found[0]


def test_chunks_of_a_list_tell_their_place(client: httpx.Client) -> None:
    options = [GREEDY, GREEDY | {"n": 2}]
    found = streamed(client, text=["one", PROMPT], sampling_params=options)
    last = {chunk["index"]: chunk for chunk in found if chunk["meta_info"]["finish_reason"]}
    assert len([chunk for chunk in found if chunk["meta_info"]["finish_reason"]]) == len(last) == 3
    whole = post(client, text=["one", PROMPT], sampling_params=options)
    assert [timeless(last[index]) for index in range(3)] == [timeless(answer) for answer in whole]


def test_no_chunk_shows_half_a_character_or_part_of_a_stop_text(byte_tokenizer: Tokenizer) -> None:
    face = ScriptedFace(byte_tokenizer, lambda _: "é€ EN 日本 END more")
    with opened(face) as client:
        found = streamed(client, {"stop": ["END"], "max_new_tokens": 100})
    assert found[-1]["text"] == "é€ EN 日本 "
    assert all("é€ EN 日本 ".startswith(chunk["text"]) for chunk in found)


def test_a_stream_of_nothing_has_one_chunk(client: httpx.Client) -> None:
    [chunk] = streamed(client, {"max_new_tokens": 0})
    assert (chunk["text"], chunk["meta_info"]["finish_reason"]) == ("", {"type": "length", "length": 0})


class FailingFace(ScriptedFace):
    """Of which a prompt that begins with x fails."""

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Future[None]:
        if request.prompt_ids[1] != FIRST_BYTE_ID + ord("x"):
            return super().submit(request, deliver)
        accepted: Future[None] = Future()
        accepted.set_result(None)
        deliver(Event(request.id, 0, finish_reason="error", error="the step failed"))
        return accepted


def test_a_text_that_fails_is_an_error_in_one_piece_and_in_a_stream(byte_tokenizer: Tokenizer) -> None:
    with opened(FailingFace(byte_tokenizer, lambda _: "fine")) as client:
        whole = client.post("/generate", json={"text": ["a", "x"]})
        assert whole.status_code == 500
        assert whole.json()["error"]["message"] == "the step failed"
        [alone] = streamed(client, text="x")
        assert alone["error"]["message"] == "the step failed"
        found = streamed(client, text=["a", "x"])
    [failed] = [chunk for chunk in found if "error" in chunk]
    assert failed["index"] == 1
    assert [chunk["text"] for chunk in found if chunk.get("index") == 0][-1] == "fine"


def test_what_is_refused_later_is_an_ordinary_error_in_a_stream_too(client: httpx.Client) -> None:
    for stream in (False, True):
        assert "not in the vocabulary" in refusal(client, text=None, input_ids=[5000], stream=stream)
        assert "regex" in refusal(client, sampling_params={"regex": "(("}, stream=stream)
        assert "256" in refusal(client, text="x" * 300, stream=stream)


@pytest.mark.parametrize("data", [b"", b"[]", b'"text"', b'{"text": NaN}', b'{"text": "\\ud800"}', b"\xff"])
def test_what_is_no_object_is_refused(client: httpx.Client, data: bytes) -> None:
    reply = client.post("/generate", content=data)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"]


# -- names and salts -------------------------------------------------------------------------------


@contextmanager
def held(tokenizer: Tokenizer, *keys: str) -> Iterator[tuple[httpx.Client, ThreadPoolExecutor]]:
    """A server whose answers go on when they are aborted, and threads that wait for them."""
    face = ScriptedFace(tokenizer, lambda _: "some text", hold=2)
    with opened(face, api_keys=keys) as client, ThreadPoolExecutor(4) as threads:
        try:
            yield client, threads
        finally:
            face.release()


def abort(client: httpx.Client, key: str = "", **body: Any) -> int:
    """How many were ended, as soon as there were any."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    while not (count := client.post("/abort_request", json=body, headers=headers).json()["aborted"]):
        pass
    return int(count)


def test_a_request_is_aborted_by_its_exact_name(byte_tokenizer: Tokenizer) -> None:
    with held(byte_tokenizer) as (client, threads):
        answers = [threads.submit(post, client, text="a", rid=rid) for rid in ("name", "name 2")]
        assert abort(client, rid="name 2") == 1
        assert answers[1].result()["meta_info"]["finish_reason"]["type"] == "abort"
        assert post(client, path="/abort_request", rid="nam") == {"aborted": 0}
        assert not answers[0].done()
        assert abort(client, rid="name") == 1
        assert answers[0].result()["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "the request was aborted",
        }
        assert post(client, path="/abort_request", rid="name") == {"aborted": 0}


def test_one_name_for_several_prompts_ends_them_all(byte_tokenizer: Tokenizer) -> None:
    with held(byte_tokenizer) as (client, threads):
        answers = threads.submit(post, client, text=["a", "b"], rid="both")
        assert abort(client, rid="both") == 2
        reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in answers.result()]
        assert reasons == ["abort", "abort"]


def test_all_means_all_of_the_same_key(byte_tokenizer: Tokenizer) -> None:
    def ask_as(client: httpx.Client, key: str) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        return client.post("/generate", json={"text": "a", "rid": "r"}, headers=headers).json()

    with held(byte_tokenizer, "one", "two") as (client, threads):
        first, second = threads.submit(ask_as, client, "one"), threads.submit(ask_as, client, "two")
        assert abort(client, "one", abort_all=True) == 1
        assert first.result()["meta_info"]["finish_reason"]["type"] == "abort"
        assert not second.done()
        assert abort(client, "two", rid="r") == 1
        second.result()


@pytest.mark.parametrize("body", [{}, {"rid": ""}, {"rid": 5}, {"abort_all": False}, {"abort_all": 1}])
def test_an_abort_says_what(client: httpx.Client, body: dict[str, Any]) -> None:
    post(client, 400, "/abort_request", **body)


def test_pairs_of_salt_and_key_share_nothing_with_other_pairs(client: httpx.Client) -> None:
    def cached(**fields: Any) -> int:
        answer = ask(client, {"max_new_tokens": 1}, text="salted and shared or not", **fields)
        return int(answer["meta_info"]["cached_tokens"])

    pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("", "abc"),
        ("abc", ""),
        ('["a","b"]', ""),
        ("", '["a","b"]'),
        ("a", "b"),
    ]
    assert cached() < 5
    assert [cached(extra_key=key, cache_salt=salt) for key, salt in pairs] == [0] * len(pairs)
    assert all(cached(extra_key=key, cache_salt=salt) > 20 for key, salt in [*pairs, ("", "")])


def test_a_salt_is_the_same_on_both_surfaces(client: httpx.Client) -> None:
    text = "seen by both surfaces"
    ask(client, text=text, cache_salt="grain")
    reply = client.post("/v1/completions", json={"prompt": text, "max_tokens": 1, "cache_salt": "grain"})
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 15


# -- beside it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/get_model_info", "/model_info"])
def test_the_model_is_described(client: httpx.Client, path: str) -> None:
    found = client.get(path).json()
    assert Path(found["model_path"]).is_dir()
    assert found["tokenizer_path"] == found["model_path"]
    assert (found["is_generation"], found["served_model_name"]) == (True, "org/tiny")
    assert (found["model_type"], found["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert found["max_model_len"] == 256


@pytest.mark.parametrize("path", ["/get_server_info", "/server_info"])
def test_the_server_is_described_without_its_keys(local_engine: LocalEngine, path: str) -> None:
    with opened(local_engine, api_keys=("a-secret",)) as client:
        reply = client.get(path, headers={"Authorization": "Bearer a-secret"})
    found = reply.json()
    assert (found["num_pages"], found["page_size"], found["max_total_num_tokens"]) == (256, 4, 1024)
    assert (found["policy"], found["max_queued"]) == ("cache-aware", 1024)
    assert found["version"]
    [state] = found["internal_states"]
    assert state["steps"] > 0
    assert state["active_requests"] == 0
    assert "secret" not in reply.text
    assert "api_keys" not in found


def test_the_cache_is_flushed_when_nothing_runs(client: httpx.Client) -> None:
    ask(client)
    reply = client.post("/flush_cache")
    assert reply.status_code == 200
    assert reply.json()["flushed_pages"] > 0
    assert client.get("/flush_cache?timeout=1").json()["flushed_pages"] == 0
    assert ask(client)["meta_info"]["cached_tokens"] == 0


def test_a_flush_is_refused_while_anything_runs_or_waits_for_its_end(byte_tokenizer: Tokenizer) -> None:
    with held(byte_tokenizer) as (client, threads):
        answer = threads.submit(post, client, text="a", rid="r")
        while client.get("/flush_cache").status_code == 200:
            pass
        assert client.post("/flush_cache?timeout=0.01").status_code == 400
        flushed = threads.submit(client.get, "/flush_cache?timeout=20")
        assert abort(client, rid="r") == 1
        assert flushed.result().status_code == 200
        answer.result()


@pytest.mark.parametrize("timeout", ["soon", "-1", "nan", "inf", ""])
def test_a_timeout_is_a_number_of_seconds(client: httpx.Client, timeout: str) -> None:
    assert client.get("/flush_cache", params={"timeout": timeout}).status_code == 400


def test_a_profile_has_the_steps_between_its_start_and_its_end(client: httpx.Client) -> None:
    assert client.get("/stop_profile").status_code == 400
    assert client.post("/start_profile", json={"num_steps": 5}).status_code == 200
    assert client.get("/start_profile").status_code == 400
    ask(client)
    file = Path(client.post("/stop_profile").json()["path"])
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    file.unlink()
    assert {"radixlm step", "radixlm forward"} <= names


def test_older_clients_may_join_requests(client: httpx.Client) -> None:
    reply = client.post("/concate_and_append_request", json={"src_rids": ["a"], "dst_rid": "b"})
    assert reply.status_code == 200


def test_a_choice_is_selected_as_the_frontend_language_does_it(client: httpx.Client) -> None:
    """Read the prompt, then each choice behind it, from two tokens before its end."""
    prompt, choices = "is it so? ", ["yes", "no", "perhaps"]
    length = ask(client, {"max_new_tokens": 0}, text=prompt)["meta_info"]["prompt_tokens"]
    found = ask(
        client,
        {"max_new_tokens": 0},
        text=[prompt + choice for choice in choices],
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=max(length - 2, 0),
    )
    for choice, answer in zip(choices, found, strict=True):
        listed = answer["meta_info"]["input_token_logprobs"]
        assert "".join(text for _, _, text in listed) == prompt[-2:] + choice
        assert all(logprob < 0 for logprob, _, _ in listed)
        assert answer["meta_info"]["cached_tokens"] >= length - 1


def test_the_end_of_text_ends_an_answer_and_leaves_no_text(byte_tokenizer: Tokenizer) -> None:
    with opened(ScriptedFace(byte_tokenizer, lambda _: "done")) as client:
        answer = ask(client, {"max_new_tokens": 20})
    assert answer["text"] == "done"
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS_ID}


def test_the_description_of_the_routes_names_their_fields(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    body = paths["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert paths["/generate"]["put"]["requestBody"]["content"]["application/json"]["schema"] == body
    assert {"text", "input_ids", "sampling_params", "rid", "logprob_start_len"} <= body["properties"].keys()
    options = body["properties"]["sampling_params"]["anyOf"][0]["properties"]
    assert post(client, text="", sampling_params=dict.fromkeys(options))
    assert {"/tokenize", "/v1/detokenize", "/tokenizer_info", "/flush_cache"} <= paths.keys()
