"""Queries and keys normed and turned, keys and values written to their pages, in one launch.

x / sqrt(mean(x^2) + eps) * weight for each head of queries and keys, if there are weights; then, if there are
angles, (x_i, x_j) -> (x_i cos - x_j sin, x_j cos + x_i sin) with j = i + D/2, by the angle of the position.

    qkv               (T, (H + 2 G) D)  float32, bfloat16 or float16  rows of any stride: q, k, v
    norms             weights of q and k (D), and eps, or None        float32 or the dtype of qkv, contiguous
    angles            cos and sin (positions, D/2), or None           float32, contiguous
    positions, slots  (T)               int64                         contiguous; slot = page * S + offset
    k_pages, v_pages  (P, G, S, D)      float32, bfloat16 or float16  equal strides, the last two (D, 1)
    q                 (T, H, D)         the dtype of qkv              contiguous, fresh

A token with slot -1 is not written. Float32 in between, one rounding at the end; one program works on some
heads of one token. Two tokens must not share a slot. Nothing here waits for the device, so positions and
slots are believed unless `debug` asks for them to be read and checked. Not supported: D that is odd or
above 512, a rotation of a part of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_HEAD_DIM = 512
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _load_halves(x_ptr, head, head_count, HEAD_DIM: tl.constexpr, HALF_BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some heads, each cut in the middle, and which numbers of a half there are."""
    HALF: tl.constexpr = HEAD_DIM // 2
    column = tl.arange(0, HALF_BLOCK)
    offset = head[:, None] * HEAD_DIM + column[None, :]
    valid = (head < head_count)[:, None] & (column < HALF)[None, :]
    low = tl.load(x_ptr + offset, mask=valid, other=0.0).to(tl.float32)  # (HEADS, HALF_BLOCK)
    high = tl.load(x_ptr + offset + HALF, mask=valid, other=0.0).to(tl.float32)  # (HEADS, HALF_BLOCK)
    return low, high, valid


