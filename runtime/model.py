"""Model: the forward pass of a decoder-only transformer over paged keys and values.

Owns the weights, in the backend's own layout, and the order of operations; every operation itself is a call
of the op table. Knows no requests, pages' owners or files: it takes what one step computes as tensors and
returns logits. q, k and v are one linear, gate and up are another. In the last layer only the rows whose
logits are wanted go on after attention. What must hold: a KV slot is written before the step's attention
reads it, and the weights given are exactly those that the config calls for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..kernels.ops import Linear, Ops, PreparedPlan
from .errors import InvalidModel
from .model_config import ModelConfig
from .rotary import RotaryTable

_STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One step. token_ids, positions (T): every query token. slots (T): where its key and value are written,
    -1 for nowhere. logit_rows (R): which of them need logits. All int64."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor
    plan: PreparedPlan


class Model:
    """Weights come once, as (name, tensor) in transformers' names, and are handed over: each is dropped as
    soon as it is packed. Raises InvalidModel, naming the weight, if one is missing, unknown or of a wrong
    shape. Positions must lie below `max_context` (the model's own limit if not given)."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, Tensor]],
        ops: Ops,
        dtype: torch.dtype = torch.float32,
        *,
        max_context: int | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.ops = ops
        rotary = RotaryTable(config.rope, config.head_dim, config.context(max_context))
        self._angles = (rotary.cos.to(ops.device), rotary.sin.to(ops.device))
        packed = _pack(config, weights, ops, dtype)
        self._table = packed.tensors["model.embed_tokens.weight"]
        head = packed.linears.get("lm_head")
        self._head = head if head is not None else ops.pack_linear(self._table, None)
        self._layers = [_layer(config, packed, i) for i in range(config.num_layers)]
        self._next_norms = [layer.input_norm for layer in self._layers[1:]]
        self._next_norms.append(packed.tensors["model.norm.weight"])
        sizes = {x.weight_address: x.weight_bytes for x in (self._head, *packed.linears.values())}
        sizes |= {x.data_ptr(): x.nbytes for x in packed.tensors.values()}  # a tied table counts once
        self.weight_bytes = sum(sizes.values())

    @torch.inference_mode()
    def forward(self, inputs: ModelInputs, k_pages: list[Tensor], v_pages: list[Tensor]) -> Tensor:
        """Writes the step's keys and values into the pages (one tensor a layer) and returns the logits of
        logit_rows, float32 (R, vocabulary)."""
        pool = k_pages[0]
        hidden = self.ops.run_pass(
            partial(self._layers_pass, k_pages, v_pages),
            (pool.data_ptr(), pool.shape, pool.stride()),
            (inputs.token_ids, inputs.positions, inputs.slots, inputs.logit_rows),
            inputs.plan,
        )
        if not len(inputs.logit_rows):
            return hidden.new_empty((0, self.config.vocab_size))
        return self._head(hidden).float()

    def _layers_pass(
        self, k_pages: list[Tensor], v_pages: list[Tensor], inputs: Sequence[Tensor], plan: PreparedPlan
    ) -> Tensor:
        """All but the head, for the rows whose logits are wanted; ops and views only, see Ops.run_pass."""
        token_ids, positions, slots, logit_rows = inputs
        ops, eps = self.ops, self.config.rms_norm_eps
        residual = ops.take_rows(self._table, token_ids)
        hidden = ops.rms_norm(residual, self._layers[0].input_norm, eps)
        for i, (layer, next_norm) in enumerate(zip(self._layers, self._next_norms, strict=True)):
            is_last = i == len(self._layers) - 1
            angles = self._angles if layer.uses_rope else None
            norms = (
                None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm, eps)
            )
            q = ops.turn_and_write(layer.qkv(hidden), norms, angles, positions, slots, k_pages[i], v_pages[i])
            if is_last and not len(logit_rows):
                return q
            attended = ops.attend(q, k_pages[i], v_pages[i], plan).flatten(1)
            if is_last and len(logit_rows) < len(token_ids):
                attended, residual = ops.take_rows(attended, logit_rows), ops.take_rows(residual, logit_rows)
            hidden, residual = ops.add_rms_norm(layer.output(attended), residual, layer.mlp_norm, eps)
            fed = layer.down(ops.silu_mul(layer.gate_up(hidden)))
            hidden, residual = ops.add_rms_norm(fed, residual, next_norm, eps)
        return hidden


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    uses_rope: bool
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(slots=True)
class _Packed:
    """Linears by the name of their first module; every other parameter by its own name."""

    linears: dict[str, Linear]
    tensors: dict[str, Tensor]


