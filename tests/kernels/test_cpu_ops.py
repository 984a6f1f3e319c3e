"""The small ops of the CPU table: values against the reference, and bits that no batch changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.cpu import cpu_ops
from testkit.compiled import fused
from testkit.paged import is_as_exact

OPS = fused()
EPS = 1e-6
WIDTHS = (1, 7, 24, 100, 576, 1000)
STORAGES = (torch.float32, torch.bfloat16, torch.float16)

Op = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0, std: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def results(op: str, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An op's result in float32, and the reference's in `dtype`."""
    x, weight = normal(33, width, std=2.0), normal(width, seed=1)
    if op == "rms_norm":
        return OPS.rms_norm(x, weight, EPS), reference.rms_norm(x.to(dtype), weight.to(dtype), EPS)
    if op == "add_rms_norm":
        residual = normal(33, width, seed=2)
        normed, total = OPS.add_rms_norm(x, residual, weight, EPS)
        wanted = x.to(dtype) + residual.to(dtype)
        return torch.cat((normed, total)), torch.cat(
            (reference.rms_norm(wanted, weight.to(dtype), EPS), wanted)
        )
    assert op == "silu_mul"
    gate_up = normal(33, 2 * width, std=3.0)
    return OPS.silu_mul(gate_up), reference.silu_mul(gate_up.to(dtype))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_mul"])
def test_an_op_is_as_exact_as_plain_torch(op: str, width: int) -> None:
    ours, truth = results(op, width, torch.float64)
    _, plain = results(op, width, torch.float32)
    assert ours.dtype == torch.float32
    assert is_as_exact(ours, plain, truth)


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_mul"])
def test_the_check_fails_for_a_result_that_is_scaled_or_shifted_by_one(op: str) -> None:
    _, plain = results(op, 24, torch.float32)
    _, truth = results(op, 24, torch.float64)
    assert not is_as_exact(truth * 1.01, plain, truth)
    assert not is_as_exact(truth.roll(1, -1), plain, truth)
    assert not is_as_exact(truth.roll(1, 0), plain, truth)


def test_silu_of_large_numbers_is_a_number() -> None:
    gate_up = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    wanted = torch.tensor([[0.0, 0.0, 0.0, 0.0, 88.0, 1e4]])
    torch.testing.assert_close(OPS.silu_mul(gate_up), wanted)


def test_the_exponential_in_silu_is_right_over_all_its_range() -> None:
    gates = torch.linspace(-95, 95, 40_001)
    found = OPS.silu_mul(torch.cat((gates, torch.ones_like(gates)))[None])[0]
    torch.testing.assert_close(
        found.double(), gates.double() * gates.double().sigmoid(), rtol=4e-7, atol=1e-35
    )


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so_in_its_row_and_reaches_no_other(wrong: float) -> None:
    x, residual, weight = normal(9, 50), normal(9, 50, seed=1), normal(50, seed=2)
    spoilt, others = x.clone(), [i for i in range(9) if i != 4]
    spoilt[4, 13] = wrong
    runs: list[Op] = [
        lambda x: OPS.rms_norm(x, weight, EPS),
        lambda x: torch.cat(OPS.add_rms_norm(x, residual, weight, EPS), -1),
        lambda x: torch.cat(OPS.add_rms_norm(residual, x, weight, EPS), -1),
        OPS.silu_mul,
        lambda x: OPS.take_rows(x, torch.arange(9)),
    ]
    for run in runs:
        assert not run(spoilt)[4].isfinite().all()
        assert torch.equal(run(spoilt)[others], run(x)[others])


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_mul", "take_rows"])
def test_no_rows_give_no_rows(op: str) -> None:
    none = torch.zeros(0, 24)
    run: dict[str, Callable[[], Tensor]] = {
        "rms_norm": lambda: OPS.rms_norm(none, torch.ones(24), EPS),
        "add_rms_norm": lambda: OPS.add_rms_norm(none, none, torch.ones(24), EPS)[1],
        "silu_mul": lambda: OPS.silu_mul(torch.zeros(0, 48)),
        "take_rows": lambda: OPS.take_rows(torch.zeros(5, 24), torch.zeros(0, dtype=torch.int64)),
    }
    assert run[op]().shape == (0, 24)


