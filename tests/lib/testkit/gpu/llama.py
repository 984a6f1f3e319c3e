"""Llamas of known shapes with random weights: a folder for an engine, and a decode step of the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.plan import AttentionSpec, build_plan
from radixlm.kernels.triton_ops import triton_ops
from radixlm.runtime.kv_pool import KvPool
from radixlm.runtime.model import Model, ModelInputs
from radixlm.runtime.model_config import ModelConfig
from testkit.byte_tokenizer import BOS_ID, EOS_ID, save_byte_tokenizer

from .report import Place

_LLAMA3 = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
SHAPES: Mapping[str, Mapping[str, object]] = {
    "Llama-3.2-1B": {
        **_LLAMA3,
        "hidden_size": 2048,
        "head_dim": 64,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "Llama-3.1-8B": {
        **_LLAMA3,
        "hidden_size": 4096,
        "head_dim": 128,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "tie_word_embeddings": False,
    },
    "tiny": {
        **_LLAMA3,
        "hidden_size": 64,
        "head_dim": 16,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    },
}
"""What config.json says of each."""

PAGE = 16


def save(name: str, folder: Path) -> None:
    """A folder for `load_format="dummy"`."""
    (folder / "config.json").write_text(json.dumps(SHAPES[name]))
    save_byte_tokenizer(folder)


def decode_step(place: Place, rows: int, tokens: int) -> tuple[Callable[[], Tensor], int]:
    """One token for each of `rows` rows, the last of `tokens` each, by the 1B model; and the bytes of
    weights, keys and values that it must read."""
    config = ModelConfig.from_hf(SHAPES["tiny" if place.is_small else "Llama-3.2-1B"])
    dtype = torch.float32 if place.is_small else torch.bfloat16
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    ops = triton_ops(*heads, device=place.device, dtype=dtype)
    model = Model(config, _weights(config, place, dtype), ops, dtype, max_context=tokens)
    own = -(-tokens // PAGE)
    pool = KvPool(
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        num_pages=rows * own,
        page_size=PAGE,
        dtype=dtype,
        ops=ops,
    )
    pool.pages.normal_()
    tables = np.random.default_rng(1).permutation(rows * own).astype(np.int32).reshape(rows, own)
    plan = build_plan(
        list(tables),
        [tokens - 1] * rows,
        [tokens] * rows,
        page_size=PAGE,
        spec=AttentionSpec(config.head_dim**-0.5),
        options=ops.plan_options,
    )
    last = torch.from_numpy(tables[:, (tokens - 1) // PAGE]).long() * PAGE + (tokens - 1) % PAGE
    inputs = ModelInputs(
        token_ids=torch.randint(config.vocab_size, (rows,), device=place.device),
        positions=torch.full((rows,), tokens - 1, device=place.device),
        slots=last.to(place.device),
        logit_rows=torch.arange(rows, device=place.device),
        plan=ops.prepare(plan),
    )
    parameters = sum(int(np.prod(shape)) for shape in config.parameter_shapes().values())
    a_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    needed = (parameters + rows * tokens * a_token) * dtype.itemsize
    return lambda: model.forward(inputs, pool.keys, pool.values), needed


def _weights(config: ModelConfig, place: Place, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Random, made where they are needed."""
    for name, shape in config.parameter_shapes().items():
        weight = torch.randn(shape, device=place.device, dtype=dtype)
        yield name, weight * shape[1] ** -0.5 if len(shape) == 2 else 1 + weight / 50
