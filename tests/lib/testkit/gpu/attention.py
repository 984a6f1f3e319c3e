"""Cases of tree attention: what a step may hold, how it is cut, and what plain torch says of it.

Rows decode, ragged and over shared prefixes, and prompts are among them. Plans are the engine's own, and ones
that cut whatever can be cut, which gives more partials a query than the merge reads at once, and partials in
the interpreter too, whose one program has nothing to gain from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import PlanOptions, order_rows
from radixlm.kernels.triton_ops import triton_ops
from testkit import paged
from testkit.paged import Spec

from .case import Case, Outputs
from .report import Place


@dataclass(frozen=True, slots=True)
class Shape:
    heads: int
    kv_heads: int
    size: int
    page_size: int

    def __str__(self) -> str:
        return f"{self.heads}/{self.kv_heads} heads of {self.size}, pages of {self.page_size}"


SHAPES = (
    Shape(32, 8, 128, 16),
    Shape(32, 8, 64, 16),
    Shape(9, 3, 64, 16),
    Shape(8, 8, 80, 1),
    Shape(14, 2, 96, 64),
    Shape(16, 1, 256, 32),
)
SMALL_SHAPES = (Shape(4, 1, 16, 4), Shape(6, 2, 24, 1))


KINDS = ("decode", "mixed", "in pieces", "one long row", "two long rows")


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a step, and how their plan is made."""

    specs: Sequence[Spec]
    options: PlanOptions


def batches(page: int, own: PlanOptions, *, is_small: bool) -> Mapping[str, Batch]:
    """One of each of KINDS. own: the engine's options there. At small sizes parts are whole pages."""
    sharing = replace(own, min_saved_tokens=1)
    if is_small:
        sharing = replace(sharing, align_tokens=page)
    cutting = replace(
        sharing,
        align_tokens=page,
        workers=max(own.workers, 16),
        costs=Costs(item=1, partial=0, least_tokens=page),
    )
    long, few, very_long = (40, 4, 203) if is_small else (400, 20, 8003)
    ragged = [Spec(stop, 1) for stop in (1, max(page - 1, 1), page, page + 1, 3 * page + 5, 2 * long)]
    shared = [Spec(2 * long, 1), *(Spec(2 * long + i, 1, 0, 2 * long // page) for i in range(1, few))]
    forked = [Spec(long + 3, 1, 0, long // (2 * page)), Spec(long + 4, 1, 0, long // (2 * page))]
    prompts = [
        Spec(long, long),
        Spec(2 * long + 7, 7, 0, 2 * long // page),
        Spec(long + page, page),
        Spec(1, 1),
    ]
    alone = cutting if is_small else own
    return {
        "decode": Batch(shared + ragged, sharing),
        "mixed": Batch(shared + forked + prompts, sharing),
        "in pieces": Batch(shared[:4] + forked + prompts[1:3], cutting),
        # The last query of the first is a long one, see below.
        "one long row": Batch([Spec(very_long, 1)], alone),
        "two long rows": Batch([Spec(very_long, 1), Spec(very_long - 13, 1)], alone),
    }


def case(kind: str, shape: Shape, place: Place, dtype: torch.dtype) -> Case:
    ops = triton_ops(shape.heads, shape.kv_heads, shape.size, device=place.device, dtype=dtype)
    batch = batches(shape.page_size, ops.plan_options, is_small=place.is_small)[kind]
    rows = paged.grow(shape.page_size, batch.specs)
    pool = paged.fill(rows, shape.kv_heads, shape.size, dtype=dtype).map(lambda pages: pages.to(place.device))
    queries = _queries(rows, shape, place.device, dtype)

    def expected(precision: torch.dtype) -> Outputs:
        with torch.device(place.device):
            if precision == torch.float64:
                return paged.reference(rows, pool, queries, precision)
            return _plain(rows, pool, queries, precision)

    return Case(
        f"tree_attention {kind} {shape}, {str(dtype).removeprefix('torch.')}",
        dtype,
        lambda: paged.attend(ops, batch.options, rows, pool, queries),
        expected,
        figures={"partials a query": partials_a_query(rows, batch.options)},
    )


def partials_a_query(rows: paged.Rows, options: PlanOptions) -> int:
    """The most that any query has."""
    return len(rows.take(order_rows(rows.tables)).plan(options, 1.0).merge)


def _queries(rows: paged.Rows, shape: Shape, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Normal, and NaN where nothing is computed. Every fifth is so long that few keys outweigh all others.

    In float32 it is less so: an error in such a query's scores is the whole error, and a matter of luck.
    """
    longer = 4 if dtype == torch.float32 else 12
    generator = torch.Generator().manual_seed(1)
    queries = []
    for start, stop in zip(rows.starts, rows.stops, strict=True):
        one = torch.full((stop, shape.heads, shape.size), torch.nan, dtype=dtype, device=device)
        one[start:] = torch.randn(stop - start, *one.shape[1:], generator=generator).to(device)
        one[2::5] *= longer
        queries.append(one)
    return queries


def _plain(rows: paged.Rows, pool: paged.Pool, queries: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """As any attention of such precision has it: products of `dtype`, softmax in float32, weights rounded.

    The reference in bfloat16 rounds scores too, and is wrong by several percent where they are large.
    """
    out = []
    for table, start, stop, all_queries in zip(rows.tables, rows.starts, rows.stops, queries, strict=True):
        q = all_queries[start:stop].transpose(0, 1)
        group = len(q) // pool.keys.shape[1]
        keys, values = (
            pages[torch.tensor(table)].transpose(0, 1).flatten(1, 2)[:, :stop].repeat_interleave(group, 0)
            for pages in (pool.keys, pool.values)
        )
        scores = q.float() @ keys.float().transpose(1, 2) * q.shape[2] ** -0.5
        hidden = torch.arange(stop)[None, :] > torch.arange(start, stop)[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(dtype)
        out.append((weights @ values).transpose(0, 1))
    return out
