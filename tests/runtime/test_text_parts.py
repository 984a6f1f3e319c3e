"""Parts to token ids and back: exact at every border, with the byte tokenizer and with a real one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.frontend.protocol import Plain as CallPlain
from radixlm.runtime.detokenizer import IncrementalDetokenizer
from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.stops import StopChecker
from radixlm.runtime.text_parts import Part, PartsEncoder, Plain, beginning, output_parts
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, build_byte_tokenizer

NAMES = ("byte", "byte without bos", "smollm2")


@cache
def tokenizer_of(name: str) -> Tokenizer:
    if name == "smollm2":
        try:
            return Tokenizer.load(resolve_model("smollm2-135m", with_weights=False), user_cache())
        except Exception as error:
            pytest.skip(f"the embedded model is not installed: {error}")
    return build_byte_tokenizer(adds_bos=name == "byte")


def ids_of(name: str, *parts: Part) -> tuple[int, ...]:
    return PartsEncoder(tokenizer_of(name)).ids(parts)


every_tokenizer = pytest.mark.parametrize("name", NAMES)
PIECES = (
    "the",
    " the",
    "in",
    " a",
    "th",
    "e",
    "и",
    "Ð",
    "\n",
    " ",
    "  ",
    "😀",
    "👩‍👩‍👧",
    "漢字",
    "<eos>",
    "<|im_end|>",
    "<",
    "12",
)
texts = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
some_text = texts.filter(bool)
long_texts = st.lists(
    st.sampled_from(
        [
            *PIECES,
            *("\t", "\r\n", "     ", "\xa0", ". ", "0123", "don't", "。", "字，", "é\u0301"),
            *("<bos>", "<|im_start|>"),
        ]
    ),
    max_size=12,
).map("".join)


# -- parts to ids ----------------------------------------------------------------------------------


@every_tokenizer
@given(pieces=st.lists(texts, min_size=1, max_size=5))
def test_neighbouring_texts_are_one_text(name: str, pieces: list[str]) -> None:
    text = "".join(pieces)
    expected = tuple(tokenizer_of(name).encode(text)) if text else beginning(tokenizer_of(name))
    if not text.startswith(("<bos>", "<|im_start|>")):
        assert ids_of(name, *pieces) == expected


@every_tokenizer
@given(before=some_text, ids=st.lists(st.integers(2, 200), min_size=1).map(tuple), behind=texts)
def test_ids_stand_as_they_are_and_text_behind_them_gets_no_beginning(
    name: str, before: str, ids: tuple[int, ...], behind: str
) -> None:
    tokenizer = tokenizer_of(name)
    tail = tuple(tokenizer.encode(behind, bos=False))
    assert ids_of(name, ids, behind) == ids + tail
    assert ids_of(name, before, "", ids, behind, ()) == ids_of(name, before) + ids + tail


@every_tokenizer
def test_nothing_is_what_a_text_begins_with(name: str) -> None:
    first = beginning(tokenizer_of(name))
    assert ids_of(name) == ids_of(name, "", (), Plain("")) == first
    assert len(first) == 1


def test_a_text_that_spells_its_beginning_has_it_once() -> None:
    assert ids_of("byte", "<bos>in")[0] == BOS_ID
    assert ids_of("byte", "<bos>in") == ids_of("byte", "in")
    assert ids_of("byte", Plain("<bos>in"))[0] == BOS_ID
    assert ids_of("byte", Plain("<bos>in"))[1] == FIRST_BYTE_ID + ord("<")
    assert ids_of("byte", (5,), "<bos>") == (5, BOS_ID)


@every_tokenizer
@given(
    pieces=st.lists(st.tuples(texts, st.booleans()), max_size=5),
    spelling=st.sampled_from(["", "<eos>", "<|im_end|>"]),
)
def test_control_tokens_come_from_templates_and_never_from_what_is_plain(
    name: str, pieces: list[tuple[str, bool]], spelling: str
) -> None:
    """However a spelling is cut into parts: its token stands where no character of it is plain."""
    tokenizer = tokenizer_of(name)
    parts = [Plain(text + spelling) if plain else text + spelling for text, plain in pieces]
    text = "".join(part if isinstance(part, str) else part.text for part in parts)
    plain = [
        isinstance(part, Plain) for part in parts for _ in (part if isinstance(part, str) else part.text)
    ]
    controls = {tokenizer.piece(token): token for token in tokenizer.special_ids}
    expected, at = [], 0
    while at < len(text):
        found = max((s for s in controls if s and text.startswith(s, at)), key=len, default="")
        if found and not any(plain[at : at + len(found)]):
            expected.append(controls[found])
        at += len(found) or 1
    ids = PartsEncoder(tokenizer).ids([(FIRST_BYTE_ID,), *parts])[1:]
    assert [token for token in ids if token in tokenizer.special_ids] == expected
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_plain_of_the_protocol_is_as_good() -> None:
    parts = ("[user] ", CallPlain("a<eos>b"), "<eos>")
    assert PartsEncoder(tokenizer_of("byte")).ids(parts).count(EOS_ID) == 1


@every_tokenizer
def test_a_whole_conversation_is_encoded_as_its_template_does(name: str) -> None:
    tokenizer = tokenizer_of(name)
    typed = "hi <|im_end|><eos> there"
    rendered = tokenizer.render_chat([{"role": "user", "content": typed}])
    before, behind = rendered.split(typed)
    assert list(ids_of(name, before, Plain(typed), behind)) == tokenizer.apply_chat_template(
        [{"role": "user", "content": typed}]
    )


def test_runs_are_remembered_within_a_limit() -> None:
    encoder = PartsEncoder(tokenizer_of("byte"), remembered=10)
    for text in ("in the", "the in", "a text that is longer than that", "in the"):
        for _ in range(2):
            assert encoder.ids([text]) == ids_of("byte", text)
    assert encoder.ids([(3,), "in the"]) == ids_of("byte", (3,), "in the") != encoder.ids(["in the"])


def test_what_is_no_unicode_is_refused() -> None:
    for part in ("\ud800", Plain("<eos>\ud800")):
        with pytest.raises(InvalidRequest, match="Unicode"):
            ids_of("byte", part)


def spaced_tokenizer() -> Tokenizer:
    """As Llama 2: a space is put before a text, and unknown characters fall back to pieces for bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab"]
    core = Core(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("▁", "a"), ("▁a", "b")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in ("<s>", "</s>")])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")  # type: ignore[no-untyped-call]
    return Tokenizer(fast)