def _layer(config: ModelConfig, packed: _Packed, index: int) -> _Layer:
    prefix = f"model.layers.{index}."
    return _Layer(
        input_norm=packed.tensors[f"{prefix}input_layernorm.weight"],
        qkv=packed.linears[f"{prefix}self_attn.q_proj"],
        q_norm=packed.tensors.get(f"{prefix}self_attn.q_norm.weight"),
        k_norm=packed.tensors.get(f"{prefix}self_attn.k_norm.weight"),
        uses_rope=not config.no_rope_layers[index],
        output=packed.linears[f"{prefix}self_attn.o_proj"],
        mlp_norm=packed.tensors[f"{prefix}post_attention_layernorm.weight"],
        gate_up=packed.linears[f"{prefix}mlp.gate_proj"],
        down=packed.linears[f"{prefix}mlp.down_proj"],
    )


def _pack(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], ops: Ops, dtype: torch.dtype
) -> _Packed:
    """Each linear is packed when the last of its parts has come, so that no more than a few wait."""
    shapes = config.parameter_shapes()
    groups = _linear_groups(config, shapes)
    packed = _Packed({}, {})
    seen: set[str] = set()
    for name, tensor in weights:
        if name.endswith(".rotary_emb.inv_freq"):  # a constant that old checkpoints carry along
            continue
        if name == "lm_head.weight" and name not in shapes:  # stored although tied: then it is what counts
            shapes[name], groups[name] = (config.vocab_size, config.hidden_size), ("lm_head",)
        _check_weight(name, tensor, shapes, seen)
        seen.add(name)
        packed.tensors[name] = tensor.to(dtype if tensor.dim() == 2 else torch.float32)
        group = groups.get(name)
        if group and all(part in seen for part in _parts(group, shapes)):
            packed.linears[group[0]] = _pack_group(group, packed.tensors, ops)
    missing = [name for name in shapes if name not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidModel(f"weight {missing[0]}{more} is missing from the checkpoint")
    packed.tensors = {name: tensor.to(ops.device) for name, tensor in packed.tensors.items()}
    return packed


def _linear_groups(config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, ...]]:
    """Which modules become one linear together, for each parameter of theirs."""
    groups: list[tuple[str, ...]] = [("lm_head",)]
    for i in range(config.num_layers):
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        groups.append(tuple(f"{attention}.{x}_proj" for x in "qkv"))
        groups.append((f"{attention}.o_proj",))
        groups.append((f"{mlp}.gate_proj", f"{mlp}.up_proj"))
        groups.append((f"{mlp}.down_proj",))
    return {part: group for group in groups for part in _parts(group, shapes)}


def _parts(group: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    names = [f"{module}.{kind}" for kind in ("weight", "bias") for module in group]
    return [name for name in names if name in shapes]


def _pack_group(group: tuple[str, ...], tensors: dict[str, Tensor], ops: Ops) -> Linear:
    weights = [tensors.pop(f"{module}.weight") for module in group]
    biases = [tensors.pop(name) for module in group if (name := f"{module}.bias") in tensors]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    del weights
    return ops.pack_linear(weight, torch.cat(biases) if biases else None)


def _check_weight(name: str, tensor: Tensor, shapes: dict[str, tuple[int, ...]], seen: set[str]) -> None:
    if name not in shapes:
        raise InvalidModel(f"weight {name} is not part of this model")
    if name in seen:
        raise InvalidModel(f"weight {name} comes twice")
    if tuple(tensor.shape) != shapes[name]:
        raise InvalidModel(f"weight {name} must have shape {shapes[name]}, got {tuple(tensor.shape)}")
    if tensor.dtype not in _STORED_DTYPES:
        raise InvalidModel(f"weight {name} is stored as {tensor.dtype}, which is not supported")
