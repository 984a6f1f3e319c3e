"""Linear layers on a CPU: the values of a linear in every number format, rows whose bits no batch changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.cpu_ir import PANEL
from testkit.compiled import as_bytes, byte_product_of, packed
from testkit.paged import is_as_exact

SHAPES = (
    (1, 1),
    (24, 100),
    (100, 24),
    (33, 7),
    (48, 1537),
    (257, 65),
    (PANEL + 1, 3),
    (PANEL, 2),
    (2 * PANEL - 1, 5),
)
"""Outputs and inputs: fewer than a panel has columns, more, just as many; odd numbers of inputs."""
STORAGES = (torch.float32, torch.bfloat16, torch.float16)
Linear = Callable[[Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(shape: tuple[int, int], storage: torch.dtype = torch.float32) -> Tensor:
    return normal(*shape).div(math.sqrt(shape[1])).to(storage)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
def test_a_packed_linear_is_as_exact_as_that_of_torch(
    shape: tuple[int, int], storage: torch.dtype, with_bias: bool
) -> None:
    weight = weights(shape, storage)
    bias = normal(shape[0], seed=1) if with_bias else None
    linear = packed(weight.clone(), bias)
    for rows in (*range(1, 14), 17, 24, 25, 40, 500):
        x = normal(rows, shape[1], seed=rows)
        plain, truth = (
            torch.nn.functional.linear(x.to(one), weight.to(one), None if bias is None else bias.to(one))
            for one in (torch.float32, torch.float64)
        )
        found = linear(x)
        assert found.dtype == torch.float32
        # One chain of sums in the order of the inputs: its error grows a little faster than torch's.
        slack = (x.double().abs() @ weight.double().abs().T).norm() * 2.0**-24
        assert (found.double() - truth).norm() <= 4 * (plain.double() - truth).norm() + slack
    assert linear(normal(0, shape[1])).shape == (0, shape[0])


def test_the_check_fails_for_a_linear_with_a_mistake() -> None:
    weight, x = weights((33, 70)), normal(5, 70, seed=2)
    plain, truth = x @ weight.T, x.double() @ weight.double().T
    assert is_as_exact(packed(weight, None)(x), plain, truth)
    for wrong in (
        x[:, :-1] @ weight[:, :-1].T,
        plain.roll(1, 1),
        plain * 1.001,
        x @ weight.bfloat16().float().T,
    ):
        assert not is_as_exact(wrong, plain, truth)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "biased"])
def test_a_linear_of_bytes_is_the_product_of_whole_numbers(shape: tuple[int, int], with_bias: bool) -> None:
    weight = weights(shape)
    bias = normal(shape[0], seed=1) if with_bias else None
    linear = as_bytes(weight.clone(), bias)
    for rows in (*range(1, 14), 17, 40, 500):
        x = normal(rows, shape[1], seed=rows) * 10.0 ** (rows % 7 - 3)
        wanted, allowed = byte_product_of(x, weight, bias)
        assert bool(((linear(x).double() - wanted).abs() <= allowed).all()), rows
    assert linear(normal(0, shape[1])).shape == (0, shape[0])


def test_rounding_to_bytes_costs_no_more_than_half_a_step_of_each_number() -> None:
    weight, x = weights((50, 301)), normal(9, 301, seed=2)
    exact = x.double() @ weight.double().T
    step_x, step_w = (one.abs().amax(dim=1).double() / 254 for one in (x, weight))
    allowed = step_x[:, None] * weight.double().abs().sum(1) + x.double().abs().sum(1)[:, None] * step_w
    allowed += 301 * step_x[:, None] * step_w
    assert bool(((as_bytes(weight, None)(x).double() - exact).abs() <= allowed * 1.001).all())


def test_a_linear_of_bytes_takes_weights_of_any_format_and_needs_a_quarter_of_the_memory() -> None:
    weight, x = weights((64, 96)), normal(3, 96, seed=2)
    for storage in STORAGES:
        wanted, allowed = byte_product_of(x, weight.to(storage).float(), None)
        found = as_bytes(weight.to(storage), None)(x)
        assert bool(((found.double() - wanted).abs() <= allowed).all())
    wide = weights((2 * PANEL, 96))
    assert packed(wide, None).weight_bytes == 4 * as_bytes(wide, None).weight_bytes == 4 * 2 * PANEL * 96


@pytest.mark.parametrize("inputs", [4096, 100_000])
def test_numbers_that_fill_all_bytes_do_not_overflow_a_sum(inputs: int) -> None:
    sign = torch.where(torch.arange(40) % 2 == 0, 1.0, -1.0)
    linear = as_bytes(2.0 * sign[:, None].expand(40, inputs), None)
    x = torch.tensor([[3.0], [-3.0]]).expand(2, inputs).contiguous()
    torch.testing.assert_close(linear(x), torch.tensor([[6.0], [-6.0]]) * inputs * sign)
    alternating = x * torch.where(torch.arange(inputs) % 2 == 0, 1.0, -1.0)
    assert not linear(alternating).any()


def test_rows_and_weights_of_zeros_give_the_bias() -> None:
    weight, bias = weights((40, 30)), normal(40, seed=1)
    weight[[0, 7, 39]] = 0.0
    x = normal(6, 30, seed=2)
    x[2] = 0.0
    for linear in (packed(weight, bias), as_bytes(weight, bias)):
        found = linear(x)
        assert torch.equal(found[2], bias)
        assert torch.equal(found[:, [0, 7, 39]], bias[[0, 7, 39]].expand(6, 3))


@pytest.mark.parametrize("size", [1e-38, 1e-41, 1e-45])
def test_rows_of_next_to_nothing_give_next_to_nothing(size: float) -> None:
    found = as_bytes(weights((40, 30)), None)(torch.full((3, 30), size))
    assert bool((found.abs() < 1e-36).all())


LINEARS: dict[str, Callable[[Tensor, Tensor | None, int], Linear]] = {
    "float32": packed,
    "bfloat16": lambda weight, bias, threads: packed(weight.bfloat16(), bias, threads),
    "float16": lambda weight, bias, threads: packed(weight.half(), bias, threads),
    "int8": as_bytes,
}


@pytest.mark.parametrize("shape", [(33, 7), (100, 24), (48, 1537)], ids=str)
@pytest.mark.parametrize("kind", LINEARS)
def test_rows_have_the_same_bits_for_every_number_of_rows_and_threads(
    kind: str, shape: tuple[int, int], threads: int
) -> None:
    weight, bias, x = weights(shape), normal(shape[0], seed=1), normal(530, shape[1], seed=2)
    alone = LINEARS[kind](weight, bias, 1)
    wanted = torch.cat([alone(x[i : i + 1]) for i in range(len(x))])
    linear = LINEARS[kind](weight, bias, threads)
    assert not [n for n in (*range(1, 70), 129, 500, 530) if not torch.equal(linear(x[:n]), wanted[:n])]
    assert not [n for n in (1, 2, 3, 5, 7, 11, 60, 400) if not torch.equal(linear(x[n:]), wanted[n:])]


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", LINEARS)
@pytest.mark.parametrize("column", [0, 31, 64])
def test_a_row_that_is_not_finite_spoils_itself_and_no_other(kind: str, wrong: float, column: int) -> None:
    linear, x = LINEARS[kind](weights((70, 65)), normal(70, seed=1), 2), normal(15, 65, seed=2)
    wanted = linear(x)
    spoilt = x.clone()
    spoilt[6, column] = wrong
    found = linear(spoilt)
    assert not found[6].isfinite().any()
    assert bool(found[6].isnan().all()) or kind != "int8"
    others = [i for i in range(15) if i != 6]
    assert torch.equal(found[others], wanted[others])


@pytest.mark.parametrize("kind", LINEARS)
def test_rows_of_a_wider_matrix_can_be_multiplied(kind: str) -> None:
    linear, wide = LINEARS[kind](weights((24, 10)), None, 2), normal(5, 31, seed=1)
    assert torch.equal(linear(wide[:, 11:21]), linear(wide[:, 11:21].contiguous()))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_table_packs_as_it_is_told_to(quantization: str) -> None:
    weight, x = weights((64, 96)), normal(3, 96, seed=2)
    ops = cpu_ops(2, 1, threads=2, quantization=quantization)  # type: ignore[arg-type]
    wanted = (as_bytes if quantization == "int8" else packed)(weight, None)(x)
    linear = ops.pack_linear(weight.clone(), None)
    assert torch.equal(linear(x), wanted)
    assert linear.weight_bytes == 64 * 96 * (1 if quantization == "int8" else 4)
