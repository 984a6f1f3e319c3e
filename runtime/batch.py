"""The border between integers and tensors: a step's plan becomes the model's inputs.

It orders the rows so that those sharing pages are neighbours, lays out their queries, finds the slots to
write, and builds the attention plan. It keeps nothing but the block tables of the last step's rows as
arrays, since most tables do not change from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..kernels.ops import Ops, PreparedPlan
from ..kernels.plan import AttentionSpec, Ints, ReadTokens, build_plan, order_rows, read_tokens
from .model import ModelInputs
from .types import Plan, Row, SequenceKey


@dataclass(frozen=True, slots=True)
class LogitSpan:
    """Logits [first, first + count) of the step belong to `row`, positions row.logits_from and on."""

    row: Row
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's inputs and whose logits come out of it, in the order of the logits. How many tokens attention
    reads for a layer: by the plan, and if every row read its own. The plan's segments, and the queries of all
    of them."""

    inputs: ModelInputs
    spans: tuple[LogitSpan, ...]
    reads: ReadTokens
    unshared_tokens: int
    segments: int
    segment_queries: int


class BatchBuilder:
    """Makes the inputs of each step. `page_size` and `spec` belong to the pool and the model."""

    def __init__(self, page_size: int, spec: AttentionSpec, ops: Ops) -> None:
        self._page_size, self._spec, self._ops = page_size, spec, ops
        self._tables: dict[SequenceKey, tuple[tuple[int, ...], Ints]] = {}

    def build(self, plan: Plan) -> Batch:
        """`plan` has at least one row."""
        assert plan.rows, "a step has at least one row"
        rows = [plan.rows[i] for i in order_rows([row.pages for row in plan.rows])]
        tables = self._block_tables(rows)
        attention = build_plan(
            tables,
            [row.start for row in rows],
            [row.stop for row in rows],
            page_size=self._page_size,
            spec=self._spec,
            options=self._ops.plan_options,
        )
        inputs, spans = _inputs(rows, tables, self._page_size, self._ops, self._ops.prepare(attention))
        reads = read_tokens(attention, self._ops.plan_options.queries_a_tile)
        unshared = sum(row.stop for row in rows)
        return Batch(inputs, spans, reads, unshared, attention.num_segments, attention.num_partials)

    def _block_tables(self, rows: Sequence[Row]) -> list[Ints]:
        known, self._tables = self._tables, {}
        for row in rows:
            entry = known.get(row.key)
            if entry is None or entry[0] is not row.pages:
                entry = (row.pages, np.array(row.pages, dtype=np.int32))
            self._tables[row.key] = entry
        return [self._tables[row.key][1] for row in rows]


def _inputs(
    rows: Sequence[Row], tables: Sequence[Ints], page_size: int, ops: Ops, attention_plan: PreparedPlan
) -> tuple[ModelInputs, tuple[LogitSpan, ...]]:
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    logit_rows: list[int] = []
    spans: list[LogitSpan] = []
    for row, table in zip(rows, tables, strict=True):
        at = len(tokens) - row.start
        tokens += row.tokens
        positions += range(row.start, row.stop)
        slots += [-1] * (row.write_from - row.start)
        written = np.arange(row.write_from, row.stop)
        slots += (table[written // page_size].astype(np.int64) * page_size + written % page_size).tolist()
        if row.logits_from < row.logits_to:
            spans.append(LogitSpan(row, len(logit_rows), row.logits_to - row.logits_from))
            logit_rows += range(at + row.logits_from, at + row.logits_to)
    columns = (tokens, positions, slots, logit_rows)
    ids, places, targets, wanted = ops.upload([torch.tensor(x, dtype=torch.int64) for x in columns])
    return ModelInputs(ids, places, targets, wanted, attention_plan), tuple(spans)
