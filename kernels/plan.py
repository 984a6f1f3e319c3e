"""The attention plan: which queries meet which pages, from nothing but block tables.

A step's rows are (block table, start, stop). Rows that share a page prefix stand next to each other
(order_rows), so the common prefix of neighbouring block tables gives the parts that several rows share;
the nested intervals of those common prefixes are the tree, forks and levels included. Every part becomes a
segment: contiguous queries x a run of pages, unmasked or causal. Each segment yields a partial output and
its log-sum-exp for each query; the merge table says which partials make up a query, in order of position.
Where programs work side by side, long segments are cut into pieces (pieces.py), which are segments too.

Nothing here knows the radix tree, tensors or a device, and order affects speed, never the result. The idea of
reading a shared prefix once for all rows follows Hydragen (Juravsky et al., 2024) and cascade attention
(FlashInfer); partials merge by online softmax as in split-KV decoding (Flash-Decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .pieces import Costs, Work, even_pieces

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


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
    workers: how many programs work side by side on one KV head; segments are cut into pieces, at multiples of
    align_tokens, until these have about the same work. 1: nothing is cut. queries_a_tile: how many queries of
    a segment one program takes at a time. costs: by which pieces are chosen. Both matter to workers only.
    """

    align_tokens: int = 64
    min_saved_tokens: int = 256
    workers: int = 1
    queries_a_tile: int = 16
    costs: Costs = field(default_factory=Costs)


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


@dataclass(frozen=True, slots=True)
class ReadTokens:
    """Keys that a plan reads for each KV head and layer: once a segment, and once a tile of queries."""

    once: int
    by_tile: int