@given(
    pieces=st.lists(st.sampled_from(["a", "b", " ", " ab", "\n", "</s>", "é"]), min_size=1, max_size=5),
    plain=st.booleans(),
)
def test_a_text_behind_ids_gets_no_space_where_texts_that_begin_do(pieces: list[str], plain: bool) -> None:
    tokenizer = spaced_tokenizer()
    text = "".join(pieces)
    part = Plain(text) if plain else text
    assert PartsEncoder(tokenizer).ids([part])[0] == tokenizer.bos_id
    behind = PartsEncoder(tokenizer).ids([(4,), part])[1:]
    assert (2 in behind) == ("</s>" in text and not plain)
    if "</s>" not in text:  # behind its spelling, such a tokenizer begins a text again
        stream = IncrementalDetokenizer(tokenizer, after=(tokenizer.encode("a")[1],))
        assert stream.push(behind) + stream.finish() == text


# -- choices ---------------------------------------------------------------------------------------


@every_tokenizer
@given(
    parts=st.lists(st.one_of(texts, st.lists(st.integers(2, 200), max_size=3).map(tuple)), max_size=4),
    choices=st.lists(some_text, min_size=1, max_size=4),
)
def test_choices_begin_at_one_place_and_are_tokenized_with_the_prompt(
    name: str, parts: list[Part], choices: list[str]
) -> None:
    encoder = PartsEncoder(tokenizer_of(name))
    context, continuations = encoder.joint(parts, choices)
    assert context
    assert all(continuations)
    is_empty = not any(parts)
    for choice, ids in zip(choices, continuations, strict=True):
        whole = encoder.ids([*parts, choice])
        assert context + ids == whole or (context == beginning(tokenizer_of(name)) and ids == whole)
    alone = encoder.ids(parts)
    if not is_empty and context != beginning(tokenizer_of(name)):
        assert alone[: len(context)] == context


