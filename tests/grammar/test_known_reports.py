"""Faults that users of such engines have reported, each as a test of ours.

Schemas take the way of a request: normalised, then compiled. The reports on tokenizers, markers and tags are
in the tests of those modules.
"""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.llguidance_grammar import CompiledLlguidance
from radixlm.runtime.grammar.schema_normalise import normalise
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_vocabulary import allowed, byte_vocabulary, takes

VOCABULARY = byte_vocabulary()
BACKEND = LlguidanceBackend(VOCABULARY)


def exact(schema: object, *, compact: bool = False) -> CompiledLlguidance:
    normalised = normalise(schema)
    assert not normalised.unenforced
    return BACKEND.json(normalised.schema, compact=compact)


def accepts(schema: object, text: str, *, compact: bool = False) -> bool:
    return takes(exact(schema, compact=compact), VOCABULARY, text)


def walk(compiled: CompiledLlguidance, seed: int, most: int = 400) -> str | None:
    """A text written by chance, None if it does not end in time; quotes and brackets are liked, so that it
    does. Each token of each mask must be taken."""
    grammar, draw, text = compiled.start(), random.Random(seed), b""
    for _ in range(most):
        ids = sorted(allowed(grammar, VOCABULARY) - set(VOCABULARY.eos_ids))
        assert grammar.error is None
        assert ids or grammar.accepting, "there is always a way on"
        if not ids or (grammar.accepting and draw.random() < 0.3):
            return text.decode(errors="replace")
        closing = [i for i in ids if VOCABULARY.tokens[i] in (b'"', b"}", b"]")]
        token_id = draw.choice(closing if closing and draw.random() < 0.4 else ids)
        assert grammar.accept([token_id]) == 1
        text += VOCABULARY.tokens[token_id]
    return None


# -- llguidance ----------------------------------------------------------------------------------------


