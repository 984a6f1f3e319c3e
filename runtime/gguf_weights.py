"""GGUF files: metadata and dequantised weights under transformers' names, and a cache that makes both fast.

Reading the metadata takes seconds and dequantising another, so both are kept under the cache folder, in a
folder named by the file's content. What is kept can be damaged or impossible to write: it is checked when
read, rebuilt if wrong, and done without if need be; the model loads all the same. Files come to life by
renaming, so that no other process ever reads half of one.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import InvalidModel
from .model_config import FAMILIES, ModelConfig, Shapes

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

_CACHE_LIMIT = 2 << 30
"""Larger models (bytes, dequantised) are read from their file every time: a second copy would fill disks."""
_HEADER, _WEIGHTS = "header-1.json", "weights-1.safetensors"
"""The number is raised whenever what is kept would differ for the same file."""
_UNREADABLE = (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError)
"""What the gguf library raises on damaged files, which it does not check for."""
_ROPE_FACTORS = "rope_freqs.weight"
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>")
"""Tokens that end a turn of chat even where a file's metadata names only the end of a text."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All that is needed of a file's metadata: plain values, kept as JSON."""

    metadata: dict[str, object]
    shapes: dict[str, tuple[int, ...]]
    rope_factors: tuple[float, ...] | None
    turn_ends: tuple[int, ...]

    def config(self) -> ModelConfig:
        return ModelConfig.from_gguf(self.metadata, self.shapes, self.rope_factors, self.turn_ends)


class GgufModel:
    """One GGUF file. `cache`: the folder under which what is derived from it is kept (None: nowhere). Raises
    InvalidModel, with one line that names the file, if it cannot be read or holds what is not supported."""

    def __init__(self, path: Path, cache: Path | None) -> None:
        self._path = path
        _check_magic(path)
        self._folder = cache / _content_hash(path) if cache is not None else None
        self._file: _File | None = None
        header = _kept_header(self._folder)
        if header is None:
            header = self._opened().header
            _keep_header(self._folder, header)
        self._header = header
        with _named(path):
            if header.metadata.get("split.count", 1) != 1:
                raise InvalidModel("split GGUF files are not supported; merge them into one")
            self.config = header.config()
            self._names = {_transformers_name(name) for name in header.shapes if name != _ROPE_FACTORS}
            _check_shapes(header.shapes, self.config)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, float32 tensor), each once: from the cache as far as it is sound, else from the file."""
        done: set[str] = set()
        for source in (self._kept, self._rebuilt, self._dequantised):
            for name, tensor in source():
                if name not in done:
                    done.add(name)
                    yield name, tensor
            if done == self._names:
                return

    def _opened(self) -> _File:
        if self._file is None:
            self._file = _File(self._path)
        return self._file

    def _dequantised(self) -> Iterator[tuple[str, Tensor]]:
        with _named(self._path):
            yield from self._opened().weights(self.config)

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        """Ends early, without an error, where the kept file is missing, cut off or changed."""
        if self._folder is None:
            return
        damage = (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError)
        with suppress(*damage), safe_open(self._folder / _WEIGHTS, "pt") as kept:
            sums = json.loads(kept.metadata()["sums"])
            for name in kept.offset_keys():
                tensor = kept.get_tensor(name)
                if tensor.dtype != torch.float32 or _sum(tensor) != sums[name]:
                    return
                yield name, tensor

    def _rebuilt(self) -> Iterator[tuple[str, Tensor]]:
        size = 4 * sum(math.prod(shape) for shape in self._header.shapes.values())
        if self._folder is None or size > _CACHE_LIMIT:
            return
        tensors = dict(self._dequantised())
        sums = {"sums": json.dumps({name: _sum(tensor) for name, tensor in tensors.items()})}
        _keep(self._folder, _WEIGHTS, lambda target: save_file(tensors, target, sums))
        while tensors:
            yield tensors.popitem()


