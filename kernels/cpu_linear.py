"""Linear layers on a CPU: weights packed once into panels, products by cpu_gemm.py, shared out over a team.

A row gives the same bits whatever the number of rows, by the way a sum is made (cpu_gemm.py). Weights may be
stored as float32, bfloat16 or float16, all computed with in float32; or as bytes with one scale for each
output, where a row of activations is rounded to bytes with one scale of its own before the product. One scale
for a whole batch would let batch mates change a row, and a single large number would leave no bits for the
others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cpu_fused import Empty
from .cpu_gemm import GROUP, OFFSET, byte_product, largest, product, rounded
from .cpu_ir import LANES, MOST_ROWS, PANEL, floats, inner, load_int, rows_at_once, shorts, signed
from .cpu_memory import Arena
from .cpu_team import Team, job

FETCH_AHEAD = 8 << 10
"""How far before its use a weight is fetched, in bytes: 1 KiB was 20 % slower for 4 rows, 16 KiB no
faster."""
QUANTISE_NUMBERS = 4 << 10
"""So many activations make an item of work when they are rounded."""
ROWS_BYTES = 512 << 10
"""Rows are worked on in groups of about this size, which stay in a core's cache while weights pass by."""

# A weight in memory, as int64 words: panels, K (or K / GROUP), bias, bytes of a panel, panels in all,
# offsets, column scales. A call: weight, x, its stride, out, its stride, rows, rows a group, panels an item,
# row scales.


@inner()
def _share(call, item):  # type: ignore[no-untyped-def]
    """The rows and panels of an item: first row, rows, first panel, panel to stop at."""
    panels, chunk = load_int(load_int(call + 8) + 32), load_int(call + 64)
    rows, group = load_int(call + 48), load_int(call + 56)
    chunks = (panels + chunk - 1) // chunk
    first_row, first = item // chunks * group, item % chunks * chunk
    return first_row, min(group, rows - first_row), first, min(first + chunk, panels)


@inner()
def _ahead(done, turn, rows, w, panel_bytes, size, more):  # type: ignore[no-untyped-def]
    """What to fetch of the next panel while `size` steps are made with some rows of this one, and by which
    step.

    Where rows come in several turns, only the first has to wait for the panel: so that memory is never idle,
    each turn fetches its share of the next one.
    """
    if not more or rows <= MOST_ROWS:
        return w + FETCH_AHEAD, panel_bytes // size
    return w + panel_bytes + panel_bytes * done // rows, panel_bytes * turn // (rows * size)


@inner()
def _float_items(multiply, call, item):  # type: ignore[no-untyped-def]
    weight, x, x_row, out, out_row = (
        load_int(call + 8),
        load_int(call + 16),
        load_int(call + 24),
        load_int(call + 32),
        load_int(call + 40),
    )
    size, bias, panel_bytes = load_int(weight + 8), load_int(weight + 16), load_int(weight + 24)
    first_row, rows, panel, stop = _share(call, item)
    while panel < stop:
        column = panel * 4 * PANEL
        w = load_int(weight) + panel * panel_bytes
        at = first_row
        while at < first_row + rows:
            n = rows_at_once(first_row + rows - at)
            ahead, step = _ahead(at - first_row, n, rows, w, panel_bytes, size, panel + 1 < stop)
            multiply(
                n,
                x + at * x_row,
                x_row,
                4,
                w,
                size,
                bias + column,
                out + at * out_row + column,
                out_row,
                ahead,
                step,
            )
            at += n
        panel += 1


_multiply_float32 = product(2, rows="float32", panel="float32", init="bias")
_multiply_bfloat16 = product(2, rows="float32", panel="bfloat16", init="bias")
_multiply_float16 = product(2, rows="float32", panel="float16", init="bias")


@job
def _float32_job(call, item):  # type: ignore[no-untyped-def]
    _float_items(_multiply_float32, call, item)


@job
def _bfloat16_job(call, item):  # type: ignore[no-untyped-def]
    _float_items(_multiply_bfloat16, call, item)


@job
def _float16_job(call, item):  # type: ignore[no-untyped-def]
    _float_items(_multiply_float16, call, item)


