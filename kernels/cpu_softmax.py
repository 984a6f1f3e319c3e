"""One block of scores turned into weights: the middle of attention on a CPU.

The numbers of a vector belong to as many queries, or (few queries) to as many keys of one; the bits are the
same. Scores are in units of log2, so that weights are powers of two. Weights are added in the order of the
keys, a query knows nothing of the others, and a hidden key weighs exactly nothing: a block in which a query
sees no key leaves its sums as they were, bit for bit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .cpu_ir import (
    F32,
    FLOATS,
    I32,
    I64,
    INTS,
    LANES,
    Builder,
    Value,
    fma,
    function,
    load,
    loop,
    splat,
    store,
    zeros,
)

# ln(2)^n / n!: the power series of 2^x, to less than one unit in the last place for |x| <= 1/2.
_SERIES = (
    1.0,
    0.6931471805599453,
    0.2402265069591007,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
    1.5252733804059841e-05,
)
_ROUND = 12582912.0  # 1.5 * 2^23: adding it rounds to a whole number and leaves that in the low bits
_LEAST = -126.0

BLOCK = 64
"""Keys that are folded into a query's sums at a time, and where shared segments end."""
FEW = 4
"""Queries (of one head each) that count as few."""
UNMASKED = (1 << 31) - 1
"""What a query sees that sees all keys."""


def softmax_block(vectors: int) -> Any:
    """Arguments: scores (n, columns) float32, which become weights; n (at least 1); the index of the first
    key; seen (int32, columns): each query sees the keys of an index below it; the running maximum and sum of
    each query, which are brought up to date; factors (columns), by which what was summed before is to be
    multiplied.
    """

    def emit(
        b: Builder,
        scores: Value,
        n: Value,
        key: Value,
        seen: Value,
        peak: Value,
        total: Value,
        factors: Value,
    ) -> None:
        width = 4 * LANES
        limits = [load(b, seen, width * j, INTS) for j in range(vectors)]
        before = [load(b, peak, width * j, FLOATS) for j in range(vectors)]
        first = b.trunc(key, I32)

        def row(k: Value) -> tuple[Value, list[Value]]:
            """The address of a key's scores, and which lanes see it."""
            index = splat(b, b.add(first, b.trunc(k, I32)))
            line = b.add(scores, b.mul(k, I64(width * vectors)))
            return line, [b.icmp_signed("<", index, limit) for limit in limits]

        def raise_peaks(k: Value, peaks: list[Value]) -> list[Value]:
            line, visible = row(k)
            raised = []
            for j in range(vectors):
                raised.append(_raised(b, load(b, line, width * j, FLOATS), visible[j], peaks[j]))
            return raised

        peaks = loop(b, n, before, raise_peaks)

        def weigh(k: Value, sums: list[Value]) -> list[Value]:
            line, visible = row(k)
            added = []
            for j in range(vectors):
                weight = _weight(b, load(b, line, width * j, FLOATS), visible[j], peaks[j])
                store(b, weight, line, width * j)
                added.append(b.fadd(sums[j], weight))
            return added

        sums = loop(b, n, [zeros(FLOATS)] * vectors, weigh)
        for j in range(vectors):
            _carry(b, before[j], peaks[j], sums[j], total, factors, width * j)
            store(b, peaks[j], peak, width * j)

    return function(types.void, *(types.int64,) * 7)(emit)


