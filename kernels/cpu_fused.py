"""Small steps of a layer, each as one pass over its rows, shared out over a team when there are many.

Between two matrix products a decode step does little arithmetic, and a dozen torch calls for it cost more
than the arithmetic: each is some microseconds of dispatch with cold caches. Here each is one call. A row is
worked on by the same instructions whatever the number of rows, so its bits are its own; sums may be
reassociated by the compiler, once, when it compiles. NaN and infinity are kept.

Everything is float32 but the pages that `turn_and_write` writes. Outputs are written whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cpu_ir import (
    copy_bytes,
    floats,
    halves,
    inner,
    load_bfloat16,
    load_float16,
    load_float32,
    load_int,
    store_bfloat16,
    store_float16,
    store_float32,
    words,
)
from .cpu_team import Job, Team, job

Empty = Callable[[Sequence[int], torch.dtype], Tensor]
ITEM_NUMBERS = 4 << 10
"""So many numbers make an item of work: a microsecond or two, some times what sharing it out costs."""

_F32 = np.float32
_LOG2E = _F32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _F32(0.693359375), _F32(-2.12194440e-4)
_FAST = {"reassoc", "contract", "nsz"}


class CpuFused:
    """The small operations of the op table (ops.py says what each does)."""

    def __init__(self, team: Team, empty: Empty) -> None:
        self._team, self._empty = team, empty
        self._layouts: dict[tuple[int, ...], NDArray[np.int64]] = {}

    def take_rows(self, table: Tensor, ids: Tensor) -> Tensor:
        out = self._empty((len(ids), table.shape[1]), torch.float32)
        source = (table.data_ptr(), table.stride(0) * table.itemsize)
        self._run(_TAKES[table.dtype], out.shape, *source, ids.data_ptr(), out.data_ptr())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = self._empty(x.shape, torch.float32)
        arguments = (weight.data_ptr(), _bits(eps), out.data_ptr())
        self._run(_norm_job, x.shape, x.data_ptr(), x.stride(0), *arguments)
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        normed, total = (self._empty(x.shape, torch.float32) for _ in range(2))
        sources = (x.data_ptr(), x.stride(0), residual.data_ptr(), residual.stride(0))
        arguments = (weight.data_ptr(), _bits(eps), normed.data_ptr(), total.data_ptr())
        self._run(_add_norm_job, x.shape, *sources, *arguments)
        return normed, total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out = self._empty((gate_up.shape[0], gate_up.shape[1] // 2), torch.float32)
        self._run(_silu_job, out.shape, gate_up.data_ptr(), gate_up.stride(0), out.data_ptr())
        return out

    def turn_and_write(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        angles: tuple[Tensor, Tensor] | None,
        positions: Tensor,
        slots: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
    ) -> Tensor:
        _, kv_heads, page_size, size = k_pages.shape
        heads = qkv.shape[1] // size - 2 * kv_heads
        q = self._empty((len(qkv), heads, size), torch.float32)
        normed = (
            (norms[0].data_ptr(), norms[1].data_ptr(), _bits(norms[2])) if norms is not None else (0, 0, 0)
        )
        strides = (k_pages.stride(0), k_pages.stride(1))
        layout = self._layout(heads, kv_heads, size, page_size, *strides, *normed)
        cos, sin = (angles[0].data_ptr(), angles[1].data_ptr()) if angles is not None else (0, 0)
        self._run(
            _TURNS[k_pages.dtype],
            (len(qkv), qkv.stride(0)),
            qkv.data_ptr(),
            cos,
            sin,
            q.data_ptr(),
            k_pages.data_ptr(),
            v_pages.data_ptr(),
            slots.data_ptr(),
            layout.ctypes.data,
            positions.data_ptr(),
        )
        return q

    def copy_pages(self, pool: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
        planes, _, heads, slots, size = pool.shape
        assert pool.stride()[3:] == (size, 1), "a page of a head is numbers in a row"
        pairs = np.array([sources, targets], dtype=np.int64).T.copy()
        plane, page, head = (stride * pool.itemsize for stride in pool.stride()[:3])
        page_bytes = slots * size * pool.itemsize
        layout = (planes, heads, plane, page, head, page_bytes)
        self._team.run(_copy_job.address, len(pairs), pool.data_ptr(), pairs.ctypes.data, *layout)

    def logit_mask(self, logits: Tensor, mask: Tensor, rows: Tensor | None = None) -> None:
        count = len(mask)
        if count:
            strides = (4 * logits.stride(0), mask.data_ptr(), 4 * mask.stride(0))
            places = 0 if rows is None else rows.data_ptr()
            work = (logits.data_ptr(), *strides, places, logits.shape[1])
            self._team.run(_mask_job.address, count, *work)

    def _layout(self, *numbers: int) -> NDArray[np.int64]:
        """The numbers in memory that stays: jobs may be recorded."""
        if numbers not in self._layouts:
            self._layouts[numbers] = np.array(numbers, dtype=np.int64)
        return self._layouts[numbers]

    def _run(self, work: Job, shape: Sequence[int], *arguments: int) -> None:
        """Words: rows, rows an item, numbers a row, then the arguments."""
        count, width = shape
        if count:
            chunk = max(1, ITEM_NUMBERS // width)
            self._team.run(work.address, -(-count // chunk), count, chunk, width, *arguments)


@cache
def _bits(value: float) -> int:
    """A number as float32, handed over as an integer."""
    return int(np.float32(value).view(np.int32))


@job
def _copy_job(call, item):  # type: ignore[no-untyped-def]
    """Words: pool, pairs of pages, planes, heads, strides of plane, page and head, bytes of a head's page."""
    first, pair = load_int(call + 8), words(load_int(call + 16) + 16 * item, 2)
    page, page_bytes = load_int(call + 48), load_int(call + 64)
    for plane in range(load_int(call + 24)):
        for head in range(load_int(call + 32)):
            at = first + plane * load_int(call + 40) + head * load_int(call + 56)
            copy_bytes(at + pair[1] * page, at + pair[0] * page, page_bytes)


