"""The op table for a CPU, in plain torch.

`cpu_ops` fills it. With `deterministic` every op gives a query's bits independent of its batch mates, its
chunk and what the cache held: linears are packed and padded (cpu_linear.py), attention runs on fixed tiles
and fixed splits (cpu_attention.py), and the other ops work along whole rows (cpu_fused.py). Whether this
processor can do so is found by trying when the table is made and when a weight is packed. Half precision
takes torch's own ops for the small steps, and promises no equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from . import cpu_fused
from .cpu_attention import CpuAttention
from .cpu_flash import find_tile
from .cpu_linear import NotDeterministic, pack_linear
from .ops import Ops
from .plan import PlanOptions

__all__ = ["NotDeterministic", "cpu_ops"]

SPLIT_TOKENS = 128
"""Where keys are cut in deterministic mode: the smaller, the more of a shared prefix is read once; the
larger, the fewer partials a prompt has. 256 and 512 slowed decoding over 500 shared tokens by 15 and 20 %."""


def cpu_ops(num_heads: int, num_kv_heads: int, head_dim: int, *, deterministic: bool) -> Ops:
    """The table for a model of these heads.

    With `deterministic`, this and the table's pack_linear raise NotDeterministic if that cannot be had here.
    """
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
    tile = None
    if deterministic:
        tile = find_tile(num_heads // num_kv_heads, head_dim, SPLIT_TOKENS)
        if tile is None:
            raise NotDeterministic("no tile of the attention op gives the same bits in every batch here")
    attention = CpuAttention(num_heads, num_kv_heads, tile)
    return Ops(
        name="cpu",
        plan_options=PlanOptions(split_tokens=SPLIT_TOKENS if deterministic else None),
        pack_linear=partial(pack_linear, steady=deterministic),
        embed=lambda table, ids: table.index_select(0, ids),
        rms_norm=_rms_norm,
        add_rms_norm=_add_rms_norm,
        rope=_rope,
        silu_mul=_silu_mul,
        kv_write=_kv_write,
        copy_pages=_copy_pages,
        prepare=attention.prepare,
        attend=attention.attend,
    )


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype != torch.float32:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    cpu_fused.rms_norm(rows.numpy(), weight.numpy(), eps, out.numpy())
    return out.view(x.shape)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if x.dtype != torch.float32:
        total = x + residual
        return _rms_norm(total, weight, eps), total
    x, residual = x.contiguous(), residual.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    cpu_fused.add_rms_norm(x.numpy(), residual.numpy(), weight.numpy(), eps, normed.numpy(), total.numpy())
    return normed, total


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rows, heads, size = x.shape
    if x.dtype != torch.float32:
        return x * cos[:, None] + x.roll(size // 2, -1) * sin[:, None]
    if x.stride()[1:] != (size, 1):
        x = x.contiguous()
    out = x.new_empty(x.shape)
    if rows:
        stride = x.stride(0)
        flat = x.as_strided(((rows - 1) * stride + heads * size,), (1,))
        cpu_fused.rope(flat.numpy(), stride, cos.numpy(), sin.numpy(), out.numpy())
    return out


def _silu_mul(gate_up: Tensor) -> Tensor:
    if gate_up.dtype != torch.float32:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    cpu_fused.silu_mul(gate_up.contiguous().numpy(), out.numpy())
    return out


def _kv_write(k_pages: Tensor, v_pages: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    if k_pages.dtype == torch.float32:
        cpu_fused.kv_write(k_pages.numpy(), v_pages.numpy(), k.numpy(), v.numpy(), slots.numpy())
        return
    page_size = k_pages.shape[2]
    page, offset = slots // page_size, slots % page_size
    k_pages[page, :, offset], v_pages[page, :, offset] = k, v


def _copy_pages(pool: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    for source, target in zip(sources, targets, strict=True):
        pool[:, target] = pool[:, source]
