"""RMS norm in Triton: as exact as torch, each row by itself, and everything written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.rms_norm import MAX_WIDTH, add_rms_norm, rms_norm
from testkit.compiled import fused
from testkit.paged import is_as_exact
from testkit.small_ops import fresh_memory_is_nan, normal, within_nan

EPS = 1e-6
SHAPES = [(1, 8), (3, 8), (17, 8), (3, 1), (17, 576), (3, 1000), (1, 5120), (2, MAX_WIDTH)]


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    with fresh_memory_is_nan():
        yield


def inputs(count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, residual, weight."""
    weight = 1 + normal(width, seed=2, std=0.3)
    return normal(count, width, std=2.0), normal(count, width, seed=1), weight


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_a_norm_is_as_exact_as_plain_torch_and_equals_the_cpu(count: int, width: int) -> None:
    x, _, weight = inputs(count, width)
    found = rms_norm(x, weight, EPS)
    plain = reference.rms_norm(x, weight, EPS)
    assert is_as_exact(found, plain, reference.rms_norm(x.double(), weight.double(), EPS))
    torch.testing.assert_close(found, fused().rms_norm(x, weight, EPS))


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_a_sum_and_its_norm_are_as_exact_as_plain_torch_and_equal_the_cpu(count: int, width: int) -> None:
    x, residual, weight = inputs(count, width)
    found = add_rms_norm(x, residual, weight, EPS)
    plain = reference.add_rms_norm(x, residual, weight, EPS)
    truth = reference.add_rms_norm(x.double(), residual.double(), weight.double(), EPS)
    for ours, one, true in zip(found, plain, truth, strict=True):
        assert is_as_exact(ours, one, true)
    assert torch.equal(found[1], x + residual)
    for ours, theirs in zip(found, fused().add_rms_norm(x, residual, weight, EPS), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_check_fails_for_a_norm_with_a_mistake() -> None:
    x, _, weight = inputs(17, 576)
    plain, truth = reference.rms_norm(x, weight, EPS), reference.rms_norm(x.double(), weight.double(), EPS)
    assert is_as_exact(rms_norm(x, weight, EPS), plain, truth)
    mean_of_the_block = truth * (1024 / 576) ** 0.5
    last_dropped = truth * (x.pow(2).mean(1) / x[:, :-1].pow(2).mean(1)).sqrt()[:, None]
    for wrong in (truth * 1.01, truth.roll(1, 0), truth.roll(1, 1), mean_of_the_block, last_dropped):
        assert not is_as_exact(wrong, plain, truth)


def test_eps_counts_where_numbers_are_small() -> None:
    x, weight = normal(3, 64, std=1e-4), torch.ones(64)
    found = rms_norm(x, weight, 1e-5)
    assert is_as_exact(
        found,
        reference.rms_norm(x, weight, 1e-5),
        reference.rms_norm(x.double(), weight.double(), 1e-5),
    )
    assert rms_norm(torch.zeros(2, 64), weight, EPS).eq(0).all()


@pytest.mark.parametrize("width", [8, 576, 1000])
def test_a_row_alone_is_the_row_in_a_batch_to_the_bit(width: int) -> None:
    x, residual, weight = inputs(17, width)
    batch, again = (
        torch.cat((rms_norm(x, weight, EPS), *add_rms_norm(x, residual, weight, EPS)), 1) for _ in range(2)
    )
    assert torch.equal(batch, again)
    for i in range(0, 17, 4):
        one, other = x[i : i + 1], residual[i : i + 1]
        alone = torch.cat((rms_norm(one, weight, EPS), *add_rms_norm(one, other, weight, EPS)), 1)
        assert torch.equal(alone, batch[i : i + 1])


def test_rows_of_a_wider_matrix_are_read_as_they_lie() -> None:
    x, residual, weight = inputs(3, 100)
    assert torch.equal(rms_norm(within_nan(x), weight, EPS), rms_norm(x, weight, EPS))
    strided = add_rms_norm(within_nan(x), torch.cat((residual, x), 1)[:, :100], weight, EPS)
    for found, wanted in zip(strided, add_rms_norm(x, residual, weight, EPS), strict=True):
        assert found.is_contiguous()
        assert torch.equal(found, wanted)


def test_half_precision_is_rounded_once_at_the_end() -> None:
    x, residual, weight = (one.half() for one in inputs(5, 100))
    normed, total = add_rms_norm(x, residual, weight.float(), EPS)
    exact = x.float() + residual.float()
    assert torch.equal(total, exact.half())
    assert torch.equal(normed, rms_norm(exact, weight.float(), EPS).half())
    assert torch.equal(rms_norm(x, weight, EPS), rms_norm(x.float(), weight.float(), EPS).half())


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy's, in the interpreter
def test_what_is_not_finite_stays_so_in_its_row_and_reaches_no_other(wrong: float) -> None:
    x, residual, weight = inputs(5, 50)
    spoilt, others = x.clone(), [0, 1, 3, 4]
    spoilt[2, 13] = wrong
    runs: list[Callable[[Tensor], Tensor]] = [
        lambda x: rms_norm(x, weight, EPS),
        lambda x: torch.cat(add_rms_norm(x, residual, weight, EPS), 1),
        lambda x: torch.cat(add_rms_norm(residual, x, weight, EPS), 1),
    ]
    for run in runs:
        assert not run(spoilt)[2].isfinite().all()
        assert torch.equal(run(spoilt)[others], run(x)[others])


def test_no_rows_give_no_rows() -> None:
    none, weight = torch.zeros(0, 24), torch.ones(24)
    assert rms_norm(none, weight, EPS).shape == (0, 24)
    assert [one.shape for one in add_rms_norm(none, none, weight, EPS)] == [(0, 24), (0, 24)]


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (
            torch.zeros(3, 8).double(),
            torch.zeros(8),
            "x must be float32, bfloat16 or float16, got .*float64",
        ),
        (torch.zeros(8), torch.zeros(8), r"x must have shape \(T, K\), K from 1 to 16384, got \(8,\)"),
        (torch.zeros(1, 16385), torch.zeros(16385), r"K from 1 to 16384, got \(1, 16385\)"),
        (torch.zeros(8, 3).T, torch.zeros(8), r"row of x must be numbers side by side, got strides \(1, 3\)"),
        (torch.zeros(3, 8), torch.zeros(7), r"weight must be contiguous of shape \(8,\), got shape \(7,\)"),
        (torch.zeros(3, 8), torch.zeros(16)[::2], r"got shape \(8,\) and strides \(2,\)"),
        (
            torch.zeros(3, 8),
            torch.zeros(8).half(),
            "weight must be float32 or torch.float32 as x is, got",
        ),
    ],
)
def test_what_a_norm_cannot_take_is_refused(x: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rms_norm(x, weight, EPS)
    with pytest.raises(ValueError, match=message):
        add_rms_norm(x, x, weight, EPS)


@pytest.mark.parametrize("residual", [torch.zeros(2, 8), torch.zeros(3, 8).half()])
def test_a_residual_that_does_not_fit_is_refused(residual: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"residual must be torch.float32 of shape \(3, 8\) as x is, got torch"
    ):
        add_rms_norm(torch.zeros(3, 8), residual, torch.ones(8), EPS)
