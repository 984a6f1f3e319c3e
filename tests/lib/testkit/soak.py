"""Many requests through one engine: what stays behind, and whether each of them ends exactly once.

`soak` watches the memory of the process and the pages of the pool over many short requests; `random_mix` adds
and aborts requests of every kind in every state and recounts the pages after each step. Both are for small
models; they change nothing but the engine they are given.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from transformers import LlamaConfig

from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request, SequenceKey

from .byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, save_byte_tokenizer


def save_tiny_config(folder: Path) -> Path:
    """A folder with config and byte tokenizer but no weights: for `load_format="dummy"`."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=512,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        tie_word_embeddings=True,
    )
    config.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


Progress = Callable[[int, int], None]
"""Called with the requests done and the resident bytes."""

# -- memory ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Resident bytes after the warm-up and at the end; pages that are not free once nothing is cached."""

    requests: int
    after_warm_up: int
    at_end: int
    lost_pages: int
    evicted_pages: int

    @property
    def growth(self) -> float:
        """Share by which resident memory grew after the warm-up."""
        return self.at_end / self.after_warm_up - 1


def soak(
    engine: Engine,
    requests: int,
    *,
    warm_up: int,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> SoakReport:
    """Run `requests` requests of one token each, a few dozen at a time; some share prefixes, most do not."""
    rng = random.Random(seed)
    stems = [_tokens(rng, rng.randint(8, 60)) for _ in range(8)]
    for i in range(warm_up):
        _one_token(engine, rng, stems, i)
    _drain(engine)
    after_warm_up = _resident()
    for i in range(warm_up, requests):
        _one_token(engine, rng, stems, i)
        if on_progress is not None and i % 1000 == 0:
            on_progress(i, _resident())
    _drain(engine)
    at_end = _resident()
    engine.cache.check()
    evicted = engine.cache.stats().evicted_pages
    engine.flush()
    lost = engine.cache.num_pages - engine.cache.free_pages
    return SoakReport(requests, after_warm_up, at_end, lost, evicted)


def _one_token(engine: Engine, rng: random.Random, stems: list[tuple[int, ...]], number: int) -> None:
    stem = rng.choice(stems) if rng.random() < 0.3 else ()
    sampling = SamplingParams(max_tokens=1, temperature=rng.choice((0.0, 1.0)))
    engine.add(Request(f"one-{number}", stem + _tokens(rng, rng.randint(1, 40)), sampling))
    if number % 32 == 31:
        _drain(engine)


def _drain(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def _resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


# -- aborts ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MixReport:
    """What a random mix met: aborts by the state they struck in, and ends by their reason."""

    requests: int = 0
    sequences: int = 0
    steps: int = 0
    preemptions: int = 0
    evicted_pages: int = 0
    aborted_in: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    terminal_events: Counter[SequenceKey] = field(default_factory=Counter)

    @property
    def ended_once(self) -> bool:
        """Whether every sequence had exactly one terminal event."""
        return len(self.terminal_events) == self.sequences and set(self.terminal_events.values()) <= {1}


STATES = ("unknown", "waiting", "prefilling", "decoding", "preempted", "ended")


def random_mix(engine: Engine, requests: int, *, seed: int = 0) -> MixReport:
    """Add `requests` requests over time and abort about a third of them; AssertionError if a page is lost.

    For preemption to be part of it, the pool must be smaller than what the running ones want.
    """
    rng = random.Random(seed)
    report = MixReport()
    live: dict[str, int] = {}
    ended: deque[str] = deque(maxlen=50)
    while report.requests < requests or engine.has_work:
        while report.requests < requests and len(live) < 24 and rng.random() < 0.7:
            request = _random_request(rng, report.requests)
            engine.add(request)
            live[request.id] = request.sampling.n
            report.requests += 1
            report.sequences += request.sampling.n
        for name in _victims(rng, live, ended):
            _abort(engine, name, name in live, report)
        _count(engine.step(), live, ended, report)
        check_pages(engine)
    stats = engine.stats()
    report.steps, report.preemptions, report.evicted_pages = (
        stats.steps,
        stats.preemptions,
        stats.evicted_pages,
    )
    return report


def check_pages(engine: Engine) -> None:
    """Recount the pool: every page is free, cached or leased, and only one of them."""
    cache = engine.cache
    cache.check()
    held = cache.free_pages + cache.cached_pages + cache.leased_pages
    assert held == cache.num_pages, f"{held} pages are free, cached or leased, of {cache.num_pages}"


def _random_request(rng: random.Random, number: int) -> Request:
    common = (BOS_ID, *range(2, 2 + rng.choice((0, 3, 20, 40))))
    prompt = common + _tokens(rng, rng.choice((1, 5, 30, 90)))
    max_tokens = rng.choice((0, 1, 8, 40))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        n=rng.choice((1, 1, 1, 3)),
        temperature=rng.choice((0.0, 1.0)),
        ignore_eos=rng.random() < 0.5,
    )
    salt = rng.choice(("", "", "other"))
    return Request(f"mix-{number}", prompt, sampling, salt, priority=rng.choice((0, 0, 1)))


def _victims(rng: random.Random, live: dict[str, int], ended: deque[str]) -> list[str]:
    chosen = [name for name in live if rng.random() < 0.03]
    if ended and rng.random() < 0.05:
        chosen.append(rng.choice(ended))
    if rng.random() < 0.02:
        chosen.append("never added")
    return chosen


def _abort(engine: Engine, name: str, is_live: bool, report: MixReport) -> None:
    state = _state(engine, name) if is_live else "unknown" if name == "never added" else "ended"
    report.aborted_in[state] += 1
    known = engine.abort(name)
    assert known == is_live, f"abort of {name}, which is {state}, answered {known}"


def _state(engine: Engine, name: str) -> str:
    """The state of the first choice that has not ended. Nothing outside tells it, so this looks inside."""
    sequences = (engine._scheduler.get(SequenceKey(name, index)) for index in range(3))
    seq = next(seq for seq in sequences if seq is not None)
    if seq.status == "waiting":
        return "preempted" if seq.preemptions else "waiting"
    return "prefilling" if seq.computed < seq.prompt_len else "decoding"


def _count(events: list[Event], live: dict[str, int], ended: deque[str], report: MixReport) -> None:
    for event in events:
        key = SequenceKey(event.request_id, event.index)
        assert not report.terminal_events[key], f"{key} has news after its end"
        if event.finish_reason is None:
            continue
        report.terminal_events[key] += 1
        report.ends[event.finish_reason] += 1
        live[event.request_id] -= 1
        if not live[event.request_id]:
            del live[event.request_id]
            ended.append(event.request_id)


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(2, VOCAB_SIZE) for _ in range(count))
