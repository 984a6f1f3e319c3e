"""Every option of an engine, in one frozen value. A field brings its flag and its help with it (cli.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import InvalidConfig
from .text import is_unicode, quote

PAGE_SIZES = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of `Engine`. Raises InvalidConfig on the first value that is not allowed.

    kv_memory is bytes for keys and values; num_pages, where given, wins over it. chunk_size is the most
    tokens one step computes, max_running the most sequences it runs, max_running_per_tenant the most of one
    tenant (None: as many as there are). hold_budget is the share of the pool that holds of programs keep at
    most. device, attention and dtype are settled
    by the machine where they are "auto": a GPU, its Triton kernels and bfloat16, else the CPU and float32.
    dtype is how weights, keys and values are stored; on a CPU all of it is computed with in float32.
    quantization int8, for CPUs, rounds weights to bytes, one scale an output, and activations when they meet
    them, one scale a row.
    """

    model: str = "smollm2-135m"
    load_format: Literal["auto", "gguf", "safetensors", "dummy"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: Literal["none", "int8"] = "none"
    attention: Literal["auto", "cpu", "triton"] = "auto"
    page_size: int = 16
    kv_memory: int = 2 << 30
    num_pages: int | None = None
    prefix_cache: bool = True
    eviction: Literal["lru", "priority"] = "lru"
    policy: Literal["cache-aware", "fcfs"] = "cache-aware"
    chunk_size: int = 512
    max_running: int = 64
    max_running_per_tenant: int | None = None
    max_context: int | None = None
    hold_budget: float = 0.25
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            _check_choice(name, getattr(self, name), allowed)
        for name, most in _COUNTS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                what = "a number of bytes" if name == "kv_memory" else "an integer"
                _check_integer(name, value, 1, most, what)
        _check_integer("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        _check_share("hold_budget", self.hold_budget)
        if not isinstance(self.prefix_cache, bool):
            raise InvalidConfig(f"prefix_cache must be true or false, got {quote(self.prefix_cache)}")
        if not isinstance(self.model, str) or not is_unicode(self.model):
            raise InvalidConfig(f"model must be text in valid Unicode, got {quote(self.model)}")


_CHOICES: Mapping[str, tuple[object, ...]] = {
    "page_size": PAGE_SIZES,
    "load_format": ("auto", "gguf", "safetensors", "dummy"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantization": ("none", "int8"),
    "attention": ("auto", "cpu", "triton"),
    "eviction": ("lru", "priority"),
    "policy": ("cache-aware", "fcfs"),
    "device": ("auto", "cpu", "cuda"),
}
_COUNTS: Mapping[str, int] = {  # the most allowed: more than any machine has, and sizes still fit 64 bits
    "kv_memory": 1 << 48,
    "num_pages": 1 << 48,
    "chunk_size": 1 << 31,
    "max_running": 1 << 31,
    "max_running_per_tenant": 1 << 31,
    "max_context": 1 << 31,
    "threads": 1024,
}
_OPTIONAL = ("num_pages", "max_running_per_tenant", "max_context", "threads")


def _check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    is_of_type = isinstance(value, type(allowed[0])) and not isinstance(value, bool)
    if not is_of_type or value not in allowed:
        raise InvalidConfig(f"{name} must be one of {', '.join(map(str, allowed))}, got {quote(value)}")


def _check_integer(name: str, value: object, least: int, most: int, what: str = "an integer") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidConfig(f"{name} must be {what} from {least} to {most}, got {quote(value)}")


def _check_share(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InvalidConfig(f"{name} must be a number from 0 to 1, got {quote(value)}")
