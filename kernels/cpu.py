"""The op table for a CPU: vector code that numba compiles on the machine it runs on.

`cpu_ops` fills it. Weights and pages may be stored as float32, bfloat16 or float16; everything is computed
in float32, since few processors have the units for less. A query's numbers do not depend, bit for bit, on its
batch mates, its chunk or what the cache held: products sum in the order of K (cpu_gemm.py), attention folds
keys in blocks at fixed positions (cpu_attention.py), and the other ops work along rows (cpu_fused.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .cpu_attention import CpuAttention
from .cpu_draw import CpuDraw
from .cpu_fused import CpuFused
from .cpu_ir import HAS_FLOAT16, PANEL
from .cpu_linear import ByteLinear, PackedLinear
from .cpu_memory import Arena, zeros
from .cpu_replay import Recorder
from .cpu_softmax import BLOCK
from .cpu_team import Team
from .ops import Linear, Ops
from .plan import PlanOptions


class UnsupportedDtype(ValueError):
    """This processor cannot read numbers that are stored so."""


def cpu_ops(
    num_heads: int,
    num_kv_heads: int,
    *,
    threads: int,
    dtype: torch.dtype = torch.float32,
    quantization: Literal["none", "int8"] = "none",
) -> Ops:
    """The table for a model of these heads, computing with so many threads, the caller's among them.

    dtype: how weights and pages will be stored. Raises UnsupportedDtype.
    """
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads must be a multiple of num_kv_heads, got {num_heads} and {num_kv_heads}")
    if dtype == torch.float16 and not HAS_FLOAT16:
        raise UnsupportedDtype("float16 needs a processor that converts it (F16C), which this one does not")
    team, arena = Team(threads), Arena()
    recorder = Recorder(team)
    attention = CpuAttention(num_heads, num_kv_heads, team, recorder.empty)
    fused = CpuFused(team, recorder.empty)

    def pack_linear(weight: Tensor, bias: Tensor | None) -> Linear:
        return (ByteLinear if quantization == "int8" else PackedLinear)(
            weight, bias, team, arena, recorder.empty
        )

    return Ops(
        name="cpu",
        device=torch.device("cpu"),
        plan_options=PlanOptions(
            align_tokens=BLOCK, queries_a_tile=max(1, PANEL // (num_heads // num_kv_heads))
        ),
        upload=lambda tensors: tensors,
        pack_linear=pack_linear,
        take_rows=fused.take_rows,
        rms_norm=fused.rms_norm,
        add_rms_norm=fused.add_rms_norm,
        turn_and_write=fused.turn_and_write,
        silu_mul=fused.silu_mul,
        copy_pages=fused.copy_pages,
        zeros=zeros,
        prepare=attention.prepare,
        attend=attention.attend,
        logit_mask=fused.logit_mask,
        sample=None,
        draw=CpuDraw(team),
        run_pass=recorder.run,
    )
