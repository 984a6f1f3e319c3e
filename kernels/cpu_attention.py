"""Attention over the tree on a CPU: a plan's segments as few calls of one exact op, then one merge.

Queries of a group of heads that share a key head are folded into the rows of one product (cpu_flash.py), so
a shared segment is one product for all its rows. Segments of equal shape run as one batch; tails of
different lengths are padded and masked.

With a tile, every product has rows in multiples of it, and keys come in splits at fixed positions: then a
query's bits do not depend on what it is batched with. What must hold: a plan with split_tokens for a tile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import cpu_fused
from .cpu_flash import KEY_MULTIPLE, Tile, flash, product
from .cpu_fused import Index
from .ops import PreparedPlan
from .plan import AttentionPlan, Ints

FEW_SLOTS = 2048
"""Up to so many gathered slots one thread is faster than waking another."""
PADDING_LIMIT = 1.3
"""Tails share a batch while padding costs at most this factor in key reads."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the op: `batch` items of `count` queries each over `keys` slots each.

    queries: a slice where all items have the same queries (they are then expanded), else (batch * count)
    indices. pages (batch, pages). tokens (batch): how many of an item's keys count, the rest being padding.
    mask (batch or 1, 1, rows or 1, keys) or None. causal: a square without a mask. segments (batch): which of
    the plan each item is.
    """

    count: int
    batch: int
    queries: slice | Tensor
    pages: Ints
    keys: int
    tokens: Ints
    segments: NDArray[np.intp]
    mask: Tensor | None = None
    causal: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a call's keys and values lie: `index` (batch, G, pages) in the rows of `_page_rows`, flat as
    `page_rows`; how many slots of an item count, and which gathered slots are padding."""

    index: Index
    tokens: Index
    page_rows: Tensor
    padding: Tensor | None


@dataclass(slots=True)
class CpuPlan:
    """A plan as calls, for one grouping of heads; lowered once a step and used by every layer.

    Partials are numbered in the order in which the calls make them. merge (levels, num_queries): the partials
    of each query, -1 standing for none; None where the partials are the outputs.
    sources: one a call, for pages of `layout`; found at the first layer.
    """

    scale: float
    page_size: int
    num_queries: int
    num_partials: int
    calls: list[_Call]
    merge: Index | None
    layout: tuple[int, int] | None = None
    sources: tuple[_Source, ...] = ()


class CpuAttention:
    """`prepare` and `attend` of the op table. `tile` None: bits may depend on batch mates, values do not."""

    def __init__(self, num_heads: int, num_kv_heads: int, tile: Tile | None) -> None:
        self._kv_heads = num_kv_heads
        self._group = num_heads // num_kv_heads
        self._tile = tile

    def prepare(self, plan: AttentionPlan) -> CpuPlan:
        calls = [*_whole_calls(plan), *_masked_calls(plan, self._group, self._tile), *_tail_calls(plan)]
        merge = _merge_index(plan, calls)
        return CpuPlan(plan.spec.scale, plan.page_size, plan.num_queries, plan.num_partials, calls, merge)

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: PreparedPlan) -> Tensor:
        """q (T, H, D), pages (P, G, S, D) -> (T, H, D), all of one dtype.

        Raises ValueError if shapes, dtypes or the pages' strides do not fit the plan and one another.
        """
        assert isinstance(plan, CpuPlan), "attend takes what prepare made"
        self._check(q, k_pages, v_pages, plan)
        _locate(plan, k_pages)
        keys, values = _page_rows(k_pages), _page_rows(v_pages)
        heads = (self._kv_heads, self._group)
        out = q.new_empty(plan.num_partials, *heads, q.shape[2])
        lse = q.new_empty(plan.num_partials, *heads, dtype=torch.promote_types(q.dtype, torch.float32))
        first = 0
        for call, source in zip(plan.calls, plan.sources, strict=True):
            k, v = _gather(keys, values, call, source)
            run = self._run_causal if call.causal else self._run
            last = first + call.batch * call.count
            shape = (call.batch, call.count, *heads)
            run(call, q, k, v, plan.scale, out[first:last].view(*shape, -1), lse[first:last].view(shape))
            first = last
        out = out.view(-1, *q.shape[1:])
        return out if plan.merge is None else _merge(out, lse.view(out.shape[:2]), plan.merge)

    def _check(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: CpuPlan) -> None:
        pages, _, _, size = k_pages.shape
        wanted = (plan.num_queries, self._kv_heads * self._group, size)
        if q.shape != wanted:
            raise ValueError(f"the plan and the pages ask for q of shape {wanted}, got {tuple(q.shape)}")
        if k_pages.shape != (pages, self._kv_heads, plan.page_size, size):
            raise ValueError(
                f"the plan asks for pages of {self._kv_heads} heads and {plan.page_size} slots, "
                f"got shape {tuple(k_pages.shape)}"
            )
        if (k_pages.shape, k_pages.stride()) != (v_pages.shape, v_pages.stride()):
            raise ValueError("keys and values must have the same shape and strides")
        if not q.dtype == k_pages.dtype == v_pages.dtype:
            raise ValueError(
                f"q, keys and values must have one dtype, got {q.dtype}, {k_pages.dtype} and {v_pages.dtype}"
            )

    def _run(
        self, call: _Call, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor, lse: Tensor
    ) -> None:
        """Fill `out` (batch, count, G, group, D) and `lse` (batch, count, G, group)."""
        kv_heads, group, size = self._kv_heads, self._group, q.shape[2]
        rows = call.count * group
        folded = q[call.queries].view(-1, call.count, kv_heads, group, size).permute(0, 2, 1, 3, 4)
        folded = folded.reshape(-1, kv_heads, rows, size)
        missing = -rows % self._tile.rows if self._tile is not None else 0
        if missing:
            folded = torch.nn.functional.pad(folded, (0, 0, 0, missing))
        o, s = product(folded, k, v, call.mask, scale, self._tile)
        shape = (call.batch, kv_heads, call.count, group)
        out.copy_(o[:, :, :rows].view(*shape, size).transpose(1, 2))
        lse.copy_(s[:, :, :rows].view(shape).transpose(1, 2))

    def _run_causal(
        self, call: _Call, q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor, lse: Tensor
    ) -> None:
        """As _run, for a square: the heads of a group are a batch, for the op masks by row."""
        by_head = q[call.queries].view(call.count, self._kv_heads, self._group, -1).permute(1, 2, 0, 3)
        k, v = (x.transpose(0, 1).expand(-1, self._group, -1, -1) for x in (k, v))
        o, s = flash(by_head, k, v, None, scale, causal=True)
        out[0].copy_(o.permute(2, 0, 1, 3))
        lse[0].copy_(s.permute(2, 0, 1))


