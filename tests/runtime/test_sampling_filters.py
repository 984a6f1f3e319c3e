"""Draws: the drawn tokens' distribution, the noise that decides, and each filter, by plain float64."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from radixlm.runtime.random_stream import draw_words, gumbel, stream_key, tail_of
from radixlm.runtime.sampling import SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams

KEY = stream_key(11, ())
LOGITS = [1.0, 2.5, -0.5, 2.0, 0.0, -3.0, 1.5, 2.0, 0.25, -1.0, 1.0, 0.75]


def _tokens(logits: list[float], params: SamplingParams, count: int, choice: int = 0) -> list[int]:
    """What one row gives at the first `count` positions."""
    rows = [SampleRow(params, (), (), (), KEY, choice, position) for position in range(count)]
    return sample(torch.tensor([logits]).expand(count, -1), rows).token_ids


def _probabilities(logits: list[float], params: SamplingParams) -> tuple[list[float], float]:
    """The filtered distribution by the book, and how close a filter came to deciding otherwise."""
    best = max(logits)
    weights = [math.exp((score - best) / params.temperature) for score in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if 0 < params.top_k < len(logits):
        order = order[: params.top_k]
    margin = 1.0
    if params.top_p < 1.0:
        total = math.fsum(weights[i] for i in order)
        for count in range(1, len(order) + 1):
            mass = math.fsum(weights[i] for i in order[:count]) / total
            margin = min(margin, abs(mass - params.top_p))
            if mass >= params.top_p:
                order = order[:count]
                break
    if params.min_p > 0.0:
        margin = min(margin, min(abs(weights[i] - params.min_p) for i in order) or 1.0)
        order = [i for i in order if weights[i] >= params.min_p]
    total = math.fsum(weights[i] for i in order)
    return [weights[i] / total if i in order else 0.0 for i in range(len(logits))], margin


MIXES = [
    SamplingParams(),
    SamplingParams(temperature=0.5),
    SamplingParams(temperature=3.0),
    SamplingParams(top_k=4),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=1.7, top_k=9, top_p=0.85, min_p=0.1),
]


@pytest.mark.parametrize("params", MIXES, ids=lambda p: f"t{p.temperature}-k{p.top_k}-p{p.top_p}-m{p.min_p}")
def test_drawn_tokens_follow_the_filtered_distribution(params: SamplingParams) -> None:
    expected, _ = _probabilities(LOGITS, params)
    draws = _tokens(LOGITS, params, 3000)
    statistic, freedom = _chi_square(draws, expected)
    assert statistic < _limit(freedom)


def test_the_check_of_the_distribution_notices_a_wrong_temperature() -> None:
    expected, _ = _probabilities(LOGITS, SamplingParams(temperature=1.4))
    draws = _tokens(LOGITS, SamplingParams(), 3000)
    statistic, freedom = _chi_square(draws, expected)
    assert statistic > _limit(freedom)


def test_draws_of_many_seeds_follow_the_distribution_as_those_of_many_positions_do() -> None:
    expected, _ = _probabilities(LOGITS, SamplingParams())
    rows = [SampleRow(SamplingParams(), (), (), (), stream_key(seed, ()), 0, 5) for seed in range(3000)]
    statistic, freedom = _chi_square(
        sample(torch.tensor([LOGITS]).expand(len(rows), -1), rows).token_ids, expected
    )
    assert statistic < _limit(freedom)


def test_a_rare_token_is_drawn_as_often_as_it_should_be() -> None:
    # 300 tokens of one in ten thousand each, and one that has the rest.
    logits = [math.log(1e-4)] * 300 + [math.log(0.97)]
    draws = Counter(_tokens(logits, SamplingParams(), 10_000))
    rare = 10_000 - draws[300]
    assert abs(rare - 300) < 4 * math.sqrt(300 * 0.97)
    assert len(draws) > 150
    assert max(count for token, count in draws.items() if token < 300) < 9


def test_neighbouring_positions_and_choices_are_drawn_independently() -> None:
    first, second = (_tokens([0.0] * 8, SamplingParams(), 3200, choice) for choice in (0, 1))
    for one, other in [(first[:-1], first[1:]), (first, second)]:
        pairs = [x * 8 + y for x, y in zip(one, other, strict=True)]
        statistic, freedom = _chi_square(pairs, [1 / 64] * 64)
        assert statistic < _limit(freedom)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_the_token_is_the_kept_one_with_the_largest_sum_of_score_and_noise(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([1, 2, 5, 40, 3000])
    # Quarters make ties common.
    logits = [round(draw.gauss(0, 3) * 4) / 4 for _ in range(size)]
    params = SamplingParams(
        temperature=draw.choice([0.3, 1.0, 100.0]),
        top_k=draw.choice([-1, 0, 1, 3, 10, 100]),
        top_p=draw.choice([1.0, 0.95, 0.5, 0.01]),
        min_p=draw.choice([0.0, 0.05, 0.5, 1.0]),
    )
    probabilities, margin = _probabilities(logits, params)
    assume(margin > 1e-5)
    (token,) = _tokens(logits, params, 1)
    noise = gumbel(tail_of(draw_words(KEY, 0, 0, np.arange(size)))).tolist()
    sums = [
        logit / params.temperature + loud if share > 0 else -math.inf
        for logit, loud, share in zip(logits, noise, probabilities, strict=True)
    ]
    assert sums[token] > max(sums) - 1e-5


def test_top_k_keeps_the_lower_ids_of_a_tie() -> None:
    assert set(_tokens([1.0, 2.0, 1.0, 1.0, 2.0], SamplingParams(top_k=3), 60)) == {0, 1, 4}


def test_top_p_includes_the_crossing_token_and_nothing_after_it() -> None:
    logits = [math.log(share) for share in (0.5, 0.25, 0.125, 0.125)]
    for top_p, kept in [(0.49, {0}), (0.51, {0, 1}), (0.74, {0, 1}), (0.76, {0, 1, 2}), (0.88, {0, 1, 2, 3})]:
        assert set(_tokens(logits, SamplingParams(top_p=top_p), 60)) == kept


def test_a_mass_that_equals_top_p_is_enough() -> None:
    assert set(_tokens([0.0] * 4, SamplingParams(top_p=0.5), 40)) == {0, 1}


def test_top_p_of_one_and_top_k_of_nothing_keep_every_token() -> None:
    for options in ({"top_p": 1.0, "top_k": 0}, {"top_p": 1 - 2**-53}, {"top_k": 40}):
        assert set(_tokens([0.0] * 40, SamplingParams(**options), 400)) == set(range(40))


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    # Alone, top_p 0.6 would keep three of five equal tokens; of the two that top_k leaves it keeps both.
    assert set(_tokens([0.0] * 5, SamplingParams(top_k=2, top_p=0.6), 40)) == {0, 1}


def test_min_p_is_relative_to_the_likeliest_after_temperature() -> None:
    logits = [0.0, math.log(0.5), math.log(0.1)]
    assert set(_tokens(logits, SamplingParams(min_p=0.4), 40)) == {0, 1}
    assert set(_tokens(logits, SamplingParams(min_p=0.4, temperature=10.0), 40)) == {0, 1, 2}
    assert set(_tokens([1.0, 1.0, 0.9], SamplingParams(min_p=1.0), 40)) == {0, 1}


@pytest.mark.parametrize("scale", [0.0, 0.001, 2.0])
def test_a_nucleus_of_any_size_is_exact(scale: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(5)) * scale
    weights = (logits.double() - logits.max()).exp()
    ranked = weights.sort(descending=True, stable=True)
    count = int((ranked.values.cumsum(0) < 0.9 * weights.sum()).sum()) + 1
    kept = set(ranked.indices[:count].tolist())
    assert count > 30
    drawn = _tokens(logits.tolist(), SamplingParams(top_p=0.9), 300)
    assert set(drawn) <= kept
    # Each in place of one beyond the cut, which would have been drawn.
    assert drawn != _tokens(logits.tolist(), SamplingParams(), 300)


def test_a_filter_changes_only_draws_of_what_it_takes_away() -> None:
    free = _tokens(LOGITS, SamplingParams(), 400)
    for params, kept in [
        (SamplingParams(top_k=4), {1, 3, 6, 7}),
        (SamplingParams(min_p=0.5), {1, 3, 7}),
        (SamplingParams(top_p=0.4), {1, 3}),
    ]:
        drawn = _tokens(LOGITS, params, 400)
        assert set(drawn) == kept
        assert all(one == other for one, other in zip(free, drawn, strict=True) if one in kept)


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1.0, 100.0, 1e30, 1e300])
def test_extreme_temperatures_and_scores_give_a_possible_token(temperature: float) -> None:
    logits = [-math.inf, 3e38, 3e38, -3e38, -math.inf]
    params = SamplingParams(temperature=temperature, top_p=0.999, top_k=4)
    assert set(_tokens(logits, params, 50)) <= {1, 2, 3}


def test_a_vocabulary_of_one_always_gives_its_token() -> None:
    for params in (SamplingParams(), SamplingParams(top_k=1, top_p=0.1, min_p=1.0)):
        assert set(_tokens([-5.0], params, 10)) == {0}


def test_the_narrowest_filters_are_greedy() -> None:
    for params in (SamplingParams(top_k=1), SamplingParams(top_p=1e-300), SamplingParams(min_p=1.0)):
        assert set(_tokens(LOGITS, params, 50)) == {1}


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    for params in (SamplingParams(), SamplingParams(top_k=4, top_p=0.999), SamplingParams(temperature=1e300)):
        assert set(_tokens(logits, params, 200)) == {1, 3}


def _chi_square(draws: list[int], expected: list[float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; an impossible token makes it infinite."""
    counts = Counter(draws)
    if any(expected[token] == 0.0 for token in counts):
        return math.inf, 1
    possible = [(counts[i], share * len(draws)) for i, share in enumerate(expected) if share > 0]
    return sum((count - mean) ** 2 / mean for count, mean in possible), len(possible) - 1


def _limit(freedom: int) -> float:
    """What chi-square exceeds once in a thousand times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3
