"""Ragged rows over shuffled pages, pools in which all that must not be read is NaN, and how exact is exact.

A `Spec` says what a row shares with an earlier one and what it computes; `grow` makes block tables of specs.
Queries are kept for whole rows, so that a row can be computed whole, in chunks, alone or among others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.ops import PreparedPlan
from radixlm.kernels.plan import AttentionPlan, AttentionSpec, PlanOptions, build_plan, order_rows
from radixlm.kernels.reference import attend_rows


class Attention(Protocol):
    """Any value with the two attention ops of the op table."""

    @property
    def prepare(self) -> Callable[[AttentionPlan], PreparedPlan]: ...

    @property
    def attend(self) -> Callable[[Tensor, Tensor, Tensor, PreparedPlan], Tensor]: ...


@dataclass(frozen=True, slots=True)
class Spec:
    """A row that ends at `stop`, computes its last `new` tokens and has `shared` pages of row `parent`.

    It shares no more than the pages that the parent fills and that lie within the row.
    """

    stop: int
    new: int
    parent: int = -1
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that compute positions starts[i]..stops[i]-1 over tables[i]; pages are 0..num_pages-1."""

    page_size: int
    num_pages: int
    tables: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    def take(self, order: Sequence[int]) -> Rows:
        return replace(
            self,
            tables=tuple(self.tables[i] for i in order),
            starts=tuple(self.starts[i] for i in order),
            stops=tuple(self.stops[i] for i in order),
        )

    def plan(self, options: PlanOptions, scale: float) -> AttentionPlan:
        """The plan of the rows in this order."""
        return build_plan(
            [np.array(table, dtype=np.int32) for table in self.tables],
            self.starts,
            self.stops,
            page_size=self.page_size,
            spec=AttentionSpec(scale),
            options=options,
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """Keys and values, both (P, G, S, D)."""

    keys: Tensor
    values: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> Pool:
        return Pool(change(self.keys), change(self.values))


def grow(page_size: int, specs: Sequence[Spec], seed: int = 0) -> Rows:
    """Block tables over pages in shuffled order. A few pages belong to nobody."""
    most = sum(-(-spec.stop // page_size) for spec in specs) + 3
    free = random.Random(seed).sample(range(most), most)
    tables: list[tuple[int, ...]] = []
    for spec in specs:
        table: tuple[int, ...] = ()
        if spec.parent >= 0:
            parent = specs[spec.parent]
            table = tables[spec.parent][: min(spec.shared, parent.stop // page_size, spec.stop // page_size)]
        fresh = -(-spec.stop // page_size) - len(table)
        tables.append(table + tuple(free.pop() for _ in range(fresh)))
    stops = tuple(spec.stop for spec in specs)
    return Rows(page_size, most, tuple(tables), tuple(spec.stop - spec.new for spec in specs), stops)


def fill(rows: Rows, kv_heads: int, size: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Pool:
    """Normal keys and values in the slots the rows use, NaN in all others; pages of a head lie together."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, kv_heads, rows.num_pages, rows.page_size, size)
    storage = torch.randn(shape, generator=generator)
    used = torch.zeros(rows.num_pages, rows.page_size, dtype=torch.bool)
    for table, stop in zip(rows.tables, rows.stops, strict=True):
        for i in range(stop):
            used[table[i // rows.page_size], i % rows.page_size] = True
    storage.masked_fill_(~used[None, None, :, :, None], torch.nan)
    keys, values = storage.to(dtype).permute(0, 2, 1, 3, 4)
    return Pool(keys, values)


def private(rows: Rows, pool: Pool, page_size: int, seed: int = 0) -> tuple[Rows, Pool]:
    """The same rows with copies of their own of all they see, in shuffled pages of `page_size` slots.

    All else is NaN.
    """
    moved = replace(
        grow(page_size, [Spec(stop, 1) for stop in rows.stops], seed), starts=rows.starts, stops=rows.stops
    )
    _, kv_heads, _, size = pool.keys.shape
    storage = torch.full((2, kv_heads, moved.num_pages, page_size, size), torch.nan, dtype=pool.keys.dtype)
    copied = Pool(*storage.permute(0, 2, 1, 3, 4))
    for before, after, stop in zip(rows.tables, moved.tables, rows.stops, strict=True):
        position = torch.arange(stop)
        old, new = (
            torch.tensor(table)[position // one.page_size] for table, one in ((before, rows), (after, moved))
        )
        for source, target in ((pool.keys, copied.keys), (pool.values, copied.values)):
            target[new, :, position % page_size] = source[old, :, position % rows.page_size]
    return moved, copied


def make_queries(rows: Rows, heads: int, size: int, *, seed: int = 1) -> list[Tensor]:
    """For each row (stop, H, D), one query a position. With normal keys scores have a deviation of about 1;
    every fifth query is twelve times as long, so that one key outweighs all others."""
    generator = torch.Generator().manual_seed(seed)
    queries = [torch.randn(stop, heads, size, generator=generator) for stop in rows.stops]
    for one in queries:
        one[2::5] *= 12
    return queries


def attend(
    attention: Attention,
    options: PlanOptions,
    rows: Rows,
    pool: Pool,
    queries: Sequence[Tensor],
    order: Sequence[int] | None = None,
) -> list[Tensor]:
    """Each row's outputs (new tokens, H, D), the rows computed as one step, in `order` or by block table."""
    order = order_rows(rows.tables) if order is None else order
    chosen = rows.take(order)
    spans = [(rows.starts[i], rows.stops[i]) for i in order]
    q = torch.cat([queries[i][start:stop] for i, (start, stop) in zip(order, spans, strict=True)])
    plan = chosen.plan(options, q.shape[2] ** -0.5)
    out = attention.attend(q, pool.keys, pool.values, attention.prepare(plan))
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    by_row = dict(zip(order, _split(out, spans), strict=True))
    return [by_row[i] for i in range(len(order))]


def reference(
    rows: Rows, pool: Pool, queries: Sequence[Tensor], dtype: torch.dtype, scale: float | None = None
) -> list[Tensor]:
    """The same from the reference, in the precision of `dtype`."""
    spans = list(zip(rows.starts, rows.stops, strict=True))
    q = torch.cat([one[start:stop] for one, (start, stop) in zip(queries, spans, strict=True)]).to(dtype)
    pool = pool.map(lambda pages: pages.to(dtype))
    scale = q.shape[2] ** -0.5 if scale is None else scale
    out = attend_rows(q, pool.keys, pool.values, rows.tables, rows.starts, rows.stops, scale)
    return _split(out, spans)


def _split(out: Tensor, spans: Sequence[tuple[int, int]]) -> list[Tensor]:
    return list(torch.split(out, [stop - start for start, stop in spans]))


def is_as_exact(ours: Tensor, plain: Tensor, truth: Tensor) -> bool:
    """Whether our error is at most four times that of plain torch in the same precision; NaN never is.

    Errors are Euclidean: of a few hundred numbers the largest error is half a matter of luck. So is
    plain torch's whole error where the numbers are few, which is why one rounding of each is the least
    it counts for.
    """
    rounding = torch.finfo(plain.dtype).eps * truth.norm()
    allowed = 4 * torch.maximum((plain.double() - truth).norm(), rounding)
    return bool((ours.double() - truth).norm() <= allowed)
