"""Tiny random models of every supported family, built by transformers: what the runtime is compared with.

Shapes are odd on purpose (head sizes that are no powers of two, vocabularies that are no multiples of
eight, 1, 2 and 4 query heads a key head). Weights are large enough for logits to be spread and attention to
choose; the usual 0.02 would make every wrong result look right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from .byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE

if TYPE_CHECKING:
    import gguf

_BASE = {"vocab_size": 97, "num_hidden_layers": 2, "max_position_embeddings": 128, "pad_token_id": 0}


def _sizes(hidden: int, heads: int, kv_heads: int, inner: int, **more: object) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return {**_BASE, **sizes, "intermediate_size": inner, **more}


FAMILIES: Mapping[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, _sizes(48, 4, 1, 80)),
    "llama-tied": (
        LlamaConfig,
        LlamaForCausalLM,
        _sizes(60, 6, 3, 72, tie_word_embeddings=True, vocab_size=260, num_hidden_layers=3),
    ),
    "llama-biased": (
        LlamaConfig,
        LlamaForCausalLM,
        _sizes(48, 4, 4, 64, attention_bias=True, mlp_bias=True, head_dim=20),
    ),
    "mistral": (
        MistralConfig,
        MistralForCausalLM,
        _sizes(48, 4, 2, 56, head_dim=16, vocab_size=131, sliding_window=None),
    ),
    "smollm3": (
        SmolLM3Config,
        SmolLM3ForCausalLM,
        _sizes(64, 4, 1, 96, num_hidden_layers=3, no_rope_layer_interval=2, bos_token_id=1, eos_token_id=2),
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, _sizes(56, 4, 2, 64, vocab_size=113, tie_word_embeddings=True)),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, _sizes(48, 4, 2, 64, head_dim=24)),
    "qwen3-biased": (
        Qwen3Config,
        Qwen3ForCausalLM,
        _sizes(48, 2, 2, 64, head_dim=12, attention_bias=True, tie_word_embeddings=True),
    ),
}
"""For each name: transformers' config class, model class, and arguments of the config."""


def tiny_model(
    name: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object
) -> PreTrainedModel:
    """A model of FAMILIES[name] with `changes` made to its config; the same weights for a seed."""
    config_class, model_class, arguments = FAMILIES[name]
    config = config_class(**{"bos_token_id": 1, "eos_token_id": 2, **arguments, **changes})
    model: PreTrainedModel = model_class(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(noise * 0.2 + (1.0 if parameter.mean() > 0.5 else 0.0))
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[1] ** 0.5)
    return model


def byte_llama() -> PreTrainedModel:
    """A tiny llama that speaks the byte tokenizer, with a context of 256: what engines of tests run."""
    return tiny_model(
        "llama",
        vocab_size=VOCAB_SIZE,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        max_position_embeddings=256,
    )


def tiny_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A copy of the model's parameters by name, as a checkpoint holds them: a tied head is left out."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def save_tiny(model: PreTrainedModel, folder: Path, *, shard_size: str = "1GB") -> Path:
    """Save config and safetensors as transformers does, in several shards if larger than shard_size."""
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def save_tiny_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    stored: gguf.GGMLQuantizationType | None = None,
    keys: Mapping[str, int | float | str] | None = None,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write a GGUF file as llama.cpp's converter does: matrices as `stored` (default: float32), the rest
    float32; q and k of Llama's kin with their rows in pairs. keys: more metadata, below the architecture.
    extra: more tensors."""
    import gguf

    config = model.config
    arch = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", config.hidden_size // config.num_attention_heads))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_token_list(["<s>", "</s>", "a", "<|im_end|>"])
    for key, value in (keys or {}).items():
        kinds = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
        writer.add_key_value(f"{arch}.{key}", value, kinds.get(type(value), gguf.GGUFValueType.STRING))
    for name, tensor in tiny_weights(model).items():
        array = tensor.numpy()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name and arch in ("llama", "smollm3"):
                halves = array.reshape(heads, 2, -1, *array.shape[1:])
                array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        _add_tensor(writer, name, array, gguf.GGMLQuantizationType.F32 if stored is None else stored)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, array: np.ndarray[Any, Any], stored: gguf.GGMLQuantizationType
) -> None:
    import gguf

    for theirs, ours in _GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    if array.ndim == 1:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, gguf.quantize(array, stored), raw_dtype=stored)