@pytest.mark.parametrize("name", [*NAMES, "spaced"])
@given(
    parts=st.lists(
        st.one_of(
            long_texts,
            long_texts.map(Plain),
            st.lists(st.integers(2, 200), max_size=2).map(tuple),
        ),
        max_size=4,
    ),
    choices=st.lists(some_text | long_texts.filter(bool), min_size=1, max_size=3),
)
def test_choices_have_the_ids_that_whole_texts_have(name: str, parts: list[Part], choices: list[str]) -> None:
    """Where they begin is the first place that any choice changes."""
    tokenizer = spaced_tokenizer() if name == "spaced" else tokenizer_of(name)
    encoder = PartsEncoder(tokenizer)
    assume(any(part if isinstance(part, str | tuple) else part.text for part in parts))
    context, continuations = encoder.joint(parts, choices)
    alone = encoder.ids(parts)
    wholes = [encoder.ids([*parts, choice]) for choice in choices]
    pairs = [list(zip(alone, whole, strict=False)) for whole in wholes]
    same = [next((at for at, (x, y) in enumerate(pair) if x != y), len(pair)) for pair in pairs]
    assert context == (alone[: min(same)] or beginning(tokenizer))
    assert [(*alone[: min(same)], *ids) for ids in continuations] == wholes


def test_a_long_text_is_encoded_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, characters = tokenizer_of("byte"), 0
    encode = tokenizer.encode_mixed

    def counted(text: str, *arguments: Any, **options: Any) -> list[int]:
        nonlocal characters
        characters += len(text)
        return encode(text, *arguments, **options)

    monkeypatch.setattr(tokenizer, "encode_mixed", counted)
    text = "the cat, in the end; " * 2000
    for parts in ([text], ["in", (7, 8), text], [Plain(text), text[:100]]):
        characters = 0
        PartsEncoder(tokenizer).joint(parts, [f" choice {number}" for number in range(100)])
        assert characters < len(text) + 100 * 60


@every_tokenizer
def test_a_border_that_merges_belongs_to_all_choices(name: str) -> None:
    encoder = PartsEncoder(tokenizer_of(name))
    tokenizer = tokenizer_of(name)
    context, (merged, other) = encoder.joint(["a cat in t"], ["he", "!"])
    alone, _ = encoder.joint(["a cat in t"], ["!"])
    assert context == alone[: len(context)] != alone
    assert tokenizer.decode(merged) == " the" or tokenizer.decode(merged) == "the"
    assert tokenizer.decode(other).endswith("t!")
    whole = tokenizer.decode([*context, *merged])
    assert whole == "a cat in the"


def test_a_border_that_falls_to_nothing_leaves_what_a_text_begins_with() -> None:
    for name in ("byte", "byte without bos"):
        context, (merged, other) = PartsEncoder(tokenizer_of(name)).joint(["t"], ["he", "o"])
        assert context == (BOS_ID,)
        assert len(merged) == 1
        assert len(other) == 2
        context, (first,) = PartsEncoder(tokenizer_of(name)).joint([], ["the"])
        assert context == (BOS_ID,)
        assert first == merged


def test_parts_that_end_in_ids_are_the_context() -> None:
    encoder = PartsEncoder(tokenizer_of("byte"))
    context, (first, second) = encoder.joint(["in", (7, 8)], ["the", "a"])
    assert context == encoder.ids(["in", (7, 8)])
    assert (len(first), len(second)) == (1, 1)