@triton.jit
def _norm_and_turn(  # type: ignore[no-untyped-def]
    low,
    high,
    weight_ptr,
    eps,
    cos_ptr,
    sin_ptr,
    position,
    HEAD_DIM: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    HALF: tl.constexpr = HEAD_DIM // 2
    # As wide as `low`, so that each thread reads what it needs itself and nothing goes through shared memory.
    column = tl.broadcast_to(tl.arange(0, HALF_BLOCK)[None, :], low.shape)
    valid = column < HALF
    if weight_ptr is not None:
        scale = tl.rsqrt(tl.sum(low * low + high * high, axis=1) / HEAD_DIM + eps)[:, None]  # (HEADS, 1)
        low *= scale * tl.load(weight_ptr + column, mask=valid, other=0.0).to(tl.float32)
        high *= scale * tl.load(weight_ptr + HALF + column, mask=valid, other=0.0).to(tl.float32)
    if cos_ptr is not None:
        angle = position * HALF + column
        cos = tl.load(cos_ptr + angle, mask=valid, other=0.0)  # (HEADS, HALF_BLOCK)
        sin = tl.load(sin_ptr + angle, mask=valid, other=0.0)  # (HEADS, HALF_BLOCK)
        low, high = low * cos - high * sin, high * cos + low * sin
    return low, high


@triton.jit
def _store_halves(at, low, high, valid, HEAD_DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(at, low.to(at.dtype.element_ty), mask=valid)
    tl.store(at + HEAD_DIM // 2, high.to(at.dtype.element_ty), mask=valid)


@triton.jit
def _turn_and_write_kernel(  # type: ignore[no-untyped-def]
    qkv_ptr,
    q_weight_ptr,  # None: no norm
    k_weight_ptr,
    cos_ptr,  # None: no turn
    sin_ptr,
    positions_ptr,
    slots_ptr,
    k_ptr,
    v_ptr,
    q_ptr,
    eps,
    qkv_stride,
    page_stride,
    head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    Q_BLOCKS: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    KV_BLOCKS: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    block = tl.program_id(0) % (Q_BLOCKS + 2 * KV_BLOCKS)
    token = (tl.program_id(0) // (Q_BLOCKS + 2 * KV_BLOCKS)).to(tl.int64)
    column = tl.arange(0, HALF_BLOCK)[None, :]
    row_ptr, position = qkv_ptr + token * qkv_stride, tl.load(positions_ptr + token)
    if block < Q_BLOCKS:
        head = block * HEADS + tl.arange(0, HEADS)
        low, high, valid = _load_halves(row_ptr, head, NUM_HEADS, HEAD_DIM, HALF_BLOCK)
        low, high = _norm_and_turn(
            low, high, q_weight_ptr, eps, cos_ptr, sin_ptr, position, HEAD_DIM, HALF_BLOCK
        )
        q_at = q_ptr + token * (NUM_HEADS * HEAD_DIM) + head[:, None] * HEAD_DIM + column
        _store_halves(q_at, low, high, valid, HEAD_DIM)
    else:
        is_value = block >= Q_BLOCKS + KV_BLOCKS
        head = (block - Q_BLOCKS) % KV_BLOCKS * HEADS + tl.arange(0, HEADS)
        first_head = tl.where(is_value, NUM_HEADS + NUM_KV_HEADS, NUM_HEADS)
        low, high, valid = _load_halves(
            row_ptr + first_head * HEAD_DIM, head, NUM_KV_HEADS, HEAD_DIM, HALF_BLOCK
        )
        slot = tl.load(slots_ptr + token)
        written = valid & (tl.broadcast_to(slot, valid.shape) >= 0)
        in_page = (slot // PAGE_SIZE) * page_stride + (slot % PAGE_SIZE) * HEAD_DIM
        at = in_page + head.to(tl.int64)[:, None] * head_stride + column
        if is_value:
            _store_halves(v_ptr + at, low, high, written, HEAD_DIM)
        else:
            low, high = _norm_and_turn(
                low, high, k_weight_ptr, eps, cos_ptr, sin_ptr, position, HEAD_DIM, HALF_BLOCK
            )
            _store_halves(k_ptr + at, low, high, written, HEAD_DIM)


@dataclass(frozen=True, slots=True)
class Tile:
    """So many heads are one program's, and each half of them is padded to `half_block` numbers."""

    heads: int
    half_block: int
    warps: int


_WARPS = {32: 1, 64: 2, 128: 4, 256: 8}
"""With eight heads, one load of 16 bytes a thread for each half in half precision."""


def _tile_for(head_dim: int) -> Tile:
    half_block = triton.next_power_of_2(head_dim // 2)
    return Tile(8, half_block, _WARPS.get(half_block, 1))


def turn_and_write(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    angles: tuple[Tensor, Tensor] | None,
    positions: Tensor,
    slots: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    *,
    num_heads: int,
    debug: bool = False,
) -> Tensor:
    """Writes the pages, returns q. debug: read positions and slots, which waits for the device, and refuse
    those that angles or pages have not."""
    _check_pages(k_pages, v_pages)
    _, kv_heads, page_size, size = k_pages.shape
    _check_qkv(qkv, num_heads, kv_heads, size)
    _check_parameters(qkv, norms, angles, size)
    for name, numbers in (("positions", positions), ("slots", slots)):
        _check_numbers(name, numbers, qkv)
    if debug:
        _check_values(positions, slots, angles, k_pages)
    q = torch.empty((len(qkv), num_heads, size), dtype=qkv.dtype, device=qkv.device)
    tile = _tile_for(size)
    blocks = triton.cdiv(num_heads, tile.heads) + 2 * triton.cdiv(kv_heads, tile.heads)
    q_weight, k_weight, eps = norms if norms is not None else (None, None, 0.0)
    cos, sin = angles if angles is not None else (None, None)
    if len(qkv):
        _turn_and_write_kernel[(len(qkv) * blocks,)](
            qkv,
            q_weight,
            k_weight,
            cos,
            sin,
            positions,
            slots,
            k_pages,
            v_pages,
            q,
            eps,
            qkv.stride(0),
            k_pages.stride(0),
            k_pages.stride(1),
            num_heads,
            kv_heads,
            size,
            page_size,
            tile.heads,
            tile.half_block,
            num_warps=tile.warps,
        )
    return q


def _check_pages(k_pages: Tensor, v_pages: Tensor) -> None:
    if k_pages.dtype not in _DTYPES or v_pages.dtype != k_pages.dtype:
        raise ValueError(
            "k_pages and v_pages must both be float32, bfloat16 or float16, "
            f"got {k_pages.dtype} and {v_pages.dtype}"
        )
    if k_pages.dim() != 4 or v_pages.shape != k_pages.shape or v_pages.stride() != k_pages.stride():
        raise ValueError(
            "k_pages and v_pages must have the same shape (P, G, S, D) and strides, "
            f"got {tuple(k_pages.shape)} and {tuple(v_pages.shape)}, "
            f"strides {k_pages.stride()} and {v_pages.stride()}"
        )
    size = k_pages.shape[3]
    if size % 2 or not 2 <= size <= MAX_HEAD_DIM:
        raise ValueError(f"the size of a head must be even and from 2 to {MAX_HEAD_DIM}, got {size}")
    if k_pages.stride()[2:] != (size, 1):
        raise ValueError(f"a page of a head must be numbers side by side, got strides {k_pages.stride()}")


def _check_qkv(qkv: Tensor, num_heads: int, kv_heads: int, size: int) -> None:
    if qkv.dtype not in _DTYPES:
        raise ValueError(f"qkv must be float32, bfloat16 or float16, got {qkv.dtype}")
    if num_heads < 1 or kv_heads < 1:
        raise ValueError(f"there must be heads of queries and keys, got {num_heads} and {kv_heads}")
    width = (num_heads + 2 * kv_heads) * size
    if qkv.dim() != 2 or qkv.shape[1] != width:
        raise ValueError(
            f"qkv must have shape (T, {width}) for {num_heads} and 2 x {kv_heads} heads of {size}, "
            f"got {tuple(qkv.shape)}"
        )
    if qkv.stride(1) != 1:
        raise ValueError(f"a row of qkv must be numbers side by side, got strides {qkv.stride()}")


def _check_parameters(
    qkv: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    angles: tuple[Tensor, Tensor] | None,
    size: int,
) -> None:
    for weight in norms[:2] if norms is not None else ():
        if weight.dtype not in (torch.float32, qkv.dtype):
            raise ValueError(f"norms must be float32 or {qkv.dtype} as qkv is, got {weight.dtype}")
        if weight.shape != (size,) or not weight.is_contiguous():
            raise ValueError(
                f"norms must be contiguous of shape ({size},), "
                f"got shape {tuple(weight.shape)} and strides {weight.stride()}"
            )
    for table in angles if angles is not None else ():
        if table.dtype != torch.float32:
            raise ValueError(f"angles must be float32, got {table.dtype}")
        if table.dim() != 2 or table.shape[1] != size // 2 or not table.is_contiguous():
            raise ValueError(
                f"angles must be contiguous of shape (positions, {size // 2}), "
                f"got shape {tuple(table.shape)} and strides {table.stride()}"
            )


def _check_numbers(name: str, numbers: Tensor, qkv: Tensor) -> None:
    if numbers.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {numbers.dtype}")
    if numbers.shape != (len(qkv),) or not numbers.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous of shape ({len(qkv)},), one a token, "
            f"got shape {tuple(numbers.shape)} and strides {numbers.stride()}"
        )


def _check_values(
    positions: Tensor, slots: Tensor, angles: tuple[Tensor, Tensor] | None, k_pages: Tensor
) -> None:
    if angles is not None:
        most = min(len(table) for table in angles)
        wrong = [one for one in positions.tolist() if not 0 <= one < most]
        if wrong:
            raise ValueError(f"positions must be from 0 to {most - 1} as angles are, got {wrong[0]}")
    written = [one for one in slots.tolist() if one != -1]
    num_slots = k_pages.shape[0] * k_pages.shape[2]
    wrong = [one for one in written if not 0 <= one < num_slots]
    if wrong:
        raise ValueError(f"slots must be from 0 to {num_slots - 1}, or -1, got {wrong[0]}")
    if len(set(written)) < len(written):
        raise ValueError(f"no slot may be written twice, got {written}")
