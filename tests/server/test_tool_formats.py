"""Forms of tool calls: what is read of an answer, however it is cut, what a grammar holds it to, and
detection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.server.tool_formats.detection import TOOL_PARSERS, format_of
from radixlm.runtime.server.tool_formats.hermes import Hermes
from radixlm.runtime.server.tool_formats.llama3_json import Llama3Json
from radixlm.runtime.server.tool_formats.mistral import Mistral
from radixlm.runtime.server.tool_formats.protocol import (
    CallArguments,
    CallBegin,
    Json,
    Text,
    Tool,
    ToolFormat,
)
from radixlm.runtime.server.tool_formats.pythonic import Pythonic
from testkit.byte_tokenizer import build_byte_tokenizer
from testkit.byte_vocabulary import byte_vocabulary, takes

Read = tuple[str, list[tuple[str, str]]]
FORMATS: tuple[ToolFormat, ...] = (Hermes(), Llama3Json(), Mistral(), Mistral(spaced=True), Pythonic())
BY_NAME = attrgetter("name")
NAMES = ("weather", "get_time")
CITY = '{"city": "Oslo", "near": ["}]", "\\"{"]}'
CITY_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {CITY}}}\n</tool_call>'
TIME_CALL = '<tool_call>{"name":"get_time","arguments":{}}</tool_call>'


def read(form: ToolFormat, pieces: Iterable[str], *, live: bool) -> Read:
    """The text, and the calls with their arguments; each call is told before its arguments."""
    parser = form.parser(NAMES, live=live)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    text, calls = "", list[tuple[str, str]]()
    for part in parts:
        if isinstance(part, Text):
            assert part.text, "nothing is not told"
            text += part.text
        elif isinstance(part, CallBegin):
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return text, calls


def read_in_every_way(form: ToolFormat, text: str, *, live: bool = False) -> Read:
    """Whole, cut in two anywhere, character by character: always the same."""
    whole = read(form, [text], live=live)
    assert read(form, text, live=live) == whole
    for at in range(1, len(text)):
        assert read(form, [text[:at], text[at:]], live=live) == whole
    return whole


# -- calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("form", FORMATS, ids=BY_NAME)
def test_what_a_format_writes_it_reads(form: ToolFormat, live: bool) -> None:
    calls = [("weather", CITY), ("get_time", "{}")]
    for some in (calls[:1], calls[1:], calls):
        assert read_in_every_way(form, form.write(some), live=live) == ("", some)


@pytest.mark.parametrize("form", FORMATS, ids=BY_NAME)
def test_arguments_that_a_client_sent_back_broken_are_written_as_they_are(form: ToolFormat) -> None:
    assert '{"city": ' in form.write([("weather", '{"city": ')])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (Hermes(), f"I look.\n{CITY_CALL}\n{TIME_CALL}\n", ("I look.", 2)),
        (Hermes(), f" {CITY_CALL} then {TIME_CALL} done\n", (" then done", 2)),
        (
            Llama3Json(),
            f'\n{{"name": "weather", "arguments": {CITY}}} ;{{"name":"get_time","parameters":{{}}}} ',
            ("", 2),
        ),
        (Llama3Json(), '{"name": "get_time", "parameters": {}} There.', (" There.", 1)),
        (Llama3Json(), '{"name": "get_time", "parameters": {}}; {"x": 1}', ('; {"x": 1}', 1)),
        (Mistral(), 'Well [TOOL_CALLS] [ {"name": "get_time", "arguments": {}} ] so', ("Well so", 1)),
        (Mistral(), '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {}]', (", {}]", 1)),
    ],
)
def test_text_around_calls_is_kept_and_blanks_are_not(
    form: ToolFormat, text: str, expected: tuple[str, int], live: bool
) -> None:
    found, calls = read_in_every_way(form, text, live=live)
    assert (found, len(calls)) == expected


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("form", FORMATS, ids=BY_NAME)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Hello there.\n\n",
        "<tool_call",
        "a <tool_call> b <tool_call>",
        "<tool_call>\n{",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "Oslo"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '{"name": "other", "parameters": {}}',
        '{"name": "weather"}',
        'see {"name": "weather", "parameters": {}}',
        '{"names": 1}',
        "[TOOL_CALLS]",
        "[TOOL_CALLS] weather",
        '[TOOL_CALLS][{"name": "other", "arguments": {}}]',
        "[1, 2]",
        "[weather",
        "[weather('Oslo')]",
        "[weather(**x)]",
        "[weather(city=city)]",
        "[weather(city=b'x')]",
        "[weather(city=1e999)]",
        "[weather({1: 2})]",
        "[other(city=1)]",
        "[weather(city=1), 5]",
        "[weather(city=1)",
        "[weather(city=1)}",
        f"[weather(city={'[' * 300}",
    ],
)
def test_what_is_no_call_stays_text(form: ToolFormat, text: str, live: bool) -> None:
    assert read_in_every_way(form, text, live=live) == (text, [])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Hermes(), '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call> z'),
        (Hermes(), '<tool_call>{"name": "weather", "arguments": {}, "more": 1}</tool_call>'),
        (Hermes(), '<tool_call>{"name": "weather", "arguments": {"a": {]}}}</tool_call>'),
        (Llama3Json(), '{"name": "weather", "parameters": {"a" 1}}'),
        (Llama3Json(), '{"name": "weather", "parameters": {}, "more": 1}'),
        (Mistral(), '[TOOL_CALLS][{"name": "weather", "arguments": {x}}]'),
    ],
)
def test_a_malformed_call_stays_text(form: ToolFormat, text: str) -> None:
    assert read_in_every_way(form, text) == (text, [])


def test_a_right_call_stands_whatever_follows() -> None:
    found = read_in_every_way(Hermes(), f'{TIME_CALL}<tool_call>{{"name": "weather", "arguments": {{x}}}}')
    assert found == ('<tool_call>{"name": "weather", "arguments": {x}}', [("get_time", "{}")])


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("form", FORMATS[:4], ids=BY_NAME)
def test_a_call_that_is_cut_off_keeps_what_there_is_of_its_arguments(form: ToolFormat, live: bool) -> None:
    text = form.write([("weather", CITY)])
    begin = text.index(CITY)
    for end in range(begin + 1, len(text)):
        expected = CITY[: min(len(CITY), end - begin)]
        assert read(form, text[:end], live=live) == ("", [("weather", expected)])
    assert read(form, text[:begin], live=live) == (text[:begin], [])


def test_arguments_are_told_as_they_come_where_a_grammar_holds_them() -> None:
    held, free = (Hermes().parser(NAMES, live=live) for live in (True, False))
    begun = '<tool_call>\n{"name": "weather", "arguments": {"ci'
    assert held.push(begun) == [CallBegin("weather"), CallArguments('{"ci')]
    assert held.push('ty": 1') == [CallArguments('ty": 1')]
    assert free.push(begun) == free.push('ty": 1') == []
    assert free.push("}}\n</tool_call>") == [
        CallBegin("weather"),
        CallArguments('{"ci'),
        CallArguments('ty": 1'),
        CallArguments("}"),
    ]


def test_text_is_told_as_soon_as_it_is_sure() -> None:
    parser = Hermes().parser(NAMES, live=True)
    assert parser.push("Hello ") == [Text("Hello")]
    assert parser.push("you <tool") == [Text(" you")]
    assert parser.push("s") == [Text(" <tools")]


@given(
    st.lists(st.sampled_from([CITY_CALL, TIME_CALL, "<tool_call>", "</tool_call>", " ", "x", '{"name": "']))
)
def test_no_text_is_lost_but_blanks_and_calls(pieces: list[str]) -> None:
    text = "".join(pieces)
    found, calls = read(Hermes(), text, live=False)
    assert read(Hermes(), [text], live=False) == (found, calls)
    rest = text.replace(CITY_CALL, "").replace(TIME_CALL, "")
    assert found.replace(" ", "") == rest.replace(" ", "")
    assert len(calls) == text.count(CITY_CALL) + text.count(TIME_CALL)


def test_values_of_python_become_those_of_json() -> None:
    text = "[weather(a='x\\'y', b=[1, -2.5, (3,)], c={'k': None, 'l': true}, d=False), get_time()]"
    found = '{"a": "x\'y", "b": [1, -2.5, [3]], "c": {"k": null, "l": true}, "d": false}'
    assert read_in_every_way(Pythonic(), text) == ("", [("weather", found), ("get_time", "{}")])


def test_a_text_that_json_cannot_hold_stays_text() -> None:
    for text in ('[weather(city="\\ud800")]', '[weather(city={"\\ud800": 1})]'):
        assert read_in_every_way(Pythonic(), text) == (text, [])


def test_a_list_of_calls_without_end_is_given_up() -> None:
    parser = Pythonic().parser(NAMES, live=False)
    assert parser.push("[weather(city='" + "x" * 90_000) == []
    assert [len(part.text) for part in parser.push("x" * 20_000) if isinstance(part, Text)] == [110_015]


def test_ids_differ_and_are_of_a_form_that_templates_take() -> None:
    for form in FORMATS:
        ids = {form.new_id() for _ in range(50)}
        assert len(ids) == 50
        short = form.name == "mistral"
        assert all(len(one) == 9 and one.isalnum() if short else one.startswith("call_") for one in ids)


# -- grammars --------------------------------------------------------------------------------------------

WEATHER = Tool(
    "weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
)
TIME = Tool("get_time", {"type": "object", "properties": {}, "additionalProperties": False})
OSLO, ROME = ("weather", '{"city": "Oslo"}'), ("weather", '{"city": "Rome"}')
NO_TIME = ("get_time", "{}")


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


@pytest.fixture
def allows(backend: LlguidanceBackend, vocabulary: GrammarVocabulary):  # type: ignore[no-untyped-def]
    def ask(form: Json | None, texts: Sequence[str]) -> list[bool]:
        compiled = backend.tags(json.dumps({"type": "structural_tag", "format": form}), False)
        return [takes(compiled, vocabulary, text) for text in texts]

    return ask


@pytest.mark.parametrize("form", FORMATS[:4], ids=BY_NAME)
def test_a_forced_answer_is_calls_of_the_tools_and_nothing_else(form: ToolFormat, allows) -> None:  # type: ignore[no-untyped-def]
    write = form.write
    right = [write([OSLO]), write([NO_TIME])]
    wrong = ["", "Hello", write([("weather", "{}")]), write([("other", "{}")]), f"Well {right[0]}"]
    several = write([OSLO, NO_TIME, ROME])
    assert allows(form.forced([WEATHER, TIME], True), [*right, several]) == [True] * 3
    assert allows(form.forced([WEATHER, TIME], False), [*right, several]) == [True, True, False]
    assert allows(form.forced([WEATHER, TIME], True), wrong) == [False] * len(wrong)
    assert allows(form.forced([WEATHER], True), right) == [True, False]


@pytest.mark.parametrize("form", FORMATS[:4], ids=BY_NAME)
def test_an_offered_call_is_right_or_not_begun(form: ToolFormat, allows) -> None:  # type: ignore[no-untyped-def]
    write = form.write
    right = ["", "Hello.", ' {"nam', "<tool", write([OSLO]), write([OSLO, NO_TIME])]
    wrong = [write([("weather", '{"town": "Oslo"}')]), write([("other", "{}")])]
    offered = form.offered([WEATHER, TIME], True)
    assert allows(offered, right) == [True] * len(right)
    assert allows(offered, wrong) == [False] * len(wrong)
    assert allows(form.offered([WEATHER, TIME], False), right) == [True] * 5 + [False]


def test_an_answer_may_hold_what_would_be_a_call_at_its_start(allows) -> None:  # type: ignore[no-untyped-def]
    offered = Llama3Json().offered([WEATHER], True)
    assert allows(offered, ['So: {"name": "Bob"}', '\n{"name": "Bob"}']) == [True, False]


def test_text_before_marked_calls_is_free_and_behind_them_where_others_may_follow(allows) -> None:  # type: ignore[no-untyped-def]
    for form, is_free_behind in ((Hermes(), True), (Mistral(), False)):
        texts = [f"I look. {form.write([OSLO])}", f"{form.write([OSLO])} So it is."]
        assert allows(form.offered([WEATHER], True), texts) == [True, is_free_behind]


def test_a_tool_that_is_not_strict_is_held_as_far_as_masks_reach(allows) -> None:  # type: ignore[no-untyped-def]
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
    }
    texts = [Hermes().write([("f", arguments)]) for arguments in ('{"a": ["x", "x"]}', '{"a": 5}')]
    assert allows(Hermes().forced([Tool("f", schema)], True), texts) == [True, False]
    with pytest.raises(Exception, match="'uniqueItems' at /format/tags/0/content"):
        allows(Hermes().forced([Tool("f", schema, strict=True)], True), texts)


# -- detection -------------------------------------------------------------------------------------------


SHOWN = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"


def by_template(template: str | None, setting: str = "auto") -> ToolFormat | None:
    return format_of(setting, build_byte_tokenizer(chat_template=template))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, Hermes),
        ("{{ messages }}", Hermes),
        ("{{ messages }}<tools></tools> [TOOL_CALLS] of {{ other_tools }}", Hermes),
        (f"{SHOWN}<tool_call>{{'name': 1, 'arguments': 2}}</tool_call>", Hermes),
        (f"{SHOWN}<tool_call><function=f>", None),
        (f"{SHOWN}<tool_call>f<arg_key>", None),
        (f"{SHOWN} something of its own", None),
        (f'{SHOWN}{{"name": function name, "parameters": dictionary of argument name}}', Llama3Json),
        (f"{SHOWN}[func_name1(params_name1=params_value1)]", Pythonic),
        (f"{SHOWN}<|tool_call_start|>[f()]<|tool_call_end|>", Pythonic),
        (f"{SHOWN}[TOOL_CALLS][", Mistral),
        ("{{ raise_exception('no') }}{{ tools }}<tool_call>", Hermes),
    ],
)
def test_the_template_shows_how_calls_are_written(template: str | None, expected: type | None) -> None:
    found = by_template(template)
    assert found is None if expected is None else isinstance(found, expected)


def test_a_blank_behind_the_marker_is_taken_from_the_template() -> None:
    for marker in ("[TOOL_CALLS] [", "[TOOL_CALLS]["):
        found = by_template(SHOWN + marker)
        assert found is not None
        assert found.write([NO_TIME]).startswith(f"{marker}{{")


@pytest.mark.parametrize("name", TOOL_PARSERS[1:])
def test_a_format_that_is_set_wins_over_the_template(name: str) -> None:
    found = by_template(f"{SHOWN}<tool_call>", name)
    assert found is not None
    assert found.name == name
    assert ServerSettings(tool_parser=name).tool_parser == name


def test_a_parser_that_does_not_exist_is_refused_when_the_server_starts() -> None:
    with pytest.raises(InvalidConfig, match=r"tool_parser must be one of auto, hermes, .*, got 'herms'"):
        ServerSettings(tool_parser="herms")
    with pytest.raises(InvalidConfig, match="reasoning_parser must be one of auto, none, think, got 'x'"):
        ServerSettings(reasoning_parser="x")
