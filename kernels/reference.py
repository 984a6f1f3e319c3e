"""Each op written for clarity, in the precision of its inputs: run in float64 it is the oracle of the tests.

No plan, no tiles, no tricks: attention gathers every row's own copy of its keys. Never called while serving.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attend_rows(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    tables: Sequence[Sequence[int]],
    starts: Sequence[int],
    stops: Sequence[int],
    scale: float,
) -> Tensor:
    """Causal attention of q (T, H, D), row by row, over pages of shape (P, G, S, D) -> (T, H, D)."""
    group = q.shape[1] // k_pages.shape[1]
    out, at = torch.empty_like(q), 0
    for table, start, stop in zip(tables, starts, stops, strict=True):
        keys, values = (_gather(pages, table, stop) for pages in (k_pages, v_pages))
        keys, values = (x.repeat_interleave(group, dim=0).to(q.dtype) for x in (keys, values))
        count = stop - start
        scores = torch.einsum("thd,hnd->htn", q[at : at + count], keys) * scale
        position = torch.arange(start, stop)[:, None]
        scores = scores.masked_fill(torch.arange(stop)[None, :] > position, -torch.inf)
        out[at : at + count] = torch.einsum("htn,hnd->thd", scores.softmax(-1), values)
        at += count
    return out


def _gather(pages: Tensor, table: Sequence[int], tokens: int) -> Tensor:
    """(P, G, S, D) and a block table -> the first `tokens` slots as (G, tokens, D)."""
    chosen = pages[torch.as_tensor(list(table))]
    return chosen.transpose(0, 1).flatten(1, 2)[:, :tokens]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, heads, D), cos and sin (T, D/2): pairs (i, i + D/2) turn by the angle of position and i."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up