def test_whitespace_is_bounded() -> None:
    """llguidance 240 and 247; outlines 691: endless whitespace until the limit of tokens."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert accepts(schema, '{"a":    1}')
    assert not accepts(schema, '{"a":     1}')
    assert accepts(schema, '{ "a" : 1 }')
    assert accepts(schema, json.dumps({"a": 1, "b": {"c": [1, 2]}}, indent=4))
    assert not accepts(schema, '{\n\n"a":1}')
    assert not accepts(schema, "{\n" + " " * 25 + '"a":1}')
    assert not accepts(schema, " {}")
    assert not accepts(schema, '{"a":1}\n')


def test_compact_values_have_no_whitespace() -> None:
    assert accepts({}, '{"a":[1,2]}', compact=True)
    for text in ('{"a": 1}', "[1, 2]", "[ ]", '{"a":1,\n"b":2}'):
        assert not accepts({}, text, compact=True)


def test_blanks_never_go_on_for_ever() -> None:
    """llguidance 267: only line breaks, once forced tokens were on."""
    grammar = exact({"type": "array", "items": {"type": "integer"}, "minItems": 1}).start()
    assert grammar.accept([ord("[")]) == 1
    for _ in range(40):
        blanks = [i for i in allowed(grammar, VOCABULARY) if VOCABULARY.tokens[i].isspace()]
        if not blanks:
            break
        assert grammar.accept([max(blanks, key=lambda i: len(VOCABULARY.tokens[i]))]) == 1
    else:
        pytest.fail("whitespace has an end")
    assert ord("1") in allowed(grammar, VOCABULARY)


def test_patterns_that_overlap_a_declared_key_do_not_lead_into_a_corner() -> None:
    """llguidance 265."""
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "integer"}},
        "patternProperties": {"^a": {"minimum": 3}},
        "additionalProperties": False,
    }
    try:
        compiled = exact(schema, compact=True)
    except (InvalidRequest, AssertionError):
        return
    assert takes(compiled, VOCABULARY, '{"ab":4}')
    assert not takes(compiled, VOCABULARY, '{"ab":2}')
    texts = [walk(compiled, seed) for seed in range(10)]
    assert any(texts)


def test_an_end_that_the_model_likes_best_at_once_is_masked() -> None:
    """mistral.rs 2204: the end as the first choice of the first step raised."""
    grammar = exact({"type": "object"}).start()
    assert not allowed(grammar, VOCABULARY) & set(VOCABULARY.eos_ids)
    assert grammar.accept(list(VOCABULARY.eos_ids)) == 0
    assert grammar.accept(VOCABULARY.encode("{}")) > 0
    assert grammar.error is None


# -- other engines and servers -------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(a", "a{2,1}", r"\p{Nothing}"])
def test_what_is_born_in_error_is_refused_when_it_is_compiled(pattern: str) -> None:
    """SGLang 18618: the request came back with an empty text."""
    with pytest.raises(InvalidRequest):
        BACKEND.regex(pattern)


def test_every_token_that_ends_a_text_ends_it() -> None:
    """SGLang 31533: the grammar knew another end than the model, and never ended."""
    assert len(VOCABULARY.eos_ids) == 2
    for end in VOCABULARY.eos_ids:
        grammar = exact({"const": 1}).start()
        assert grammar.accept([ord("1")]) == 1
        assert end in allowed(grammar, VOCABULARY)
        assert grammar.accept([end]) == 1
        assert grammar.terminated


def test_masks_behind_the_end_allow_the_end() -> None:
    """SGLang 14464, vLLM 52805: asking for one crashed."""
    grammar = exact({"const": 1}).start()
    assert grammar.accept([ord("1"), VOCABULARY.eos_ids[0], VOCABULARY.eos_ids[1]]) == 3
    for _ in range(3):
        assert allowed(grammar, VOCABULARY) == set(VOCABULARY.eos_ids)
    assert grammar.forced_tokens() == []
    grammar.rollback(3)
    assert allowed(grammar, VOCABULARY) == {ord("1")}


def test_the_same_walk_has_the_same_masks_whatever_was_asked_before() -> None:
    """xgrammar 731: masks made on demand once refused what eager ones allowed."""
    schema = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
    ids = VOCABULARY.encode('{"a": "x\\n", "b": -1.5e3}')
    warm, cold = exact(schema).start(), exact(schema)
    masks = []
    for token_id in ids:
        masks.append(allowed(warm, VOCABULARY))
        assert warm.accept([token_id]) == 1
    for place in reversed(range(len(ids))):
        grammar = cold.start()
        assert grammar.accept(ids[:place]) == place
        assert allowed(grammar, VOCABULARY) == masks[place]


def test_a_type_without_a_shape_is_that_type_and_no_less() -> None:
    """xgrammar 104 and 833: the empty container alone, or `required` without effect."""
    assert accepts({"type": "object"}, '{"a": {"b": []}}')
    assert accepts({"type": "array"}, '[1, "a", {}]')
    required = {"type": "object", "required": ["a"]}
    assert accepts(required, '{"a": 1}')
    assert not accepts(required, "{}")


def test_pattern_and_length_hold_together() -> None:
    """xgrammar 749 and 895, SGLang 37707: one of the two was kept."""
    schema = {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 3}
    for text in ("ab", "abc"):
        assert accepts(schema, f'"{text}"')
    for text in ("a", "abca", "xy", ""):
        assert not accepts(schema, f'"{text}"')


def test_a_declared_key_out_of_order_never_needs_an_escaped_quote() -> None:
    """xgrammar 831."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "integer"}}}
    compiled = exact(schema, compact=True)
    for seed in range(30):
        text = walk(compiled, seed)
        if text is not None:
            json.loads(text, strict=False)


