"""Tokens drawn on a CPU, each out of a whole row of scores: noise, filters and choice in one call.

It owns the compiled form of what runtime/sampling.py does in numpy, operation by operation: the same float32
roundings in the same order (nothing here may be fused or reassociated) and masses as integers, so that it
draws the same token of the same scores. It does not sort: who may be drawn lies before a value and a place,
that is, has a larger value, or an equal one at a lower place.

Noise is worked out only for those that may win. What must hold for that: `_bound` is at least the sum that
`_sum` gives, where that can be the largest. Rows are shared out over the team and do not know of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .cpu_ir import floats, inner, load_int, store_int
from .cpu_team import Team, job
from .ops import Draw

_KINDS = ("i8", "i8", "u8", "i8", "i8", "f4", "f4", "f4", "i8")
_ASKED = np.dtype(list(zip(Draw._fields, _KINDS, strict=True)), align=True)
_ASKED_BYTES = _ASKED.itemsize

# Types and numbers as compiled code needs them: with a number of Python all would be computed in 64 bits.
_U32, _U64, _I32, _F32 = np.uint32, np.uint64, np.int32, np.float32
_LOW, _HALF = _U64(0xFFFFFFFF), _U64(32)
_FIRST, _SECOND = _U64(0xD2511F53), _U64(0xCD9E8D57)
_LEFT, _RIGHT = _U64(0x9E3779B9), _U64(0xBB67AE85)
_WORD, _HALF_WORD = _F32(2.0**-32), _F32(2.0**-33)

_ONE, _TWO, _HALF_ONE, _LEAST_REST = _F32(1), _F32(2), _F32(0.5), _F32(2.0**-24)
_LN2 = _F32(0.6931471805599453)
_SQRT_HALF_BITS = 0x3F3504F3
_NINTH, _SEVENTH, _FIFTH, _THIRD = _F32(1 / 9), _F32(1 / 7), _F32(1 / 5), _F32(1 / 3)

_COLDEST, _MINUS_LOG2E = _F32(-80), _F32(-1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _F32(0.693359375), _F32(2.1219444005469057e-4)
_E7, _E6, _E5, _E4, _E3, _E2 = (_F32(1 / n) for n in (5040, 720, 120, 24, 6, 2))
_MASS_OF_ONE = _F32(2.0**44)

_BITS_TO_NOISE = _F32(-0.6931471805599453 * 2.0**-23)
_NOISE_OF_NO_BITS = _F32(127 * 0.6931471805599453 + 1e-3)
_CHUNK = 256
"""Ids that are looked at together before it is asked whether any of them may win."""
_DRAWS_A_THREAD = 4
"""Whose tails are in memory together: as few as share out evenly."""
_NEAR = 1 << 19
"""How far below the largest score the last of top-k is looked for first, in steps of one number."""
_LOWEST = -0x7F800001
"""What `_rank` gives for minus infinity."""


class CpuDraw:
    """The op `draw` (ops.py says what it does)."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._tails: NDArray[np.float32] = np.empty(0, dtype=np.float32)

    def __call__(self, scores: Tensor, draws: Sequence[Draw]) -> list[int]:
        for draw in draws:
            assert (draw.position | draw.choice) >> 32 == 0, f"these have 32 bits and no sign, got {draw}"
            assert 0 <= draw.top_k < scores.shape[1], f"top_k leaves some out, or is 0, got {draw}"
        count, size = len(draws), scores.shape[1]
        together = min(count, _DRAWS_A_THREAD * self._team.threads)
        needed = together * -(-size // 4) * 4
        if len(self._tails) < needed:  # kept: fresh memory costs more than what is done in it
            self._tails = np.empty(needed, dtype=np.float32)
        asked, tokens = np.array(draws, dtype=_ASKED), np.empty(count, dtype=np.int64)
        source = (scores.data_ptr(), 4 * scores.stride(0), size)
        for first in range(0, count, together):
            places = (asked[first:].ctypes.data, self._tails.ctypes.data, tokens[first:].ctypes.data)
            self._team.run(_draw_job.address, min(together, count - first), *source, *places)
        chosen: list[int] = tokens.tolist()
        return chosen


@inner()
def _fill_tails(key, choice, position, tails):  # type: ignore[no-untyped-def]
    """random_stream.draw_words of ids 0, 1, .. and tail_of them, four ids at a time."""
    for block in range(len(tails) // 4):
        a, b, c, d = position, choice, _U64(block), _U64(0)
        left, right = key & _LOW, key >> _HALF
        for _ in range(10):
            first, second = a * _FIRST, c * _SECOND
            a, b = (second >> _HALF) ^ b ^ left, second & _LOW
            c, d = (first >> _HALF) ^ d ^ right, first & _LOW
            left, right = (left + _LEFT) & _LOW, (right + _RIGHT) & _LOW
        tails[4 * block] = _F32(_U32(a)) * _WORD + _HALF_WORD
        tails[4 * block + 1] = _F32(_U32(b)) * _WORD + _HALF_WORD
        tails[4 * block + 2] = _F32(_U32(c)) * _WORD + _HALF_WORD
        tails[4 * block + 3] = _F32(_U32(d)) * _WORD + _HALF_WORD


@inner()
def _bound(scaled, tail):  # type: ignore[no-untyped-def]
    """What a score and its noise do not exceed together.

    Noise is at most -log(tail), and a float's bits, as a number, are 2**23 times its logarithm or less.
    """
    return scaled + (_F32(np.float32(tail).view(np.int32)) * _BITS_TO_NOISE + _NOISE_OF_NO_BITS)


@inner()
def _log(x, tail):  # type: ignore[no-untyped-def]
    """random_stream._log of its _split; of a number near 1, that of 1 - tail."""
    bits = np.float32(x).view(np.int32)
    powers = _I32((bits - _SQRT_HALF_BITS) >> 23)
    fraction = np.int32(bits - (powers << 23)).view(np.float32) - _ONE
    if powers == 0 and tail > _F32(0):
        fraction = -tail
    s = fraction / (fraction + _TWO)
    z = s * s
    series = (((z * _NINTH + _SEVENTH) * z + _FIFTH) * z + _THIRD) * z
    return _F32(powers) * _LN2 + (s * series + s) * _TWO


@inner()
def _sum(scaled, tail):  # type: ignore[no-untyped-def]
    """A score and its noise: random_stream.gumbel."""
    rest = _ONE - tail
    return scaled - _log(-_log(rest if rest > _LEAST_REST else _LEAST_REST, tail), _F32(0))


@inner()
def _weight(scaled):  # type: ignore[no-untyped-def]
    """sampling._weights."""
    x = scaled if scaled > _COLDEST else _COLDEST
    halvings = _I32(x * _MINUS_LOG2E + _HALF_ONE)
    steps = _F32(halvings)
    r = (x + steps * _LN2_HIGH) - steps * _LN2_LOW
    series = (((((_E7 * r + _E6) * r + _E5) * r + _E4) * r + _E3) * r + _E2) * r
    return ((series + _ONE) * r + _ONE) * np.int32((127 - halvings) << 23).view(np.float32)


@inner()
def _rank(value):  # type: ignore[no-untyped-def]
    """Whole numbers in the order of the values; of the two zeros, the negative one comes below."""
    bits = np.float32(value).view(np.int32)
    return np.int32(bits ^ ((bits >> 31) & _I32(0x7FFFFFFF)))


@inner()
def _value(rank):  # type: ignore[no-untyped-def]
    """Whose rank it is."""
    bits = _I32(rank)
    return np.int32(bits ^ ((bits >> 31) & _I32(0x7FFFFFFF))).view(np.float32)


@inner()
def _last_rank(values, count, most, ranks):  # type: ignore[no-untyped-def]
    """The rank of the `count`-th largest value. `ranks` is memory for as many as there are values.

    It is looked for in steps that double, from the largest value down, and then by halving, among the few
    that lie above the last step.
    """
    gap, low, high = np.int64(_NEAR), np.int64(_rank(most)), np.int64(_rank(most)) + 1
    while True:
        low = max(low - gap, np.int64(_LOWEST))
        least, found = _I32(low), _I32(0)
        for i in range(len(values)):
            found += _I32(_rank(values[i]) >= least)
        if found >= count:
            break
        high, gap = low, 2 * gap
    kept = 0
    for start in range(0, len(values), _CHUNK):
        some, found = values[start : start + _CHUNK], _I32(0)
        for i in range(len(some)):
            found += _I32(_rank(some[i]) >= least)
        if not found:
            continue
        for i in range(len(some)):
            rank = _rank(some[i])
            ranks[kept] = rank
            kept += rank >= least
    while high - low > 1:
        middle = (low + high) >> 1
        least, found = _I32(middle), _I32(0)
        for i in range(kept):
            found += _I32(ranks[i] >= least)
        if found >= count:
            low = middle
        else:
            high = middle
    return low


@inner()
def _place_behind(values, count, last):  # type: ignore[no-untyped-def]
    """The place such that `count` values lie before the value `last` and it."""
    above, ties = _I32(0), _I32(0)
    for i in range(len(values)):
        above += _I32(values[i] > last)
        ties += _I32(values[i] == last)
    place, left = len(values), count - above
    if ties == left:
        return place
    while left < ties:
        place -= 1
        ties -= values[place] == last
    return place


@inner()
def _masses(values, value, place, last, end, most, scale):  # type: ignore[no-untyped-def]
    """The mass of those that lie before a value and a place, and that of all before `last` and `end`."""
    before, total = np.int64(0), np.int64(0)
    for i in range(len(values)):
        mass = np.int64(_weight((values[i] - most) * scale) * _MASS_OF_ONE)
        is_before = values[i] > value or (values[i] == value and i < place)
        counts = values[i] > last or (values[i] == last and i < end)
        before += mass if is_before else np.int64(0)
        total += mass if counts else np.int64(0)
    return np.float64(before), np.float64(total)


@inner()
def _winner(values, tails, value, place, most, scale, best, least):  # type: ignore[no-untyped-def]
    """The place of the largest sum, the first of a tie, among those before a value and a place that weigh
    `least` or more. The best, the place of the largest value, is always one of them."""
    winner, high = best, _sum((values[best] - most) * scale, tails[best])
    for start in range(0, len(values), _CHUNK):
        some, noises, rivals = values[start : start + _CHUNK], tails[start : start + _CHUNK], _I32(0)
        for i in range(len(some)):
            rivals += _I32((_bound((some[i] - most) * scale, noises[i]) >= high) & (some[i] >= value))
        if not rivals:
            continue
        for i in range(len(some)):
            scaled, at = (some[i] - most) * scale, start + i
            is_before = some[i] > value or (some[i] == value and at < place)
            if is_before and _bound(scaled, noises[i]) >= high and _weight(scaled) >= least:
                total = _sum(scaled, noises[i])
                if total > high or (total == high and at < winner):
                    winner, high = at, total
    return winner


@job
def _draw_job(call, item):  # type: ignore[no-untyped-def]
    """Words: scores, bytes a row, vocabulary, draws, tails, tokens. An item is a draw.

    A winner that lies behind the cut of top-p is followed by that of those before it, as in
    sampling._winner_in_nucleus: before the best there is nobody, so it ends there at the latest.
    """
    size, asked = load_int(call + 24), load_int(call + 32) + _ASKED_BYTES * item
    values = floats(load_int(call + 8) + load_int(asked) * load_int(call + 16), size)
    best, key = load_int(asked + 8), _U64(load_int(asked + 16))
    position, choice = _U64(load_int(asked + 24)), _U64(load_int(asked + 32))
    numbers, top_k = floats(asked + 40, 3), load_int(asked + 56)
    scale, share, least = numbers[0], numbers[1], numbers[2]
    padded = (size + 3) // 4 * 4
    tails = floats(load_int(call + 40) + 4 * padded * item, padded)
    most, last, end = values[best], _F32(-np.inf), size
    if top_k:
        last = _value(_last_rank(values, top_k, most, tails.view(np.int32)))
        end = _place_behind(values, top_k, last)
    _fill_tails(key, choice, position, tails)
    value, winner = last, end
    while True:
        winner = _winner(values, tails, value, winner, most, scale, best, least)
        value = values[winner]
        if share >= _ONE or winner == best:
            break
        before, total = _masses(values, value, winner, last, end, most, scale)
        if before < np.float64(share) * total:
            break
    store_int(load_int(call + 48) + 8 * item, winner)
