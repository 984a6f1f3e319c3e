"""/v1/batches: results that survive any end of the process, and the whole over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.server.batch_journal import read_journal
from radixlm.runtime.server.batch_runner import BatchRunner
from radixlm.runtime.server.batch_state import Batch, Order
from radixlm.runtime.server.batch_store import BatchStore
from radixlm.runtime.server.data_folder import DataFolder, open_data
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.failures import Aborted, Busy, TookTooLong
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.tokenizer import Tokenizer
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

PATIENCE = 30
ENDPOINT = "/v1/completions"
Fields = dict[str, Any]
Lines = list[Fields]
Answer = Callable[[Fields, str], Awaitable[Mapping[str, object]]]


def line(custom_id: str, prompt: object = "text", **body: Any) -> Fields:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": ENDPOINT,
        "body": {"prompt": prompt, **body},
    }


def jsonl(lines: Lines) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def read(path: Path) -> Lines:
    return [json.loads(one) for one in path.read_bytes().splitlines()]


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await test

    asyncio.run(bounded())


# -- the runner ------------------------------------------------------------------------------------


async def no_pause(_: float) -> None:
    await asyncio.sleep(0)


async def echo(body: Fields, _: str) -> Fields:
    await asyncio.sleep(0)
    return {"text": body["prompt"]}


def order(window: str = "24h") -> Order:
    return Order("file-x", ENDPOINT, window, None)


class Bench:
    """A data folder and a runner on it, with answers of the test's own."""

    def __init__(self, root: Path, answer: Answer = echo, **more: Any) -> None:
        data = open_data(str(root))
        assert data is not None
        self.data: DataFolder = data
        self.root = root
        self.runner = BatchRunner(
            data,
            {ENDPOINT: answer},
            ServerSettings(**more.pop("settings", {})),
            **{"sleep": no_pause, **more},
        )

    def add(self, lines: Lines | bytes, tenant: str = "", window: str = "24h") -> Batch:
        source = self.root / "source"
        source.write_bytes(lines if isinstance(lines, bytes) else jsonl(lines))
        batch = self.data.batches.create(tenant, order(window), source)
        source.unlink()
        self.data.changes.put_nowait((tenant, batch.id))
        return batch

    def cancel(self, batch: Batch) -> None:
        self.data.batches.update(batch, lambda found: found.cancelling(1))
        self.data.changes.put_nowait((batch.tenant, batch.id))

    def now(self, batch: Batch) -> Batch:
        return self.data.batches.get(batch.tenant, batch.id)

    def results(self, batch: Batch) -> tuple[Lines, Lines]:
        """Output and errors of a batch that is over."""
        batch = self.now(batch)
        ids = (batch.output_file_id, batch.error_file_id)
        output, errors = (
            [] if one is None else read(self.data.files.content(batch.tenant, one)) for one in ids
        )
        return output, errors

    async def work(self, *batches: Batch) -> None:
        """Until those are over, or all that is unfinished."""
        task = asyncio.create_task(self.runner.run())
        waited = batches or tuple(self.data.batches.unfinished())
        while not all(self.now(one).is_over for one in waited):
            assert not task.done(), "the runner never ends by itself"
            await asyncio.sleep(0.001)
        await self.stop(task)

    async def stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait((task,))
        self.data.close()


