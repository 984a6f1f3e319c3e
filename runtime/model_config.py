"""ModelConfig: what a decoder-only checkpoint is, as numbers and flags that one model module understands.

Reads transformers' config.json and the metadata of GGUF files; knows no tensors and opens no files.
A family is one entry of FAMILIES. What would change the computation and is not understood is refused with
InvalidModel, never ignored: a model that loads computes what its authors meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .errors import InvalidConfig, InvalidModel
from .rotary import RopeConfig
from .text import quote

Shapes = Mapping[str, tuple[int, ...]]
Bias = Literal["never", "always", "config"]
_MOST_LAYERS, _MOST = 1 << 12, 1 << 24
"""Bounds of layers and of every other size, tens of times those of the largest models: a size beyond them is
a damaged file, and would take all memory before anything else could tell."""
_MOST_ID = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Family:
    """How one `model_type` differs from Llama. `config` biases are there if the checkpoint's config says so.

    permuted: its GGUF files hold the rows of q and k in interleaved pairs. window: the config key that
    switches sliding windows on (empty: `sliding_window` alone does). defaults: values that transformers
    assumes for keys a config.json leaves out. architecture: the name of transformers' class.
    """

    qkv_bias: Bias = "never"
    output_bias: Bias = "never"
    mlp_bias: Bias = "never"
    qk_norm: bool = False
    permuted: bool = False
    window: str = "use_sliding_window"
    rope_theta: float = 10000.0
    defaults: Mapping[str, object] = field(default_factory=dict)
    architecture: str = "LlamaForCausalLM"


FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "config",
        "config",
        "config",
        permuted=True,
        defaults={"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "mistral": Family(
        permuted=True,
        window="",
        defaults={
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "num_key_value_heads": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        architecture="MistralForCausalLM",
    ),
    "smollm3": Family(
        "config",
        "config",
        "config",
        permuted=True,
        rope_theta=2000000.0,
        defaults={
            "no_rope_layer_interval": 4,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
        architecture="SmolLM3ForCausalLM",
    ),
    "qwen2": Family("always", architecture="Qwen2ForCausalLM"),
    "qwen3": Family(
        "config", "config", qk_norm=True, defaults={"head_dim": 128}, architecture="Qwen3ForCausalLM"
    ),
}
_DEFAULTS: Mapping[str, object] = {
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer. H query heads share G = num_kv_heads key heads of size head_dim.

    no_rope_layers[i]: layer i has no rotary embedding. sliding_window: the model was trained to see only so
    many tokens back; attention here is over all of them, so the context is limited to it.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    no_rope_layers: tuple[bool, ...]
    sliding_window: int | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InvalidModel(f"{self.num_heads} heads cannot share {self.num_kv_heads} key heads evenly")
        if self.head_dim % 2:
            raise InvalidModel(f"head_dim must be even, got {self.head_dim}")
        if self.max_context > _MOST:
            raise InvalidModel(f"the context must be at most {_MOST} tokens, got {quote(self.max_context)}")
        if len(self.no_rope_layers) != self.num_layers:
            raise InvalidModel(
                f"no_rope_layers covers {len(self.no_rope_layers)} of {self.num_layers} layers"
            )

    @staticmethod
    def from_hf(config: Mapping[str, object], generation: Mapping[str, object] | None = None) -> ModelConfig:
        """From config.json and, where there is one, generation_config.json (for its end tokens).

        Raises InvalidModel for an unknown family, a missing or wrong value, and features not supported.
        """
        family = _family(config.get("model_type"))
        if config.get("quantization_config"):
            raise InvalidModel(
                "quantization_config is not supported: load a GGUF file, or unquantized weights"
            )
        values = {**_DEFAULTS, **family.defaults, **config}
        if values["hidden_act"] != "silu":
            raise InvalidModel(f"hidden_act must be 'silu', got {values['hidden_act']!r}")
        layers = _count(values, "num_hidden_layers", _MOST_LAYERS)
        heads = _count(values, "num_attention_heads")
        derived = {"num_key_value_heads": heads, "head_dim": _count(values, "hidden_size") // heads}
        values |= {name: value for name, value in derived.items() if values.get(name) is None}
        max_position = _count(values, "max_position_embeddings")
        attention_bias, mlp_bias = bool(values.get("attention_bias")), bool(values.get("mlp_bias"))
        return ModelConfig(
            family=str(config["model_type"]),
            vocab_size=_count(values, "vocab_size"),
            hidden_size=_count(values, "hidden_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=_count(values, "num_key_value_heads"),
            head_dim=_count(values, "head_dim"),
            intermediate_size=_count(values, "intermediate_size"),
            rms_norm_eps=_epsilon(values["rms_norm_eps"]),
            rope=RopeConfig.from_hf(config, family.rope_theta, max_position),
            max_position_embeddings=max_position,
            tie_word_embeddings=bool(values["tie_word_embeddings"]),
            attention_bias=_has_bias(family.qkv_bias, attention_bias),
            output_bias=_has_bias(family.output_bias, attention_bias),
            mlp_bias=_has_bias(family.mlp_bias, mlp_bias),
            qk_norm=family.qk_norm,
            no_rope_layers=_no_rope_layers(values, layers),
            sliding_window=_window(family, values),
            bos_id=_first(_ids("bos_token_id", values.get("bos_token_id"))),
            eos_ids=_merged_ids((generation or {}).get("eos_token_id"), values.get("eos_token_id")),
        )

    @staticmethod
    def from_gguf(
        metadata: Mapping[str, object],
        shapes: Shapes,
        freq_factors: tuple[float, ...] | None = None,
        turn_ends: tuple[int, ...] = (),
    ) -> ModelConfig:
        """From a GGUF file's keys and tensor shapes (rows first). Raises InvalidModel like from_hf.

        Tied embeddings and biases show in which tensors the file has. turn_ends: more end tokens.
        """
        arch = metadata.get("general.architecture")
        family = _family(arch)
        values = {k.removeprefix(f"{arch}."): v for k, v in metadata.items() if k.startswith(f"{arch}.")}
        if values.get("expert_count"):
            raise InvalidModel(f"mixtures of experts are not supported ({arch}.expert_count is set)")
        hidden, heads = _count(values, "embedding_length"), _count(values, "attention.head_count")
        layers = _count(values, "block_count", _MOST_LAYERS)
        max_position = _count(values, "context_length")
        values = {"attention.head_count_kv": heads, "attention.key_length": hidden // heads, **values}
        head_dim = _count(values, "attention.key_length")
        for key in ("rope.dimension_count", "attention.value_length"):
            if values.get(key, head_dim) != head_dim:
                raise InvalidModel(f"{arch}.{key} must equal the head size {head_dim}, got {values[key]!r}")
        rows = next(iter(shapes.get("token_embd.weight", ())), None)
        rope_keys = {k.removeprefix("rope."): v for k, v in values.items() if k.startswith("rope.")}
        window = values.get("attention.sliding_window")
        ends = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
        return ModelConfig(
            family=str(arch),
            vocab_size=_count({"rows of token_embd.weight": rows}, "rows of token_embd.weight"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=_count(values, "attention.head_count_kv"),
            head_dim=head_dim,
            intermediate_size=_count(values, "feed_forward_length"),
            rms_norm_eps=_epsilon(values.get("attention.layer_norm_rms_epsilon")),
            rope=RopeConfig.from_gguf(rope_keys, max_position, freq_factors),
            max_position_embeddings=max_position,
            tie_word_embeddings="output.weight" not in shapes,
            attention_bias="blk.0.attn_q.bias" in shapes,
            output_bias="blk.0.attn_output.bias" in shapes,
            mlp_bias="blk.0.ffn_down.bias" in shapes,
            qk_norm=family.qk_norm,
            no_rope_layers=_no_rope_layers(family.defaults, layers),
            sliding_window=_count(values, "attention.sliding_window", _MOST_ID) if window else None,
            bos_id=_first(_ids("bos_token_id", metadata.get("tokenizer.ggml.bos_token_id"))),
            eos_ids=_merged_ids(*ends, turn_ends),
        )

    @property
    def attention_scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def max_context(self) -> int:
        """The most tokens a sequence may have. Yarn stretches the context by its factor."""
        longest = self.max_position_embeddings
        if self.rope.kind == "yarn":
            longest = max(longest, int(self.rope.original_context * self.rope.factor))
        return min(longest, self.sliding_window or longest)

    def context(self, wanted: int | None) -> int:
        """The context to use: `wanted`, or all there is. Raises InvalidConfig if the model has less."""
        if wanted is None or wanted <= self.max_context:
            return wanted or self.max_context
        why = "the model was trained for no more"
        if self.max_context == self.sliding_window:
            why = "the model's attention has a sliding window, which is supported only up to its length"
        raise InvalidConfig(f"max_context must be at most {self.max_context}, got {wanted}: {why}")

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter the model needs, in transformers' names, with its shape."""
        vocabulary = (self.vocab_size, self.hidden_size)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": vocabulary}
        for i in range(self.num_layers):
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = vocabulary
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
        }
        if self.qk_norm:
            shapes |= {f"self_attn.{name}_norm.weight": (self.head_dim,) for name in "qk"}
        for name, rows, columns, bias in (
            ("self_attn.q_proj", queries, hidden, self.attention_bias),
            ("self_attn.k_proj", keys, hidden, self.attention_bias),
            ("self_attn.v_proj", keys, hidden, self.attention_bias),
            ("self_attn.o_proj", hidden, queries, self.output_bias),
            ("mlp.gate_proj", inner, hidden, self.mlp_bias),
            ("mlp.up_proj", inner, hidden, self.mlp_bias),
            ("mlp.down_proj", hidden, inner, self.mlp_bias),
        ):
            shapes[f"{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{name}.bias"] = (rows,)
        return shapes


