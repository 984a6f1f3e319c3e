"""Copies of pages in Triton: the pages asked for, of all layers, to the bit, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.copy_pages import copy_pages
from radixlm.kernels.cpu import cpu_ops
from testkit.small_ops import normal

SHAPES = [(2, 7, 3, 1, 8), (4, 7, 3, 4, 24), (2, 5, 2, 16, 80), (2, 5, 1, 64, 64), (2, 5, 2, 32, 80)]
"""The last two need more than one program for a page of a head."""


def pool_of(*shape: int, together: str = "heads", dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, some of them NaN, as a part of storage that has more planes, pages and heads than that."""
    planes, pages, heads, slots, size = shape
    numbers = normal(planes + 1, pages + 2, heads + 1, slots, size).to(dtype)
    numbers[:, 1, 0] = torch.nan
    if together == "heads":
        numbers = numbers.transpose(1, 2).contiguous().transpose(1, 2)
    return numbers[1:, 1:-1, :-1]


def whole(pool: Tensor) -> Tensor:
    """The storage that a pool is a part of, as bytes."""
    base = pool._base
    assert base is not None
    return base.contiguous().view(torch.uint8)


def ids(*pages: int) -> Tensor:
    return torch.tensor(pages, dtype=torch.int64)


@pytest.mark.parametrize("together", ["heads", "pages"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_copies_take_all_layers_of_the_given_pages_along_and_touch_nothing_else(
    shape: tuple[int, ...], together: str
) -> None:
    pool, wanted = pool_of(*shape, together=together), pool_of(*shape, together=together)
    sources, targets = ids(1, 1, 4), ids(0, 3, 2)
    copy_pages(pool, sources, targets)
    reference.copy_pages(wanted, sources, targets)
    assert not torch.equal(whole(pool), whole(pool_of(*shape, together=together)))
    assert torch.equal(whole(pool), whole(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_copies_equal_the_cpu_to_the_bit(dtype: torch.dtype) -> None:
    pool, wanted = (pool_of(4, 7, 3, 4, 24, dtype=dtype) for _ in range(2))
    copy_pages(pool, ids(5, 1), ids(0, 3))
    cpu_ops(3, 3, threads=1).copy_pages(wanted, [5, 1], [0, 3])
    assert torch.equal(whole(pool), whole(wanted))


def test_many_copies_are_one_launch() -> None:
    pool, wanted = pool_of(2, 40, 1, 2, 8), pool_of(2, 40, 1, 2, 8)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    copy_pages(pool, order[:20].contiguous(), order[20:].contiguous(), debug=True)
    reference.copy_pages(wanted, order[:20], order[20:])
    assert torch.equal(whole(pool), whole(wanted))


def test_no_copies_change_nothing() -> None:
    pool = pool_of(2, 5, 2, 4, 8)
    copy_pages(pool, ids(), ids(), debug=True)
    assert torch.equal(whole(pool), whole(pool_of(2, 5, 2, 4, 8)))


@pytest.mark.parametrize("mistake", ["a target too many", "the wrong source", "one layer less"])
def test_the_comparison_fails_for_copies_with_a_mistake(mistake: str) -> None:
    pool, wanted = pool_of(4, 7, 3, 4, 24), pool_of(4, 7, 3, 4, 24)
    copy_pages(pool, ids(1), ids(3))
    sources, targets = {
        "a target too many": (ids(1, 1), ids(3, 5)),
        "the wrong source": (ids(2), ids(3)),
    }.get(mistake, (ids(1), ids(3)))
    reference.copy_pages(wanted[:-1] if mistake == "one layer less" else wanted, sources, targets)
    assert not torch.equal(whole(pool), whole(wanted))


@pytest.mark.parametrize(
    ("pool", "sources", "targets", "message"),
    [
        (
            torch.zeros(2, 4, 1, 2, 8).int(),
            ids(0),
            ids(1),
            "pool must be float32, bfloat16 or f.*torch.int32",
        ),
        (
            torch.zeros(4, 1, 2, 8),
            ids(0),
            ids(1),
            r"pool must have shape \(N, P, G, S, D\), got \(4, 1, 2, 8\)",
        ),
        (torch.zeros(2, 4, 1, 8, 2).mT, ids(0), ids(1), "numbers side by side, got strides"),
        (torch.zeros(2, 4, 1, 2, 8), ids(0).int(), ids(1), "sources must be int64 on cpu .* got torch.int32"),
        (
            torch.zeros(2, 4, 1, 2, 8),
            ids(0),
            ids(1, 2, 3, 4)[::2],
            r"targets .* row, got shape \(2,\).*\(2,\)",
        ),
        (torch.zeros(2, 4, 1, 2, 8), ids(0)[None], ids(1), r"sources .* contiguous row, got shape \(1, 1\)"),
        (torch.zeros(2, 4, 1, 2, 8), ids(0), ids(1, 2), "each source must have its target, got 1 and 2"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    pool: Tensor, sources: Tensor, targets: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        copy_pages(pool, sources, targets)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (ids(4), ids(0), "sources must be pages from 0 to 3, got 4"),
        (ids(0), ids(-1), "targets must be pages from 0 to 3, got -1"),
        (ids(0, 1), ids(2, 2), r"target twice.* got sources \[0, 1\] and targets \[2, 2\]"),
        (ids(0, 1), ids(2, 0), r"a source and a target, got sources \[0, 1\] and targets \[2, 0\]"),
    ],
)
def test_when_debugging_pages_that_cannot_be_copied_are_refused(
    sources: Tensor, targets: Tensor, message: str
) -> None:
    pool = torch.zeros(2, 4, 1, 2, 8)
    with pytest.raises(ValueError, match=message):
        copy_pages(pool, sources, targets, debug=True)
