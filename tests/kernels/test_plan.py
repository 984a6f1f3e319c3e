"""The attention plan: it covers what the rows see, exactly once, and reads shared pages once.

How long the pieces are into which segments are cut for several workers is asked in test_pieces.py; that
pieces keep all else as it is, here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import (
    AttentionPlan,
    AttentionSpec,
    PlanOptions,
    ReadTokens,
    build_plan,
    order_rows,
    read_tokens,
)
from testkit.paged import Rows, Spec, grow

PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64)
PRIVATE = 100


def lengths(page_size: int, stop: int) -> st.SearchStrategy[int]:
    """Numbers of tokens in 1..stop, most of them at or beside a page's border."""
    near = [n for k in range(0, stop + page_size, page_size) for n in (k - 1, k, k + 1) if 1 <= n <= stop]
    return st.sampled_from(near) | st.integers(1, stop)


@st.composite
def forests(draw: st.DrawFn, max_rows: int = 8, max_new: int | None = None) -> Rows:
    """Rows over pages 0 and 1, forked from one another at up to five levels, some with pages of their own."""
    page_size = draw(st.sampled_from(PAGE_SIZES))
    tables: list[tuple[int, ...]] = []
    starts, stops = [], []
    for i in range(draw(st.integers(1, max_rows))):
        parent = draw(st.sampled_from([(), *tables]))
        table: tuple[int, ...] = parent[: draw(st.integers(0, len(parent)))]
        if len(table) < 5:
            table += tuple(draw(st.lists(st.sampled_from((0, 1)), max_size=5 - len(table))))
        own = draw(st.integers(0 if table else 1, 2))
        table += tuple(PRIVATE + 2 * i + j for j in range(own))
        stop = draw(lengths(page_size, len(table) * page_size))
        new = 1 if max_new == 1 else draw(st.just(1) | st.just(stop) | lengths(page_size, stop))
        tables.append(table)
        stops.append(stop)
        starts.append(stop - new)
    rows = Rows(page_size, 0, tuple(tables), tuple(starts), tuple(stops))
    order = order_rows(rows.tables) if draw(st.booleans()) else draw(st.permutations(range(len(tables))))
    return rows.take(order)


COSTS = (Costs(), Costs(0, 0, 1, 200), Costs(1, 1, 1, 3), Costs(8, 2, 64, 200))


@st.composite
def options_for(draw: st.DrawFn, page_size: int) -> PlanOptions:
    return PlanOptions(
        align_tokens=draw(st.sampled_from((1, 2, 4))) * page_size,
        min_saved_tokens=draw(st.sampled_from((0, 1, page_size, 2 * page_size + 1, 256))),
        workers=draw(st.just(1) | st.integers(2, 200)),
        queries_a_tile=draw(st.sampled_from((1, 2, 3, 16))),
        costs=draw(st.sampled_from(COSTS)),
    )


def plan_of(rows: Rows, options: PlanOptions) -> AttentionPlan:
    return rows.plan(options, scale=1.0)


