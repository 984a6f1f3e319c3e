"""Tokenizers built in code and saved to folders: encoding, bytes of tokens, chat templates, faults."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.errors import InvalidModel, InvalidRequest
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, build_byte_tokenizer, save_byte_tokenizer

TOKENIZER = build_byte_tokenizer()
USER = [{"role": "user", "content": "hi"}]


@given(st.text(max_size=20))
def test_text_survives_encoding_and_decoding(text: str) -> None:
    ids = TOKENIZER.encode(text, special=False)
    assert ids[0] == BOS_ID
    assert TOKENIZER.decode(ids) == text


def test_bos_is_added_to_plain_text_exactly_when_the_model_does_so() -> None:
    assert TOKENIZER.encode("x") == [BOS_ID, FIRST_BYTE_ID + ord("x")]
    assert TOKENIZER.encode("x", bos=False) == [FIRST_BYTE_ID + ord("x")]
    assert build_byte_tokenizer(adds_bos=False).encode("x") == [FIRST_BYTE_ID + ord("x")]


def test_control_tokens_in_text_are_read_as_tokens_or_kept_as_text() -> None:
    assert TOKENIZER.encode("<eos>", bos=False) == [EOS_ID]
    literal = TOKENIZER.encode("a<eos>", bos=False, special=False)
    assert EOS_ID not in literal
    assert TOKENIZER.decode(literal) == "a<eos>"
    assert TOKENIZER.encode("<eos>", bos=False) == [EOS_ID], "the other way is unchanged"


@pytest.mark.parametrize("text", ["\ud800", None, 5])
def test_text_that_is_no_unicode_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="text must be a string of valid Unicode, got"):
        TOKENIZER.encode(text)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("units", [333, 334, 5000])
def test_a_long_text_is_tokenized_as_a_short_one(units: int, special: bool) -> None:
    unit = TOKENIZER.encode("a<eos>", bos=False, special=special)
    assert TOKENIZER.encode("a<eos>" * units, special=special) == [BOS_ID, *unit * units]


@pytest.mark.parametrize("text", ["a" * 3000 + "\ud800", ["a"] * 3000])
def test_a_long_text_that_is_no_unicode_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="text must be a string of valid Unicode, got"):
        TOKENIZER.encode(text)


@pytest.mark.parametrize("ids", [[-1], [1 << 40], ["a"]])
def test_ids_that_are_no_ids_are_refused(ids: list[int]) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"token ids must be integers >= 0, got {ids!r}")):
        TOKENIZER.decode(ids)


def test_each_token_tells_its_bytes() -> None:
    assert [TOKENIZER.token_bytes(FIRST_BYTE_ID + byte) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]
    ids = TOKENIZER.encode(" the и", bos=False)
    assert [TOKENIZER.token_bytes(i) for i in ids] == [b" the", b" ", "и".encode()]
    assert TOKENIZER.token_bytes(EOS_ID) == b"<eos>"
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size) == b""


def test_names_of_special_ids_and_size() -> None:
    assert TOKENIZER.bos_id == BOS_ID
    assert TOKENIZER.eos_ids == {EOS_ID}
    assert TOKENIZER.special_ids == {BOS_ID, EOS_ID}
    assert TOKENIZER.piece(TOKENIZER.vocab_size - 1) is not None
    assert TOKENIZER.piece(TOKENIZER.vocab_size) is None


def test_truncation_and_padding_of_the_files_do_not_touch_prompts() -> None:
    core = Core.from_str(TOKENIZER._core.to_str())
    core.enable_truncation(4)
    core.enable_padding(length=8)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=core))  # type: ignore[no-untyped-call]
    assert len(tokenizer.encode("xyzxyzxyz", bos=False)) == 9
    assert len(tokenizer.encode("x", bos=False)) == 1
    assert tokenizer.eos_ids == frozenset()


def test_threads_may_encode_in_both_ways_at_once() -> None:
    tokenizer = build_byte_tokenizer()
    results: list[Sequence[int]] = []

    def work(special: bool) -> None:
        results.extend(tokenizer.encode("<eos>", bos=False, special=special) for _ in range(200))

    threads = [threading.Thread(target=work, args=(bool(i % 2),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, results)) == [1] * 400 + [5] * 400


def test_a_chat_gets_one_bos_from_its_template_and_none_from_encoding() -> None:
    ids = TOKENIZER.apply_chat_template(USER)
    assert ids.count(BOS_ID) == 1
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == TOKENIZER.render_chat(USER)
    assert TOKENIZER.render_chat(USER) == "<bos>[user] hi<eos>\n[assistant] "
    assert TOKENIZER.render_chat(USER, add_generation_prompt=False) == "<bos>[user] hi<eos>\n"


def test_any_order_of_roles_and_empty_content_is_up_to_the_template() -> None:
    system = {"role": "system", "content": ""}
    assert TOKENIZER.render_chat([system], False) == "<bos>[system] <eos>\n"
    assert TOKENIZER.render_chat([*USER, *USER], False) == "<bos>[user] hi<eos>\n[user] hi<eos>\n"


def test_null_content_of_an_assistant_and_text_parts_become_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages: list[dict[str, object]] = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    assert TOKENIZER.render_chat(messages, False) == "<bos>[user] one\ntwo<eos>\n[assistant] <eos>\n"
    assert messages[0]["content"] is parts, "the caller's messages are left as they were"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must not be empty"),
        ("hi", "messages must be a list of role and content, got 'hi'"),
        ({"role": "user"}, "messages must be a list of role and content"),
        (None, "messages must be a list of role and content, got None"),
        (["hi"], "messages[0] must be an object with role and content, got 'hi'"),
        ([{"content": "hi"}], "messages[0].role must be a word such as 'user', got None"),
        ([{"role": "user<eos>", "content": ""}], "messages[0].role must be a word"),
        ([*USER, {"role": "user"}], "messages[1].content must be text or a list of text parts, got None"),
        ([{"role": "user", "content": 5}], "messages[0].content must be text"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content has a part that is not",
        ),
        ([{"role": "tool", "content": "x"}], "the chat template failed: role tool is not supported"),
    ],
)
def test_malformed_messages_are_refused_with_the_reason(messages: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        TOKENIZER.apply_chat_template(messages)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "this model has no chat template"),
        ("{% for %}", "the chat template failed"),
        ("{{ messages[0].nothing.more }}", "the chat template failed"),
        ("{{ messages[0]['role'] + 5 }}", "the chat template failed"),
    ],
)
def test_a_missing_or_faulty_template_fails_the_request_only(template: str | None, message: str) -> None:
    tokenizer = build_byte_tokenizer(chat_template=template)
    with pytest.raises(InvalidRequest, match=message):
        tokenizer.render_chat(USER)


def test_a_saved_folder_loads_as_the_same_tokenizer(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    loaded = Tokenizer.load(tmp_path, extra_eos_ids=(7, 1))
    assert loaded.encode(" the <eos>é") == TOKENIZER.encode(" the <eos>é")
    assert loaded.render_chat(USER) == TOKENIZER.render_chat(USER)
    assert loaded.eos_ids == {1, 7}
    assert (loaded.special_ids, loaded.vocab_size) == (TOKENIZER.special_ids, TOKENIZER.vocab_size)


def test_a_folder_without_tokenizer_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        InvalidModel, match=re.escape(f"no tokenizer in folder {str(tmp_path)!r}: expected one")
    ):
        Tokenizer.load(tmp_path)


def test_a_damaged_tokenizer_file_is_reported_in_one_line(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(InvalidModel, match="cannot be loaded") as failure:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(failure.value)


def test_a_place_that_is_neither_folder_nor_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    for place in (tmp_path / "absent", tmp_path / "model.bin"):
        with pytest.raises(InvalidModel, match=r"expected a model folder or a \.gguf file"):
            Tokenizer.load(place)


_HEAD = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a readable GGUF file"),
        (b"GGUF", "not a readable GGUF file"),
        (b"PK\x03\x04" * 8, "it starts with"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "no little-endian GGUF"),
        (_HEAD, "not a readable GGUF file"),
        (_HEAD + struct.pack("<Q", 1 << 63), "the file ends inside its header"),
        (_HEAD + struct.pack("<Q1sI", 1, b"k", 77), "unknown value type 77"),
        (_HEAD + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 62), "the file ends inside its header"),
        (
            _HEAD + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 5000,
            "not a readable GGUF file",
        ),
    ],
)
def test_a_damaged_gguf_header_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(InvalidModel, match=message):
        Tokenizer.load(tmp_path / "m.gguf")


def test_importing_the_module_loads_neither_transformers_nor_torch() -> None:
    code = (
        "import sys, radixlm.runtime.tokenizer, radixlm.runtime.detokenizer, radixlm.runtime.stops;"
        "assert not {'transformers', 'torch', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
