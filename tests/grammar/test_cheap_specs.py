"""What a spec costs, judged by its form."""

from __future__ import annotations

import json

import pytest

from radixlm.runtime.grammar.cheap_specs import is_cheap, repetitions
from radixlm.runtime.grammar.spec import GrammarSpec, Kind

PERSON = {
    "$defs": {"Colour": {"enum": ["red", "green"], "title": "Colour", "type": "string"}},
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 40},
        "born": {"type": "string", "format": "date"},
        "age": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}], "default": None},
        "colours": {"type": "array", "items": {"$ref": "#/$defs/Colour", "description": "liked"}},
        "pattern": {"type": "string"},
        "scores": {"type": "object", "additionalProperties": {"type": "number"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def cheap(schema: object) -> bool:
    return is_cheap(GrammarSpec("json", json.dumps(schema)))


def test_the_schema_of_an_ordinary_class_is_cheap() -> None:
    assert cheap(PERSON)
    assert cheap(True)


@pytest.mark.parametrize(
    "part",
    [
        {"pattern": "a"},
        {"patternProperties": {"a": {}}},
        {"allOf": [{}]},
        {"oneOf": [{}]},
        {"not": {}},
        {"if": {}},
        {"multipleOf": 3},
        {"format": "date", "maxLength": 4},
        {"anyOf": [{}], "type": "object"},
        {"$ref": "#/$defs/Colour", "minLength": 3},
        {"$ref": "#", "anyOf": [{}]},
        {"properties": []},
        {"anyOf": {}},
        {"items": [{}]},
        {"whatever": 1},
        None,
    ],
)
@pytest.mark.parametrize("place", ["items", "additionalProperties", "anyOf", "properties", "$defs"])
def test_one_with_something_to_combine_or_unknown_anywhere_is_not(part: object, place: str) -> None:
    within: object = {"anyOf": [part], "properties": {"a": part}, "$defs": {"a": part}}.get(place, part)
    assert not cheap({"properties": {"b": {place: within}}})


@pytest.mark.parametrize(
    "definitions",
    [
        {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
    ],
)
def test_definitions_that_may_go_round_in_circles_are_not(definitions: object) -> None:
    assert not cheap({"$ref": "#/$defs/a", "$defs": definitions})


@pytest.mark.parametrize("target", ["#", "#/properties/a", "#/$defs/a/items", "http://a/b", 7])
def test_references_to_anything_but_a_definition_are_not(target: object) -> None:
    assert not cheap({"properties": {"a": {"$ref": target}}})


def test_a_class_that_holds_itself_is_cheap() -> None:
    children = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert cheap({"$ref": "#/$defs/Tree", "$defs": {"Tree": {"properties": {"children": children}}}})


def test_a_long_one_is_not() -> None:
    assert cheap({"enum": ["a" * 2_000]})
    assert not cheap({"enum": ["a" * 2_050]})


@pytest.mark.parametrize(("texts", "expected"), [(["yes", "no"], True), (["a" * 8200], False)])
def test_a_short_choice_is_cheap(texts: list[str], expected: bool) -> None:
    assert is_cheap(GrammarSpec("choice", json.dumps(texts))) is expected


@pytest.mark.parametrize("kind", ["regex", "lark", "gbnf", "tags"])
def test_other_kinds_never_are(kind: Kind) -> None:
    assert not is_cheap(GrammarSpec(kind, "a"))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", 0),
        ("abc", 3),
        ("a|b", 2),
        ("a{7}", 7),
        ("a{2,7}b", 8),
        ("a{ 2, 7 }", 7),
        ("a{3,}", 3),
        ("a{0}b", 1),
        ("(ab){50}", 100),
        ("(a{10}(bc){5}){20}", 400),
        ("((a{100}){100}){100}", 1_000_000),
        ("[a-z{3}]{4}", 4),
        (r"[\]{3}]{4}", 4),
        ("[]{3}]{4}", 4),
        ("[[:alpha:]]{4}", 4),
        (r"\{3\}\({2}", 5),
        (r"\p{Greek}{2}", 2),
        (r"\x{10FFFF}\u{1234}", 2),
        ("(a(b)){2}", 4),
        ("a)b{2}", 4),
        ("((((", 0),
        ("a{99999999999999999999}", 10**9),
    ],
)
def test_repetitions_are_written_out_and_multiplied(pattern: str, expected: int) -> None:
    assert repetitions(pattern) == expected
