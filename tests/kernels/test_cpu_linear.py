"""Packed linear layers: the values of a plain linear, and rows whose bits no batch changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlm.kernels.cpu_linear import NEVER, NotDeterministic, pack_linear, steady_from

SHAPES = ((24, 100), (100, 24), (33, 7), (48, 1536), (257, 64))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_packed_linear_is_a_linear(shape: tuple[int, int], steady: bool, with_bias: bool) -> None:
    weight = normal(*shape) / shape[1] ** 0.5
    bias = normal(shape[0], seed=1) if with_bias else None
    linear = pack_linear(weight.clone(), bias, steady=steady)
    for rows in (0, 1, 2, 17, 40):
        x = normal(rows, shape[1], seed=2)
        wanted = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(linear(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_steady_rows_have_the_same_bits_for_every_number_of_rows(
    shape: tuple[int, int], threads: int
) -> None:
    linear = pack_linear(normal(*shape), normal(shape[0], seed=1), steady=True)
    x = normal(130, shape[1], seed=2)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(len(x))])
    assert not [rows for rows in range(1, 131) if not torch.equal(linear(x[:rows]), alone[:rows])]
    assert not [first for first in range(1, 130) if not torch.equal(linear(x[first:]), alone[first:])]


def test_rows_of_a_wider_matrix_can_be_multiplied() -> None:
    weight, wide = normal(24, 10), normal(5, 30, seed=1)
    wanted = torch.nn.functional.linear(wide[:, 10:20], weight)
    torch.testing.assert_close(
        pack_linear(weight, None, steady=False)(wide[:, 10:20]), wanted, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_linears_too(dtype: torch.dtype) -> None:
    weight, x = normal(24, 100).to(dtype), normal(5, 100, seed=1).to(dtype)
    found = pack_linear(weight.clone(), None, steady=False)(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight))


def test_steady_rows_are_refused_where_no_packed_linear_exists() -> None:
    with pytest.raises(NotDeterministic, match=r"need oneDNN for torch\.float64"):
        pack_linear(normal(24, 10).double(), None, steady=True)


def test_a_few_rows_may_be_padded_but_some_number_of_rows_is_steady() -> None:
    assert all(1 <= steady_from(*shape, torch.float32) < NEVER for shape in SHAPES)
