"""The random numbers of sampling: a pure function of (seed, branch path, choice, position, token id).

There is no generator state, so a token's draw cannot depend on batch mates, chunking, preemption or the
order of work. The function is Philox-4x32 with 10 rounds, from J. K. Salmon, M. A. Moraes, R. O. Dror and
D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11 (doi 10.1145/2063384.2063405).

A branch path names a place in a tree of forks: () is the root, (2,) its child 2, (2, 0) that child's child 0.
Each step down the path replaces the 64-bit key by a Philox output, so a path of any depth gives a key. The
last counter word tells such steps from draws: the two never use the same block of one key.

    a draw      key: that of the branch     counter: (position, choice, id // 4, 0)    word id % 4 is id's
    a descent   key: that of the parent     counter: (step low, step high, 0, 1)       words 0 and 1: new key

`gumbel` makes noise of such words in float32, by nothing but what every processor rounds alike (+ - * /, and
the bits of a number): the kernel of kernels/sample.py gets the same bits.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Any: integers of Python or, many at once, arrays of uint64, which hold the products.
Words = tuple[Any, Any, Any, Any]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_DRAW, _DESCEND = 0, 1

_LN2 = 0.6931471805599453
_SQRT_HALF_BITS = 0x3F3504F3


@lru_cache(maxsize=4096)
def stream_key(seed: int, branch: tuple[int, ...]) -> int:
    """The 64-bit key of one branch; a seed of its own for whatever hangs below that branch.

    Only the low 64 bits of `seed` count: -1 and 2**64 - 1 are one seed. Steps of `branch` are >= 0 and
    below 2**64. The memo saves the descent at every token; it changes no value.
    """
    key = seed & _MASK64
    for step in branch:
        assert 0 <= step <= _MASK64, f"a step of a branch path has 64 bits and no sign, got {step}"
        first, second, _, _ = philox((*_halves(step), 0, _DESCEND), _halves(key))
        key = first | second << 32
    return key


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """Philox-4x32-10: four 32-bit words out of a 128-bit counter and a 64-bit key; or arrays of words."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> 32) ^ b ^ left, second & _MASK32
        c, d = (first >> 32) ^ d ^ right, first & _MASK32
        left, right = (left + _KEY_STEPS[0]) & _MASK32, (right + _KEY_STEPS[1]) & _MASK32
    return a, b, c, d


def draw_words(key: int, choice: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The random word of each of the token ids, which rise and of which there is at least one.

    `key` is that of the branch (stream_key), `position` the place of the token to choose in its sequence.
    """
    assert 0 <= key <= _MASK64, f"a key has 64 bits and no sign, got {key}"
    assert 0 <= choice <= _MASK32, f"a choice has 32 bits and no sign, got {choice}"
    assert 0 <= position <= _MASK32, f"a position has 32 bits and no sign, got {position}"

    def blocks(numbers: NDArray[np.int64]) -> NDArray[np.uint32]:
        block = numbers.astype(np.uint64)
        first, second, last = (np.full_like(block, word) for word in (position, choice, _DRAW))
        return np.stack(philox((first, second, block, last), _halves(key)), axis=1).astype(np.uint32)

    count = int(ids[-1]) + 1
    if 4 * len(ids) < count:
        # Few of many: each has a block of its own, even if two of them could share one.
        words: NDArray[np.uint32] = blocks(ids >> 2)[np.arange(len(ids)), ids & 3]
        return words
    words = blocks(np.arange((count + 3) // 4)).ravel()
    return words[:count] if len(ids) == count else words[ids]


def tail_of(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """A number in (0, 1] a word: how likely a uniform number lies above the one that the word stands for.

    All 32 bits count where it is small, which is where the largest noise comes from.
    """
    return words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)


def gumbel(tail: NDArray[np.float32]) -> NDArray[np.float32]:
    """-log(-log(1 - tail)): Gumbel noise, within 2e-6. From -2.9 to 22.9, larger for a smaller tail."""
    rest = np.maximum(np.float32(1.0) - tail, np.float32(2.0**-24))
    powers, fraction = _split(rest)
    # Near 1 the rest has lost bits of the tail.
    fraction = np.where(powers == 0, -tail, fraction)
    return -_log(*_split(-_log(powers, fraction)))


def _split(x: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """x = 2**powers * (1 + fraction), the factor from the root of 1/2 to that of 2. x is positive, normal."""
    bits = x.view(np.int32)
    powers = (bits - _SQRT_HALF_BITS) >> 23
    return powers, (bits - (powers << 23)).view(np.float32) - np.float32(1.0)


def _log(powers: NDArray[np.int32], fraction: NDArray[np.float32]) -> NDArray[np.float32]:
    """The logarithm of 2**powers * (1 + fraction): twice the series of artanh(fraction / (2 + fraction))."""
    s = fraction / (fraction + 2.0)
    z = s * s
    series = (((z * (1 / 9) + 1 / 7) * z + 1 / 5) * z + 1 / 3) * z
    logarithm: NDArray[np.float32] = powers.astype(np.float32) * _LN2 + (s * series + s) * 2.0
    return logarithm


def _halves(value: int) -> tuple[int, int]:
    return value & _MASK32, value >> 32
