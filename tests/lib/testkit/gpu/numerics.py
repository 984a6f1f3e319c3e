"""Every op against its reference in float64: at most four times plain torch's error in the same precision.

Ops that only move or choose must agree bit for bit. Each comparison is also shown to be able to fail: with an
output that is wrong by a twentieth, or in one place, it must say no.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.copy_pages import copy_pages
from radixlm.kernels.kv_write import turn_and_write
from radixlm.kernels.logit_mask import logit_mask
from radixlm.kernels.rms_norm import add_rms_norm, rms_norm
from radixlm.kernels.sample import sample
from radixlm.kernels.silu_mul import gelu_mul, silu_mul
from radixlm.kernels.triton_ops import triton_ops
from testkit import paged
from testkit.paged import Spec

from .report import Place, Row

Outputs = Sequence[Tensor]
Gate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """ours() and, for a dtype, what the reference says of the same inputs. is_exact: bit for bit."""

    name: str
    dtype: torch.dtype
    ours: Callable[[], Outputs]
    expected: Callable[[torch.dtype], Outputs]
    is_exact: bool = False


def rows(place: Place) -> Iterator[Row]:
    for case in cases(place):
        _poison(place)
        yield judge(case)


def cases(place: Place) -> Iterator[Case]:
    for dtype in (torch.float32,) if place.is_small else (torch.bfloat16, torch.float16):
        make = _Make(place.device, dtype)
        for shape in SMALL_ATTENTION if place.is_small else ATTENTION:
            for kind, specs in _batches(shape[3], 8 if place.is_small else 400).items():
                yield make.attention(kind, specs, *shape)
        for shape in SMALL_HEADS if place.is_small else HEADS:
            for has_norms, has_angles in ((False, True), (True, True), (True, False)):
                yield make.write(*shape, has_norms, has_angles)
        for count, width in SMALL_ROWS if place.is_small else ROWS:
            yield make.rms_norm(count, width)
            yield make.add_rms_norm(count, width)
        for count, width in ((3, 40), (2, 130)) if place.is_small else ((1, 1536), (257, 8192), (65, 14336)):
            yield make.gate("silu_mul", silu_mul, reference.silu_mul, count, width)
            yield make.gate("gelu_mul", gelu_mul, reference.gelu_mul, count, width)
        for page_size, size in ((4, 16),) if place.is_small else ((1, 64), (16, 128), (64, 128)):
            yield make.copy(page_size, size)
    make = _Make(place.device, torch.float32)
    for count, vocabulary in ((3, 70),) if place.is_small else ((1, 49152), (64, 128256), (7, 151669)):
        yield make.mask(count, vocabulary)
        yield make.sampled(count, vocabulary)


ATTENTION = (
    (32, 8, 128, 16),
    (32, 8, 64, 16),
    (9, 3, 64, 16),
    (8, 8, 80, 1),
    (14, 2, 96, 64),
    (16, 1, 256, 32),
)
"""Query heads, key heads, head size, page size."""
SMALL_ATTENTION = ((4, 1, 16, 4), (6, 2, 24, 1))
HEADS = ((32, 8, 128, 16), (9, 3, 64, 16), (16, 1, 256, 32), (5, 5, 80, 1))
SMALL_HEADS = ((3, 1, 16, 4),)
ROWS = ((1, 576), (257, 2048), (64, 4096), (9, 14336))
SMALL_ROWS = ((3, 48), (2, 130))
SAMPLING = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 40, 1.0, 0.0),
    (1.3, 0, 0.9, 0.05),
    (1.0, 50, 0.8, 0.0),
)
"""Temperature, top-k, top-p, min-p."""


def _batches(page: int, long: int) -> dict[str, list[Spec]]:
    """What a step may hold: rows that decode, ragged and over shared prefixes; and prompts among them."""
    ragged = [Spec(stop, 1) for stop in (1, max(page - 1, 1), page, page + 1, 3 * page + 5, 2 * long)]
    shared = [Spec(2 * long, 1), *(Spec(2 * long + i, 1, 0, 2 * long // page) for i in range(1, 20))]
    forked = [Spec(long + 3, 1, 0, long // (2 * page)), Spec(long + 4, 1, 0, long // (2 * page))]
    prompts = [
        Spec(long, long),
        Spec(2 * long + 7, 7, 0, 2 * long // page),
        Spec(long + page, page),
        Spec(1, 1),
    ]
    few = len(shared) if long > 100 else 4
    return {"decode": ragged + shared[:few], "mixed": shared[:few] + forked + prompts}


class _Make:
    """Cases of one dtype on one device; the same numbers each time."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator().manual_seed(1)

    def attention(
        self, kind: str, specs: Sequence[Spec], heads: int, kv_heads: int, size: int, page_size: int
    ) -> Case:
        rows = paged.grow(page_size, specs)
        pool = paged.fill(rows, kv_heads, size, dtype=self._dtype).map(lambda pages: pages.to(self._device))
        queries = [one.to(self._device, self._dtype) for one in paged.make_queries(rows, heads, size)]
        ops = triton_ops(heads, kv_heads, size, device=self._device, dtype=self._dtype)
        options = replace(ops.plan_options, min_saved_tokens=1)

        def expected(dtype: torch.dtype) -> Outputs:
            with torch.device(self._device):
                if dtype == torch.float64:
                    return paged.reference(rows, pool, queries, dtype)
                return _plain_attention(rows, pool, queries, dtype)

        return self._case(
            f"tree_attention {kind} {heads}/{kv_heads} heads of {size}, pages of {page_size}",
            lambda: paged.attend(ops, options, rows, pool, queries),
            expected,
        )

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
        kinds = (
            (0.0, 0, 1.0, 0.0),
            (1.0, 0, 1.0, 0.0),
            (0.7, 40, 1.0, 0.0),
            (1.3, 0, 0.9, 0.05),
            (1.0, 50, 0.8, 0.0),
        )
        temperature, top_k, top_p, min_p = zip(*(kinds[i % len(kinds)] for i in range(count)), strict=True)
        arguments = (
            logits,
            *(
                torch.tensor(column, dtype=dtype, device=self._device)
                for column, dtype in (
                    (temperature, torch.float32),
                    (top_k, torch.int32),
                    (top_p, torch.float32),
                    (min_p, torch.float32),
                )
            ),
            self._integers(1 << 62, count),
            self._integers(1 << 20, count),
            self._integers(8, count),
        )
        return self._case(
            f"sample {count} x {vocabulary}",
            lambda: [sample(*arguments)],
            lambda dtype: [_sampled_by_reference(arguments)],
            is_exact=True,
        )

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


