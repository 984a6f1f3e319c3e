"""What engines of grammars see of tokenizers: the bytes of tokens, and texts cut as the tokenizer would."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE, build_byte_tokenizer
from testkit.byte_vocabulary import allowed, byte_vocabulary, control_id


def sentencepiece_like(*, puts_space_first: bool = True) -> Tokenizer:
    """Pieces with ▁ for a space, and bytes for what has no piece; as Llama 2 has it, a space comes first."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["▁", "a", "b", "h", "▁a", "▁h", "ab", "▁ab", "{", "}", '"', ":", '{"', "▁{", "1"]
    merges = [("▁", "a"), ("▁", "h"), ("a", "b"), ("▁", "ab"), ("{", '"'), ("▁", "{")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    core = Core(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if puts_space_first else []
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in pieces[:3]])
    core.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>"))  # type: ignore[no-untyped-call]


def written(vocabulary: GrammarVocabulary, ids: list[int]) -> str:
    return b"".join(vocabulary.tokens[i] for i in ids).decode()


@pytest.fixture(scope="module")
def byte_level() -> GrammarVocabulary:
    return GrammarVocabulary.of(build_byte_tokenizer(), VOCAB_SIZE + 5)


def test_tokens_are_bytes_and_control_tokens_have_none(byte_level: GrammarVocabulary) -> None:
    assert byte_level.tokens[BOS_ID] == byte_level.tokens[EOS_ID] == b""
    assert [byte_level.tokens[FIRST_BYTE_ID + b] for b in range(256)] == [bytes([b]) for b in range(256)]
    assert b" the" in byte_level.tokens
    assert byte_level.special_ids == {BOS_ID, EOS_ID}
    assert byte_level.eos_ids == (EOS_ID,)
    assert (byte_level.width, byte_level.words) == (VOCAB_SIZE + 5, 9)


def test_ids_past_the_row_are_left_out() -> None:
    short = GrammarVocabulary.of(build_byte_tokenizer(), 258)
    assert len(short.tokens) == 258
    assert not short.can_write(258)


def test_every_end_of_a_text_counts_and_none_at_all_is_refused() -> None:
    tokenizer = build_byte_tokenizer()
    tokenizer.eos_ids = frozenset((EOS_ID, BOS_ID))
    assert GrammarVocabulary.of(tokenizer, VOCAB_SIZE).eos_ids == (BOS_ID, EOS_ID)
    tokenizer.eos_ids = frozenset()
    with pytest.raises(InvalidConfig, match="a token that ends a text"):
        GrammarVocabulary.of(tokenizer, VOCAB_SIZE)


def test_control_tokens_spelled_out_are_text(byte_level: GrammarVocabulary) -> None:
    ids = byte_level.encode("a<eos>")
    assert EOS_ID not in ids
    assert written(byte_level, ids) == "a<eos>"
    assert byte_level.split_specials("a<eos>b<bos>") == ["a", EOS_ID, "b", BOS_ID]
    assert byte_level.split_specials("") == []


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_text_is_cut_into_tokens_that_write_it(byte_level: GrammarVocabulary, text: str) -> None:
    assert written(byte_level, byte_level.encode(text)) == text


def test_a_piece_with_a_leading_space_writes_the_space() -> None:
    """Report 36: pieces used raw leave a grammar without any space."""
    tokenizer = sentencepiece_like()
    vocabulary = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)
    assert b" ab" in vocabulary.tokens
    grammar = LlguidanceBackend(vocabulary).regex("h ab\n\U0001f642").start()
    for token_id in vocabulary.encode("h ab\n\U0001f642"):
        assert token_id in allowed(grammar, vocabulary)
        assert grammar.accept([token_id]) == 1
    assert grammar.accepting


@pytest.mark.parametrize("puts_space_first", [True, False])
@given(text=st.text(st.sampled_from('ab h{}":1\n\U0001f642<tool>'), max_size=12))
def test_no_space_is_put_before_a_text_in_the_middle_of_another(puts_space_first: bool, text: str) -> None:
    vocabulary = _vocabulary_of(puts_space_first)
    assert written(vocabulary, vocabulary.encode(text)) == text


@pytest.mark.parametrize("text", ["ab", " ab", '{"a', "\n", "h ab"])
def test_a_text_in_the_middle_has_the_tokens_it_has_behind_another(text: str) -> None:
    tokenizer = sentencepiece_like()
    whole = tokenizer.encode("1" + text, bos=False, special=False)
    assert whole[:2] == tokenizer.encode("1", bos=False)
    assert _vocabulary_of(True).encode(text) == whole[2:]


def test_added_tokens_that_are_no_control_tokens_are_text() -> None:
    vocabulary = _vocabulary_of(True)
    assert b"<tool>" in vocabulary.tokens
    assert len(vocabulary.encode("<tool>")) == 1


def test_masks_name_tokens_bit_by_bit(byte_level: GrammarVocabulary) -> None:
    assert np.flatnonzero(np.unpackbits(byte_level.end_row.view(np.uint8), bitorder="little")).tolist() == [1]
    bits = np.unpackbits(byte_level.text_row.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == list(range(FIRST_BYTE_ID, VOCAB_SIZE))
    with pytest.raises(ValueError, match="read-only"):
        byte_level.end_row[0] = 1


def test_a_pickle_is_the_same_vocabulary_without_the_tokenizer(byte_level: GrammarVocabulary) -> None:
    copy = pickle.loads(pickle.dumps(byte_level))
    assert copy.digest == byte_level.digest
    assert copy.tokens == byte_level.tokens
    assert written(copy, copy.encode("the house")) == "the house"


def test_digests_differ_where_vocabularies_do() -> None:
    digests = {
        byte_vocabulary().digest,
        byte_vocabulary(("x",)).digest,
        GrammarVocabulary([b"a", b""], {1: "</s>"}, [1], 2).digest,
        GrammarVocabulary([b"a", b""], {1: "</s>"}, [1], 3).digest,
        GrammarVocabulary([b"a", b""], {1: "<e>"}, [1], 2).digest,
    }
    assert len(digests) == 5


def test_a_text_without_a_tokenizer_is_cut_by_the_longest_token_up_to_what_no_token_writes() -> None:
    vocabulary = GrammarVocabulary([b"a", b"ab", b""], {2: "</s>"}, [2], 3)
    assert vocabulary.encode("aab") == [0, 1]
    assert vocabulary.encode("abxa") == [1]
    assert control_id(byte_vocabulary(), "<eos>") in byte_vocabulary().eos_ids


_KNOWN: dict[bool, GrammarVocabulary] = {}


def _vocabulary_of(puts_space_first: bool) -> GrammarVocabulary:
    if puts_space_first not in _KNOWN:
        tokenizer = sentencepiece_like(puts_space_first=puts_space_first)
        _KNOWN[puts_space_first] = GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)
    return _KNOWN[puts_space_first]
