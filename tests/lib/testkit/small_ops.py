"""For tests of the small Triton kernels: normal numbers, rows in a wider matrix, poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """What torch allocates and nobody writes is NaN, so that it shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def normal(*shape: int, seed: int = 0, std: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * std


def within_nan(rows: Tensor) -> Tensor:
    """The same rows as a part of a wider matrix that is NaN elsewhere."""
    count, width = rows.shape
    wide = torch.full((count + 2, width + 24), torch.nan, dtype=rows.dtype)
    part = wide[1:-1, 16:-8]
    part.copy_(rows)
    return part
