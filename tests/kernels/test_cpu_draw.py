"""Compiled draws: the bits of the noise, and token by token what sampling in numpy chooses."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.kernels.ops import Draw
from radixlm.runtime.random_stream import draw_words, gumbel, tail_of
from radixlm.runtime.sampling import SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams
from testkit.compiled import drawer, fused
from testkit.gpu.sampling import SMALL_TAILS, against_rival

WORDS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
KEYS = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
SIZES = (1, 2, 3, 4, 5, 7, 255, 256, 257, 3001)
FILTERS: list[dict[str, float]] = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_p": 0.7, "min_p": 0.1},
    {"top_p": 1e-30},
    {"top_p": 1 - 2**-53},
    {"top_k": 1},
    {"top_k": 2},
    {"top_k": 50},
    {"top_k": 2999, "top_p": 0.99},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 4, "top_p": 0.3},
]


def check_tails(size: int, key: int, position: int, choice: int) -> None:
    draw = drawer(1)
    draw(torch.zeros(1, size), [Draw(0, 0, key, position, choice, 1.0, 1.0, 0.0)])
    wanted = tail_of(draw_words(key, choice, position, np.arange(size)))
    assert np.array_equal(draw._tails[:size].view(np.uint32), wanted.view(np.uint32))


def row(params: SamplingParams, key: int = 7, position: int = 0, choice: int = 0) -> SampleRow:
    return SampleRow(params, (), (), (), key, choice, position)


def check_tokens(scores: torch.Tensor, rows: list[SampleRow], threads: int = 2) -> list[int]:
    """They are those of numpy."""
    found = sample(scores, rows, fused().logit_mask, draw=drawer(threads))
    assert found == sample(scores, rows, fused().logit_mask)
    return found.token_ids


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), KEYS, WORDS, WORDS)
def test_noise_has_the_bits_of_the_random_stream(size: int, key: int, position: int, choice: int) -> None:
    check_tails(size, key, position, choice)


@pytest.mark.parametrize("size", [49152, 128256])
def test_noise_of_large_vocabularies_has_the_bits_of_the_random_stream(size: int) -> None:
    for key, position, choice in [(0, 0, 0), (2**64 - 1, 2**32 - 1, 2**32 - 1), (0x9E3779B97F4A7C15, 77, 3)]:
        check_tails(size, key, position, choice)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SIZES), st.sampled_from(FILTERS))
def test_tokens_are_those_of_numpy(seed: int, size: int, filters: dict[str, float]) -> None:
    chance = random.Random(seed)
    temperature = chance.choice([1e-6, 0.3, 0.7, 1.0, 2.5, 100.0, 1e30, 1e300])
    params = replace(SamplingParams(temperature=temperature), **filters)
    scores = chance.choice([0.0, 0.1, 1.0, 5.0, 1e30]) * torch.randn(
        12, size, generator=torch.Generator().manual_seed(seed)
    )
    if chance.random() < 0.5:  # ties are common
        scores = (scores * 4).round() / 4
    if chance.random() < 0.3:
        scores[torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) < 0.5] = -torch.inf
    keys = [chance.getrandbits(64) for _ in scores]
    check_tokens(scores, [row(params, key, chance.getrandbits(32), n) for n, key in enumerate(keys)])


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_tokens_of_a_real_vocabulary_are_those_of_numpy(filters: dict[str, float]) -> None:
    scores = 3 * torch.randn(8, 49152, generator=torch.Generator().manual_seed(2))
    scores[:4, 4711] += 14.0  # some are sure of themselves
    params = replace(SamplingParams(), **filters)
    tokens = check_tokens(scores, [row(params, position=position) for position in range(8)])
    assert len(set(tokens)) > 1 or "min_p" in filters or filters.get("top_p", 1.0) < 0.1


def test_a_token_has_the_largest_sum_of_score_and_noise_and_is_the_first_of_a_tie() -> None:
    scores = torch.randn(40, 5000, generator=torch.Generator().manual_seed(1))
    tokens = drawer()(scores, [Draw(i, int(scores[i].argmax()), 5, i, 0, 1.0, 1.0, 0.0) for i in range(40)])
    for i, token in enumerate(tokens):
        noise = gumbel(tail_of(draw_words(5, 0, i, np.arange(5000))))
        assert token == int((scores[i].numpy() - scores[i].numpy().max() + noise).argmax())


@pytest.mark.parametrize("distance", [-1e-3, -1e-6, 0.0, 1e-6, 1e-3])
def test_the_rarest_noise_wins_where_it_does_in_numpy(distance: float) -> None:
    for position, token in SMALL_TAILS:
        scores = against_rival(4099, position, token, distance)[None]
        check_tokens(scores.float(), [row(SamplingParams(), position=position)])


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_of_all_kinds_together_get_what_each_gets_alone(threads: int) -> None:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.8, logit_bias={3: 2.0}),
        SamplingParams(top_k=5000, min_p=0.01),
        SamplingParams(repetition_penalty=1.3),
    ]
    scores = 2 * torch.randn(50, 97, generator=torch.Generator().manual_seed(3))
    scores[7], scores[9, 2] = -torch.inf, torch.nan
    rows = [row(kinds[i % len(kinds)], key=i << 58, position=i) for i in range(len(scores))]
    rows[12] = replace(rows[12], mask=np.array([0b1001, 1 << 20, 0, 0], dtype=np.int32))
    rows[18] = replace(rows[18], mask=np.zeros(4, dtype=np.int32))
    before = scores.clone()
    tokens = check_tokens(scores, rows, threads)
    assert torch.equal(scores.nan_to_num(), before.nan_to_num()), "logits are only read"
    assert [i for i, token in enumerate(tokens) if token < 0] == [7, 9, 18]
    assert tokens[12] in (0, 3, 52)
    alone = [check_tokens(scores[i : i + 1], [rows[i]], threads)[0] for i in range(len(rows))]
    assert tokens == alone


def test_scores_may_lie_apart_in_memory() -> None:
    wide = torch.randn(9, 3, 300, generator=torch.Generator().manual_seed(4))
    draws = [Draw(i, int(wide[i, 1].argmax()), 9, i, 0, 1.0, 0.9, 0.0) for i in (8, 0, 5)]
    assert drawer()(wide[:, 1], draws) == drawer()(wide[:, 1].contiguous(), draws)


def test_arguments_outside_their_range_are_refused() -> None:
    for position, choice in [(-1, 0), (2**32, 0), (0, -1), (0, 2**32)]:
        with pytest.raises(AssertionError, match="32 bits"):
            drawer()(torch.zeros(1, 4), [Draw(0, 0, 1, position, choice, 1.0, 1.0, 0.0)])