def _merge(out: Tensor, lse: Tensor, index: Index) -> Tensor:
    """Combine each query's partials, first to last; sums in the precision of the log-sum-exps."""
    merged = out.new_empty((index.shape[1], *out.shape[1:]), dtype=lse.dtype)
    cpu_fused.merge(out.to(lse.dtype).numpy(), lse.numpy(), index, merged.numpy())
    return merged.to(out.dtype)


def _merge_index(plan: AttentionPlan, calls: Sequence[_Call]) -> Index | None:
    """The plan's merge table in the numbers of the calls' partials; None where it would change nothing."""
    number = np.full(plan.num_partials + 1, -1, dtype=np.int64)  # the last stands for no partial
    first = 0
    for call in calls:
        starts = plan.partial_start[call.segments].astype(np.int64)
        places = first + np.arange(call.batch * call.count).reshape(call.batch, call.count)
        number[starts[:, None] + np.arange(call.count)] = places
        first += call.batch * call.count
    index: Index = number[plan.merge]
    if not len(index) or (len(index) == 1 and bool((index[0] == np.arange(plan.num_queries)).all())):
        return None
    return index


def _page_rows(pages: Tensor) -> Tensor:
    """Pages as (rows, S, D), one row for each (page, head), in the order of memory."""
    count, heads, slots, size = pages.shape
    row = slots * size
    last = (count - 1) * pages.stride(0) + (heads - 1) * pages.stride(1)
    return pages.as_strided((last // row + 1, slots, size), (row, size, 1), pages.storage_offset())


def _locate(plan: CpuPlan, pages: Tensor) -> None:
    """Find each call's sources: all layers have one layout, so this is done once a step."""
    heads, slots, size = pages.shape[1:]
    strides, row = pages.stride(), slots * size
    if strides[2:] != (size, 1) or strides[0] % row or strides[1] % row:
        raise ValueError(f"a page of a head must be {slots} x {size} numbers in a row, got strides {strides}")
    layout = (strides[0] // row, strides[1] // row)
    if plan.layout != layout:
        plan.sources = tuple(_source(call, layout, heads, slots) for call in plan.calls)
        plan.layout = layout


def _source(call: _Call, layout: tuple[int, int], heads: int, page_size: int) -> _Source:
    a_page, a_head = layout
    rows = call.pages.astype(np.int64)[:, None, :] * a_page + np.arange(heads)[None, :, None] * a_head
    slots = call.pages.shape[1] * page_size
    item, slot = np.nonzero(np.arange(slots) >= call.tokens[:, None])
    padding = (item[:, None] * heads + np.arange(heads)) * slots + slot[:, None]
    return _Source(
        index=rows,
        tokens=call.tokens.astype(np.int64),
        page_rows=torch.from_numpy(rows.reshape(-1)),
        padding=torch.from_numpy(padding.reshape(-1)) if len(item) else None,
    )


def _gather(keys: Tensor, values: Tensor, call: _Call, source: _Source) -> tuple[Tensor, Tensor]:
    """The call's keys and values (B, G, n, D), padding zeroed. Large ones are worth two threads."""
    batch, heads, pages = source.index.shape
    page_size, size = keys.shape[1:]
    slots = pages * page_size
    if keys.dtype == torch.float32 and batch * slots <= FEW_SLOTS:
        k, v = (keys.new_empty(batch, heads, slots, size) for _ in range(2))
        cpu_fused.gather_pages(
            keys.numpy(), values.numpy(), source.index, source.tokens, k.numpy(), v.numpy()
        )
    else:
        k, v = (rows.index_select(0, source.page_rows) for rows in (keys, values))
        if source.padding is not None:
            for gathered in (k, v):
                gathered.view(-1, size).index_fill_(0, source.padding, 0.0)
        k, v = (gathered.view(batch, heads, slots, size) for gathered in (k, v))
    return k[:, :, : call.keys], v[:, :, : call.keys]


def _whole_calls(plan: AttentionPlan) -> Iterable[_Call]:
    """Unmasked segments of several queries: equal shapes over the same queries are one call."""
    alike: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for i in np.flatnonzero((plan.query_count > 1) & (plan.causal < 0)):
        shape = (int(plan.query_start[i]), int(plan.query_count[i]), int(plan.kv_tokens[i]))
        alike[shape].append(int(i))
    for (start, count, tokens), segments in alike.items():
        yield _Call(
            count=count,
            batch=len(segments),
            queries=slice(start, start + count),
            pages=np.stack([_pages(plan, i, tokens) for i in segments]),
            keys=tokens,
            tokens=plan.kv_tokens[segments],
            segments=np.array(segments),
        )


def _masked_calls(plan: AttentionPlan, group: int, tile: Tile | None) -> Iterable[_Call]:
    """Causal segments of several queries: one call each."""
    for i in np.flatnonzero((plan.query_count > 1) & (plan.causal >= 0)):
        start, count = int(plan.query_start[i]), int(plan.query_count[i])
        tokens, causal = int(plan.kv_tokens[i]), int(plan.causal[i])
        is_square = tile is None and tokens == count
        keys = tokens if is_square else _padded(tokens)
        yield _Call(
            count=count,
            batch=1,
            queries=slice(start, start + count),
            pages=_pages(plan, i, keys)[None],
            keys=keys,
            tokens=plan.kv_tokens[i : i + 1],
            segments=np.array([i]),
            mask=None if is_square else _causal_mask(count, group, causal, keys, tile),
            causal=is_square,
        )


def _tail_calls(plan: AttentionPlan) -> Iterable[_Call]:
    """Segments of one query, longest first, cut into batches where padding would cost too much."""
    single = np.flatnonzero(plan.query_count == 1)
    order = single[np.argsort(-plan.kv_tokens[single], kind="stable")]
    while len(order):
        longest = _padded(int(plan.kv_tokens[order[0]]))
        padded_sum = np.arange(1, len(order) + 1) * longest
        real_sum = np.cumsum(np.maximum(plan.kv_tokens[order], KEY_MULTIPLE))
        fits = np.flatnonzero(padded_sum <= np.maximum(real_sum * PADDING_LIMIT, 8 * longest))
        batch = int(fits[-1]) + 1
        yield _tail_call(plan, np.sort(order[:batch]), longest)
        order = order[batch:]


def _tail_call(plan: AttentionPlan, segments: NDArray[np.intp], keys: int) -> _Call:
    tokens = plan.kv_tokens[segments]
    mask = None
    if int(tokens.min()) < keys:
        mask = _hide(torch.arange(keys) >= torch.from_numpy(tokens)[:, None])[:, None, None]
    return _Call(
        count=1,
        batch=len(segments),
        queries=_queries(plan.query_start[segments]),
        pages=np.stack([_pages(plan, i, keys) for i in segments]),
        keys=keys,
        tokens=tokens,
        segments=segments,
        mask=mask,
    )


def _pages(plan: AttentionPlan, segment: int | np.intp, keys: int) -> Ints:
    """The segment's pages, the last one repeated until there are `keys` slots: the rest is padding."""
    run: Ints = plan.pages[plan.page_start[segment] : plan.page_start[segment + 1]]
    missing = -(-keys // plan.page_size) - len(run)
    return np.concatenate((run, np.full(missing, run[-1], dtype=np.int32))) if missing > 0 else run


def _padded(tokens: int) -> int:
    return -(-tokens // KEY_MULTIPLE) * KEY_MULTIPLE


def _causal_mask(count: int, group: int, causal: int, keys: int, tile: Tile | None) -> Tensor:
    """(1, 1, rows, keys): the `group` rows of query j see causal + j + 1 keys, those that fill a tile all."""
    seen = torch.arange(causal + 1, causal + count + 1).repeat_interleave(group)
    missing = -len(seen) % tile.rows if tile is not None else 0
    seen = torch.cat((seen, seen.new_full((missing,), keys)))
    return _hide(torch.arange(keys) >= seen[:, None])[None, None]


def _hide(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _queries(numbers: Ints) -> slice | Tensor:
    """A slice where the queries follow one another, else their indices."""
    first = int(numbers[0])
    if np.array_equal(numbers, np.arange(first, first + len(numbers))):
        return slice(first, first + len(numbers))
    return torch.from_numpy(numbers.astype(np.int64))
