"""The op table for a GPU: Triton kernels over the radix tree, and torch for products of matrices.

`triton_ops` fills it. Weights, activations and pages are of one dtype; sums of norms, attention and sampling
are made in float32. Nothing here waits for the device: what a step needs of the host goes over in three
copies, the plan, the inputs and what rows ask of sampling. Without a GPU the same table works on tensors in
the host's memory where Triton's interpreter is on, which is slow and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import triton
from torch import Tensor

from .copy_pages import copy_pages
from .kv_write import turn_and_write
from .logit_mask import logit_mask
from .ops import Linear, Ops, PreparedPlan
from .plan import AttentionPlan, PlanOptions
from .rms_norm import add_rms_norm, rms_norm
from .sample import sample
from .silu_mul import silu_mul
from .tree_attention import programs_for, tree_attention
from .triton_plan import NARROW_ROWS, WIDE_ROWS, TritonPlan, lower

ALIGN_TOKENS = 64
"""Where shared parts and pieces of long segments end: whole tiles of keys."""


class NotPossible(ValueError):
    """There is no GPU and Triton's interpreter is off, or the kernels are not made for such heads."""


class DenseLinear:
    """weight (N, K), bias (N) or None, kept where they are computed with: (T, K) -> (T, N)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self.weight_bytes, self.weight_address = weight.nbytes, weight.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self._weight, self._bias)


def is_interpreted() -> bool:
    """Whether Triton runs kernels as Python, on tensors of the host."""
    return bool(triton.knobs.runtime.interpret)


def triton_ops(
    num_heads: int, num_kv_heads: int, head_dim: int, *, device: torch.device, dtype: torch.dtype
) -> Ops:
    """The table for a model of these heads. Raises NotPossible: on a CPU without Triton's interpreter."""
    if device.type == "cpu" and not is_interpreted():
        raise NotPossible("its kernels need a GPU; TRITON_INTERPRET=1 runs them on a CPU, slowly, for tests")
    if device.type == "cpu" and dtype == torch.bfloat16:
        raise NotPossible("its interpreter multiplies bfloat16 wrongly: float32 or float16 there")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        raise NotPossible(f"its kernels need compute capability 8.0 or above, {name} has less")
    if head_dim % 8 or head_dim > 256:
        raise NotPossible(f"its kernels take head sizes that are multiples of 8 up to 256, got {head_dim}")
    group = num_heads // num_kv_heads
    if num_heads % num_kv_heads or group > NARROW_ROWS:
        raise NotPossible(
            f"its kernels take up to {NARROW_ROWS} query heads a key head, got {num_heads} and {num_kv_heads}"
        )

    def upload(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return _upload(tensors, device)

    def pack_linear(weight: Tensor, bias: Tensor | None) -> Linear:
        moved = weight.to(device, dtype).contiguous()
        return DenseLinear(moved, None if bias is None else bias.to(device, dtype))

    def prepare(plan: AttentionPlan) -> TritonPlan:
        return lower(plan, device=device, num_heads=num_heads, num_kv_heads=num_kv_heads)

    def attend(q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: PreparedPlan) -> Tensor:
        assert isinstance(plan, TritonPlan), "attend takes what prepare made"
        return tree_attention(q, k_pages, v_pages, plan)

    def copy(pool: Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
        copy_pages(pool, *upload([torch.tensor(list(ids), dtype=torch.int64) for ids in (sources, targets)]))

    return Ops(
        name="triton",
        device=device,
        # Rows that decode, the narrow items, are what needs to be split: a prompt is many items anyway.
        plan_options=PlanOptions(
            align_tokens=ALIGN_TOKENS,
            queries_a_tile=WIDE_ROWS // group,
            workers=programs_for(device, dtype, head_dim, num_kv_heads)[1],
        ),
        upload=upload,
        pack_linear=pack_linear,
        take_rows=lambda table, ids: table.index_select(0, ids),
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        turn_and_write=partial(turn_and_write, num_heads=num_heads),
        silu_mul=silu_mul,
        zeros=lambda shape, dtype: torch.zeros(tuple(shape), dtype=dtype, device=device),
        copy_pages=copy,
        prepare=prepare,
        attend=attend,
        logit_mask=logit_mask,
        sample=sample,
        draw=None,
        run_pass=lambda pass_, name, inputs, plan: pass_(inputs, plan),
    )


def _upload(tensors: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """All of them in one copy; torch keeps pinned memory until the copy is done."""
    if device.type == "cpu":
        return tensors
    sizes = [len(tensor) for tensor in tensors]
    staged = torch.cat([*tensors], out=torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True))
    return torch.split(staged.to(device, non_blocking=True), sizes)
