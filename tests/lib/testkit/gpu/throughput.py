"""The whole engine on models of real shapes with random weights: 64 rows, tree attention on and off.

Off: the plan shares nothing, so every row reads its own way through the same pages; all else is alike, the
cache of pages included.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch

from radixlm.kernels.plan import AttentionSpec
from radixlm.runtime.batch import BatchBuilder
from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Request

from . import llama
from .report import Place, Row, Verdict
from .timings import SHARE_NOTHING

_BYTES = {"Llama-3.2-1B": 6 << 30, "Llama-3.1-8B": 24 << 30}
"""Of keys and values."""
_HEAVIER = 6.5
"""Llama-3.1-8B has so many times the weights of Llama-3.2-1B."""


def rows(place: Place) -> Iterator[Row]:
    started, spent = perf_counter(), 0.0
    for name in ("tiny",) if place.is_small else _BYTES:
        if spent and (perf_counter() - started) + _HEAVIER * spent > 110:
            yield Row(f"{name}: making its weights would take {_HEAVIER * spent:.0f} s", "left out")
            return
        before = perf_counter()
        with tempfile.TemporaryDirectory() as folder, _open(place, name, folder) as engine:
            spent = perf_counter() - before
            yield Row(f"{name}, load", _verdict(place), {} if place.is_small else {"s": spent})
            yield from _runs(place, name, engine)
        if not place.is_small:
            del engine
            torch.cuda.empty_cache()


def _open(place: Place, name: str, folder: str) -> Engine:
    llama.save(name, Path(folder))
    options: dict[str, object] = {"num_pages": 64} if place.is_small else {"kv_memory": _BYTES[name]}
    return Engine(
        folder,
        load_format="dummy",
        device=place.device.type,
        attention="triton",
        dtype="float32" if place.is_small else "bfloat16",
        max_running=64,
        chunk_size=16 if place.is_small else 8192,
        **options,
    )


def _runs(place: Place, name: str, engine: Engine) -> Iterator[Row]:
    count, shared, own, new = (2, 32, 3, 3) if place.is_small else (64, 4096, 128, 100)
    prompts = _prompts(engine, count, shared, own)
    runs: dict[str, _Run] = {}
    if not place.is_small:
        _generate(engine, prompts, new)  # kernels are compiled
    for sharing in ("on", "off"):
        if sharing == "off":
            _share_nothing(engine)
        engine.flush()
        runs[sharing] = _generate(engine, prompts, new)
        what = f"{name}, {count} x ({shared} shared + {own}), {new} new, tree attention {sharing}"
        yield Row(what, _verdict(place), {} if place.is_small else runs[sharing].figures)
    on, off = runs["on"], runs["off"]
    figures: dict[str, float] = {"tokens alike": _alike(on.tokens, off.tokens)}
    if not place.is_small:
        figures["decode step, off/on"] = statistics.median(off.decoding) / statistics.median(on.decoding)
    yield Row(f"{name}, on and off", _verdict(place), figures)


def _prompts(engine: Engine, count: int, shared: int, own: int) -> list[tuple[int, ...]]:
    numbers = random.Random(1)
    most = engine.model_config.vocab_size
    beginning = [numbers.randrange(most) for _ in range(shared)]
    return [(*beginning, *(numbers.randrange(most) for _ in range(own))) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds of steps in which every row decoded, and of all others; the tokens of each row."""

    decoding: list[float]
    others: list[float]
    computed: int
    tokens: list[list[int]]

    @property
    def figures(self) -> dict[str, float]:
        rows, seconds = len(self.tokens), sum(self.decoding) + sum(self.others)
        step = statistics.median(self.decoding)
        return {
            "decode step ms": step * 1e3,
            "decode tok/s": rows / step,
            "prefill s": sum(self.others),
            "prefill tok/s": self.computed / sum(self.others),
            "tok/s of all": sum(map(len, self.tokens)) / seconds,
        }


def _generate(engine: Engine, prompts: Sequence[tuple[int, ...]], new: int) -> _Run:
    """Steps are timed one by one: what a step computed is known when its tokens are."""
    sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, sampling))
    run = _Run([], [], 0, [[] for _ in prompts])
    while engine.has_work:
        before, started = engine.stats().computed_tokens, perf_counter()
        events = engine.step()
        seconds = perf_counter() - started
        computed = engine.stats().computed_tokens - before
        for event in events:
            assert event.error is None, f"every prompt is answered, got {event.error}"
            run.tokens[int(event.request_id)] += event.token_ids
        is_decoding = computed == len(prompts) == len(events)
        (run.decoding if is_decoding else run.others).append(seconds)
        run = replace(run, computed=run.computed + (0 if is_decoding else computed))
    assert run.decoding, "there are steps in which every row decodes"
    return run


def _share_nothing(engine: Engine) -> None:
    """No option of an engine turns sharing off: it is never worth having but for this comparison."""
    ops = engine._ops
    options = replace(ops.plan_options, min_saved_tokens=SHARE_NOTHING)
    spec = AttentionSpec(engine.model_config.attention_scale)
    engine._builder = BatchBuilder(engine.config.page_size, spec, replace(ops, plan_options=options))


def _alike(some: Sequence[list[int]], others: Sequence[list[int]]) -> float:
    """The share of tokens before the first that differs, row by row: rounding alone parts two texts."""
    alike = 0
    for one, other in zip(some, others, strict=True):
        pairs = zip(one, other, strict=True)
        alike += next((i for i, (a, b) in enumerate(pairs) if a != b), len(one))
    return alike / sum(map(len, some))


def _verdict(place: Place) -> Verdict:
    return "not timed" if place.is_small else "measured"
