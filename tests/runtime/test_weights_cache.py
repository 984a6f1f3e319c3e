"""The cache of dequantised weights: it saves the second start its work, and damage to it is never seen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from radixlm.runtime.weights import ModelSource, open_model
from testkit.tiny_model import save_tiny_gguf, tiny_model, tiny_weights


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return save_tiny_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")


def tensors_of(source: ModelSource) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in source.weights()}


def assert_is_the_model(tensors: dict[str, Tensor]) -> None:
    expected = tiny_weights(tiny_model("llama"))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the GGUF file was read again")

    monkeypatch.setattr("gguf.GGUFReader", refuse)


def test_the_second_start_does_not_read_the_gguf_file(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_model(model_file, cache=tmp_path / "cache")
    assert_is_the_model(tensors_of(first))
    forbid_reading(monkeypatch)
    second = open_model(model_file, cache=tmp_path / "cache")
    assert_is_the_model(tensors_of(second))
    assert second.config == first.config
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_what_is_kept_goes_by_content_not_by_name(model_file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert_is_the_model(tensors_of(open_model(model_file, cache=cache)))
    moved = model_file.rename(tmp_path / "other.gguf")
    save_tiny_gguf(tiny_model("llama", seed=1), model_file)
    tensors_of(open_model(model_file, cache=cache))
    assert len(list(cache.iterdir())) == 2
    assert_is_the_model(tensors_of(open_model(moved, cache=cache)))
    assert len(list(cache.iterdir())) == 2


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def flip_middle_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def cut_in_half(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def fill_with_zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def empty(file: Path) -> None:
    file.write_bytes(b"")


DAMAGES = [flip_last_byte, flip_middle_byte, cut_in_half, fill_with_zeros, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_rebuilt(
    damage: Callable[[Path], None], model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(model_file, cache=tmp_path / "cache")
    tensors_of(source)
    (kept,) = (tmp_path / "cache").glob("*/*.safetensors")
    damage(kept)
    assert_is_the_model(tensors_of(open_model(model_file, cache=tmp_path / "cache")))
    forbid_reading(monkeypatch)
    assert_is_the_model(tensors_of(open_model(model_file, cache=tmp_path / "cache")))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_header_is_rebuilt(
    damage: Callable[[Path], None], model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model(model_file, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").glob("*/*.json")
    damage(kept)
    assert open_model(model_file, cache=tmp_path / "cache").config == source.config
    forbid_reading(monkeypatch)
    assert open_model(model_file, cache=tmp_path / "cache").config == source.config


def test_a_header_that_is_sound_json_of_another_shape_is_rebuilt(model_file: Path, tmp_path: Path) -> None:
    source = open_model(model_file, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").glob("*/*.json")
    for content in ("x\n" + json.dumps({"metadata": 1}), "x\n[]", "x\nnull"):
        kept.write_text(content)
        assert open_model(model_file, cache=tmp_path / "cache").config == source.config


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"metadata": 1}', "[" * 100_000, "damaged shapes"])
def test_a_header_of_another_shape_is_rebuilt_even_if_its_digest_is_right(
    text: str, model_file: Path, tmp_path: Path
) -> None:
    source = open_model(model_file, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").glob("*/*.json")
    if text == "damaged shapes":
        fields = json.loads(kept.read_text().partition("\n")[2])
        text = json.dumps({**fields, "shapes": {"token_embd.weight": ["many"]}})
    kept.write_text(f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}\n{text}")
    assert open_model(model_file, cache=tmp_path / "cache").config == source.config


def test_a_cache_that_cannot_be_written_does_not_stop_the_model(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert_is_the_model(tensors_of(open_model(model_file, cache=tmp_path / "cache")))


def test_without_a_cache_nothing_is_written(model_file: Path, tmp_path: Path) -> None:
    source = open_model(model_file)
    assert_is_the_model(tensors_of(source))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]


def test_an_iteration_left_early_leaves_a_whole_cache(
    model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(open_model(model_file, cache=tmp_path / "cache").weights())
    forbid_reading(monkeypatch)
    assert_is_the_model(tensors_of(open_model(model_file, cache=tmp_path / "cache")))
