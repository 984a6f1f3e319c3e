"""Long segments in pieces: even work, bounds that hold, and results that do not depend on any of it."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.kernels.cpu_softmax import BLOCK
from radixlm.kernels.pieces import Costs, Work
from radixlm.kernels.plan import AttentionPlan, PlanOptions, order_rows, read_tokens
from testkit.compiled import attention
from testkit.paged import Rows, Spec, attend, fill, grow, make_queries

FREE = Costs(item=0, partial=0, least_tokens=1, most_pieces=10**6)
"""Cutting costs nothing and may be as fine as pages allow."""


def plan_of(rows: Rows, options: PlanOptions) -> AttentionPlan:
    return rows.take(order_rows(rows.tables)).plan(options, scale=1.0)


def items_of(plan: AttentionPlan, queries_a_tile: int) -> list[int]:
    """The keys that each tile of queries reads."""
    found: list[int] = Work(plan.query_count, plan.kv_tokens, plan.causal).tiles(queries_a_tile)[2].tolist()
    return found


def lateness(plan: AttentionPlan, options: PlanOptions) -> float:
    """How long the last worker reads if each takes the longest item left, over the average worker."""
    items = items_of(plan, options.queries_a_tile)
    busy = [0] * options.workers
    for item in sorted(items, reverse=True):
        heapq.heapreplace(busy, busy[0] + item)
    return max(busy) * options.workers / sum(items)


def joined(plan: AttentionPlan) -> AttentionPlan:
    """The plan with pieces that follow one another put together again, but for partials and merge table."""
    follows = np.zeros(plan.num_segments, dtype=bool)
    for i, j in pairwise(range(plan.num_segments)):
        same = (plan.query_start[i], plan.query_count[i]) == (plan.query_start[j], plan.query_count[j])
        follows[j] = same and plan.kv_start[i] + plan.kv_tokens[i] == plan.kv_start[j]
    first = np.flatnonzero(~follows)
    last = np.append(first[1:], plan.num_segments) - 1
    low = plan.kv_start[first]
    before = plan.kv_start[last] - low
    return replace(
        plan,
        query_start=plan.query_start[first],
        query_count=plan.query_count[first],
        page_start=np.append(plan.page_start[first], plan.page_start[-1]),
        kv_start=low,
        kv_tokens=plan.kv_tokens[last] + before,
        causal=np.where(plan.causal[last] < 0, -1, plan.causal[last] + before),
    )


READS = ("query_start", "query_count", "page_start", "pages", "kv_tokens", "kv_start", "causal")


def decode(count: int, tokens: int) -> list[Spec]:
    return [Spec(tokens, 1)] * count


def shared(count: int, prompt: int, own: int) -> list[Spec]:
    """Rows over pages of 64 slots."""
    return [Spec(prompt + own, 1, 0 if i else -1, prompt // 64) for i in range(count)]


def ragged(count: int) -> list[Spec]:
    return [Spec(1000 + 7001 * i * i % 7000, 1) for i in range(count)]


LONG = {
    "64 rows of 4,096": decode(64, 4096),
    "100 rows of 4,096": decode(100, 4096),
    "one row of 100,000": decode(1, 100_000),
    "7 rows of 30,000": decode(7, 30_000),
    "64 ragged rows": ragged(64),
    "64 rows after 65,536 shared": shared(64, 65_536, 512),
    "16 rows after 65,536 shared": shared(16, 65_536, 4096),
    "a chunk of 512 after 100,000": [Spec(100_512, 512)],
    "a chunk of 2,048 after 2,048": [Spec(4096, 2048)],
    "a prompt of 2,048 and 63 rows of 4,096": [Spec(2048, 2048), *decode(63, 4096)],
}


@pytest.mark.parametrize("workers", [2, 16, 33, 66, 99])
@pytest.mark.parametrize("shape", LONG)
def test_long_work_keeps_all_workers_busy_to_within_a_quarter(shape: str, workers: int) -> None:
    options = PlanOptions(workers=workers)
    rows = grow(64, LONG[shape])
    print(shape, workers, lateness(plan_of(rows, options), options))
    assert lateness(plan_of(rows, options), options) <= 1.25


@pytest.mark.parametrize(("programs", "bound"), [(1, 1.06), (2, 1.06), (4, 1.06), (6, 1.13)])
def test_64_rows_of_4096_tokens_fill_132_processors_whatever_a_processor_holds(
    programs: int, bound: float
) -> None:
    """Eight KV heads, so that one of them has an eighth of all programs."""
    options = PlanOptions(workers=132 * programs // 8)
    assert lateness(plan_of(grow(16, decode(64, 4096)), options), options) <= bound


@pytest.mark.parametrize("workers", [16, 33, 66, 99, 116])
def test_one_row_of_100000_tokens_fills_the_machine(workers: int) -> None:
    options = PlanOptions(workers=workers)
    plan = plan_of(grow(16, decode(1, 100_000)), options)
    assert 0.9 * workers <= plan.num_segments <= workers
    assert lateness(plan, options) <= 1.1


@given(
    st.lists(st.tuples(st.integers(500, 30_000), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(2, 200),
)
def test_where_cutting_is_free_no_worker_is_later_than_a_quarter(
    rows: list[tuple[int, int]], workers: int
) -> None:
    options = PlanOptions(align_tokens=1, workers=workers, costs=FREE)
    # A mask keeps what is behind it in one piece, which is little here.
    plan = plan_of(grow(1, [Spec(stop, min(new, stop // 500)) for stop, new in rows]), options)
    # Tokens are whole: with 500 of them for 159 workers somebody has four, whatever is cut.
    average = sum(items_of(plan, options.queries_a_tile)) / workers
    assert lateness(plan, options) <= 1.25 * math.ceil(average) / average


def some_rows(
    stops: st.SearchStrategy[int], news: tuple[int, ...], most: int
) -> st.SearchStrategy[list[tuple[int, int, int]]]:
    """(stop, new, pages shared with the one before) of up to `most` rows."""
    one = st.tuples(stops, st.sampled_from(news), st.integers(0, 30))
    return st.lists(one, min_size=1, max_size=most)


ROWS = some_rows(st.integers(1, 2000), (1, 1, 5, 40), 12)


def grown(rows: list[tuple[int, int, int]], page: int) -> Rows:
    specs = [Spec(stop, min(stop, new), i - 1, pages) for i, (stop, new, pages) in enumerate(rows)]
    return grow(page, specs)


@st.composite
def cutting(draw: st.DrawFn, align: int) -> PlanOptions:
    return PlanOptions(
        align_tokens=align,
        min_saved_tokens=1,
        workers=draw(st.integers(1, 200)),
        queries_a_tile=draw(st.sampled_from((1, 4, 16))),
        costs=draw(st.sampled_from((Costs(), FREE, Costs(4, 1, 64, 200), Costs(0, 0, 1, 3)))),
    )


@given(ROWS, st.sampled_from((1, 4, 16, 64)), st.data())
def test_pieces_put_together_are_the_plan_for_one_worker(
    rows: list[tuple[int, int, int]], page: int, data: st.DataObject
) -> None:
    options = data.draw(cutting(64))
    tree = grown(rows, page)
    whole, cut = plan_of(tree, replace(options, workers=1)), plan_of(tree, options)
    again = joined(cut)
    for name in READS:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name), err_msg=name)
        assert getattr(cut, name).dtype == np.int32, name


@given(ROWS, st.sampled_from((1, 4, 16, 64)), st.data())
def test_pieces_begin_at_the_alignment_and_are_neither_too_short_nor_too_many(
    rows: list[tuple[int, int, int]], page: int, data: st.DataObject
) -> None:
    options = data.draw(cutting(64))
    tree = grown(rows, page)
    whole, cut = plan_of(tree, replace(options, workers=1)), plan_of(tree, options)
    assert not (cut.kv_start % 64).any()
    ends = set((whole.kv_start + whole.kv_tokens).tolist())
    short = cut.kv_tokens < options.costs.least_tokens
    assert all(end in ends for end in (cut.kv_start + cut.kv_tokens)[short].tolist())
    owner = np.searchsorted(whole.page_start[1:], cut.page_start[:-1], side="right")
    assert np.bincount(owner, minlength=1).max() <= options.costs.most_pieces
    before, after = (items_of(plan, options.queries_a_tile) for plan in (whole, cut))
    assert len(after) - len(before) <= 4 * max(options.workers, sum(before) / int(whole.kv_tokens.max()))


@given(ROWS, st.integers(2, 200))
def test_one_worker_and_the_costs_of_more_make_one_plan(rows: list[tuple[int, int, int]], tile: int) -> None:
    tree = grown(rows, 16)
    plain = plan_of(tree, PlanOptions())
    other = plan_of(tree, PlanOptions(workers=1, queries_a_tile=tile, costs=FREE))
    for name in (*READS, "partial_start", "merge"):
        np.testing.assert_array_equal(getattr(other, name), getattr(plain, name))


@pytest.mark.parametrize(
    ("specs", "workers"),
    [
        (decode(64, 4096), 16),
        (decode(256, 2000), 16),
        (decode(64, 4096), 64),
        (decode(8, 320), 132),
        (decode(1, 300), 132),
        ([Spec(4096, 2048)] * 8, 66),
        ([Spec(3000, 3000)], 132),
    ],
    ids=str,
)
def test_nothing_is_cut_where_workers_are_busy_or_pieces_would_be_short(
    specs: list[Spec], workers: int
) -> None:
    rows = grow(16, specs)
    assert plan_of(rows, PlanOptions(workers=workers)).num_segments == len(specs)


def test_a_chunk_is_cut_before_its_first_query_and_only_its_last_piece_is_masked() -> None:
    plan = plan_of(grow(16, [Spec(10_000, 70)]), PlanOptions(workers=132))
    assert plan.num_segments > 3
    assert plan.causal[:-1].tolist() == [-1] * (plan.num_segments - 1)
    assert int(plan.kv_start[-1] + plan.causal[-1]) == 10_000 - 70
    assert (plan.kv_start[:-1] + plan.kv_tokens[:-1]).max() <= 10_000 - 70


def test_which_pages_a_row_has_changes_no_cut() -> None:
    plans = [plan_of(grow(16, ragged(20), seed), PlanOptions(workers=66)) for seed in (0, 1)]
    lengths = [sorted(zip(p.kv_start.tolist(), p.kv_tokens.tolist(), strict=True)) for p in plans]
    assert lengths[0] == lengths[1]
    assert plans[0].num_segments > 20


def test_pieces_are_merged_in_order_of_position() -> None:
    plan = plan_of(grow(64, shared(3, 4096, 600)), PlanOptions(workers=16))
    segment_of = np.repeat(np.arange(plan.num_segments), plan.query_count)
    assert plan.merge.shape[0] > 3
    for column in plan.merge.T:
        own = segment_of[column[column >= 0]]
        begins, keys = plan.kv_start[own].tolist(), plan.kv_tokens[own].tolist()
        assert begins == [0, *np.cumsum(keys)[:-1]]
        assert sum(keys) == 4696


def test_cuts_read_no_key_more_often() -> None:
    rows = grow(64, shared(64, 8192, 256))
    whole, cut = (plan_of(rows, PlanOptions(workers=workers)) for workers in (1, 66))
    assert cut.num_segments > whole.num_segments
    assert read_tokens(cut, 16) == read_tokens(whole, 16)


@pytest.mark.parametrize("wrong", [{"item": -1}, {"partial": -1}, {"least_tokens": 0}, {"most_pieces": 0}])
def test_costs_below_nothing_and_empty_pieces_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got Costs.*{next(iter(wrong))}={min(wrong.values())}"):
        replace(Costs(), **wrong)


HEADS, KV_HEADS, SIZE = 6, 2, 16
CPU = attention(HEADS, KV_HEADS)


@given(
    some_rows(st.sampled_from((1, 63, 64, 65, 129, 200, 320)), (1, 1, 2, 70), 6),
    st.sampled_from((1, 4, 16, 64)),
    st.integers(2, 200),
)
@settings(max_examples=25)
def test_on_a_cpu_pieces_give_the_bits_of_the_whole(
    rows: list[tuple[int, int, int]], page: int, workers: int
) -> None:
    tree = grown(rows, page)
    pool, queries = fill(tree, KV_HEADS, SIZE), make_queries(tree, HEADS, SIZE)
    whole = PlanOptions(align_tokens=BLOCK, min_saved_tokens=1)
    cut = replace(whole, workers=workers, queries_a_tile=4, costs=FREE)
    found, wanted = (attend(CPU, options, tree, pool, queries) for options in (cut, whole))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_on_a_cpu_many_pieces_of_many_levels_give_the_bits_of_the_whole() -> None:
    specs = [Spec(900, 1), Spec(1000, 3, 0, 40), Spec(1100, 130, 1, 50), Spec(640, 1, 2, 40), Spec(1500, 1)]
    tree = grow(16, specs)
    pool, queries = fill(tree, KV_HEADS, SIZE), make_queries(tree, HEADS, SIZE)
    whole = PlanOptions(align_tokens=BLOCK, min_saved_tokens=1)
    cut = replace(whole, workers=99, costs=FREE)
    assert plan_of(tree, cut).num_segments > 3 * plan_of(tree, whole).num_segments
    found, wanted = (attend(CPU, options, tree, pool, queries) for options in (cut, whole))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
