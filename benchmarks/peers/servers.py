"""Peers behind HTTP: vLLM and llama.cpp. Requests are token ids, and the client's time counts.

A server is started on a free port of this machine and is ready when it says so; compiling is part of that.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import perf_counter
from typing import Any

from peers.base import Ids, Item, PeerFailed, ProcessGroup, Run, Scored, Started, Stream

START_LIMIT = 600.0
"""Seconds a server may take to load and compile."""


class Server:
    """A process group that answers HTTP on 127.0.0.1."""

    def __init__(
        self, command: Callable[[int], Sequence[str]], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._command, self._log, self._environment = command, log, environment
        self._group: ProcessGroup | None = None
        self._port = 0

    def start(self, health: str) -> float:
        """Seconds until it was ready."""
        start = perf_counter()
        self._port = _free_port()
        self._group = ProcessGroup(self._command(self._port), self._log, self._environment)
        while not self._is_ready(health):
            if self._group.process.poll() is not None:
                raise PeerFailed(f"{self._group.command[0]} ended: {self._group.tail()}")
            if perf_counter() - start > START_LIMIT:
                raise PeerFailed(f"{self._group.command[0]} was not ready in {START_LIMIT:.0f} s")
            time.sleep(0.2)
        return perf_counter() - start

    def _is_ready(self, health: str) -> bool:
        try:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
            connection.request("GET", health)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False

    # Any: answers are JSON.
    def get(self, path: str) -> Any:
        return json.loads(self._send("GET", path, None).read())

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        return json.loads(self._send("POST", path, body).read())

    def events(self, path: str, body: Mapping[str, object]) -> Iterator[Any]:
        """What a streamed answer holds, event by event."""
        for line in self._send("POST", path, {**body, "stream": True}):
            text = line.decode().strip()
            if text.startswith("data:") and text != "data: [DONE]":
                yield json.loads(text.removeprefix("data:"))

    def _send(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        # A new one each time: a server may close an idle one, and this costs a tenth of a millisecond.
        connection = HTTPConnection("127.0.0.1", self._port, timeout=600)
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise PeerFailed(f"{path}: {answer.status} {answer.read()[:300]!r}")
        return answer

    def pause(self) -> None:
        if self._group is not None:
            self._group.pause()

    def resume(self) -> None:
        if self._group is not None:
            self._group.resume()

    def stop(self) -> None:
        if self._group is not None:
            self._group.end()
            self._group = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _at_once(
    count: int, run: Callable[[Any], list[int]], wanted: Sequence[Any]
) -> tuple[float, list[list[int]]]:
    start = perf_counter()
    with ThreadPoolExecutor(count) as pool:
        outputs = list(pool.map(run, wanted))
    return perf_counter() - start, outputs


class Vllm:
    """`vllm serve` of a float32 Hugging Face folder, prefix caching on, which is its default."""

    name, row, exact, reuses, scores = "vllm", "float32", True, True, True

    def __init__(self, python: Path, model: Path, log: Path, threads: int) -> None:
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        fixed = ["--dtype", "float32", "--block-size", "32", "--max-model-len", "4096"]
        program = str(python.parent / "vllm")
        self._model = str(model)
        self._server = Server(
            lambda port: [program, "serve", self._model, *fixed, "--host", "127.0.0.1", "--port", str(port)],
            log,
            environment,
        )
        self.pause, self.resume, self.stop = self._server.pause, self._server.resume, self._server.stop

    def start(self) -> Started:
        load_s = self._server.start("/health")
        return Started(self._server.get("/version")["version"], load_s, {"dtype": "float32"})

    def generate(self, prompts: Sequence[Ids], max_tokens: int, concurrency: int) -> Run:
        def one(prompt: Ids) -> list[int]:
            answer = self._server.post("/v1/completions", self._body(prompt, max_tokens))
            ids: list[int] = answer["choices"][0]["token_ids"]
            return ids

        return Run(*_at_once(concurrency, one, prompts))

    def stream(self, prompt: Ids, max_tokens: int) -> Stream:
        start, first, output = perf_counter(), None, []
        for event in self._server.events("/v1/completions", self._body(prompt, max_tokens)):
            ids = event["choices"][0].get("token_ids") or [] if event["choices"] else []
            if ids and first is None:
                first = perf_counter() - start
            output += ids
        assert first is not None, "at least one token came"
        return Stream(first, perf_counter() - start, output)

    def score(self, items: Sequence[Item]) -> Scored:
        """A request for each choice: log-probabilities of a prompt belong to that prompt."""
        found: dict[tuple[int, int], float] = {}

        def one(place: tuple[int, int]) -> list[int]:
            item = items[place[0]]
            choice = item.choices[place[1]]
            ids = [*item.prompt, *choice]
            body = {**self._body(ids, 1), "prompt_logprobs": 0}
            told = self._server.post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
            last = zip(told[-len(choice) :], choice, strict=True)
            found[place] = sum(entry[str(token)]["logprob"] for entry, token in last)
            return []

        places = [(i, j) for i, item in enumerate(items) for j in range(len(item.choices))]
        seconds, _ = _at_once(16, one, places)
        logprobs = [[found[i, j] for j in range(len(item.choices))] for i, item in enumerate(items)]
        return Scored(seconds, logprobs, None)

    def _body(self, prompt: Ids, max_tokens: int) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }


class LlamaCpp:
    """`llama-server` on the GGUF file as it is, with 16 slots that have a memory of keys and values each.

    Over one memory for all (`-kvu`) the rows of a batch meet each other's keys too, masked, which is slower.
    """

    name, row, exact, reuses, scores = "llamacpp", "Q4_1", False, True, False

    def __init__(self, program: Path, model: Path, log: Path, threads: int) -> None:
        fixed = ["-m", str(model), "-t", str(threads), "-np", "16", "-no-kvu", "-cb", "-c", "32768"]
        self._server = Server(
            lambda port: [str(program), *fixed, "--host", "127.0.0.1", "--port", str(port), "--no-webui"],
            log,
            {},
        )
        self.pause, self.resume, self.stop = self._server.pause, self._server.resume, self._server.stop

    def start(self) -> Started:
        load_s = self._server.start("/health")
        shown = self._server.get("/props")
        return Started(str(shown.get("build_info", "unknown")), load_s, {"slots": shown.get("total_slots")})

    def generate(self, prompts: Sequence[Ids], max_tokens: int, concurrency: int) -> Run:
        def one(prompt: Ids) -> list[int]:
            ids: list[int] = self._server.post("/completion", _llama_body(prompt, max_tokens))["tokens"]
            return ids

        return Run(*_at_once(concurrency, one, prompts))

    def stream(self, prompt: Ids, max_tokens: int) -> Stream:
        start, first, output = perf_counter(), None, []
        for event in self._server.events("/completion", _llama_body(prompt, max_tokens)):
            ids = event.get("tokens") or []
            if ids and first is None:
                first = perf_counter() - start
            if not event.get("stop"):
                output += ids
        assert first is not None, "at least one token came"
        return Stream(first, perf_counter() - start, output)

    def score(self, items: Sequence[Item]) -> Scored:
        raise PeerFailed("llama-server tells no log-probabilities of a prompt")


def _llama_body(prompt: Ids, max_tokens: int) -> dict[str, object]:
    return {
        "prompt": list(prompt),
        "n_predict": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": True,
        "return_tokens": True,
    }
