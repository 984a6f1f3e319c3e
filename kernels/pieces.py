"""Into how many pieces long segments are cut, so that programs working side by side have even work.

One item of work is a tile of queries against one segment; what it costs is counted in keys read (Costs). A
handful of lengths is tried, those with which the work fills whole rounds of all workers; for each the time is
worked out that workers need who take the longest items first, and the longest pieces win that come close to
the best time. Whole numbers all the way: the same segments give the same pieces on every machine.

A piece is a segment of its own, seen by all queries of the one it was cut from. A causal segment is therefore
cut only before the position of its first query: its last piece keeps the mask, those before it need none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

_ROUNDS = 4
"""Lengths are tried with which all work is up to so many rounds of all workers."""
_LARGE = 8
"""Items below an average worker's work divided by this fill gaps: they are not placed one by one."""
_EVEN = 16
"""Nothing is cut to save less than one part of the time in so many."""
_WORTH = 32
"""Shorter pieces must save one part of the time in so many."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost table, in key tokens read by one tile of queries, and bounds.

    item: what it takes to start an item: queries fetched, the first pages awaited.
    partial: to write one query's partial and to read it again in the merge (on a GPU with four query heads a
    KV head: 4 KB in float32, as much as eight keys and values in bfloat16).
    least_tokens: pieces are not made shorter than this, but for what is left at the end of a segment.
    most_pieces: of one segment; the merge reads each of them.
    """

    item: int = 64
    partial: int = 8
    least_tokens: int = 256
    most_pieces: int = 128

    def __post_init__(self) -> None:
        if min(self.item, self.partial) < 0 or min(self.least_tokens, self.most_pieces) < 1:
            raise ValueError(f"costs must be at least 0 and bounds at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class Work:
    """Segments as far as their cost goes: how many queries, how many keys, causal as in AttentionPlan."""

    queries: Ints
    tokens: Ints
    causal: Ints

    def tiles(self, queries_a_tile: int) -> tuple[Longs, Longs, Longs]:
        """For each tile of queries, segment by segment: its segment, its queries, the keys it reads."""
        count = -(-self.queries.astype(np.int64) // queries_a_tile)
        which = np.repeat(np.arange(len(count)), count)
        first = (np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)) * queries_a_tile
        queries = np.minimum(self.queries[which] - first, queries_a_tile)
        tokens, causal = self.tokens[which].astype(np.int64), self.causal[which]
        return which, queries, np.where(causal < 0, tokens, causal + first + queries)


@dataclass(frozen=True, slots=True)
class Pieces:
    """For each piece its segment, and which of the segment's tokens it has: low..high-1; in order."""

    which: Longs
    low: Longs
    high: Longs

    def work(self, whole: Work) -> Work:
        """The pieces as segments: the mask stays with the last piece of each."""
        last = self.high == whole.tokens[self.which]
        masked = last & (whole.causal[self.which] >= 0)
        causal = np.where(masked, whole.causal[self.which] - self.low, -1).astype(np.int32)
        return Work(whole.queries[self.which], (self.high - self.low).astype(np.int32), causal)


def even_pieces(work: Work, *, align: int, workers: int, queries_a_tile: int, costs: Costs) -> Pieces | None:
    """The pieces that `workers` programs are soonest done with; None if nothing should be cut.

    A piece begins at a multiple of `align` tokens of its segment.
    """
    which, queries, tokens = work.tiles(queries_a_tile)
    overhead = queries * costs.partial + costs.item
    uncut = overhead + tokens
    if _is_even(uncut, workers):
        return None
    longest, total = int(work.tokens.max()), int(tokens.sum())
    choices: list[_Cuts | None] = [None]
    items = [uncut]
    for rounds in range(1, _ROUNDS + 1):
        parts = rounds * max(longest * workers, total) // total
        cuts = _Cuts.of(work, -(-longest // parts), align, costs)
        choices.append(cuts)
        items.append(cuts.items(which, overhead, tokens))
    times = _times(items, workers)
    chosen = choices[int(np.argmax(times * _WORTH <= times.min() * (_WORTH + 1)))]
    return None if chosen is None else chosen.pieces(work)


@dataclass(frozen=True, slots=True)
class _Cuts:
    """How often each segment is cut, how long its pieces are, and where the last one begins."""

    count: Longs
    each: Longs
    last: Longs

    @classmethod
    def of(cls, work: Work, length: int, align: int, costs: Costs) -> _Cuts:
        """Pieces of up to `length` tokens, rounded up; longer only where a bound or a mask asks for it."""
        tokens = work.tokens.astype(np.int64)
        most = np.minimum(-(-tokens // (-(-length // align) * align)), tokens // costs.least_tokens)
        most = np.clip(most, 1, costs.most_pieces)
        each = -(-tokens // (most * align)) * align
        # No cut lies beyond `until`. Where a mask ends the cuts early, the last of them may come sooner.
        masked = work.causal >= 0
        until = np.where(masked, work.causal, tokens - 1) // align * align
        count = until // each + (masked & (until % each >= costs.least_tokens))
        count = np.minimum(count, most - 1)
        return cls(count, each, np.minimum(count * each, until))

    def items(self, which: Longs, overhead: Longs, tokens: Longs) -> Longs:
        """What the tiles of all pieces cost, given the tiles of the segments; those before the last alike."""
        count, last = self.count[which], self.last[which]
        before = np.repeat(overhead + last // np.maximum(count, 1), count)
        return np.concatenate((before, overhead + tokens - last))

    def pieces(self, work: Work) -> Pieces:
        ends = np.cumsum(self.count + 1)
        which = np.repeat(np.arange(len(ends)), self.count + 1)
        number = np.arange(len(which)) - (ends - self.count - 1)[which]
        low = np.minimum(number * self.each[which], self.last[which])
        high = np.append(low[1:], 0)
        high[ends - 1] = work.tokens
        return Pieces(which, low, high)


def _is_even(items: Longs, workers: int) -> bool:
    """Whether cutting could save no more than one part of the time in _EVEN."""
    total, longest = int(items.sum()), int(items.max(initial=0))
    # Whoever just takes what comes next is late by one item at most.
    if longest * workers * _EVEN <= total:
        return True
    return int(_times([items], workers)[0]) * workers * _EVEN <= total * (_EVEN + 1)


def _times(items: list[Longs], workers: int) -> Longs:
    """For each list of items when the last worker is done, if the one with least to do takes the longest."""
    average = [-(-int(one.sum()) // workers) for one in items]
    rounds = min(-(-max(len(one) for one in items) // workers), _LARGE)
    table = np.zeros((len(items), rounds * workers), dtype=np.int64)
    for row, one in zip(table, items, strict=True):
        longest = np.sort(one)[::-1][: len(row)]
        row[: len(longest)] = longest
    busy = np.zeros((len(items), workers), dtype=np.int64)
    for first in range(0, rounds * workers, workers):
        busy.sort(axis=1)
        busy += table[:, first : first + workers]
    times: Longs = np.maximum(busy.max(axis=1), average)
    return times
