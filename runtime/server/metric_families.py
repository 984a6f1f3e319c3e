"""What is told to Prometheus: the tallies behind it, and every name, with what it means.

Own names begin with radixlm_; those that dashboards of other engines look for are vLLM's. Counters only grow
and get _total behind their names; rates and shares are for whoever asks. What does not exist is not told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeAlias

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from ... import __version__
from ..metrics import EngineInfo, EngineStats
from ..types import FinishReason
from ..worker import Pulse

End: TypeAlias = FinishReason | Literal["refused", "timeout"]
"""How a choice ended: with a terminal event, or else refused by the engine, or over its time."""

_ENDS: tuple[End, ...] = ("stop", "length", "abort", "error", "refused", "timeout")
_SECONDS = [
    *(round(step * 10.0**power, 9) for power in range(-3, 2) for step in (1, 1.5, 2, 3, 5, 7.5)),
    *(100.0, 200.0, 500.0, 1000.0),
]
_TOKENS = [float(1 << power) for power in range(18)]


class Histogram:
    """Counts values by upper bounds, which they may reach."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, meaning: str, labels: Mapping[str, str]) -> Metric:
        bounds = [*map(repr, self._bounds), "+Inf"]
        family = HistogramMetricFamily(name, meaning, labels=list(labels))
        counts = [float(count) for count in accumulate(self._counts)]
        family.add_metric(list(labels.values()), list(zip(bounds, counts, strict=True)), self._sum)
        return family


@dataclass(slots=True)
class Tallies:
    """What a server has counted. `open_choices` have arrived and not ended."""

    arrived: int = 0
    turned_away: int = 0
    open_choices: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    hit_tokens: int = 0
    optimal_hit_tokens: int = 0
    recomputed_tokens: int = 0
    ends: dict[End, int] = field(default_factory=lambda: dict.fromkeys(_ENDS, 0))
    replies: dict[int, int] = field(default_factory=dict)
    first_token: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    queued: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    whole: Histogram = field(default_factory=lambda: Histogram(_SECONDS))
    prompt_sizes: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    output_sizes: Histogram = field(default_factory=lambda: Histogram(_TOKENS))


def of_requests(tallies: Tallies, model: str) -> Iterator[Metric]:
    """What the server itself has seen."""
    label = {"model_name": model}
    for name, value, meaning in (
        ("vllm:prompt_tokens", tallies.prompt_tokens, "Tokens of prompts, once a prompt."),
        ("vllm:generation_tokens", tallies.generated_tokens, "Tokens generated."),
    ):
        yield _counter(name, value, meaning, label)
    for name, histogram, meaning in (
        ("vllm:time_to_first_token_seconds", tallies.first_token, "From arrival to the first token."),
        ("vllm:inter_token_latency_seconds", tallies.between_tokens, "Between news of tokens of one choice."),
        ("vllm:request_queue_time_seconds", tallies.queued, "From the engine's queue to the first step."),
        ("vllm:e2e_request_latency_seconds", tallies.whole, "From arrival to the end of whole answers."),
    ):
        yield histogram.family(name, meaning, label)
    for name, value, meaning in (
        ("radixlm_requests", tallies.arrived, "Prompts that were let in."),
        ("radixlm_requests_turned_away", tallies.turned_away, "Prompts for which too many waited."),
        ("radixlm_prompt_tokens", tallies.prompt_tokens, "Tokens of prompts, once a prompt."),
        (
            "radixlm_optimal_hit_tokens",
            tallies.optimal_hit_tokens,
            "Of those, what a cache that never forgets would have found.",
        ),
        (
            "radixlm_recomputed_tokens",
            tallies.recomputed_tokens,
            "Of those, what was computed again since the cache had it no longer.",
        ),
    ):
        yield _counter(name, value, meaning)
    hits = {"device": tallies.hit_tokens}
    yield _counters("radixlm_hit_tokens", "Of those, what was found, by where.", "tier", hits)
    yield _counters("radixlm_finished", "Choices that ended, by how.", "reason", tallies.ends)
    replies = {str(status): count for status, count in tallies.replies.items()}
    meaning = "Answers over HTTP but to monitoring, by status; 499: the client left."
    yield _counters("radixlm_http_replies", meaning, "status", replies)
    yield tallies.prompt_sizes.family("radixlm_request_prompt_tokens", "Tokens of a prompt.", {})
    yield tallies.output_sizes.family("radixlm_request_generation_tokens", "Tokens of a finished choice.", {})


