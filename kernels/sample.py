"""One token a row, drawn from its logits by temperature, top-k, top-p, min-p and Gumbel noise.

    token = argmax over kept ids of (logit - largest) / temperature + gumbel(key, choice, position, id)

    logits (R, V) float32, last stride 1, V up to 2**18      keys, positions, choices (R) int64
    temperature, top_p, min_p (R) float32, top_k (R) int32   -> (R) int64, -1 without a finite largest logit

Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; ties go to the lower id; a logit of -inf is
never chosen. A key has 64 bits, a position and a choice 32. Noise and filters are those of
runtime/random_stream.py and runtime/sampling.py, operation by operation: float32 by nothing but what every
processor rounds alike (so products and sums must not be fused), masses as integers. No other dtypes.

One program walks through a row. Nothing is sorted: the ids better than a given one, by logit and then by id,
are the head of the order, and one pass tells their number, their mass and which of them wins. If a winner
turns out to lie behind the cut of top-k or top-p, so does all that follows it, and the ones before it are
looked at again. A round's winner is among the kept with their share of what is left, so rounds are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_LN2 = tl.constexpr(0.6931471805599453)
_LOG2E = tl.constexpr(1.4426950408889634)
# ln 2 in two parts, the first short enough for its multiples to be exact.
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(2.1219444005469057e-4)
_SQRT_HALF_BITS = tl.constexpr(0x3F3504F3)
_SIGN = tl.constexpr(0x80000000)
_HOTTEST, _COLDEST = tl.constexpr(2.0**126), tl.constexpr(2.0**-126)
_MASS_OF_ONE = tl.constexpr(2.0**44)
# What an upper bound of noise may be too small by, as it is computed.
_SLACK = tl.constexpr(1e-3)


@triton.jit
def _sample_kernel(  # type: ignore[no-untyped-def]
    out,
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    keys,
    positions,
    choices,
    vocabulary,
    row_stride,
    WIDE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    most, token = _largest(logits, vocabulary, WIDE_BLOCK)
    heat = tl.load(temperature + row)
    if (token >= 0) & (heat > 0.0):
        inverse = tl.div_rn(1.0, tl.maximum(tl.minimum(heat, _HOTTEST), _COLDEST))
        limit, share = tl.load(top_k + row), tl.load(top_p + row)
        limit = tl.where(limit > 0, limit, vocabulary)
        # Never above the best's weight: were it kept by none, the search below would not end.
        floor = tl.minimum(tl.load(min_p + row), 1.0)
        key = tl.load(keys + row)
        position = tl.load(positions + row).to(tl.uint32)
        choice = tl.load(choices + row).to(tl.uint32)
        value, before = -float("inf"), 0
        if (limit >= vocabulary) & (share >= 1.0) & (floor <= 0.0):
            count, mass, token = _winner(
                logits, vocabulary, value, before, most, inverse, floor, key, position, choice, False, BLOCK
            )
        else:
            if (limit < vocabulary) & (share < 1.0):
                value, before = _cut(logits, vocabulary, limit, BLOCK)
            count, mass, token = _winner(
                logits, vocabulary, value, before, most, inverse, floor, key, position, choice, True, BLOCK
            )
            wanted = tl.where(share < 1.0, share.to(tl.float64) * mass.to(tl.float64), float("inf"))
            is_within = False
            while not is_within:
                value, before = tl.load(logits + token), token
                count, mass, rival = _winner(
                    logits,
                    vocabulary,
                    value,
                    before,
                    most,
                    inverse,
                    floor,
                    key,
                    position,
                    choice,
                    True,
                    BLOCK,
                )
                is_within = (count == 0) | ((count < limit) & (mass.to(tl.float64) < wanted))
                token = tl.where(is_within, token, rival)
    tl.store(out + row, token.to(tl.int64))


@triton.jit
def _largest(logits, vocabulary, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest logit and its lowest id, which is -1 if there is a NaN or the largest is not finite."""
    offsets = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    places = tl.zeros([BLOCK], tl.int32)
    broken = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocabulary, BLOCK):
        ids = start + offsets
        x = tl.load(logits + ids, mask=ids < vocabulary, other=-float("inf"))
        broken |= (x != x).to(tl.int32)
        places = tl.where(x > best, ids, places)
        best = tl.where(x > best, x, best)
    most = tl.max(best, 0)
    token = tl.min(tl.where(best == most, places, vocabulary), 0)
    is_usable = (most > -float("inf")) & (most < float("inf")) & (tl.max(broken, 0) == 0)
    return most, tl.where(is_usable, token, -1)


