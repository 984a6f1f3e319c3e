"""From rows to tensors: which token goes where, which slot is written, whose logits come out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.ops import Ops
from radixlm.kernels.plan import AttentionPlan, AttentionSpec, build_plan
from radixlm.runtime.batch import Batch, BatchBuilder
from radixlm.runtime.types import Plan, Row, SequenceKey

SPEC = AttentionSpec(0.5)
OPS: Ops = replace(cpu_ops(2, 1, threads=1), prepare=lambda plan: plan)
"""Real ops, but the plan comes through as it is, to be looked at."""


@st.composite
def plans(draw: st.DrawFn, page_size: int) -> Plan:
    """One to five rows in any order; some share their first pages, some only recompute or ask for nothing."""
    rows = []
    common = tuple(draw(st.permutations(range(6))))[:3]
    for i in range(draw(st.integers(1, 5))):
        table = common[: draw(st.integers(0, 3))]
        table += tuple(range(10 * i + 10, 10 * i + 10 + draw(st.integers(0 if table else 1, 3))))
        stop = draw(st.integers(1, len(table) * page_size))
        start = draw(st.integers(0, stop - 1))
        write_from, logits_from = draw(st.integers(start, stop)), draw(st.integers(start, stop))
        logits_to = draw(st.integers(logits_from, stop))
        tokens = tuple(draw(st.lists(st.integers(0, 99), min_size=stop - start, max_size=stop - start)))
        key = SequenceKey(f"r{i}", 0)
        samples = logits_from < logits_to == stop
        rows.append(Row(key, tokens, start, stop, write_from, logits_from, table, samples, logits_to))
    return Plan(0, tuple(draw(st.permutations(rows))), ())


def check(batch: Batch, plan: Plan, page_size: int) -> None:
    """Compare with what each row says, position by position."""
    inputs = batch.inputs
    tokens, positions = inputs.token_ids.tolist(), inputs.positions.tolist()
    slots = inputs.slots.tolist()
    logit_rows = inputs.logit_rows.tolist()
    spans = {span.row.key: span for span in batch.spans}
    assert len(tokens) == len(slots) == sum(row.stop - row.start for row in plan.rows)
    assert {x.dtype for x in (inputs.token_ids, inputs.positions, inputs.slots, inputs.logit_rows)} == {
        torch.int64
    }
    at = 0
    for row in sorted(plan.rows, key=lambda row: row.pages):
        here = range(at, at + row.stop - row.start)
        at = here.stop
        assert tuple(tokens[i] for i in here) == row.tokens
        assert [positions[i] for i in here] == list(range(row.start, row.stop))
        for i, position in zip(here, range(row.start, row.stop), strict=True):
            slot = row.pages[position // page_size] * page_size + position % page_size
            assert slots[i] == (slot if position >= row.write_from else -1)
        if row.logits_from == row.logits_to:
            assert row.key not in spans
            continue
        span = spans[row.key]
        assert span.row is row
        wanted = here[row.logits_from - row.start : row.logits_to - row.start]
        assert logit_rows[span.first : span.first + span.count] == list(wanted)
    assert sum(span.count for span in batch.spans) == len(logit_rows)


@given(st.data())
def test_every_token_slot_and_logit_is_that_of_its_row(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from((1, 2, 4)))
    plan = data.draw(plans(page_size))
    # Rows of one table would be ordered among themselves by their place: unequal ones are enough here.
    plan = replace(plan, rows=tuple({row.pages: row for row in plan.rows}.values()))
    check(BatchBuilder(page_size, SPEC, OPS).build(plan), plan, page_size)


@given(st.data())
def test_the_attention_plan_is_that_of_the_rows_in_their_order(data: st.DataObject) -> None:
    plan = data.draw(plans(2))
    batch = BatchBuilder(2, SPEC, OPS).build(plan)
    rows = sorted(plan.rows, key=lambda row: row.pages)
    wanted = build_plan(
        [np.array(row.pages, dtype=np.int32) for row in rows],
        [row.start for row in rows],
        [row.stop for row in rows],
        page_size=2,
        spec=SPEC,
        options=OPS.plan_options,
    )
    found = batch.inputs.plan
    assert isinstance(found, AttentionPlan)
    for name in ("query_start", "query_count", "pages", "kv_tokens", "causal", "merge"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def row_of(pages: tuple[int, ...], start: int, stop: int, name: str = "r") -> Row:
    tokens = tuple(range(start, stop))
    return Row(SequenceKey(name, 0), tokens, start, stop, start, stop - 1, pages, True, stop)


def test_a_row_is_written_from_where_it_says() -> None:
    row = row_of((3, 1), 2, 7)
    for write_from, slots in ((2, [14, 15, 4, 5, 6]), (4, [-1, -1, 4, 5, 6]), (7, [-1] * 5)):
        batch = BatchBuilder(4, SPEC, OPS).build(Plan(0, (replace(row, write_from=write_from),), ()))
        assert batch.inputs.slots.tolist() == slots


def test_a_block_table_that_changed_is_taken_anew() -> None:
    builder = BatchBuilder(4, SPEC, OPS)
    for pages in ((3, 1), (3, 2), (5, 2, 6)):
        batch = builder.build(Plan(0, (row_of(pages, 4, 5),), ()))
        assert batch.inputs.slots.tolist() == [pages[1] * 4]
