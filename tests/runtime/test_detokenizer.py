"""Incremental detokenizing: joined deltas are the decoded text, and no half character is ever given out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.detokenizer import IncrementalDetokenizer
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE, build_byte_tokenizer

_ODD_TEXT = st.text("aé 日本語\n🙂👩‍👩‍👧e\u0301\u00ad�ї", max_size=12)


def _wrap(core: Core, **options: object) -> Tokenizer:
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", **options)  # type: ignore[no-untyped-call]
    return Tokenizer(fast)


def _sentencepiece(*, strips: bool = True) -> Tokenizer:
    """As Llama 2 (`strips`) or Gemma: spaces are ▁, unknown characters fall back to pieces for bytes."""
    words = ["▁", "a", "b", "▁a", "▁▁", "▁ab", "日", "é", ".", "�", "\n"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    core = Core(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("▁", "a"), ("▁", "▁"), ("▁a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if strips else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    core.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names[:3]])
    return _wrap(core)


def _metaspace() -> Tokenizer:
    names = ["<unk>", "</s>", "▁", "▁a", "a", "b", "▁▁", "�", "'", ".", "n't"]
    core = Core(models.Unigram([(name, -1.0 - i) for i, name in enumerate(names)], unk_id=0))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    core.add_special_tokens(["</s>"])
    return _wrap(core, clean_up_tokenization_spaces=True)


def _word_piece() -> Tokenizer:
    names = ["[UNK]", "</s>", "do", "##n", "'", "t", "n't", ".", "##s", "�"]
    core = Core(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    core.decoder = decoders.WordPiece()
    core.add_special_tokens(["</s>"])
    return _wrap(core, clean_up_tokenization_spaces=True)


TOKENIZERS = {
    "byte-level": build_byte_tokenizer(),
    "like Llama": _sentencepiece(),
    "like Gemma": _sentencepiece(strips=False),
    "metaspace": _metaspace(),
    "word pieces": _word_piece(),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def _deltas(stream: IncrementalDetokenizer, groups: Sequence[Sequence[int]]) -> list[str]:
    return [*(stream.push(group) for group in groups), stream.finish()]


def _cut(ids: list[int], data: st.DataObject) -> list[list[int]]:
    places = data.draw(st.lists(st.integers(0, len(ids)), max_size=4))
    edges = [0, *sorted(places), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


@every_tokenizer
@given(data=st.data(), skip=st.booleans())
def test_joined_deltas_of_any_ids_are_the_decoded_text(
    tokenizer: Tokenizer, data: st.DataObject, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=24))
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    one_by_one = _deltas(IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), [[i] for i in ids])
    in_groups = _deltas(IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), _cut(ids, data))
    assert "".join(one_by_one) == expected
    assert "".join(in_groups) == expected


@pytest.mark.parametrize("name", ["byte-level", "like Llama", "like Gemma"])
@given(text=_ODD_TEXT)
def test_no_delta_has_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, bos=False)
    deltas = _deltas(IncrementalDetokenizer(tokenizer), [[i] for i in ids])
    assert "".join(deltas) == text
    assert "".join(deltas).count("�") == text.count("�"), "only the text's own replacement characters"


@given(text=_ODD_TEXT, data=st.data())
def test_text_split_at_random_bytes_comes_out_whole(text: str, data: st.DataObject) -> None:
    ids = [FIRST_BYTE_ID + byte for byte in text.encode()]
    shown = ""
    stream = IncrementalDetokenizer(TOKENIZERS["byte-level"])
    for group in _cut(ids, data):
        shown += stream.push(group)
        assert text.startswith(shown)
    assert shown + stream.finish() == text


@given(st.binary(max_size=16))
def test_bytes_that_are_no_text_are_replaced_as_the_whole_decode_does(noise: bytes) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = [FIRST_BYTE_ID + byte for byte in noise]
    joined = "".join(_deltas(IncrementalDetokenizer(tokenizer), [[i] for i in ids]))
    assert joined == tokenizer.decode(ids) == noise.decode(errors="replace")


def test_a_character_comes_with_its_last_byte() -> None:
    stream = IncrementalDetokenizer(TOKENIZERS["byte-level"])
    ids = [FIRST_BYTE_ID + byte for byte in "🙂!".encode()]
    assert _deltas(stream, [[i] for i in ids]) == ["", "", "", "🙂", "!", ""]


def test_a_character_cut_off_by_the_end_is_replaced_at_the_end_only() -> None:
    stream = IncrementalDetokenizer(TOKENIZERS["byte-level"])
    ids = [FIRST_BYTE_ID + byte for byte in "é🙂".encode()[:-1]]
    assert _deltas(stream, [ids]) == ["é", "�"]
    assert stream.finish() == ""


def test_a_run_of_byte_pieces_is_held_until_no_later_byte_can_spoil_it() -> None:
    tokenizer = TOKENIZERS["like Llama"]
    b = [i for i in range(tokenizer.vocab_size) if tokenizer.piece(i) == "b"]
    e = [i for i in range(tokenizer.vocab_size) if tokenizer.piece(i) in ("<0xC3>", "<0xA9>")][::-1]
    assert _deltas(IncrementalDetokenizer(tokenizer), [[e[0]], [e[1]], b]) == ["", "", "éb", ""]
    assert _deltas(IncrementalDetokenizer(tokenizer), [e, [e[0]], b]) == ["", "", "���b", ""]
    assert _deltas(IncrementalDetokenizer(tokenizer), [e]) == ["", "é"]


def test_special_tokens_are_shown_only_when_asked_for() -> None:
    ids = [BOS_ID, FIRST_BYTE_ID + ord("x"), EOS_ID]
    tokenizer = TOKENIZERS["byte-level"]
    assert "".join(_deltas(IncrementalDetokenizer(tokenizer), [ids])) == "x"
    shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    assert "".join(_deltas(shown, [ids])) == "<bos>x<eos>"


def test_ids_without_a_token_give_no_text() -> None:
    assert _deltas(IncrementalDetokenizer(TOKENIZERS["byte-level"]), [[VOCAB_SIZE, 10**6]]) == ["", ""]


@every_tokenizer
@given(prompt=st.text("ab é", max_size=5), data=st.data())
def test_an_answer_after_a_prompt_continues_its_text(
    tokenizer: Tokenizer, prompt: str, data: st.DataObject
) -> None:
    before = tokenizer.encode(prompt + "a", bos=False)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8))
    stream = IncrementalDetokenizer(tokenizer, after=before)
    joined = "".join(_deltas(stream, [[i] for i in ids]))
    assert tokenizer.decode(before) + joined == tokenizer.decode([*before, *ids])


def test_the_first_space_of_an_answer_is_kept_after_a_prompt_and_stripped_without() -> None:
    tokenizer = TOKENIZERS["like Llama"]
    ids = tokenizer.encode("ab", bos=False)
    assert tokenizer.piece(ids[0]) == "▁ab"
    assert _deltas(IncrementalDetokenizer(tokenizer), [ids]) == ["ab", ""]
    assert _deltas(IncrementalDetokenizer(tokenizer, after=ids), [ids]) == [" ab", ""]
