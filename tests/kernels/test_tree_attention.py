"""Triton's attention in the interpreter, float32, against the reference in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels import reference as plainly
from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import AttentionPlan, PlanOptions
from radixlm.kernels.tree_attention import tree_attention
from radixlm.kernels.triton_plan import PlanBuffer, TritonPlan, lower
from testkit.paged import (
    Pool,
    Rows,
    Spec,
    attend,
    fill,
    grow,
    is_as_exact,
    make_queries,
    private,
    reference,
)
from testkit.small_ops import fresh_memory_is_nan

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _poisoned_partials() -> Iterator[None]:
    with fresh_memory_is_nan():
        yield


@dataclass(frozen=True)
class TritonAttention:
    """The two ops; outputs are NaN before they are written."""

    heads: int
    kv_heads: int

    def prepare(self, plan: AttentionPlan) -> TritonPlan:
        return lower(plan, device=CPU, num_heads=self.heads, num_kv_heads=self.kv_heads)

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: object) -> Tensor:
        assert isinstance(plan, TritonPlan)
        return tree_attention(q, k_pages, v_pages, plan, torch.full_like(q, torch.nan))


def eager(page: int) -> PlanOptions:
    """Shares whatever it can."""
    return PlanOptions(align_tokens=page, min_saved_tokens=1)


def in_pieces(page: int, workers: int = 8) -> PlanOptions:
    """Cuts whatever it can."""
    costs = Costs(item=1, partial=0, least_tokens=page)
    return replace(eager(page), workers=workers, costs=costs)


@dataclass(frozen=True)
class Case:
    rows: Rows
    pool: Pool
    queries: list[Tensor]
    options: PlanOptions
    order: list[int] | None = field(default=None)

    @property
    def attention(self) -> TritonAttention:
        return TritonAttention(self.queries[0].shape[1], self.pool.keys.shape[1])

    def run(self) -> Tensor:
        return torch.cat(attend(self.attention, self.options, self.rows, self.pool, self.queries, self.order))

    def expect(self, dtype: torch.dtype) -> Tensor:
        return torch.cat(reference(self.rows, self.pool, self.queries, dtype))

    def is_exact(self) -> bool:
        return is_as_exact(self.run(), self.expect(torch.float32), self.expect(torch.float64))


def make_case(
    specs: Sequence[Spec],
    page: int = 4,
    group: int = 3,
    size: int = 16,
    kv_heads: int = 1,
    options: PlanOptions | None = None,
) -> Case:
    rows = grow(page, specs, seed=page)
    pool, queries = fill(rows, kv_heads, size), make_queries(rows, group * kv_heads, size)
    return Case(rows, pool, queries, options or eager(page))


def in_row_order(case: Case) -> tuple[Tensor, AttentionPlan]:
    """All queries and the plan, rows as they come."""
    spans = zip(case.queries, case.rows.starts, case.rows.stops, strict=True)
    q = torch.cat([one[start:stop] for one, start, stop in spans])
    return q, case.rows.plan(case.options, q.shape[2] ** -0.5)


KINDS = ("decode", "prefill", "chunk", "mixed", "full hit")


def specs_of(kind: str, page: int) -> list[Spec]:
    """Rows near the borders of pages (of `page` slots) and of tiles (of 32 and 64 keys)."""
    long = 3 * page + 5
    deep = -(-66 // page) * page + 3
    full = deep // page
    if kind == "prefill":
        return [Spec(n, n) for n in sorted({1, max(1, page - 1), page, page + 1, deep})]
    if kind == "chunk":
        return [
            Spec(deep, 2),
            Spec(deep, 5, parent=0, shared=full),
            Spec(deep + 2, 6, parent=0, shared=full),
            Spec(deep + 1, deep - page, parent=0, shared=1),
        ]
    if kind == "full hit":
        return [
            Spec(deep, 1),
            Spec(full * page, 1, parent=0, shared=full),
            Spec(full * page, min(page, 8), parent=0, shared=full),
            Spec(full * page, page + 2, parent=0, shared=full),
            Spec(page, page, parent=0, shared=1),
            Spec(deep + 3, 3, parent=0, shared=full),
        ]
    decode = [
        Spec(long, 1),
        Spec(2 * page + 1, 1, parent=0, shared=2),
        Spec(long, 1, parent=0, shared=3),
        Spec(1, 1),
        Spec(page, 1),
        Spec(deep, 1),
        *(Spec(deep + i, 1, parent=5, shared=full - i % 2) for i in range(1, 6)),
    ]
    return decode if kind == "decode" else [*decode[:7], Spec(deep, 7), Spec(deep, 9, parent=5, shared=full)]


@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_as_exact_as_plain_torch(kind: str, page: int) -> None:
    assert make_case(specs_of(kind, page), page).is_exact()


FORK = [Spec(40, 1), Spec(37, 1, 0, 8), Spec(38, 3, 0, 8), Spec(45, 9, 0, 5), Spec(3, 3)]


@pytest.mark.parametrize(
    ("group", "size"), [(1, 8), (2, 64), (3, 80), (5, 24), (8, 96), (9, 16), (16, 128), (2, 256)]
)
def test_attention_is_as_exact_for_any_grouping_of_heads_and_any_size(group: int, size: int) -> None:
    assert make_case(FORK, 4, group, size, kv_heads=1 + (group < 4)).is_exact()


@st.composite
def trees(draw: st.DrawFn) -> Rows:
    """Up to five rows that fork from earlier ones."""
    page = draw(st.sampled_from([1, 4, 16]))
    specs: list[Spec] = []
    for i in range(draw(st.integers(1, 5))):
        stop = draw(st.integers(1, 80))
        new = draw(st.just(1) | st.integers(1, min(stop, 50)))
        specs.append(Spec(stop, new, draw(st.integers(-1, i - 1)), draw(st.integers(0, -(-stop // page)))))
    return grow(page, specs, seed=draw(st.integers(0, 9)))


@given(trees(), st.sampled_from([1, 3, 8]), st.booleans())
@settings(max_examples=6)
def test_whatever_shares_with_whatever_the_values_are_right(rows: Rows, group: int, cut: bool) -> None:
    with fresh_memory_is_nan():
        options = (in_pieces if cut else eager)(rows.page_size)
        assert Case(rows, fill(rows, 1, 16), make_queries(rows, group, 16), options).is_exact()


@pytest.mark.parametrize("kind", ["decode", "mixed"])
def test_a_plan_in_pieces_gives_what_the_whole_one_gives(kind: str) -> None:
    whole = make_case(specs_of(kind, 16), 16)
    cut = replace(whole, options=in_pieces(16))
    assert in_row_order(cut)[1].num_segments > in_row_order(whole)[1].num_segments
    assert cut.is_exact()


def test_a_query_in_many_pieces_is_merged_from_all_of_them() -> None:
    case = make_case([Spec(83, 1), Spec(80, 2)], 4, options=in_pieces(4, workers=60))
    assert in_row_order(case)[1].merge.shape[0] > 16
    assert case.is_exact()


def test_scores_of_thousands_do_not_overflow() -> None:
    case = make_case(FORK)
    case = replace(case, queries=[one * 1e4 for one in case.queries])
    assert bool(case.run().isfinite().all())
    assert case.is_exact()


def test_a_row_alone_gets_the_bits_it_gets_among_others() -> None:
    case = make_case([Spec(70, 1), Spec(45, 45), Spec(5, 1), Spec(66, 9)])
    together = attend(case.attention, case.options, case.rows, case.pool, case.queries)
    for i, found in enumerate(together):
        rows = case.rows.take([i])
        alone = attend(case.attention, case.options, rows, case.pool, case.queries[i : i + 1])
        assert torch.equal(alone[0], found)


def test_where_pages_lie_changes_no_bit() -> None:
    case = make_case(FORK)
    case = replace(case, order=[0, 1, 2, 3, 4])
    moved = torch.randperm(case.rows.num_pages, generator=torch.Generator().manual_seed(3))
    tables = tuple(tuple(int(moved[page]) for page in table) for table in case.rows.tables)
    pool = case.pool.map(lambda pages: torch.empty_like(pages).index_copy_(0, moved, pages))
    other = replace(case, rows=replace(case.rows, tables=tables), pool=pool)
    assert torch.equal(other.run(), case.run())


def test_a_prefill_in_two_is_as_exact_as_in_one() -> None:
    case = make_case([Spec(75, 75)])
    first = replace(case, rows=replace(case.rows, stops=(41,)))
    second = replace(case, rows=replace(case.rows, starts=(41,)))
    found = torch.cat((first.run(), second.run()))
    assert is_as_exact(found, case.expect(torch.float32), case.expect(torch.float64))
    assert is_as_exact(case.run(), case.expect(torch.float32), case.expect(torch.float64))


def test_shared_pages_give_what_private_copies_give() -> None:
    case = make_case(FORK)
    rows, pool = private(case.rows, case.pool, 16)
    alone = replace(case, rows=rows, pool=pool, options=eager(16))
    assert is_as_exact(alone.run(), case.expect(torch.float32), case.expect(torch.float64))
    assert case.is_exact()


def test_two_runs_give_the_same_bits() -> None:
    case = make_case(FORK, options=in_pieces(4))
    assert torch.equal(case.run(), case.run())


def perturb(how: str, case: Case) -> Tensor:
    """The truth with one mistake."""
    rows, pool, queries = case.rows, case.pool, case.queries
    if how == "last key dropped":
        starts, stops = (tuple(n - 1 for n in side) for side in (rows.starts, rows.stops))
        rows, queries = replace(rows, starts=starts, stops=stops), [one[1:] for one in queries]
    elif how == "one page shifted":
        rows = replace(rows, tables=tuple((*table[1:2], *table[1:]) for table in rows.tables))
    elif how == "one key too many":
        starts, stops = (tuple(n + 1 for n in side) for side in (rows.starts, rows.stops))
        rows, queries = replace(rows, starts=starts, stops=stops), [torch.cat((q[:1], q)) for q in queries]
        pool = pool.map(lambda pages: pages.nan_to_num(0.5))
    scale = queries[0].shape[2] ** -0.5 * (1.01 if how == "scaled by 1.01" else 1)
    return torch.cat(reference(rows, pool, queries, torch.float64, scale))


@pytest.mark.parametrize(
    "how", ["last key dropped", "one page shifted", "one key too many", "scaled by 1.01"]
)
def test_the_check_fails_for_a_result_with_a_mistake(how: str) -> None:
    case = make_case([Spec(30, 5), Spec(31, 1), Spec(28, 7)], 8)
    plain, truth = case.expect(torch.float32), case.expect(torch.float64)
    assert not is_as_exact(perturb(how, case), plain, truth)
    assert is_as_exact(case.run(), plain, truth)


def test_pages_may_lie_in_any_order_and_be_a_part_of_more() -> None:
    case = make_case(FORK, kv_heads=2)
    wider = case.pool.map(lambda x: torch.cat((x.transpose(0, 1), x.transpose(0, 1)), 1).transpose(0, 1))
    parts = wider.map(lambda x: x[: case.rows.num_pages])
    for pool in (case.pool.map(Tensor.contiguous), parts):
        assert torch.equal(replace(case, pool=pool).run(), case.run())


def test_queries_and_outputs_may_be_parts_of_wider_rows() -> None:
    case = make_case(FORK)
    q, plan = in_row_order(case)
    lowered = case.attention.prepare(plan)
    wide_q, wide_out = torch.cat((q, q), 1), torch.full((len(q), 5, 16), torch.nan)
    given_out = wide_out[:, 1:4]
    found = tree_attention(wide_q[:, :3], case.pool.keys, case.pool.values, lowered, given_out)
    assert found is given_out
    assert torch.equal(found, tree_attention(q, case.pool.keys, case.pool.values, lowered))
    assert wide_out[:, (0, 4)].isnan().all()


@pytest.mark.parametrize("options", [eager(4), in_pieces(4)], ids=["whole", "pieces"])
def test_the_reference_by_a_plan_is_the_reference_row_by_row(options: PlanOptions) -> None:
    case = make_case(FORK, kv_heads=2, options=options)
    q, plan = in_row_order(case)
    double = case.pool.map(Tensor.double)
    lowered = case.attention.prepare(plan)
    found = plainly.tree_attention(q.double(), double.keys, double.values, lowered)
    torch.testing.assert_close(found, case.expect(torch.float64), rtol=1e-12, atol=1e-12)


def test_rows_beyond_the_plan_become_zero() -> None:
    case = make_case([Spec(9, 3), Spec(11, 1)])
    q, plan = in_row_order(case)
    longer = torch.cat((q, torch.ones(3, 3, 16)))
    prepared = case.attention.prepare(plan)
    found = case.attention.attend(longer, case.pool.keys, case.pool.values, prepared)
    assert torch.equal(found[:4], case.attention.attend(q, case.pool.keys, case.pool.values, prepared))
    assert torch.equal(found[4:], torch.zeros(3, 3, 16))


def segments(plan: AttentionPlan, kept: Sequence[int], tokens: Sequence[int]) -> AttentionPlan:
    """Some of the segments of a plan of rows that share nothing, with as many of their tokens."""
    starts = np.concatenate(([0], np.cumsum(plan.query_count[kept]))).astype(np.int32)
    merge = np.full((1, plan.num_queries), -1, dtype=np.int32)
    for i, first in zip(kept, starts, strict=False):
        count = int(plan.query_count[i])
        merge[0, plan.query_start[i] : plan.query_start[i] + count] = np.arange(first, first + count)
    runs = [plan.pages[plan.page_start[i] : plan.page_start[i + 1]] for i in kept]
    return replace(
        plan,
        query_start=plan.query_start[kept],
        query_count=plan.query_count[kept],
        page_start=np.concatenate(([0], np.cumsum([len(run) for run in runs]))).astype(np.int32),
        pages=np.concatenate([np.empty(0, dtype=np.int32), *runs]),
        kv_tokens=np.array(tokens, dtype=np.int32),
        kv_start=plan.kv_start[kept],
        causal=plan.causal[kept],
        partial_start=starts,
        merge=merge,
    )


def test_queries_without_keys_become_zero() -> None:
    case = make_case([Spec(9, 1), Spec(11, 1), Spec(10, 1)])
    q, plan = in_row_order(case)
    fewer = case.attention.prepare(segments(plan, [0, 2], [9, 0]))
    found = case.attention.attend(q, case.pool.keys, case.pool.values, fewer)
    assert torch.equal(found[0], case.run()[0])
    assert torch.equal(found[1:], torch.zeros(2, 3, 16))
    assert torch.equal(plainly.tree_attention(q, case.pool.keys, case.pool.values, fewer)[1:], found[1:])


def test_one_buffer_serves_plan_after_plan() -> None:
    case = make_case(FORK)
    buffer = PlanBuffer(torch.empty(4096, dtype=torch.int32), 100)
    for options in (in_pieces(4), eager(4), PlanOptions(align_tokens=4)):
        q, plan = in_row_order(replace(case, options=options))
        fresh = lower(plan, device=CPU, num_heads=3, num_kv_heads=1)
        reused = lower(plan, device=CPU, num_heads=3, num_kv_heads=1, into=buffer)
        assert reused.words is buffer.words
        found, wanted = (
            case.attention.attend(q, case.pool.keys, case.pool.values, one) for one in (reused, fresh)
        )
        assert torch.equal(found, wanted)


def test_no_queries_give_no_outputs() -> None:
    plan = TritonAttention(6, 2).prepare(Rows(8, 2, (), (), ()).plan(eager(8), 1.0))
    pages = torch.zeros(2, 2, 8, 24)
    assert tree_attention(torch.zeros(0, 6, 24), pages, pages, plan).shape == (0, 6, 24)
    assert torch.equal(tree_attention(torch.ones(2, 6, 24), pages, pages, plan), torch.zeros(2, 6, 24))


Q, PAGES = torch.zeros(3, 6, 24), torch.zeros(4, 2, 8, 24)


@pytest.mark.parametrize(
    ("q", "keys", "values", "message"),
    [
        (Q[:2], PAGES, PAGES, r"q must have shape \(at least 3, 6, D\), got \(2, 6, 24\)"),
        (Q[:, :4], PAGES, PAGES, r"q must have shape \(at least 3, 6, D\), got \(3, 4, 24\)"),
        (Q[0], PAGES, PAGES, r"q must have shape \(at least 3, 6, D\), got \(6, 24\)"),
        (Q[:, :, :20].contiguous(), PAGES, PAGES, "D must be a multiple of 8 from 8 to 256, got 20"),
        (torch.zeros(3, 6, 264), PAGES, PAGES, "D must be a multiple of 8 from 8 to 256, got 264"),
        (Q, PAGES[:, :1], PAGES, r"k_pages must have shape \(P, 2, 8, 24\), got \(4, 1, 8, 24\)"),
        (Q, PAGES, torch.zeros(4, 2, 16, 24), r"v_pages must have shape \(P, 2, 8, 24\), got \(4, 2, 16"),
        (Q, PAGES, torch.zeros(4, 2, 8, 16), r"v_pages must have shape \(P, 2, 8, 24\), got \(4, 2, 8, 16"),
        (Q, PAGES, PAGES.transpose(0, 1).contiguous().transpose(0, 1), r"equal strides.*got \(384, 192, 24"),
        (Q, *[torch.zeros(4, 2, 24, 8).transpose(2, 3)] * 2, r"equal strides.*got \(384, 192, 1, 8\)"),
        (Q, *[torch.zeros(4, 388).as_strided((4, 2, 8, 24), (388, 192, 24, 1))] * 2, r"got \(388, 192"),
        (Q.half(), PAGES, PAGES, "got torch.float16, torch.float32 and torch.float32"),
        (Q, PAGES, PAGES.bfloat16(), "got torch.float32, torch.float32 and torch.bfloat16"),
        (Q.double(), PAGES.double(), PAGES.double(), "one dtype, float32, bfloat16 or float16, got torch.fl"),
        (torch.zeros(3, 24, 6).transpose(1, 2), PAGES, PAGES, r"q must have its heads side by side.*\(144,"),
        (torch.zeros(3, 7, 24)[:, ::2][:, :6], PAGES, PAGES, r"at least 3, 6, D\), got \(3, 4, 24\)"),
        (torch.zeros(3, 148)[:, :144].unflatten(1, (6, 24)), PAGES, PAGES, r"q must.*got strides \(148, 24"),
        (Q, PAGES.to("meta"), PAGES.to("meta"), "on one device, got cpu, meta, meta and cpu"),
    ],
)
def test_what_does_not_fit_the_plan_is_refused(q: Tensor, keys: Tensor, values: Tensor, message: str) -> None:
    plan = TritonAttention(6, 2).prepare(grow(8, [Spec(9, 3)]).plan(eager(8), 1.0))
    with pytest.raises(ValueError, match=message):
        tree_attention(q, keys, values, plan)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (Q[:2], r"out must be torch.float32 of shape \(3, 6, 24\).*got torch.float32 of shape \(2, 6, 24\)"),
        (Q.half(), "got torch.float16 of shape"),
        (torch.zeros(3, 24, 6).transpose(1, 2), r"out must have its heads side by side.*\(144, 1, 6\)"),
    ],
)
def test_an_output_of_another_form_is_refused(out: Tensor, message: str) -> None:
    plan = TritonAttention(6, 2).prepare(grow(8, [Spec(9, 3)]).plan(eager(8), 1.0))
    with pytest.raises(ValueError, match=message):
        tree_attention(Q, PAGES, PAGES, plan, out)
