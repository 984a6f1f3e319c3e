"""Every option of an engine, in one frozen value. A field brings its flag and its help with it (cli.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import InvalidConfig

PAGE_SIZES = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of `Engine`. Raises InvalidConfig on the first value that is not allowed.

    kv_memory is bytes for keys and values; num_pages, where given, wins over it. chunk_size is the most
    tokens one step computes, max_running the most sequences it runs. `deterministic` makes logits
    bit-equal for any batch, chunk and cache state; it needs float32, and costs about a tenth of the speed.
    """

    model: str = "smollm2-135m"
    load_format: Literal["auto", "gguf", "safetensors", "dummy"] = "auto"
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Literal["auto", "cpu"] = "auto"
    page_size: int = 16
    kv_memory: int = 2 << 30
    num_pages: int | None = None
    prefix_cache: bool = True
    eviction: Literal["lru", "priority"] = "lru"
    policy: Literal["cache-aware", "fcfs"] = "cache-aware"
    chunk_size: int = 512
    max_running: int = 64
    max_context: int | None = None
    deterministic: bool = False
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        _choice("page_size", self.page_size, PAGE_SIZES)
        _choice("load_format", self.load_format, ("auto", "gguf", "safetensors", "dummy"))
        _choice("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        _choice("attention", self.attention, ("auto", "cpu"))
        _choice("eviction", self.eviction, ("lru", "priority"))
        _choice("policy", self.policy, ("cache-aware", "fcfs"))
        _choice("device", self.device, ("cpu",))
        _at_least("kv_memory", self.kv_memory, 1)
        _at_least("chunk_size", self.chunk_size, 1)
        _at_least("max_running", self.max_running, 1)
        for name in ("num_pages", "max_context", "threads"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
        if self.deterministic and self.dtype != "float32":
            raise InvalidConfig(f"deterministic needs dtype float32, got {self.dtype}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InvalidConfig(f"seed must be an integer, got {self.seed!r}")


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed or isinstance(value, bool):
        raise InvalidConfig(f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}")


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidConfig(f"{name} must be an integer of at least {least}, got {value!r}")
