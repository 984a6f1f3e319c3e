"""Endpoint: a server under measurement, in a process group of its own on a port that was free, and the load
generators that ask it.

Knows how servers are started and what they tell about themselves; not what is measured.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
from peers.base import ChildPeer, PeerFailed, ProcessGroup

START_SECONDS = 180.0
IDLE_SECONDS = 30.0
_ADDRESS = re.compile(r"serving at http://127\.0\.0\.1:(\d+)")
_FOLDER = Path(__file__).resolve().parent

SERVE = (sys.executable, "-P", "-m", "radixlm", "serve", "--port", "0")
LAUNCH = (sys.executable, "-P", str(_FOLDER / "http_launcher.py"))


@dataclass(frozen=True, slots=True)
class Pages:
    """`active`: sequences that run or wait. `leased`: pages they hold. `used`: all that are not free."""

    active: int
    leased: int
    used: int


class Endpoint:
    """`command` announces its address on standard error, as `radixlm serve` does."""

    def __init__(self, command: Sequence[str], log: Path, key: str | None = None) -> None:
        self._command, self._log, self._key = command, log, key
        self._group: ProcessGroup | None = None
        self.port = 0

    def start(self) -> None:
        self._group = ProcessGroup(self._command, self._log, {})
        begun = monotonic()
        while not (found := _ADDRESS.search(self._log.read_text(encoding="utf-8", errors="replace"))):
            if self._group.process.poll() is not None:
                raise PeerFailed(f"{self._command[-1]} ended: {self._group.tail()}")
            if monotonic() - begun > START_SECONDS:
                raise PeerFailed(f"the server was not ready in {START_SECONDS:.0f} s: {self._group.tail()}")
            time.sleep(0.1)
        self.port = int(found[1])

    def __enter__(self) -> Endpoint:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._started.process.pid

    # -- questions ---------------------------------------------------------------------------------

    # Any: bodies are JSON.
    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """The body of an answer with status 200: an object, or text that is no JSON. Raises PeerFailed."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise PeerFailed(f"{path}: {answer.status} {content[:300]!r}")
        return json.loads(content) if "json" in answer.getheader("Content-Type", "") else content

    def metrics(self) -> dict[str, float]:
        """The value of each metric, labels added up."""
        found: dict[str, float] = {}
        for line in self.ask("GET", "/metrics").splitlines():
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def cpu_seconds(self) -> float:
        """Of the server and its children, user and system."""
        server = psutil.Process(self.pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def resident_bytes(self) -> int:
        server = psutil.Process(self.pid)
        return sum(process.memory_info().rss for process in (server, *server.children(recursive=True)))

    def wait_idle(self, seconds: float = IDLE_SECONDS) -> float:
        """Seconds until nothing runs and nothing waits. Raises PeerFailed if that is never so."""
        begun = monotonic()
        while monotonic() - begun < seconds:
            found = self.metrics()
            if not found["vllm:num_requests_running"] and not found["vllm:num_requests_waiting"]:
                return monotonic() - begun
            time.sleep(0.05)
        raise PeerFailed(f"requests still run {seconds:.0f} s after all clients have left")

    def pages(self) -> Pages:
        figures, tree = self.metrics(), self.ask("GET", "/radix?nodes=1")
        active = figures["vllm:num_requests_running"] + figures["vllm:num_requests_waiting"]
        return Pages(int(active), tree["leased_pages"], tree["num_pages"] - tree["free_pages"])

    # -- commands ----------------------------------------------------------------------------------

    def flush(self) -> None:
        self.ask("POST", f"/flush_cache?timeout={IDLE_SECONDS:.0f}")

    def signal(self, number: int) -> None:
        self._started.process.send_signal(number)

    def wait_exit(self, seconds: float) -> tuple[int, float]:
        """The exit code, and when it came on the monotonic clock."""
        code = self._started.process.wait(seconds)
        return code, monotonic()

    def pause(self) -> None:
        self._started.pause()

    def resume(self) -> None:
        self._started.resume()

    def tail(self) -> str:
        return self._started.tail()

    def stop(self) -> None:
        if self._group is not None:
            self._group.end()
            self._group = None

    @property
    def _started(self) -> ProcessGroup:
        assert self._group is not None, "a server is started before it is used"
        return self._group


class LoadGenerator(ChildPeer):
    """A process of http_client_child.py; `ask` takes the names of its commands."""

    def __init__(self, name: str, logs: Path) -> None:
        super().__init__(
            name,
            "load",
            python=Path(sys.executable),
            script=str(_FOLDER / "http_client_child.py"),
            log=logs / f"{name}.log",
            options={},
            exact=True,
            reuses=False,
            scores=False,
        )

    def __enter__(self) -> LoadGenerator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