def test_an_optional_declared_key_keeps_its_type() -> None:
    """xgrammar 208: it slipped through additionalProperties with another."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    assert not accepts(schema, '{"a": "x"}')
    assert not accepts(schema, '{"b": "x", "a": "x"}')
    assert not accepts(schema, '{"\\u0061": "x"}')
    assert accepts(schema, '{"a": 1, "b": "x", "c": null}')


def test_recursion_goes_on_and_ends() -> None:
    """xgrammar 207: it crashed."""
    schema = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    depth = 60
    text = '{"value":1,"next":' * depth + "null" + "}" * depth
    assert accepts(schema, text, compact=True)
    assert not accepts(schema, text[:-1], compact=True)
    assert not accepts(schema, text.replace("null", "1"), compact=True)


def test_items_behind_the_last_position_are_ruled_too() -> None:
    """xgrammar 840: additionalItems without effect."""
    old = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}],
        "additionalItems": {"type": "string"},
    }
    new = {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}
    for schema in (old, new):
        assert accepts(schema, '[1, "a"]')
        assert not accepts(schema, "[1, 2]")
        assert not accepts(schema, '["a"]')


# -- the small cases that engines get wrong ------------------------------------------------------------


@pytest.mark.parametrize("schema", [{}, True])
def test_the_empty_schema_takes_any_value_and_nothing_else(schema: object) -> None:
    for text in ("1", "-0.5e+3", '"x"', "null", "true", "[]", '{"a": [1, null]}', '"日本 \\n"'):
        assert accepts(schema, text)
    for text in ("", "x", "01", "1.", "'a'", "[1,]", "{a: 1}", '"\n"', "NaN"):
        assert not accepts(schema, text)


def test_a_schema_without_a_value_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        exact(False)


@pytest.mark.parametrize(
    ("schema", "whole", "not_whole"),
    [
        ({"type": "integer", "minimum": 0}, ["0", "12"], ["-1"]),
        ({"type": "integer", "minimum": -3, "maximum": 12}, ["-3", "0", "12"], ["-4", "13", "120"]),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 8}, ["6", "7"], ["5", "8"]),
        ({"type": "number", "minimum": 0.1, "maximum": 0.3}, ["0.1", "0.25", "0.3"], ["0.05", "0.31", "1"]),
        ({"type": "integer", "multipleOf": 3}, ["0", "12"], ["13", "1"]),
        ({"type": "array", "maxItems": 0}, ["[]"], ["[1]", "[[]]"]),
        ({"type": "array", "minItems": 3}, ["[1,2,3]", "[1,2,3,4]"], ["[1,2]", "[]"]),
        ({"type": "array", "minItems": 2, "maxItems": 2}, ["[1,2]"], ["[1]", "[1,2,3]"]),
        ({"type": "string", "maxLength": 2}, ['"日本"', '""', '"\\n\\n"'], ['"abc"']),
        ({"type": "string", "minLength": 2}, ['"日本"', '"abc"'], ['"日"', '""']),
        ({"enum": ["a", 1, None, {"b": []}]}, ['"a"', "1", "null", '{"b":[]}'], ['"b"', "2", "{}"]),
        ({"const": "a\"b\\"}, ['"a\\"b\\\\"'], ['"ab"']),
        ({"type": ["string", "null"]}, ["null", '"a"'], ["1"]),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, ["3"], ["2", "33 "]),
    ],
)  # fmt: skip
def test_values_are_those_of_the_schema(
    schema: dict[str, object], whole: list[str], not_whole: list[str]
) -> None:
    compiled = exact(schema, compact=True)
    for text in whole:
        assert takes(compiled, VOCABULARY, text), text
    for text in not_whole:
        assert not takes(compiled, VOCABULARY, text), text


def test_texts_written_by_chance_are_values_of_the_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 1, "maximum": 99},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "note": {"type": "string", "maxLength": 5},
        },
        "required": ["id", "tags"],
        "additionalProperties": False,
    }
    compiled = exact(schema)
    ended = [text for text in (walk(compiled, seed) for seed in range(40)) if text is not None]
    assert len(ended) >= 20
    for text in ended:
        jsonschema.validate(json.loads(text), schema)


def test_a_vocabulary_without_a_byte_is_no_reason_to_stall() -> None:
    """A token that writes half a character is allowed where the character is."""
    vocabulary = GrammarVocabulary([b"\xe6\x97", b"\xa5", b"a", b""], {3: "<eos>"}, [3], 4)
    compiled = LlguidanceBackend(vocabulary).regex("日a")
    assert takes(compiled, vocabulary, "日a")
    grammar = compiled.start()
    assert grammar.accept([0]) == 1
    assert allowed(grammar, vocabulary) == {1}
