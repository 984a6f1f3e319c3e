"""One comparison of an op with its reference, and its verdict.

Outputs may be four times as wrong as plain torch's in the same precision, seen from float64; those of ops
that only move or choose must agree bit for bit. The same outputs made wrong, by a twentieth or in one place,
must be refused, or the comparison says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from .report import Figures, Row

Outputs = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """ours() and, for a dtype, what the reference says of the same inputs. is_exact: bit for bit. figures:
    what else is to be told of it."""

    name: str
    dtype: torch.dtype
    ours: Callable[[], Outputs]
    expected: Callable[[torch.dtype], Outputs]
    is_exact: bool = False
    figures: Figures = field(default_factory=dict)


def judge(case: Case) -> Row:
    """Whether our outputs are as exact as is asked, and the same outputs made wrong are not."""
    ours = case.ours()
    if case.is_exact:
        expected = case.expected(case.dtype)
        right = _is_equal(ours, expected) and not _is_equal([*ours[:-1], _spoilt(ours[-1])], expected)
        return Row(case.name, "right" if right else "wrong", case.figures)
    plain, truth = case.expected(case.dtype), case.expected(torch.float64)
    is_right = all(one.dtype == case.dtype for one in ours)
    shares = partial(_shares, plain=plain, truth=truth)
    worst = max(shares(ours))
    can_fail = min(shares([one * 1.05 for one in ours])) > 1
    is_right = is_right and worst <= 1 and can_fail
    return Row(case.name, "right" if is_right else "wrong", {"error/allowed": worst, **case.figures})


def _shares(ours: Outputs, plain: Outputs, truth: Outputs) -> list[float]:
    """Of each output, its error as a share of what is allowed: four times that of plain torch, which counts
    as no less than one rounding of each number, a quarter of the distance between two. NaN is infinitely
    wrong."""
    shares = []
    for our, their, true in zip(ours, plain, truth, strict=True):
        rounding = torch.finfo(our.dtype).eps / 4 * true.norm()
        allowed = 4 * torch.maximum((their.double() - true).norm(), rounding)
        share = float((our.double() - true).norm() / allowed)
        shares.append(share if share == share else float("inf"))
    return shares


def _is_equal(ours: Outputs, expected: Outputs) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


def _spoilt(output: Tensor) -> Tensor:
    """With one number changed to what no input holds."""
    changed = output.clone()
    changed[(0,) * changed.dim()] = -1000
    return changed
