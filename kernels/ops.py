"""The op table: every device operation the model, the engine and the pool call, behind one value.

A backend (cpu.py, triton_ops.py) fills the table; nothing chooses a backend at import. The model calls only
these. T is the number of query tokens of a step, H query heads, G KV heads, D head size,
P pages, S slots a page. Pages have *shape* (P, G, S, D); their strides are the pool's business (kv_pool.py
keeps all pages of one head together), so ops address them by shape and stride alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .plan import AttentionPlan, PlanOptions


class Linear(Protocol):
    """A weight in the backend's own layout: (T, K) -> (T, N), bias included. weight_bytes: what it takes,
    from weight_address on; it may be the memory of the tensor that was packed."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def weight_address(self) -> int: ...

    def __call__(self, x: Tensor, /) -> Tensor: ...


class PreparedPlan(Protocol):
    """A plan lowered once a step for all layers; opaque to all but the backend that made it."""


class Draw(NamedTuple):
    """One token to draw from row `row` of some scores. `best` is the first of its largest scores, which is
    finite, `scale` what scores are multiplied by: the inverse of a temperature, as float32. `key` has 64 bits
    and no sign. Of `top_k`, 0 is all of them."""

    row: int
    best: int
    key: int
    position: int
    choice: int
    scale: float
    top_p: float
    min_p: float
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Ops:
    """plan_options: how this backend wants its plans cut. device: where its tensors are. Activations are
    float32 on a CPU, and of the weights' dtype elsewhere.
    upload(host tensors of int64 (n)) -> the same where the backend computes, without waiting for it.
    pack_linear(weight (N, K), bias (N) or None) -> Linear over (T, K); takes ownership of the weight.
    take_rows(table (V, K), ids (T) int64) -> (T, K).
    rms_norm(x (T, K), weight (K), eps) -> (T, K).
    add_rms_norm(x (T, K), residual (T, K), weight, eps) -> (normed, x + residual).
    turn_and_write(qkv (T, (H + 2 G) D), norms, angles, positions (T), slots (T), k_pages, v_pages) -> q
        (T, H, D): queries and keys are normed (norms: weights of both (D) and eps, or None) and turned by
        their positions (angles: cos and sin (positions, D/2), or None), then keys and values are written to
        their slots (page * S + offset; -1: not written). positions and slots are int64.
    silu_mul(gate_up (T, 2 I)) -> (T, I): silu(first half) * second half.
    zeros(shape, dtype): memory for the pool. Raises MemoryError.
    copy_pages(pool (N, P, G, S, D), sources, targets): whole pages of all N layers' keys and values; no page
        is both a source and a target.
    run_pass(pass, name, inputs, plan) -> pass(inputs, plan), which calls nothing but ops and views of
        tensors, so that a backend may record it for these shapes and this name, and replay it. What it
        returns holds until the next call.
    prepare(plan) -> PreparedPlan;  attend(q (T, H, D), k_pages, v_pages, PreparedPlan) -> (T, H, D).
    logit_mask(logits (R, V) float32, mask (M, W) int32, rows (M) int64 or None): -inf, in place, where the
        bit of a token is not set; reference.logit_mask's like. No two mask rows are for one row of logits.
    sample: reference.sample's like, or None where logits are in the host's memory, which samples by itself.
    draw(scores (R, V) float32, draws) -> a token each, where the host does so; or None.
    """

    name: str
    device: torch.device
    plan_options: PlanOptions
    upload: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    pack_linear: Callable[[Tensor, Tensor | None], Linear]
    take_rows: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    turn_and_write: Callable[
        [
            Tensor,
            tuple[Tensor, Tensor, float] | None,
            tuple[Tensor, Tensor] | None,
            Tensor,
            Tensor,
            Tensor,
            Tensor,
        ],
        Tensor,
    ]
    silu_mul: Callable[[Tensor], Tensor]
    zeros: Callable[[Sequence[int], torch.dtype], Tensor]
    copy_pages: Callable[[Tensor, Sequence[int], Sequence[int]], None]
    prepare: Callable[[AttentionPlan], PreparedPlan]
    attend: Callable[[Tensor, Tensor, Tensor, PreparedPlan], Tensor]
    logit_mask: Callable[[Tensor, Tensor, Tensor | None], None]
    sample: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None
    draw: Callable[[Tensor, Sequence[Draw]], list[int]] | None
    run_pass: Callable[
        [Callable[[Sequence[Tensor], PreparedPlan], Tensor], Hashable, Sequence[Tensor], PreparedPlan], Tensor
    ]
