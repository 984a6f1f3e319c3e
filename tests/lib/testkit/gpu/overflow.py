"""Ops where offsets pass 2**31 numbers: what is at the far end equals what is computed of a small copy of it.

On a device that has not the memory, and at tiny sizes without one, the same comparisons are made of less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.copy_pages import copy_pages
from radixlm.kernels.kv_write import turn_and_write
from radixlm.kernels.logit_mask import logit_mask
from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import AttentionSpec, build_plan
from radixlm.kernels.rms_norm import rms_norm
from radixlm.kernels.sample import sample
from radixlm.kernels.silu_mul import silu_mul
from radixlm.kernels.triton_ops import triton_ops

from .report import Place, Row

_LIMIT = 1 << 31
_HEADS, _PAGE, _SIZE = 4, 16, 64


def rows(place: Place) -> Iterator[Row]:
    numbers = 1 << 15 if place.is_small else _LIMIT + (1 << 24)
    dtype = torch.float32 if place.is_small else torch.bfloat16
    if not place.is_small and torch.cuda.mem_get_info()[0] < 24 << 30:
        yield Row("all: needs 24 GB of free memory", "left out")
        return
    checks: dict[str, Callable[[Place, int, torch.dtype], bool]] = {
        "tree_attention, turn_and_write and copy_pages: pages of a head together": _by_head,
        "tree_attention, turn_and_write and copy_pages: heads of a page together": _by_page,
        "rms_norm": lambda *a: _by_row(rms_norm_of, *a),
        "silu_mul": lambda *a: _by_row(silu_mul, *a),
        "logit_mask and sample": _logits,
    }
    for name, check in checks.items():
        is_right = check(place, numbers, dtype)
        yield Row(name, "right" if is_right else "wrong", {"numbers": numbers})
        if not place.is_small:
            torch.cuda.empty_cache()


def rms_norm_of(x: Tensor) -> Tensor:
    return rms_norm(x, torch.ones(x.shape[1], device=x.device), 1e-5)


def _by_head(place: Place, numbers: int, dtype: torch.dtype) -> bool:
    """Keys of all heads, then values: the last head's pages lie beyond the limit."""
    count = numbers // (_HEADS * _PAGE * _SIZE)
    pool = torch.zeros((2, _HEADS, count, _PAGE, _SIZE), dtype=dtype, device=place.device)
    return _pages(place, pool.permute(0, 2, 1, 3, 4))


def _by_page(place: Place, numbers: int, dtype: torch.dtype) -> bool:
    """A page's heads side by side: the last pages lie beyond the limit."""
    count = numbers // (_HEADS * _PAGE * _SIZE)
    return _pages(place, torch.zeros((2, count, _HEADS, _PAGE, _SIZE), dtype=dtype, device=place.device))


def _pages(place: Place, pool: Tensor) -> bool:
    """Write tokens to pages far apart, copy one of them, attend, whole and in two pieces; and the same in a
    pool of four pages."""
    most = pool.shape[1]
    assert most > 6, f"pages far apart are different ones, of {most}"
    far = [most - 1, most // 2, most - 3, 0]
    small = torch.zeros((2, 4, *pool.shape[2:]), dtype=pool.dtype, device=pool.device)
    q_far, out_far = _write_copy_attend(place, pool, far)
    q_near, out_near = _write_copy_attend(place, small, [0, 1, 2, 3])
    kept = pool[:, torch.tensor(far, device=pool.device)]
    equal = torch.equal(q_far, q_near) and torch.equal(out_far, out_near) and torch.equal(kept, small)
    return equal and bool(out_far.isfinite().all()) and bool(out_far.abs().sum() > 0)


def _write_copy_attend(place: Place, pool: Tensor, pages: list[int]) -> tuple[Tensor, Tensor]:
    """Tokens of two full pages go to pages[0] and pages[1], the copy of pages[0] is pages[2]. A row over
    pages[2] and pages[1] attends; then its second half again, with one partial a page."""
    count, heads = 2 * _PAGE, 2 * _HEADS
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(count, (heads + 2 * _HEADS) * _SIZE, generator=generator).to(pool.device, pool.dtype)
    position = torch.arange(count, device=pool.device)
    slots = torch.tensor([pages[i // _PAGE] * _PAGE + i % _PAGE for i in range(count)], device=pool.device)
    q = turn_and_write(qkv, None, None, position, slots, pool[0], pool[1], num_heads=heads)
    source, target = (torch.tensor([page], device=pool.device) for page in (pages[0], pages[2]))
    copy_pages(pool, source, target)
    ops = triton_ops(heads, _HEADS, _SIZE, device=place.device, dtype=pool.dtype)
    whole = replace(ops.plan_options, workers=1)
    cut = replace(whole, align_tokens=_PAGE, workers=2, costs=Costs(item=1, partial=0, least_tokens=_PAGE))
    outs = []
    for start, options, partials in ((0, whole, 1), (_PAGE, cut, 2)):
        plan = build_plan(
            [np.array([pages[2], pages[1]], dtype=np.int32)],
            [start],
            [count],
            page_size=_PAGE,
            spec=AttentionSpec(_SIZE**-0.5),
            options=options,
        )
        assert len(plan.merge) == partials, f"the row is in {partials} pieces, not {len(plan.merge)}"
        outs.append(ops.attend(q[start:].contiguous(), pool[0], pool[1], ops.prepare(plan)))
    return q, torch.cat(outs)


def _by_row(op: Callable[[Tensor], Tensor], place: Place, numbers: int, dtype: torch.dtype) -> bool:
    """The last rows of very many, and the same rows alone."""
    width = 4096 if place.is_small else 8192
    x = torch.zeros((numbers // width, width), dtype=dtype, device=place.device)
    x[-3:] = torch.randn(3, width, generator=torch.Generator().manual_seed(1)).to(place.device, dtype)
    return torch.equal(op(x)[-3:], op(x[-3:].clone()))


def _logits(place: Place, numbers: int, dtype: torch.dtype) -> bool:
    """The mask and the choice of the last rows of very many, and those of the same rows alone."""
    vocabulary = 5000 if place.is_small else 128256
    count, device = numbers // vocabulary, place.device
    generator = torch.Generator().manual_seed(1)
    some = (4 * torch.randn(3, vocabulary, generator=generator)).to(device)
    words = (
        torch.randint(-(1 << 31), 1 << 31, (3, -(-vocabulary // 32)), generator=generator).int().to(device)
    )
    logits = torch.zeros((count, vocabulary), device=device)
    logits[-3:] = some
    logit_mask(logits, words, torch.arange(count - 3, count, device=device))
    logit_mask(some, words, None)
    if not torch.equal(logits[-3:], some):
        return False
    return torch.equal(_sampled(logits)[-3:], _sampled(some))


def _sampled(logits: Tensor) -> Tensor:
    """Rows of one key and position, at temperature 1: those at the end are drawn alike."""
    count, device = len(logits), logits.device
    one, none = torch.ones(count, device=device), torch.zeros(count, device=device)
    key = torch.full((count,), 77, device=device)
    return sample(logits, one, none.int(), one, none, key, key, torch.zeros_like(key))
