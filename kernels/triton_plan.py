"""The attention plan of a step as Triton's kernels read it: one array of integers, moved at once.

Segments are cut into *items*: as many queries as one program takes, against all keys of the segment that they
see. Items of many queries (wide) and of few (narrow) are done by two launches of one kernel; those that read
most come first, so that programs end together. An output that only one item computes is written by it; other
items leave *partials*, numbered anew here so that no memory is taken for outputs that need none.

Kernels find everything from the header on, so one array may be filled with plan after plan (a recorded graph
reads what is in it now). Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .plan import AttentionPlan, Ints

WIDE_ROWS = 128
NARROW_ROWS = 16
"""(query, head of a group) pairs of an item; the heads of a query stay together."""

HEADER = 8
ITEM = 8


@dataclass(frozen=True, slots=True)
class PlanBuffer:
    """Memory that plans are put into one after the other: int32 words on a device, and so many partials."""

    words: Tensor
    num_partials: int


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """`source` for kernels that read `words` (int32), of which the other tensors are views.

    counts (8): wide items, narrow items, queries, records of merge, words of a record, the words at which
    pages and merge begin, 0. Items begin at word 8.
    items (N, 8), wide ones first: query_start, query_count, first page (an index into pages), kv_tokens (as
    many as its last query sees), causal (-1: no mask; c >= 0: local query j of the item sees the first
    c + j + 1), partial_start (partial of the first query; -1: no other item has its queries, so it writes
    outputs), kv_start, 0.
    pages (n).
    merge (queries with partials, 1 + levels): the query, then its partials in order of position, padded with
    -1. A query that no item has is listed too, without partials.
    partial_capacity: how many partials memory is taken for, num_partials or more.
    """

    source: AttentionPlan
    num_heads: int
    num_kv_heads: int
    words: Tensor
    counts: Tensor
    items: Tensor
    pages: Tensor
    merge: Tensor
    num_partials: int
    partial_capacity: int


def lower(
    plan: AttentionPlan,
    *,
    device: torch.device,
    num_heads: int,
    num_kv_heads: int,
    num_pages: int | None = None,
    into: PlanBuffer | None = None,
) -> TritonPlan:
    """The plan on `device`.

    num_pages: check that all pages are among so many. into: put the plan where an earlier one is, for kernels
    recorded with that. Raises ValueError on heads that cannot be grouped, a scale that is not positive, a
    page out of range, and a buffer that is too small, which then keeps what it has.
    """
    _check(plan, num_heads, num_kv_heads, num_pages)
    group = num_heads // num_kv_heads
    items, wide = _items(plan, WIDE_ROWS // group, NARROW_ROWS // group)
    merge, num_partials = _merge(plan, items)
    pages_at = HEADER + items.size
    merge_at = pages_at + plan.pages.size
    counts = [wide, len(items) - wide, plan.num_queries, *merge.shape, pages_at, merge_at, 0]
    parts = [np.array(counts, dtype=np.int32), items, plan.pages, merge]
    if into is not None:
        _check_room(into, merge_at + merge.size, num_partials)
    words = _upload(parts, device, None if into is None else into.words)
    return TritonPlan(
        source=plan,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        words=words,
        counts=words[:HEADER],
        items=words[HEADER:pages_at].view(-1, ITEM),
        pages=words[pages_at:merge_at],
        merge=words[merge_at : merge_at + merge.size].view(merge.shape),
        num_partials=num_partials,
        partial_capacity=num_partials if into is None else into.num_partials,
    )


def _check(plan: AttentionPlan, num_heads: int, num_kv_heads: int, num_pages: int | None) -> None:
    if num_kv_heads < 1 or num_heads % num_kv_heads or not 1 <= num_heads // num_kv_heads <= NARROW_ROWS:
        raise ValueError(
            f"num_heads must be 1 to {NARROW_ROWS} times num_kv_heads, got {num_heads} and {num_kv_heads}"
        )
    if not 0 < plan.spec.scale < float("inf"):
        raise ValueError(f"scale must be positive and finite, got {plan.spec.scale}")
    if num_pages is not None and plan.pages.size:
        wrong = plan.pages[(plan.pages < 0) | (plan.pages >= num_pages)]
        if wrong.size:
            raise ValueError(f"pages must be 0 to {num_pages - 1}, got {wrong[0]}")


def _check_room(buffer: PlanBuffer, words: int, partials: int) -> None:
    if words > len(buffer.words):
        raise ValueError(f"the plan takes {words} words, the buffer has {len(buffer.words)}")
    if partials > buffer.num_partials:
        raise ValueError(f"the plan has {partials} partials, the buffer is for {buffer.num_partials}")


def _items(plan: AttentionPlan, wide: int, narrow: int) -> tuple[Ints, int]:
    """(N, 8) and how many of them, the first ones, are wide. Their partials are those of the plan as yet.

    wide, narrow: queries of an item. A segment of more than `narrow` queries has wide items only.
    """
    is_wide = plan.query_count > narrow
    most = np.where(is_wide, wide, narrow)
    tiles = -(-plan.query_count // most)
    segment = np.repeat(np.arange(plan.num_segments), tiles)
    within = np.arange(len(segment)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    offset = within * most[segment]
    count = np.minimum(plan.query_count[segment] - offset, most[segment])
    causal = np.where(plan.causal[segment] < 0, -1, plan.causal[segment] + offset)
    tokens = plan.kv_tokens[segment]
    tokens = np.where(causal < 0, tokens, np.minimum(tokens, causal + count))
    items = np.zeros((len(segment), ITEM), dtype=np.int32)
    items[:, 0] = plan.query_start[segment] + offset
    items[:, 1] = count
    items[:, 2] = plan.page_start[segment]
    items[:, 3] = tokens
    items[:, 4] = causal
    items[:, 5] = plan.partial_start[segment] + offset
    items[:, 6] = plan.kv_start[segment]
    order = np.lexsort((-tokens, ~is_wide[segment]))
    return items[order], int(is_wide[segment].sum())


def _merge(plan: AttentionPlan, items: Ints) -> tuple[Ints, int]:
    """The records of queries with partials, and how many partials there are; items get their new numbers.

    An item leaves partials if any of its queries is in another item too; then all its queries do.
    """
    levels = (plan.merge >= 0).sum(axis=0)
    several = np.concatenate(([0], np.cumsum(levels != 1)))
    start, count = items[:, 0], items[:, 1]
    leaves = several[start + count] > several[start]
    total = int(count[leaves].sum())
    ends = np.cumsum(count[leaves])
    within = np.arange(total) - np.repeat(ends - count[leaves], count[leaves])
    number = np.full(plan.num_partials + 1, -1, dtype=np.int32)  # the last: of the padding
    number[np.repeat(items[leaves, 5], count[leaves]) + within] = np.arange(total)
    items[leaves, 5] = ends - count[leaves]
    items[~leaves, 5] = -1
    listed = levels == 0
    listed[np.repeat(start[leaves], count[leaves]) + within] = True
    queries = np.flatnonzero(listed).astype(np.int32)
    return np.column_stack((queries, number[plan.merge[:, queries].T])).astype(np.int32), total


def _upload(parts: Sequence[Ints], device: torch.device, into: Tensor | None) -> Tensor:
    """All of them as one tensor, in one copy; torch keeps pinned memory until the copy is done."""
    size = sum(part.size for part in parts)
    staged = torch.empty(size, dtype=torch.int32, pin_memory=device.type == "cuda")
    np.concatenate([part.reshape(-1) for part in parts], out=staged.numpy())
    if into is None:
        return staged.to(device, non_blocking=True)
    into[:size].copy_(staged, non_blocking=True)
    return into
