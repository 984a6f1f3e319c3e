"""From a path to a model's config and weights: safetensors folders, GGUF files, seeded random weights.

`open_model` reads what is small and returns a ModelSource; tensors are read one by one when `weights` is
iterated. Knows neither the op table nor tokenizers, but says where a tokenizer's files are. Whatever is wrong
with the files becomes InvalidModel with one line that names the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import InvalidModel
from .gguf_weights import GgufModel
from .model_config import ModelConfig

LoadFormat = Literal["auto", "gguf", "safetensors", "dummy"]
Weights = Iterator[tuple[str, Tensor]]
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """An opened model. `weights()` starts a pass over (name in transformers' spelling, tensor).

    path: the folder or GGUF file, which also holds the tokenizer.
    """

    path: Path
    config: ModelConfig
    weights: Callable[[], Weights]

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.config.eos_ids


def open_model(
    path: Path, load_format: LoadFormat = "auto", *, cache: Path | None = None, seed: int = 0
) -> ModelSource:
    """`auto` goes by what lies at `path`; `dummy` takes the config from there and random weights of `seed`.

    cache: folder under which dequantised GGUF weights are kept. Raises InvalidModel.
    """
    try:
        if not path.exists():
            raise InvalidModel(f"{path}: no such file or folder")
        gguf = _gguf_file(path, load_format)
        source = _open_folder(path) if gguf is None else _open_gguf(gguf, cache)
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
    if load_format == "dummy":
        return replace(source, weights=lambda: random_weights(source.config, seed))
    return source


def _gguf_file(path: Path, load_format: LoadFormat) -> Path | None:
    """The GGUF file to load, or None for a folder with config.json."""
    if path.is_file():
        if load_format == "safetensors":
            raise InvalidModel(f"{path}: safetensors are loaded from the folder that also has config.json")
        return path
    files = sorted(path.glob("*.gguf"))
    if load_format == "safetensors" or (load_format != "gguf" and (path / "config.json").exists()):
        return None
    if load_format == "gguf" or files:
        if len(files) != 1:
            raise InvalidModel(f"{path}: must hold exactly one .gguf file, or name one of its {len(files)}")
        return files[0]
    return None


def _open_gguf(path: Path, cache: Path | None) -> ModelSource:
    model = GgufModel(path, cache)
    return ModelSource(path, model.config, model.weights)


def _open_folder(folder: Path) -> ModelSource:
    if not (folder / "config.json").exists():
        raise InvalidModel(f"{folder}: has neither config.json nor a .gguf file")
    values = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json", optional=True)
    try:
        config = ModelConfig.from_hf(values, generation)
    except InvalidModel as error:
        raise InvalidModel(f"{folder}: {error}") from error
    return ModelSource(folder, config, lambda: folder_weights(folder))


def folder_weights(folder: Path) -> Weights:
    """The tensors of model.safetensors, or of all shards that the index names. Raises InvalidModel."""
    shard = folder
    try:
        for shard in _shards(folder):
            with safe_open(shard, "pt") as stored:
                for name in stored.offset_keys():
                    yield name, stored.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise InvalidModel(f"{shard}: damaged or truncated safetensors file ({error})") from error


def _shards(folder: Path) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    if not (folder / _INDEX).exists():
        raise InvalidModel(f"{folder}: has neither {_SINGLE} nor {_INDEX}")
    names = _json(folder / _INDEX).get("weight_map")
    if not isinstance(names, Mapping) or not names:
        raise InvalidModel(f"{folder / _INDEX}: weight_map must name the shards, got {names!r}")
    shards = sorted({str(name) for name in names.values()})
    for name in shards:
        if Path(name).name != name or not (folder / name).exists():
            raise InvalidModel(f"{folder}: shard {name} is missing ({_INDEX} names {len(shards)})")
    return [folder / name for name in shards]


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Each tensor depends on the seed and its name alone. Matrices keep the size of what they are given
    (std 1 / sqrt(inputs): 0.02 for 2,500), norms are near one, so that activations stay finite."""
    for name, shape in config.parameter_shapes().items():
        key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key))
        try:
            noise = torch.randn(shape, generator=generator)
        except (RuntimeError, TypeError) as error:  # no memory; a size over 64 bits
            raise InvalidModel(f"{name} of shape {shape} does not fit into memory") from error
        if len(shape) == 2:
            yield name, noise.mul_(shape[1] ** -0.5)
        else:
            yield name, noise.mul_(0.02).add_(0.0 if name.endswith("bias") else 1.0)


def _json(path: Path, *, optional: bool = False) -> Mapping[str, object]:
    if optional and not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # Recursion: nested too deeply
        raise InvalidModel(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise InvalidModel(f"{path}: must hold a JSON object, got {type(values).__name__}")
    return values