def _family(name: object) -> Family:
    if not isinstance(name, str) or name not in FAMILIES:
        raise InvalidModel(f"model family {name!r} is not supported (supported: {', '.join(FAMILIES)})")
    return FAMILIES[name]


def _count(values: Mapping[str, object], name: str, most: int = _MOST) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidModel(f"{name} must be a positive integer of at most {most}, got {quote(value)}")
    return value


def _epsilon(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidModel(f"the epsilon of RMS norm must be a number in [0, 1), got {value!r}")
    return float(value)


def _has_bias(bias: Bias, configured: bool) -> bool:
    return bias == "always" or (bias == "config" and configured)


def _no_rope_layers(values: Mapping[str, object], layers: int) -> tuple[bool, ...]:
    listed = values.get("no_rope_layers")
    if isinstance(listed, list | tuple) and listed:
        return tuple(not uses_rope for uses_rope in listed[:layers])
    if "no_rope_layer_interval" not in values:
        return (False,) * layers
    interval = _count(values, "no_rope_layer_interval")
    return tuple((i + 1) % interval == 0 for i in range(layers))


def _window(family: Family, values: Mapping[str, object]) -> int | None:
    kinds = values.get("layer_types")
    if isinstance(kinds, list | tuple):
        other = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
        if other:
            raise InvalidModel(f"layer types not supported: {', '.join(other)}")
        if "sliding_attention" not in kinds:
            return None
    if values.get("sliding_window") is None or (family.window and not values.get(family.window)):
        return None
    return _count(values, "sliding_window", _MOST_ID)


def _ids(name: str, value: object) -> tuple[int, ...]:
    ids = tuple(value) if isinstance(value, list | tuple) else () if value is None else (value,)
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise InvalidModel(f"{name} must be a token id or a list of them, got {quote(value)}")
        if token > _MOST_ID:
            raise InvalidModel(f"{name} must be at most {_MOST_ID}, got {quote(token)}")
    return tuple(token for token in ids if token >= 0)


def _merged_ids(*values: object) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token for value in values for token in _ids("eos_token_id", value)))


def _first(ids: tuple[int, ...]) -> int | None:
    return ids[0] if ids else None