def test_a_batch_ends_with_one_result_a_line(tmp_path: Path) -> None:
    async def answer(body: Fields, tenant: str) -> Fields:
        if body["prompt"] == "bad":
            raise InvalidRequest("prompt must be good, got 'bad'")
        if body["prompt"] == "bug":
            raise KeyError("a secret")
        if body["prompt"] == "unwritable":
            return {"text": object()}
        return {"text": body["prompt"], "tenant": tenant, "priority": body["priority"]}

    async def test() -> None:
        bench = Bench(tmp_path, answer)
        batch = bench.add([line("1", "one"), line("2", "bad"), line("3", "bug"), line("4", "unwritable")])
        await bench.work(batch)
        output, errors = bench.results(batch)
        [found] = output
        assert found["id"].startswith("batch_req_")
        assert found["response"].pop("request_id").startswith("req-")
        assert (found["custom_id"], found["error"]) == ("1", None)
        body = {"text": "one", "tenant": "", "priority": -1000}
        assert found["response"] == {"status_code": 200, "body": body}
        told = {one["custom_id"]: one["response"] for one in errors}
        assert {name: one["status_code"] for name, one in told.items()} == {"2": 400, "3": 500, "4": 500}
        assert told["2"]["body"]["error"]["message"] == "prompt must be good, got 'bad'"
        assert "secret" not in json.dumps(errors)
        wire = bench.now(batch).to_json()
        assert (wire["status"], wire["errors"]) == ("completed", None)
        assert wire["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        assert None not in (wire["in_progress_at"], wire["finalizing_at"], wire["completed_at"])
        left = [path.name for path in bench.data.batches.folder(batch).iterdir()]
        assert left == ["batch.json"]

    run(test())


def test_a_batch_with_broken_lines_fails_as_a_whole(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path)
        batch = bench.add(jsonl([line("1")]) + b"{\n")
        await bench.work(batch)
        wire: Any = bench.now(batch).to_json()
        assert (wire["status"], wire["output_file_id"], wire["error_file_id"]) == ("failed", None, None)
        assert wire["errors"]["object"] == "list"
        [error] = wire["errors"]["data"]
        assert (error["code"], error["line"], error["param"]) == ("invalid_json_line", 2, None)
        assert wire["failed_at"] is not None

    run(test())


def test_a_line_that_is_aborted_with_other_requests_runs_again(tmp_path: Path) -> None:
    async def test() -> None:
        calls: Counter[str] = Counter()

        async def answer(body: Fields, _: str) -> Fields:
            calls[body["prompt"]] += 1
            if calls[body["prompt"]] < 3:
                raise Aborted("the request was aborted")
            return {}

        bench = Bench(tmp_path, answer, sleep=no_pause)
        batch = bench.add([line("1", "a"), line("2", "b")])
        await bench.work(batch)
        output, errors = bench.results(batch)
        assert sorted(one["custom_id"] for one in output) == ["1", "2"]
        assert errors == []

    run(test())


def test_a_busy_server_is_asked_again_and_a_late_line_some_times(tmp_path: Path) -> None:
    async def test() -> None:
        calls: Counter[str] = Counter()
        pauses: list[float] = []

        async def answer(body: Fields, _: str) -> Fields:
            calls[body["prompt"]] += 1
            if body["prompt"] == "late":
                raise TookTooLong("over the time")
            if calls[body["prompt"]] < 12:
                raise Busy("too much waits")
            return {}

        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await no_pause(seconds)

        bench = Bench(tmp_path, answer, sleep=pause)
        batch = bench.add([line("1", "busy"), line("2", "late")])
        await bench.work(batch)
        output, errors = bench.results(batch)
        assert [one["custom_id"] for one in output] == ["1"]
        assert [(one["custom_id"], one["response"]["status_code"]) for one in errors] == [("2", 504)]
        assert (calls["busy"], calls["late"]) == (12, 3)
        assert min(pauses) < max(pauses) <= 10, "ever longer, within bounds"

    run(test())


def test_a_process_that_ends_anywhere_loses_no_line_and_repeats_none(tmp_path: Path) -> None:
    """The folder is copied at every answer and at every change of state, as a kill would leave it then. Each
    copy is worked on to its end."""

    async def test() -> None:
        copies: list[Path] = []

        def copy() -> None:
            copies.append(tmp_path / f"copy{len(copies)}")
            shutil.copytree(tmp_path / "original", copies[-1])

        def now() -> float:
            copy()
            return 5.0

        async def answer(body: Fields, _: str) -> Fields:
            copy()
            if body["prompt"] == "1":
                raise InvalidRequest("no")
            return {"text": body["prompt"]}

        bench = Bench(tmp_path / "original", answer, now=now, settings={"max_queued": 8})
        batch = bench.add([line(f"{n}", f"{n}") for n in range(6)])
        await bench.work(batch)
        statuses = set()
        for number, folder in enumerate(copies):
            if number % 2:
                for torn in folder.glob("batches/open/*/*put.jsonl"):
                    if torn.name == "output.jsonl":
                        with torn.open("ab") as file:
                            file.write(b'{"id": "batch_req_1", "custom_id": "5", "resp')
            ran: list[str] = []

            async def noted(body: Fields, _: str, ran: list[str] = ran) -> Fields:
                ran.append(body["prompt"])
                if body["prompt"] == "1":
                    raise InvalidRequest("no")
                return {"text": body["prompt"]}

            again = Bench(folder, noted)
            before = again.now(batch)
            statuses.add(before.status)
            done = read_journal(again.data.batches.folder(batch))
            await again.work()
            output, errors = again.results(batch)
            assert sorted(one["custom_id"] for one in output) == ["0", "2", "3", "4", "5"]
            assert [one["custom_id"] for one in errors] == ["1"]
            if not before.is_over:
                assert {*ran}.isdisjoint(done.output.ids | done.errors.ids)
                assert len(ran) == 6 - len(done.output.ids | done.errors.ids)
            assert again.now(batch).to_json()["request_counts"] == {"total": 6, "completed": 5, "failed": 1}
            assert len(again.data.files.page("", limit=9).items) == 2
        assert statuses >= {"validating", "in_progress", "finalizing"}

    run(test())


def test_a_cancelled_batch_stops_and_keeps_what_is_done(tmp_path: Path) -> None:
    async def test() -> None:
        ended: list[str] = []

        async def answer(body: Fields, _: str) -> Fields:
            if body["prompt"] < "3":
                return {}
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(body["prompt"])
            return {}

        bench = Bench(tmp_path, answer)
        batch = bench.add([line(f"{n}", f"{n}") for n in range(9)])
        behind = bench.add([line("x", "0")])
        task = asyncio.create_task(bench.runner.run())
        while bench.now(batch).counts.completed < 3:
            await asyncio.sleep(0.001)
        bench.cancel(batch)
        assert bench.now(batch).status == "cancelling"
        bench.cancel(batch)
        while not (bench.now(batch).is_over and bench.now(behind).is_over):
            await asyncio.sleep(0.001)
        await bench.stop(task)
        output, errors = bench.results(batch)
        assert (sorted(one["custom_id"] for one in output), errors) == (["0", "1", "2"], [])
        assert sorted(ended) == ["3", "4", "5", "6", "7", "8"], "what was running was ended"
        wire: Any = bench.now(batch).to_json()
        assert (wire["status"], wire["request_counts"]["completed"]) == ("cancelled", 3)
        assert None not in (wire["cancelling_at"], wire["cancelled_at"])
        with pytest.raises(InvalidRequest, match="cancelled"):
            bench.cancel(batch)
        assert bench.now(behind).status == "completed"

    run(test())


def test_a_batch_cancelled_before_its_turn_runs_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        bench = Bench(tmp_path)
        batch = bench.add([line("1")])
        bench.cancel(batch)
        await bench.work(batch)
        assert bench.now(batch).status == "cancelled"
        assert bench.results(batch) == ([], [])

    run(test())


@pytest.mark.parametrize("age", [3599.9, 3601.0])
def test_a_batch_that_is_late_says_which_lines_have_not_run(tmp_path: Path, age: float) -> None:
    async def test() -> None:
        async def answer(body: Fields, _: str) -> Fields:
            if body["prompt"] > "2":
                await asyncio.Event().wait()
            return {}

        bench = Bench(tmp_path, answer)
        batch = bench.add([line(f"{n}", f"{n}") for n in range(5)], window="1h")
        task = asyncio.create_task(bench.runner.run())
        while bench.now(batch).counts.completed < 3:
            await asyncio.sleep(0.001)
        await bench.stop(task)
        later = Bench(tmp_path, answer, now=lambda: batch.created_at + age)
        await later.work()
        output, errors = later.results(batch)
        assert sorted(one["custom_id"] for one in output) == ["0", "1", "2"]
        told = [(one["custom_id"], one["response"], one["error"]["code"]) for one in errors]
        assert sorted(told) == [("3", None, "batch_expired"), ("4", None, "batch_expired")]
        wire: Any = later.now(batch).to_json()
        assert (wire["status"], wire["expired_at"]) == ("expired", batch.created_at + int(age))
        assert wire["request_counts"] == {"total": 5, "completed": 3, "failed": 2}

    run(test())


def test_lines_in_flight_are_few_and_tenants_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async def test() -> None:
        running: Counter[str] = Counter()
        most = 0
        finished: list[str] = []

        async def answer(body: Fields, tenant: str) -> Fields:
            nonlocal most
            running[tenant] += 1
            most = max(most, running.total())
            for _ in range(3):
                await asyncio.sleep(0)
            running[tenant] -= 1
            finished.append(body["prompt"])
            return {}

        bench = Bench(tmp_path, answer)
        first = bench.add([line(f"{n}", "first") for n in range(300)], "a" * 32)
        second = bench.add([line(f"{n}", "second") for n in range(3)], "a" * 32)
        other = bench.add([line(f"{n}", "other") for n in range(3)], "b" * 32)
        await bench.work(first, second, other)
        assert most == 64
        assert finished.index("second") == len(finished) - finished[::-1].index("second") - 3
        assert finished.index("second") >= 299
        assert finished.index("other") < 299

    run(test())


def test_a_disk_that_refuses_is_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        async def mended(_: float) -> None:
            blocked.rmdir()

        bench = Bench(tmp_path, sleep=mended)
        batch = bench.add([line("1"), line("2")])
        blocked = bench.data.batches.folder(batch) / "errors.jsonl"
        blocked.mkdir()
        await bench.work(batch)
        assert len(bench.results(batch)[0]) == 2

    run(test())


def test_unfinished_batches_are_bounded_for_each_tenant(tmp_path: Path) -> None:
    store, source = BatchStore(tmp_path / "batches", most_unfinished=1), tmp_path / "source"
    source.write_bytes(b"")
    store.create("", order(), source)
    with pytest.raises(InvalidRequest, match="1 batches are unfinished"):
        store.create("", order(), source)
    store.create("a" * 32, order(), source)


# -- over HTTP -------------------------------------------------------------------------------------

MINE = {"Authorization": "Bearer mine"}
THEIRS = {"Authorization": "Bearer theirs"}
Client = httpx.Client


def open_client(url: str) -> Client:
    return httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers=MINE)