class _File:
    """An opened file. The library's record of every token is dropped once the header is made of it."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        try:
            reader = GGUFReader(path)
            self.header = _read_header(reader)
        except _UNREADABLE as error:
            raise InvalidModel(f"{path}: damaged or truncated GGUF file ({_one_line(error)})") from error
        reader.fields.clear()
        self._tensors = reader.tensors

    def weights(self, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
        permuted = FAMILIES[config.family].permuted
        for stored in self._tensors:
            if stored.name == _ROPE_FACTORS:
                continue
            array = _dequantise(stored)
            if permuted and ".attn_q." in stored.name:
                array = _unpermute(array, config.num_heads)
            elif permuted and ".attn_k." in stored.name:
                array = _unpermute(array, config.num_kv_heads)
            yield _transformers_name(stored.name), torch.from_numpy(array)


def _read_header(reader: GGUFReader) -> GgufHeader:
    arch = reader.fields["general.architecture"].contents()
    wanted = ("general.architecture", f"{arch}.", "tokenizer.ggml.", "split.count")
    metadata = {
        key: field.contents()
        for key, field in reader.fields.items()
        if key.startswith(wanted) and (not key.startswith("tokenizer.") or key.endswith("_id"))
    }
    tokens = reader.fields.get("tokenizer.ggml.tokens")
    texts = tokens.contents() if tokens is not None else []
    factors = [tensor for tensor in reader.tensors if tensor.name == _ROPE_FACTORS]
    return GgufHeader(
        metadata=metadata,
        shapes={tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in reader.tensors},
        rope_factors=tuple(_dequantise(factors[0]).tolist()) if factors else None,
        turn_ends=tuple(i for i, text in enumerate(texts) if text in _TURN_ENDS),
    )


def _check_shapes(stored: Shapes, config: ModelConfig) -> None:
    expected = config.parameter_shapes()
    for name, shape in stored.items():
        if name != _ROPE_FACTORS and (wanted := expected.get(_transformers_name(name), shape)) != shape:
            raise InvalidModel(f"tensor {name} has shape {shape}, but the file's metadata asks for {wanted}")


def _transformers_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    module, _, kind = rest.partition(".")
    if not name.startswith("blk.") or module not in _IN_LAYER or kind not in ("weight", "bias"):
        raise InvalidModel(f"tensor {name} is not part of a supported model")
    return f"model.layers.{block}.{_IN_LAYER[module]}.{kind}"


def _dequantise(stored: ReaderTensor) -> np.ndarray[Any, Any]:  # the library's arrays have any element type
    from gguf import dequantize

    try:
        array = dequantize(stored.data, stored.tensor_type)
    except NotImplementedError as error:
        raise InvalidModel(
            f"tensor {stored.name}: type {stored.tensor_type.name} is not supported"
        ) from error
    return array if array.flags.writeable else array.copy()


def _unpermute(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Such files hold a head's rows as pairs (0, d/2, 1, d/2 + 1, ...); back to first and second halves."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
    if start != b"GGUF":
        raise InvalidModel(f"{path}: not a GGUF file (it starts with {start!r})")


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _kept_header(folder: Path | None) -> GgufHeader | None:
    if folder is None:
        return None
    try:
        digest, _, text = (folder / _HEADER).read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    if digest != _digest(text):
        return None
    try:
        return _header(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _header(values: Any) -> GgufHeader:  # of JSON; what raises is not of the shape that is kept
    factors = values["rope_factors"]
    return GgufHeader(
        metadata=dict(values["metadata"].items()),
        shapes={name: tuple(map(operator.index, shape)) for name, shape in values["shapes"].items()},
        rope_factors=None if factors is None else tuple(map(float, factors)),
        turn_ends=tuple(map(operator.index, values["turn_ends"])),
    )


def _keep_header(folder: Path | None, header: GgufHeader) -> None:
    """As JSON, below a line with its digest."""
    text = json.dumps(asdict(header))
    _keep(folder, _HEADER, lambda target: target.write_text(f"{_digest(text)}\n{text}", encoding="utf-8"))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _keep(folder: Path | None, name: str, write: Callable[[Path], object]) -> None:
    """Let `write` make the file and rename it into place. If the disk does not let us, nothing is kept."""
    if folder is None:
        return
    with suppress(OSError, SafetensorError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
        os.close(handle)
        try:
            write(Path(temporary))
            os.replace(temporary, folder / name)
        finally:
            Path(temporary).unlink(missing_ok=True)


def _sum(tensor: Tensor) -> int:
    """Of the tensor's 32-bit words: a checksum at the speed of memory."""
    return int(tensor.view(torch.int32).sum())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except InvalidModel as error:
        raise InvalidModel(f"{path}: {error}") from error


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