_JOBS = {torch.float32: _float32_job, torch.bfloat16: _bfloat16_job, torch.float16: _float16_job}
_whole_numbers, _EACH = (signed, 1) if GROUP == 4 else (shorts, 2)
_multiply_bytes, _largest, _rounded = byte_product(2), largest(), rounded()


@job
def _byte_job(call, item):  # type: ignore[no-untyped-def]
    weight, x, x_row, out, out_row = (
        load_int(call + 8),
        load_int(call + 16),
        load_int(call + 24),
        load_int(call + 32),
        load_int(call + 40),
    )
    row_scales = load_int(call + 72)
    groups, bias, panel_bytes = load_int(weight + 8), load_int(weight + 16), load_int(weight + 24)
    offsets, scales = load_int(weight + 40), load_int(weight + 48)
    first_row, rows, panel, stop = _share(call, item)
    while panel < stop:
        column = panel * 4 * PANEL
        w = load_int(weight) + panel * panel_bytes
        at = first_row
        while at < first_row + rows:
            n = rows_at_once(first_row + rows - at)
            ahead, step = _ahead(at - first_row, n, rows, w, panel_bytes, groups, panel + 1 < stop)
            _multiply_bytes(
                n,
                x + at * x_row,
                x_row,
                w,
                groups,
                offsets + column,
                scales + column,
                bias + column,
                row_scales + 4 * at,
                out + at * out_row + column,
                out_row,
                ahead,
                step,
            )
            at += n
        panel += 1


@inner()
def _quantise_row(row, out, scale, scratch):  # type: ignore[no-untyped-def]
    """OFFSET + round(row / scale), with scale = max |row| / 127; a scale of NaN where row is not finite."""
    scratch[:] = 0
    vectors = len(row) // LANES
    if vectors:
        _largest(row.ctypes.data, vectors, scratch.ctypes.data)
    most, wrong = scratch[:LANES].max(), scratch[LANES:].sum()
    for k in range(vectors * LANES, len(row)):
        most = max(most, abs(row[k]))
        wrong += row[k] * np.float32(0)
    scale[0] = most / np.float32(127) + wrong
    inverse = np.float32(127) / most if most > 0 and wrong == 0 else np.float32(0)
    scratch[0] = inverse
    if vectors and wrong == 0:
        _rounded(row.ctypes.data, vectors, scratch.ctypes.data, out.ctypes.data)
    for k in range(vectors * LANES, len(row)):
        out[k] = np.int32(np.rint(row[k] * inverse)) + OFFSET
    out[len(row) :] = 0  # beside weights of 0