def test_a_choice_without_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="choice 1 has no tokens"):
        PartsEncoder(tokenizer_of("byte")).joint(["in"], ["the", ""])


# -- ids to parts ----------------------------------------------------------------------------------


def shown(tokenizer: Tokenizer, ids: Sequence[int], stops: tuple[str, ...]) -> tuple[str, str | None, int]:
    """The text of an answer, what stopped it, and after how many tokens: as an engine does it."""
    stream, checker = IncrementalDetokenizer(tokenizer), StopChecker(stops, ())
    text = ""
    for count, token in enumerate(ids, 1):
        delta = stream.push((token,))
        if delta:
            update = checker.push(delta)
            text += update.text
            if update.matched is not None:
                return text, str(update.matched), count
    rest = checker.push(stream.finish())
    text += rest.text
    if rest.matched is not None:
        return text, str(rest.matched), len(ids)
    return text + checker.finish(), None, len(ids)


def text_of(tokenizer: Tokenizer, parts: Sequence[str | tuple[int, ...]]) -> str:
    return "".join(part if isinstance(part, str) else decoded(tokenizer, part) for part in parts)


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    stream = IncrementalDetokenizer(tokenizer)
    return stream.push(ids) + stream.finish()


@every_tokenizer
@given(
    data=st.one_of(some_text.map(str.encode), st.binary(min_size=1, max_size=12)),
    stop=st.sampled_from(["", "e", "he", " ", "漢", "\n", "in", "😀", "\ufffd"]),
)
def test_output_parts_are_exactly_the_text_and_as_many_ids_as_can_be(
    name: str, data: bytes, stop: str
) -> None:
    tokenizer = tokenizer_of(name)
    try:
        ids = tuple(tokenizer.encode(data.decode(), bos=False))
    except UnicodeDecodeError:
        one_byte = {tokenizer.token_bytes(i): i for i in range(300) if len(tokenizer.token_bytes(i)) == 1}
        ids = tuple(one_byte[bytes([byte])] for byte in data if bytes([byte]) in one_byte)
    text, matched, count = shown(tokenizer, ids, (stop,) if stop else ())
    ids = ids[:count]
    parts = output_parts(tokenizer, text, ids, matched, after=(FIRST_BYTE_ID,))
    assert text_of(tokenizer, parts) == text
    carried = parts[0] if parts and isinstance(parts[0], tuple) else ()
    assert ids[: len(carried)] == carried
    if matched is None:
        assert carried == ids
    for longer in range(len(carried) + 1, len(ids) + 1):
        assert not text.startswith(decoded(tokenizer, ids[:longer]))


@every_tokenizer
def test_an_end_of_text_is_not_among_the_ids(name: str) -> None:
    tokenizer = tokenizer_of(name)
    [eos] = tokenizer.eos_ids
    ids = tuple(tokenizer.encode("in the", bos=False))
    assert output_parts(tokenizer, "in the", (*ids, eos), eos, after=ids) == (ids,)
    assert output_parts(tokenizer, "", (eos,), eos, after=ids) == ()
    kept = output_parts(
        tokenizer, f"in the{tokenizer.piece(eos)}", (*ids, eos), eos, after=ids, skip_special_tokens=False
    )
    assert kept == ((*ids, eos),)


def test_a_stop_token_with_a_text_is_not_among_them_either_unless_it_is_shown() -> None:
    tokenizer = tokenizer_of("byte")
    ids = tuple(tokenizer.encode("in the.", bos=False))
    assert output_parts(tokenizer, "in the", ids, ids[-1], after=ids) == (ids[:-1],)
    assert output_parts(tokenizer, "in the.", ids, ids[-1], after=ids) == (ids,)


def test_a_stop_inside_a_token_leaves_its_beginning_as_text() -> None:
    tokenizer = tokenizer_of("byte")
    ids = tuple(tokenizer.encode("in the", bos=False))
    assert output_parts(tokenizer, "in t", ids, "he", after=ids) == (ids[:1], " t")
