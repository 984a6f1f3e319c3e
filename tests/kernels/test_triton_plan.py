"""The plan as kernels read it: the same queries meet the same slots, and partials come together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import AttentionPlan, PlanOptions
from radixlm.kernels.triton_plan import NARROW_ROWS, WIDE_ROWS, PlanBuffer, TritonPlan, lower
from testkit.paged import Spec, grow

CPU = torch.device("cpu")
GROUPS = (1, 3, 8, 16)


def lowered(
    plan: AttentionPlan, group: int = 1, num_pages: int | None = None, into: PlanBuffer | None = None
) -> TritonPlan:
    return lower(plan, device=CPU, num_heads=2 * group, num_kv_heads=2, num_pages=num_pages, into=into)


@st.composite
def plans(draw: st.DrawFn) -> AttentionPlan:
    """Of up to six rows that fork from earlier ones, whole or in pieces."""
    page = draw(st.sampled_from([1, 4, 16]))
    specs: list[Spec] = []
    for i in range(draw(st.integers(1, 6))):
        stop = draw(st.integers(1, 150))
        new = draw(st.just(1) | st.integers(1, stop))
        specs.append(Spec(stop, new, draw(st.integers(-1, i - 1)), draw(st.integers(0, -(-stop // page)))))
    options = PlanOptions(
        align_tokens=page,
        min_saved_tokens=1,
        workers=draw(st.sampled_from([1, 7, 40])),
        costs=Costs(1, 0, draw(st.sampled_from([1, 16]))),
    )
    return grow(page, specs).plan(options, 1.0)


def met(plan: AttentionPlan, items: list[list[int]]) -> Counter[tuple[int, int]]:
    """How often each query meets each slot, by (query start, queries, first page, tokens, causal)."""
    found: Counter[tuple[int, int]] = Counter()
    for query_start, count, first_page, tokens, causal in items:
        at = np.arange(tokens)
        slots = plan.pages[first_page + at // plan.page_size] * plan.page_size + at % plan.page_size
        for j in range(count):
            sees = tokens if causal < 0 else min(tokens, causal + j + 1)
            found.update((query_start + j, int(slot)) for slot in slots[:sees])
    return found


def segments_of(plan: AttentionPlan) -> list[list[int]]:
    columns = (plan.query_start, plan.query_count, plan.page_start[:-1], plan.kv_tokens, plan.causal)
    return [[int(n) for n in row] for row in zip(*columns, strict=True)]


@given(plans(), st.sampled_from(GROUPS))
def test_items_make_queries_meet_the_slots_that_segments_make_them_meet(
    plan: AttentionPlan, group: int
) -> None:
    found = lowered(plan, group)
    assert torch.equal(found.pages, torch.from_numpy(plan.pages))
    assert met(plan, found.items[:, :5].tolist()) == met(plan, segments_of(plan))


@given(plans(), st.sampled_from(GROUPS))
def test_a_query_of_one_item_is_written_by_it_and_any_other_is_merged_from_its_partials(
    plan: AttentionPlan, group: int
) -> None:
    found = lowered(plan, group)
    items_of: dict[int, list[tuple[int, int]]] = {}  # query -> (position, partial) of each of its items
    for query, count, _, _, _, partial, position, _ in found.items.tolist():
        for j in range(count):
            items_of.setdefault(query + j, []).append((position, -1 if partial < 0 else partial + j))
    merged = {query: [p for p in partials if p >= 0] for query, *partials in found.merge.tolist()}
    for query in range(plan.num_queries):
        partials = [partial for _, partial in sorted(items_of[query])]
        if query in merged:
            assert merged.pop(query) == partials, "in order of position"
        else:
            assert partials == [-1]
    assert not merged
    numbers = sorted(p for query in items_of for _, p in items_of[query] if p >= 0)
    assert numbers == list(range(found.num_partials)), "each partial once, and none for nothing"


@given(plans(), st.sampled_from(GROUPS))
def test_wide_items_come_first_and_of_each_kind_those_that_read_most(plan: AttentionPlan, group: int) -> None:
    found = lowered(plan, group)
    wide, narrow = found.counts[:2].tolist()
    assert wide + narrow == len(found.items)
    for items, rows in ((found.items[:wide], WIDE_ROWS), (found.items[wide:], NARROW_ROWS)):
        assert bool((items[:, 1] >= 1).all())
        assert bool((items[:, 1] * group <= rows).all())
        tokens = items[:, 3].tolist()
        assert tokens == sorted(tokens, reverse=True)


def test_a_segment_that_one_narrow_item_can_take_is_not_wide() -> None:
    options = PlanOptions(align_tokens=4, min_saved_tokens=1)
    fits, more = (lowered(grow(4, [Spec(40, new)]).plan(options, 1.0), 3) for new in (5, 6))
    assert fits.counts[:2].tolist() == [0, 1]
    assert more.counts[:2].tolist() == [1, 0]


def test_an_item_of_a_long_prefill_reads_no_more_than_its_last_query_sees() -> None:
    plan = grow(16, [Spec(300, 290)]).plan(PlanOptions(), 1.0)
    items = lowered(plan, 1).items.tolist()
    assert [(item[0], item[1], item[3], item[4]) for item in items] == [
        (256, 34, 300, 266),
        (128, 128, 266, 138),
        (0, 128, 138, 10),
    ]


def test_without_sharing_nothing_is_merged() -> None:
    found = lowered(grow(16, [Spec(100, 1), Spec(40, 40), Spec(9, 3)]).plan(PlanOptions(), 1.0))
    assert (found.num_partials, found.merge.shape[0]) == (0, 0)
    assert found.items[:, 5].tolist() == [-1] * 3


def test_memory_for_partials_is_taken_for_rows_that_share_only() -> None:
    specs = [Spec(65, 1), Spec(65, 1, 0, 4), Spec(200, 200), Spec(65, 1)]
    found = lowered(grow(16, specs).plan(PlanOptions(align_tokens=16, min_saved_tokens=1), 1.0))
    assert found.num_partials == found.partial_capacity == 4
    assert [row[0] for row in found.merge.tolist()] == [0, 1]


def test_all_that_kernels_read_is_one_array_with_a_header() -> None:
    found = lowered(grow(4, [Spec(40, 1), Spec(40, 1, 0, 9), Spec(5, 5)]).plan(PlanOptions(4, 1), 1.0), 3)
    words = found.words
    wide, narrow, queries, records, width, pages_at, merge_at, _ = words[:8].tolist()
    assert (queries, width) == (7, 3)
    parts = (
        (found.counts, 0),
        (found.items, 8),
        (found.pages, pages_at),
        (found.merge, merge_at),
    )
    for part, begins in parts:
        assert part.is_contiguous()
        assert part.untyped_storage().data_ptr() == words.untyped_storage().data_ptr()
        assert part.storage_offset() == begins
    assert pages_at == 8 + 8 * (wide + narrow)
    assert merge_at + records * width == len(words)
    assert words.dtype == torch.int32


def test_a_plan_put_into_a_buffer_is_the_plan_and_keeps_the_buffers_room() -> None:
    plan = grow(4, [Spec(40, 1), Spec(40, 1, 0, 9)]).plan(PlanOptions(4, 1), 1.0)
    fresh, buffer = lowered(plan), PlanBuffer(torch.full((300,), -7, dtype=torch.int32), 50)
    found = lowered(plan, into=buffer)
    assert found.words is buffer.words
    assert torch.equal(found.words[: len(fresh.words)], fresh.words)
    assert bool((found.words[len(fresh.words) :] == -7).all())
    assert (found.num_partials, found.partial_capacity) == (4, 50)


@pytest.mark.parametrize(
    ("words", "partials", "message"),
    [
        (60, 50, r"the plan takes \d+ words, the buffer has 60"),
        (300, 3, "has 4 partials, the buffer is for 3"),
    ],
)
def test_a_buffer_that_is_too_small_is_refused_and_keeps_what_it_has(
    words: int, partials: int, message: str
) -> None:
    plan = grow(4, [Spec(140, 1), Spec(140, 1, 0, 34)]).plan(PlanOptions(4, 1), 1.0)
    buffer = PlanBuffer(torch.zeros(words, dtype=torch.int32), partials)
    with pytest.raises(ValueError, match=message):
        lowered(plan, into=buffer)
    assert not buffer.words.any()


def test_a_page_out_of_range_is_refused_where_pages_are_checked() -> None:
    rows = grow(4, [Spec(20, 1)])
    plan = rows.plan(PlanOptions(4, 1), 1.0)
    assert lowered(plan, num_pages=rows.num_pages).pages.tolist() == list(rows.tables[0])
    most = max(rows.tables[0])
    with pytest.raises(ValueError, match=f"pages must be 0 to {most - 1}, got {most}"):
        lowered(plan, num_pages=most)
    below = replace(plan, pages=np.array([0, 1, -3, 2, 4], dtype=np.int32))
    with pytest.raises(ValueError, match="pages must be 0 to 8, got -3"):
        lowered(below, num_pages=9)


@pytest.mark.parametrize(("heads", "kv_heads"), [(7, 2), (17, 1), (34, 2), (4, 0), (0, 2)])
def test_heads_that_cannot_be_grouped_are_refused(heads: int, kv_heads: int) -> None:
    plan = grow(4, [Spec(20, 1)]).plan(PlanOptions(4, 1), 1.0)
    with pytest.raises(ValueError, match=f"1 to 16 times num_kv_heads, got {heads} and {kv_heads}"):
        lower(plan, device=CPU, num_heads=heads, num_kv_heads=kv_heads)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=f"scale must be positive and finite, got {scale}"):
        lowered(grow(4, [Spec(20, 1)]).plan(PlanOptions(4, 1), scale))
