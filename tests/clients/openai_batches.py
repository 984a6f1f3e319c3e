"""The openai package: files and batches."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import openai
from checks import MODEL, raised
from openai_common import FRANCE, GREEDY, QUESTION, client


def a_batch_of_requests_is_worked_off() -> None:
    bodies = [
        {"model": MODEL, "messages": QUESTION, "max_tokens": 20, "temperature": 0},
        {"model": MODEL, "messages": QUESTION, "max_tokens": 4, "temperature": 0},
        {"model": MODEL, "messages": [], "max_tokens": 4},
    ]
    lines = [_batch_line(str(number), body) for number, body in enumerate(bodies)]
    file = client.files.create(file=("asked.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")
    assert file.purpose == "batch"
    assert file.filename == "asked.jsonl"
    assert client.files.content(file.id).text.splitlines() == lines
    assert file.id in [one.id for one in client.files.list()]
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"whose": "ours"},
    )
    assert batch.metadata == {"whose": "ours"}
    batch = _finished(batch.id)
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    assert batch.output_file_id
    answers = {one["custom_id"]: one for one in _lines_of(batch.output_file_id)}
    body = answers["0"]["response"]["body"]
    assert answers["0"]["response"]["status_code"] == 200
    assert body["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answers["1"]["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert batch.error_file_id
    [failed] = _lines_of(batch.error_file_id)
    assert failed["custom_id"] == "2"
    assert batch.id in [one.id for one in client.batches.list()]
    assert client.files.delete(file.id).deleted
    raised(openai.NotFoundError, client.files.retrieve, file_id=file.id)


def a_batch_can_be_cancelled() -> None:
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 400, "ignore_eos": True}
    lines = "\n".join(_batch_line(str(number), body, "/v1/completions") for number in range(40))
    file = client.files.create(file=("long.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    assert _finished(batch.id).status == "cancelled"


def a_batch_of_completions_keeps_the_requests_apart() -> None:
    prompts = [FRANCE, "One, two,", "The opposite of hot is"]
    bodies = [{"model": MODEL, "prompt": prompt, "max_tokens": 4, "temperature": 0} for prompt in prompts]
    lines = "\n".join(_batch_line(f"n{at}", body, "/v1/completions") for at, body in enumerate(bodies))
    file = client.files.create(file=("texts.jsonl", lines.encode()), purpose="batch")
    asked: dict[str, Any] = {"endpoint": "/v1/completions", "completion_window": "24h"}
    batch = _finished(client.batches.create(input_file_id=file.id, **asked).id)
    told = {one["custom_id"]: one["response"]["body"] for one in _lines_of(batch.output_file_id)}
    for at, prompt in enumerate(prompts):
        alone = client.completions.create(prompt=prompt, max_tokens=4, **GREEDY)
        assert told[f"n{at}"]["choices"][0]["text"] == alone.choices[0].text


def a_file_that_is_no_batch_is_told() -> None:
    asked: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    error = raised(openai.APIStatusError, client.batches.create, input_file_id="file-none", **asked)
    assert error.status_code in (400, 404)
    file = client.files.create(file=("bad.jsonl", b"no JSON\n"), purpose="batch")
    try:
        batch = _finished(client.batches.create(input_file_id=file.id, **asked).id)
    except openai.BadRequestError:
        return
    assert batch.status == "failed"
    assert batch.errors.data[0].message


def _batch_line(name: str, body: dict[str, Any], url: str = "/v1/chat/completions") -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def _finished(batch_id: str) -> Any:
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        time.sleep(0.1)
    raise AssertionError(f"the batch is {batch.status} after a minute")


def _lines_of(file_id: str) -> list[Any]:
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
