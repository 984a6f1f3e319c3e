"""A tiny random Llama on disk, made once a session, and engines on it that are checked when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from radixlm.runtime.engine import Engine
from testkit.byte_tokenizer import save_byte_tokenizer
from testkit.tiny_model import byte_llama, save_tiny

OpenEngine = Callable[..., Engine]


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """The folder an engine is opened with, and transformers' own model of the same weights."""

    folder: Path
    model: PreTrainedModel


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> TinyLlama:
    model = byte_llama()
    folder = save_tiny(model, tmp_path_factory.mktemp("tiny-llama"))
    save_byte_tokenizer(folder)
    return TinyLlama(folder, model)


@pytest.fixture
def open_engine(tiny_llama: TinyLlama) -> Iterator[OpenEngine]:
    """Opens engines with a pool of 64 pages of 4 tokens if nothing else is asked for. When the test is over,
    each must be able to end all it has, and then every page is free or can be evicted."""
    engines: list[Engine] = []

    def open_one(folder: Path | None = None, **options: object) -> Engine:
        chosen = {"page_size": 4, "num_pages": 64, **options}
        engines.append(Engine(str(folder or tiny_llama.folder), **chosen))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()
        engine.cache.check()
        assert engine.cache.leased_pages == 0
        assert engine.cache.free_pages + engine.cache.evictable_pages == engine.cache.num_pages
