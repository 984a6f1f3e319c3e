"""Tokens that a grammar forbids get a logit of -inf, in place.

    logits (R, V) float32, last stride 1     mask (M, W) int32, last stride 1, W at least V / 32, rounded up
    rows   (M) int64, or None                mask row m is for row rows[m] of logits; None: for row m, M = R

Bit j of word w of a mask row is token 32 w + j: set is allowed. Bits beyond V are ignored; the layout is that
of llguidance, xgrammar and outlines. An allowed logit is neither read nor written, so it stays what it is,
NaN and infinities too. Two mask rows for one row of logits both hold. No other dtypes. Nothing here waits for
the device, so rows are believed unless `debug` asks for them to be read and checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


# Each number has a bit of its own, so stores are of single numbers. If the stride were known to be a multiple
# of 16, a thread would get four numbers side by side, and a warp's stores would have gaps.
@triton.jit(do_not_specialize=["vocabulary", "row_stride", "mask_stride"])
def _logit_mask_kernel(  # type: ignore[no-untyped-def]
    logits,
    mask,
    rows,  # None: a mask row is for the row of its own number
    vocabulary,
    row_stride,
    mask_stride,
    WORDS: tl.constexpr,
):
    mask_row = tl.program_id(0).to(tl.int64)
    row = mask_row if rows is None else tl.load(rows + mask_row)
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = tl.arange(0, 32)
    has_tokens = words * 32 < vocabulary
    allowed = tl.load(mask + mask_row * mask_stride + words, mask=has_tokens, other=0)  # (WORDS)
    is_forbidden = ((allowed[:, None] >> bits[None, :]) & 1) == 0  # (WORDS, 32)
    ids = words[:, None] * 32 + bits[None, :]
    nothing = tl.full([WORDS, 32], -float("inf"), tl.float32)
    tl.store(logits + row * row_stride + ids, nothing, mask=is_forbidden & (ids < vocabulary))


@dataclass(frozen=True, slots=True)
class Tile:
    """words: of one mask row, looked at together, a power of two."""

    words: int
    warps: int


_TILE = Tile(words=64, warps=4)


def logit_mask(logits: Tensor, mask: Tensor, rows: Tensor | None = None, *, debug: bool = False) -> None:
    """Forbid in place. Raises ValueError for shapes and dtypes other than those above. debug: read `rows`,
    which waits for the device, and refuse what the logits have not."""
    if logits.dim() != 2 or logits.dtype != torch.float32 or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise ValueError(
            "logits must be (R, V) float32 with a last stride of 1, "
            f"got {tuple(logits.shape)} {logits.dtype} with strides {logits.stride()}"
        )
    vocabulary = logits.shape[1]
    words = triton.cdiv(vocabulary, 32)
    if (
        mask.dim() != 2
        or mask.dtype != torch.int32
        or mask.shape[1] < words
        or (words > 1 and mask.stride(1) != 1)
    ):
        raise ValueError(
            f"mask must be (M, {words} or more) int32 with a last stride of 1 for {vocabulary} tokens, "
            f"got {tuple(mask.shape)} {mask.dtype} with strides {mask.stride()}"
        )
    if rows is None and len(mask) != len(logits):
        raise ValueError(f"without rows there must be a mask row for each of {len(logits)}, got {len(mask)}")
    if rows is not None and (
        rows.shape != mask.shape[:1] or rows.dtype != torch.int64 or not rows.is_contiguous()
    ):
        raise ValueError(
            f"rows must be ({len(mask)}) int64 without gaps, got {tuple(rows.shape)} {rows.dtype}"
        )
    if debug and rows is not None and ((rows < 0) | (rows >= len(logits))).any():
        wrong = rows[(rows < 0) | (rows >= len(logits))][0]
        raise ValueError(f"rows must be from 0 to {len(logits) - 1}, got {int(wrong)}")
    if len(mask) and words:
        grid = (len(mask), triton.cdiv(words, _TILE.words))
        _logit_mask_kernel[grid](
            logits,
            mask,
            rows,
            vocabulary,
            logits.stride(0),
            mask.stride(0),
            WORDS=_TILE.words,
            num_warps=_TILE.warps,
        )
