"""Bench: what every part of bench_http.py has: report, options, a load generator, servers, prompts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from common import MODEL, Report
from http_endpoint import LAUNCH, SERVE, Endpoint, LoadGenerator
from workloads import Ids

from radixlm.runtime.tokenizer import Tokenizer

KV_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Bench:
    report: Report
    logs: Path
    client: LoadGenerator
    tokenizer: Tokenizer

    @property
    def options(self) -> argparse.Namespace:
        return self.report.options

    @property
    def engine_options(self) -> dict[str, object]:
        """The same on both sides, in a server and without one; the rest are the defaults."""
        return {"kv_memory": KV_MEMORY, "quantization": self.options.quantization}

    def served(self, name: str, *flags: str, key: str | None = None) -> Endpoint:
        """`radixlm serve` with these flags."""
        return Endpoint((*SERVE, *self._engine_flags(), *flags), self.logs / f"{name}.log", key)

    def launched(self, name: str, *flags: str) -> Endpoint:
        """The same server from http_launcher.py."""
        return Endpoint((*LAUNCH, *self._engine_flags(), *flags), self.logs / f"{name}.log")

    def texts(self, prompts: Sequence[Ids]) -> list[str]:
        return [self.tokenizer.decode(prompt) for prompt in prompts]

    def _engine_flags(self) -> list[str]:
        fields = {"model": MODEL, "threads": self.options.threads, **self.engine_options}
        return [
            part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))
        ]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies; of few values the nearest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def milliseconds(values: Sequence[float], *shares: float) -> str:
    return " / ".join(f"{1000 * quantile(values, share):.1f}" for share in shares) + " ms"


class Pausable(Protocol):
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Turns:
    """Processes of which one runs at a time: threads of the others may spin, and a server may wake up."""

    def __init__(self, *processes: Pausable) -> None:
        for process in processes:
            process.pause()

    @contextmanager
    def of(self, process: Pausable) -> Iterator[None]:
        process.resume()
        try:
            yield
        finally:
            process.pause()