@pytest.fixture(scope="module")
def client(local_engine: LocalEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("data")
    settings = ServerSettings(api_keys=("mine", "theirs"), data_dir=str(folder))
    with running_server(local_engine, settings) as endpoint, open_client(endpoint.url) as found:
        yield found


def started(client: Client, lines: Lines, endpoint: str = ENDPOINT, **more: Any) -> Fields:
    sent = {"file": ("lines.jsonl", jsonl(lines))}
    file = client.post("/v1/files", files=sent, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **more}
    reply = client.post("/v1/batches", json=body)
    assert reply.status_code == 200, reply.text
    found: Fields = reply.json()
    return found


def ended(client: Client, batch: Fields) -> Fields:
    for _ in range(5000):
        found: Fields = client.get(f"/v1/batches/{batch['id']}").json()
        if found["status"] in ("completed", "failed", "cancelled", "expired"):
            return found
    raise AssertionError(f"the batch does not end: {found}")


def content(client: Client, file_id: str) -> dict[str, Fields]:
    reply = client.get(f"/v1/files/{file_id}/content")
    return {one["custom_id"]: one for one in map(json.loads, reply.content.splitlines())}


def test_a_batch_gives_what_the_same_requests_give(client: Client) -> None:
    bodies: Lines = [{"prompt": f"the cat in {n}", "max_tokens": 6, "temperature": 0} for n in range(8)]
    lines = [
        {"custom_id": f"{n}", "method": "POST", "url": ENDPOINT, "body": one} for n, one in enumerate(bodies)
    ]
    lines.append(line("bad", temperature="hot"))
    lines.append(line("stream", stream=True))
    batch = started(client, lines, metadata={"name": "evening"})
    assert (batch["object"], batch["status"], batch["errors"]) == ("batch", "validating", None)
    assert (batch["metadata"], batch["expires_at"]) == ({"name": "evening"}, batch["created_at"] + 86400)
    found = ended(client, batch)
    assert found["status"] == "completed"
    assert found["request_counts"] == {"total": 10, "completed": 8, "failed": 2}
    output = content(client, found["output_file_id"])
    for number, body in enumerate(bodies):
        told = output[f"{number}"]["response"]["body"]
        assert told["choices"] == client.post(ENDPOINT, json=body).json()["choices"]
        assert told["object"] == "text_completion"
    errors = content(client, found["error_file_id"])
    assert {name: one["response"]["status_code"] for name, one in errors.items()} == {
        "bad": 400,
        "stream": 400,
    }
    assert "'hot'" in errors["bad"]["response"]["body"]["error"]["message"]
    assert client.get(f"/v1/files/{found['output_file_id']}").json()["purpose"] == "batch_output"


def test_chats_run_in_batches_too(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
    url = "/v1/chat/completions"
    lines = [{"custom_id": "chat", "method": "POST", "url": url, "body": body}]
    found = ended(client, started(client, lines, url))
    told = content(client, found["output_file_id"])["chat"]["response"]["body"]
    assert told["object"] == "chat.completion"
    assert told["choices"] == client.post(url, json=body).json()["choices"]


def test_batches_are_listed_newest_first_and_only_to_their_key(client: Client) -> None:
    ids = [ended(client, started(client, [line("1", max_tokens=1)]))["id"] for _ in range(3)]
    page = client.get("/v1/batches", params={"limit": 2}).json()
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    behind = client.get("/v1/batches", params={"after": ids[1], "limit": 1}).json()
    assert [one["id"] for one in behind["data"]] == [ids[0]]
    assert client.get("/v1/batches", headers=THEIRS).json()["data"] == []
    for path, method in ((ids[0], "GET"), (f"{ids[0]}/cancel", "POST")):
        reply = client.request(method, f"/v1/batches/{path}", headers=THEIRS)
        assert (reply.status_code, repr(ids[0]) in reply.json()["error"]["message"]) == (404, True)
    assert client.post(f"/v1/batches/{ids[0]}/cancel").status_code == 400


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_file_id": "file-none"}, "'file-none'"),
        ({"input_file_id": None}, "input_file_id must be text, got None"),
        ({"endpoint": "/v1/embeddings"}, "'/v1/embeddings'"),
        ({"completion_window": "1w"}, "'1w'"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 1}}, "got 1"),
        ({"metadata": {str(n): "" for n in range(17)}}, "16 pairs"),
        ({"metadata": {"k" * 65: ""}}, "64 characters"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(client: Client, change: Fields, said: str) -> None:
    sent = {"file": ("lines.jsonl", jsonl([line("1")]))}
    file = client.post("/v1/files", files=sent, data={"purpose": "batch"}).json()["id"]
    body = {"input_file_id": file, "endpoint": ENDPOINT, "completion_window": "24h", **change}
    reply = client.post("/v1/batches", json=body)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
    reply = client.post(
        "/v1/batches", json={**body, "input_file_id": file, "endpoint": ENDPOINT}, headers=THEIRS
    )
    assert reply.status_code == 400, "files of another key are none"


def test_a_server_that_stops_in_the_middle_goes_on_after_a_restart(
    byte_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    settings = ServerSettings(api_keys=("mine",), data_dir=str(tmp_path), shutdown_timeout=0.2)
    held = ScriptedFace(byte_tokenizer, lambda _: "answer", hold=2)
    with running_server(held, settings) as endpoint, open_client(endpoint.url) as client:
        batch = started(client, [line(f"{n}") for n in range(5)])
        while not held.requests:
            assert client.get(f"/v1/batches/{batch['id']}").json()["status"] in ("validating", "in_progress")
    assert {one.priority for one in held.requests} == {-1000}
    face = ScriptedFace(byte_tokenizer, lambda _: "answer")
    with running_server(face, settings) as endpoint, open_client(endpoint.url) as client:
        found = ended(client, batch)
        assert found["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert len(content(client, found["output_file_id"])) == 5


def test_a_batch_is_cancelled_over_http(byte_tokenizer: Tokenizer, tmp_path: Path) -> None:
    settings = ServerSettings(api_keys=("mine",), data_dir=str(tmp_path), shutdown_timeout=0.2)
    held = ScriptedFace(byte_tokenizer, lambda _: "answer", hold=1)
    with running_server(held, settings) as endpoint, open_client(endpoint.url) as client:
        batch = started(client, [line(f"{n}") for n in range(5)])
        while len(held.requests) < 5:
            client.get(f"/v1/batches/{batch['id']}")
        reply = client.post(f"/v1/batches/{batch['id']}/cancel")
        assert (reply.status_code, reply.json()["status"]) == (200, "cancelling")
        found = ended(client, batch)
        assert (found["status"], found["output_file_id"]) == ("cancelled", None)
        assert endpoint.context.service.waiting.active == 0, "nothing of it runs any more"


def test_without_a_folder_everything_is_refused_with_the_flag(byte_tokenizer: Tokenizer) -> None:
    face = ScriptedFace(byte_tokenizer, lambda _: "text")
    calls = [("GET", "files"), ("GET", "files/x"), ("GET", "files/x/content"), ("DELETE", "files/x")]
    calls += [("POST", "files"), ("GET", "batches"), ("POST", "batches"), ("GET", "batches/x")]
    calls += [("POST", "batches/x/cancel")]
    with running_server(face) as endpoint, open_client(endpoint.url) as client:
        for method, path in calls:
            reply = client.request(method, f"/v1/{path}")
            assert (reply.status_code, "--data-dir" in reply.json()["error"]["message"]) == (400, True)
