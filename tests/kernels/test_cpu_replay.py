"""Replayed passes: what they give, and write, is what the pass itself gives, whatever came in between."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.kernels import cpu_replay
from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.cpu_replay import MOST_ROWS
from radixlm.kernels.ops import Ops, PreparedPlan
from radixlm.kernels.plan import AttentionSpec, build_plan, order_rows

HEADS, KV_HEADS, SIZE, PAGE, PAGES = 4, 2, 8, 16, 200
HIDDEN = HEADS * SIZE


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Layer:
    """One layer as a pass: ids, positions and slots to rows of numbers, keys and values into its pages."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.table = normal(50, HIDDEN)
        self.qkv = ops.pack_linear(normal((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN, seed=1) / 5, None)
        self.output = ops.pack_linear(normal(HIDDEN, HIDDEN, seed=2) / 5, normal(HIDDEN, seed=3))
        self.mlp = ops.pack_linear(normal(2 * HIDDEN, HIDDEN, seed=4) / 5, None)
        self.norm = 1 + normal(HIDDEN, seed=5) / 5
        angles = normal(2000, SIZE // 2, seed=6)
        self.angles = (angles.cos(), angles.sin())
        self.pages = ops.zeros((2, KV_HEADS, PAGES, PAGE, SIZE), torch.float32).transpose(1, 2)

    def __call__(self, inputs: Sequence[Tensor], plan: PreparedPlan) -> Tensor:
        ids, positions, slots, wanted = inputs
        ops, (keys, values) = self.ops, self.pages
        residual = ops.take_rows(self.table, ids)
        hidden = ops.rms_norm(residual, self.norm, 1e-6)
        q = ops.turn_and_write(self.qkv(hidden), None, self.angles, positions, slots, keys, values)
        attended = ops.attend(q, keys, values, plan).flatten(1)
        attended, residual = ops.take_rows(attended, wanted), ops.take_rows(residual, wanted)
        hidden, residual = ops.add_rms_norm(self.output(attended), residual, self.norm, 1e-6)
        return ops.add_rms_norm(ops.silu_mul(self.mlp(hidden)), residual, self.norm, 1e-6)[0]


@dataclass(frozen=True)
class Step:
    """Rows of (pages, start, stop) that share their first pages, and the tokens they compute."""

    tables: list[tuple[int, ...]]
    starts: list[int]
    stops: list[int]
    ids: list[int]

    def run(self, layer: Layer, name: str = "layer") -> Tensor:
        return layer.ops.run_pass(layer, name, self.inputs(), self.plan(layer.ops))

    def inputs(self) -> tuple[Tensor, ...]:
        spans = list(zip(self.tables, self.starts, self.stops, strict=True))
        positions = [p for _, start, stop in spans for p in range(start, stop)]
        slots = [t[p // PAGE] * PAGE + p % PAGE for t, a, b in spans for p in range(a, b)]
        ends = np.cumsum([stop - start for start, stop in zip(self.starts, self.stops, strict=True)])
        return tuple(torch.tensor(list(x)) for x in (self.ids, positions, slots, ends - 1))

    def plan(self, ops: Ops) -> PreparedPlan:
        return ops.prepare(
            build_plan(
                [np.array(table, dtype=np.int32) for table in self.tables],
                self.starts,
                self.stops,
                page_size=PAGE,
                spec=AttentionSpec(SIZE**-0.5),
                options=replace(ops.plan_options, min_saved_tokens=1),
            )
        )


def random_step(chance: random.Random, rows: int, new: int) -> Step:
    """Rows of new tokens over tables that share 0, 4 or 8 pages, whose own pages are their own."""
    shared = chance.choice((0, 4, 8) if new <= PAGE else (0, 4))
    own = chance.sample(range(20, PAGES), rows * 9)
    tables, starts = [], []
    for i in range(rows):
        start = chance.randint(shared * PAGE, 9 * PAGE - new)
        table = (*range(shared if i < rows - 1 else 0), *own[9 * i : 9 * i + 9])
        tables.append(table[:9])
        starts.append(start)
    order = order_rows(tables)
    tables, starts = [tables[i] for i in order], [starts[i] for i in order]
    ids = [chance.randrange(50) for _ in range(rows * new)]
    return Step(tables, starts, [start + new for start in starts], ids)


def pair(threads: int, quantization: str = "none") -> tuple[Layer, Layer]:
    """The same layer twice, with keys and values of its own: one that is replayed, one that never is."""
    replayed, eager = (
        Layer(cpu_ops(HEADS, KV_HEADS, threads=threads, quantization=quantization))  # type: ignore[arg-type]
        for _ in range(2)
    )
    eager.ops = replace(eager.ops, run_pass=lambda pass_, name, inputs, plan: pass_(inputs, plan))
    for layer in (replayed, eager):
        layer.pages.copy_(normal(*layer.pages.shape, seed=7))
    return replayed, eager


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_random_steps_give_and_write_the_bits_of_the_pass_itself(threads: int, quantization: str) -> None:
    replayed, eager = pair(threads, quantization)
    chance = random.Random(threads)
    for n in range(150):
        step = random_step(chance, chance.choice((1, 2, 5, 6)), chance.choice((1, 1, 3)))
        assert torch.equal(step.run(replayed), step.run(eager)), n
        assert torch.equal(replayed.pages, eager.pages), n


def test_more_shapes_than_are_kept_are_right_whenever_they_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_replay, "MOST_KEPT", 32)
    replayed, eager = pair(2)
    chance = random.Random(1)
    sizes = list(range(1, 26))
    for _ in range(4):
        chance.shuffle(sizes)
        for new in sizes:
            for step in (random_step(chance, 1, new), random_step(chance, 2, min(new, 60) + 1)):
                assert torch.equal(step.run(replayed), step.run(eager))
    assert torch.equal(replayed.pages, eager.pages)


def test_a_step_too_large_to_record_is_right_each_time() -> None:
    replayed, eager = pair(2)
    table = tuple(range(PAGES))
    for n in range(4):
        count = MOST_ROWS + 1
        step = Step([table], [n], [n + count], [(7 * i + n) % 50 for i in range(count)])
        assert torch.equal(step.run(replayed), step.run(eager))


def test_passes_of_two_names_do_not_mix() -> None:
    (one, wanted_one), (_, wanted_other) = pair(2), pair(2)
    other = Layer(one.ops)
    other.pages.copy_(wanted_other.pages)
    for layer in (other, wanted_other):
        layer.table = normal(50, HIDDEN, seed=20)
        layer.norm = 1 + normal(HIDDEN, seed=21) / 3
    chance = random.Random(2)
    for _ in range(6):
        step = random_step(chance, 2, 1)
        assert torch.equal(step.run(one, "one"), step.run(wanted_one))
        assert torch.equal(step.run(other, "other"), step.run(wanted_other))


def test_a_pass_that_raises_while_it_is_recorded_leaves_all_as_it_was() -> None:
    replayed, eager = pair(2)
    chance = random.Random(3)
    step = random_step(chance, 3, 1)
    table, replayed.table = replayed.table, "no table"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        step.run(replayed)
    replayed.table = table
    step.run(eager)
    for _ in range(4):
        step = random_step(chance, 3, 1)
        assert torch.equal(step.run(replayed), step.run(eager))


def test_what_a_row_gives_that_is_no_number_does_not_outlive_its_step() -> None:
    replayed, eager = pair(2)
    for layer in (replayed, eager):
        layer.table[3] = torch.nan
    tables = [tuple(range(i * 20, i * 20 + 9)) for i in range(4)]
    for n in range(8):
        step = Step(tables, [n] * 4, [n + 1] * 4, [5, 3 if n in (2, 3) else 6, 7, 8])
        found = step.run(replayed)
        torch.testing.assert_close(found, step.run(eager), rtol=0, atol=0, equal_nan=True)
        assert bool(found[[0, 2, 3]].isfinite().all())


def test_the_workspace_of_growing_steps_takes_no_more_than_a_few_times_the_largest() -> None:
    memory = cpu_replay._Workspace()
    for rows in range(700, 900):
        memory.begin()
        kept = [memory.take((rows, width), torch.float32) for width in (3072, 1536, 960, 576)]
        addresses = sorted((x.data_ptr(), x.nbytes) for x in kept)
        assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(addresses))
    assert sum(map(len, memory._chunks)) <= 64 << 20
