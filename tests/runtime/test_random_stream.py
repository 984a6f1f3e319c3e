"""The random stream: known answers, uniform numbers, and no relation between neighbours of any argument."""

from __future__ import annotations

import functools
import itertools
import math
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.runtime.random_stream import philox, stream_key, uniform_for

SEEDS = st.integers(-(2**63), 2**64 - 1)
BRANCHES = st.lists(st.integers(0, 2**64 - 1), max_size=4).map(tuple)


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


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


def test_a_draw_is_the_first_53_bits_of_its_philox_block() -> None:
    high, low, _, _ = _words("6627e8d5 e169c58d bc57ac4c 9b00dbd8")
    assert uniform_for(0, (), 0, 0) == ((high << 32 | low) >> 11) / 2**53


@settings(max_examples=100, deadline=None)
@given(SEEDS, BRANCHES, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_number_is_below_one_has_53_bits_and_is_the_same_again(
    seed: int, branch: tuple[int, ...], index: int, position: int
) -> None:
    number = uniform_for(seed, branch, index, position)
    assert 0.0 <= number < 1.0
    assert (number * 2**53).is_integer()
    stream_key.cache_clear()
    assert uniform_for(seed, branch, index, position) == number


def test_a_negative_seed_is_its_twos_complement() -> None:
    assert uniform_for(-1, (3,), 0, 5) == uniform_for(2**64 - 1, (3,), 0, 5)


def test_every_bit_of_a_seed_counts() -> None:
    assert len({uniform_for(1 << bit, (), 0, 0) for bit in range(64)}) == 64


def test_a_branch_path_is_not_confused_with_another_place_or_depth() -> None:
    paths = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2**32,), (2**63,)]
    assert len({uniform_for(7, path, 0, 0) for path in paths}) == len(paths)


def test_every_bit_of_a_branchs_key_is_used() -> None:
    keys = [stream_key(0, (child,)) for child in range(64)]
    assert functools.reduce(operator.or_, keys) == 2**64 - 1
    assert functools.reduce(operator.and_, keys) == 0


def test_the_key_of_a_branch_is_a_seed_for_what_hangs_below_it() -> None:
    assert stream_key(stream_key(9, (4, 1)), (2,)) == stream_key(9, (4, 1, 2))


def test_arguments_outside_their_range_are_refused() -> None:
    for bad in [((-1,), 0, 0), ((2**64,), 0, 0), ((), -1, 0), ((), 2**32, 0), ((), 0, -1)]:
        with pytest.raises(AssertionError, match="bits"):
            uniform_for(0, *bad)


# Four ways to walk through the arguments; each must look random by itself.
WALKS = {
    "position": lambda i: uniform_for(1, (), 0, i),
    "index": lambda i: uniform_for(1, (), i, 17),
    "branch": lambda i: uniform_for(1, (i,), 0, 17),
    "depth": lambda i: uniform_for(1, (0,) * (i % 16) + (i // 16,), 0, 17),
    "seed": lambda i: uniform_for(i, (), 0, 0),
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
    for other in [lambda i: uniform_for(5, (), 1, i), lambda i: uniform_for(5, (0,), 0, i)]:
        counts = [0] * 64
        for i in range(6400):
            counts[int(uniform_for(5, (), 0, i) * 8) * 8 + int(other(i) * 8)] += 1
        assert _chi_square(counts) < _limit(63)


def test_the_check_of_independence_notices_one_stream_used_twice() -> None:
    counts = [0] * 64
    for i in range(6400):
        counts[int(uniform_for(5, (), 0, i) * 8) * 8 + int(uniform_for(5, (), 0, i) * 8)] += 1
    assert _chi_square(counts) > _limit(63)


def _chi_square(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def _limit(freedom: int) -> float:
    """What chi-square exceeds once in a thousand times (Wilson and Hilferty's approximation)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 3.09 * math.sqrt(spread)) ** 3
