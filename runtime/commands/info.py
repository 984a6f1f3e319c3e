"""`radixlm info`: what an engine with these options would be: model, memory, pool, threads."""

from __future__ import annotations

import argparse

from ..byte_size import format_bytes
from ..metrics import EngineInfo
from .engine_view import OpenEngine
from .options import add_engine_flags, engine_config
from .standard_output import require_output, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    require_output()
    with open_engine(engine_config(arguments)) as engine:
        write_output(f"{describe(engine.info())}\n")
    return 0


def describe(info: EngineInfo) -> str:
    """One aligned line a fact."""
    facts = {
        "model": f"{info.model} ({info.family}, {info.parameters / 1e6:,.1f} M parameters)",
        "weights": f"{format_bytes(info.weight_bytes)}, {_storage(info)}",
        "pool": f"{info.num_pages:,} pages of {info.page_size} tokens, {format_bytes(info.kv_bytes)}",
        "context": f"{info.max_context:,} tokens at most",
        "attention": info.attention,
        "threads": f"{info.threads}",
    }
    return "\n".join(f"{name:<10} {fact}" for name, fact in facts.items())


def _storage(info: EngineInfo) -> str:
    return info.dtype if info.quantization == "none" else f"{info.quantization} and {info.dtype}"
