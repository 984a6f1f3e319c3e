"""Torch's flash attention for CPUs as a product of query rows and keys, and the tile that makes it steady.

The op returns the log-sum-exp beside the output. Underneath lies a matrix library that may sum a row in
another order when the matrix has another number of rows. With a tile every product has rows in multiples of
it, or exactly as many (`fixed`), and a row's bits are its own. Which tile does that on this processor is
found by trying, in `find_tile`, and never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

KEY_MULTIPLE = 16
"""Padded key counts are a multiple of this, a vector's width, so that padding never changes a sum's order."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of one product: multiples of `rows`, or products of exactly `rows` where `fixed`."""

    rows: int
    fixed: bool


def flash(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """q (B, G, rows, D) x keys (B, G, n, D) -> outputs (B, G, rows, D) and log-sum-exps (B, G, rows)."""
    if mask is not None:
        # Of q's dtype: the op reads a float32 mask of float64 queries as if it were float64.
        mask = mask.to(q.dtype).expand(q.shape[0], 1, q.shape[2], k.shape[2])
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = op(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


def product(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, tile: Tile | None
) -> tuple[Tensor, Tensor]:
    """As flash, with q (1 or B, G, rows, D) and rows a multiple of the tile's."""
    q = q.expand(k.shape[0], -1, -1, -1)
    if tile is None or not tile.fixed or q.shape[2] == tile.rows:
        return flash(q, k, v, mask, scale)
    return _tiled(q, k, v, mask, scale, tile.rows)


@cache
def find_tile(group: int, size: int, split: int, dtype: torch.dtype = torch.float32) -> Tile | None:
    """The cheapest tile with which this processor gives a query the same bits in any batch, or None.

    group: query heads a key head. size: head size. split: keys a product sees at most.
    """
    return next((tile for tile in _TILES if _holds(tile, group, size, split, dtype)), None)


_TILES = (Tile(4, False), Tile(8, False), Tile(16, False), Tile(16, True), Tile(12, True), Tile(24, True))
_ROWS = (1, 3, 17, 24, 33, 48, 100, 193, 800)
"""Row counts to try: the op works in blocks of 32, 64 (from 192 rows on) or 256 (from 768 on) and a rest."""


def _holds(tile: Tile, group: int, size: int, split: int, dtype: torch.dtype) -> bool:
    """Whether a row has the same bits at every place, among any number of rows, with any padding of keys."""
    generator = torch.Generator().manual_seed(0)
    probe, noise, k, v = (
        torch.randn(1, 2, rows, size, generator=generator).to(dtype)
        for rows in (1, max(_ROWS) + tile.rows, split, split)
    )
    counts = {-(-rows // tile.rows) * tile.rows for rows in (*_ROWS, split * group)}
    valid = min(13, split)
    wanted: tuple[Tensor, Tensor] | None = None
    for keys in sorted({min(KEY_MULTIPLE, split), min(3 * KEY_MULTIPLE, split), split}):
        hidden = torch.arange(keys) >= valid
        mask = torch.zeros(keys).masked_fill_(hidden, -torch.inf)[None, None, None]
        for rows in sorted(counts):
            q = noise[:, :, torch.arange(rows) % noise.shape[2]]
            places = sorted({0, tile.rows - 1, rows // 2, rows - 1})
            q[:, :, places] = probe
            out, lse = product(q, k[:, :, :keys], v[:, :, :keys], mask, 0.125, tile)
            for place in places:
                found = (out[:, :, place], lse[:, :, place])
                wanted = wanted or found
                if not all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)):
                    return False
    return True


def _tiled(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, tile: int
) -> tuple[Tensor, Tensor]:
    """As flash, as products of exactly `tile` rows."""
    batch, kv_heads, rows, size = q.shape
    tiles, keys = rows // tile, k.shape[2]
    q = q.reshape(batch, kv_heads, tiles, tile, size).transpose(1, 2).reshape(-1, kv_heads, tile, size)
    k, v = (x[:, None].expand(batch, tiles, *x.shape[1:]).flatten(0, 1) for x in (k, v))
    if mask is not None:
        mask = mask.expand(batch, 1, rows, keys).view(batch, 1, tiles, tile, keys).transpose(1, 2)
        mask = mask.reshape(-1, 1, tile, keys)
    out, lse = flash(q, k, v, mask, scale)
    out = out.reshape(batch, tiles, kv_heads, tile, size).transpose(1, 2).reshape(batch, kv_heads, rows, size)
    return out, lse.reshape(batch, tiles, kv_heads, tile).transpose(1, 2).reshape(batch, kv_heads, rows)
