"""What the engine counts: figures of its work so far, and what an engine is.

Owns the stopwatches and the formulas of the figures. Nothing decides by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter

from ..radix.beside import PageValues
from ..radix.cache import PrefixCache
from ..radix.eviction import Policy
from ..radix.lease import Hold, Lease, PageCopy
from ..radix.node import NOBODY, Namespace
from ..radix.views import Peek
from .scheduler import SchedulerStats
from .types import Plan


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the engine was made; seconds, tokens, pages, shares between 0 and 1.

    prompt_tokens and cached_tokens count each sequence once, and what scored continuations share once for all
    of them; computed_tokens is every token that a step computed, replays and repeated queries too.
    optimal_hit_rate is that of a cache that never forgets within a batch given to `generate` and knows
    nothing before it: 1 - (tokens in the trie of the batch's prompts) / (sum of prompt tokens).
    hit_rate_of_optimal is hit_rate over it: above 1 if something was cached before, 0 if there was nothing to
    share. wall_s is the time inside steps. A step in which any row computes more than one token counts as
    prefill, else as decoding: prefill_tok_s is the prompt tokens computed over the time of the former,
    decode_tok_s the tokens generated in the latter over its time. peak_pages and page_fill are of the pages
    taken while a step runs: the most of them, and the share of their slots that hold a token when it has run,
    averaged over steps. radix_s is the time in the tree and the pool's bookkeeping, a part of schedule_s,
    which is that of planning, committing and building batches; forward_s is that of the model, copies
    included. kv_read_bytes are the keys and values that attention read, those of a segment counted once;
    kv_tile_bytes counts them once for each tile of queries, and kv_unshared_bytes is what the rows would have
    read one by one. forced_tokens are those that grammars left no choice about, of sequences that ended.
    mask_s is the time in which masks of grammars were filled, filled_masks of them, beside the forward pass:
    mask_wait_s of it was waited for when that was over. attention_segments are the runs of keys that
    attention read, segment_queries the queries of all of them: on average so many read the same keys at once.
    Of this moment are the sequences that are waiting and running, and the pages that are free, evictable
    (cached and used by nobody), held for the next calls of programs, and saved: how many more were used if
    sequences shared none. holds is how many programs hold any, and holds_granted, holds_refused (beyond the
    budget) and holds_broken (ended before their time, because nothing else could make room) are totals.
    """

    prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    optimal_hit_rate: float
    hit_rate_of_optimal: float
    generated_tokens: int
    computed_tokens: int
    wall_s: float
    prefill_tok_s: float
    decode_tok_s: float
    steps: int
    preemptions: int
    evicted_pages: int
    peak_pages: int
    num_pages: int
    page_size: int
    page_fill: float
    radix_s: float
    schedule_s: float
    forward_s: float
    kv_read_bytes: int
    kv_tile_bytes: int
    kv_unshared_bytes: int
    forced_tokens: int
    mask_s: float
    mask_wait_s: float
    filled_masks: int
    attention_segments: int
    segment_queries: int
    waiting: int
    running: int
    free_pages: int
    evictable_pages: int
    held_pages: int
    saved_pages: int
    holds: int
    holds_granted: int
    holds_refused: int
    holds_broken: int


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is: its model, its memory in bytes and how it computes."""

    model: str
    family: str
    parameters: int
    weight_bytes: int
    dtype: str
    num_pages: int
    page_size: int
    kv_bytes: int
    max_context: int
    threads: int
    quantization: str
    attention: str


class Stopwatch:
    """Adds up the seconds between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def start(self) -> None:
        self._since = perf_counter()

    def stop(self) -> None:
        self.seconds += self.since_start()

    def since_start(self) -> float:
        """Seconds since `start`, of a watch that runs."""
        return perf_counter() - self._since

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Meter:
    """The running totals behind EngineStats; the engine adds to it once a step."""

    def __init__(self) -> None:
        self.radix, self.schedule, self.forward, self.step = (Stopwatch() for _ in range(4))
        self.masks, self.mask_wait = Stopwatch(), Stopwatch()
        self.prefill_seconds = self.decode_seconds = 0.0
        self.prefill_tokens = self.decode_tokens = self.generated_tokens = 0
        self.optimum_tokens, self.optimum_hits = 0, 0.0
        self.steps = 0
        self.peak_pages = 0
        self.kv_read_bytes = self.kv_tile_bytes = self.kv_unshared_bytes = 0
        self.forced_tokens = self.filled_masks = 0
        self.attention_segments = self.segment_queries = 0
        self._fill_sum = 0.0

    def count_step(self, plan: Plan, generated: int, seconds: float, used_pages: int, fill: float) -> None:
        """`used_pages` are not free, a share `fill` of their slots holds a token."""
        self.steps += 1
        self.generated_tokens += generated
        self.peak_pages = max(self.peak_pages, used_pages)
        self._fill_sum += fill
        if any(row.stop - row.start > 1 for row in plan.rows):
            self.prefill_seconds += seconds
            self.prefill_tokens += sum(r.stop - r.start for r in plan.rows if r.stop - r.start > 1)
        else:
            self.decode_seconds += seconds
            self.decode_tokens += generated

    def count_reads(self, once: int, by_tile: int, unshared: int) -> None:
        """Bytes of keys and values of one step, see EngineStats."""
        self.kv_read_bytes += once
        self.kv_tile_bytes += by_tile
        self.kv_unshared_bytes += unshared

    def count_segments(self, segments: int, queries: int) -> None:
        """Of the attention of one step, see EngineStats."""
        self.attention_segments += segments
        self.segment_queries += queries

    def count_batch(self, prompt_tokens: int, optimal_hits: float) -> None:
        """A batch of prompts known as a whole: what a cache that never forgets would have found."""
        self.optimum_tokens += prompt_tokens
        self.optimum_hits += optimal_hits

    def stats(self, cache: PrefixCache, scheduled: SchedulerStats) -> EngineStats:
        hit_rate = _share(scheduled.cached_tokens, scheduled.prompt_tokens)
        optimal = _share(self.optimum_hits, self.optimum_tokens)
        pages = cache.stats()
        return EngineStats(
            prompt_tokens=scheduled.prompt_tokens,
            cached_tokens=scheduled.cached_tokens,
            hit_rate=hit_rate,
            optimal_hit_rate=optimal,
            hit_rate_of_optimal=_share(hit_rate, optimal),
            generated_tokens=self.generated_tokens,
            computed_tokens=scheduled.computed_tokens,
            wall_s=self.step.seconds,
            prefill_tok_s=_share(self.prefill_tokens, self.prefill_seconds),
            decode_tok_s=_share(self.decode_tokens, self.decode_seconds),
            steps=self.steps,
            preemptions=scheduled.preemptions,
            evicted_pages=pages.evicted_pages,
            peak_pages=self.peak_pages,
            num_pages=cache.num_pages,
            page_size=cache.page_size,
            page_fill=_share(self._fill_sum, self.steps),
            radix_s=self.radix.seconds,
            schedule_s=self.schedule.seconds,
            forward_s=self.forward.seconds,
            kv_read_bytes=self.kv_read_bytes,
            kv_tile_bytes=self.kv_tile_bytes,
            kv_unshared_bytes=self.kv_unshared_bytes,
            forced_tokens=self.forced_tokens,
            mask_s=self.masks.seconds,
            mask_wait_s=self.mask_wait.seconds,
            filled_masks=self.filled_masks,
            attention_segments=self.attention_segments,
            segment_queries=self.segment_queries,
            waiting=scheduled.waiting,
            running=scheduled.running,
            free_pages=pages.free_pages,
            evictable_pages=pages.evictable_pages,
            held_pages=pages.held_pages,
            saved_pages=pages.saved_pages,
            holds=scheduled.holds,
            holds_granted=scheduled.holds_granted,
            holds_refused=scheduled.holds_refused,
            holds_broken=scheduled.holds_broken,
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


class TimedCache(PrefixCache):
    """A PrefixCache that adds up how long its commands and peeks take; the tree itself looks at no clock."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        watch: Stopwatch,
        *,
        eviction: Policy,
        enabled: bool,
        values: PageValues | None = None,
    ) -> None:
        super().__init__(num_pages, page_size, eviction=eviction, enabled=enabled, values=values)
        self._watch = watch

    def peek(self, tokens: Sequence[int], namespace: Namespace) -> Peek:
        with self._watch:
            return super().peek(tokens, namespace)

    def acquire(
        self,
        tokens: Sequence[int],
        namespace: Namespace,
        length: int,
        *,
        priority: int = 0,
        owner: str = NOBODY,
    ) -> Lease | None:
        with self._watch:
            return super().acquire(tokens, namespace, length, priority=priority, owner=owner)

    def visit(
        self, tokens: Sequence[int], namespace: Namespace, *, priority: int = 0, owner: str = NOBODY
    ) -> Peek:
        with self._watch:
            return super().visit(tokens, namespace, priority=priority, owner=owner)

    def grow(self, lease: Lease, length: int) -> bool:
        with self._watch:
            return super().grow(lease, length)

    def publish(self, lease: Lease, tokens: Sequence[int], upto: int) -> None:
        with self._watch:
            super().publish(lease, tokens, upto)

    def release(self, lease: Lease) -> None:
        with self._watch:
            super().release(lease)

    def take_copies(self) -> tuple[PageCopy, ...]:
        with self._watch:
            return super().take_copies()

    def settle(self) -> None:
        with self._watch:
            super().settle()

    def hold(
        self,
        tokens: Sequence[int],
        namespace: Namespace,
        budget: int,
        *,
        owner: str = NOBODY,
        instead_of: Iterable[Hold] = (),
    ) -> Hold | None:
        with self._watch:
            return super().hold(tokens, namespace, budget, owner=owner, instead_of=instead_of)

    def release_hold(self, hold: Hold) -> None:
        with self._watch:
            super().release_hold(hold)

    def end_owner(self, owner: str, *, drop: bool) -> int:
        with self._watch:
            return super().end_owner(owner, drop=drop)
