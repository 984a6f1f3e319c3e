"""Deterministic attention: a query has the same bits whatever it is computed with; the tile behind that."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels.cpu import SPLIT_TOKENS, cpu_ops
from radixlm.kernels.cpu_attention import CpuAttention
from radixlm.kernels.cpu_flash import Tile, _holds, find_tile
from radixlm.kernels.plan import PlanOptions
from testkit.paged import Attention, Pool, Rows, Spec, attend, fill, grow, make_queries

HEADS, KV_HEADS, SIZE = 6, 2, 24


def attention_with(split: int) -> tuple[Attention, PlanOptions]:
    """The ops as they are served, or a narrower split, which lets short rows have many partials."""
    if split == SPLIT_TOKENS:
        ops = cpu_ops(HEADS, KV_HEADS, SIZE, deterministic=True)
        return ops, replace(ops.plan_options, min_saved_tokens=1)
    tile = find_tile(HEADS // KV_HEADS, SIZE, split)
    return CpuAttention(HEADS, KV_HEADS, tile), PlanOptions(split_tokens=split, min_saved_tokens=1)


def whole(rows: Rows, split: int, pool: Pool, queries: list[Tensor]) -> list[Tensor]:
    """Each row computed from its first token on, alone and in one chunk."""
    attention, options = attention_with(split)
    alone = [replace(rows.take([i]), starts=(0,)) for i in range(len(rows.tables))]
    return [attend(attention, options, row, pool, [q])[0] for row, q in zip(alone, queries, strict=True)]


@st.composite
def forests(draw: st.DrawFn, page: int) -> Rows:
    specs: list[Spec] = []
    for i in range(draw(st.integers(1, 6))):
        stop = draw(st.integers(1, 40) | st.sampled_from((64, 127, 128, 129, 150, 200)))
        new = draw(st.just(1) | st.integers(1, stop))
        parent = draw(st.integers(-1, i - 1))
        specs.append(Spec(stop, new, parent, draw(st.integers(0, -(-stop // page)))))
    return grow(page, specs)


@pytest.mark.parametrize("split", [32, SPLIT_TOKENS])
@given(data=st.data())
@settings(max_examples=25)
def test_a_row_among_others_has_the_bits_it_has_alone_and_whole(split: int, data: st.DataObject) -> None:
    page = data.draw(st.sampled_from((1, 4, 16, 32)))
    rows = data.draw(forests(page))
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    alone = whole(rows, split, pool, queries)
    together = attend(*attention_with(split), rows, pool, queries)
    wanted = [one[start:] for one, start in zip(alone, rows.starts, strict=True)]
    torch.testing.assert_close(together, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((4, 4), 80), ((8, 2), 128), ((7, 1), 64)])
def test_chunks_and_batch_mates_change_no_bit_for_any_grouping_and_number_of_threads(
    heads: tuple[int, int], size: int, threads: int
) -> None:
    ops = cpu_ops(*heads, size, deterministic=True)
    rows = grow(16, [Spec(300, 300), Spec(290, 2, parent=0, shared=17), Spec(275, 70, parent=0, shared=16)])
    pool, queries = fill(rows, heads[1], size), make_queries(rows, heads[0], size)
    together = attend(ops, ops.plan_options, rows, pool, queries)
    cuts = (0, 1, 50, 64, 129, 131, 256, 299, 300)
    chunks = [
        attend(ops, ops.plan_options, replace(rows.take([0]), starts=(a,), stops=(b,)), pool, queries)[0]
        for a, b in pairwise(cuts)
    ]
    assert torch.equal(torch.cat(chunks), together[0])
    for i in (1, 2):
        alone = attend(ops, ops.plan_options, rows.take([i]), pool, [queries[i]])[0]
        assert torch.equal(alone, together[i])


def test_a_long_chunk_over_a_long_context_has_the_bits_of_single_tokens() -> None:
    ops = cpu_ops(HEADS, KV_HEADS, SIZE, deterministic=True)
    rows = grow(16, [Spec(700, 520)])
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    chunk = attend(ops, ops.plan_options, rows, pool, queries)[0]
    for position in (180, 255, 256, 383, 384, 511, 640, 699):
        single = replace(rows, starts=(position,), stops=(position + 1,))
        assert torch.equal(attend(ops, ops.plan_options, single, pool, queries)[0][0], chunk[position - 180])


@pytest.mark.parametrize("tile", [Tile(4, False), Tile(16, True)])
def test_rows_that_only_fill_a_tile_do_not_change_the_values(tile: Tile) -> None:
    rows = grow(8, [Spec(20, 5), Spec(19, 1), Spec(33, 11)])
    pool, queries = fill(rows, KV_HEADS, SIZE), make_queries(rows, HEADS, SIZE)
    options = PlanOptions(split_tokens=16)
    found = attend(CpuAttention(HEADS, KV_HEADS, tile), options, rows, pool, queries)
    wanted = attend(CpuAttention(HEADS, KV_HEADS, None), options, rows, pool, queries)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("group", "size"), [(1, 64), (3, 64), (4, 128), (7, 64), (8, 80), (2, 24)])
def test_this_processor_has_a_tile(group: int, size: int) -> None:
    assert find_tile(group, size, SPLIT_TOKENS) is not None


@pytest.mark.parametrize("size", [64, 128])
def test_products_of_any_number_of_rows_are_found_to_be_no_tile(size: int) -> None:
    assert not _holds(Tile(1, False), 3, size, SPLIT_TOKENS, torch.float32)


def test_heads_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads must be a multiple of num_kv_heads, got 7 and 2"):
        cpu_ops(7, 2, 64, deterministic=False)
