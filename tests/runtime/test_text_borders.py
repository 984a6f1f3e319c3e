"""Borders of texts: pieces encoded apart have the ids of the whole, whatever stands on either side."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.text_borders import last_border
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import build_byte_tokenizer

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
NAMES = ("byte", "smollm2", "llama 3", "qwen", "cl100k", "digits", "control tokens")


@cache
def real() -> str:
    try:
        found = Tokenizer.load(resolve_model("smollm2-135m", with_weights=False), user_cache())
    except Exception as error:
        pytest.skip(f"the embedded model is not installed: {error}")
    return found.hugging_face.backend_tokenizer.to_str()


def split(pattern: str, **more: Any) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), **{"behavior": "isolated", **more})
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])


@cache
def core_of(name: str) -> Core:
    """A real vocabulary with the patterns of several families."""
    if name == "byte":
        return build_byte_tokenizer().hugging_face.backend_tokenizer
    core = Core.from_str(real())
    if name in ("llama 3", "qwen", "cl100k"):
        core.pre_tokenizer = split({"llama 3": LLAMA_3, "cl100k": CL100K}.get(name, GPT_2))
    if name == "qwen":
        core.normalizer = normalizers.NFC()
        core.pre_tokenizer = split(LLAMA_3.replace("{1,3}", ""))
    if name == "digits":
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
    if name == "control tokens":
        core.add_tokens([AddedToken("<left>", lstrip=True), AddedToken("  ", normalized=False), "the"])
    return core


PIECES = [
    *("a", "the", " the", "don't", "'s", " '", "I'LL", "é", "e\u0301", "\u0301", "Z\u030a", "и", "ſ", "K"),
    *(" ", "  ", "     ", "\n", "\n\n", "\r\n", "\t", "\xa0", "\u3000", "\u2028", "\x1c", "\x85", "\u200b"),
    *("0", "12", " 345", "٣", "½", ".", "...", "!?", " -", "_", "/", "€", "\x00", "\u180e", "\u200d"),
    *("漢字", "漢", "字", "。", "，", "、", "ひら", "カナ", "ー", "！", "？", "한국", "ไทย"),
    *("😀", "👩\u200d👩\u200d👧", "🇩🇪", "\ufe0f", "<eos>", "<|im_end|>", "<|im", "<", "<left>", "<file_sep>"),
]
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=10).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)


def ids(core: Core, text: str) -> list[int]:
    return list(core.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", NAMES)
@given(text=texts, behind=texts)
@example("the  ", " the")
@example("a\n", "\n b")
@example("It's ", "'s")
@example("漢字。", "字")
def test_pieces_have_the_ids_of_the_whole_at_every_border(name: str, text: str, behind: str) -> None:
    core = core_of(name)
    places = [place for place in range(len(text)) if last_border(core, text[: place + 1]) == place]
    assert last_border(core, text) == (places[-1] if places else None)
    for place in places:
        whole = ids(core, text + behind)
        assert ids(core, text[:place]) + ids(core, text[place:] + behind) == whole


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_all_kinds_have_borders(name: str) -> None:
    for text in ("the cat sat", "one\ntwo", "漢字、漢字", "that's!  12 ", "a" * 5000 + " " + "b" * 5000):
        assert last_border(core_of(name), text) is not None
    for text in ("", "a", " ", "aaaa", "\n\n", " a"):
        assert last_border(core_of(name), text) is None


@pytest.mark.parametrize("distance", [0, 1, 254, 255, 256, 257, 1000, 1023, 1024, 5000])
def test_the_last_border_is_found_however_far_back_it_lies(distance: int) -> None:
    for before in ("a", "a b c " * 300 + "d"):
        text = f"{before} {'x' * distance}"
        assert last_border(core_of("byte"), text) == len(before)


def changed(**parts: Any) -> Core:
    core = Core.from_str(core_of("byte").to_str())
    for name, part in parts.items():
        setattr(core, name, part)
    return core


def with_token(token: AddedToken) -> Core:
    core = changed()
    core.add_tokens([token])
    return core


@pytest.mark.parametrize(
    "core",
    [
        changed(pre_tokenizer=pre_tokenizers.ByteLevel(True)),
        changed(pre_tokenizer=pre_tokenizers.Metaspace()),
        changed(pre_tokenizer=pre_tokenizers.ByteLevel(False, use_regex=False)),
        changed(pre_tokenizer=pre_tokenizers.Digits()),
        changed(pre_tokenizer=split(r"\p{L}+ \p{L}+|\s+")),
        changed(pre_tokenizer=split(r"\p{N}|\s+")),
        changed(pre_tokenizer=split(LLAMA_3, behavior="merged_with_previous")),
        changed(pre_tokenizer=split(LLAMA_3, invert=True)),
        changed(normalizer=normalizers.NFKC()),
        changed(normalizer=normalizers.Replace(" ", "_")),
        changed(model=models.WordLevel({"a": 0}, unk_token="a")),
        with_token(AddedToken("new york")),
        with_token(AddedToken("<right>", rstrip=True)),
        with_token(AddedToken("word", single_word=True)),
    ],
    ids=range(14),
)
def test_of_other_tokenizers_no_border_is_known(core: Core) -> None:
    assert last_border(core, "the cat sat on the mat") is None