@triton.jit
def _winner(  # type: ignore[no-untyped-def]
    logits,
    vocabulary,
    value,
    before,
    most,
    inverse,
    floor,
    key,
    position,
    choice,
    FILTERED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of the ids whose logit is above `value`, or equals it if they are below `before`: their number, their
    mass, and which of those with a weight of at least `floor` has the largest sum of score and noise.

    Not FILTERED leaves all but the last out.
    """
    offsets = tl.arange(0, BLOCK)
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.int64)
    best, token = -float("inf"), 0
    for start in range(0, vocabulary, BLOCK):
        ids = start + offsets
        x = tl.load(logits + ids, mask=ids < vocabulary, other=-float("inf"))
        is_kept = (x > value) | ((x == value) & (ids < before))
        if tl.max(is_kept.to(tl.int32), 0) > 0:
            scaled = (x - most) * inverse
            if FILTERED:
                weight = _weight(scaled)
                counts += is_kept.to(tl.int32)
                masses += tl.where(is_kept, weight * _MASS_OF_ONE, 0.0).to(tl.int64)
                is_kept &= weight >= floor
            tail = _tail(key, position, choice, start, BLOCK)
            bound = tl.where(is_kept, scaled + _most_noise(tail), -float("inf"))
            # Few blocks hold a rival, and only theirs is worked out.
            if tl.max(bound, 0) >= best:
                score = tl.where(is_kept, scaled + _gumbel(tail), -float("inf"))
                loudest = tl.max(score, 0)
                if loudest > best:
                    best = loudest
                    token = tl.min(tl.where(score == loudest, ids, vocabulary), 0)
    return tl.sum(counts, 0), tl.sum(masses, 0), token


@triton.jit
def _weight(scaled):  # type: ignore[no-untyped-def]
    """exp of numbers up to 0: 2**-halvings times the series of what is left over. Never below some 1e-35."""
    x = tl.maximum(scaled, -80.0)
    halvings = (x * -_LOG2E + 0.5).to(tl.int32)
    steps = halvings.to(tl.float32)
    r = (x + steps * _LN2_HIGH) - steps * _LN2_LOW
    series = r * (1 / 5040) + 1 / 720
    series = series * r + 1 / 120
    series = series * r + 1 / 24
    series = series * r + 1 / 6
    series = series * r + 1 / 2
    series = series * r + 1.0
    series = series * r + 1.0
    return series * ((127 - halvings) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _tail(key, position, choice, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number in (0, 1] for each id of a block; four ids share one block of Philox."""
    number = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zero = number * 0
    a, b, c, d = tl.philox(key, zero + position, zero + choice, number, zero, 10)
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [BLOCK])
    return words.to(tl.float32) * 2.0**-32 + 2.0**-33


@triton.jit
def _most_noise(tail):  # type: ignore[no-untyped-def]
    """An upper bound of the noise, which is at most -log(tail).

    A number's bits grow by 2**23 from one power of two to the next, nowhere above its logarithm.
    """
    bits = tail.to(tl.int32, bitcast=True).to(tl.float32)
    return (127.0 - bits * 2.0**-23) * _LN2 + _SLACK


@triton.jit
def _gumbel(tail):  # type: ignore[no-untyped-def]
    """-log(-log(1 - tail))"""
    powers, fraction = _split(tl.maximum(1.0 - tail, 2.0**-24))
    # Near 1 the rest has lost bits of the tail.
    fraction = tl.where(powers == 0, -tail, fraction)
    powers, fraction = _split(-_log(powers, fraction))
    return -_log(powers, fraction)


@triton.jit
def _split(x):  # type: ignore[no-untyped-def]
    """x = 2**powers * (1 + fraction), the factor from the root of 1/2 to that of 2. x is positive, normal."""
    bits = x.to(tl.int32, bitcast=True)
    powers = (bits - _SQRT_HALF_BITS) >> 23
    return powers, (bits - (powers << 23)).to(tl.float32, bitcast=True) - 1.0


