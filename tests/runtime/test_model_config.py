"""Configs as transformers and GGUF files spell them, and what is refused instead of being misread."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.runtime.errors import InvalidConfig, InvalidModel
from radixlm.runtime.model_config import FAMILIES as OURS
from radixlm.runtime.model_config import ModelConfig
from testkit.tiny_model import FAMILIES

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def config(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**LLAMA, **changes})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parameters_called_for_are_those_transformers_makes(family: str) -> None:
    config_class, model_class, arguments = FAMILIES[family]
    reference = config_class(**arguments)
    shapes = {name: tuple(p.shape) for name, p in model_class(reference).named_parameters()}
    config = ModelConfig.from_hf(reference.to_dict())
    assert config.parameter_shapes() == shapes
    assert OURS[config.family].architecture == model_class.__name__


def test_older_and_newer_spellings_of_rope_mean_the_same() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64}
    older = config(rope_theta=5000.0, rope_scaling={"type": "yarn", **scaling})
    newer = config(rope_parameters={"rope_type": "yarn", "rope_theta": 5000.0, **scaling})
    assert older == newer
    assert older.rope.theta == 5000.0
    assert older.rope.kind == "yarn"


def test_absent_values_are_those_transformers_assumes() -> None:
    assert config().head_dim == 12
    assert config(num_key_value_heads=None).num_kv_heads == 4
    assert config().rope.theta == 10000.0
    assert not config().tie_word_embeddings
    assert config(model_type="qwen3").head_dim == 128
    assert config(model_type="mistral").sliding_window == 4096
    deep = config(model_type="smollm3", num_hidden_layers=9)
    assert [layer for layer, skipped in enumerate(deep.no_rope_layers) if skipped] == [3, 7]


def test_end_tokens_are_those_of_the_config_and_of_the_generation_config() -> None:
    both = ModelConfig.from_hf({**LLAMA, "eos_token_id": 5}, {"eos_token_id": [7, 5]})
    assert both.eos_ids == (7, 5)
    assert config(eos_token_id=[3, 4]).eos_ids == (3, 4)
    assert config(eos_token_id=None).eos_ids == ()
    assert config(bos_token_id=None).bos_id is None


def test_a_sliding_window_limits_the_context_and_says_so() -> None:
    windowed = config(model_type="mistral", sliding_window=32)
    assert windowed.max_context == 32
    assert windowed.context(None) == 32
    with pytest.raises(InvalidConfig, match="at most 32, got 33: the model's attention has a sliding window"):
        windowed.context(33)


def test_a_window_that_is_switched_off_limits_nothing() -> None:
    assert config(model_type="mistral", sliding_window=None).max_context == 256
    assert config(model_type="qwen2", sliding_window=32, use_sliding_window=False).max_context == 256
    full = ["full_attention", "full_attention"]
    assert config(model_type="qwen2", sliding_window=32, layer_types=full).max_context == 256
    assert config(model_type="qwen2", sliding_window=32, use_sliding_window=True).max_context == 32


def test_yarn_stretches_the_context() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert config(rope_scaling=scaling).max_context == 1024


def test_a_shorter_context_can_be_asked_for_and_a_longer_one_is_refused() -> None:
    assert config().context(100) == 100
    with pytest.raises(InvalidConfig, match="at most 256, got 257"):
        config().context(257)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "family 'gpt2' is not supported .*llama, mistral, smollm3, qwen2, qwen3"),
        ({"model_type": None}, "family None is not supported"),
        ({"hidden_size": None}, "hidden_size must be a positive integer of at most 16777216, got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer of at most 4096, got 0"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be .* at most 4096, got 1000"),
        ({"head_dim": 10**30}, "head_dim must be .* at most 16777216, got 1000"),
        ({"max_position_embeddings": 10**5000}, "at most 16777216, got a value too large to print"),
        ({"eos_token_id": 10**30}, "eos_token_id must be at most"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number"),
        ({"rope_scaling": {"type": "yarn", "factor": 1e30}}, "context must be at most 16777216 tokens"),
        ({"head_dim": 13}, "head_dim must be even, got 13"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"rms_norm_eps": "small"}, "epsilon of RMS norm must be a number"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is not supported"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, got '</s>'"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"]}, "not supported: linear_attention"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers covers 1 of 2 layers"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported .*linear, llama3"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number, got None"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor must be a positive number, got -1"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number, got 'big'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, got 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "must be one flat table"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4}},
            "high_freq_factor must be above low_freq_factor",
        ),
    ],
)
def test_what_is_not_understood_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        config(**changes)


GGUF: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
SHAPES = {"token_embd.weight": (97, 48), "output.weight": (97, 48)}


def test_a_gguf_header_and_a_config_json_of_one_model_give_the_same_config() -> None:
    assert ModelConfig.from_gguf(GGUF, SHAPES) == config()


def test_gguf_end_tokens_come_from_every_key_that_names_one() -> None:
    metadata = {**GGUF, "tokenizer.ggml.eot_token_id": 9}
    assert ModelConfig.from_gguf(metadata, SHAPES, turn_ends=(2, 11)).eos_ids == (2, 9, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "mamba"}, "family 'mamba' is not supported"),
        ({"llama.block_count": None}, "block_count must be a positive integer of at most 4096, got None"),
        ({"llama.attention.head_count_kv": [1, 2]}, "head_count_kv must be a positive integer"),
        ({"llama.expert_count": 8}, "mixtures of experts are not supported"),
        ({"llama.rope.dimension_count": 6}, "dimension_count must equal the head size 12, got 6"),
        ({"llama.rope.scaling.type": "longrope"}, "rope type 'longrope' is not supported"),
        ({"llama.rope.scaling.alpha": 2.0}, "rope keys not supported: scaling.alpha"),
    ],
)
def test_what_is_not_understood_in_a_gguf_header_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        ModelConfig.from_gguf({**GGUF, **changes}, SHAPES)
