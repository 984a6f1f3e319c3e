"""What the harness asks of ours and of every peer, and the processes they run in.

Each contender runs in a process group of its own, which is stopped while others are measured: threads of an
idle runtime may spin, and a server may wake up. `Contender` is the seam; `ChildPeer` is one behind a pipe
(`child.py`), and the servers are in `servers.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from peers.child import Unavailable

Ids = Sequence[int]


class PeerFailed(Exception):
    """A peer that is there did not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Started:
    """What a contender says about itself. `load_s` counts compiling too, and is part of no rate."""

    version: str
    load_s: float
    notes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Run:
    """A whole batch by the wall clock of its client, and the generated ids of each request."""

    seconds: float
    outputs: list[list[int]]


@dataclass(frozen=True, slots=True)
class Stream:
    """One request: seconds to the first token, to the last one, and the ids."""

    first_s: float
    seconds: float
    output: list[int]


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probability of each choice of each item, and how many tokens were computed for it, where known."""

    seconds: float
    logprobs: list[list[float]]
    computed_tokens: int | None


@dataclass(frozen=True, slots=True)
class Item:
    """A question to score: one prompt and the continuations to weigh."""

    prompt: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]


class Contender(Protocol):
    """`exact` rows are float32 throughout; the others may round weights, activations, keys and values.

    `reuses` says whether a prefix that was computed before is found again; `scores` whether it can tell the
    log-probability of a given continuation. The batch it generates is greedy and has a fixed length.
    """

    name: str
    row: str
    exact: bool
    reuses: bool
    scores: bool

    def start(self) -> Started: ...

    def generate(self, prompts: Sequence[Ids], max_tokens: int, concurrency: int) -> Run: ...

    def stream(self, prompt: Ids, max_tokens: int) -> Stream: ...

    def score(self, items: Sequence[Item]) -> Scored: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def stop(self) -> None: ...


class ProcessGroup:
    """A process and its children, which are stopped, continued and ended together."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, piped: bool = False
    ) -> None:
        self.command, self.log = command, log
        log.parent.mkdir(parents=True, exist_ok=True)
        pipe = subprocess.PIPE if piped else subprocess.DEVNULL
        with log.open("wb") as messages:
            self.process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe if piped else messages,
                stderr=messages,
                env={**os.environ, **environment},
                start_new_session=True,
                text=piped,
                encoding="utf-8" if piped else None,
            )

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self._signal(signal.SIGKILL)  # children that outlive their parent
        self.process.wait()

    def tail(self) -> str:
        """The last words, for an error message."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class ChildPeer:
    """A contender that is a Python library: a script of this folder, run by the peer's own interpreter."""

    def __init__(
        self,
        name: str,
        row: str,
        *,
        python: Path,
        script: str,
        log: Path,
        options: Mapping[str, object],
        exact: bool,
        reuses: bool,
        scores: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.row, self.exact, self.reuses, self.scores = name, row, exact, reuses, scores
        self._command = [str(python), "-P", str(Path(__file__).resolve().parent / script)]
        self._log, self._options, self._environment = log, options, environment or {}
        self._group: ProcessGroup | None = None

    def start(self) -> Started:
        """Raises Unavailable for a row that this version does not have."""
        self._group = ProcessGroup(self._command, self._log, self._environment, piped=True)
        return Started(**self.ask("load", **self._options))

    def generate(self, prompts: Sequence[Ids], max_tokens: int, concurrency: int) -> Run:
        wanted = [list(prompt) for prompt in prompts]
        return Run(**self.ask("generate", prompts=wanted, max_tokens=max_tokens, concurrency=concurrency))

    def stream(self, prompt: Ids, max_tokens: int) -> Stream:
        return Stream(**self.ask("stream", prompt=list(prompt), max_tokens=max_tokens))

    def score(self, items: Sequence[Item]) -> Scored:
        wanted = [{"prompt": item.prompt, "choices": item.choices} for item in items]
        return Scored(**self.ask("score", items=wanted))

    def reload(self, **engine: object) -> None:
        """Load again in the same process, with some options of an engine changed. Only ours can."""
        options = dict(self._options)
        base = options["options"]
        assert isinstance(base, dict), "an engine has options"
        self.ask("load", **{**options, "options": {**base, **engine}})

    # Any: arguments and answers are JSON.
    def ask(self, command: str, **arguments: object) -> Any:
        """One command; raises Unavailable or PeerFailed with what the child says."""
        group = self._group
        assert group is not None, "a contender is started before it is asked"
        assert group.process.stdin is not None, "the child is piped"
        assert group.process.stdout is not None, "the child is piped"
        try:
            group.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            group.process.stdin.flush()
            line = group.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerFailed(f"{self.name} ({self.row}) ended: {group.tail()}")
        answer = json.loads(line)
        if "unavailable" in answer:
            raise Unavailable(answer["unavailable"])
        if "error" in answer:
            raise PeerFailed(f"{self.name} ({self.row}): {answer['error']}")
        return answer["answer"]

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
