"""Small steps of a layer, each as one pass over its rows, compiled by numba when they are first called.

Between two matrix products a decode step does little arithmetic, and a dozen torch calls for it cost more
than the arithmetic: each is some microseconds of dispatch with cold caches. Here each is one call. A row is
worked on by the same instructions whatever the number of rows, so its bits are its own; sums may be
reassociated by the compiler, once, when it compiles. NaN and infinity are kept. Compiled code is kept beside
this file or in the user's cache folder, where either can be written.

Arrays are float32 (in `merge` also float64). Nothing here allocates; outputs are written whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

F32 = np.float32
Floats = NDArray[np.float32]
Index = NDArray[np.int64]
_LOG2E = F32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = F32(0.693359375), F32(-2.12194440e-4)


Kernel = Callable[..., Any]  # Any: numba's types are its own


def _compiled(function: Kernel, *, reassociates: bool = True) -> Kernel:
    """numba compiles a function anew for arrays that are contiguous and for those that are not, and may round
    otherwise in the two: a function that `reassociates` is given contiguous arrays only."""
    fastmath = {"reassoc", "contract", "nsz"} if reassociates else False
    try:
        kernel: Kernel = numba.njit(function, cache=True, nogil=True, fastmath=fastmath, error_model="numpy")
    except RuntimeError:  # no folder to keep compiled code in
        kernel = numba.njit(function, nogil=True, fastmath=fastmath, error_model="numpy")
    return kernel


def _exact(function: Kernel) -> Kernel:
    """Compiled with every rounding as written: arrays may be strided."""
    return _compiled(function, reassociates=False)


@_compiled
def rms_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    """x, out (T, K): out = x / sqrt(mean(x^2) + eps) * weight."""
    rows, width = x.shape
    for t in range(rows):
        total = F32(0)
        for k in range(width):
            total += x[t, k] * x[t, k]
        scale = F32(1) / np.sqrt(total / F32(width) + F32(eps))
        for k in range(width):
            out[t, k] = x[t, k] * scale * weight[k]


@_compiled
def add_rms_norm(
    x: Floats, residual: Floats, weight: Floats, eps: float, normed: Floats, summed: Floats
) -> None:
    """summed = x + residual; normed = rms_norm of it. All (T, K)."""
    rows, width = x.shape
    for t in range(rows):
        total = F32(0)
        for k in range(width):
            value = x[t, k] + residual[t, k]
            summed[t, k] = value
            total += value * value
        scale = F32(1) / np.sqrt(total / F32(width) + F32(eps))
        for k in range(width):
            normed[t, k] = summed[t, k] * scale * weight[k]


@_exact
def rope(x: Floats, stride: int, cos: Floats, sin: Floats, out: Floats) -> None:
    """out (T, heads, D) = x * cos + (x rolled by D/2) * sin, with cos, sin (T, D).

    x is flat: row t starts at t * stride and holds its heads side by side (a flat array is one that the
    compiler knows to be contiguous, so it can use vectors).
    """
    rows, heads, size = out.shape
    half = size // 2
    for t in range(rows):
        for h in range(heads):
            at = t * stride + h * size
            for d in range(half):
                out[t, h, d] = x[at + d] * cos[t, d] + x[at + half + d] * sin[t, d]
            for d in range(half, size):
                out[t, h, d] = x[at + d] * cos[t, d] + x[at - half + d] * sin[t, d]


@_compiled
def silu_mul(gate_up: Floats, out: Floats) -> None:
    """gate_up (T, 2 I), out (T, I): gate / (1 + exp(-gate)) * up.

    The exponential is Cody and Waite's reduction and a polynomial of degree 6 (about 1 unit in the last
    place), for numba's own is a call for each number. Below -87 it gives exp(-87) and above 88 infinity's
    neighbour, where the quotient is 0 or the gate to the last bit all the same.
    """
    rows, width = out.shape
    for t in range(rows):
        for i in range(width):
            gate = gate_up[t, i]
            x = min(max(-gate, F32(-87)), F32(88))
            n = np.floor(x * _LOG2E + F32(0.5))
            r = x - n * _LN2_HIGH - n * _LN2_LOW
            p = F32(1.9875691500e-4)
            p = p * r + F32(1.3981999507e-3)
            p = p * r + F32(8.3334519073e-3)
            p = p * r + F32(4.1665795894e-2)
            p = p * r + F32(1.6666665459e-1)
            p = p * r + F32(5.0000001201e-1)
            p = p * r * r + r + F32(1)
            power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
            out[t, i] = gate / (F32(1) + p * power) * gate_up[t, width + i]


@_exact
def kv_write(k_pages: Floats, v_pages: Floats, k: Floats, v: Floats, slots: Index) -> None:
    """k, v (W, G, D) to the slots (W) of pages (P, G, S, D)."""
    page_size = k_pages.shape[2]
    for w in range(len(slots)):
        page, offset = slots[w] // page_size, slots[w] % page_size
        for g in range(k.shape[1]):
            for d in range(k.shape[2]):
                k_pages[page, g, offset, d] = k[w, g, d]
                v_pages[page, g, offset, d] = v[w, g, d]


@_exact
def gather_pages(
    k_rows: Floats, v_rows: Floats, index: Index, tokens: Index, k_out: Floats, v_out: Floats
) -> None:
    """index (B, G, pages) of rows (rows, S, D) -> out (B, G, pages * S, D); slots from tokens (B) on are 0:
    an unwritten slot may hold anything, and not even a weight of 0 would hide a NaN."""
    page_size, size = k_rows.shape[1:]
    for b in range(index.shape[0]):
        for g in range(index.shape[1]):
            for slot in range(k_out.shape[2]):
                if slot < tokens[b]:
                    row, offset = index[b, g, slot // page_size], slot % page_size
                    for d in range(size):
                        k_out[b, g, slot, d] = k_rows[row, offset, d]
                        v_out[b, g, slot, d] = v_rows[row, offset, d]
                else:
                    for d in range(size):
                        k_out[b, g, slot, d] = F32(0)
                        v_out[b, g, slot, d] = F32(0)


@_compiled
def merge(partials: Floats, lse: Floats, index: Index, out: Floats) -> None:
    """partials (N, H, D), lse (N, H), index (levels, T): each query's partials weighted by their share of the
    whole sum, first level to last; -1 is no partial. out (T, H, D)."""
    levels, queries = index.shape
    heads, size = partials.shape[1:]
    for t in range(queries):
        for h in range(heads):
            most = lse[index[0, t], h]
            for level in range(1, levels):
                if index[level, t] >= 0:
                    most = max(most, lse[index[level, t], h])
            total = np.exp(lse[index[0, t], h] - most)
            for level in range(1, levels):
                if index[level, t] >= 0:
                    total += np.exp(lse[index[level, t], h] - most)
            for level in range(levels):
                n = index[level, t]
                if n < 0:
                    continue
                weight = np.exp(lse[n, h] - most) / total
                if level == 0:
                    for d in range(size):
                        out[t, h, d] = weight * partials[n, h, d]
                else:
                    for d in range(size):
                        out[t, h, d] += weight * partials[n, h, d]