def read_slots(plan: AttentionPlan, segment: int) -> NDArray[np.int64]:
    """The slots that a segment reads, in order of position."""
    pages = plan.pages[plan.page_start[segment] : plan.page_start[segment + 1]].astype(np.int64)
    assert len(pages) == -(-plan.kv_tokens[segment] // plan.page_size)
    slots = pages[:, None] * plan.page_size + np.arange(plan.page_size)
    return slots.reshape(-1)[: plan.kv_tokens[segment]]


def seen_keys(plan: AttentionPlan, segment: int) -> NDArray[np.int64]:
    """How many of a segment's tokens each of its queries sees."""
    count, tokens, causal = (int(a[segment]) for a in (plan.query_count, plan.kv_tokens, plan.causal))
    if causal < 0:
        return np.full(count, tokens)
    seen = causal + 1 + np.arange(count)
    assert seen[-1] <= tokens, "no query sees more than the segment has"
    return seen


def expand(plan: AttentionPlan, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(queries, positions): how often a query meets a position, and in which slot."""
    times = np.zeros((plan.num_queries, length), dtype=np.int64)
    slots = np.full((plan.num_queries, length), -1)
    for i in range(plan.num_segments):
        seen = seen_keys(plan, i)
        first, low = plan.query_start[i], plan.kv_start[i]
        area = np.s_[first : first + len(seen), low : low + plan.kv_tokens[i]]
        visible = np.arange(plan.kv_tokens[i]) < seen[:, None]
        times[area] += visible
        slots[area] = np.where(visible, read_slots(plan, i), slots[area])
    return times, slots


def define(rows: Rows, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What `expand` must give: every query meets its own and all earlier positions once, in its own table."""
    times, slots = [], []
    for table, start, stop in zip(rows.tables, rows.starts, rows.stops, strict=True):
        own = np.array(table)[:, None] * rows.page_size + np.arange(rows.page_size)
        padded = np.resize(own.reshape(-1), length)
        for position in range(start, stop):
            visible = np.arange(length) <= position
            times.append(visible.astype(np.int64))
            slots.append(np.where(visible, padded, -1))
    return np.array(times), np.array(slots)


def partials_of(plan: AttentionPlan) -> dict[int, tuple[int, int, int]]:
    """Partial number -> (query, first position, number of keys seen)."""
    found = {}
    for i in range(plan.num_segments):
        for j, seen in enumerate(seen_keys(plan, i)):
            entry = (int(plan.query_start[i]) + j, int(plan.kv_start[i]), int(seen))
            found[int(plan.partial_start[i]) + j] = entry
    return found


def boundaries(plan: AttentionPlan) -> list[list[tuple[int, int]]]:
    """For each query its partials as (first position, keys), in the order in which they merge."""
    partials = partials_of(plan)
    return [[partials[p][1:] for p in plan.merge[:, q] if p >= 0] for q in range(plan.num_queries)]


@given(st.data())
def test_every_query_meets_every_visible_position_once_and_in_its_own_table(data: st.DataObject) -> None:
    rows = data.draw(forests())
    plan = plan_of(rows, data.draw(options_for(rows.page_size)))
    length = max(rows.stops)
    times, slots = expand(plan, length)
    wanted_times, wanted_slots = define(rows, length)
    np.testing.assert_array_equal(times, wanted_times)
    np.testing.assert_array_equal(slots, wanted_slots)


def levels(count: int, page: int) -> list[Spec]:
    """Rows that fork from one another at `count` depths, then forks of these, and forks of one token."""
    whole = [Spec(3 * page * (i + 1) + 1 + i % 2, 1 + i % 2, i - 1, 3 * i) for i in range(count)]
    forks = [Spec(3 * page * (i + 1) + page, 1 + 3 * i, i, 3 * i + 2) for i in range(count)]
    return [*whole, *forks, *(replace(one, new=1) for one in forks)]


def crowd(count: int, page: int) -> list[Spec]:
    """A shared prompt and little else; every third row has nothing of its own but the token it computes."""
    own = [1, page, page + 1]
    return [Spec(5 * page + own[i % 3], 1, 0 if i else -1, 5) for i in range(count)]


SHAPES = {
    "one row": lambda page: [Spec(9 * page + 1, 1)],
    "one chunk": lambda page: [Spec(9 * page + 3, 2 * page + 2)],
    "one prompt": lambda page: [Spec(4 * page - 1 or 1, 4 * page - 1 or 1)],
    "two rows": lambda page: [Spec(6 * page + 1, 1), Spec(6 * page + 1, 1, 0, 6)],
    **{f"{n} levels": lambda page, n=n: levels(n, page) for n in range(1, 6)},
    **{f"{n} rows": lambda page, n=n: crowd(n, page) for n in (15, 16, 17, 256)},
    "borders": lambda page: [
        Spec(k * page + d, new, 0 if k > 2 else -1, 2)
        for k in (2, 3, 4)
        for d in (-1, 0, 1)
        for new in (1, 2, page)
        if new <= k * page + d
    ],
}


@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_come_up_are_covered_once_with_and_without_cuts(shape: str, page: int) -> None:
    rows = grow(page, SHAPES[shape](page))
    rows = rows.take(order_rows(rows.tables))
    length = max(rows.stops)
    times, slots = define(rows, length)
    for workers in (1, 7, 66, 200):
        options = PlanOptions(page, 1, workers=workers, queries_a_tile=4, costs=Costs(0, 0, 1, 200))
        plan = plan_of(rows, options)
        for found, wanted in zip(expand(plan, length), (times, slots), strict=True):
            np.testing.assert_array_equal(found, wanted)


@given(st.data())
def test_the_merge_table_has_each_partial_once_in_order_of_position(data: st.DataObject) -> None:
    rows = data.draw(forests())
    plan = plan_of(rows, data.draw(options_for(rows.page_size)))
    partials = partials_of(plan)
    assert sorted(partials) == list(range(plan.num_partials))
    listed = []
    for query, column in enumerate(plan.merge.T.tolist()):
        own = [p for p in column if p >= 0]
        assert column == own + [-1] * (len(column) - len(own))
        assert all(partials[p][0] == query for p in own)
        begins = [partials[p][1] for p in own]
        assert begins == sorted(set(begins))
        listed += own
    assert sorted(listed) == sorted(partials)


@given(st.data())
def test_all_that_rows_share_ends_at_a_multiple_of_the_alignment(data: st.DataObject) -> None:
    rows = data.draw(forests())
    options = data.draw(options_for(rows.page_size))
    for column in boundaries(plan_of(rows, options)):
        ends = [begin + keys for begin, keys in column]
        assert [begin for begin, _ in column] == [0, *ends[:-1]], "a query's partials lie end to end"
        assert all(end % options.align_tokens == 0 for end in ends[:-1])


@given(forests(max_new=1))
def test_decoding_rows_read_a_page_once_if_it_lies_before_all_their_tokens(rows: Rows) -> None:
    rows = rows.take(order_rows(rows.tables))
    plan = plan_of(rows, PlanOptions(align_tokens=rows.page_size, min_saved_tokens=0))
    reads: Counter[tuple[int, ...]] = Counter()
    for i in range(plan.num_segments):
        table, first = rows.tables[plan.query_start[i]], int(plan.kv_start[i]) // rows.page_size
        last = first + int(plan.page_start[i + 1] - plan.page_start[i])
        reads.update(table[: depth + 1] for depth in range(first, last))
    for path in reads:
        holders = [i for i, table in enumerate(rows.tables) if table[: len(path)] == path]
        if all(rows.starts[i] >= len(path) * rows.page_size for i in holders):
            assert reads[path] == 1


def test_64_rows_over_a_shared_prompt_read_a_twentieth_of_what_they_would_alone() -> None:
    shared = [Spec(stop=8192 + 256, new=1, parent=0, shared=512) for _ in range(63)]
    rows = grow(16, [Spec(stop=8192 + 256, new=1), *shared])
    rows = rows.take(order_rows(rows.tables))
    together = int(plan_of(rows, PlanOptions()).kv_tokens.sum())
    alone = sum(int(plan_of(rows.take([i]), PlanOptions()).kv_tokens.sum()) for i in range(64))
    assert alone == 64 * (8192 + 256)
    assert together == 8192 + 64 * 256
    assert alone >= 20 * together


def test_a_shared_run_that_spares_too_little_is_read_by_each_row() -> None:
    rows = grow(16, [Spec(stop=48, new=1), Spec(stop=48, new=1, parent=0, shared=2)])
    rows = rows.take(order_rows(rows.tables))
    pays, does_not = (PlanOptions(align_tokens=16, min_saved_tokens=least) for least in (32, 33))
    assert plan_of(rows, pays).kv_tokens.tolist() == [32, 16, 16]
    assert plan_of(rows, does_not).kv_tokens.tolist() == [48, 48]


def test_pages_beyond_the_last_multiple_of_the_alignment_are_read_by_each_row() -> None:
    rows = grow(16, [Spec(stop=100, new=1), Spec(stop=100, new=1, parent=0, shared=5)])
    rows = rows.take(order_rows(rows.tables))
    assert plan_of(rows, PlanOptions(align_tokens=64, min_saved_tokens=1)).kv_tokens.tolist() == [64, 36, 36]
    assert plan_of(rows, PlanOptions(align_tokens=128, min_saved_tokens=1)).kv_tokens.tolist() == [100, 100]


def test_nested_forks_become_one_segment_a_level_and_one_tail_a_row() -> None:
    specs = [Spec(stop=7, new=1), Spec(stop=7, new=1, parent=0, shared=6)]
    specs += [Spec(stop=7, new=1, parent=0, shared=4), Spec(stop=7, new=1, parent=0, shared=2)]
    rows = grow(1, specs)
    rows = rows.take(order_rows(rows.tables))
    plan = plan_of(rows, PlanOptions(align_tokens=1, min_saved_tokens=1))
    shared = [
        (int(plan.query_count[i]), int(plan.kv_start[i]), int(plan.kv_tokens[i]))
        for i in range(plan.num_segments)
        if plan.query_count[i] > 1
    ]
    assert sorted(shared) == [(2, 4, 2), (3, 2, 2), (4, 0, 2)]
    tails = plan.kv_tokens[plan.query_count == 1]
    assert sorted(tails.tolist()) == [1, 1, 3, 5]


@pytest.mark.parametrize(("queries_a_tile", "tiles"), [(1, 64), (4, 16), (16, 4), (24, 3), (64, 1)])
def test_keys_are_counted_once_a_segment_and_once_a_tile(queries_a_tile: int, tiles: int) -> None:
    shared = [Spec(stop=8192 + 256, new=1, parent=0, shared=512) for _ in range(63)]
    rows = grow(16, [Spec(stop=8192 + 256, new=1), *shared])
    together = plan_of(rows.take(order_rows(rows.tables)), PlanOptions())
    alone = plan_of(rows, PlanOptions(min_saved_tokens=10**9))
    read = read_tokens(together, queries_a_tile)
    assert read == ReadTokens(once=8192 + 64 * 256, by_tile=tiles * 8192 + 64 * 256)
    assert read_tokens(alone, queries_a_tile) == ReadTokens(once=64 * 8448, by_tile=64 * 8448)
    assert read_tokens(alone, queries_a_tile).once >= 20 * read.once


def test_a_tile_of_a_chunk_reads_up_to_its_last_query() -> None:
    plan = plan_of(grow(4, [Spec(stop=30, new=10)]), PlanOptions())
    assert read_tokens(plan, 4) == ReadTokens(once=30, by_tile=24 + 28 + 30)
    assert read_tokens(plan, 1) == ReadTokens(once=30, by_tile=sum(range(21, 31)))
    assert read_tokens(plan, 10) == ReadTokens(once=30, by_tile=30)


@given(st.data())
def test_pieces_together_read_what_the_whole_reads(data: st.DataObject) -> None:
    rows = data.draw(forests())
    options = data.draw(options_for(rows.page_size))
    whole, cut = plan_of(rows, replace(options, workers=1)), plan_of(rows, options)
    for tile in (1, 3, 16):
        assert read_tokens(cut, tile) == read_tokens(whole, tile)


@pytest.mark.parametrize("new", [2, 12, 63, 64, 200])
def test_a_row_that_shares_nothing_is_one_masked_segment_whatever_its_length(new: int) -> None:
    plan = plan_of(grow(4, [Spec(stop=230, new=new)]), PlanOptions())
    assert (plan.kv_tokens.tolist(), plan.causal.tolist()) == ([230], [230 - new])


def test_a_page_in_which_a_row_still_computes_is_never_shared_unmasked() -> None:
    first = Spec(stop=8, new=1)
    rows = grow(4, [first, Spec(stop=8, new=3, parent=0, shared=2), Spec(stop=8, new=5, parent=0, shared=2)])
    rows = rows.take([2, 1, 0])
    plan = plan_of(rows, PlanOptions(align_tokens=4, min_saved_tokens=0))
    unmasked = (plan.causal < 0) & (plan.query_count > 1)
    assert plan.kv_tokens[unmasked].tolist() == [4]
    assert plan.query_count[unmasked].tolist() == [4]


def test_no_rows_make_an_empty_plan() -> None:
    plan = build_plan([], [], [], page_size=16, spec=AttentionSpec(1.0), options=PlanOptions())
    assert (plan.num_segments, plan.num_queries, plan.num_partials) == (0, 0, 0)
    assert plan.merge.shape == (0, 0)


@pytest.mark.parametrize(
    ("starts", "stops", "message"),
    [
        ((0,), (1, 1), "got 2 tables, 1 starts, 2 stops"),
        ((0, 3), (1, 3), r"row 1: positions 3\.\.3 do not fit a table of 8 slots"),
        ((0, 7), (1, 9), r"row 1: positions 7\.\.9 do not fit a table of 8 slots"),
        ((-1, 0), (1, 1), r"row 0: positions -1\.\.1 do not fit"),
    ],
)
def test_rows_that_make_no_sense_are_refused(
    starts: tuple[int, ...], stops: tuple[int, ...], message: str
) -> None:
    rows = replace(grow(4, [Spec(8, 1), Spec(8, 1)]), starts=starts, stops=stops)
    with pytest.raises(ValueError, match=message):
        plan_of(rows, PlanOptions())


@pytest.mark.parametrize("align", [0, -4, 6])
def test_an_alignment_that_cuts_pages_is_refused(align: int) -> None:
    with pytest.raises(ValueError, match=f"align_tokens must be a multiple of 4, got {align}"):
        plan_of(grow(4, [Spec(8, 1)]), PlanOptions(align_tokens=align))


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": -3}, {"queries_a_tile": 0}])
def test_no_workers_and_empty_tiles_are_refused(wrong: dict[str, int]) -> None:
    options = replace(PlanOptions(), **wrong)
    found = f"{options.workers} and {options.queries_a_tile}"
    with pytest.raises(ValueError, match=f"workers and queries_a_tile must be at least 1, got {found}"):
        plan_of(grow(4, [Spec(8, 1)]), options)


@given(st.lists(st.lists(st.sampled_from((0, 1)), max_size=4), max_size=6))
def test_ordered_rows_with_a_common_prefix_are_neighbours(tables: list[list[int]]) -> None:
    order = order_rows(tables)
    assert sorted(order) == list(range(len(tables)))
    ordered = [tables[i] for i in order]
    for table in tables:
        for depth in range(1, len(table) + 1):
            holders = [i for i, one in enumerate(ordered) if one[:depth] == table[:depth]]
            assert holders == list(range(holders[0], holders[-1] + 1))
