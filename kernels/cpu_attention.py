"""Attention over the tree on a CPU: a plan's segments, level by level, each query's sums carried on.

A query reads its keys in blocks of BLOCK tokens at fixed positions and folds one after the other into a
running maximum, sum and output (online softmax, Milakov and Gimelshein, 2018). A segment shared by many
queries does so for all of them at once: the lanes of a vector are (query, head of the group) pairs, so keys
and values are read once for all. The next level, at last the query's own tail, takes the sums up where the
segment before it left them. What a query computes is therefore the same sequence of operations whatever it
shares with whom, and so are its bits. Shared segments must end at a multiple of BLOCK (PlanOptions).

Runs of pages that lie side by side in memory are read in place, others are gathered block by block. Items of
few lanes go another way to the same bits (cpu_few_lanes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cpu_few_lanes import fold_few, outputs_few, scores_few, scratch_few
from .cpu_fused import Empty
from .cpu_gemm import product
from .cpu_ir import (
    LANES,
    PANEL,
    copy_bytes,
    floats,
    halves,
    inner,
    load_int,
    prefetch,
    rows_at_once,
    words,
)
from .cpu_softmax import BLOCK, FEW, UNMASKED, softmax_block
from .cpu_team import Team, job
from .ops import PreparedPlan
from .plan import AttentionPlan

_LOG2E = 1.4426950408889634

Words = NDArray[np.int64]

# A segment, as int64 words: first query, queries, address of its pages, tokens, causal offset, whether it is
# the first one of its queries, whether it is the last. An item: segment, KV head, first lane, lanes.
_SEGMENT, _ITEM = 8, 4


@dataclass(slots=True)
class CpuPlan:
    """A plan as items of work; lowered once a step and used by every layer.

    levels: one array of items a level, to be worked on in this order. sums (num_queries * heads, 2) float32:
    the running maximum and sum of each query and head between levels. header: where compiled code finds them,
    as int64 words: segments, sums, scale, then items and their number for each level.
    """

    num_queries: int
    page_size: int
    pages: Words
    segments: Words
    levels: list[Words]
    scale: NDArray[np.float32]
    sums: NDArray[np.float32]
    header: Words = field(init=False)

    def __post_init__(self) -> None:
        found = [self.segments.ctypes.data, self.sums.ctypes.data, self.scale.ctypes.data]
        for items in self.levels:
            found += [items.ctypes.data, len(items)]
        self.header = np.array(found, dtype=np.int64)


class PlanSlot:
    """Stands for any plan of as many queries and levels as the first: recorded jobs read the one it holds."""

    def __init__(self, plan: CpuPlan) -> None:
        self.num_queries, self.page_size = plan.num_queries, plan.page_size
        self.levels = [None] * len(plan.levels)
        self.header = plan.header.copy()

    def set(self, plan: CpuPlan) -> None:
        self._plan: CpuPlan | None = plan  # its arrays are read until `clear`
        self.header[:] = plan.header

    def clear(self) -> None:
        self._plan = None


class CpuAttention:
    """`prepare` and `attend` of the op table."""

    def __init__(self, num_heads: int, num_kv_heads: int, team: Team, empty: Empty) -> None:
        self._heads, self._kv_heads, self._team, self._empty = num_heads, num_kv_heads, team, empty
        self._group = num_heads // num_kv_heads

    def prepare(self, plan: AttentionPlan) -> CpuPlan:
        pages = plan.pages.astype(np.int64)
        level, last = _levels(plan)
        segments = np.zeros((plan.num_segments, _SEGMENT), dtype=np.int64)
        segments[:, 0], segments[:, 1] = plan.query_start, plan.query_count
        segments[:, 2] = pages.ctypes.data + 8 * plan.page_start[:-1].astype(np.int64)
        segments[:, 3], segments[:, 4] = plan.kv_tokens, plan.causal
        segments[:, 5], segments[:, 6] = level == 0, last
        count = int(level.max(initial=-1)) + 1
        return CpuPlan(
            num_queries=plan.num_queries,
            page_size=plan.page_size,
            pages=pages,
            segments=segments,
            levels=[self._items(plan, np.flatnonzero(level == n)) for n in range(count)],
            scale=np.array([plan.spec.scale * _LOG2E], dtype=np.float32),
            sums=np.empty((plan.num_queries * self._heads, 2), dtype=np.float32),
        )

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: PreparedPlan) -> Tensor:
        """q (T, H, D) float32, pages (P, G, S, D) -> (T, H, D) float32.

        Raises ValueError if shapes, dtypes or the pages' strides do not fit the plan and one another.
        """
        assert isinstance(plan, CpuPlan | PlanSlot), "attend takes what prepare made"
        self._check(q, k_pages, v_pages, plan)
        bytes_each, size = k_pages.itemsize, k_pages.shape[3]
        out = self._empty(q.shape, torch.float32)
        header = plan.header.ctypes.data
        for level in range(len(plan.levels)):
            at = header + 8 * (3 + 2 * level)
            self._team.run(
                _JOBS[k_pages.dtype].address,
                -1,
                header,
                at,
                q.data_ptr(),
                q.stride(0),
                k_pages.data_ptr(),
                v_pages.data_ptr(),
                k_pages.stride(0) * bytes_each,
                k_pages.stride(1) * bytes_each,
                out.data_ptr(),
                self._group | self._kv_heads << 16 | plan.page_size << 32 | size << 48,
                count=at + 8,
            )
        return out

    def _items(self, plan: AttentionPlan, segments: NDArray[np.intp]) -> Words:
        """Every PANEL lanes of every KV head of these segments, the longest work first."""
        lanes = plan.query_count[segments].astype(np.int64) * self._group
        blocks = -(-lanes // PANEL)
        which = np.repeat(segments, blocks)
        first = (np.arange(len(which)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * PANEL
        count = np.minimum(np.repeat(lanes, blocks) - first, PANEL)
        tokens = plan.kv_tokens[which].astype(np.int64)
        seen = plan.causal[which] + (first + count - 1) // self._group + 1
        tokens = np.where(plan.causal[which] >= 0, np.minimum(tokens, seen), tokens)
        cost = np.where(count > LANES, 6, np.where(count > FEW, 3, 1))
        order = np.argsort(-tokens * cost, kind="stable")
        items = np.empty((len(which), self._kv_heads, _ITEM), dtype=np.int64)
        items[..., 0], items[..., 2], items[..., 3] = (x[order, None] for x in (which, first, count))
        items[..., 1] = np.arange(self._kv_heads)
        return items.reshape(-1, _ITEM)

    def _check(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: CpuPlan | PlanSlot) -> None:
        pages, _, _, size = k_pages.shape
        wanted = (plan.num_queries, self._heads, size)
        if q.shape != wanted:
            raise ValueError(f"the plan and the pages ask for q of shape {wanted}, got {tuple(q.shape)}")
        if k_pages.shape != (pages, self._kv_heads, plan.page_size, size):
            raise ValueError(
                f"the plan asks for pages of {self._kv_heads} heads and {plan.page_size} slots, "
                f"got shape {tuple(k_pages.shape)}"
            )
        if (k_pages.shape, k_pages.stride()) != (v_pages.shape, v_pages.stride()):
            raise ValueError("keys and values must have the same shape and strides")
        if q.dtype != torch.float32 or k_pages.dtype not in _JOBS or v_pages.dtype != k_pages.dtype:
            raise ValueError(
                f"q must be float32, keys and values of one dtype with up to 32 bits, got {q.dtype}, "
                f"{k_pages.dtype} and {v_pages.dtype}"
            )
        if k_pages.stride()[2:] != (size, 1) or q.stride()[1:] != (size, 1):
            raise ValueError(
                f"a page of a head and a query must be numbers in a row, got strides {k_pages.stride()} "
                f"and {q.stride()}"
            )


def _levels(plan: AttentionPlan) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many segments come before each one for its queries, and whether it is their last.

    All queries of a segment have the same ones before it, for groups of rows that share pages are nested.
    """
    level = np.zeros(plan.num_segments, dtype=np.int64)
    if not plan.num_queries:
        return level, np.zeros(plan.num_segments, dtype=bool)
    depth = (plan.merge >= 0).sum(axis=0)
    rows, queries = np.nonzero(plan.merge >= 0)
    segment_of = np.repeat(np.arange(plan.num_segments), plan.query_count)
    level[segment_of[plan.merge[rows, queries]]] = rows
    return level, level == depth[plan.query_start] - 1