def _sampled_by_reference(arguments: Sequence[Tensor]) -> Tensor:
    """In float64 and on the host: no two tokens are so near that rounding would choose between them."""
    logits, *columns = (one.cpu() for one in arguments)
    return reference.sample(logits.double(), *columns).to(arguments[0].device)


def _plain_attention(
    rows: paged.Rows, pool: paged.Pool, queries: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """As any attention of such precision has it: products of `dtype`, softmax in float32, weights rounded.

    The reference in bfloat16 rounds scores too, and is wrong by several percent where they are large.
    """
    out = []
    for table, start, stop, all_queries in zip(rows.tables, rows.starts, rows.stops, queries, strict=True):
        q = all_queries[start:stop].transpose(0, 1)
        group = len(q) // pool.keys.shape[1]
        keys, values = (
            pages[torch.tensor(table)].transpose(0, 1).flatten(1, 2)[:, :stop].repeat_interleave(group, 0)
            for pages in (pool.keys, pool.values)
        )
        scores = q.float() @ keys.float().transpose(1, 2) * q.shape[2] ** -0.5
        hidden = torch.arange(stop)[None, :] > torch.arange(start, stop)[:, None]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(dtype)
        out.append((weights @ values).transpose(0, 1))
    return out


def judge(case: Case) -> Row:
    """Whether our outputs are as exact as is asked, and the same outputs made wrong are not."""
    ours = case.ours()
    if case.is_exact:
        expected = case.expected(case.dtype)
        right = _is_equal(ours, expected) and not _is_equal([*ours[:-1], _spoilt(ours[-1])], expected)
        return Row(case.name, "right" if right else "wrong")
    plain, truth = case.expected(case.dtype), case.expected(torch.float64)
    is_right = all(one.dtype == case.dtype for one in ours)
    shares = partial(_shares, plain=plain, truth=truth)
    worst = max(shares(ours))
    can_fail = min(shares([one * 1.05 for one in ours])) > 1
    is_right = is_right and worst <= 1 and can_fail
    return Row(case.name, "right" if is_right else "wrong", {"error/allowed": worst})


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


def _poison(place: Place) -> None:
    """What is allocated next was full of NaN: an output that is not written in full shows."""
    blocks = [torch.full((1 << bits,), torch.nan, device=place.device) for bits in range(8, 24)]
    del blocks
