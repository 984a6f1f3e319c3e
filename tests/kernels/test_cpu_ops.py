"""The other ops of the CPU table: values against the reference, and bits that no batch changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.cpu import cpu_ops
from testkit.paged import is_as_exact

OPS = cpu_ops(6, 2, 24, deterministic=True)
EPS = 1e-6
WIDTHS = (24, 100, 576, 1000)
HEAD_SIZES = (24, 64, 100, 128)

Op = Callable[..., Tensor]


def normal(*shape: int, seed: int = 0, std: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def turn(rows: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (rows, size / 2) of some angles."""
    angles = normal(rows, size // 2, seed=9, std=3.0)
    return angles.cos(), angles.sin()


def folded(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As the op takes them: cosines twice, the first half of the sines negated."""
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


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
    if op == "silu_mul":
        gate_up = normal(33, 2 * width, std=3.0)
        return OPS.silu_mul(gate_up), reference.silu_mul(gate_up.to(dtype))
    assert op == "rope"
    heads, (cos, sin) = normal(33, 5, width), turn(33, width)
    wanted = reference.rope(heads.to(dtype), cos.to(dtype), sin.to(dtype))
    return OPS.rope(heads, *folded(cos, sin)), wanted


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_mul", "rope"])
def test_an_op_is_as_exact_as_plain_torch(op: str, width: int) -> None:
    ours, truth = results(op, width, torch.float64)
    _, plain = results(op, width, torch.float32)
    assert ours.dtype == torch.float32
    assert is_as_exact(ours, plain, truth)


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "silu_mul", "rope"])
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


def test_rms_norm_takes_heads_of_a_wider_matrix() -> None:
    qkv, weight = normal(7, 9, 24), normal(24, seed=1)
    wanted = reference.rms_norm(qkv[:, 3:6].double(), weight.double(), EPS)
    torch.testing.assert_close(OPS.rms_norm(qkv[:, 3:6], weight, EPS).double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["rms_norm", "silu_mul", "rope", "embed"])
def test_no_rows_give_no_rows(op: str) -> None:
    run: dict[str, Callable[[], Tensor]] = {
        "rms_norm": lambda: OPS.rms_norm(torch.zeros(0, 24), torch.ones(24), EPS),
        "silu_mul": lambda: OPS.silu_mul(torch.zeros(0, 48)),
        "rope": lambda: OPS.rope(torch.zeros(0, 3, 24), torch.zeros(0, 24), torch.zeros(0, 24)),
        "embed": lambda: OPS.embed(torch.zeros(5, 24), torch.zeros(0, dtype=torch.int64)),
    }
    assert run[op]().shape in {(0, 24), (0, 3, 24)}


def assert_row_invariant(run: Op, *inputs: Tensor, counts: tuple[int, ...] | range) -> None:
    """run(rows of the inputs) gives a row's bits whatever the number of rows and wherever the row stands."""
    alone = torch.cat([run(*(x[i : i + 1] for x in inputs)) for i in range(max(counts) + 3)])
    wrong = [
        (count, first)
        for count in counts
        for first in (0, 3)
        if not torch.equal(run(*(x[first : first + count] for x in inputs)), alone[first : first + count])
    ]
    assert not wrong


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_and_silu_are_row_invariant(width: int, threads: int) -> None:
    x, residual, weight = normal(73, width, std=2.0), normal(73, width, seed=1), normal(width, seed=2)
    counts = range(1, 71)
    assert_row_invariant(lambda x: OPS.rms_norm(x, weight, EPS), x, counts=counts)
    assert_row_invariant(
        lambda x, y: torch.cat(OPS.add_rms_norm(x, y, weight, EPS), -1), x, residual, counts=counts
    )
    assert_row_invariant(OPS.silu_mul, normal(73, 2 * width, std=3.0), counts=counts)


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_rope_and_the_norm_of_heads_are_row_invariant(size: int, threads: int) -> None:
    qkv, weight = normal(73, 9, size), normal(size, seed=2)
    cos, sin = folded(*turn(73, size))
    for heads in (qkv, qkv[:, :5], qkv[:, 5:6], qkv[:, :1].contiguous()):
        counts = (1, 2, 3, 5, 16, 17, 33, 64, 67, 70)
        assert_row_invariant(OPS.rope, heads, cos, sin, counts=counts)
        assert_row_invariant(lambda x: OPS.rms_norm(x, weight, EPS), heads, counts=counts)


def test_embed_takes_the_rows_of_the_table() -> None:
    table = normal(10, 24)
    assert torch.equal(OPS.embed(table, torch.tensor([3, 3, 0])), table[[3, 3, 0]])


def pool(layers: int = 2) -> Tensor:
    """(2 * layers, P, G, S, D) with the pages of a head together, as the pool of the engine has them."""
    return torch.zeros(2 * layers, 3, 7, 4, 24).permute(0, 2, 1, 3, 4)


@pytest.mark.parametrize("contiguous", [False, True])
def test_kv_write_fills_the_given_slots_and_no_others(contiguous: bool) -> None:
    pages = pool().contiguous() if contiguous else pool()
    k, v, slots = normal(4, 3, 24), normal(4, 3, 24, seed=1), torch.tensor([5, 6, 27, 0])
    OPS.kv_write(pages[0], pages[1], k, v, slots)
    for i, slot in enumerate(slots.tolist()):
        assert torch.equal(pages[0, slot // 4, :, slot % 4], k[i])
        assert torch.equal(pages[1, slot // 4, :, slot % 4], v[i])
        pages[:2, slot // 4, :, slot % 4] = 0.0
    assert not pages.any()


def test_kv_write_of_nothing_writes_nothing() -> None:
    pages, nothing = pool(), torch.zeros(0, 3, 24)
    OPS.kv_write(pages[0], pages[1], nothing, nothing, torch.zeros(0, dtype=torch.int64))
    assert not pages.any()


def test_copy_pages_copies_all_layers_of_the_given_pages_and_changes_no_others() -> None:
    pages = pool()
    pages.copy_(normal(*pages.shape))
    before = pages.clone()
    OPS.copy_pages(pages, [1, 1, 6], [0, 3, 5])
    assert torch.equal(pages, before[:, [1, 1, 2, 1, 4, 6, 6]])
