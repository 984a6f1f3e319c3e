"""Tokenizer and engines of the server's tests: a scripted one, and the tiny random Llama for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import save_byte_tokenizer
from testkit.scripted_face import Script, ScriptedFace
from testkit.tiny_model import byte_llama, save_tiny

OpenFace = Callable[..., ScriptedFace]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama that speaks the byte tokenizer."""
    folder = save_tiny(byte_llama(), tmp_path_factory.mktemp("tiny-llama"))
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def byte_tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer.load(tiny_folder)


@pytest.fixture
def open_face(byte_tokenizer: Tokenizer) -> OpenFace:
    """Opens scripted engines; the script gives the text of each request."""

    def open_one(script: Script, **more: object) -> ScriptedFace:
        return ScriptedFace(byte_tokenizer, script, **more)  # type: ignore[arg-type]

    return open_one


@pytest.fixture(scope="module")
def local_engine(tiny_folder: Path) -> Iterator[LocalEngine]:
    """The tiny Llama on a thread, with 256 pages of 4 tokens; at the end no page of it is lost."""
    engine = Engine(str(tiny_folder), page_size=4, num_pages=256)
    local = LocalEngine(engine)
    yield local
    local.close()
    engine.cache.check()
    assert engine.cache.leased_pages == 0
