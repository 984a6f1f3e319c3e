"""Weights from folders, GGUF files, the cache and a seed: the same tensors by every road, or one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.runtime.errors import InvalidModel
from radixlm.runtime.model import Model
from radixlm.runtime.rotary import RotaryTable
from radixlm.runtime.weights import ModelSource, open_model
from testkit.tiny_model import FAMILIES, save_tiny, save_tiny_gguf, tiny_model, tiny_weights

BLOCKED: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""Sizes of which quantised blocks of 32 are made."""


def tensors_of(source: ModelSource) -> dict[str, Tensor]:
    pairs = list(source.weights())
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape, name
        assert (ours[name].float() - tensor.float()).abs().max().item() <= tolerance, name


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gguf(tiny_model("llama"), tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_and_a_gguf_file_of_one_model_give_the_same_config_and_weights(
    family: str, tmp_path: Path
) -> None:
    reference = tiny_model(family, no_rope_layer_interval=4)  # what GGUF files of SmolLM3 imply
    folder = open_model(save_tiny(reference, tmp_path / "folder"))
    file = open_model(save_tiny_gguf(reference, tmp_path / "tiny.gguf", keys={"unknown": 1}))
    assert_same(tensors_of(folder), tiny_weights(reference))
    assert_same(tensors_of(file), tiny_weights(reference))
    assert file.config.parameter_shapes() == folder.config.parameter_shapes()
    assert file.config.no_rope_layers == folder.config.no_rope_layers
    assert file.config.rope == folder.config.rope
    assert (file.config.bos_id, folder.eos_ids) == (1, (2,))


@pytest.mark.parametrize(
    ("stored", "tolerance"),
    [(GGMLQuantizationType.F16, 2e-3), (GGMLQuantizationType.BF16, 2e-2), (GGMLQuantizationType.Q8_0, 1e-2)],
)
def test_quantised_tensors_come_back_within_their_precision(
    stored: GGMLQuantizationType, tolerance: float, tmp_path: Path
) -> None:
    reference = tiny_model("llama", **BLOCKED)
    path = save_tiny_gguf(reference, tmp_path / "tiny.gguf", stored=stored)
    assert_same(tensors_of(open_model(path)), tiny_weights(reference), tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_folder_of_half_precision_weights_gives_them_as_stored(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = tiny_model("qwen2", dtype=dtype)
    assert_same(tensors_of(open_model(save_tiny(reference, tmp_path))), tiny_weights(reference))


def test_the_frequency_factors_of_a_gguf_file_stand_for_llama3_scaling(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {**scaling, "rope_theta": 500.0, "original_max_position_embeddings": 32}
    scaled, plain = tiny_model("llama", rope_parameters=rope), tiny_model("llama", rope_theta=500.0)
    ratio = _frequencies(plain) / _frequencies(scaled)
    extra = {"rope_freqs.weight": ratio.numpy()}
    source = open_model(save_tiny_gguf(scaled, tmp_path / "tiny.gguf", extra=extra))
    folder = open_model(save_tiny(scaled, tmp_path / "folder"))
    assert source.config.rope.freq_factors == pytest.approx(ratio.tolist())
    assert ratio.max() > 2
    positions = torch.arange(50)
    ours, theirs = (rotary_rows(s, positions) for s in (source, folder))
    assert (ours - theirs).abs().max() < 1e-5
    assert_same(tensors_of(source), tiny_weights(scaled))


def _frequencies(model: Any) -> Tensor:
    frequencies: Tensor = model.model.rotary_emb.inv_freq
    return frequencies


def rotary_rows(source: ModelSource, positions: Tensor) -> Tensor:
    table = RotaryTable(source.config.rope, source.config.head_dim, 64)
    return torch.cat((table.cos[positions], table.sin[positions]))


def test_rope_scaling_keys_of_a_gguf_file_are_read(tmp_path: Path) -> None:
    keys: dict[str, int | float | str] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 32,
    }
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    reference = tiny_model("qwen2", rope_parameters=rope)
    file = open_model(save_tiny_gguf(reference, tmp_path / "tiny.gguf", keys=keys))
    assert file.config.rope == open_model(save_tiny(reference, tmp_path / "folder")).config.rope


def test_a_gguf_file_tells_its_end_tokens(small_gguf: Path) -> None:
    source = open_model(small_gguf)
    assert source.eos_ids == (2, 3)  # </s> by its key, <|im_end|> by its text


def test_a_sharded_folder_gives_all_weights_and_loads(tmp_path: Path) -> None:
    reference = tiny_model("llama-tied")
    save_tiny(reference, tmp_path, shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    source = open_model(tmp_path)
    assert_same(tensors_of(source), tiny_weights(reference))
    ops = cpu_ops(6, 3, threads=1)
    assert Model(source.config, source.weights(), ops).config is source.config


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny(tiny_model("llama-tied"), tmp_path, shard_size="40KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(InvalidModel, match=f"shard {lost.name} is missing"):
        tensors_of(open_model(tmp_path))


def test_a_shard_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    save_tiny(tiny_model("llama"), tmp_path / "model")
    stray = (tmp_path / "model" / "model.safetensors").rename(tmp_path / "stray.safetensors")
    index = {"weight_map": {"model.norm.weight": f"../{stray.name}"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidModel, match=r"shard \.\./stray\.safetensors is missing"):
        tensors_of(open_model(tmp_path / "model"))


@pytest.mark.parametrize("kept", [0, 5, 300, -1])
def test_a_truncated_safetensors_file_is_named(kept: int, tmp_path: Path) -> None:
    save_tiny(tiny_model("llama"), tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(InvalidModel, match=r"model\.safetensors: damaged or truncated"):
        tensors_of(open_model(tmp_path))


def test_a_folder_without_config_or_weights_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"neither config\.json nor a \.gguf file"):
        open_model(tmp_path)
    save_tiny(tiny_model("llama"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InvalidModel, match=r"neither model\.safetensors nor"):
        tensors_of(open_model(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidModel, match=r"config\.json: cannot be read as JSON"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidModel, match="must hold a JSON object, got list"):
        open_model(tmp_path)


def test_a_config_nested_beyond_reason_is_refused_and_its_folder_named_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(InvalidModel, match=r"cannot be read as JSON") as caught:
        open_model(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1


def test_random_weights_beyond_memory_are_refused(tmp_path: Path) -> None:
    save_tiny(tiny_model("llama"), tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**values, "vocab_size": 1 << 24, "hidden_size": 1 << 24})
    )
    with pytest.raises(InvalidModel, match=r"embed_tokens\.weight of shape .* does not fit"):
        tensors_of(open_model(tmp_path, "dummy"))


def test_an_unknown_family_is_named_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(InvalidModel, match=rf"{tmp_path.name}: model family 'gpt2' is not supported"):
        open_model(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="none: no such file or folder"):
        open_model(tmp_path / "none")


def test_the_format_must_fit_what_lies_there(small_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="safetensors are loaded from the folder"):
        open_model(small_gguf, "safetensors")
    with pytest.raises(InvalidModel, match=r"exactly one \.gguf file"):
        open_model(tmp_path, "gguf")
    assert open_model(small_gguf.parent).path == small_gguf


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else", b"{}"])
def test_a_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InvalidModel, match="not a GGUF file"):
        open_model(tmp_path / "model.gguf")


@settings(max_examples=40)
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_gguf_file_cut_off_anywhere_is_refused(part: float, small_gguf: Path) -> None:
    whole = small_gguf.read_bytes()
    data_end = max(t.data_offset + t.n_bytes for t in gguf.GGUFReader(small_gguf).tensors)
    cut = small_gguf.with_name("cut.bin")
    cut.write_bytes(whole[: 4 + int(part * (data_end - 4))])
    with pytest.raises(InvalidModel, match=r"cut\.bin: damaged or truncated GGUF file"):
        open_model(cut)


@pytest.mark.parametrize("heads", [7, 2])
def test_a_gguf_tensor_that_contradicts_the_head_count_is_named(heads: int, tmp_path: Path) -> None:
    keys: dict[str, int | float | str] = {"attention.head_count": heads, "attention.head_count_kv": heads}
    path = save_tiny_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", keys=keys)
    with pytest.raises(InvalidModel, match=r"tiny\.gguf: tensor blk\.0\.attn_[qk]\.weight has shape"):
        open_model(path)


def test_an_unknown_gguf_tensor_is_named(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), dtype=np.float32)}
    path = save_tiny_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", extra=extra)
    with pytest.raises(InvalidModel, match=r"tiny\.gguf: tensor blk\.0\.ffn_gate_exps\.weight is not part"):
        open_model(path)


def test_integer_gguf_tensors_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_norm.bias": np.zeros(4, dtype=np.int32)}
    path = save_tiny_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", extra=extra)
    with pytest.raises(InvalidModel, match=r"attn_norm\.bias: type I32 is not supported"):
        tensors_of(open_model(path))


def test_random_weights_are_a_function_of_seed_and_name(tmp_path: Path, small_gguf: Path) -> None:
    save_tiny(tiny_model("llama-biased"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first = tensors_of(open_model(tmp_path, "dummy", seed=3))
    assert_same(tensors_of(open_model(tmp_path, "dummy", seed=3)), first)
    other = tensors_of(open_model(tmp_path, "dummy", seed=4))
    assert first.keys() == other.keys() == open_model(tmp_path).config.parameter_shapes().keys()
    assert all(not torch.equal(first[name], other[name]) for name in first)
    assert all(tensor.isfinite().all() for tensor in first.values())
    assert tensors_of(open_model(small_gguf, "dummy")).keys() == tensors_of(open_model(small_gguf)).keys()
