"""Gated activations in Triton: as exact as torch, over all the range of a gate, and everything written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from radixlm.kernels import reference
from radixlm.kernels.silu_mul import gelu_mul, silu_mul
from testkit.compiled import fused
from testkit.paged import is_as_exact
from testkit.small_ops import fresh_memory_is_nan, normal, within_nan

Op = Callable[[Tensor], Tensor]
BOTH = pytest.mark.parametrize(
    ("op", "wanted"), [(silu_mul, reference.silu_mul), (gelu_mul, reference.gelu_mul)], ids=["silu", "gelu"]
)
SHAPES = [(1, 8), (3, 8), (17, 8), (3, 1), (17, 576), (3, 1000), (2, 2049), (1, 4096)]


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    with fresh_memory_is_nan():
        yield


@pytest.mark.parametrize(("count", "width"), SHAPES)
@BOTH
def test_an_activation_is_as_exact_as_plain_torch(op: Op, wanted: Op, count: int, width: int) -> None:
    gate_up = normal(count, 2 * width, std=3.0)
    found = op(gate_up)
    assert found.shape == (count, width)
    assert is_as_exact(found, wanted(gate_up), wanted(gate_up.double()))


def test_silu_equals_the_cpu() -> None:
    gate_up = normal(5, 2000, std=3.0)
    torch.testing.assert_close(silu_mul(gate_up), fused().silu_mul(gate_up))


@BOTH
def test_the_check_fails_for_a_result_with_a_mistake(op: Op, wanted: Op) -> None:
    gate_up = normal(3, 48)
    plain, truth = wanted(gate_up), wanted(gate_up.double())
    assert is_as_exact(op(gate_up), plain, truth)
    gate, up = gate_up.double().chunk(2, 1)
    activations = [x.sigmoid() * x for x in (gate, 1.702 * gate)]
    activations += [gelu(gate), gelu(gate, approximate="tanh")]
    others = [x * up for x in activations if not torch.equal(x * up, truth)]
    swapped = wanted(torch.cat((up, gate), 1))
    for wrong in (truth * 1.01, truth.roll(1, 0), truth.roll(1, 1), swapped, *others):
        assert not is_as_exact(wrong, plain, truth)


@BOTH
def test_a_gate_is_right_over_all_its_range(op: Op, wanted: Op) -> None:
    gates = torch.linspace(-95, 95, 20_001)
    found = op(torch.cat((gates, torch.ones_like(gates)))[None])[0].double()
    truth = wanted(torch.cat((gates, torch.ones_like(gates))).double()[None])[0]
    assert found.isfinite().all()
    torch.testing.assert_close(found, truth, rtol=2e-5, atol=1e-6 if op is gelu_mul else 1e-35)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # numpy's, in the interpreter
@pytest.mark.parametrize(("op", "plain"), [(silu_mul, silu), (gelu_mul, partial(gelu, approximate="tanh"))])
def test_gates_at_the_ends_of_the_range_give_what_torch_gives(op: Op, plain: Op) -> None:
    gates = torch.tensor(
        [-3.4e38, -1e38, -1e20, -1e4, -100, -88, -0.0, 0, 88, 1e4, 1e20, 1e38, torch.inf, torch.nan]
    )
    for up in (1.0, -0.5):
        found = op(torch.cat((gates, torch.full_like(gates, up)))[None])[0]
        torch.testing.assert_close(found, plain(gates) * up, equal_nan=True)
    assert op(torch.tensor([[-torch.inf, 1.0]])).isnan().all(), "-inf * 0, as in torch"


@BOTH
def test_a_row_alone_is_the_row_in_a_batch_to_the_bit(op: Op, wanted: Op) -> None:
    gate_up = normal(17, 2000, std=3.0)
    batch = op(gate_up)
    assert torch.equal(op(gate_up), batch)
    for i in range(0, 17, 4):
        assert torch.equal(op(gate_up[i : i + 1]), batch[i : i + 1])


@BOTH
def test_rows_of_a_wider_matrix_are_read_as_they_lie(op: Op, wanted: Op) -> None:
    gate_up = normal(3, 60)
    found = op(within_nan(gate_up))
    assert found.is_contiguous()
    assert torch.equal(found, op(gate_up))


@BOTH
def test_half_precision_is_rounded_once_at_the_end(op: Op, wanted: Op) -> None:
    gate_up = normal(5, 200, std=3.0).half()
    assert torch.equal(op(gate_up), op(gate_up.float()).half())


@BOTH
def test_a_number_that_is_none_stays_so_in_its_row_and_reaches_no_other(op: Op, wanted: Op) -> None:
    gate_up = normal(5, 60)
    spoilt, others = gate_up.clone(), [0, 1, 3, 4]
    spoilt[2, [3, 45]] = torch.nan
    found, clean = op(spoilt), op(gate_up)
    assert found[2].isnan().nonzero().flatten().tolist() == [3, 15]
    assert torch.equal(found[others], clean[others])


@BOTH
def test_no_rows_give_no_rows(op: Op, wanted: Op) -> None:
    assert op(torch.zeros(0, 48)).shape == (0, 24)


@pytest.mark.parametrize(
    ("gate_up", "message"),
    [
        (torch.zeros(3, 8).double(), "gate_up must be float32, bfloat16 or float16, got torch.float64"),
        (torch.zeros(3, 9), r"gate_up must have shape \(T, 2 I\), got \(3, 9\)"),
        (torch.zeros(3, 0), r"gate_up must have shape \(T, 2 I\), got \(3, 0\)"),
        (torch.zeros(2, 3, 8), r"gate_up must have shape \(T, 2 I\), got \(2, 3, 8\)"),
        (torch.zeros(8, 3).T, r"row of gate_up must be numbers side by side, got strides \(1, 3\)"),
    ],
)
@BOTH
def test_what_an_activation_cannot_take_is_refused(op: Op, wanted: Op, gate_up: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(gate_up)