@triton.jit
def _log(powers, fraction):  # type: ignore[no-untyped-def]
    """The logarithm of 2**powers * (1 + fraction): twice the series of artanh(fraction / (2 + fraction))."""
    s = tl.div_rn(fraction, fraction + 2.0)
    z = s * s
    series = (((z * (1 / 9) + 1 / 7) * z + 1 / 5) * z + 1 / 3) * z
    return powers.to(tl.float32) * _LN2 + (s * series + s) * 2.0


@triton.jit
def _cut(logits, vocabulary, limit, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The `limit`-th best logit, and the id below which its equals are kept: none of them if it is -inf.

    Its bits are found four at a time, from the highest: each digit is counted, over ids that agree so far.
    """
    offsets, digits = tl.arange(0, BLOCK), tl.arange(0, 16)
    found = tl.full([], 0, tl.uint32)
    for step in range(8):
        shift = 28 - 4 * step
        counts = tl.zeros([16], tl.int32)
        for start in range(0, vocabulary, BLOCK):
            ids = start + offsets
            x = tl.load(logits + ids, mask=ids < vocabulary, other=0.0)
            digit = (_rank_bits(x) ^ found) >> shift
            counts += tl.histogram(digit.to(tl.int32), 16, mask=(ids < vocabulary) & (digit < 16))
        at_least = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
        digit = tl.max(tl.where(at_least >= limit, digits, 0), 0)
        limit -= tl.sum(tl.where(digits > digit, counts, 0), 0)
        found |= digit.to(tl.uint32) << shift
    seen, before = 0, vocabulary
    for start in range(0, vocabulary, BLOCK):
        ids = start + offsets
        x = tl.load(logits + ids, mask=ids < vocabulary, other=0.0)
        is_equal = (ids < vocabulary) & (_rank_bits(x) == found)
        place = seen + tl.cumsum(is_equal.to(tl.int32), 0)
        before = tl.minimum(before, tl.min(tl.where(is_equal & (place == limit), ids + 1, vocabulary), 0))
        seen += tl.sum(is_equal.to(tl.int32), 0)
    value = tl.where(found >= _SIGN, found ^ _SIGN, ~found).to(tl.float32, bitcast=True)
    return value, tl.where(value > -float("inf"), before, 0)


@triton.jit
def _rank_bits(x):  # type: ignore[no-untyped-def]
    """Unsigned integers in the order of the numbers; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN, ~bits, bits ^ _SIGN)


@dataclass(frozen=True, slots=True)
class Tile:
    """How many ids are looked at together, powers of two: for the largest, and for all else."""

    wide_block: int
    block: int
    warps: int


def _tile_for(vocabulary: int) -> Tile:
    if vocabulary <= 8192:
        return Tile(wide_block=2048, block=512, warps=4)
    return Tile(wide_block=8192, block=4096, warps=16)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    positions: Tensor,
    choices: Tensor,
) -> Tensor:
    """The token of each row (R) int64. Raises ValueError for shapes and dtypes other than those above."""
    if logits.dim() != 2 or logits.dtype != torch.float32 or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise ValueError(
            "logits must be (R, V) float32 with a last stride of 1, "
            f"got {tuple(logits.shape)} {logits.dtype} with strides {logits.stride()}"
        )
    rows, vocabulary = logits.shape
    if not 1 <= vocabulary <= 2**18:
        raise ValueError(f"logits must have from 1 to {2**18} columns, got {vocabulary}")
    columns = {
        "temperature": (temperature, torch.float32),
        "top_k": (top_k, torch.int32),
        "top_p": (top_p, torch.float32),
        "min_p": (min_p, torch.float32),
        "keys": (keys, torch.int64),
        "positions": (positions, torch.int64),
        "choices": (choices, torch.int64),
    }
    for name, (column, dtype) in columns.items():
        if column.shape != (rows,) or column.dtype != dtype or not column.is_contiguous():
            raise ValueError(
                f"{name} must be ({rows}) {dtype} without gaps, got {tuple(column.shape)} {column.dtype}"
            )
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        tile = _tile_for(vocabulary)
        _sample_kernel[(rows,)](
            out,
            logits,
            *(column for column, _ in columns.values()),
            vocabulary,
            logits.stride(0),
            WIDE_BLOCK=tile.wide_block,
            BLOCK=tile.block,
            num_warps=tile.warps,
            enable_fp_fusion=False,
        )
    return out
