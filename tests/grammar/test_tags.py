"""Structural tags: free text, triggers by bytes or by control token, and what must follow them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.llguidance_grammar import CompiledLlguidance
from radixlm.runtime.grammar.protocol import Unenforced
from radixlm.runtime.grammar.tags import tags_grammar
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_vocabulary import allowed, byte_vocabulary, control_id, spelled, takes

CITY: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
NUMBERS: dict[str, object] = {"type": "array", "items": {"type": "integer"}}
FUNCTIONS = [
    {"begin": "<function=weather>", "schema": CITY, "end": "</function>"},
    {"begin": "<function=sum>", "schema": NUMBERS, "end": "</function>"},
]


@dataclass(frozen=True)
class AsIs:
    schema: object
    unenforced: tuple[Unenforced, ...] = ()


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


def tagged(**parts: object) -> str:
    return json.dumps({"type": "structural_tag", **parts})


def compiled(backend: LlguidanceBackend, *, compact: bool = True, **parts: object) -> CompiledLlguidance:
    return backend.tags(tagged(**parts), compact, normalise=AsIs)


def json_schema(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema}


def const(value: str) -> dict[str, object]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: object, end: str) -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def test_text_is_free_and_calls_have_their_form(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    grammar = compiled(backend, structures=FUNCTIONS, triggers=["<function="])
    for text in (
        "",
        "No tool is needed, <function is a word.",
        '<function=weather>{"city":"Oslo"}</function>',
        'I look.\n<function=weather>{"city":"Oslo"}</function> and <function=sum>[1,2]</function>\nDone.',
    ):
        assert takes(grammar, vocabulary, text), text
    for text in (
        "<function=wether>",
        '<function=weather>{"town":"Oslo"}</function>',
        "<function=sum>[1,2]",
        "<function=sum>[1,2] </function>",
        "<function=",
    ):
        assert not takes(grammar, vocabulary, text), text


def test_behind_a_trigger_the_names_of_tools_are_all_that_can_be_written(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    grammar = compiled(backend, structures=FUNCTIONS, triggers=["<function="]).start()
    assert grammar.accept(vocabulary.encode("so <function=")) > 0
    assert allowed(grammar, vocabulary) == {ord("w"), ord("s")}
    assert grammar.accept([ord("w")]) == 1
    assert allowed(grammar, vocabulary) == {ord("e")}
    grammar.rollback(2)
    assert ord("x") in allowed(grammar, vocabulary)


def test_a_trigger_that_is_a_control_token_is_met_by_its_id(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    structures = [{"begin": '<call>{"name":"sum","in":', "schema": NUMBERS, "end": "}</call>"}]
    grammar = compiled(backend, structures=structures, triggers=["<call>"])
    assert takes(grammar, vocabulary, 'Well: <call>{"name":"sum","in":[1]}</call> that is it')
    assert not takes(grammar, vocabulary, 'Well: <call>{"name":"min"')
    written_out = grammar.start()
    assert written_out.accept(vocabulary.encode("<call> is a word")) == len(
        vocabulary.encode("<call> is a word")
    )
    assert written_out.accepting
    started = grammar.start()
    call = control_id(vocabulary, "<call>")
    assert allowed(started, vocabulary) & vocabulary.special_ids == {call, *vocabulary.eos_ids}
    assert started.accept([call]) == 1
    assert allowed(started, vocabulary) <= {vocabulary.tokens.index(b'{"'), ord("{")}


def test_a_longer_trigger_under_a_control_token_is_met_by_the_token(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    structures = [
        {"begin": "<call>a", "schema": NUMBERS, "end": "</call>"},
        {"begin": "<call>b", "schema": CITY, "end": "</call>"},
    ]
    grammar = compiled(backend, structures=structures, triggers=["<call>a", "<call>b"])
    assert takes(grammar, vocabulary, 'x<call>a[1]</call><call>b{"city":""}</call>')
    assert not takes(grammar, vocabulary, "<call>c")


def test_the_shorter_of_two_triggers_is_the_one_that_is_met(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    grammar = compiled(backend, structures=FUNCTIONS, triggers=["<function=", "<func"])
    assert takes(grammar, vocabulary, "<function=sum>[]</function>")
    assert not takes(grammar, vocabulary, "<function=w>")
    assert not takes(grammar, vocabulary, "<funcs>")


def test_calls_can_be_asked_for_and_be_the_last(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    call = "<function=sum>[1]</function>"
    parts: dict[str, Any] = {"structures": FUNCTIONS, "triggers": ["<function="]}
    asked = compiled(backend, **parts, at_least_one=True)
    assert not takes(asked, vocabulary, "no call")
    assert takes(asked, vocabulary, f"now {call} more {call} end")
    last = compiled(backend, **parts, stop_after_first=True)
    assert takes(last, vocabulary, "no call")
    assert takes(last, vocabulary, f"now {call}")
    assert not takes(last, vocabulary, f"now {call} more")
    both = compiled(backend, **parts, at_least_one=True, stop_after_first=True)
    assert not takes(both, vocabulary, "no call")
    grammar = both.start()
    assert grammar.accept(vocabulary.encode(f"now {call}")) > 0
    assert grammar.terminated


def test_whitespace_in_calls_is_as_asked(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    parts: dict[str, Any] = {"structures": FUNCTIONS, "triggers": ["<function="]}
    text = "<function=sum>[1, 2]</function>"
    assert takes(compiled(backend, compact=False, **parts), vocabulary, text)
    assert not takes(compiled(backend, compact=True, **parts), vocabulary, text)


@pytest.mark.parametrize(
    ("form", "whole", "not_whole"),
    [
        (const("yes"), ["yes"], ["ye", "yes!"]),
        (json_schema(NUMBERS), ["[1]"], ["{}"]),
        ({"type": "any_text"}, ["", "a\nb", "{"], []),
        (
            {"type": "sequence", "elements": [const("a"), json_schema(NUMBERS), {"type": "any_text"}]},
            ["a[1] and so on", "a[]"],
            ["[1]", "a"],
        ),
        (
            {"type": "or", "elements": [const("no"), tag("<x>", json_schema(NUMBERS), "</x>")]},
            ["no", "<x>[]</x>"],
            ["nox", "<x>{}</x>"],
        ),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, const("!"), json_schema(NUMBERS)]},
            ["hm![1]", "![1]"],
            ["hm", "hm!", "hm!x"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    tag("<think>", {"type": "any_text"}, "</t>"),
                    {
                        "type": "triggered_tags",
                        "triggers": ["<f"],
                        "tags": [{"begin": "<f>", "content": json_schema(CITY), "end": "</f>"}],
                    },
                ],
            },
            ["<think>hm <f></t>so", '<think></t>so <f>{"city":"a"}</f>.'],
            ["so", "<think>hm", "<think>hm</t><f>[]</f>"],
        ),
        (
            {
                "type": "sequence",
                "elements": [
                    {
                        "type": "triggered_tags",
                        "triggers": ["<f"],
                        "tags": [tag("<f>", json_schema(NUMBERS), "</f>")],
                        "at_least_one": True,
                    },
                    tag("<end!>", const("ok"), ""),
                ],
            },
            ["a<f>[]</f>b<end!>ok"],
            ["a<f>[]</f>b", "a<end!>ok", "a<f>[]</f>b<end!>ok!"],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [tag("<a>", json_schema(NUMBERS), "</a>"), tag("<b>", const("x"), "")],
                "separator": "\n",
            },
            ["", "<a>[]</a>", "<a>[]</a>\n<b>x\n<b>x"],
            ["<a>[]</a>\n", "<a>[]</a><b>x", "text"],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [tag("<call>", json_schema(NUMBERS), "</call>")],
                "separator": ",",
                "at_least_one": True,
                "stop_after_first": True,
            },
            ["<call>[]</call>"],
            ["", "<call>[]</call>,<call>[]</call>"],
        ),
        (tag("<call>", {"type": "any_text"}, "</call>"), ["<call>a </ b</call>"], ["<call>", "<call>a"]),
    ],
)
def test_formats_are_translated(
    backend: LlguidanceBackend,
    vocabulary: GrammarVocabulary,
    form: dict[str, object],
    whole: list[str],
    not_whole: list[str],
) -> None:
    """Report of vLLM: this library could not take the newer envelope."""
    grammar = compiled(backend, format=form)
    for text in whole:
        assert takes(grammar, vocabulary, text), text
    for text in not_whole:
        assert not takes(grammar, vocabulary, text), text


ANY = {"type": "any_text"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<"], "tags": [tag("<a>", const("x"), "")]}


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"type": "tags"}, '"type" must be "structural_tag"'),
        ({"structures": FUNCTIONS}, "/triggers must be a list"),
        ({"structures": [], "triggers": ["<"]}, "/structures must be a list"),
        ({"structures": FUNCTIONS, "triggers": ["<tool"]}, "/structures/0/begin starts with none"),
        ({"structures": FUNCTIONS, "triggers": ["<f", "<tool"]}, "/triggers: no tag begins with '<tool'"),
        ({"structures": FUNCTIONS, "triggers": [""]}, "/triggers must hold texts"),
        ({"structures": FUNCTIONS, "triggers": ["<"], "at_least_one": 1}, "/at_least_one must be true or"),
        ({"structures": FUNCTIONS, "triggers": ["<"], "other": 1}, "has no 'other'"),
        ({"structures": [{"begin": "<a", "end": 1}], "triggers": ["<"]}, "/structures/0/end must be a text"),
        ({"structures": [{"begin": "<", "schema": 1, "end": ""}], "triggers": ["<"]}, "needs a JSON Schema"),
        ({"structures": [{"begin": "<", "schema": False, "end": ""}], "triggers": ["<"]}, "allows no value"),
        ({"structures": [{"begin": "x<call>", "end": ""}], "triggers": ["x<call>"]}, "before a control"),
        ({"format": 1}, "/format must be an object"),
        ({"format": {"type": "regex", "pattern": "a"}}, "/format/type must be one of any_text, const_string"),
        ({"format": {"type": "any_text", "excludes": ["a"]}}, "/format has no 'excludes'"),
        ({"format": {"type": "or", "elements": [const("a"), ANY]}}, "/elements/1: any_text cannot be one of"),
        ({"format": {"type": "sequence", "elements": [ANY, ANY]}}, "/elements/0: the end of free text must"),
        ({"format": tag("<a>", ANY, "")}, "/format/content: the end of free text must be known"),
        ({"format": {"type": "sequence", "elements": [{**TRIGGERED, "stop_after_first": True}, const("a")]}},
         "stop_after_first needs at_least_one"),
        ({"format": {**TRIGGERED, "tags": [{"type": "other"}]}}, '/format/tags/0/type must be "tag"'),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_with_its_part(
    backend: LlguidanceBackend, parts: dict[str, object], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"structural_tag.*{reason}"):
        backend.tags(json.dumps({"type": "structural_tag", **parts}), True, normalise=AsIs)


def test_what_schemas_lose_is_reported_where_it_stands(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    def lossy(schema: object) -> AsIs:
        return AsIs(True, (Unenforced("uniqueItems", "/properties/a", "no room"),) if schema == CITY else ())

    text = tagged(structures=FUNCTIONS, triggers=["<function="])
    _, unenforced = tags_grammar(text, vocabulary, lossy, True)
    assert unenforced == (Unenforced("uniqueItems", "/structures/0/schema/properties/a", "no room"),)
    with pytest.raises(InvalidRequest, match="'uniqueItems' at /structures/0/schema/properties/a"):
        backend.tags(text, True, normalise=lossy)


def test_a_schema_that_may_be_relaxed_loses_what_masks_do_not_reach(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    def lossy(schema: object) -> AsIs:
        return AsIs(CITY, (Unenforced("uniqueItems", "", "no room"),))

    schema = {**json_schema(NUMBERS), "relaxed": True}
    _, unenforced = tags_grammar(tagged(format=schema), vocabulary, lossy, True)
    assert unenforced == ()
    grammar = backend.tags(tagged(format=schema), True, normalise=lossy)
    assert takes(grammar, vocabulary, '{"city":"Oslo"}')


def test_a_text_is_a_form_or_does_not_begin_like_one(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    call = tag('{"name": "f", "in": ', json_schema(NUMBERS), "}")
    other = {"type": "any_text", "not_beginning": ['{"name": "', "é/\n"]}
    grammar = compiled(backend, format={"type": "or", "elements": [call, other]})
    for text in ("", "hello", '{"na', '{"names": 1}', '{"name": "f", "in": [1]}', 'so {"name": "x', "é/ "):
        assert takes(grammar, vocabulary, text), text
    for text in (
        '{"name": "',
        '{"name": "g"',
        ' \n{"name": "f", "in": [1]}',
        '{"name": "f", "in": []} ',
        "é/\n",
    ):
        assert not takes(grammar, vocabulary, text), text
    begun = grammar.start()
    assert begun.accept(spelled(vocabulary, '{"name": "')) == len(spelled(vocabulary, '{"name": "'))
    assert allowed(begun, vocabulary) == {ord("f")}


def test_text_that_begins_with_none_of_some_ends_the_answer(backend: LlguidanceBackend) -> None:
    other = {"type": "any_text", "not_beginning": ["x"]}
    with pytest.raises(InvalidRequest, match="text behind any_text with not_beginning is not supported"):
        compiled(backend, format={"type": "sequence", "elements": [other, const("a")]})
    for wrong in ([], [""], [5], "x"):
        with pytest.raises(InvalidRequest, match="not_beginning must"):
            compiled(backend, format={**other, "not_beginning": wrong})


def test_a_refused_schema_is_named(backend: LlguidanceBackend) -> None:
    def refuse(schema: object) -> AsIs:
        raise InvalidRequest("it is none")

    with pytest.raises(InvalidRequest, match="/structures/0/schema: it is none"):
        backend.tags(tagged(structures=FUNCTIONS, triggers=["<function="]), True, normalise=refuse)


def test_every_token_of_a_call_is_in_the_mask(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    structures = [{"begin": "<call>", "schema": CITY, "end": "</call>"}]
    grammar = compiled(backend, structures=structures, triggers=["<call>"]).start()
    for token_id in spelled(vocabulary, 'go <call>{"city":"the a"}</call> ok'):
        assert token_id in allowed(grammar, vocabulary)
        assert grammar.accept([token_id]) == 1
    assert grammar.accepting


def test_a_token_that_ends_the_text_is_no_part_of_a_tag(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    end = vocabulary.special_tokens[vocabulary.eos_ids[0]]
    with pytest.raises(InvalidRequest, match="no token that ends the text"):
        compiled(backend, structures=[tag_of("<call>", end)], triggers=["<call>"])


def tag_of(begin: str, end: str) -> dict[str, object]:
    return {"begin": begin, "schema": CITY, "end": end}