def assert_row_invariant(run: Op, wanted_by: Op, *inputs: Tensor, counts: tuple[int, ...] | range) -> None:
    """run(rows of the inputs) gives a row's bits whatever the number of rows and wherever the row stands."""
    alone = torch.cat([wanted_by(*(x[i : i + 1] for x in inputs)) for i in range(max(counts) + 3)])
    wrong = [
        (count, first)
        for count in counts
        for first in (0, 3)
        if not torch.equal(run(*(x[first : first + count] for x in inputs)), alone[first : first + count])
    ]
    assert not wrong


@pytest.mark.parametrize("width", [24, 100, 1000])
def test_norms_and_silu_are_row_invariant(width: int, threads: int) -> None:
    x, residual, weight = normal(73, width, std=2.0), normal(73, width, seed=1), normal(width, seed=2)
    many, one = fused(threads), fused(1)
    counts = range(1, 71)
    assert_row_invariant(
        lambda x: many.rms_norm(x, weight, EPS), lambda x: one.rms_norm(x, weight, EPS), x, counts=counts
    )
    assert_row_invariant(
        lambda x, y: torch.cat(many.add_rms_norm(x, y, weight, EPS), -1),
        lambda x, y: torch.cat(one.add_rms_norm(x, y, weight, EPS), -1),
        x,
        residual,
        counts=counts,
    )
    gates = normal(73, 2 * width, std=3.0)
    assert_row_invariant(many.silu_mul, one.silu_mul, gates, counts=counts)


def test_rows_of_a_wider_matrix_are_taken_as_they_lie() -> None:
    wide, weight, residual = normal(7, 99), normal(24, seed=1), normal(7, 50, seed=2)
    part = wide[:, 30:54]
    assert torch.equal(OPS.rms_norm(part, weight, EPS), OPS.rms_norm(part.contiguous(), weight, EPS))
    assert torch.equal(OPS.silu_mul(part), OPS.silu_mul(part.contiguous()))
    rest = residual[:, 5:29]
    for found, wanted in zip(
        OPS.add_rms_norm(part, rest, weight, EPS),
        OPS.add_rms_norm(part.contiguous(), rest.contiguous(), weight, EPS),
        strict=True,
    ):
        assert torch.equal(found, wanted)
    assert torch.equal(OPS.take_rows(part, torch.tensor([6, 0])), part[[6, 0]])


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_rows_of_a_table_are_taken_as_they_are(storage: torch.dtype) -> None:
    table = normal(300, 25).to(storage)
    table[3, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    table[3, 3:6] = torch.tensor([1e-40, -6e-8, 6e4]).to(storage)
    ids = torch.randint(300, (2000,), generator=torch.Generator().manual_seed(1))
    ids[:3] = 3
    found = OPS.take_rows(table, ids)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, table[ids].float(), rtol=0, atol=0, equal_nan=True)


# -- turn_and_write --------------------------------------------------------------------------------

HEADS, KV_HEADS, PAGES, SLOTS = 6, 2, 9, 4


