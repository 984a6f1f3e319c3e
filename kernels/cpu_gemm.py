"""Matrix products of a few rows with one panel of columns: the code that all products on a CPU are made of.

`product` and `byte_product` work on up to MOST_ROWS rows and one panel of 1 or 2 vectors of columns, whose
sums stay in registers over all of K. A sum is one chain of fused multiply-adds in the order of K (for bytes:
exact), so an element's bits depend on its row and its column alone, whatever stands beside them.

Layouts: a panel of weights is (K, columns), contiguous. Bytes come in groups of GROUP along K: (K / GROUP,
columns, GROUP). All strides are in bytes.
"""

from __future__ import annotations

from typing import Any, Literal

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types

from .cpu_ir import (
    DOT,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    PAIRS,
    Builder,
    Storage,
    Value,
    at,
    by_rows,
    call,
    fetch,
    fma,
    function,
    load,
    load_floats,
    load_number,
    loop,
    splat,
    store,
    zeros,
)

GROUP = 2 if DOT == "none" else 4
"""How many numbers along K one instruction multiplies for each column: activations are 4 bytes or 2 int16."""
OFFSET = 0 if DOT == "none" else 128
"""What is added to a quantised activation, for the instruction takes its bytes as unsigned."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ADDRESS = types.int64


def product(vectors: int, *, rows: Storage, panel: Storage, init: Literal["bias", "scaled"]) -> Any:
    """out (n, columns) = start + a (n, K) @ panel (K, columns), in float32.

    Arguments: n, a, its stride between rows, its stride along K, panel, K (at least 1), start, out, its
    stride, ahead, its stride: for each of K, the cache line at `ahead` is fetched, for work to come. `start`
    is the address of one vector of columns: a bias, or (scaled) what the present `out` is multiplied by.
    rows, panel: how the numbers of a and of the panel are stored.
    """

    def emit(
        b: Builder,
        n: Value,
        a: Value,
        a_row: Value,
        a_k: Value,
        w: Value,
        size: Value,
        start: Value,
        out: Value,
        out_row: Value,
        ahead: Value,
        ahead_k: Value,
    ) -> None:
        def some_rows(count: int) -> None:
            firsts = [load_floats(b, start, j * LANES, "float32") for j in range(vectors)]
            targets = [b.add(out, b.mul(out_row, I64(r))) for r in range(count)]
            sums = []
            for target in targets:
                for j in range(vectors):
                    if init == "bias":
                        sums.append(firsts[j])
                    else:
                        sums.append(b.fmul(load_floats(b, target, j * LANES, "float32"), firsts[j]))
            heads = [b.add(a, b.mul(a_row, I64(r))) for r in range(count)]

            def turn(k: Value, sums: list[Value]) -> list[Value]:
                line = b.add(w, b.mul(k, I64(vectors * LANES * _BYTES[panel])))
                weights = [load_floats(b, line, j * LANES, panel) for j in range(vectors)]
                along = b.mul(k, a_k)
                place = b.add(ahead, b.mul(k, ahead_k))
                fetch(b, place)
                fetch(b, b.add(place, I64(64)))
                made = []
                for r in range(count):
                    x = splat(b, load_number(b, b.add(heads[r], along), rows))
                    made += [fma(b, x, weights[j], sums[r * vectors + j]) for j in range(vectors)]
                return made

            sums = loop(b, size, sums, turn)
            for r in range(count):
                for j in range(vectors):
                    store(b, sums[r * vectors + j], targets[r], j * LANES * 4)

        by_rows(b, n, some_rows)

    return function(types.void, *(_ADDRESS,) * 11)(emit)


def byte_product(vectors: int) -> Any:
    """out (n, columns) = bias + (a (n, K) @ panel (K, columns) - offsets) * row scale * column scale, where a
    and the panel are bytes and the product is exact.

    Arguments: n, a, its stride between rows, panel, K / GROUP, offsets (int32, columns), column scales, bias,
    row scales, out, its stride, ahead, its stride (as above).
    """

    def emit(
        b: Builder,
        n: Value,
        a: Value,
        a_row: Value,
        w: Value,
        groups: Value,
        offsets: Value,
        scales: Value,
        bias: Value,
        row_scales: Value,
        out: Value,
        out_row: Value,
        ahead: Value,
        ahead_k: Value,
    ) -> None:
        def some_rows(count: int) -> None:
            heads = [b.add(a, b.mul(a_row, I64(r))) for r in range(count)]

            def turn(k: Value, sums: list[Value]) -> list[Value]:
                line = b.add(w, b.mul(k, I64(vectors * LANES * GROUP)))
                weights = [_weights(b, line, j * LANES * GROUP) for j in range(vectors)]
                along = b.mul(k, I64(4))
                place = b.add(ahead, b.mul(k, ahead_k))
                fetch(b, place)
                fetch(b, b.add(place, I64(64)))
                made = []
                for r in range(count):
                    x = _activations(b, b.add(heads[r], along))
                    made += [_dot(b, sums[r * vectors + j], x, weights[j]) for j in range(vectors)]
                return made

            sums = loop(b, groups, [zeros(INTS)] * (count * vectors), turn)
            for j in range(vectors):
                column = 4 * j * LANES
                offset, scale = load(b, offsets, column, INTS), load(b, scales, column, FLOATS)
                add = load(b, bias, column, FLOATS)
                for r in range(count):
                    both = b.fmul(scale, splat(b, load(b, row_scales, 4 * r, F32)))
                    exact = b.sitofp(b.sub(sums[r * vectors + j], offset), FLOATS)
                    store(b, fma(b, exact, both, add), b.add(out, b.mul(out_row, I64(r))), column)

        by_rows(b, n, some_rows)

    return function(types.void, *(_ADDRESS,) * 13)(emit)


def largest() -> Any:
    """out (LANES): the largest |x| of each lane, and (LANES more) 0 or, where any is not finite, NaN.

    Arguments: x, how many vectors (at least 1), out.
    """

    def emit(b: Builder, x: Value, count: Value, out: Value) -> None:
        def turn(k: Value, values: list[Value]) -> list[Value]:
            value = load(b, b.add(x, b.mul(k, I64(4 * LANES))), 0, FLOATS)
            size = call(b, f"llvm.fabs.v{LANES}f32", FLOATS, (value,))
            most = b.select(b.fcmp_ordered(">", size, values[0]), size, values[0])
            return [most, b.fadd(values[1], b.fmul(value, zeros(FLOATS)))]

        most, wrong = loop(b, count, [zeros(FLOATS)] * 2, turn)
        store(b, most, out)
        store(b, wrong, out, 4 * LANES)

    return function(types.void, *(_ADDRESS,) * 3)(emit)


def rounded() -> Any:
    """out = OFFSET + round(x * factor), as bytes or int16 (see GROUP).

    Arguments: x, how many vectors (at least 1), the address of the factor, out.
    """
    kind = ir.VectorType(I8 if GROUP == 4 else I16, LANES)

    def emit(b: Builder, x: Value, count: Value, factor: Value, out: Value) -> None:
        scale = splat(b, load(b, factor, 0, F32))

        def turn(k: Value, values: list[Value]) -> list[Value]:
            value = load(b, b.add(x, b.mul(k, I64(4 * LANES))), 0, FLOATS)
            whole = call(b, f"llvm.rint.v{LANES}f32", FLOATS, (b.fmul(value, scale),))
            moved = b.add(b.fptosi(whole, INTS), ir.Constant(INTS, [OFFSET] * LANES))
            store(b, b.trunc(moved, kind), b.add(out, b.mul(k, I64(4 // GROUP * LANES))))
            return []

        loop(b, count, [], turn)

    return function(types.void, *(_ADDRESS,) * 4)(emit)


def _weights(b: Builder, address: Value, offset: int) -> Value:
    """GROUP bytes for each of LANES columns, as the dot product wants them."""
    raw = b.load(at(b, address, offset, ir.VectorType(I8, LANES * GROUP)), align=1)
    return raw if GROUP == 4 else b.sext(raw, ir.VectorType(I16, LANES * GROUP))


def _activations(b: Builder, address: Value) -> Value:
    """GROUP numbers of a row, the same for all columns."""
    kind = ir.VectorType(I8, 4 * LANES) if GROUP == 4 else ir.VectorType(I16, 2 * LANES)
    return b.bitcast(splat(b, load(b, address, 0, I32)), kind)


def _dot(b: Builder, sums: Value, x: Value, w: Value) -> Value:
    """sums + the products of each column's GROUP bytes, in int32."""
    if GROUP == 4:
        if llvm.llvm_version_info < (22,):  # it took vectors of int32 before
            x, w = b.bitcast(x, INTS), b.bitcast(w, INTS)
        return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", INTS, (sums, x, w))
    if PAIRS is not None:
        return b.add(sums, call(b, f"llvm.x86.{PAIRS}", INTS, (x, w)))
    total = sums
    for part in range(2):
        places = ir.Constant(ir.VectorType(I32, LANES), [2 * i + part for i in range(LANES)])
        one, other = (
            b.sext(b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), places), INTS) for v in (x, w)
        )
        total = b.add(total, b.mul(one, other))
    return total