@job
def _quantise_job(call, item):  # type: ignore[no-untyped-def]
    """Words: x, its stride, K, bytes, their stride, row scales, rows, rows an item."""
    x, x_row, size = load_int(call + 8), load_int(call + 16), load_int(call + 24)
    out, out_row, scales = load_int(call + 32), load_int(call + 40), load_int(call + 48)
    rows, chunk = load_int(call + 56), load_int(call + 64)
    scratch = np.empty(2 * LANES, dtype=np.float32)
    for t in range(item * chunk, min(rows, item * chunk + chunk)):
        whole = _whole_numbers(out + t * out_row, out_row // _EACH)
        _quantise_row(floats(x + t * x_row, size), whole, floats(scales + 4 * t, 1), scratch)


class PackedLinear:
    """weight (N, K), bias (N) or None -> a function of x (T, K) float32, giving (T, N) float32.

    The weight is stored as it comes, in its own number format.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, team: Team, arena: Arena, empty: Empty) -> None:
        self._outputs, self._inputs = weight.shape
        self._team, self._empty = team, empty
        self._job = _JOBS[weight.dtype]
        self._panels = arena.keep(_panels(weight, 1))
        self._bias = _row_of(bias, len(self._panels))
        self._words = _words(self._panels, self._inputs, self._bias)
        self.weight_bytes, self.weight_address = self._panels.nbytes, self._panels.data_ptr()
        self._width, self._address = len(self._panels) * PANEL, self._words.ctypes.data

    def __call__(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32, f"activations are float32, got {x.dtype}"
        assert x.stride(1) == 1, "the numbers of a row lie side by side"
        out = self._empty((len(x), self._width), torch.float32)
        if len(x):
            items, group, chunk = _cut(len(x), self._panels, 4 * self._inputs, self._team.threads)
            self._team.run(
                self._job.address,
                items,
                self._address,
                x.data_ptr(),
                x.stride(0) * 4,
                out.data_ptr(),
                out.stride(0) * 4,
                len(x),
                group,
                chunk,
            )
        return out if out.shape[1] == self._outputs else out[:, : self._outputs]


class ByteLinear:
    """As PackedLinear, with the weight as bytes and one scale for each output and each row.

    Finite rows only: one that is not gives NaN. Scales of rows as in LLM.int8() (Dettmers et al., 2022),
    without its outliers.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, team: Team, arena: Arena, empty: Empty) -> None:
        self._outputs, inputs = weight.shape
        self._team, self._empty = team, empty
        weight = weight.float()
        scales = weight.abs().amax(dim=1) / 127
        whole = (weight / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round_().to(torch.int8)
        self._groups = -(-inputs // GROUP)
        whole = torch.nn.functional.pad(whole, (0, self._groups * GROUP - inputs))
        self._panels = arena.keep(_panels(whole, GROUP))
        self._bias = _row_of(bias, len(self._panels))
        self._offsets = _row_of(whole.sum(dim=1, dtype=torch.int32) * OFFSET, len(self._panels))
        self._scales = _row_of(scales, len(self._panels))
        self._words = _words(self._panels, self._groups, self._bias, self._offsets, self._scales)
        self.weight_bytes, self.weight_address = self._panels.nbytes, self._panels.data_ptr()
        self._width, self._address = len(self._panels) * PANEL, self._words.ctypes.data

    def __call__(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32, f"activations are float32, got {x.dtype}"
        assert x.stride(1) == 1, "the numbers of a row lie side by side"
        rows, width = x.shape[0], self._groups * GROUP * _EACH
        out = self._empty((rows, self._width), torch.float32)
        if rows:
            whole, scales = self._quantise(x, width)
            items, group, chunk = _cut(rows, self._panels, width, self._team.threads)
            self._team.run(
                _byte_job.address,
                items,
                self._address,
                whole.data_ptr(),
                width,
                out.data_ptr(),
                out.stride(0) * 4,
                rows,
                group,
                chunk,
                scales.data_ptr(),
            )
        return out if out.shape[1] == self._outputs else out[:, : self._outputs]

    def _quantise(self, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """x as rows of `width` bytes, and the scales of the rows."""
        rows, inputs = x.shape
        whole = self._empty((rows, width), torch.int8)
        scales = self._empty((rows,), torch.float32)
        chunk = max(1, QUANTISE_NUMBERS // inputs)
        self._team.run(
            _quantise_job.address,
            -(-rows // chunk),
            x.data_ptr(),
            x.stride(0) * 4,
            inputs,
            whole.data_ptr(),
            width,
            scales.data_ptr(),
            rows,
            chunk,
        )
        return whole, scales


def _panels(weight: Tensor, group: int) -> Tensor:
    """(N, K) -> (panels, K / group, PANEL, group), padded with zeros."""
    outputs, inputs = weight.shape
    panels = -(-outputs // PANEL)
    padded = torch.nn.functional.pad(weight, (0, 0, 0, panels * PANEL - outputs))
    return padded.view(panels, PANEL, inputs // group, group).transpose(1, 2)


def _row_of(values: Tensor | None, panels: int) -> Tensor:
    """One value for each column of all panels; none are zeros."""
    if values is None:
        return torch.zeros(panels * PANEL)
    values = values if values.dtype == torch.int32 else values.float()
    return torch.nn.functional.pad(values, (0, panels * PANEL - len(values))).contiguous()


def _words(panels: Tensor, size: int, bias: Tensor, *more: Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    panel_bytes = panels[0].numel() * panels.itemsize
    words = [panels.data_ptr(), size, bias.data_ptr(), panel_bytes, len(panels)]
    return np.array(words + [x.data_ptr() for x in more], dtype=np.int64)


def _cut(rows: int, panels: Tensor, row_bytes: int, threads: int) -> tuple[int, int, int]:
    """How a product becomes items of work: how many, rows a group, panels an item."""
    group = max(MOST_ROWS, ROWS_BYTES // row_bytes // MOST_ROWS * MOST_ROWS)
    chunk = max(1, len(panels) // (8 * threads))
    return -(-rows // group) * -(-len(panels) // chunk), group, chunk
