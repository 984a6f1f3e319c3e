"""Draws: each filter against a plain float64 reference, and the drawn tokens' distribution."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from radixlm.runtime.random_stream import uniform_for
from radixlm.runtime.sampling import SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams

ALMOST_ONE = 1 - 2**-53
LOGITS = [1.0, 2.5, -0.5, 2.0, 0.0, -3.0, 1.5, 2.0, 0.25, -1.0, 1.0, 0.75]


def _rows(params: SamplingParams, uniforms: list[float]) -> list[SampleRow]:
    return [SampleRow(params, (), (), (), uniform) for uniform in uniforms]


def _tokens(logits: list[float], params: SamplingParams, uniforms: list[float]) -> list[int]:
    return sample(torch.tensor([logits]).expand(len(uniforms), -1), _rows(params, uniforms)).token_ids


def _grid(count: int) -> list[float]:
    return [(i + 0.5) / count for i in range(count)]


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
    draws = _tokens(LOGITS, params, [uniform_for(11, (), 0, i) for i in range(2000)])
    statistic, freedom = _chi_square(draws, expected)
    assert statistic < _limit(freedom)


def test_the_check_of_the_distribution_notices_a_wrong_temperature() -> None:
    expected, _ = _probabilities(LOGITS, SamplingParams(temperature=1.4))
    draws = _tokens(LOGITS, SamplingParams(), [uniform_for(11, (), 0, i) for i in range(2000)])
    statistic, freedom = _chi_square(draws, expected)
    assert statistic > _limit(freedom)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_the_token_is_where_the_distribution_function_passes_the_number(seed: int) -> None:
    draw = random.Random(seed)
    size = draw.choice([1, 2, 5, 40])
    # Quarters make ties common.
    logits = [round(draw.gauss(0, 3) * 4) / 4 for _ in range(size)]
    params = SamplingParams(
        temperature=draw.choice([0.3, 1.0, 100.0]),
        top_k=draw.choice([-1, 0, 1, 3, 10, 100]),
        top_p=draw.choice([1.0, 0.95, 0.5, 0.01]),
        min_p=draw.choice([0.0, 0.05, 0.5, 1.0]),
    )
    probabilities, margin = _probabilities(logits, params)
    assume(margin > 1e-12)
    uniform = draw.random()
    (token,) = _tokens(logits, params, [uniform])
    assert probabilities[token] > 0
    assert math.fsum(probabilities[:token]) <= uniform + 1e-12
    assert math.fsum(probabilities[: token + 1]) >= uniform - 1e-12


def test_top_k_keeps_the_lower_ids_of_a_tie() -> None:
    assert set(_tokens([1.0, 2.0, 1.0, 1.0, 2.0], SamplingParams(top_k=3), _grid(60))) == {0, 1, 4}


def test_top_p_includes_the_crossing_token_and_nothing_after_it() -> None:
    logits = [math.log(share) for share in (0.5, 0.25, 0.125, 0.125)]
    for top_p, kept in [(0.49, {0}), (0.51, {0, 1}), (0.74, {0, 1}), (0.76, {0, 1, 2}), (0.88, {0, 1, 2, 3})]:
        assert set(_tokens(logits, SamplingParams(top_p=top_p), _grid(40))) == kept


def test_a_mass_that_equals_top_p_is_enough() -> None:
    assert set(_tokens([0.0] * 4, SamplingParams(top_p=0.5), _grid(40))) == {0, 1}


def test_top_p_of_one_and_top_k_of_nothing_keep_every_token() -> None:
    for options in ({"top_p": 1.0, "top_k": 0}, {"top_p": 1 - 2**-53}, {"top_k": 40}):
        assert _tokens([0.0] * 40, SamplingParams(**options), _grid(40)) == list(range(40))


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    # Alone, top_p 0.6 would keep three of five equal tokens; of the two that top_k leaves it keeps both.
    assert set(_tokens([0.0] * 5, SamplingParams(top_k=2, top_p=0.6), _grid(40))) == {0, 1}


def test_min_p_is_relative_to_the_likeliest_after_temperature() -> None:
    logits = [0.0, math.log(0.5), math.log(0.1)]
    assert set(_tokens(logits, SamplingParams(min_p=0.4), _grid(40))) == {0, 1}
    assert set(_tokens(logits, SamplingParams(min_p=0.4, temperature=10.0), _grid(40))) == {0, 1, 2}
    assert set(_tokens([1.0, 1.0, 0.9], SamplingParams(min_p=1.0), _grid(40))) == {0, 1}


@pytest.mark.parametrize("scale", [0.0, 0.001, 8.0])
def test_a_nucleus_beyond_the_first_guess_is_still_exact(scale: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(5)) * scale
    weights = (logits.double() - logits.max()).exp()
    ranked = weights.sort(descending=True, stable=True)
    count = int((ranked.values.cumsum(0) < 0.9 * weights.sum()).sum()) + 1
    kept = set(ranked.indices[:count].tolist())
    rows = _rows(SamplingParams(top_p=0.9), [0.0, ALMOST_ONE])
    assert sample(logits.expand(2, -1), rows).token_ids == [min(kept), max(kept)]


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1.0, 100.0, 1e30, 1e300])
@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_extreme_temperatures_and_numbers_give_a_possible_token(temperature: float, uniform: float) -> None:
    logits = [-math.inf, 3e38, 3e38, -3e38, -math.inf]
    params = SamplingParams(temperature=temperature, top_p=0.999, top_k=4)
    (token,) = _tokens(logits, params, [uniform])
    assert token in {1, 2, 3}


def test_a_vocabulary_of_one_always_gives_its_token() -> None:
    for params in (SamplingParams(), SamplingParams(top_k=1, top_p=0.1, min_p=1.0)):
        assert set(_tokens([-5.0], params, [0.0, 0.5, ALMOST_ONE])) == {0}


def test_a_token_of_no_probability_is_never_drawn_at_the_edges() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    assert _tokens(logits, SamplingParams(), [0.0, 0.5, ALMOST_ONE]) == [1, 3, 3]


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
