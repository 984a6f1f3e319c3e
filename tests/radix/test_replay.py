"""Replaying traces: rates, limits, and the optimum of an endless cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from radixlm.radix.replay import ReplayReport, optimal_hit_rate, replay

TRACES = st.lists(st.lists(st.integers(0, 1), max_size=9), max_size=12)


def test_an_empty_trace_has_rate_zero() -> None:
    assert replay([], 4, 4) == ReplayReport(0, 0, 0.0, 0.0, 0, 0)
    assert optimal_hit_rate([[], []]) == 0.0


def test_the_report_of_a_small_trace() -> None:
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [7]]
    report = replay(prompts, 16, 2)
    assert report == ReplayReport(
        prompt_tokens=11,
        cached_tokens=4,
        hit_rate=4 / 11,
        optimal_hit_rate=4 / 11,
        evicted_pages=0,
        peak_pages=5,
    )


def test_a_prompt_larger_than_the_pool_is_a_miss_and_the_rest_goes_on() -> None:
    report = replay([[1, 1], [2] * 20, [1, 1]], 3, 2)
    assert (report.prompt_tokens, report.cached_tokens, report.evicted_pages) == (24, 2, 0)


def test_a_pool_too_small_for_the_trace_evicts_and_hits_less() -> None:
    prompts = [[token] * 8 for token in (1, 2, 3)] * 3
    report = replay(prompts, 4, 4)
    assert report.hit_rate == 0.0
    assert report.peak_pages == 4
    assert report.evicted_pages == 2 * 9 - 4
    assert report.optimal_hit_rate == 6 / 9
    assert replay(prompts, 6, 4, eviction="priority", namespace=("n",)).hit_rate == 6 / 9


@given(TRACES)
def test_the_optimum_is_one_minus_the_size_of_the_trie(prompts: list[list[int]]) -> None:
    trie = {tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)}
    total = sum(map(len, prompts))
    expected = (total - len(trie)) / total if total else 0.0
    assert optimal_hit_rate(prompts) == expected


@given(TRACES, st.sampled_from([1, 2, 4]))
def test_an_ample_pool_reaches_the_optimum_and_no_pool_beats_it(
    prompts: list[list[int]], page_size: int
) -> None:
    ample = replay(prompts, 200, page_size)
    assert ample.hit_rate == ample.optimal_hit_rate
    assert ample.evicted_pages == 0
    tight = replay(prompts, 5, page_size)
    assert tight.hit_rate <= tight.optimal_hit_rate
    assert tight.peak_pages <= 5
