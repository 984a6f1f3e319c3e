"""Attention for few lanes, such as the tail of one decoding row: vectors run along keys and along a head.

Three queries would leave most of a vector's lanes empty. So here a vector of scores belongs to LANES keys of
one query (keys are transposed in registers), and a vector of outputs to LANES numbers of one query's head.
Each number is still the same sequence of operations as in cpu_attention.py: products in the order of a head's
numbers, keys one after the other. What must hold: a query's bits do not tell which of the two computed them.

Rows of keys and values are read wherever their pages are; none is copied. While scores are computed the
block's values are fetched, and the keys of the next block while outputs are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from .cpu_ir import (
    F32,
    FLOATS,
    I64,
    LANES,
    MOST_ROWS,
    Builder,
    Storage,
    Value,
    by_rows,
    copy_bytes,
    fetch,
    floats,
    fma,
    function,
    halves,
    inner,
    load,
    load_floats,
    load_int,
    loop,
    splat,
    store,
    transposed,
    words,
    zeros,
)
from .cpu_softmax import BLOCK, FEW, UNMASKED, softmax_few

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LINE = 64
_COUNTS = range(1, FEW + 1)
_WIDTHS = (1, 2, 4) if MOST_ROWS == 12 else (1, 2)
"""How many vectors of outputs there is code for: FEW times the most of them fit in the registers."""


def scores_few(storage: Storage) -> Any:
    """scores (lanes, n) = queries (lanes, D) @ keys (n, D)^T, in float32.

    Arguments: lanes, queries, D, keys, rows, n, scores (lanes, BLOCK), ahead. Row k of the keys is rows[k]
    (int64) bytes from `keys`, for k up to a multiple of LANES. What is as far from `ahead` is fetched.
    """

    def emit(
        b: Builder,
        lanes: Value,
        queries: Value,
        size: Value,
        keys: Value,
        rows: Value,
        n: Value,
        scores: Value,
        ahead: Value,
    ) -> None:
        apart = b.sub(ahead, keys)

        def some_lanes(count: int) -> None:
            lines = [b.add(queries, b.mul(size, I64(4 * i))) for i in range(count)]

            def some_keys(i: Value, _: list[Value]) -> list[Value]:
                first = b.add(rows, b.mul(i, I64(8 * LANES)))
                heads = [b.add(keys, load(b, first, 8 * r, I64)) for r in range(LANES)]

                def turn(k: Value, sums: list[Value]) -> list[Value]:
                    along = b.mul(k, I64(LANES * _BYTES[storage]))
                    places = [b.add(head, along) for head in heads]
                    for place in places:
                        fetch(b, b.add(place, apart))
                    columns = transposed(b, [load_floats(b, place, 0, storage) for place in places])
                    numbers = [b.add(line, b.mul(k, I64(4 * LANES))) for line in lines]
                    for d, column in enumerate(columns):
                        xs = [splat(b, load(b, number, 4 * d, F32)) for number in numbers]
                        sums = [fma(b, column, x, one) for x, one in zip(xs, sums, strict=True)]
                    return sums

                sums = loop(b, b.sdiv(size, I64(LANES)), [zeros(FLOATS)] * count, turn)
                for lane, one in enumerate(sums):
                    store(b, one, b.add(scores, b.mul(i, I64(4 * LANES))), 4 * BLOCK * lane)
                return []

            loop(b, b.sdiv(b.add(n, I64(LANES - 1)), I64(LANES)), [], some_keys)

        by_rows(b, lanes, some_lanes, _COUNTS)

    return function(types.void, *(types.int64,) * 8)(emit)


def outputs_few(storage: Storage) -> Any:
    """out (lanes, D) = out * factors + weights (lanes, n) @ values (n, D), in float32, for some vectors of D.

    Arguments: vectors (one of _WIDTHS), lanes, weights (lanes, BLOCK), factors, values, rows, n, out, D,
    ahead, rows_ahead. Row k of the values is rows[k] (int64) bytes from `values`; what is rows_ahead[k] bytes
    from `ahead` is fetched.
    """

    def emit(
        b: Builder,
        vectors: Value,
        lanes: Value,
        weights: Value,
        factors: Value,
        values: Value,
        rows: Value,
        n: Value,
        out: Value,
        size: Value,
        ahead: Value,
        rows_ahead: Value,
    ) -> None:
        def some(count: int, width: int) -> None:
            targets = [b.add(out, b.mul(size, I64(4 * i))) for i in range(count)]
            starts = []
            for i, target in enumerate(targets):
                factor = splat(b, load(b, factors, 4 * i, F32))
                starts += [b.fmul(load(b, target, 4 * LANES * j, FLOATS), factor) for j in range(width)]

            def turn(k: Value, sums: list[Value]) -> list[Value]:
                place = b.mul(k, I64(8))
                row = b.add(values, load(b, b.add(rows, place), 0, I64))
                following = b.add(ahead, load(b, b.add(rows_ahead, place), 0, I64))
                for line in range(0, width * LANES * _BYTES[storage], _LINE):
                    fetch(b, b.add(following, I64(line)))
                numbers = [load_floats(b, row, j * LANES, storage) for j in range(width)]
                made = []
                for i in range(count):
                    weight = splat(b, load(b, b.add(weights, b.mul(k, I64(4))), 4 * BLOCK * i, F32))
                    made += [fma(b, weight, numbers[j], sums[i * width + j]) for j in range(width)]
                return made

            sums = loop(b, n, starts, turn)
            for i, target in enumerate(targets):
                for j in range(width):
                    store(b, sums[i * width + j], target, 4 * LANES * j)

        def some_lanes(count: int) -> None:
            by_rows(b, vectors, lambda width: some(count, width), _WIDTHS)

        by_rows(b, lanes, some_lanes, _COUNTS)

    return function(types.void, *(types.int64,) * 11)(emit)


@inner()
def scratch_few(call):  # type: ignore[no-untyped-def]
    return np.empty((2 * (load_int(call + 80) >> 48) + BLOCK) * FEW + 4 * (BLOCK + LANES), dtype=np.float32)


@inner()
def fold_few(scores_of, outputs_of, bytes_each, scratch, call, work, segment):  # type: ignore[no-untyped-def]
    """Fold all keys of a segment into the sums of one item's queries, FEW lanes at most.

    call, work, segment: see cpu_attention.py. D must be a multiple of LANES. scratch is an array, not an
    address, so that it lives as long as this function runs.
    """
    head, lane, lanes = work[1], work[2], work[3]
    shape = load_int(call + 80)
    group, page_size, size = shape & 0xFFFF, shape >> 32 & 0xFFFF, shape >> 48
    rows = scratch.ctypes.data
    ahead = rows + 8 * BLOCK
    scores = ahead + 8 * BLOCK
    peak = scores + 4 * BLOCK * FEW
    total, factors, seen, queries = peak + 4 * LANES, peak + 8 * LANES, peak + 12 * LANES, peak + 16 * LANES
    sums = queries + 4 * size * FEW
    _begin(call, work, segment, queries, sums, peak, total, seen)

    stop = segment[3]
    if segment[4] >= 0:
        stop = min(stop, segment[4] + (lane + lanes - 1) // group + 1)
    at_head = head * load_int(call + 64)
    keys, values = load_int(call + 40) + at_head, load_int(call + 48) + at_head
    _find_rows(call, segment[2], page_size, size * bytes_each, 0, stop, rows)
    for key in range(0, stop, BLOCK):
        n = min(BLOCK, stop - key)
        scores_of(lanes, queries, size, keys, rows, n, scores, values)
        softmax_few(lanes, scores, n, key, seen, peak, total, factors)
        if key + BLOCK < stop:
            _find_rows(call, segment[2], page_size, size * bytes_each, key + BLOCK, stop, ahead)
        else:
            ahead = rows
        low = 0
        while low < size:
            vectors = min(_WIDTHS[-1], (size - low) // LANES)
            vectors = 2 if vectors == 3 else vectors
            at, out = low * bytes_each, sums + 4 * low
            outputs_of(vectors, lanes, scores, factors, values + at, rows, n, out, size, keys + at, ahead)
            low += vectors * LANES
        rows, ahead = ahead, rows
    _finish(call, work, segment, sums, peak, total)


@inner()
def _find_rows(call, pages, page_size, row_bytes, key, stop, rows):  # type: ignore[no-untyped-def]
    """Where the rows of a block's keys are, in bytes from the first page; behind the last one, it again."""
    n, page_bytes = min(BLOCK, stop - key), load_int(call + 56)
    found = words(rows, BLOCK)
    page = pages + 8 * (key // page_size)
    for first in range(0, n, page_size):
        row = load_int(page) * page_bytes
        page += 8
        for i in range(first, min(first + page_size, n)):
            found[i] = row + (i - first) * row_bytes
    found[n:] = found[n - 1]


@inner()
def _place(call, work, segment, i):  # type: ignore[no-untyped-def]
    """Query, head, and number among all pairs of them, of an item's lane."""
    shape = load_int(call + 80)
    group, kv_heads = shape & 0xFFFF, shape >> 16 & 0xFFFF
    t, h = segment[0] + (work[2] + i) // group, work[1] * group + (work[2] + i) % group
    return t, h, t * group * kv_heads + h


@inner()
def _begin(call, work, segment, queries, sums, peak, total, seen):  # type: ignore[no-untyped-def]
    """Queries (lanes, D) in units of log2, and the sums so far."""
    header, size = load_int(call + 8), load_int(call + 80) >> 48
    scale = floats(load_int(header + 16), 1)[0]
    peaks, totals, limits = floats(peak, LANES), floats(total, LANES), halves(seen, LANES)
    peaks[:] = -np.inf
    totals[:] = 0
    limits[:] = UNMASKED
    for i in range(work[3]):
        t, h, place = _place(call, work, segment, i)
        x = floats(load_int(call + 24) + 4 * (t * load_int(call + 32) + h * size), size)
        query, sum_ = floats(queries + 4 * i * size, size), sums + 4 * i * size
        for d in range(size):
            query[d] = x[d] * scale
        if segment[4] >= 0:
            limits[i] = segment[4] + t - segment[0] + 1
        if segment[5]:
            floats(sum_, size)[:] = 0
        else:
            copy_bytes(sum_, load_int(call + 72) + 4 * place * size, 4 * size)
            kept = floats(load_int(header + 8) + 8 * place, 2)
            peaks[i], totals[i] = kept[0], kept[1]


@inner()
def _finish(call, work, segment, sums, peak, total):  # type: ignore[no-untyped-def]
    """The outputs, or the sums for the next level."""
    size = load_int(call + 80) >> 48
    for i in range(work[3]):
        _, _, place = _place(call, work, segment, i)
        out, row = floats(load_int(call + 72) + 4 * place * size, size), floats(sums + 4 * i * size, size)
        share = np.float32(1)
        if segment[6]:
            share = np.float32(1) / floats(total, LANES)[i]
        else:
            kept = floats(load_int(load_int(call + 8) + 8) + 8 * place, 2)
            kept[0], kept[1] = floats(peak, LANES)[i], floats(total, LANES)[i]
        for d in range(size):
            out[d] = row[d] * share
