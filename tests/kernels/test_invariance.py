"""A query's bits are its own: no batch mate, chunk, page, thread or shared prefix changes one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels.cpu_ir import LANES, PANEL
from radixlm.kernels.cpu_softmax import BLOCK, FEW
from radixlm.kernels.plan import PlanOptions
from testkit.compiled import attention
from testkit.paged import Attention, Pool, Rows, Spec, attend, fill, grow, make_queries, private

HEADS, KV_HEADS, SIZE = 6, 2, 48
ONE = attention(HEADS, KV_HEADS)
OPTIONS = PlanOptions(align_tokens=BLOCK, min_saved_tokens=1)
"""As served, but for sharing whatever can be shared."""
STORAGES = (torch.float32, torch.bfloat16, torch.float16)


def run(rows: Rows, pool: Pool, queries: list[Tensor], one: Attention = ONE) -> list[Tensor]:
    return attend(one, OPTIONS, rows, pool, queries)


def whole(rows: Rows, pool: Pool, queries: list[Tensor]) -> list[Tensor]:
    """Each row computed from its first token on, alone and in one chunk; what the step asks for of it."""
    alone = [replace(rows.take([i]), starts=(0,)) for i in range(len(rows.tables))]
    found = [run(row, pool, [q])[0] for row, q in zip(alone, queries, strict=True)]
    return [one[start:] for one, start in zip(found, rows.starts, strict=True)]


def assert_equal(found: list[Tensor], wanted: list[Tensor]) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@st.composite
def forests(draw: st.DrawFn) -> Rows:
    """Rows over pages of one size, forked from earlier ones, some long enough to share blocks and chunks."""
    page = draw(st.sampled_from((1, 4, 16, 64)))
    specs: list[Spec] = []
    for i in range(draw(st.integers(1, 6))):
        stop = draw(st.integers(1, 40) | st.sampled_from((63, 64, 65, 127, 128, 129, 150, 200, 260)))
        new = draw(st.just(1) | st.integers(1, stop))
        specs.append(Spec(stop, new, draw(st.integers(-1, i - 1)), draw(st.integers(0, -(-stop // page)))))
    return grow(page, specs)


@given(forests(), st.sampled_from(STORAGES))
def test_a_row_among_others_has_the_bits_it_has_alone_and_whole(rows: Rows, storage: torch.dtype) -> None:
    pool, queries = fill(rows, KV_HEADS, SIZE, dtype=storage), make_queries(rows, HEADS, SIZE)
    assert_equal(run(rows, pool, queries), whole(rows, pool, queries))


@given(forests(), st.sampled_from((1, 4, 16, 64)), st.integers(0, 9))
@settings(max_examples=20)
def test_shared_pages_give_the_bits_of_private_copies_in_pages_of_any_size(
    rows: Rows, page_size: int, seed: int
) -> None:
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    assert_equal(run(*private(rows, pool, page_size, seed), queries), run(rows, pool, queries))


def some_rows() -> Rows:
    """Two levels of sharing, a chunk, a query inside a shared page."""
    deep = Spec(300, 1)
    return grow(
        16,
        [
            deep,
            Spec(290, 2, parent=0, shared=17),
            Spec(275, 90, parent=0, shared=11),
            Spec(272, 1, parent=0, shared=17),
            Spec(140, 1, parent=0, shared=8),
            Spec(33, 33),
        ],
    )


@given(st.lists(st.integers(1, 299), max_size=8, unique=True))
@settings(max_examples=25)
def test_a_prompt_has_the_same_bits_in_any_chunks(cuts: list[int]) -> None:
    rows = grow(16, [Spec(300, 300)])
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    chunks = [
        run(replace(rows, starts=(a,), stops=(b,)), pool, queries)[0]
        for a, b in pairwise((0, *sorted(cuts), 300))
    ]
    assert torch.equal(torch.cat(chunks), run(rows, pool, queries)[0])


@pytest.mark.parametrize("start", [1, 63, 64, 65, 100, 180])
def test_a_long_chunk_over_a_long_context_has_the_bits_of_single_tokens(start: int) -> None:
    rows = grow(16, [Spec(400, 400 - start)])
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    chunk = run(rows, pool, queries)[0]
    for position in {start, 127, 128, 191, 192, 255, 256, 399} & set(range(start, 400)):
        single = replace(rows, starts=(position,), stops=(position + 1,))
        assert torch.equal(run(single, pool, queries)[0][0], chunk[position - start]), position


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1), (16, 1), (32, 2)], ids=str)
@pytest.mark.parametrize("size", [8, 80, 128])
def test_neither_threads_nor_batch_mates_change_a_bit_for_any_grouping(
    heads: tuple[int, int], size: int
) -> None:
    rows = some_rows()
    pool, queries = fill(rows, heads[1], size), make_queries(rows, heads[0], size)
    wanted = run(rows, pool, queries, attention(*heads, threads=1))
    for threads in (2, 3):
        assert_equal(run(rows, pool, queries, attention(*heads, threads=threads)), wanted)
    one = attention(*heads, threads=1)
    assert_equal([run(rows.take([i]), pool, [queries[i]], one)[0] for i in range(6)], wanted)


@given(order=st.permutations(range(6)))
@settings(max_examples=10)
def test_rows_may_stand_in_any_order(order: list[int]) -> None:
    rows = some_rows()
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    assert_equal(attend(ONE, OPTIONS, rows, pool, queries, order), run(rows, pool, queries))


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_which_pages_hold_the_keys_and_in_which_layout_changes_nothing(storage: torch.dtype) -> None:
    rows = some_rows()
    pool, queries = fill(rows, KV_HEADS, SIZE, dtype=storage), make_queries(rows, HEADS, SIZE)
    wanted = run(rows, pool, queries)
    in_a_row = sorted(range(rows.num_pages), key=lambda page: min(_places(rows, page), default=(9, 9)))
    for order in (in_a_row, torch.randperm(rows.num_pages).tolist()):
        new = {page: place for place, page in enumerate(order)}
        moved = replace(rows, tables=tuple(tuple(new[page] for page in table) for table in rows.tables))
        pages_apart = Pool(pool.keys[order], pool.values[order])
        heads_apart = pages_apart.map(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1))
        assert_equal(run(moved, pages_apart, queries), wanted)
        assert_equal(run(moved, heads_apart, queries), wanted)


def _places(rows: Rows, page: int) -> list[tuple[int, int]]:
    return [(i, table.index(page)) for i, table in enumerate(rows.tables) if page in table]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_query_that_is_not_finite_spoils_no_other(wrong: float) -> None:
    rows = some_rows()
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    wanted = run(rows, pool, queries)
    spoilt = list(queries)
    spoilt[2] = torch.full_like(spoilt[2], wrong)
    for i, (found, right) in enumerate(zip(run(rows, pool, spoilt), wanted, strict=True)):
        assert bool(found.isnan().all()) if i == 2 else torch.equal(found, right)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("what", ["keys", "values"])
def test_a_key_or_value_that_is_not_finite_spoils_no_row_that_sees_it_not(wrong: float, what: str) -> None:
    rows = some_rows()
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    wanted = run(rows, pool, queries)
    own = rows.tables[2][-1]  # the last page of a row that nobody shares
    getattr(pool, what)[own, :, 0] = wrong
    for i, (found, right) in enumerate(zip(run(rows, pool, queries), wanted, strict=True)):
        if i != 2:
            assert torch.equal(found, right)
        else:
            assert not found[-1].isfinite().all()


def test_chunks_of_other_rows_of_more_than_one_item_of_work_change_nothing() -> None:
    rows = grow(4, [Spec(70 + i, 1 + 7 * i, 0 if i else -1, 16) for i in range(9)])
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    assert_equal(run(rows, pool, queries), whole(rows, pool, queries))


def as_more_heads(numbers: list[Tensor], times: int) -> list[Tensor]:
    """Each group of heads as many times over."""
    return [one.unflatten(1, (KV_HEADS, -1)).repeat(1, 1, times, 1).flatten(1, 2) for one in numbers]


def assert_few_lanes_are_as_many(rows: Rows, pool: Pool, queries: list[Tensor]) -> None:
    """The same queries so many times over that they fill a vector, or two, have the same bits each time."""
    group = queries[0].shape[1] // KV_HEADS
    few = run(rows, pool, queries, attention(group * KV_HEADS, KV_HEADS))
    for lanes in (FEW, LANES):
        times = lanes // group + 1
        many = attention(group * times * KV_HEADS, KV_HEADS)
        assert_equal(run(rows, pool, as_more_heads(queries, times), many), as_more_heads(few, times))


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("page", [1, 4, 16, 64])
@pytest.mark.parametrize("size", [8, 16, 64, 80, 96, 128, 256])
def test_few_lanes_give_the_bits_of_many(size: int, page: int, storage: torch.dtype) -> None:
    for group in range(1, FEW + 1):
        lengths = (1, 15, 16, 17, 63, 64, 65, 130)
        rows = grow(
            page,
            [Spec(n, min(n, new)) for new in {1, FEW // group} for n in lengths]
            + [Spec(70, PANEL // group + 1)],  # the last lanes of a chunk
        )
        pool = fill(rows, KV_HEADS, size, dtype=storage)
        assert_few_lanes_are_as_many(rows, pool, make_queries(rows, group * KV_HEADS, size))


@given(forests(), st.integers(1, FEW), st.sampled_from((16, 80)), st.sampled_from(STORAGES))
@settings(max_examples=30)
def test_few_lanes_give_the_bits_of_many_whatever_is_shared(
    rows: Rows, group: int, size: int, storage: torch.dtype
) -> None:
    pool, queries = fill(rows, KV_HEADS, size, dtype=storage), make_queries(rows, group * KV_HEADS, size)
    assert_few_lanes_are_as_many(rows, pool, queries)
