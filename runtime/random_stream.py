"""The random numbers of sampling: a pure function of (seed, branch path, choice index, position).

There is no generator state, so a token's draw cannot depend on batch mates, chunking, preemption or the
order of work. The function is Philox-4x32 with 10 rounds, from J. K. Salmon, M. A. Moraes, R. O. Dror and
D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11 (doi 10.1145/2063384.2063405).

A branch path names a place in a tree of forks: () is the root, (2,) its child 2, (2, 0) that child's child 0.
Each step down the path replaces the 64-bit key by a Philox output, so a path of any depth gives a key. The
last counter word tells such steps from draws: the two never use the same block of one key.
"""

from __future__ import annotations

from functools import lru_cache

Words = tuple[int, int, int, int]

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_DRAW, _DESCEND = 0, 1


def uniform_for(seed: int, branch: tuple[int, ...], index: int, position: int) -> float:
    """The number in [0, 1), a multiple of 2**-53, that decides one token.

    `index` is the choice (0 <= index < 2**32), `position` the token's place in its sequence
    (0 <= position < 2**64). `seed` and `branch` are those of `stream_key`.
    """
    assert 0 <= index <= _MASK32, f"a choice index has 32 bits, got {index}"
    assert 0 <= position <= _MASK64, f"a position has 64 bits and no sign, got {position}"
    high, low, _, _ = philox(_counter(position, index, _DRAW), _halves(stream_key(seed, branch)))
    return (high << 21 | low >> 11) * 2.0**-53


@lru_cache(maxsize=4096)
def stream_key(seed: int, branch: tuple[int, ...]) -> int:
    """The 64-bit key of one branch; a seed of its own for whatever hangs below that branch.

    Only the low 64 bits of `seed` count: -1 and 2**64 - 1 are one seed. Steps of `branch` are >= 0 and
    below 2**64. The memo saves the descent at every token; it changes no value.
    """
    key = seed & _MASK64
    for step in branch:
        assert 0 <= step <= _MASK64, f"a step of a branch path has 64 bits and no sign, got {step}"
        first, second, _, _ = philox(_counter(step, 0, _DESCEND), _halves(key))
        key = first | second << 32
    return key


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """One Philox-4x32-10 block: four 32-bit words out of a 128-bit counter and a 64-bit key."""
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> 32) ^ b ^ left, second & _MASK32
        c, d = (first >> 32) ^ d ^ right, first & _MASK32
        left, right = (left + _KEY_STEPS[0]) & _MASK32, (right + _KEY_STEPS[1]) & _MASK32
    return a, b, c, d


def _counter(number: int, index: int, purpose: int) -> Words:
    return (*_halves(number), index, purpose)


def _halves(value: int) -> tuple[int, int]:
    return value & _MASK32, value >> 32
