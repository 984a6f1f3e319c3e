"""One block of scores turned into weights, lanes of a vector being queries: the middle of attention on a CPU.

Scores are in units of log2, so that weights are powers of two. The order of everything is that of the keys, a
lane knows nothing of the others, and a hidden key weighs exactly nothing: a block in which a query sees no
key leaves its sums as they were, bit for bit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .cpu_ir import (
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
                score = load(b, line, width * j, FLOATS)
                higher = b.and_(visible[j], b.fcmp_ordered(">", score, peaks[j]))
                raised.append(b.select(higher, score, peaks[j]))
            return raised

        peaks = loop(b, n, before, raise_peaks)

        def weigh(k: Value, sums: list[Value]) -> list[Value]:
            line, visible = row(k)
            added = []
            for j in range(vectors):
                power = _power_of_two(b, b.fsub(load(b, line, width * j, FLOATS), peaks[j]))
                weight = b.select(visible[j], power, zeros(FLOATS))
                store(b, weight, line, width * j)
                added.append(b.fadd(sums[j], weight))
            return added

        sums = loop(b, n, [zeros(FLOATS)] * vectors, weigh)
        for j in range(vectors):
            factor = _power_of_two(b, b.fsub(before[j], peaks[j]))
            store(b, factor, factors, width * j)
            store(b, peaks[j], peak, width * j)
            store(b, fma(b, load(b, total, width * j, FLOATS), factor, sums[j]), total, width * j)

    return function(types.void, *(types.int64,) * 7)(emit)


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
