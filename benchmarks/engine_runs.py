"""Ways to run an engine for a measurement: whole batches, single steps of decoding, a prompt alone.

A run leaves nothing behind but what is cached. Only steps in which every row of the batch decodes are counted
as decoding, so prefill never mixes in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import count
from time import perf_counter
from typing import Any

from common import MODEL
from workloads import Ids

from radixlm.runtime.engine import Engine
from radixlm.runtime.kv_pool import KvPool
from radixlm.runtime.metrics import EngineStats
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Copy, Request

_numbers = count()


# Any: the fields of EngineConfig.
def open_engine(threads: int, **options: Any) -> Engine:
    """The default model with the options of a plain `Engine`, but for those given."""
    return Engine(MODEL, **{"kv_memory": 1 << 30, "threads": threads, **options})


def fixed_length(tokens: int) -> SamplingParams:
    """Greedy, and exactly so many tokens."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in which every row decoded: seconds of each, and what the engine counted over all of them."""

    seconds: list[float]
    counted: dict[str, float]


def decode_steps(engine: Engine, prompts: Sequence[Ids], steps: int) -> Steps:
    """Run the prompts until all of them decode, then time `steps` steps, then abort them.

    What was cached before may be used: prompts are no part of what is timed.
    """
    names = [f"run-{next(_numbers)}" for _ in prompts]
    # Rows whose prompt comes first decode while others still prefill, a token a step.
    sampling = fixed_length(steps + 2 + sum(map(len, prompts)) // engine.config.chunk_size + len(prompts))
    try:
        for name, prompt in zip(names, prompts, strict=True):
            engine.add(Request(name, prompt, sampling))
        waiting = set(names)
        while waiting:
            waiting -= {event.request_id for event in engine.step() if event.token_ids}
        engine.step()
        before, seconds = engine.stats(), []
        for _ in range(steps):
            start = perf_counter()
            events = engine.step()
            seconds.append(perf_counter() - start)
            assert len(events) == len(prompts), "every row decodes in every step that is timed"
        counted = difference(before, engine.stats())
    finally:
        for name in names:
            engine.abort(name)
        while engine.has_work:
            engine.step()
    return Steps(seconds, counted)


def difference(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """What was counted between two looks, for the totals among the figures."""
    names = [field.name for field in fields(EngineStats)]
    return {name: getattr(after, name) - getattr(before, name) for name in names}


@contextmanager
def timed_copies() -> Iterator[list[float]]:
    """Seconds of each copy-on-write within the block: the engine counts them as part of its forward pass."""
    seconds: list[float] = []
    copy = KvPool.copy

    def timed(self: KvPool, copies: Sequence[Copy]) -> None:
        start = perf_counter()
        copy(self, copies)
        seconds.append(perf_counter() - start)

    KvPool.copy = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        KvPool.copy = copy  # type: ignore[method-assign]