def read_tokens(plan: AttentionPlan, queries_a_tile: int) -> ReadTokens:
    """What `plan` reads with tiles of so many queries, each leaving out what none of its queries sees."""
    work = Work(plan.query_count, plan.kv_tokens, plan.causal)
    _, _, tokens = work.tiles(queries_a_tile)
    return ReadTokens(once=int(plan.kv_tokens.sum()), by_tile=int(tokens.sum()))


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
    ragged input, an empty row or a table that is too short, and on options that make no sense.
    """
    _check_options(page_size, options)
    rows = _Rows.checked(tables, starts, stops, page_size)
    segments = _segments(rows, options)
    if options.workers > 1:
        segments = segments.even(page_size, options)
    partial_start = _offsets(segments.query_count)
    num_queries = int(rows.query_at[-1])
    return AttentionPlan(
        spec=spec,
        page_size=page_size,
        num_queries=num_queries,
        query_start=segments.query_start,
        query_count=segments.query_count,
        page_start=segments.page_start,
        pages=segments.pages,
        kv_tokens=segments.kv_tokens,
        kv_start=segments.kv_start,
        causal=segments.causal,
        partial_start=partial_start,
        merge=_merge_table(segments, partial_start, num_queries),
    )


def _check_options(page_size: int, options: PlanOptions) -> None:
    if options.align_tokens < 1 or options.align_tokens % page_size:
        raise ValueError(f"align_tokens must be a multiple of {page_size}, got {options.align_tokens}")
    if options.workers < 1 or options.queries_a_tile < 1:
        found = f"{options.workers} and {options.queries_a_tile}"
        raise ValueError(f"workers and queries_a_tile must be at least 1, got {found}")


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a step as arrays; query_at (rows + 1): where each one's queries begin."""

    tables: Sequence[Ints]
    starts: Longs
    stops: Longs
    query_at: Longs
    page_size: int

    @classmethod
    def checked(
        cls, tables: Sequence[Ints], starts: Sequence[int], stops: Sequence[int], page_size: int
    ) -> _Rows:
        if not len(tables) == len(starts) == len(stops):
            raise ValueError(f"got {len(tables)} tables, {len(starts)} starts, {len(stops)} stops")
        first, end = np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64)
        slots = np.array([len(table) for table in tables], dtype=np.int64) * page_size
        for i in np.flatnonzero((first < 0) | (first >= end) | (end > slots)).tolist():
            raise ValueError(
                f"row {i}: positions {starts[i]}..{stops[i]} do not fit a table of {slots[i]} slots"
            )
        query_at = np.zeros(len(tables) + 1, dtype=np.int64)
        np.cumsum(end - first, out=query_at[1:])
        return cls(tables, first, end, query_at, page_size)

    def shared_pages(self, at_a_time: int) -> list[int]:
        """For each pair of neighbours, how many leading pages both hold that lie wholly before both starts.

        Rounded down to a multiple of `at_a_time`.
        """
        whole = self.starts // self.page_size
        limit = np.minimum(whole[:-1], whole[1:])
        width = int(limit.max(initial=0))
        if width == 0:
            return [0] * len(limit)
        padded = np.full((len(self.tables), width + 1), -1, dtype=np.int32)
        for row, table in zip(padded, self.tables, strict=True):
            own = table[:width]
            row[: len(own)] = own
        differs = padded[:-1] != padded[1:]
        differs[:, width] = True
        common: list[int] = (np.minimum(differs.argmax(axis=1), limit) // at_a_time * at_a_time).tolist()
        return common


@dataclass(frozen=True, slots=True)
class _Segments:
    """The columns of a plan that say what is read; see AttentionPlan."""

    query_start: Ints
    query_count: Ints
    kv_start: Ints
    kv_tokens: Ints
    causal: Ints
    page_start: Ints
    pages: Ints

    def even(self, page_size: int, options: PlanOptions) -> _Segments:
        """The same with long segments in pieces. Cuts lie between pages, so the pages stay as they are."""
        work = Work(self.query_count, self.kv_tokens, self.causal)
        pieces = even_pieces(
            work,
            align=options.align_tokens,
            workers=options.workers,
            queries_a_tile=options.queries_a_tile,
            costs=options.costs,
        )
        if pieces is None:
            return self
        low = pieces.low.astype(np.int32)
        first_page = self.page_start[pieces.which] + low // page_size
        cut = pieces.work(work)
        return _Segments(
            query_start=self.query_start[pieces.which],
            query_count=cut.queries,
            kv_start=self.kv_start[pieces.which] + low,
            kv_tokens=cut.tokens,
            causal=cut.causal,
            page_start=np.append(first_page, self.page_start[-1:]),
            pages=self.pages,
        )


def _segments(rows: _Rows, options: PlanOptions) -> _Segments:
    """All parts of all rows: what several share, and of each row the rest, masked if it has several queries.

    A run of pages too short to pay is left to the parts that follow it. Parts are in order of their first
    query, then of position.
    """
    count, page_size = len(rows.tables), rows.page_size
    taken = [0] * count  # how many pages of each row lie in shared parts so far
    parts: list[tuple[int, int, int, int]] = []
    least = max(1, options.min_saved_tokens)
    for first, until, last in _groups(rows.shared_pages(options.align_tokens // page_size)):
        before = taken[first]
        if (until - before) * page_size * (last - first - 1) >= least:
            parts.append((first, last, before, until))
            taken[first:last] = [until] * (last - first)
    depth = np.array(taken, dtype=np.int64)
    shared = np.array(parts, dtype=np.int64).reshape(-1, 4)
    alone = np.arange(count)
    low, high = np.concatenate((shared[:, 0], alone)), np.concatenate((shared[:, 1], alone + 1))
    page, stop = np.concatenate((shared[:, 2:].T, (depth, rows.stops)), axis=1)
    stop[: len(parts)] *= page_size
    masked = np.where(rows.stops - rows.starts > 1, rows.starts - depth * page_size, -1)
    causal = np.concatenate((np.full(len(parts), -1), masked))
    order = np.lexsort((page, low))
    low, high, page, stop, causal = low[order], high[order], page[order], stop[order], causal[order]
    page_until = -(-stop // page_size)
    runs = zip(low.tolist(), page.tolist(), page_until.tolist(), strict=True)
    read = [rows.tables[row][begin:end] for row, begin, end in runs]
    return _Segments(
        query_start=rows.query_at[low].astype(np.int32),
        query_count=(rows.query_at[high] - rows.query_at[low]).astype(np.int32),
        kv_start=(page * page_size).astype(np.int32),
        kv_tokens=(stop - page * page_size).astype(np.int32),
        causal=causal.astype(np.int32),
        page_start=_offsets(page_until - page),
        pages=np.concatenate([np.empty(0, dtype=np.int32), *read]).astype(np.int32, copy=False),
    )


def _groups(shared: list[int]) -> list[tuple[int, int, int]]:
    """(low, pages, high): rows low..high-1 have so many pages in common. The nodes of a tree, parents first.

    shared[i]: how many rows i and i + 1 have in common.
    """
    found, open_groups = [], [(0, 0)]
    for i, common in enumerate([*shared, 0]):
        low = i
        while open_groups[-1][0] > common:
            pages, low = open_groups.pop()
            found.append((low, pages, i + 1))
        if common > open_groups[-1][0]:
            open_groups.append((common, low))
    return sorted(found)


def _offsets(counts: Ints | Longs) -> Ints:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _merge_table(segments: _Segments, partial_start: Ints, num_queries: int) -> Ints:
    """(levels, num_queries): each query's partials in order of position, padded with -1."""
    total = int(partial_start[-1])
    if total == 0:
        return np.empty((0, num_queries), dtype=np.int32)
    count = segments.query_count
    query = np.repeat(segments.query_start - partial_start[:-1], count) + np.arange(total, dtype=np.int32)
    order = np.lexsort((np.repeat(segments.kv_start, count), query)).astype(np.int32)
    partials = np.bincount(query, minlength=num_queries)
    first = np.cumsum(partials) - partials
    table = np.full((int(partials.max()), num_queries), -1, dtype=np.int32)
    sorted_query = query[order]
    table[np.arange(total) - first[sorted_query], sorted_query] = order
    return table
