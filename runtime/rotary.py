"""Rotary position embedding: which scaling a checkpoint asks for, and its table of cosines and sines.

`RopeConfig` is the settled form of the spellings in use (transformers' `rope_parameters` and the older
`rope_theta` + `rope_scaling`; GGUF's `rope.*` keys and its `rope_freqs` tensor). Only kinds whose angles
depend on the position alone are supported: with any other, the key of a token would change with the
length of the text after it, and nothing could be cached by prefix.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InvalidConfig, InvalidModel
from .text import quote

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """kind is one of KINDS. `original_context` is the length the model was first trained for (llama3, yarn).

    attention_factor multiplies cosines and sines (yarn). freq_factors (head_dim / 2 numbers, from a GGUF
    file) divide the frequencies and stand for a scaling already worked out.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    freq_factors: tuple[float, ...] | None = None

    @staticmethod
    def from_hf(config: Mapping[str, object], default_theta: float, max_position: int) -> RopeConfig:
        """Raises InvalidModel for a kind or value that is not supported."""
        params = _flat_parameters(config)
        kind = params.get("rope_type") or params.get("type") or "default"
        theta = _number(params, "rope_theta", _number(config, "rope_theta", default_theta))
        if kind == "default":
            return RopeConfig(theta)
        if kind == "linear":
            return RopeConfig(theta, "linear", _number(params, "factor"))
        name = "original_max_position_embeddings"
        context = int(_number(config, name, _number(params, name, max_position)))
        if context < 1:
            raise InvalidModel(f"rope: {name} must be at least 1, got {context}")
        if kind == "llama3":
            low, high = _number(params, "low_freq_factor"), _number(params, "high_freq_factor")
            if high <= low:
                raise InvalidModel(f"high_freq_factor must be above low_freq_factor, got {high} and {low}")
            return RopeConfig(theta, "llama3", _number(params, "factor"), context, low, high)
        if kind == "yarn":
            return _yarn(params, theta, _number(params, "factor", max_position / context), context)
        raise InvalidModel(f"rope type {kind!r} is not supported (supported: {', '.join(KINDS)})")

    @staticmethod
    def from_gguf(
        keys: Mapping[str, object], max_position: int, freq_factors: tuple[float, ...] | None
    ) -> RopeConfig:
        """keys: the file's `rope.*` entries without that prefix. Raises InvalidModel like from_hf."""
        params = {"rope_theta": keys.get("freq_base"), "rope_type": keys.get("scaling.type", "none")}
        if params["rope_type"] == "none":
            params["rope_type"] = "default"
        unknown = sorted(k for k in keys if k.startswith("scaling.") and k not in _GGUF_SCALING)
        if unknown:
            raise InvalidModel(f"rope keys not supported: {', '.join(unknown)}")
        params |= {name: keys[key] for key, name in _GGUF_SCALING.items() if name and key in keys}
        plain = RopeConfig.from_hf({"rope_parameters": params}, 10000.0, max_position)
        if freq_factors is None:
            return plain
        if plain.kind != "default":
            raise InvalidModel(f"rope_freqs.weight together with rope type {plain.kind!r} is not supported")
        return RopeConfig(plain.theta, freq_factors=freq_factors)


_GGUF_SCALING = {
    "scaling.type": "",
    "scaling.finetuned": "",
    "scaling.factor": "factor",
    "scaling.original_context_length": "original_max_position_embeddings",
    "scaling.yarn_beta_fast": "beta_fast",
    "scaling.yarn_beta_slow": "beta_slow",
}


class RotaryTable:
    """cos and sin (length, D/2) of positions 0..length-1, in float32, one copy for all layers."""

    def __init__(self, rope: RopeConfig, head_dim: int, length: int) -> None:
        frequencies = _frequencies(rope, head_dim)
        try:
            angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
            self.cos = angles.cos() * rope.attention_factor
            self.sin = angles.sin() * rope.attention_factor
        except RuntimeError as error:  # no memory
            raise InvalidConfig(f"max_context of {length} does not fit into memory") from error


def _frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    base = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
    if rope.freq_factors is not None:
        if len(rope.freq_factors) != len(base):
            raise InvalidModel(
                f"rope_freqs.weight must have {len(base)} numbers, got {len(rope.freq_factors)}"
            )
        return base / torch.tensor(rope.freq_factors, dtype=torch.float32)
    if rope.kind == "linear":
        return base / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, base)
    if rope.kind == "yarn":
        return _yarn_frequencies(rope, base, head_dim)
    return base


def _llama3_frequencies(rope: RopeConfig, base: Tensor) -> Tensor:
    """Fast frequencies stay, slow ones are divided by the factor, those between are blended.

    `turns` is how often a pair turns within the original context.
    """
    turns = rope.original_context * base / (2 * math.pi)
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * base / rope.factor + keep * base


def _yarn_frequencies(rope: RopeConfig, base: Tensor, head_dim: int) -> Tensor:
    """As llama3, but blended linearly in the pair's number instead of its frequency."""

    def pair_with(turns: float) -> float:
        """The (fractional) number of the pair that turns so often within the original context."""
        spread = math.log(rope.original_context / (turns * 2 * math.pi))
        return head_dim * spread / (2 * math.log(rope.theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    divide = ((torch.arange(len(base), dtype=torch.float32) - low) / width).clamp(0, 1)
    return divide * base / rope.factor + (1 - divide) * base


def _flat_parameters(config: Mapping[str, object]) -> Mapping[str, object]:
    params = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(params, Mapping) or any(isinstance(value, Mapping) for value in params.values()):
        raise InvalidModel(f"rope parameters must be one flat table, got {params!r}")
    for source in (params, config):
        if source.get("partial_rotary_factor") not in (None, 1):
            raise InvalidModel(f"partial_rotary_factor must be 1, got {source['partial_rotary_factor']!r}")
    return params


def _yarn(params: Mapping[str, object], theta: float, factor: float, context: int) -> RopeConfig:
    return RopeConfig(
        theta,
        "yarn",
        factor,
        context,
        beta_fast=_number(params, "beta_fast", 32.0),
        beta_slow=_number(params, "beta_slow", 1.0),
        truncate=bool(params.get("truncate", True)),
        attention_factor=_number(params, "attention_factor", _yarn_attention_factor(params, factor)),
    )


def _yarn_attention_factor(params: Mapping[str, object], factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if params.get("mscale") and params.get("mscale_all_dim"):
        return magnitude(_number(params, "mscale")) / magnitude(_number(params, "mscale_all_dim"))
    return magnitude(1.0)


def _number(params: Mapping[str, object], name: str, default: float | None = None) -> float:
    value = params.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise InvalidModel(f"rope: {name} must be a positive number, got {quote(value)}")
    return float(value)