def angles_of(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of so many positions."""
    angles = normal(count, size // 2, seed=9, std=3.0)
    return angles.cos(), angles.sin()


def pages_of(size: int, storage: torch.dtype, contiguous: bool = False) -> tuple[Tensor, Tensor]:
    """Keys and values, pages of a head together, as the pool of an engine has them."""
    both = torch.zeros(2, KV_HEADS, PAGES, SLOTS, size, dtype=storage).transpose(1, 2)
    return (both[0].contiguous(), both[1].contiguous()) if contiguous else (both[0], both[1])


def at_slots(pages: Tensor, slots: Tensor) -> Tensor:
    return pages[slots // SLOTS, :, slots % SLOTS]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("size", [2, 8, 24, 64, 100, 128, 256])
@pytest.mark.parametrize("with_norms", [False, True], ids=["no norms", "norms"])
@pytest.mark.parametrize("with_angles", [False, True], ids=["no angles", "angles"])
def test_queries_and_keys_are_normed_and_turned_and_keys_and_values_written(
    storage: torch.dtype, size: int, with_norms: bool, with_angles: bool
) -> None:
    count = 30
    qkv = normal(count, (HEADS + 2 * KV_HEADS) * size)
    weights = (normal(size, seed=1), normal(size, seed=2), EPS) if with_norms else None
    angles = angles_of(50, size) if with_angles else None
    generator = torch.Generator().manual_seed(3)
    positions = torch.randint(50, (count,), generator=generator)
    slots = torch.randperm(PAGES * SLOTS, generator=generator)[:count]
    slots[[0, 11, 29]] = -1
    keys, values = pages_of(size, storage)
    q = OPS.turn_and_write(qkv, weights, angles, positions, slots, keys, values)

    def wanted(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        heads = qkv.to(dtype).view(count, -1, size)
        one, other = heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS]
        if weights is not None:
            one, other = (
                reference.rms_norm(x, w.to(dtype), EPS) for x, w in ((one, weights[0]), (other, weights[1]))
            )
        if angles is not None:
            turns = [x.to(dtype)[positions] for x in angles]
            one, other = reference.rope(one, *turns), reference.rope(other, *turns)
        return one, other

    (truth_q, truth_k), (plain_q, plain_k) = wanted(torch.float64), wanted(torch.float32)
    assert q.shape == (count, HEADS, size)
    assert is_as_exact(q, plain_q, truth_q) or torch.equal(q, plain_q)
    written = slots >= 0
    stored = at_slots(keys, slots[written])
    assert (stored.double() - truth_k[written]).norm() <= 1.01 * (
        plain_k[written].to(storage).double() - truth_k[written]
    ).norm() + 4 * (plain_k.double() - truth_k).norm()
    own_values = qkv.view(count, -1, size)[:, HEADS + KV_HEADS :]
    assert torch.equal(at_slots(values, slots[written]), own_values[written].to(storage))
    free = torch.tensor(sorted(set(range(PAGES * SLOTS)) - set(slots.tolist())))
    assert not at_slots(keys, free).any()
    assert not at_slots(values, free).any()


def test_keys_and_values_are_written_to_pages_of_either_layout() -> None:
    qkv, slots, positions = normal(9, 10 * 8), torch.tensor([5, 35, 0, -1, 7, 11, 13, 2, 30]), torch.arange(9)
    one, other = pages_of(8, torch.float32), pages_of(8, torch.float32, contiguous=True)
    for keys, values in (one, other):
        OPS.turn_and_write(qkv, None, angles_of(9, 8), positions, slots, keys, values)
    assert one[0].any()
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


def special(storage: torch.dtype) -> Tensor:
    """Numbers beside every border of a format: half way between two of its numbers, too large, too small."""
    exact = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16).view(storage)
    exact = exact[exact.isfinite()].float()
    some = [
        torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45, 65519.9, 65520.0])
    ]
    some += [exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(-torch.inf))]
    both = exact.double(), exact.to(storage).nextafter(torch.tensor(torch.inf, dtype=storage)).double()
    half_way = ((both[0] + both[1]) / 2).float()
    some += [half_way, half_way.nextafter(torch.tensor(torch.inf)), half_way.nextafter(torch.tensor(0.0))]
    numbers = torch.cat(some)
    return torch.nn.functional.pad(numbers, (0, -len(numbers) % 64))


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_rounded_to_the_nearest_ties_to_even_and_nan_stays(storage: torch.dtype) -> None:
    numbers = special(storage).view(-1, 64)
    count = len(numbers)
    keys, values = (torch.zeros(count, 1, 1, 64, dtype=storage) for _ in range(2))
    qkv = numbers.repeat(1, 3)
    OPS.turn_and_write(qkv, None, None, torch.arange(count), torch.arange(count), keys, values)
    for pages in (keys, values):
        found, wanted = pages.view(count, 64), numbers.to(storage)
        assert torch.equal(found.isnan(), numbers.isnan())
        assert torch.equal(
            found.nan_to_num(1.5).view(torch.int16), wanted.nan_to_num(1.5).view(torch.int16)
        ), "the same bits as torch's"


@pytest.mark.parametrize("size", [24, 64, 100])
def test_turned_rows_are_row_invariant(size: int, threads: int) -> None:
    count, norms, angles = 73, (normal(size, seed=1), normal(size, seed=2), EPS), angles_of(80, size)
    qkv, positions = normal(count, (HEADS + 2 * KV_HEADS) * size), torch.arange(count)

    def run(ops: object, qkv: Tensor, positions: Tensor) -> Tensor:
        keys, values = (torch.zeros(len(qkv), KV_HEADS, 1, size) for _ in range(2))
        slots = torch.arange(len(qkv))
        q = ops.turn_and_write(qkv, norms, angles, positions, slots, keys, values)  # type: ignore[attr-defined]
        return torch.cat((q, keys[:, :, 0], values[:, :, 0]), 1)

    many, one = fused(threads), fused(1)
    assert_row_invariant(
        lambda *x: run(many, *x),
        lambda *x: run(one, *x),
        qkv,
        positions,
        counts=(1, 2, 3, 5, 16, 17, 33, 64, 67, 70),
    )


def test_a_row_that_is_no_number_is_written_as_it_is_and_spoils_no_other() -> None:
    qkv = normal(5, 10 * 8)
    spoilt = qkv.clone()
    spoilt[2] = torch.nan
    slots = torch.tensor([3, 1, 8, 30, 0])
    results = []
    for rows in (qkv, spoilt):
        keys, values = pages_of(8, torch.float32)
        norms = (torch.ones(8), torch.ones(8), EPS)
        q = OPS.turn_and_write(rows, norms, angles_of(5, 8), torch.arange(5), slots, keys, values)
        results.append(torch.cat((q, at_slots(keys, slots), at_slots(values, slots)), 1))
    assert bool(results[1][2].isnan().all())
    others = [0, 1, 3, 4]
    assert torch.equal(results[0][others], results[1][others])


def test_no_rows_write_nothing() -> None:
    keys, values = pages_of(24, torch.float32)
    none = torch.zeros(0, dtype=torch.int64)
    q = OPS.turn_and_write(torch.zeros(0, 240), None, angles_of(3, 24), none, none, keys, values)
    assert q.shape == (0, 6, 24)
    assert not keys.any()


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_copies_take_all_layers_of_the_given_pages_along_and_touch_no_others(storage: torch.dtype) -> None:
    pages = torch.zeros(4, 3, 7, 4, 24, dtype=storage).permute(0, 2, 1, 3, 4)
    pages.copy_(normal(*pages.shape))
    before = pages.clone()
    cpu_ops(3, 3, threads=1).copy_pages(pages, [1, 1, 6], [0, 3, 5])
    assert torch.equal(pages, before[:, [1, 1, 2, 1, 4, 6, 6]])


@pytest.mark.parametrize("size", [1, 31, 32, 33, 97, 5000])
@pytest.mark.parametrize("rows", [None, [4, 0, 2]])
def test_logits_are_forbidden_as_by_the_reference(size: int, rows: list[int] | None) -> None:
    generator = torch.Generator().manual_seed(size)
    wide = torch.randn(5, size + 3, generator=generator)
    logits = wide[:, :size] if rows else wide[:3, :size]
    logits[0, 0] = torch.nan
    mask = torch.randint(-(2**31), 2**31, (3, -(-size // 32) + 1), generator=generator).int()
    places = None if rows is None else torch.tensor(rows)
    expected, beside = logits.clone(), wide[:, size:].clone()
    reference.logit_mask(expected, mask[:, :-1], places)
    OPS.logit_mask(logits, mask, places)
    assert torch.equal(logits.view(torch.int32), expected.view(torch.int32))
    assert torch.equal(wide[:, size:], beside)
    assert (logits == -torch.inf).any() or size == 1


def test_no_masks_forbid_nothing() -> None:
    logits = torch.zeros(2, 40)
    OPS.logit_mask(logits, torch.zeros(0, 2, dtype=torch.int32), None)
    assert torch.equal(logits, torch.zeros(2, 40))
