"""The op table: every device operation the model, the engine and the pool call, behind one value.

A backend (cpu.py; Triton in a later release) fills the table; nothing chooses a backend at import. The
model calls only these. T is the number of query tokens of a step, H query heads, G KV heads, D head size,
P pages, S slots a page. Pages have *shape* (P, G, S, D); their strides are the pool's business (kv_pool.py
keeps all pages of one head together), so ops address them by shape and stride alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .plan import AttentionPlan, PlanOptions


class Linear(Protocol):
    """A weight in the backend's own layout: (..., K) -> (..., N), bias included."""

    def __call__(self, x: Tensor, /) -> Tensor: ...


class PreparedPlan(Protocol):
    """A plan lowered once a step for all layers; opaque to all but the backend that made it."""


@dataclass(frozen=True, slots=True)
class Ops:
    """plan_options: how this backend wants its plans cut.
    pack_linear(weight (N, K), bias (N) or None) -> Linear over (T, K); takes ownership of the weight.
    embed(table (V, K), ids (T)) -> (T, K).
    rms_norm(x (..., K), weight (K), eps) -> (..., K).
    add_rms_norm(x (T, K), residual (T, K), weight, eps) -> (normed, x + residual).
    rope(x (T, heads, D), cos (T, D), sin (T, D)) -> (T, heads, D): x * cos + (x rolled by D/2) * sin; so cos
        holds each angle's cosine twice, sin its sine negated in the first half (rotary.py makes them).
    silu_mul(gate_up (T, 2 I)) -> (T, I): silu(first half) * second half.
    kv_write(k_pages, v_pages, k (W, G, D), v (W, G, D), slots (W) int64): slot number = page * S + offset.
    copy_pages(pool (N, P, G, S, D), sources, targets): whole pages of all N layers' keys and values; no page
        is both a source and a target.
    prepare(plan) -> PreparedPlan;  attend(q (T, H, D), k_pages, v_pages, PreparedPlan) -> (T, H, D).
    """

    name: str
    plan_options: PlanOptions
    pack_linear: Callable[[Tensor, Tensor | None], Linear]
    embed: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    silu_mul: Callable[[Tensor], Tensor]
    kv_write: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    copy_pages: Callable[[Tensor, Sequence[int], Sequence[int]], None]
    prepare: Callable[[AttentionPlan], PreparedPlan]
    attend: Callable[[Tensor, Tensor, Tensor, PreparedPlan], Tensor]
