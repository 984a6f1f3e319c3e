"""Each op written for clarity, in the precision of its inputs: run in float64 it is the oracle of the tests.

No plan, no tiles, no tricks: attention gathers every row's own copy of its keys. Never called while serving.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .triton_plan import TritonPlan


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


def tree_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: TritonPlan, out: Tensor | None = None
) -> Tensor:
    """q (T, H, D) over pages (P, G, S, D) by a plan's segments -> (T, H, D); 0 where a query sees no key."""
    source, group = plan.source, q.shape[1] // k_pages.shape[1]
    scores: list[list[Tensor]] = [[] for _ in q]  # of each query, (H, keys) a segment
    values: list[list[Tensor]] = [[] for _ in q]  # and (H, keys, D)
    for i in range(source.num_segments):
        pages = source.pages[source.page_start[i] : source.page_start[i + 1]].tolist()
        tokens, causal = int(source.kv_tokens[i]), int(source.causal[i])
        k, v = (
            _gather(x, pages, tokens).repeat_interleave(group, dim=0).to(q.dtype) for x in (k_pages, v_pages)
        )
        for j in range(int(source.query_count[i])):
            query, sees = int(source.query_start[i]) + j, tokens if causal < 0 else causal + j + 1
            scores[query].append(torch.einsum("hd,hnd->hn", q[query], k[:, :sees]) * source.spec.scale)
            values[query].append(v[:, :sees])
    out = torch.empty_like(q) if out is None else out
    for query in range(len(q)):
        out[query] = 0
        if scores[query]:
            weights = torch.cat(scores[query], dim=1).softmax(-1)
            out[query] = torch.einsum("hn,hnd->hd", weights, torch.cat(values[query], dim=1))
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, heads, D), cos and sin (T, D/2): pairs (i, i + D/2) turn by the angle of position and i."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


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
) -> Tensor:
    """qkv (T, (H + 2 G) D) -> q (T, H, D), and keys and values into their slots; -1 is not written."""
    _, kv_heads, page_size, size = k_pages.shape
    parts = [num_heads, kv_heads, kv_heads]
    q, k, v = torch.split(qkv.view(len(qkv), sum(parts), size), parts, dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], norms[2]), rms_norm(k, norms[1], norms[2])
    if angles is not None:
        cos, sin = (table[positions] for table in angles)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
    written = slots >= 0
    page, offset = slots[written] // page_size, slots[written] % page_size
    k_pages[page, :, offset] = k[written].to(k_pages.dtype)
    v_pages[page, :, offset] = v[written].to(v_pages.dtype)
    return q.contiguous()


def copy_pages(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """pool (N, P, G, S, D): whole pages of all N layers' keys and values, in place."""
    pool[:, targets] = pool[:, sources]


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def gelu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def logit_mask(logits: Tensor, mask: Tensor, rows: Tensor | None = None) -> None:
    """logits (R, V): -inf in place where bit j of word w of mask (M, W) int32, token 32 w + j, is not set."""
    bits = (mask[:, :, None] >> torch.arange(32, device=mask.device)) & 1
    is_forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    for m, row in enumerate(range(len(mask)) if rows is None else rows.tolist()):
        logits[row].masked_fill_(is_forbidden[m], -torch.inf)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    positions: Tensor,
    choices: Tensor,
) -> Tensor:
    """One token a row of logits (R, V) -> (R) int64, -1 where the largest logit is not finite."""
    columns = (temperature, top_k, top_p, min_p, keys, positions, choices)
    scores = [
        sample_scores(row, *values)
        for row, *values in zip(logits, *(column.tolist() for column in columns), strict=True)
    ]
    return torch.tensor([-1 if row is None else int(row.argmax()) for row in scores], device=logits.device)


def sample_scores(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    key: int,
    position: int,
    choice: int,
) -> Tensor | None:
    """What the sampled token of one row (V) is the first maximum of; -inf where it is filtered away."""
    most = logits.max()
    if not most.isfinite():
        return None
    if temperature == 0.0:
        return logits
    scaled = (logits - most) / temperature
    order = logits.sort(descending=True, stable=True).indices
    kept = order[:top_k] if top_k > 0 else order
    weights = scaled[kept].exp()
    before = weights.cumsum(0) - weights
    if top_p < 1.0:
        # The heaviest is kept however small the share is.
        kept = kept[(before < top_p * weights.sum()) | (torch.arange(len(kept)) == 0)]
    kept = kept[scaled[kept].exp() >= min_p]
    scores = torch.full_like(scaled, -torch.inf)
    scores[kept] = (scaled + gumbel(len(logits), key, position, choice).to(scaled.dtype))[kept]
    return scores


def gumbel(vocabulary: int, key: int, position: int, choice: int) -> Tensor:
    """The noise of each id (V) float64: -log(-log(1 - tail)), the tail of the id's word of Philox-4x32-10."""
    c = torch.arange((vocabulary + 3) // 4)
    a, b, d = (torch.full_like(c, word) for word in (position, choice, 0))
    low = (1 << 32) - 1
    left, right = key & low, (key >> 32) & low
    for _ in range(10):
        # Products that overflow 63 bits still have the right 64.
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (second >> 32 & low) ^ b ^ left, second & low
        c, d = (first >> 32 & low) ^ d ^ right, first & low
        left, right = (left + 0x9E3779B9) & low, (right + 0xBB67AE85) & low
    words = torch.stack((a, b, c, d), dim=1).flatten()[:vocabulary]
    # As a float32 has it, and no larger than 1 - tail can be told from 0.
    tails = (words.float() * 2.0**-32 + 2.0**-33).clamp(max=1 - 2.0**-24).double()
    return -(-torch.log1p(-tails)).log()
