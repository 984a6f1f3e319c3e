"""Attention over the tree: out = sum over all items and their keys of softmax(scale * q k^T) v.

    q, out    (T, H, D)     float32, bfloat16 or float16   heads side by side, rows a multiple of 8 apart
    k_pages   (P, G, S, D)  the dtype of q                 slots side by side; strides of pages and heads are
    v_pages   (P, G, S, D)  the dtype of q                 multiples of 8, and the same for both
    plan      TritonPlan    int32                          which queries meet which pages, and what is merged

Two launches of one kernel compute the plan's wide and narrow items for each KV head: a tile of rows, each a
query and a head of the group, folds keys, a block at a time, into a running maximum, sum and output (softmax
in base 2, float32). Items that share queries leave normalised outputs and the logarithms of their weights, in
float32, and a third launch merges them. A row without a key, or beyond the plan's queries, becomes 0.
Programs take items by the counts they find in the plan: grids depend on the device and on T, nothing waits.
Not supported: D above 256 or no multiple of 8, more than 16 heads a group, a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_plan import NARROW_ROWS, WIDE_ROWS, TritonPlan

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _fold(  # type: ignore[no-untyped-def]
    acc,  # (BLOCK_M, PADDED): running output, to be divided by total
    top,  # (BLOCK_M): running maximum of scores, in base 2
    total,  # (BLOCK_M): running sum of weights
    q,  # (BLOCK_M, PADDED)
    k_ptr,
    v_ptr,
    pages_ptr,  # the item's first page
    sees,  # (BLOCK_M): how many of the item's keys each row sees
    begin,
    tokens,  # how many keys the tile reads
    scale,
    page_eighths,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Keys begin..begin + BLOCK_N - 1; not MASKED: all are there and every row sees them."""
    key = begin + tl.arange(0, BLOCK_N)
    size = tl.arange(0, PADDED)
    if MASKED:
        there = key < tokens
        page = tl.load(pages_ptr + key // PAGE, mask=there, other=0).to(tl.int64)  # (BLOCK_N)
    else:
        page = tl.load(pages_ptr + key // PAGE).to(tl.int64)
    offset = page * page_eighths * 8 + (key % PAGE) * HEAD_DIM
    where = offset[:, None] + size[None, :]
    if MASKED:
        inside = there[:, None] & (size < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + where, mask=inside, other=0.0)  # (BLOCK_N, PADDED)
        v = tl.load(v_ptr + where, mask=inside, other=0.0)
    elif PADDED > HEAD_DIM:
        inside = (size < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + where, mask=inside, other=0.0)
        v = tl.load(v_ptr + where, mask=inside, other=0.0)
    else:
        k = tl.load(k_ptr + where)
        v = tl.load(v_ptr + where)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
    if MASKED:
        scores = tl.where(key[None, :] < sees[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    # A row that has seen no key has no maximum to be measured from.
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores * scale - base[:, None])
    kept = tl.exp2(top - base)
    total = total * kept + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit(do_not_specialize=["q_eighths", "out_eighths", "page_eighths", "head_eighths"])
def _tree_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    partial_ptr,  # (partials, H, D) float32
    weight_ptr,  # (partials, H) float32: logarithms, base 2
    plan_ptr,
    scale,  # times log2(e)
    q_eighths: tl.int64,  # strides over 8: so the compiler sees that rows begin at whole 16 bytes
    out_eighths: tl.int64,
    page_eighths: tl.int64,
    head_eighths: tl.int64,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,  # HEAD_DIM, up to a power of two
    PAGE: tl.constexpr,
    KIND: tl.constexpr,  # which items: 0 wide, 1 narrow
    ITEM_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    TILE: tl.constexpr = BLOCK_M // GROUP
    TILES: tl.constexpr = (ITEM_ROWS // GROUP + TILE - 1) // TILE
    kv_head = tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1) * GROUP
    k_ptr += kv_head * head_eighths * 8
    v_ptr += kv_head * head_eighths * 8
    pages_at = tl.load(plan_ptr + 5)
    items_ptr = plan_ptr + 8
    if KIND == 1:
        items_ptr += tl.load(plan_ptr).to(tl.int64) * 8
    row = tl.arange(0, BLOCK_M)
    size = tl.arange(0, PADDED)
    units = tl.load(plan_ptr + KIND) * TILES
    # Offsets within a tile are the same for all items: kept in registers from one to the next, they cost 60.
    for unit in tl.range(tl.program_id(0), units, tl.num_programs(0), disable_licm=True):
        item_ptr = items_ptr + unit // TILES * 8
        local = unit % TILES * TILE
        query_start = tl.load(item_ptr).to(tl.int64)
        query_count = tl.load(item_ptr + 1)
        first_page = tl.load(item_ptr + 2)
        tokens = tl.load(item_ptr + 3)
        causal = tl.load(item_ptr + 4)
        partial_start = tl.load(item_ptr + 5).to(tl.int64)

        # What lies far apart is added to pointers in 64 bits, what is within a tile in 32.
        query = row // GROUP
        head = row % GROUP
        valid = (query < TILE) & (local + query < query_count)
        cell = valid[:, None] & (size < HEAD_DIM)[None, :]
        first_query = query_start + local
        q_tile = q_ptr + first_query * q_eighths * 8 + kv_head * (GROUP * HEAD_DIM)
        at = query * q_eighths.to(tl.int32) * 8 + head * HEAD_DIM
        q = tl.load(q_tile + (at[:, None] + size[None, :]), mask=cell, other=0.0)  # (BLOCK_M, PADDED)

        # Of a causal item's keys the first query sees the fewest, and the last query the most.
        last = tl.minimum(local + TILE, query_count)
        tokens = tl.minimum(tokens, tl.where(causal < 0, tokens, causal + last))
        tokens = tl.where(local < query_count, tokens, 0)
        sees = tl.where(causal < 0, tokens, tl.minimum(tokens, causal + 1 + local + query))
        acc = tl.zeros((BLOCK_M, PADDED), tl.float32)
        top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        unmasked = 0
        if KIND == 0:
            common = tl.where(causal < 0, tokens, tl.minimum(tokens, causal + local + 1))
            unmasked = common // BLOCK_N * BLOCK_N
            for begin in range(0, unmasked, BLOCK_N):
                acc, top, total = _fold(
                    acc, top, total, q, k_ptr, v_ptr, plan_ptr + pages_at + first_page, sees, begin, tokens,
                    scale, page_eighths, HEAD_DIM, PADDED, PAGE, BLOCK_N, False,
                )  # fmt: skip
        for begin in range(unmasked, tokens, BLOCK_N):
            acc, top, total = _fold(
                acc, top, total, q, k_ptr, v_ptr, plan_ptr + pages_at + first_page, sees, begin, tokens,
                scale, page_eighths, HEAD_DIM, PADDED, PAGE, BLOCK_N, True,
            )  # fmt: skip

        divisor = tl.where(total > 0, total, 1.0)
        acc = acc / divisor[:, None]
        if partial_start < 0:
            out_tile = out_ptr + first_query * out_eighths * 8 + kv_head * (GROUP * HEAD_DIM)
            at = query * out_eighths.to(tl.int32) * 8 + head * HEAD_DIM
            tl.store(out_tile + (at[:, None] + size[None, :]), acc.to(out_ptr.dtype.element_ty), mask=cell)
        else:
            first = (partial_start + local) * num_heads + kv_head * GROUP
            at = query * num_heads + head
            tl.store(
                partial_ptr + first * HEAD_DIM + (at[:, None] * HEAD_DIM + size[None, :]), acc, mask=cell
            )
            tl.store(weight_ptr + first + at, top + tl.log2(divisor), mask=valid)


@triton.jit(do_not_specialize=["total_queries", "out_eighths"])
def _merge_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,
    weight_ptr,
    out_ptr,
    plan_ptr,
    total_queries,  # T, of which those beyond the plan's become 0
    out_eighths: tl.int64,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    LEVELS: tl.constexpr,  # partials read side by side
):
    head = tl.program_id(1).to(tl.int64)
    num_heads = tl.num_programs(1).to(tl.int64)
    num_queries = tl.load(plan_ptr + 2)
    records = tl.load(plan_ptr + 3)
    width = tl.load(plan_ptr + 4).to(tl.int64)
    merge_ptr = plan_ptr + tl.load(plan_ptr + 6)
    size = tl.arange(0, PADDED)
    for i in range(tl.program_id(0), records + total_queries - num_queries, tl.num_programs(0)):
        levels = tl.where(i < records, width - 1, 0)
        record_ptr = merge_ptr + i * width
        query = tl.load(record_ptr, mask=i < records, other=0)
        query = tl.where(i < records, query, num_queries + i - records).to(tl.int64)
        acc = tl.zeros((PADDED,), tl.float32)
        top = float("-inf")
        total = 0.0
        for first in range(0, levels, LEVELS):
            level = first + tl.arange(0, LEVELS)
            partial = tl.load(record_ptr + 1 + level, mask=level < levels, other=-1).to(tl.int64)  # (LEVELS)
            at = partial * num_heads + head
            weight = tl.load(weight_ptr + at, mask=partial >= 0, other=float("-inf"))
            cell = (partial >= 0)[:, None] & (size < HEAD_DIM)[None, :]
            part = tl.load(partial_ptr + (at * HEAD_DIM)[:, None] + size[None, :], mask=cell, other=0.0)
            new_top = tl.maximum(top, tl.max(weight, 0))
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            share = tl.exp2(weight - base)
            kept = tl.exp2(top - base)
            total = total * kept + tl.sum(share, 0)
            acc = acc * kept + tl.sum(share[:, None] * part, 0)  # (PADDED)
            top = new_top
        acc = acc / tl.where(total > 0, total, 1.0)
        at = query * out_eighths * 8 + head * HEAD_DIM + size
        tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=size < HEAD_DIM)


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and keys of a tile, its warps and stages, and how many programs a multiprocessor runs at once."""

    block_m: int
    block_n: int
    warps: int
    stages: int
    programs: int


_TILES = {
    # (architecture, padded head size at most): tiles of wide and of narrow items, bfloat16 and float16
    (80, 64): (Tile(128, 64, 8, 5, 1), Tile(16, 64, 4, 5, 4)),
    (80, 128): (Tile(128, 32, 8, 5, 1), Tile(16, 64, 4, 3, 3)),
    (80, 256): (Tile(64, 32, 8, 3, 1), Tile(16, 32, 8, 5, 2)),
    (90, 64): (Tile(128, 64, 8, 5, 2), Tile(16, 64, 4, 5, 4)),
    (90, 128): (Tile(128, 64, 8, 5, 1), Tile(16, 64, 4, 5, 3)),
    (90, 256): (Tile(64, 32, 8, 3, 1), Tile(16, 32, 4, 5, 2)),
    (100, 64): (Tile(128, 64, 8, 5, 1), Tile(16, 64, 4, 5, 4)),
    (100, 128): (Tile(128, 64, 8, 5, 1), Tile(16, 64, 4, 5, 3)),
    (100, 256): (Tile(64, 32, 8, 3, 1), Tile(16, 32, 4, 5, 2)),
}
"""Page indices are one load further from the products than keys: of five stages, two are blocks of keys."""
_FLOAT32 = Tile(16, 16, 4, 3, 3)
"""Of both kinds: exact products of float32 go without matrix units, and larger tiles out of registers."""
_INTERPRETED = (Tile(64, 32, 1, 1, 2), Tile(16, 64, 1, 1, 3))
_MERGE_LEVELS, _MERGE_WARPS, _MERGE_PROGRAMS = 8, 2, 24
"""Partials of a query read at once, warps, and programs a multiprocessor."""


def _tile_for(arch: int, dtype: torch.dtype, padded: int) -> tuple[Tile, Tile]:
    """The tiles of wide and of narrow items. arch: 80, 90 and so on; 0 is the interpreter."""
    if arch == 0:
        return _INTERPRETED
    if dtype == torch.float32:
        return _FLOAT32, _FLOAT32
    # From 120 on there are graphics cards, with the shared memory of 86 and 89.
    known = 100 if 100 <= arch < 120 else 90 if 90 <= arch < 100 else 80
    return _TILES[known, max(padded, 64)]


@cache
def _machine(device: torch.device) -> tuple[int, int]:
    """Architecture and number of multiprocessors."""
    if device.type != "cuda":
        return 0, 1
    properties = torch.cuda.get_device_properties(device)
    return properties.major * 10 + properties.minor, properties.multi_processor_count


def programs_for(
    device: torch.device, dtype: torch.dtype, head_dim: int, num_kv_heads: int
) -> tuple[int, int]:
    """How many programs work side by side on one KV head's wide items, and on its narrow ones."""
    arch, processors = _machine(device)
    wide, narrow = _tile_for(arch, dtype, _padded(head_dim))
    return -(-processors * wide.programs // num_kv_heads), -(-processors * narrow.programs // num_kv_heads)


def _padded(head_dim: int) -> int:
    return max(16, int(triton.next_power_of_2(head_dim)))


def tree_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: TritonPlan, out: Tensor | None = None
) -> Tensor:
    """(T, H, D) in q's dtype, into `out` if there is one. Raises ValueError on what the plan does not fit."""
    _check_pages(q, k_pages, v_pages, plan)
    _check_rows("q", q)
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    elif out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
        raise ValueError(
            f"out must be {q.dtype} of shape {tuple(q.shape)} on {q.device} as q is, "
            f"got {out.dtype} of shape {tuple(out.shape)} on {out.device}"
        )
    _check_rows("out", out)
    num_queries, num_heads, head_dim = q.shape
    if num_queries == 0:
        return out
    padded = _padded(head_dim)
    arch, processors = _machine(q.device)
    programs_of = programs_for(q.device, q.dtype, head_dim, plan.num_kv_heads)
    partials = q.new_empty((plan.partial_capacity, num_heads, head_dim), dtype=torch.float32)
    weights = q.new_empty((plan.partial_capacity, num_heads), dtype=torch.float32)
    for kind, tile in enumerate(_tile_for(arch, q.dtype, padded)):
        _tree_attention_kernel[(programs_of[kind], plan.num_kv_heads)](
            q,
            k_pages,
            v_pages,
            out,
            partials,
            weights,
            plan.words,
            plan.source.spec.scale * math.log2(math.e),
            q.stride(0) // 8,
            out.stride(0) // 8,
            k_pages.stride(0) // 8,
            k_pages.stride(1) // 8,
            GROUP=num_heads // plan.num_kv_heads,
            HEAD_DIM=head_dim,
            PADDED=padded,
            PAGE=plan.source.page_size,
            KIND=kind,
            ITEM_ROWS=NARROW_ROWS if kind else WIDE_ROWS,
            BLOCK_M=tile.block_m,
            BLOCK_N=tile.block_n,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    programs = min(num_queries, -(-processors * _MERGE_PROGRAMS // num_heads))
    _merge_kernel[(programs, num_heads)](
        partials,
        weights,
        out,
        plan.words,
        num_queries,
        out.stride(0) // 8,
        HEAD_DIM=head_dim,
        PADDED=padded,
        LEVELS=_MERGE_LEVELS,
        num_warps=_MERGE_WARPS,
    )
    return out


def _check_rows(name: str, x: Tensor) -> None:
    row, head, number = x.stride()
    if (head, number) != (x.shape[2], 1) or row % 8 or not 0 <= row < 2**24:
        raise ValueError(
            f"{name} must have its heads side by side and rows a multiple of 8 below 2**24 apart, "
            f"got strides {x.stride()}"
        )


def _check_pages(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: TritonPlan) -> None:
    if q.dtype not in _DTYPES or k_pages.dtype != q.dtype or v_pages.dtype != q.dtype:
        raise ValueError(
            "q, k_pages and v_pages must be of one dtype, float32, bfloat16 or float16, "
            f"got {q.dtype}, {k_pages.dtype} and {v_pages.dtype}"
        )
    queries, heads = plan.source.num_queries, plan.num_heads
    if q.dim() != 3 or q.shape[0] < queries or q.shape[1] != heads:
        raise ValueError(f"q must have shape (at least {queries}, {heads}, D), got {tuple(q.shape)}")
    if q.shape[2] % 8 or not 8 <= q.shape[2] <= 256:
        raise ValueError(f"D must be a multiple of 8 from 8 to 256, got {q.shape[2]}")
    wanted = (plan.num_kv_heads, plan.source.page_size, q.shape[2])
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        if pages.dim() != 4 or pages.shape[1:] != wanted:
            raise ValueError(
                f"{name} must have shape (P, {', '.join(map(str, wanted))}), got {tuple(pages.shape)}"
            )
    strides = k_pages.stride()
    if v_pages.stride() != strides or strides[2:] != (q.shape[2], 1) or strides[0] % 8 or strides[1] % 8:
        raise ValueError(
            "k_pages and v_pages must have equal strides, slots and their numbers side by side, and pages "
            f"and heads multiples of 8 apart, got {strides} and {v_pages.stride()}"
        )
    if not q.device == k_pages.device == v_pages.device == plan.words.device:
        raise ValueError(
            "q, k_pages, v_pages and the plan must be on one device, "
            f"got {q.device}, {k_pages.device}, {v_pages.device} and {plan.words.device}"
        )
