"""The attention plan: which queries meet which pages, from nothing but block tables.

A step's rows are (block table, start, stop). Rows that share a page prefix stand next to each other
(order_rows), so the common prefix of neighbouring block tables gives the parts that several rows share;
the nested intervals of those common prefixes are the tree, forks and levels included. Every part becomes a
segment: contiguous queries x a run of pages, unmasked or causal. Each segment yields a partial output and
its log-sum-exp for each query; the merge table says which partials make up a query, in order of position.

Nothing here knows the radix tree, tensors or a device, and order affects speed, never the result. The idea of
reading a shared prefix once for all rows follows Hydragen (Juravsky et al., 2024) and cascade attention
(FlashInfer); partials merge by online softmax as in split-KV decoding (Flash-Decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What kind of attention a plan is for: softmax(scale * q k^T) v over all earlier positions."""

    scale: float


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How parts are cut.

    align_tokens: shared parts end at multiples of this position (a multiple of the page size); what they
    leave joins the tails. min_saved_tokens: a shared run must spare at least so many key reads, or it joins
    the tails: one more partial costs about as much on a CPU as reading that many keys.
    """

    align_tokens: int = 64
    min_saved_tokens: int = 256


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """N segments over num_queries queries; all arrays are int32.

    query_start, query_count (N): the contiguous queries of a segment, in the step's query order.
    page_start (N + 1), pages: segment i reads pages[page_start[i]:page_start[i + 1]], from the first slot on.
    kv_tokens (N): how many tokens of those pages count. kv_start (N): position of the first one.
    causal (N): -1: every query sees all kv_tokens; c >= 0: local query j sees the first c + j + 1 of them.
    partial_start (N + 1): segment i's partials are numbered from partial_start[i], one a query.
    merge (levels, num_queries): partial numbers of each query in order of position, padded with -1.
    """

    spec: AttentionSpec
    page_size: int
    num_queries: int
    query_start: Ints
    query_count: Ints
    page_start: Ints
    pages: Ints
    kv_tokens: Ints
    kv_start: Ints
    causal: Ints
    partial_start: Ints
    merge: Ints

    @property
    def num_segments(self) -> int:
        return len(self.query_start)

    @property
    def num_partials(self) -> int:
        return int(self.partial_start[-1])


def order_rows(tables: Sequence[Sequence[int]]) -> list[int]:
    """The order in which rows that share pages are neighbours: by block table."""
    return sorted(range(len(tables)), key=lambda i: tuple(tables[i]))


def build_plan(
    tables: Sequence[Ints],
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    page_size: int,
    spec: AttentionSpec,
    options: PlanOptions,
) -> AttentionPlan:
    """The plan of rows that compute positions starts[i]..stops[i]-1 over block tables[i], in this order.

    Row i's queries follow those of row i - 1. A table covers at least stops[i] slots. Raises ValueError on
    ragged input, an empty row or a table that is too short.
    """
    _check(tables, starts, stops, page_size, options)
    cut = _Cut(tables, starts, stops, page_size, options)
    if tables:
        cut.all_rows(_shared_pages(tables, starts, page_size))
    return cut.finish(spec)


def _check(
    tables: Sequence[Ints], starts: Sequence[int], stops: Sequence[int], page_size: int, options: PlanOptions
) -> None:
    if not len(tables) == len(starts) == len(stops):
        raise ValueError(f"got {len(tables)} tables, {len(starts)} starts, {len(stops)} stops")
    if options.align_tokens < 1 or options.align_tokens % page_size:
        raise ValueError(f"align_tokens must be a multiple of {page_size}, got {options.align_tokens}")
    for i, (table, start, stop) in enumerate(zip(tables, starts, stops, strict=True)):
        if not 0 <= start < stop <= len(table) * page_size:
            slots = len(table) * page_size
            raise ValueError(f"row {i}: positions {start}..{stop} do not fit a table of {slots} slots")


def _shared_pages(tables: Sequence[Ints], starts: Sequence[int], page_size: int) -> list[int]:
    """For each pair of neighbours, how many leading pages both hold that lie wholly before both starts."""
    if len(tables) == 1:
        return []
    whole = np.array(starts, dtype=np.int64) // page_size
    limit = np.minimum(whole[:-1], whole[1:])
    width = int(limit.max())
    if width == 0:
        return [0] * (len(tables) - 1)
    padded = np.full((len(tables), width + 1), -1, dtype=np.int32)
    for i, table in enumerate(tables):
        padded[i, : min(width, len(table))] = table[:width]
    differs = padded[:-1] != padded[1:]
    differs[:, width] = True
    common = np.minimum(differs.argmax(axis=1), limit)
    return [int(n) for n in common]


class _Cut:
    """Collects the segments of one plan, walking the nested intervals of shared pages."""

    def __init__(
        self,
        tables: Sequence[Ints],
        starts: Sequence[int],
        stops: Sequence[int],
        page_size: int,
        options: PlanOptions,
    ) -> None:
        self.tables, self.starts, self.stops = tables, starts, stops
        self.page_size, self.options = page_size, options
        self.query_at = [0]
        for start, stop in zip(starts, stops, strict=True):
            self.query_at.append(self.query_at[-1] + stop - start)
        self.segments: list[tuple[int, int, int, int, int]] = []
        self.page_runs: list[Ints] = []

    def all_rows(self, shared: list[int]) -> None:
        """Cut every row; shared[i] is how many pages rows i and i + 1 have in common.

        A group's first `depth` pages are behind it. A run too short to pay keeps `depth`, so the groups below
        it take its pages along.
        """
        work = [(0, len(self.tables), 0)]
        while work:
            low, high, depth = work.pop()
            if high - low == 1:
                self._tail(low, depth)
                continue
            common = min(shared[low : high - 1])
            until = self._paying(high - low, depth, common)
            if until > depth:
                first, last = self.query_at[low], self.query_at[high]
                self._segment(first, last, self.tables[low], depth, until * self.page_size, -1)
            bounds = [low, *(i + 1 for i in range(low, high - 1) if shared[i] == common), high]
            work.extend((bounds[i], bounds[i + 1], until) for i in reversed(range(len(bounds) - 1)))

    def _paying(self, rows: int, depth: int, common: int) -> int:
        """Up to which page a shared segment of so many rows should go: `depth` if none pays."""
        pages = self.options.align_tokens // self.page_size
        common = common // pages * pages
        saved = (common - depth) * self.page_size * (rows - 1)
        return common if common > depth and saved >= self.options.min_saved_tokens else depth

    def _tail(self, row: int, depth: int) -> None:
        """All that one row does not share, in one masked segment."""
        start, stop = self.starts[row], self.stops[row]
        causal = -1 if stop - start == 1 else start - depth * self.page_size
        first, last = self.query_at[row], self.query_at[row + 1]
        self._segment(first, last, self.tables[row], depth, stop, causal)

    def _segment(self, first: int, last: int, table: Ints, page: int, stop: int, causal: int) -> None:
        """Queries first..last-1 against positions page * page_size .. stop-1 of `table`."""
        low = page * self.page_size
        self.segments.append((first, last - first, stop - low, low, causal))
        self.page_runs.append(table[page : -(-stop // self.page_size)])

    def finish(self, spec: AttentionSpec) -> AttentionPlan:
        columns = np.array(self.segments, dtype=np.int32).reshape(-1, 5).T
        query_start, query_count, kv_tokens, kv_start, causal = (np.ascontiguousarray(c) for c in columns)
        partial_start = _offsets(query_count)
        return AttentionPlan(
            spec=spec,
            page_size=self.page_size,
            num_queries=self.query_at[-1],
            query_start=query_start,
            query_count=query_count,
            page_start=_offsets(np.array([len(run) for run in self.page_runs], dtype=np.int32)),
            pages=np.concatenate([np.empty(0, dtype=np.int32), *self.page_runs]).astype(np.int32),
            kv_tokens=kv_tokens,
            kv_start=kv_start,
            causal=causal,
            partial_start=partial_start,
            merge=_merge_table(query_start, query_count, kv_start, partial_start, self.query_at[-1]),
        )


def _offsets(counts: Ints) -> Ints:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _merge_table(
    query_start: Ints, query_count: Ints, kv_start: Ints, partial_start: Ints, num_queries: int
) -> Ints:
    """(levels, num_queries): each query's partials in order of position, padded with -1."""
    total = int(partial_start[-1])
    if total == 0:
        return np.empty((0, num_queries), dtype=np.int32)
    within = np.arange(total, dtype=np.int32) - np.repeat(partial_start[:-1], query_count)
    query = np.repeat(query_start, query_count) + within
    order = np.lexsort((np.repeat(kv_start, query_count), query)).astype(np.int32)
    counts = np.bincount(query, minlength=num_queries)
    first = np.zeros(num_queries, dtype=np.int64)
    np.cumsum(counts[:-1], out=first[1:])
    table = np.full((int(counts.max()), num_queries), -1, dtype=np.int32)
    sorted_query = query[order]
    table[np.arange(total) - first[sorted_query], sorted_query] = order
    return table
