"""RMS norm, alone and fused with the residual sum before it: x / sqrt(mean(x^2) + eps) * weight.

    x, residual  (T, K)  float32, bfloat16 or float16  rows of any stride, numbers of a row side by side
    weight       (K)     float32 or the dtype of x     contiguous
    normed, sum  (T, K)  the dtype of x                contiguous, fresh

One program works on one row, by the same instructions whatever stands beside it. Everything in between is
float32: the sum that is normalised is the one before it is rounded to x's dtype.
Not supported: K above 16,384 (a row is one block); a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_WIDTH = 16384
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,  # None: there is no sum
    weight_ptr,
    normed_ptr,
    sum_ptr,  # None if residual_ptr is
    width,
    eps,
    x_stride,
    residual_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    valid = column < width
    weight = tl.load(weight_ptr + column, mask=valid, other=0.0).to(tl.float32)  # (BLOCK)
    x = tl.load(x_ptr + row * x_stride + column, mask=valid, other=0.0).to(tl.float32)  # (BLOCK)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + row * residual_stride + column, mask=valid, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row * width + column, x.to(sum_ptr.dtype.element_ty), mask=valid)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    normed = x * scale * weight
    tl.store(normed_ptr + row * width + column, normed.to(normed_ptr.dtype.element_ty), mask=valid)


@dataclass(frozen=True, slots=True)
class Tile:
    """A row's numbers, a power of two, and the warps that share them."""

    block: int
    warps: int


_WARPS = {512: 1, 1024: 2, 2048: 4, 4096: 8, 8192: 8, 16384: 16}
"""16 numbers a thread, two loads of 16 bytes in half precision, until a row needs too many threads."""


def _tile_for(width: int) -> Tile:
    block = triton.next_power_of_2(width)
    return Tile(block, _WARPS.get(block, 1))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """(T, K), normalised, in x's dtype."""
    _check("x", x)
    _check_weight(x, weight)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tile = _tile_for(x.shape[1])
    if len(x):
        _rms_norm_kernel[(len(x),)](
            x, None, weight, normed, None, x.shape[1], eps, x.stride(0), 0, tile.block, num_warps=tile.warps
        )
    return normed


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + residual, normalised, and the sum itself, both (T, K) in x's dtype."""
    _check("x", x)
    _check("residual", residual)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"residual must be {x.dtype} of shape {tuple(x.shape)} as x is, "
            f"got {residual.dtype} of shape {tuple(residual.shape)}"
        )
    _check_weight(x, weight)
    normed, total = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    tile = _tile_for(x.shape[1])
    if len(x):
        _rms_norm_kernel[(len(x),)](
            x,
            residual,
            weight,
            normed,
            total,
            x.shape[1],
            eps,
            x.stride(0),
            residual.stride(0),
            tile.block,
            num_warps=tile.warps,
        )
    return normed, total


def _check(name: str, x: Tensor) -> None:
    if x.dtype not in _DTYPES:
        raise ValueError(f"{name} must be float32, bfloat16 or float16, got {x.dtype}")
    if x.dim() != 2 or not 1 <= x.shape[1] <= MAX_WIDTH:
        raise ValueError(f"{name} must have shape (T, K), K from 1 to {MAX_WIDTH}, got {tuple(x.shape)}")
    if x.stride(1) != 1 and x.shape[1] > 1:
        raise ValueError(f"a row of {name} must be numbers side by side, got strides {x.stride()}")


def _check_weight(x: Tensor, weight: Tensor) -> None:
    if weight.dtype not in (torch.float32, x.dtype):
        raise ValueError(f"weight must be float32 or {x.dtype} as x is, got {weight.dtype}")
    if weight.shape != x.shape[1:] or not weight.is_contiguous():
        raise ValueError(
            f"weight must be contiguous of shape {tuple(x.shape[1:])}, "
            f"got shape {tuple(weight.shape)} and strides {weight.stride()}"
        )