@inner()
def _fold(keys_by_queries, values_by_weights, softmax, bytes_each, width, scratch, call, item):  # type: ignore[no-untyped-def]
    """Fold all keys of a segment into the sums of one item's queries. See CpuAttention.attend for the words.

    scratch is an array, not an address, so that it lives as long as this function runs.
    """
    work, segment = _work(call, item)
    head, lane, lanes = work[1], work[2], work[3]
    shape = load_int(call + 80)
    group, heads = shape & 0xFFFF, (shape & 0xFFFF) * (shape >> 16 & 0xFFFF)
    page_size, size = shape >> 32 & 0xFFFF, shape >> 48
    row_bytes = size * bytes_each
    query, causal = segment[0], segment[4]
    panel = scratch.ctypes.data
    sums = panel + 4 * size * width
    scores = sums + 4 * size * width
    peak = scores + 4 * BLOCK * width
    total, factors, seen, nothing = (
        peak + 4 * width,
        peak + 8 * width,
        peak + 12 * width,
        peak + 16 * width,
    )
    floats(nothing, width)[:] = 0
    _begin(call, segment, head, lane, lanes, width, panel, sums, peak, total, seen)

    stop = segment[3]
    if causal >= 0:
        stop = min(stop, causal + (lane + lanes - 1) // group + 1)
    pages = words(segment[2], (stop + page_size - 1) // page_size)
    first_key, first_value = load_int(call + 40), load_int(call + 48)
    page_bytes, head_bytes = load_int(call + 56), load_int(call + 64)
    side_by_side = page_bytes == page_size * row_bytes
    gathered = nothing + 4 * width
    for key in range(0, stop, BLOCK):
        n = min(BLOCK, stop - key)
        page = key // page_size
        count = (n + page_size - 1) // page_size
        in_place = count == 1 or side_by_side
        for i in range(page + 1, page + count):
            in_place = in_place and pages[i] == pages[i - 1] + 1
        keys = first_key + pages[page] * page_bytes + head * head_bytes
        values = first_value + pages[page] * page_bytes + head * head_bytes
        if not in_place:
            keys, values = gathered, gathered + BLOCK * row_bytes
            for i in range(count):
                at = pages[page + i] * page_bytes + head * head_bytes
                some = min(page_size, n - i * page_size) * row_bytes
                to = i * page_size * row_bytes
                copy_bytes(keys + to, first_key + at, some)
                copy_bytes(values + to, first_value + at, some)
        # The next block is fetched bit by bit while this one is worked on: all at once would fill the queue.
        ahead = 0
        following = pages[min(page + count, len(pages) - 1)] * page_bytes + head * head_bytes
        if key + BLOCK < stop:
            ahead = min(BLOCK, stop - key - BLOCK) * row_bytes
        low = 0
        while low < n:
            rows = rows_at_once(n - low)
            for line in range(low * row_bytes, min(ahead, (low + rows) * row_bytes), 64):
                prefetch(first_key + following + line)
            keys_by_queries(
                rows,
                keys + low * row_bytes,
                row_bytes,
                bytes_each,
                panel,
                size,
                nothing,
                scores + low * 4 * width,
                4 * width,
                panel,
                0,
            )
            low += rows
        softmax(scores, n, key, seen, peak, total, factors)
        low = 0
        while low < size:
            rows = rows_at_once(size - low)
            for line in range(ahead * low // size // 64 * 64, ahead * (low + rows) // size, 64):
                prefetch(first_value + following + line)
            values_by_weights(
                rows,
                values + low * bytes_each,
                bytes_each,
                row_bytes,
                scores,
                n,
                factors,
                sums + low * 4 * width,
                4 * width,
                scores,
                0,
            )
            low += rows

    state, target = load_int(load_int(call + 8) + 8), load_int(call + 72)
    for i in range(lanes):
        place = (query + (lane + i) // group) * heads + head * group + (lane + i) % group
        out, column = floats(target + 4 * place * size, size), floats(sums + 4 * i, size * width)
        share = np.float32(1)
        if segment[6]:
            share = np.float32(1) / floats(total, width)[i]
        else:
            kept = floats(state + 8 * place, 2)
            kept[0], kept[1] = floats(peak, width)[i], floats(total, width)[i]
        for d in range(size):
            out[d] = column[d * width] * share


@inner()
def _work(call, item):  # type: ignore[no-untyped-def]
    """The words of an item and of its segment."""
    work = words(load_int(load_int(call + 16)) + item * 8 * _ITEM, _ITEM)
    return work, words(load_int(load_int(call + 8)) + work[0] * 8 * _SEGMENT, _SEGMENT)


@inner()
def _begin(call, segment, head, lane, lanes, width, panel, sums, peak, total, seen):  # type: ignore[no-untyped-def]
    """Queries as a panel (D, lanes) of scores in units of log2, and the sums so far."""
    shape = load_int(call + 80)
    group, heads = shape & 0xFFFF, (shape & 0xFFFF) * (shape >> 16 & 0xFFFF)
    size = shape >> 48
    scale = floats(load_int(load_int(call + 8) + 16), 1)[0]
    source, source_row = load_int(call + 24), load_int(call + 32)
    queries, outputs = floats(panel, size * width), floats(sums, size * width)
    peaks, totals, limits = floats(peak, width), floats(total, width), halves(seen, width)
    outputs[:] = 0
    peaks[:] = -np.inf
    totals[:] = 0
    limits[:] = UNMASKED
    if lanes < width:
        queries[:] = 0
    for i in range(lanes):
        t, h = segment[0] + (lane + i) // group, head * group + (lane + i) % group
        x = floats(source + 4 * (t * source_row + h * size), size)
        for d in range(size):
            queries[d * width + i] = x[d] * scale
        if segment[4] >= 0:
            limits[i] = segment[4] + (lane + i) // group + 1
        if not segment[5]:
            place = t * heads + h
            kept = floats(load_int(load_int(call + 8) + 8) + 8 * place, 2)
            peaks[i], totals[i] = kept[0], kept[1]
            before = floats(load_int(call + 72) + 4 * place * size, size)
            for d in range(size):
                outputs[d * width + i] = before[d]


_softmax_1, _softmax_2 = softmax_block(1), softmax_block(2)
_scores_1 = product(1, rows="float32", panel="float32", init="bias")
_scores_2 = product(2, rows="float32", panel="float32", init="bias")
_outputs_1 = product(1, rows="float32", panel="float32", init="scaled")
_outputs_2 = product(2, rows="float32", panel="float32", init="scaled")
_scores_few, _outputs_few = scores_few("float32"), outputs_few("float32")
_bfloat16_scores_1 = product(1, rows="bfloat16", panel="float32", init="bias")
_bfloat16_scores_2 = product(2, rows="bfloat16", panel="float32", init="bias")
_bfloat16_outputs_1 = product(1, rows="bfloat16", panel="float32", init="scaled")
_bfloat16_outputs_2 = product(2, rows="bfloat16", panel="float32", init="scaled")
_bfloat16_scores_few, _bfloat16_outputs_few = scores_few("bfloat16"), outputs_few("bfloat16")
_float16_scores_1 = product(1, rows="float16", panel="float32", init="bias")
_float16_scores_2 = product(2, rows="float16", panel="float32", init="bias")
_float16_outputs_1 = product(1, rows="float16", panel="float32", init="scaled")
_float16_outputs_2 = product(2, rows="float16", panel="float32", init="scaled")
_float16_scores_few, _float16_outputs_few = scores_few("float16"), outputs_few("float16")


@inner()
def _scratch(call, vectors):  # type: ignore[no-untyped-def]
    size, width = load_int(call + 80) >> 48, vectors * LANES
    return np.empty((2 * size + BLOCK + 5) * width + 2 * BLOCK * size, dtype=np.float32)


@inner()
def _vectors(call, item):  # type: ignore[no-untyped-def]
    """How many vectors the lanes of an item fill; 0 if they are few and vectors run along keys instead."""
    lanes = load_int(load_int(load_int(call + 16)) + item * 8 * _ITEM + 24)
    if lanes <= FEW and (load_int(call + 80) >> 48) % LANES == 0:
        return 0
    return 2 if lanes > LANES else 1


@job
def _float32_job(call, item):  # type: ignore[no-untyped-def]
    vectors = _vectors(call, item)
    if vectors == 2:
        _fold(_scores_2, _outputs_2, _softmax_2, 4, PANEL, _scratch(call, 2), call, item)
    elif vectors == 1:
        _fold(_scores_1, _outputs_1, _softmax_1, 4, LANES, _scratch(call, 1), call, item)
    else:
        fold_few(_scores_few, _outputs_few, 4, scratch_few(call), call, *_work(call, item))


@job
def _bfloat16_job(call, item):  # type: ignore[no-untyped-def]
    vectors = _vectors(call, item)
    if vectors == 2:
        _fold(_bfloat16_scores_2, _bfloat16_outputs_2, _softmax_2, 2, PANEL, _scratch(call, 2), call, item)
    elif vectors == 1:
        _fold(_bfloat16_scores_1, _bfloat16_outputs_1, _softmax_1, 2, LANES, _scratch(call, 1), call, item)
    else:
        fold_few(_bfloat16_scores_few, _bfloat16_outputs_few, 2, scratch_few(call), call, *_work(call, item))


@job
def _float16_job(call, item):  # type: ignore[no-untyped-def]
    vectors = _vectors(call, item)
    if vectors == 2:
        _fold(_float16_scores_2, _float16_outputs_2, _softmax_2, 2, PANEL, _scratch(call, 2), call, item)
    elif vectors == 1:
        _fold(_float16_scores_1, _float16_outputs_1, _softmax_1, 2, LANES, _scratch(call, 1), call, item)
    else:
        fold_few(_float16_scores_few, _float16_outputs_few, 2, scratch_few(call), call, *_work(call, item))


_JOBS = {torch.float32: _float32_job, torch.bfloat16: _bfloat16_job, torch.float16: _float16_job}
