"""Launches of every kernel at sizes of real models: what compile_only.py compiles for GPUs that are not here.

A case makes its inputs and calls launchers, as a model would. Tensors say that they are on a GPU and have no
memory, so sizes cost nothing. FEW of the cases stand for all in every run of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
_NUM_PAGES = 1 << 16
"""Of a pool whose later heads lie beyond 2**31 numbers."""


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=torch.device("cuda", torch.cuda.current_device()))


def pool(heads: int, page_size: int, size: int, dtype: torch.dtype) -> Tensor:
    """Two layers, laid out as the engine's are: pages of a head together."""
    return empty(4, heads, _NUM_PAGES, page_size, size, dtype=dtype).permute(0, 2, 1, 3, 4)


def attend(dtype: torch.dtype, heads: int, kv_heads: int, size: int, page_size: int) -> None:
    from radixlm.kernels.plan import AttentionSpec, PlanOptions, build_plan
    from radixlm.kernels.tree_attention import tree_attention
    from radixlm.kernels.triton_plan import lower

    with unset_fake_temporarily():  # a plan is made of numbers
        made = build_plan(
            [np.array([0, 1, 2], dtype=np.int32), np.array([0, 1, 3], dtype=np.int32)],
            [2 * page_size] * 2,
            [3 * page_size] * 2,
            page_size=page_size,
            spec=AttentionSpec(size**-0.5),
            options=PlanOptions(align_tokens=page_size, min_saved_tokens=1),
        )
        plan = lower(made, device=torch.device("cpu"), num_heads=heads, num_kv_heads=kv_heads)
    names = ("words", "counts", "items", "pages", "merge")
    parts = {name: empty(*getattr(plan, name).shape, dtype=torch.int32) for name in names}
    pages = pool(kv_heads, page_size, size, dtype)
    q = empty(2 * page_size, heads, size, dtype=dtype)
    tree_attention(q, pages.select(0, 2), pages.select(0, 3), replace(plan, **parts))


def norm(dtype: torch.dtype, width: int) -> None:
    from radixlm.kernels.rms_norm import add_rms_norm, rms_norm

    x, weight = empty(64, width, dtype=dtype), empty(width, dtype=FP32)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x, weight, 1e-5)


def gate(dtype: torch.dtype, width: int) -> None:
    from radixlm.kernels.silu_mul import gelu_mul, silu_mul

    silu_mul(empty(64, 2 * width, dtype=dtype))
    gelu_mul(empty(64, 2 * width, dtype=dtype))


def write(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, page_size: int, norms: bool, turns: bool
) -> None:
    from radixlm.kernels.kv_write import turn_and_write

    qkv = empty(64, (heads + 2 * kv_heads) * size, dtype=dtype)
    weight, angle = empty(size, dtype=FP32), empty(8192, size // 2, dtype=FP32)
    pages = pool(kv_heads, page_size, size, dtype)
    turn_and_write(
        qkv,
        (weight, weight, 1e-6) if norms else None,
        (angle, angle) if turns else None,
        empty(64),
        empty(64),
        pages.select(0, 2),
        pages.select(0, 3),
        num_heads=heads,
    )


def copy(dtype: torch.dtype, page_size: int, size: int) -> None:
    from radixlm.kernels.copy_pages import copy_pages

    copy_pages(pool(8, page_size, size, dtype), empty(3), empty(3))


def mask(vocabulary: int) -> None:
    from radixlm.kernels.logit_mask import logit_mask

    logits, words = empty(64, vocabulary, dtype=FP32), empty(64, -(-vocabulary // 32), dtype=torch.int32)
    logit_mask(logits, words, None)
    logit_mask(logits, words, empty(64))


def choose(vocabulary: int) -> None:
    from radixlm.kernels.sample import sample

    column, numbers = empty(64, dtype=FP32), empty(64)
    top_k = empty(64, dtype=torch.int32)
    logits = empty(64, vocabulary, dtype=FP32)
    sample(logits, column, top_k, column, column, numbers, numbers, numbers)


CASES: Mapping[str, Callable[[], None]] = {
    "attention bf16 32/8 x 128, page 16": partial(attend, BF16, 32, 8, 128, 16),
    "attention fp16 32/8 x 128, page 16": partial(attend, FP16, 32, 8, 128, 16),
    "attention fp32 32/8 x 128, page 16": partial(attend, FP32, 32, 8, 128, 16),
    "attention bf16 32/8 x 64, page 16": partial(attend, BF16, 32, 8, 64, 16),
    "attention bf16 9/3 x 64, page 16": partial(attend, BF16, 9, 3, 64, 16),
    "attention bf16 8/8 x 80, page 1": partial(attend, BF16, 8, 8, 80, 1),
    "attention bf16 14/2 x 96, page 64": partial(attend, BF16, 14, 2, 96, 64),
    "attention bf16 16/1 x 256, page 32": partial(attend, BF16, 16, 1, 256, 32),
    "attention fp32 16/1 x 256, page 32": partial(attend, FP32, 16, 1, 256, 32),
    "write bf16 32/8 x 128, turned": partial(write, BF16, 32, 8, 128, 16, False, True),
    "write bf16 32/8 x 128, norms, turned": partial(write, BF16, 32, 8, 128, 16, True, True),
    "write fp16 9/3 x 64, turned": partial(write, FP16, 9, 3, 64, 16, False, True),
    "write bf16 8/8 x 80, plain": partial(write, BF16, 8, 8, 80, 1, False, False),
    "norm bf16 4096": partial(norm, BF16, 4096),
    "norm bf16 576": partial(norm, BF16, 576),
    "norm fp16 14336": partial(norm, FP16, 14336),
    "norm fp32 2048": partial(norm, FP32, 2048),
    "gate bf16 14336": partial(gate, BF16, 14336),
    "gate bf16 1536": partial(gate, BF16, 1536),
    "gate fp16 8192": partial(gate, FP16, 8192),
    "gate fp32 8192": partial(gate, FP32, 8192),
    "copy bf16 16 x 128": partial(copy, BF16, 16, 128),
    "copy fp32 4 x 64": partial(copy, FP32, 4, 64),
    "mask 128256": partial(mask, 128256),
    "mask 49152": partial(mask, 49152),
    "sample 128256": partial(choose, 128256),
    "sample 5000": partial(choose, 5000),
}
"""The first words of a name: the op and the dtype; streaming ops are those of STREAMING."""

STREAMING = ("write", "norm", "gate", "copy")
"""Ops whose every load and store of numbers is 16 bytes wide."""

FEW = (
    "attention bf16 32/8 x 128, page 16",
    "write bf16 32/8 x 128, norms, turned",
    "norm bf16 4096",
    "gate bf16 14336",
    "copy bf16 16 x 128",
    "mask 128256",
    "sample 128256",
)
