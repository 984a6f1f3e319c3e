"""The random stream: known answers, uniform numbers, and no relation between neighbours of any argument."""

from __future__ import annotations

import functools
import itertools
import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.runtime.random_stream import draw_words, gumbel, philox, stream_key, tail_of

SEEDS = st.integers(-(2**63), 2**64 - 1)
BRANCHES = st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple)


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def _word(seed: int, branch: tuple[int, ...], choice: int, position: int, token: int) -> int:
    return int(draw_words(stream_key(seed, branch), choice, position, np.array([token]))[0])


def _uniform(seed: int, branch: tuple[int, ...], choice: int, position: int, token: int = 0) -> float:
    """A word as a number, by the function that a test below finds to be the same; many of them are needed."""
    key = stream_key(seed, branch)
    counter = (position, choice, token // 4, 0)
    return int(philox(counter, (key & 0xFFFFFFFF, key >> 32))[token % 4]) * 2.0**-32


# The vectors published with Random123 for philox4x32 with 10 rounds: counter, key, output.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    assert philox(_words(counter), _words(key)) == _words(expected)


def test_arrays_of_counters_give_what_each_gives_alone() -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, (4, 50), dtype=np.uint64)
    words = np.stack(philox(tuple(counters), (3, 2**32 - 1)))
    assert words.T.tolist() == [
        list(philox(tuple(map(int, column)), (3, 2**32 - 1))) for column in counters.T
    ]


def test_the_word_of_a_token_is_one_of_four_of_the_block_of_its_place() -> None:
    key = stream_key(9, (4,))
    for token in (0, 1, 2, 3, 4, 49151):
        block = philox((17, 5, token // 4, 0), (key & 0xFFFFFFFF, key >> 32))
        assert _word(9, (4,), 5, 17, token) == block[token % 4]


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 300), min_size=1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_a_token_has_one_word_whatever_else_is_kept(kept: set[int], key: int, position: int) -> None:
    ids = np.array(sorted(kept))
    assert draw_words(key, 3, position, ids).tolist() == [
        int(draw_words(key, 3, position, ids[i : i + 1])[0]) for i in range(len(ids))
    ]


@settings(max_examples=100, deadline=None)
@given(SEEDS, BRANCHES, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**20))
def test_a_word_has_32_bits_and_is_the_same_again(
    seed: int, branch: tuple[int, ...], choice: int, position: int, token: int
) -> None:
    word = _word(seed, branch, choice, position, token)
    assert 0 <= word < 2**32
    stream_key.cache_clear()
    assert _word(seed, branch, choice, position, token) == word


def test_a_negative_seed_is_its_twos_complement() -> None:
    assert _uniform(-1, (3,), 0, 5) == _uniform(2**64 - 1, (3,), 0, 5)


def test_every_bit_of_a_seed_counts() -> None:
    assert len({_uniform(1 << bit, (), 0, 0) for bit in range(64)}) == 64


def test_a_branch_path_is_not_confused_with_another_place_or_depth() -> None:
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2**32,), (2**63,)]
    assert len({_uniform(7, path, 0, 0) for path in paths}) == len(paths)


def test_every_bit_of_a_branchs_key_is_used() -> None:
    keys = [stream_key(0, (child,)) for child in range(64)]
    assert functools.reduce(operator.or_, keys) == 2**64 - 1
    assert functools.reduce(operator.and_, keys) == 0


def test_the_key_of_a_branch_is_a_seed_for_what_hangs_below_it() -> None:
    assert stream_key(stream_key(9, (4, 1)), (2,)) == stream_key(9, (4, 1, 2))


def test_arguments_outside_their_range_are_refused() -> None:
    for bad in [((-1,), 0, 0), ((2**64,), 0, 0), ((), -1, 0), ((), 2**32, 0), ((), 0, -1), ((), 0, 2**32)]:
        with pytest.raises(AssertionError, match="bits"):
            _word(0, *bad, 0)