@function(types.void, *(types.int64,) * 8)
def softmax_few(
    b: Builder,
    queries: Value,
    scores: Value,
    n: Value,
    key: Value,
    seen: Value,
    peak: Value,
    total: Value,
    factors: Value,
) -> None:
    """The same for 1 to FEW queries, their scores (queries, BLOCK). seen, peak, total, factors: one vector
    each, whose numbers behind those of the queries are not for use. Scores from n to a multiple of LANES are
    those of key n - 1 again.
    """
    before = load(b, peak, 0, FLOATS)
    vectors = b.sdiv(b.add(n, I64(LANES - 1)), I64(LANES))
    indices = b.add(splat(b, b.trunc(key, I32)), ir.Constant(INTS, [*range(LANES)]))

    def query(i: Value, _: list[Value]) -> list[Value]:
        own = b.mul(i, I64(4))
        line = b.add(scores, b.mul(i, I64(4 * BLOCK)))
        limit = splat(b, load(b, b.add(seen, own), 0, I32))

        def vector(k: Value) -> tuple[Value, Value, Value]:
            """The address of a vector of scores, the scores, and which of their keys are seen."""
            address = b.add(line, b.mul(k, I64(4 * LANES)))
            index = b.add(indices, splat(b, b.trunc(b.mul(k, I64(LANES)), I32)))
            return address, load(b, address, 0, FLOATS), b.icmp_signed("<", index, limit)

        def raise_peaks(k: Value, peaks: list[Value]) -> list[Value]:
            return [_raised(b, *vector(k)[1:], peaks[0])]

        high = loop(b, vectors, [splat(b, load(b, b.add(peak, own), 0, F32))], raise_peaks)[0]
        bit = 1
        while bit < LANES:
            other = b.shuffle_vector(high, high, ir.Constant(INTS, [j ^ bit for j in range(LANES)]))
            high = b.select(b.fcmp_ordered(">", other, high), other, high)
            bit *= 2
        store(b, b.extract_element(high, I32(0)), b.add(peak, own))

        def weigh(k: Value, _: list[Value]) -> list[Value]:
            address, score, visible = vector(k)
            store(b, _weight(b, score, visible, high), address)
            return []

        loop(b, vectors, [], weigh)
        return []

    loop(b, queries, [], query)
    last = b.sub(queries, I64(1))
    lines = []
    for i in range(FEW):  # chains run side by side, so those that are missing may as well be the last again
        own = b.select(b.icmp_signed("<", last, I64(i)), last, I64(i))
        lines.append(b.add(scores, b.mul(own, I64(4 * BLOCK))))

    def add(k: Value, sums: list[Value]) -> list[Value]:
        weights = [load(b, b.add(line, b.mul(k, I64(4))), 0, F32) for line in lines]
        return [b.fadd(one, weight) for one, weight in zip(sums, weights, strict=True)]

    sums = zeros(FLOATS)
    for i, one in enumerate(loop(b, n, [F32(0)] * FEW, add)):
        sums = b.insert_element(sums, one, I32(i))
    _carry(b, before, load(b, peak, 0, FLOATS), sums, total, factors, 0)


def _raised(b: Builder, score: Value, visible: Value, peak: Value) -> Value:
    return b.select(b.and_(visible, b.fcmp_ordered(">", score, peak)), score, peak)


def _weight(b: Builder, score: Value, visible: Value, peak: Value) -> Value:
    return b.select(visible, _power_of_two(b, b.fsub(score, peak)), zeros(FLOATS))


def _carry(
    b: Builder, before: Value, peak: Value, sums: Value, total: Value, factors: Value, offset: int
) -> None:
    """Factors for what was summed before the peaks rose, and the total with the sums of this block."""
    factor = _power_of_two(b, b.fsub(before, peak))
    store(b, factor, factors, offset)
    store(b, fma(b, load(b, total, offset, FLOATS), factor, sums), total, offset)


def _power_of_two(b: Builder, x: Value) -> Value:
    """2^x for x <= 0; exactly 0 below 2^-126; NaN stays NaN."""
    rounded = b.fadd(x, _constant(_ROUND))
    rest = b.fsub(x, b.fsub(rounded, _constant(_ROUND)))
    value = _constant(_SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        value = fma(b, value, rest, _constant(coefficient))
    exponent = b.add(b.bitcast(rounded, INTS), ir.Constant(INTS, [127] * LANES))
    scale = b.bitcast(b.shl(exponent, ir.Constant(INTS, [23] * LANES)), FLOATS)
    return b.select(b.fcmp_ordered("<", x, _constant(_LEAST)), zeros(FLOATS), b.fmul(value, scale))


def _constant(value: float) -> Value:
    return ir.Constant(FLOATS, [value] * LANES)