@inner()
def _rows(call, item):  # type: ignore[no-untyped-def]
    chunk = load_int(call + 16)
    return range(item * chunk, min(load_int(call + 8), item * chunk + chunk))


@inner()
def _number(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@inner(fastmath=_FAST)
def _norm(x, weight, eps, out):  # type: ignore[no-untyped-def]
    total = _F32(0)
    for k in range(len(x)):
        total += x[k] * x[k]
    scale = _F32(1) / np.sqrt(total / _F32(len(x)) + eps)
    for k in range(len(x)):
        out[k] = x[k] * scale * weight[k]


@job
def _norm_job(call, item):  # type: ignore[no-untyped-def]
    """x, its stride in numbers, weight, eps, out."""
    width = load_int(call + 24)
    for t in _rows(call, item):
        _norm(
            floats(load_int(call + 32) + 4 * t * load_int(call + 40), width),
            floats(load_int(call + 48), width),
            _number(load_int(call + 56)),
            floats(load_int(call + 64) + 4 * t * width, width),
        )


@inner(fastmath=_FAST)
def _add_norm(x, residual, weight, eps, normed, summed):  # type: ignore[no-untyped-def]
    total = _F32(0)
    for k in range(len(x)):
        value = x[k] + residual[k]
        summed[k] = value
        total += value * value
    scale = _F32(1) / np.sqrt(total / _F32(len(x)) + eps)
    for k in range(len(x)):
        normed[k] = summed[k] * scale * weight[k]


@job
def _add_norm_job(call, item):  # type: ignore[no-untyped-def]
    """x, its stride, residual, its stride, weight, eps, normed, summed."""
    width = load_int(call + 24)
    for t in _rows(call, item):
        _add_norm(
            floats(load_int(call + 32) + 4 * t * load_int(call + 40), width),
            floats(load_int(call + 48) + 4 * t * load_int(call + 56), width),
            floats(load_int(call + 64), width),
            _number(load_int(call + 72)),
            floats(load_int(call + 80) + 4 * t * width, width),
            floats(load_int(call + 88) + 4 * t * width, width),
        )


@inner(fastmath=_FAST)
def _silu_mul(gates, ups, out):  # type: ignore[no-untyped-def]
    """gate / (1 + exp(-gate)) * up.

    The exponential is Cody and Waite's reduction and a polynomial of degree 6 (about 1 unit in the last
    place), for numba's own is a call for each number. Below -87 it gives exp(-87) and above 88 infinity's
    neighbour, where the quotient is 0 or the gate to the last bit all the same.
    """
    for i in range(len(out)):
        gate = gates[i]
        x = min(max(-gate, _F32(-87)), _F32(88))
        n = np.floor(x * _LOG2E + _F32(0.5))
        r = x - n * _LN2_HIGH - n * _LN2_LOW
        p = _F32(1.9875691500e-4)
        p = p * r + _F32(1.3981999507e-3)
        p = p * r + _F32(8.3334519073e-3)
        p = p * r + _F32(4.1665795894e-2)
        p = p * r + _F32(1.6666665459e-1)
        p = p * r + _F32(5.0000001201e-1)
        p = p * r * r + r + _F32(1)
        power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
        out[i] = gate / (_F32(1) + p * power) * ups[i]


@job
def _silu_job(call, item):  # type: ignore[no-untyped-def]
    """gate_up, its stride, out."""
    width = load_int(call + 24)
    for t in _rows(call, item):
        gates = load_int(call + 32) + 4 * t * load_int(call + 40)
        _silu_mul(
            floats(gates, width),
            floats(gates + 4 * width, width),
            floats(load_int(call + 48) + 4 * t * width, width),
        )


@inner()
def _forbid(scores, allowed):  # type: ignore[no-untyped-def]
    """-inf where the bit of a score is not set; the others keep their bits."""
    whole = len(scores) // 32
    for w in range(whole):
        word = allowed[w]
        for bit in range(32):
            kept = scores[32 * w + bit]
            scores[32 * w + bit] = kept if (word >> bit) & 1 else _F32(-np.inf)
    for i in range(32 * whole, len(scores)):
        if not (allowed[whole] >> (i - 32 * whole)) & 1:
            scores[i] = _F32(-np.inf)


@job
def _mask_job(call, item):  # type: ignore[no-untyped-def]
    """Words: logits, bytes a row, mask, bytes a row, rows, vocabulary. An item is a row of the mask."""
    size, places = load_int(call + 48), load_int(call + 40)
    row = load_int(places + 8 * item) if places else item
    scores = floats(load_int(call + 8) + row * load_int(call + 16), size)
    _forbid(scores, halves(load_int(call + 24) + item * load_int(call + 32), -(-size // 32)))


@inner()
def _take_items(call, item, load):  # type: ignore[no-untyped-def]
    """table, its stride in bytes, ids, out."""
    width = load_int(call + 24)
    for t in _rows(call, item):
        row = load_int(call + 32) + load_int(load_int(call + 48) + 8 * t) * load_int(call + 40)
        out = floats(load_int(call + 56) + 4 * t * width, width)
        for k in range(width):
            out[k] = load(row, k)


@inner()
def _turn(x, cos, sin, out):  # type: ignore[no-untyped-def]
    """Pairs (i, i + D/2) of x, turned by the angle of position and i."""
    half = len(cos)
    for d in range(half):
        out[d] = x[d] * cos[d] - x[d + half] * sin[d]
    for d in range(half):
        out[d + half] = x[d + half] * cos[d] + x[d] * sin[d]


@inner()
def _normed_and_turned(x, norm, eps, turns, cos, sin, normed, out):  # type: ignore[no-untyped-def]
    """x, normed where there is a weight for it and turned where anything turns."""
    size = len(x)
    if norm:
        _norm(x, floats(norm, size), eps, normed)
    else:
        for d in range(size):
            normed[d] = x[d]
    if turns:
        _turn(normed, cos, sin, out)
    else:
        for d in range(size):
            out[d] = normed[d]


@inner()
def _put(address, values, store):  # type: ignore[no-untyped-def]
    for d in range(len(values)):
        store(address, d, values[d])


@inner()
def _turn_items(call, item, store, bytes_each):  # type: ignore[no-untyped-def]
    """qkv, cos, sin, q, keys, values, slots, layout, positions."""
    layout = words(load_int(call + 88), 9)
    heads, kv_heads, size, page_size = layout[0], layout[1], layout[2], layout[3]
    q_norm, k_norm, eps = layout[6], layout[7], _number(layout[8])
    turns = load_int(call + 40) != 0
    normed, turned = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.float32)
    for t in _rows(call, item):
        row = load_int(call + 32) + 4 * t * load_int(call + 24)
        angle = 2 * size * load_int(load_int(call + 96) + 8 * t)
        cos, sin = (
            floats(load_int(call + 40) + angle, size // 2),
            floats(load_int(call + 48) + angle, size // 2),
        )
        for h in range(heads):
            _normed_and_turned(floats(row + 4 * h * size, size), q_norm, eps, turns, cos, sin, normed, turned)
            _put(load_int(call + 56) + 4 * (t * heads + h) * size, turned, store_float32)
        slot = load_int(load_int(call + 80) + 8 * t)
        if slot < 0:
            continue
        for g in range(kv_heads):
            at = bytes_each * (slot // page_size * layout[4] + g * layout[5] + slot % page_size * size)
            key = floats(row + 4 * (heads + g) * size, size)
            _normed_and_turned(key, k_norm, eps, turns, cos, sin, normed, turned)
            _put(load_int(call + 64) + at, turned, store)
            _put(load_int(call + 72) + at, floats(row + 4 * (heads + kv_heads + g) * size, size), store)


@job
def _take_float32(call, item):  # type: ignore[no-untyped-def]
    _take_items(call, item, load_float32)


@job
def _take_bfloat16(call, item):  # type: ignore[no-untyped-def]
    _take_items(call, item, load_bfloat16)


@job
def _take_float16(call, item):  # type: ignore[no-untyped-def]
    _take_items(call, item, load_float16)


_TAKES = {torch.float32: _take_float32, torch.bfloat16: _take_bfloat16, torch.float16: _take_float16}


@job
def _turn_float32(call, item):  # type: ignore[no-untyped-def]
    _turn_items(call, item, store_float32, 4)


@job
def _turn_bfloat16(call, item):  # type: ignore[no-untyped-def]
    _turn_items(call, item, store_bfloat16, 2)


@job
def _turn_float16(call, item):  # type: ignore[no-untyped-def]
    _turn_items(call, item, store_float16, 2)


_TURNS = {torch.float32: _turn_float32, torch.bfloat16: _turn_bfloat16, torch.float16: _turn_float16}