def of_engine(
    stats: EngineStats, pulse: Pulse, info: EngineInfo, model: str, open_choices: int
) -> Iterator[Metric]:
    """What the engine was after its last step. `open_choices` of requests are waiting or running."""
    running = stats.running if pulse.alive else 0
    in_use = stats.num_pages - stats.free_pages - stats.evictable_pages
    label = {"model_name": model}
    for name, value, meaning in (
        ("vllm:num_requests_running", running, "Sequences the engine computes."),
        ("vllm:num_requests_waiting", max(0, open_choices - running), "Sequences that wait for that."),
        ("vllm:kv_cache_usage_perc", in_use / stats.num_pages, "Pages in use or held, 0 to 1."),
    ):
        yield _gauge(name, value, meaning, label)
    for name, value, meaning in (
        ("vllm:prefix_cache_queries", stats.prompt_tokens, "Tokens looked for, once a sequence."),
        ("vllm:prefix_cache_hits", stats.cached_tokens, "Of those, what was found."),
        ("vllm:num_preemptions", stats.preemptions, "Sequences that had to give up their pages."),
    ):
        yield _counter(name, value, meaning, label)
    about = {
        **{"version": __version__, "model_name": model, "dtype": info.dtype, "attention": info.attention},
        **{"quantization": info.quantization, "page_size": str(info.page_size)},
    }
    yield _gauge("radixlm_info", 1, "What the engine is.", about)
    yield _gauge("radixlm_engine_alive", pulse.alive, "1 while the engine lives.")
    yield _gauge("radixlm_engine_quiet_seconds", pulse.quiet_for, "Time with work and without a step.")
    yield _gauge("radixlm_shared_pages_saved", stats.saved_pages, "More pages in use if none was shared.")
    pages = GaugeMetricFamily("radixlm_pages", "Pages by what they are for.", labels=["state"])
    for state, count in (("free", stats.free_pages), ("cached", stats.evictable_pages), ("in_use", in_use)):
        pages.add_metric([state], count)
    yield pages
    yield _gauge("radixlm_held_pages", stats.held_pages, "Pages that programs hold, in use or not.")
    yield _gauge("radixlm_holds", stats.holds, "Programs that hold any.")
    for name, value, meaning in (
        ("radixlm_holds_granted", stats.holds_granted, "Holds that programs asked for and got."),
        ("radixlm_holds_refused", stats.holds_refused, "Holds beyond the budget."),
        ("radixlm_holds_broken", stats.holds_broken, "Holds ended early, where nothing else made room."),
        ("radixlm_computed_tokens", stats.computed_tokens, "Tokens computed, again or not."),
        ("radixlm_forced_tokens", stats.forced_tokens, "Tokens that grammars left no choice about."),
        ("radixlm_evicted_pages", stats.evicted_pages, "Cached pages given up for others."),
        ("radixlm_steps", stats.steps, "Steps of the engine."),
        ("radixlm_step_seconds", stats.wall_s, "Time in steps."),
        ("radixlm_forward_seconds", stats.forward_s, "Of that, in the model."),
        ("radixlm_schedule_seconds", stats.schedule_s, "Of that, in planning, committing, building batches."),
        ("radixlm_tree_seconds", stats.radix_s, "Of that again, in the tree and the pool."),
        ("radixlm_attention_segments", stats.attention_segments, "Runs of keys that attention read."),
        ("radixlm_attention_segment_queries", stats.segment_queries, "Queries of all segments."),
        ("radixlm_kv_read_bytes", stats.kv_read_bytes, "Keys and values read, once a segment."),
        ("radixlm_kv_unshared_bytes", stats.kv_unshared_bytes, "The same if rows had read one by one."),
        ("radixlm_grammar_masks", stats.filled_masks, "Masks filled for grammars, one a token."),
        ("radixlm_grammar_mask_seconds", stats.mask_s, "Time in which they were filled."),
        ("radixlm_grammar_mask_wait_seconds", stats.mask_wait_s, "Of that, what steps waited for."),
    ):
        yield _counter(name, value, meaning)


def _counter(name: str, value: float, meaning: str, labels: Mapping[str, str] | None = None) -> Metric:
    labels = labels or {}
    family = CounterMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counters(name: str, meaning: str, label: str, values: Mapping[End, int] | Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=[label])
    items: Iterable[tuple[str, int]] = values.items()
    for kind, value in items:
        family.add_metric([kind], value)
    return family


def _gauge(name: str, value: float, meaning: str, labels: Mapping[str, str] | None = None) -> Metric:
    labels = labels or {}
    family = GaugeMetricFamily(name, meaning, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