# The ways to walk through the arguments; each must look random by itself.
WALKS = {
    "position": lambda i: _uniform(1, (), 0, i),
    "choice": lambda i: _uniform(1, (), i, 17),
    "token": lambda i: _uniform(1, (), 0, 17, i),
    "branch": lambda i: _uniform(1, (i,), 0, 17),
    "depth": lambda i: _uniform(1, (0,) * (i % 16) + (i // 16,), 0, 17),
    "seed": lambda i: _uniform(i, (), 0, 0),
}


@pytest.mark.parametrize("walk", WALKS)
def test_numbers_are_uniform_along_each_argument(walk: str) -> None:
    counts = [0] * 64
    for i in range(6400):
        counts[int(WALKS[walk](i) * 64)] += 1
    assert _chi_square(counts) < _limit(63)


@pytest.mark.parametrize("walk", WALKS)
def test_neighbours_are_independent_along_each_argument(walk: str) -> None:
    numbers = [WALKS[walk](i) for i in range(6401)]
    counts = [0] * 64
    for one, other in itertools.pairwise(numbers):
        counts[int(one * 8) * 8 + int(other * 8)] += 1
    assert _chi_square(counts) < _limit(63)


def test_two_choices_and_two_branches_of_one_seed_are_independent() -> None:
    for other in [lambda i: _uniform(5, (), 1, i), lambda i: _uniform(5, (0,), 0, i)]:
        counts = [0] * 64
        for i in range(6400):
            counts[int(_uniform(5, (), 0, i) * 8) * 8 + int(other(i) * 8)] += 1
        assert _chi_square(counts) < _limit(63)


def test_the_check_of_independence_notices_one_stream_used_twice() -> None:
    counts = [0] * 64
    for i in range(6400):
        counts[int(_uniform(5, (), 0, i) * 8) * 8 + int(_uniform(5, (), 0, i) * 8)] += 1
    assert _chi_square(counts) > _limit(63)


# -- noise


def test_noise_is_that_of_the_formula_within_two_millionths() -> None:
    edges = [0, 1, 2, 255, 2**16, 2**30, 2**31 - 1, 2**31, 2**32 - 2**9, 2**32 - 257, 2**32 - 1]
    words = np.array(edges + list(range(0, 2**32, 2**32 // 5000)), dtype=np.uint32)
    tails = tail_of(words)
    assert tails.dtype == gumbel(tails).dtype == np.float32
    np.testing.assert_allclose(tails, (words + 0.5) * 2.0**-32, rtol=2.0**-23)
    exact = -np.log(-np.log1p(-np.minimum(tails.astype(np.float64), 1 - 2.0**-24)))
    assert np.abs(gumbel(tails) - exact).max() < 2e-6


def test_noise_falls_as_the_tail_grows_and_stays_finite() -> None:
    noise = gumbel(tail_of(np.arange(0, 2**32, 2**32 // 5000, dtype=np.uint32)))
    assert (np.diff(noise) < 0).all()
    ends = gumbel(tail_of(np.array([0, 2**32 - 1], dtype=np.uint32)))
    assert 22.8 < ends[0] < 22.9
    assert -2.82 < ends[1] < -2.80


def test_noise_is_below_what_the_choice_of_a_winner_takes_for_its_bound() -> None:
    tails = tail_of(np.arange(0, 2**32, 2**32 // 5000, dtype=np.uint32))
    assert (gumbel(tails) <= -np.log(tails) + 1e-5).all()


def test_noise_of_many_tokens_has_the_moments_of_a_gumbel_distribution() -> None:
    noise = gumbel(tail_of(draw_words(stream_key(3, ()), 0, 1, np.arange(100_000)))).astype(np.float64)
    assert abs(noise.mean() - 0.5772157) < 4 * noise.std() / math.sqrt(100_000)
    assert abs(noise.var() - math.pi**2 / 6) < 0.04


def _chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def _limit(freedom: int) -> float:
    """What chi-square exceeds once in a thousand times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3
