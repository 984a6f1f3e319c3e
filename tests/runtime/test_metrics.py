"""Figures of an engine's work: what a step counts as, shares of nothing, time in the tree."""

from __future__ import annotations

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.runtime.metrics import EngineStats, Meter, Stopwatch, TimedCache
from radixlm.runtime.scheduler import SchedulerStats
from radixlm.runtime.types import Plan, Row, SequenceKey


def row(name: str, start: int, stop: int) -> Row:
    tokens = tuple(range(start, stop))
    return Row(SequenceKey(name, 0), tokens, start, stop, start, stop - 1, (0, 1), True, stop)


def plan(*rows: Row) -> Plan:
    return Plan(0, rows, ())


def stats_of(meter: Meter, *, prompt_tokens: int = 0, cached_tokens: int = 0) -> EngineStats:
    scheduled = SchedulerStats(0, 0, 0, 2, 0, prompt_tokens, cached_tokens, 0, 0, 0, 0, 0)
    return meter.stats(PrefixCache(8, 4), scheduled)


def test_a_step_with_any_longer_row_is_prefill_and_counts_its_longer_rows() -> None:
    meter = Meter()
    meter.count_step(plan(row("a", 0, 30), row("b", 9, 10)), 2, 0.5, 4, 0.5)
    stats = stats_of(meter)
    assert (stats.prefill_tok_s, stats.decode_tok_s, stats.generated_tokens) == (60.0, 0.0, 2)


def test_a_step_of_single_tokens_is_decoding() -> None:
    meter = Meter()
    meter.count_step(plan(row("a", 8, 9), row("b", 9, 10)), 2, 0.25, 4, 0.5)
    stats = stats_of(meter)
    assert (stats.prefill_tok_s, stats.decode_tok_s) == (0.0, 8.0)


def test_segments_and_their_queries_are_totals() -> None:
    meter = Meter()
    meter.count_segments(3, 40)
    meter.count_segments(2, 2)
    stats = stats_of(meter)
    assert (stats.attention_segments, stats.segment_queries) == (5, 42)


def test_pages_and_sequences_are_those_of_the_moment() -> None:
    cache = PrefixCache(8, 4)
    for _ in range(2):
        lease = cache.acquire(range(8), (), 12)
        assert lease is not None
        cache.publish(lease, range(8), 8)
    stats = Meter().stats(cache, SchedulerStats(5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    assert (stats.waiting, stats.running) == (5, 2)
    assert (stats.free_pages, stats.evictable_pages, stats.saved_pages) == (4, 0, 2)


def test_fill_is_averaged_and_the_peak_is_the_most() -> None:
    meter = Meter()
    for used, fill in ((2, 0.5), (7, 1.0), (3, 0.75)):
        meter.count_step(plan(row("a", 8, 9)), 1, 0.1, used, fill)
    stats = stats_of(meter)
    assert (stats.peak_pages, stats.page_fill, stats.steps) == (7, 0.75, 3)
    assert (stats.num_pages, stats.page_size, stats.preemptions) == (8, 4, 2)


def test_rates_are_shares_of_prompt_tokens() -> None:
    meter = Meter()
    meter.count_batch(100, 60.0)
    meter.count_batch(100, 20.0)
    stats = stats_of(meter, prompt_tokens=200, cached_tokens=50)
    assert (stats.hit_rate, stats.optimal_hit_rate, stats.hit_rate_of_optimal) == (0.25, 0.4, 0.625)


def test_shares_of_nothing_are_nothing() -> None:
    stats = stats_of(Meter())
    shares = (
        stats.hit_rate,
        stats.optimal_hit_rate,
        stats.hit_rate_of_optimal,
        stats.page_fill,
        stats.prefill_tok_s,
        stats.decode_tok_s,
    )
    assert shares == (0.0,) * 6


def test_a_stopwatch_adds_up_what_lies_between_start_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 13.0, 20.0, 20.5, 30.0, 31.0, 34.0))
    monkeypatch.setattr("radixlm.runtime.metrics.perf_counter", lambda: next(now))
    watch = Stopwatch()
    with watch:
        pass
    watch.start()
    watch.stop()
    assert watch.seconds == 3.5
    with watch:
        assert watch.since_start() == 1.0
    assert watch.seconds == 7.5


def test_a_timed_cache_answers_as_the_cache_it_is_and_counts_its_time() -> None:
    watch = Stopwatch()
    cache = TimedCache(4, 2, watch, eviction="lru", enabled=True)
    lease = cache.acquire([1, 2, 3], (), 4)
    assert lease is not None
    assert watch.seconds > 0
    assert cache.grow(lease, 6)
    assert not cache.grow(lease, 12)
    cache.publish(lease, [1, 2, 3], 3)
    cache.release(lease)
    assert cache.peek([1, 2, 3, 4], ()).cached_tokens == 3
    again = cache.acquire([1, 2, 3, 4], (), 4)
    assert again is not None
    [copy] = cache.take_copies()
    assert copy.slots == 1
    cache.settle()
    cache.release(again)
    cache.check()
    before = watch.seconds
    cache.stats()
    assert watch.seconds == before, "questions that walk nothing are not timed"
