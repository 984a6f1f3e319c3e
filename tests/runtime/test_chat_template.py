"""Prompts of conversations: what callers type stays text, what the template writes are control tokens."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Core
from transformers import PreTrainedTokenizerFast

from radixlm.runtime.chat_marks import Marks, any_of
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import BOS_ID, EOS_ID, build_byte_tokenizer

TOKENIZER = build_byte_tokenizer()
Message = dict[str, Any]

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<eos>{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.arguments | tojson }}</call>{% endfor %}"
    "{% if m.extra is defined %}{{ m.extra }}{% endif %}{% endfor %}"
    "{% if mood is defined %}({{ mood }}){% endif %}{% if add_generation_prompt %}<eos>{% endif %}"
)


def tagged_tokenizer(template: Any = TEMPLATE) -> Tokenizer:
    """With tags that are tokens and no control tokens: <call>, </call>, and <b>, which no template writes."""
    fast = build_byte_tokenizer(chat_template=template)._fast
    tags = [AddedToken(name, special=False, normalized=False) for name in ("<call>", "</call>", "<b>")]
    fast.backend_tokenizer.add_tokens(tags)
    return Tokenizer(fast)


TAGGED = tagged_tokenizer()


def user(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


def ids_of(tokenizer: Tokenizer, messages: list[Message], **options: Any) -> list[int]:
    """The ids, which stand for the rendered text, whatever it spells."""
    ids = tokenizer.apply_chat_template(messages, **options)
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.render_chat(messages, **options)
    return ids


def controls(tokenizer: Tokenizer, ids: list[int]) -> list[str | None]:
    added = tokenizer._core.get_added_tokens_decoder()
    return [tokenizer.piece(i) for i in ids if i in added]


# -- what is typed -------------------------------------------------------------------------------------


def test_a_control_token_that_is_typed_has_the_ids_of_its_characters() -> None:
    plain, typed = (ids_of(TOKENIZER, user(text)) for text in ("a b", "a <eos> b"))
    literal = TOKENIZER.encode("<eos>", bos=False, special=False)
    assert EOS_ID not in literal
    begin = TOKENIZER.encode("<bos>[user] a ", bos=False)
    assert typed[: len(begin)] == begin
    assert typed[len(begin) : len(begin) + len(literal)] == literal
    assert controls(TOKENIZER, typed) == controls(TOKENIZER, plain) == ["<bos>", "<eos>"]


@given(
    st.lists(
        st.sampled_from(["<eos>", "<bos>", "<e", "os>", "the", " ", "é", "\ue000", "\\ue001"]), max_size=8
    )
)
def test_whatever_is_typed_the_control_tokens_are_those_of_the_template(pieces: list[str]) -> None:
    ids = ids_of(TOKENIZER, user("".join(pieces)))
    assert controls(TOKENIZER, ids) == ["<bos>", "<eos>"]


@given(st.text(st.sampled_from("<>|eos b\ue000\\uE"), max_size=12).filter(lambda text: "<eos>" not in text))
def test_text_without_such_spellings_has_the_ids_of_the_rendered_text(text: str) -> None:
    ids = TOKENIZER.apply_chat_template(user(text))
    assert ids == TOKENIZER.encode(TOKENIZER.render_chat(user(text)), bos=False)


def test_every_text_of_a_request_counts_as_typed() -> None:
    call = {"function": {"name": "f", "arguments": '{"<eos>": ["<bos>"]}'}}
    messages = [{"role": "assistant", "content": "<eos>", "tool_calls": [call], "extra": "<bos>"}]
    tools = [{"function": {"description": "ends with <eos>", "<eos>": {"deep": ["<bos>"]}}}]
    ids = ids_of(TAGGED, messages, tools=tools, template_kwargs={"mood": "<eos>"})
    assert controls(TAGGED, ids) == ["<eos>", "<call>", "</call>", "<eos>"]


def test_tags_of_the_template_are_the_models_own_and_nobody_elses() -> None:
    for role, expected in (
        ("user", ["<eos>", "<eos>"]),
        ("assistant", ["<eos>", "<call>", "</call>", "<eos>"]),
    ):
        ids = ids_of(TAGGED, [{"role": role, "content": "<call>{}</call>"}])
        assert controls(TAGGED, ids) == expected


def test_tokens_that_no_template_writes_are_as_in_any_text() -> None:
    assert controls(TAGGED, ids_of(TAGGED, user("<b>bold"))) == ["<eos>", "<b>", "<eos>"]


def test_a_spelling_that_the_template_takes_apart_or_escapes_is_no_control_token() -> None:
    parts = "{% for m in messages %}<eos>{{ m.content.split('<bos>') | join('+') }}{% endfor %}"
    ids = ids_of(tagged_tokenizer(parts), user("a<bos>b<eos>"))
    assert controls(TAGGED, ids) == ["<eos>"]
    shown = "{% for m in messages %}<eos>{{ {'x': m.content} }}{% endfor %}"
    tokenizer = tagged_tokenizer(shown)
    ids = ids_of(tokenizer, user("a<eos>"))
    assert controls(tokenizer, ids) == ["<eos>"]
    assert tokenizer.render_chat(user("a<eos>")) == "<eos>{'x': 'a<eos>'}"


def test_marks_are_characters_that_nothing_holds() -> None:
    everything = "".join(map(chr, range(0xE000, 0xF8F0)))
    assert Marks.absent_from(["\ue000 \\ue001"]) == Marks("\ue002", "\ue003", "\ue004")
    assert controls(TOKENIZER, ids_of(TOKENIZER, user(everything + "<eos>"))) == ["<bos>", "<eos>"]
    with pytest.raises(InvalidRequest, match="too many different private-use characters"):
        TOKENIZER.apply_chat_template(user("".join(map(chr, range(0xE000, 0xF900)))))


def test_marks_that_lost_their_partner_mean_nothing() -> None:
    marks, names = Marks("(", ")", "|"), any_of(["<x>", "<xy>"])
    taken = marks.take("a(<x>) ( <x>) (<x)> )<x>|(<xy>)", names)
    assert taken.text == "a<x>  <x> <x> <x><xy>"
    assert [taken.text[begin:end] for begin, end in taken.typed] == ["<x>", "<xy>"]
    assert taken.typed[0] == (1, 4)
    assert taken.cut == len("a<x>  <x> <x> <x>")


def test_a_tokenizer_that_puts_a_space_before_texts_puts_none_before_a_typed_token() -> None:
    core = Core(models.BPE(vocab={c: i for i, c in enumerate(["<unk>", "<s>", *"▁ab<s>"])}, merges=[]))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    template = "<s>{{ messages[0].content }}"
    fast = PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template)  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer(fast)
    ids = tokenizer.apply_chat_template(user("a<s>b"))
    pieces = [tokenizer.piece(i) for i in ids]
    assert pieces[:3] == ["<s>", "▁", "a"]
    assert pieces[3:6] == ["<", "s", ">"]


def test_a_tokenizer_that_finds_control_tokens_in_plain_text_is_given_their_halves() -> None:
    scores = [("<s>", 0.0), *((character, -5.0) for character in "<s>a\n")]
    core = Core(models.Unigram([*scores, ("<unk>", -9.0)], unk_id=len(scores)))
    core.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    template = "<s>{{ messages[0].content }}"
    fast = PreTrainedTokenizerFast(tokenizer_object=core, chat_template=template)  # type: ignore[no-untyped-call]
    tokenizer = Tokenizer(fast)
    assert tokenizer.encode("<s>", bos=False, special=False) == [0]
    ids = tokenizer.apply_chat_template(user("a<s>a"))
    assert [tokenizer.piece(i) for i in ids] == ["<s>", "a", "<", "s", ">", "a"]


# -- options -------------------------------------------------------------------------------------------


def test_tools_and_variables_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = TAGGED.render_chat(user("x"), tools=tools, template_kwargs={"mood": "glad"})
    assert text == '[{"type": "function", "function": {"name": "f"}}]\n<eos>user:x(glad)<eos>'


@pytest.mark.parametrize(
    "name", ["tools", "messages", "chat_template", "tokenize", "bos_token", "return_dict"]
)
def test_variables_that_are_set_otherwise_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs must not hold '{name}'"):
        TAGGED.render_chat(user("x"), template_kwargs={name: "y"})


@pytest.mark.parametrize("name", ["self", "conversations"])
def test_a_variable_that_the_library_needs_fails_the_request_only(name: str) -> None:
    with pytest.raises(InvalidRequest, match="the chat template failed"):
        TAGGED.render_chat(user("x"), template_kwargs={name: []})


def test_the_last_message_is_continued_where_its_content_ends() -> None:
    messages = [*user("hi"), {"role": "assistant", "content": "I think <eos> "}]
    ids = ids_of(TOKENIZER, messages, continue_final_message=True)
    assert TOKENIZER.decode(ids, False) == "<bos>[user] hi<eos>\n[assistant] I think <eos> "
    assert controls(TOKENIZER, ids) == ["<bos>", "<eos>"]
    assert messages[-1]["content"] == "I think <eos> "


def test_a_last_message_that_is_not_written_or_calls_tools_cannot_be_continued() -> None:
    silent = build_byte_tokenizer(chat_template="{{ messages[0].content }}")
    with pytest.raises(InvalidRequest, match="does not write the last message"):
        silent.render_chat([*user("a"), *user("b")], continue_final_message=True)
    call = {"function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(InvalidRequest, match="with tool_calls cannot be continued"):
        TAGGED.render_chat(
            [{"role": "assistant", "content": "", "tool_calls": [call]}], continue_final_message=True
        )


def test_a_model_may_have_a_template_for_tools() -> None:
    tokenizer = tagged_tokenizer({"default": "plain", "tool_use": "with tools"})
    assert (tokenizer.chat_template(), tokenizer.chat_template(tools=True)) == ("plain", "with tools")
    assert (tokenizer.render_chat(user("x")), tokenizer.render_chat(user("x"), tools=[{}])) == (
        "plain",
        "with tools",
    )
    only_tools = tagged_tokenizer({"tool_use": "with tools"})
    assert (only_tools.chat_template(), only_tools.chat_template(tools=True)) == (None, "with tools")
    assert build_byte_tokenizer(chat_template=None).chat_template() is None


# -- messages ------------------------------------------------------------------------------------------


def test_arguments_become_objects_where_they_are_objects() -> None:
    for arguments, shown in (('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a": 1}'), ("", "{}"), ("[1", '"[1"')):
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        text = TAGGED.render_chat([{"role": "assistant", "tool_calls": [call]}], False)
        assert text == f"<eos>assistant:<call>{shown}</call>"


def test_a_template_that_wants_arguments_as_text_gets_them_so() -> None:
    template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments + '!' }}{% endfor %}"
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a":"<eos>"}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    tokenizer = tagged_tokenizer(template)
    assert tokenizer.render_chat(messages) == '{"a": "<eos>"}!'
    assert controls(tokenizer, ids_of(tokenizer, messages)) == []


def test_fields_that_are_null_and_empty_lists_of_calls_are_not_there() -> None:
    template = "{{ messages[0].keys() | list }}"
    message = {"role": "assistant", "content": None, "tool_calls": [], "name": None, "audio": 1}
    assert tagged_tokenizer(template).render_chat([message]) == "['role', 'audio', 'content']"


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ({}, "messages[0].tool_calls must be a list, got {}"),
        (["x"], "messages[0].tool_calls[0] must be an object with a function, got 'x'"),
        ([{"function": {"name": 5}}], "messages[0].tool_calls[0].function.name must be text, got 5"),
        (
            [{"function": {"name": "f", "arguments": [1]}}],
            "messages[0].tool_calls[0].function.arguments must be JSON text, got [1]",
        ),
    ],
)
def test_malformed_calls_are_refused(calls: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        TAGGED.render_chat([{"role": "assistant", "content": "", "tool_calls": calls}])


def test_a_message_quotes_little_of_a_large_value() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 10_000}}
    with pytest.raises(InvalidRequest, match="a part that is not text") as failure:
        TAGGED.render_chat([{"role": "user", "content": [image]}])
    assert len(str(failure.value)) < 250


def test_nesting_without_end_is_refused() -> None:
    deep: Any = "<eos>"
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        TAGGED.apply_chat_template([{"role": "user", "content": "x", "extra": deep}])


def test_a_bos_is_written_by_the_template_and_by_nothing_else() -> None:
    assert TOKENIZER.apply_chat_template(user("<bos>")).count(BOS_ID) == 1
