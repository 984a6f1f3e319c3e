"""Attention on a CPU against the reference in float64: values, what is never read, relations between runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.cpu_attention import CpuAttention
from radixlm.kernels.cpu_flash import Tile
from radixlm.kernels.plan import AttentionPlan, PlanOptions
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

PAGE_SIZES = (1, 4, 8, 16, 32, 64)
GROUPS = (1, 3, 4, 7, 8)
SIZES = (24, 64, 80, 128)
KINDS = ("decode", "prefill", "chunk", "mixed", "full hit")
MODES = ("eager", "plain", "deterministic", "fixed tile")
KV_HEADS = 2


def mode_of(mode: str, group: int, size: int, kv_heads: int = KV_HEADS) -> tuple[Attention, PlanOptions]:
    """eager: shares and unmasks whatever it can; fixed tile: the way of processors that ask for one."""
    heads = group * kv_heads
    if mode == "fixed tile":
        return CpuAttention(heads, kv_heads, Tile(12, True)), PlanOptions(split_tokens=64, min_saved_tokens=1)
    ops = cpu_ops(heads, kv_heads, size, deterministic=mode == "deterministic")
    eager = PlanOptions(min_saved_tokens=1, min_masked_queries=4)
    return ops, eager if mode == "eager" else ops.plan_options


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
        truth, plain = (
            torch.cat(reference(self.rows, self.pool, self.queries, dtype))
            for dtype in (torch.float64, torch.float32)
        )
        return is_as_exact(torch.cat(self.run()), plain, truth)


def make_case(mode: str, kind: str, page: int, group: int = 3, size: int = 24, kv_heads: int = 2) -> Case:
    rows = grow(page, specs_of(kind, page), seed=page)
    queries = make_queries(rows, group * kv_heads, size)
    return Case(*mode_of(mode, group, size, kv_heads), rows, fill(rows, kv_heads, size), queries)


@pytest.mark.parametrize("page", PAGE_SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_attention_is_as_exact_as_plain_torch(mode: str, kind: str, page: int) -> None:
    assert make_case(mode, kind, page).is_exact()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("mode", MODES)
def test_attention_is_as_exact_for_every_grouping_of_heads(mode: str, group: int, size: int) -> None:
    assert make_case(mode, "mixed", 8, group, size).is_exact()


@pytest.mark.parametrize("mode", MODES)
def test_a_single_key_head_serves_all_queries(mode: str) -> None:
    assert make_case(mode, "mixed", 16, group=8, size=64, kv_heads=1).is_exact()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["eager", "plain", "fixed tile"])
def test_in_double_precision_nothing_but_rounding_is_left(mode: str, kind: str) -> None:
    case = make_case(mode, kind, 4)
    double = replace(case, pool=case.pool.map(Tensor.double), queries=[one.double() for one in case.queries])
    wanted = reference(double.rows, double.pool, double.queries, torch.float64)
    torch.testing.assert_close(double.run(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["eager", "plain", "fixed tile"])
def test_scores_of_thousands_do_not_overflow(mode: str) -> None:
    case = make_case(mode, "mixed", 4)
    large = replace(
        case, pool=case.pool.map(Tensor.double), queries=[one.double() * 1e4 for one in case.queries]
    )
    wanted = reference(large.rows, large.pool, large.queries, torch.float64)
    torch.testing.assert_close(large.run(), wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_plain_torch_in_half_precision(dtype: torch.dtype) -> None:
    case = make_case("eager", "mixed", 8)
    half = replace(
        case, pool=case.pool.map(lambda x: x.to(dtype)), queries=[one.to(dtype) for one in case.queries]
    )
    truth, plain = (
        torch.cat(reference(half.rows, half.pool, half.queries, one)) for one in (torch.float64, dtype)
    )
    assert is_as_exact(torch.cat(half.run()), plain, truth)


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


@pytest.mark.parametrize("mode", MODES)
def test_pages_of_one_head_together_or_of_one_page_together_give_the_same_bits(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
    assert not case.pool.keys.is_contiguous()
    contiguous = replace(case, pool=case.pool.map(Tensor.contiguous))
    torch.testing.assert_close(contiguous.run(), case.run(), rtol=0, atol=0)


def test_a_plan_serves_pools_of_either_layout_in_turn() -> None:
    case = make_case("eager", "mixed", 8)
    q = torch.cat([one[-1:] for one in case.queries])
    rows = replace(case.rows, starts=tuple(stop - 1 for stop in case.rows.stops))
    prepared = case.attention.prepare(rows.plan(case.options, 0.2))
    layouts = [case.pool, case.pool.map(Tensor.contiguous), case.pool]
    first, second, third = (case.attention.attend(q, one.keys, one.values, prepared) for one in layouts)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


def test_a_part_of_a_larger_pool_can_be_read() -> None:
    case = make_case("eager", "mixed", 8)
    larger = case.pool.map(lambda x: torch.cat((x.transpose(0, 1), x.transpose(0, 1)), 1).transpose(0, 1))
    part = larger.map(lambda x: x[: case.rows.num_pages])
    torch.testing.assert_close(replace(case, pool=part).run(), case.run(), rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_which_pages_hold_the_keys_changes_nothing(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
    new_place = torch.randperm(case.rows.num_pages, generator=torch.Generator().manual_seed(5))
    tables = tuple(tuple(int(new_place[page]) for page in table) for table in case.rows.tables)
    order = new_place.argsort()
    moved = replace(case, rows=replace(case.rows, tables=tables), pool=case.pool.map(lambda x: x[order]))
    if mode == "deterministic":
        torch.testing.assert_close(moved.run(), case.run(), rtol=0, atol=0)
    else:
        torch.testing.assert_close(moved.run(), case.run(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_shared_pages_equal_private_copies(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
    flat = [page for table in case.rows.tables for page in table]
    places = iter(range(len(flat)))
    tables = tuple(tuple(next(places) for _ in table) for table in case.rows.tables)
    copied = replace(
        case,
        rows=replace(case.rows, tables=tables, num_pages=len(flat)),
        pool=case.pool.map(lambda x: x.transpose(0, 1)[:, flat].transpose(0, 1)),
    )
    tolerance = 0.0 if mode == "deterministic" else 1e-5
    torch.testing.assert_close(copied.run(), case.run(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_two_runs_give_the_same_bits(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
    torch.testing.assert_close(case.run(), case.run(), rtol=0, atol=0)


@given(order=st.permutations(range(len(specs_of("mixed", 8)))))
@settings(max_examples=10)
def test_rows_may_stand_in_any_order(order: list[int]) -> None:
    for mode, tolerance in (("eager", 1e-5), ("deterministic", 0.0)):
        case = make_case(mode, "mixed", 8)
        other = attend(case.attention, case.options, case.rows, case.pool, case.queries, order)
        torch.testing.assert_close(other, case.run(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_a_row_with_a_query_that_is_not_finite_spoils_no_other_row(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
    spoilt = list(case.queries)
    spoilt[3] = torch.full_like(spoilt[3], torch.nan)
    for i, (found, wanted) in enumerate(zip(replace(case, queries=spoilt).run(), case.run(), strict=True)):
        assert bool(found.isnan().all()) if i == 3 else torch.equal(found, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_q_may_be_a_view_into_a_wider_matrix(mode: str) -> None:
    case = make_case(mode, "mixed", 8)
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
@pytest.mark.parametrize("mode", MODES)
def test_the_segments_of_a_plan_may_be_numbered_in_any_order(mode: str, kind: str) -> None:
    case = make_case(mode, kind, 8)
    plan = case.rows.plan(case.options, 0.2)
    spans = zip(case.queries, case.rows.starts, case.rows.stops, strict=True)
    q = torch.cat([one[start:stop] for one, start, stop in spans])
    plans = (plan, reorder_segments(plan, list(reversed(range(plan.num_segments)))))
    out, other = (
        case.attention.attend(q, case.pool.keys, case.pool.values, case.attention.prepare(one))
        for one in plans
    )
    torch.testing.assert_close(other, out, rtol=1e-5, atol=1e-5)


def test_a_plan_without_rows_gives_no_outputs() -> None:
    attention, options = mode_of("plain", 3, 24)
    rows = Rows(8, 2, (), (), ())
    pool = Pool(torch.zeros(2, 2, 8, 24), torch.zeros(2, 2, 8, 24))
    plan = attention.prepare(rows.plan(options, 1.0))
    assert attention.attend(torch.zeros(0, 6, 24), pool.keys, pool.values, plan).shape == (0, 6, 24)


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
    attention, options = mode_of("plain", 3, 24)
    plan = attention.prepare(grow(8, [Spec(9, 3)]).plan(options, 1.0))
    with pytest.raises(ValueError, match=message):
        attention.attend(torch.zeros(q), torch.zeros(keys), torch.zeros(values), plan)


def test_pages_of_another_dtype_or_in_another_order_of_numbers_are_refused() -> None:
    attention, options = mode_of("plain", 3, 24)
    plan = attention.prepare(grow(8, [Spec(9, 3)]).plan(options, 1.0))
    q, pages = torch.zeros(3, 6, 24), torch.zeros(4, 2, 8, 24)
    with pytest.raises(ValueError, match=r"one dtype, got torch\.float32, torch\.bfloat16"):
        attention.attend(q, pages.bfloat16(), pages.bfloat16(), plan)
    turned = torch.zeros(4, 2, 24, 8).transpose(2, 3)
    with pytest.raises(ValueError, match="8 x 24 numbers in a row"):
        attention.attend(q, turned, turned, plan)
