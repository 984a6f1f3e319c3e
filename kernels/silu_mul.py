"""Gated activations: silu(gate) * up and gelu(gate) * up, where a row is its gates and then its ups.

    gate_up  (T, 2 I)  float32, bfloat16 or float16  rows of any stride, numbers of a row side by side
    out      (T, I)    the dtype of gate_up          contiguous, fresh

silu(g) = g sigmoid(g); gelu is its approximation by tanh, as Gemma has it, which is g sigmoid(2 z) with
z = sqrt(2 / pi) (g + 0.044715 g^3). Float32 in between. The exponential is of -|z|, so that it never
overflows: a gate of -1e38 gives -0, one of +inf gives inf. Not supported: a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _silu_mul_kernel(  # type: ignore[no-untyped-def]
    gate_up_ptr,
    out_ptr,
    width,
    num_blocks,  # a row's
    gate_up_stride,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    column = (program % num_blocks) * BLOCK + tl.arange(0, BLOCK)
    valid = column < width
    gate_at = gate_up_ptr + row * gate_up_stride + column
    gate = tl.load(gate_at, mask=valid, other=0.0).to(tl.float32)  # (BLOCK)
    up = tl.load(gate_at + width, mask=valid, other=0.0).to(tl.float32)  # (BLOCK)
    z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    power = tl.exp(-tl.abs(z))
    activated = gate * (tl.where(z < 0, power, 1.0) / (1.0 + power))
    tl.store(out_ptr + row * width + column, (activated * up).to(out_ptr.dtype.element_ty), mask=valid)


@dataclass(frozen=True, slots=True)
class Tile:
    """So many outputs of a row are one program's."""

    block: int
    warps: int


def _tile_for(width: int) -> Tile:
    """16 outputs a thread: four loads of 16 bytes on their way in half precision."""
    if width <= 512:
        return Tile(triton.next_power_of_2(width), 1)
    return Tile(1024, 2) if width <= 1024 else Tile(2048, 4)


def silu_mul(gate_up: Tensor) -> Tensor:
    """(T, 2 I) -> (T, I)."""
    return _activate_mul(gate_up, is_gelu=False)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """(T, 2 I) -> (T, I)."""
    return _activate_mul(gate_up, is_gelu=True)


def _activate_mul(gate_up: Tensor, *, is_gelu: bool) -> Tensor:
    if gate_up.dtype not in _DTYPES:
        raise ValueError(f"gate_up must be float32, bfloat16 or float16, got {gate_up.dtype}")
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.shape[1]:
        raise ValueError(f"gate_up must have shape (T, 2 I), got {tuple(gate_up.shape)}")
    if gate_up.stride(1) != 1:
        raise ValueError(f"a row of gate_up must be numbers side by side, got strides {gate_up.stride()}")
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    tile = _tile_for(width)
    num_blocks = triton.cdiv(width, tile.block)
    if rows:
        _silu_mul_kernel[(rows * num_blocks,)](
            gate_up, out, width, num_blocks, gate_up.stride(0), is_gelu, tile.block, num_warps=tile.warps
        )
    return out
