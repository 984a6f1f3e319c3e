"""Which op table an engine computes with: chosen once, by its options and by what the machine has.

A table is imported only where it is chosen: Triton takes a second to load, and a machine with a GPU need not
have what the CPU's is compiled with.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..kernels.ops import Ops
from .config import EngineConfig
from .errors import InvalidConfig
from .model_config import ModelConfig


def settle(config: EngineConfig) -> EngineConfig:
    """The options with what "auto" means on this machine: a GPU in bfloat16, where torch has one and nothing
    is asked for that only the CPU has, else the CPU in float32. Raises InvalidConfig for what does not go
    together."""
    has_gpu = torch.cuda.is_available()
    device = config.device
    if device == "auto":
        is_for_cpu = config.attention == "cpu" or config.quantization != "none"
        device = "cuda" if has_gpu and not is_for_cpu else "cpu"
    if device == "cuda" and not has_gpu:
        raise InvalidConfig("device cuda needs a GPU that torch can use, and there is none")
    attention = config.attention
    if attention == "auto":
        attention = "triton" if device == "cuda" else "cpu"
    if device == "cuda" and attention == "cpu":
        raise InvalidConfig("attention cpu does not go with device cuda, allowed are auto and triton")
    if attention == "triton" and config.quantization != "none":
        with_what = "attention triton" if config.attention == "triton" else "device cuda"
        raise InvalidConfig(f"quantization {config.quantization} does not go with {with_what}, only none")
    dtype = config.dtype
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" else "float32"
    return replace(config, device=device, attention=attention, dtype=dtype)


def open_ops(config: EngineConfig, shape: ModelConfig) -> Ops:
    """The table for a model of that shape, by settled options. Raises InvalidConfig for what this machine
    cannot do."""
    dtype = getattr(torch, config.dtype)
    if config.attention == "triton":
        from ..kernels.triton_ops import NotPossible, triton_ops

        try:
            heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim)
            return triton_ops(*heads, device=torch.device(config.device), dtype=dtype)
        except NotPossible as error:
            raise InvalidConfig(f"attention triton is not possible here: {error}") from None
    from ..kernels.cpu import UnsupportedDtype, cpu_ops

    try:
        return cpu_ops(
            shape.num_heads,
            shape.num_kv_heads,
            threads=torch.get_num_threads(),
            dtype=dtype,
            quantization=config.quantization,
        )
    except UnsupportedDtype as error:
        raise InvalidConfig(f"dtype {config.dtype} is not possible here: {error}") from None
