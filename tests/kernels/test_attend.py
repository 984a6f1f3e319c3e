"""Attention on a CPU against the reference in float64: values, what is never read, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.cpu_softmax import BLOCK
from radixlm.kernels.plan import AttentionPlan, PlanOptions
from testkit.compiled import attention
from testkit.paged import (
    Attention,
    Pool,
    Rows,
    Spec,
    attend,
    fill,
    grow,
    is_as_exact,
    make_queries,
    reference,
)

PAGE_SIZES = (1, 4, 16, 64)
GROUPS = (1, 2, 3, 4, 8, 16)
SIZES = (8, 16, 64, 80, 96, 128, 256)
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("decode", "prefill", "chunk", "mixed", "full hit")
KV_HEADS = 2
ALIGNED = PlanOptions(align_tokens=BLOCK, min_saved_tokens=1)


def eager(page: int) -> PlanOptions:
    """Shares whatever it can, at any page: more levels than are served, over fewer tokens."""
    return PlanOptions(align_tokens=page, min_saved_tokens=1)


def specs_of(kind: str, page: int) -> list[Spec]:
    long = 3 * page + 5
    deep = -(-130 // page) * page + 9
    pages = deep // page
    decode = [
        Spec(long, 1),
        Spec(2 * page + 1, 1, parent=0, shared=2),
        Spec(long, 1, parent=0, shared=2),
        Spec(long, 1, parent=0, shared=3),
        Spec(1, 1),
        Spec(max(1, page - 1), 1),
        Spec(page, 1),
        Spec(page + 1, 1),
        Spec(deep, 1),
        *(Spec(deep + i, 1, parent=8, shared=pages - i % 2) for i in range(1, 4)),
    ]
    if kind == "decode":
        return decode
    if kind == "prefill":
        return [Spec(n, n) for n in sorted({1, max(1, page - 1), page, page + 1, long, deep})]
    if kind == "chunk":
        return [
            Spec(deep, 7),
            Spec(deep, 9, parent=0, shared=pages),
            Spec(deep + page, page, parent=0, shared=pages),
            Spec(long, min(7, long)),
            Spec(long, long - page, parent=3, shared=1),
            Spec(deep, deep - 1),
        ]
    if kind == "full hit":
        return [
            Spec(deep, 1),
            Spec(pages * page, 1, parent=0, shared=pages),
            Spec(pages * page, page, parent=0, shared=pages),
            Spec(pages * page, min(2 * page + 1, pages * page), parent=0, shared=pages),
            Spec(page, page, parent=0, shared=1),
            Spec(deep + 3, 3, parent=0, shared=pages),
        ]
    return [*decode, Spec(deep, 7), Spec(long, long), Spec(deep, 20, parent=8, shared=pages)]


@dataclass(frozen=True)
class Case:
    attention: Attention
    options: PlanOptions
    rows: Rows
    pool: Pool
    queries: list[Tensor]

    def run(self) -> list[Tensor]:
        return attend(self.attention, self.options, self.rows, self.pool, self.queries)

    def is_exact(self) -> bool:
        """Against plain torch over the same stored numbers, computing in float32 as we do."""
        truth, plain = (
            torch.cat(reference(self.rows, self.pool, self.queries, dtype))
            for dtype in (torch.float64, torch.float32)
        )
        return is_as_exact(torch.cat(self.run()), plain, truth)


def make_case(
    kind: str,
    page: int,
    group: int = 3,
    size: int = 24,
    kv_heads: int = KV_HEADS,
    *,
    options: PlanOptions | None = None,
    storage: torch.dtype = torch.float32,
) -> Case:
    rows = grow(page, specs_of(kind, page), seed=page)
    queries = make_queries(rows, group * kv_heads, size)
    pool = fill(rows, kv_heads, size, dtype=storage)
    return Case(attention(group * kv_heads, kv_heads), options or eager(page), rows, pool, queries)


@pytest.mark.parametrize("page", PAGE_SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [None, ALIGNED], ids=["eager", "aligned"])
def test_attention_is_as_exact_as_plain_torch(options: PlanOptions | None, kind: str, page: int) -> None:
    assert make_case(kind, page, options=options).is_exact()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("group", GROUPS)
def test_attention_is_as_exact_for_every_grouping_of_heads(group: int, size: int) -> None:
    assert make_case("mixed", 4, group, size).is_exact()


@pytest.mark.parametrize("kv_heads", [1, 5])
def test_any_number_of_key_heads_serves_the_queries(kv_heads: int) -> None:
    assert make_case("mixed", 16, group=4, size=64, kv_heads=kv_heads).is_exact()


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize(("page", "size"), [(1, 80), (4, 8), (16, 64), (64, 128)])
def test_pages_stored_in_half_precision_are_computed_with_in_float32(
    storage: torch.dtype, page: int, size: int
) -> None:
    assert make_case("mixed", page, 2, size, storage=storage).is_exact()


@st.composite
def trees(draw: st.DrawFn) -> Rows:
    """Up to twelve rows that fork from earlier ones, near the borders of pages and blocks."""
    page = draw(st.sampled_from(PAGE_SIZES))
    near = st.sampled_from([n + d for n in (page, 64, 128, 192) for d in (-1, 0, 1) if n + d > 0])
    specs: list[Spec] = []
    for i in range(draw(st.integers(1, 12))):
        stop = draw(near | st.integers(1, 200))
        new = draw(st.just(1) | st.integers(1, min(stop, 70)))
        specs.append(Spec(stop, new, draw(st.integers(-1, i - 1)), draw(st.integers(0, -(-stop // page)))))
    return grow(page, specs, seed=draw(st.integers(0, 9)))


@given(trees(), st.booleans(), st.sampled_from(STORAGES))
@settings(max_examples=30)
def test_whatever_shares_with_whatever_the_values_are_right(
    rows: Rows, aligned: bool, storage: torch.dtype
) -> None:
    pool, queries = fill(rows, 8, 16, dtype=storage), make_queries(rows, 24, 16)
    options = ALIGNED if aligned else eager(rows.page_size)
    assert Case(attention(24, 8), options, rows, pool, queries).is_exact()


def test_forty_rows_on_five_levels_of_sharing_are_right() -> None:
    specs = [Spec(5 * BLOCK + 3, 1)]
    specs += [Spec(level * BLOCK + 7 + i, 1 + i % 3, 0, 4 * level) for level in range(1, 6) for i in range(5)]
    specs += [Spec(3 * BLOCK + 9 + i, 2, 11 + i % 5, 8 + i % 4) for i in range(14)]
    rows = grow(16, specs)
    assert len(rows.tables) == 40
    pool, queries = fill(rows, 1, 16), make_queries(rows, 3, 16)
    case = Case(attention(3, 1), ALIGNED, rows, pool, queries)
    order = sorted(range(40), key=lambda i: rows.tables[i])
    assert rows.take(order).plan(ALIGNED, 1.0).merge.shape[0] == 6, "five shared levels and the tail"
    assert case.is_exact()


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_a_long_context_is_read_as_exactly_as_a_short_one(storage: torch.dtype) -> None:
    rows = grow(16, [Spec(5000, 1), Spec(5003, 3, parent=0, shared=300), Spec(4801, 1, parent=0, shared=300)])
    pool, queries = fill(rows, 1, 64, dtype=storage), make_queries(rows, 3, 64)
    assert Case(attention(3, 1), ALIGNED, rows, pool, queries).is_exact()


def test_scores_of_thousands_do_not_overflow() -> None:
    case = make_case("mixed", 4)
    large = replace(case, queries=[one * 1e4 for one in case.queries])
    wanted = reference(large.rows, large.pool, large.queries, torch.float64)
    found = large.run()
    assert all(bool(one.isfinite().all()) for one in found)
    plain = reference(large.rows, large.pool, large.queries, torch.float32)
    assert is_as_exact(torch.cat(found), torch.cat(plain), torch.cat(wanted))


def perturb(how: str, rows: Rows, pool: Pool, queries: list[Tensor]) -> list[Tensor]:
    """The truth with one mistake."""
    if how == "last key dropped":
        fewer = replace(
            rows, starts=tuple(n - 1 for n in rows.starts), stops=tuple(n - 1 for n in rows.stops)
        )
        return reference(fewer, pool, [one[1:] for one in queries], torch.float64)
    if how == "one page shifted":
        shifted = tuple((*table[1:2], *table[1:]) for table in rows.tables)
        return reference(replace(rows, tables=shifted), pool, queries, torch.float64)
    if how == "causal offset off by one":
        more = replace(rows, starts=tuple(n + 1 for n in rows.starts), stops=tuple(n + 1 for n in rows.stops))
        padded = [torch.cat((one[:1], one)) for one in queries]
        return reference(more, pool.map(lambda x: x.nan_to_num(0.5)), padded, torch.float64)
    assert how == "scaled by 1.01"
    scale = queries[0].shape[2] ** -0.5 * 1.01
    return reference(rows, pool, queries, torch.float64, scale)


@pytest.mark.parametrize(
    "how", ["last key dropped", "one page shifted", "causal offset off by one", "scaled by 1.01"]
)
def test_the_check_fails_for_a_result_with_a_mistake(how: str) -> None:
    rows = grow(8, [Spec(30, 5), Spec(31, 1), Spec(28, 7)])
    pool, queries = fill(rows, 2, 24), make_queries(rows, 6, 24)
    truth, plain = (
        torch.cat(reference(rows, pool, queries, dtype)) for dtype in (torch.float64, torch.float32)
    )
    assert not is_as_exact(torch.cat(perturb(how, rows, pool, queries)), plain, truth)
    assert is_as_exact(plain, plain, truth)


def test_a_part_of_a_larger_pool_can_be_read() -> None:
    case = make_case("mixed", 4)
    larger = case.pool.map(lambda x: torch.cat((x.transpose(0, 1), x.transpose(0, 1)), 1).transpose(0, 1))
    part = larger.map(lambda x: x[: case.rows.num_pages])
    torch.testing.assert_close(replace(case, pool=part).run(), case.run(), rtol=0, atol=0)


def test_a_plan_serves_pools_of_either_layout_in_turn() -> None:
    case = make_case("mixed", 4)
    q = torch.cat([one[-1:] for one in case.queries])
    rows = replace(case.rows, starts=tuple(stop - 1 for stop in case.rows.stops))
    prepared = case.attention.prepare(rows.plan(case.options, 0.2))
    layouts = [case.pool, case.pool.map(Tensor.contiguous), case.pool]
    first, second, third = (case.attention.attend(q, one.keys, one.values, prepared) for one in layouts)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_q_may_be_a_view_into_a_wider_matrix() -> None:
    case = make_case("mixed", 4)
    plan = case.attention.prepare(case.rows.plan(case.options, 0.2))
    spans = zip(case.queries, case.rows.starts, case.rows.stops, strict=True)
    q = torch.cat([one[start:stop] for one, start, stop in spans])
    view = torch.cat((q, q), dim=1)[:, : q.shape[1]]
    out, wanted = (case.attention.attend(x, case.pool.keys, case.pool.values, plan) for x in (view, q))
    assert torch.equal(out, wanted)


def reorder_segments(plan: AttentionPlan, order: list[int]) -> AttentionPlan:
    """The same plan with its segments, and so its partials, numbered in another order."""
    new_start = np.concatenate(([0], np.cumsum(plan.query_count[order]))).astype(np.int32)
    page_runs = [plan.pages[plan.page_start[i] : plan.page_start[i + 1]] for i in order]
    moved = np.empty(plan.num_partials + 1, dtype=np.int32)
    moved[-1] = -1
    for place, i in enumerate(order):
        moved[plan.partial_start[i] : plan.partial_start[i + 1]] = np.arange(
            new_start[place], new_start[place + 1]
        )
    return replace(
        plan,
        query_start=plan.query_start[order],
        query_count=plan.query_count[order],
        kv_tokens=plan.kv_tokens[order],
        kv_start=plan.kv_start[order],
        causal=plan.causal[order],
        partial_start=new_start,
        page_start=np.concatenate(([0], np.cumsum([len(run) for run in page_runs]))).astype(np.int32),
        pages=np.concatenate(page_runs),
        merge=moved[plan.merge],
    )


@pytest.mark.parametrize("kind", ["prefill", "mixed"])
def test_the_segments_of_a_plan_may_be_numbered_in_any_order(kind: str) -> None:
    case = make_case(kind, 4)
    plan = case.rows.plan(case.options, 0.2)
    spans = zip(case.queries, case.rows.starts, case.rows.stops, strict=True)
    q = torch.cat([one[start:stop] for one, start, stop in spans])
    plans = (plan, reorder_segments(plan, list(reversed(range(plan.num_segments)))))
    out, other = (
        case.attention.attend(q, case.pool.keys, case.pool.values, case.attention.prepare(one))
        for one in plans
    )
    assert torch.equal(other, out)


def test_a_plan_without_rows_gives_no_outputs() -> None:
    rows, one = Rows(8, 2, (), (), ()), attention(6, 2)
    pool = Pool(torch.zeros(2, 2, 8, 24), torch.zeros(2, 2, 8, 24))
    plan = one.prepare(rows.plan(ALIGNED, 1.0))
    assert one.attend(torch.zeros(0, 6, 24), pool.keys, pool.values, plan).shape == (0, 6, 24)


@pytest.mark.parametrize(
    ("q", "keys", "values", "message"),
    [
        ((2, 6, 24), (4, 2, 8, 24), (4, 2, 8, 24), r"q of shape \(3, 6, 24\), got \(2, 6, 24\)"),
        ((3, 4, 24), (4, 2, 8, 24), (4, 2, 8, 24), r"q of shape \(3, 6, 24\), got \(3, 4, 24\)"),
        ((3, 6, 24), (4, 2, 16, 24), (4, 2, 16, 24), r"2 heads and 8 slots, got shape \(4, 2, 16, 24\)"),
        ((3, 6, 24), (4, 3, 8, 24), (4, 3, 8, 24), r"2 heads and 8 slots, got shape \(4, 3, 8, 24\)"),
        ((3, 6, 24), (4, 2, 8, 24), (5, 2, 8, 24), "same shape and strides"),
    ],
)
def test_shapes_that_do_not_fit_the_plan_are_refused(
    q: tuple[int, ...], keys: tuple[int, ...], values: tuple[int, ...], message: str
) -> None:
    one = attention(6, 2)
    plan = one.prepare(grow(8, [Spec(9, 3)]).plan(ALIGNED, 1.0))
    with pytest.raises(ValueError, match=message):
        one.attend(torch.zeros(q), torch.zeros(keys), torch.zeros(values), plan)


def test_numbers_of_another_format_or_in_another_order_are_refused() -> None:
    one = attention(6, 2)
    plan = one.prepare(grow(8, [Spec(9, 3)]).plan(ALIGNED, 1.0))
    q, pages = torch.zeros(3, 6, 24), torch.zeros(4, 2, 8, 24)
    for wrong in (
        (q.bfloat16(), pages, pages),
        (q, pages.double(), pages.double()),
        (q, pages, pages.bfloat16()),
    ):
        with pytest.raises(ValueError, match="q must be float32, keys and values of one dtype"):
            one.attend(*wrong, plan)
    turned = torch.zeros(4, 2, 24, 8).transpose(2, 3)
    with pytest.raises(ValueError, match="numbers in a row, got strides"):
        one.attend(q, turned, turned, plan)
    with pytest.raises(ValueError, match="numbers in a row, got strides"):
        one.attend(torch.zeros(3, 24, 6).transpose(1, 2), pages, pages, plan)


def test_heads_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads, got 7 and 2"):
        cpu_ops(7, 2, threads=1)
