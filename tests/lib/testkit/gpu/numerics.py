"""Every op against its reference in float64: at most four times plain torch's error in the same precision.

Ops that only move or choose must agree bit for bit. Attention and sampling have modules of their own; here
are the other ops, and the order and sizes of all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.copy_pages import copy_pages
from radixlm.kernels.kv_write import turn_and_write
from radixlm.kernels.logit_mask import logit_mask
from radixlm.kernels.rms_norm import add_rms_norm, rms_norm
from radixlm.kernels.silu_mul import gelu_mul, silu_mul

from . import attention, sampling
from .case import Case, Outputs, judge
from .report import Place, Row

Gate = Callable[[Tensor], Tensor]


def rows(place: Place) -> Iterator[Row]:
    for case in cases(place):
        _poison(place)
        yield judge(case)


def cases(place: Place) -> Iterator[Case]:
    for dtype in (torch.float32,) if place.is_small else (torch.bfloat16, torch.float16):
        make = _Make(place.device, dtype)
        for shape in attention.SMALL_SHAPES if place.is_small else attention.SHAPES:
            for kind in attention.KINDS:
                yield attention.case(kind, shape, place, dtype)
        for heads in SMALL_HEADS if place.is_small else HEADS:
            for has_norms, has_angles in ((False, True), (True, True), (True, False)):
                yield make.write(*heads, has_norms, has_angles)
        for count, width in SMALL_ROWS if place.is_small else ROWS:
            yield make.rms_norm(count, width)
            yield make.add_rms_norm(count, width)
        for count, width in ((3, 40), (2, 130)) if place.is_small else ((1, 1536), (257, 8192), (65, 14336)):
            yield make.gate("silu_mul", silu_mul, reference.silu_mul, count, width)
            yield make.gate("gelu_mul", gelu_mul, reference.gelu_mul, count, width)
        for page_size, size in ((4, 16),) if place.is_small else ((1, 64), (16, 128), (64, 128)):
            yield make.copy(page_size, size)
    make = _Make(place.device, torch.float32)
    for count, vocabulary in ((10, 70),) if place.is_small else ((1, 49152), (64, 128256), (7, 151669)):
        yield make.mask(count, vocabulary)
        yield make.sampled(count, vocabulary)
    yield sampling.edges(600 if place.is_small else 49152, place.device)


HEADS = ((32, 8, 128, 16), (9, 3, 64, 16), (16, 1, 256, 32), (5, 5, 80, 1))
SMALL_HEADS = ((3, 1, 16, 4),)
ROWS = ((1, 576), (257, 2048), (64, 4096), (9, 14336))
SMALL_ROWS = ((3, 48), (2, 130))


class _Make:
    """Cases of one dtype on one device; the same numbers each time."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator().manual_seed(1)

    def write(
        self, heads: int, kv_heads: int, size: int, page_size: int, has_norms: bool, has_angles: bool
    ) -> Case:
        count, positions = 37, 90
        qkv = self._numbers(count, (heads + 2 * kv_heads) * size)
        weights = [1 + self._numbers(size) / 4 for _ in range(2)]
        turns = self._numbers(positions, size // 2).float()
        angles = (turns.cos(), turns.sin())
        position = self._integers(positions, count)
        num_pages = count // page_size + 3
        slots = random.Random(1).sample(range(num_pages * page_size), count)
        slot = torch.tensor([-1 if i % 9 == 4 else slot for i, slot in enumerate(slots)], device=self._device)
        pages = self._numbers(2, kv_heads, num_pages, page_size, size).permute(0, 2, 1, 3, 4)

        def run(op: Callable[..., Tensor], dtype: torch.dtype, angle_dtype: torch.dtype) -> Outputs:
            keys, values = pages.to(dtype, copy=True)
            norms = (*(weight.to(dtype) for weight in weights), 1e-6) if has_norms else None
            turned = tuple(angle.to(angle_dtype) for angle in angles) if has_angles else None
            q = op(qkv.to(dtype), norms, turned, position, slot, keys, values, num_heads=heads)
            return q, keys, values

        return self._case(
            f"turn_and_write {heads}/{kv_heads} heads of {size}, pages of {page_size}"
            + ", norms" * has_norms
            + ", turned" * has_angles,
            lambda: run(turn_and_write, self._dtype, torch.float32),
            lambda dtype: run(reference.turn_and_write, dtype, dtype),
        )

    def rms_norm(self, count: int, width: int) -> Case:
        x, weight = self._numbers(count, width), 1 + self._numbers(width).float() / 4
        return self._case(
            f"rms_norm {count} x {width}",
            lambda: [rms_norm(x, weight, 1e-5)],
            lambda dtype: [reference.rms_norm(x.to(dtype), weight.to(dtype), 1e-5)],
        )

    def add_rms_norm(self, count: int, width: int) -> Case:
        x, residual = self._numbers(count, width), 3 * self._numbers(count, width)
        weight = 1 + self._numbers(width).float() / 4
        return self._case(
            f"add_rms_norm {count} x {width}",
            lambda: add_rms_norm(x, residual, weight, 1e-5),
            lambda dtype: reference.add_rms_norm(x.to(dtype), residual.to(dtype), weight.to(dtype), 1e-5),
        )

    def gate(
        self,
        name: str,
        op: Callable[[Tensor], Tensor],
        plain: Callable[[Tensor], Tensor],
        count: int,
        width: int,
    ) -> Case:
        gate_up = 2 * self._numbers(count, 2 * width)
        return self._case(
            f"{name} {count} x {width}", lambda: [op(gate_up)], lambda dtype: [plain(gate_up.to(dtype))]
        )

    def copy(self, page_size: int, size: int) -> Case:
        pool = self._numbers(6, 2, 40, page_size, size).permute(0, 2, 1, 3, 4)
        order = torch.randperm(40, generator=self._generator).to(self._device)
        sources, targets = order[:11].clone(), order[11:22].clone()

        def run(op: Callable[[Tensor, Tensor, Tensor], None]) -> Outputs:
            changed = pool.clone()
            op(changed, sources, targets)
            return [changed]

        return self._case(
            f"copy_pages of {page_size} x {size}",
            lambda: run(copy_pages),
            lambda dtype: run(reference.copy_pages),
            is_exact=True,
        )

    def mask(self, count: int, vocabulary: int) -> Case:
        logits = self._numbers(2 * count, vocabulary)
        words = -(-vocabulary // 32)
        mask = self._integers(1 << 32, count, words).sub(1 << 31).int()
        chosen = torch.randperm(2 * count, generator=self._generator)[:count].to(self._device)

        def run(op: Callable[[Tensor, Tensor, Tensor | None], None]) -> Outputs:
            some, every = logits.clone(), logits[:count].clone()
            op(some, mask, chosen)
            op(every, mask, None)
            return [some, every]

        return self._case(
            f"logit_mask {count} x {vocabulary}",
            lambda: run(logit_mask),
            lambda dtype: run(reference.logit_mask),
            is_exact=True,
        )

    def sampled(self, count: int, vocabulary: int) -> Case:
        logits = 3 * self._numbers(count, vocabulary)
        return sampling.kinds(logits, [self._integers(most, count) for most in (1 << 62, 1 << 20, 8)])

    def _case(
        self,
        name: str,
        ours: Callable[[], Outputs],
        expected: Callable[[torch.dtype], Outputs],
        *,
        is_exact: bool = False,
    ) -> Case:
        return Case(
            f"{name}, {str(self._dtype).removeprefix('torch.')}", self._dtype, ours, expected, is_exact
        )

    def _numbers(self, *shape: int) -> Tensor:
        """Normal, rounded to the dtype, so that the reference in float64 sees the same."""
        return torch.randn(shape, generator=self._generator).to(self._device, self._dtype)

    def _integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self._generator).to(self._device)


def _poison(place: Place) -> None:
    """What is allocated next was full of NaN: an output that is not written in full shows."""
    blocks = [torch.full((1 << bits,), torch.nan, device=place.device) for bits in range(8, 24)]
    del blocks
