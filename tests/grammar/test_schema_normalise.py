"""Normalised JSON Schemas in the engine: what is enforced to the letter, reported or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.schema_normalise import normalise
from testkit.byte_vocabulary import byte_vocabulary, takes

VOCABULARY = byte_vocabulary(())
BACKEND = LlguidanceBackend(VOCABULARY)
OTHERS: Any = {"type": "object", "additionalProperties": {"type": "string"}}


def accepted(schema: object, *texts: str) -> list[bool]:
    """Of a schema that is enforced exactly."""
    normalised = normalise(schema)
    assert normalised.unenforced == ()
    compiled = BACKEND.json(normalised.schema, compact=True)
    return [takes(compiled, VOCABULARY, text) for text in texts]


def reported(schema: object) -> list[tuple[str, str]]:
    return [(part.keyword, part.pointer) for part in normalise(schema).unenforced]


# schema, texts that it allows, texts that it does not
EXACT: dict[str, tuple[object, list[str], list[str]]] = {
    "type": ({"type": ["string", "null"]}, ['"a"', "null"], ["1", "{}", "true"]),
    "no keyword": ({}, ["1e5", '{"a":[null]}'], ["", "nul"]),
    "notes": ({"title": "a", "default": 3, "x-unknown": {"type": 3}, "examples": [1]}, ["7"], []),
    "enum": (
        {"enum": [1, "1", None, [1], {"a": 1.5}]},
        ["1", '"1"', "null", "[1]", '{"a":1.5}'],
        ["true", "[]", "2"],
    ),
    "enum beside type": ({"type": "string", "enum": [1, "a"]}, ['"a"'], ["1"]),
    "const in escapes": ({"const": 'a"\\\nb\té'}, ['"a\\"\\\\\\nb\\té"'], ['"a"', '"a\\"\\\\bé"']),
    "control characters in a pattern": (
        {"type": "string", "pattern": "^a[\\x00-\\x1fc]b$"},
        ['"acb"', '"a\\nb"'],
        ['"ab"', '"a\\u0001b"'],
    ),
    "const of zero": ({"const": 0}, ["0"], ["false", "1"]),
    "minimum without type": ({"minimum": 3}, ["3", '"a"', "null"], ["2", "-3"]),
    "bounds": (
        {"minimum": -1.5, "exclusiveMaximum": 2, "type": "number"},
        ["-1.5", "1.99"],
        ["-1.6", "2", "2.0"],
    ),
    "bounds of old drafts": ({"minimum": 1, "exclusiveMinimum": True, "type": "integer"}, ["2"], ["1"]),
    "bounds within one integer": (
        {"type": "number", "exclusiveMinimum": 5, "exclusiveMaximum": 5.4},
        ["5.1"],
        ["5", "5.0", "5.4"],
    ),
    "bounds of integers": (
        {"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4},
        ["2", "3"],
        ["1", "4"],
    ),
    "64-bit bounds": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        ["0", "-9000000000000000000"],
        ["9223372036854775808", "-9223372036854775809", "1.5"],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, ["-6", "0"], ["4"]),
    "multipleOf a fraction": (
        {"type": "number", "multipleOf": 0.25},
        ["0.5", "0.75", "2", "-1.0"],
        ["0.3", "1e1"],
    ),
    "lengths in characters": (
        {"type": "string", "minLength": 1, "maxLength": 2},
        ['"é\U0001f642"', '"\\n\\n"'],
        ['""', '"abc"'],
    ),
    "pattern": ({"type": "string", "pattern": "b[0-9]"}, ['"ab1c"'], ['"b"', '"\\u0062\\u0031"']),
    "pattern and lengths": (
        {"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 3},
        ['"aa"', '"aaa"'],
        ['"a"', '"aaaa"', '"ab"'],
    ),
    "pattern, format and length": (
        {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10},
        ['"2024-02-29"'],
        ['"1999-01-01"', '"20"'],
    ),
    "two patterns": ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, ['"ba"'], ['"a"']),
    "items": ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, ["[1,2]"], ["[]", '[1,"a"]']),
    "prefixItems": (
        {"prefixItems": [{"const": 1}], "items": False, "type": "array"},
        ["[]", "[1]"],
        ["[2]", "[1,1]"],
    ),
    "array form of items": (
        {"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
        ["[1,2,2]"],
        ["[1,1]", "[2]"],
    ),
    "uniqueItems of one": ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]", "[]"], ["[1,2]"]),
    "uniqueItems of an enum": (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 1},
        ['["b","a"]', '["a"]'],
        ['["a","a"]', "[]"],
    ),
    "contains": (
        {"type": "array", "contains": {"const": 1}},
        ["[1]", "[2,1,3]"],
        ["[]", "[2,3]"],
    ),
    "minContains of none": ({"type": "array", "contains": {"const": 1}, "minContains": 0}, ["[]", "[2]"], []),
    "maxContains": (
        {"type": "array", "contains": {"const": 1}, "maxContains": 1},
        ["[1]", "[2,1]"],
        ["[]", "[1,1]", "[2,1,2,1]"],
    ),
    "required beyond properties": (
        {"type": "object", "required": ["a"]},
        ['{"a":1,"b":2}'],
        ["{}", '{"b":2}'],
    ),
    "properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ["{}", '{"a":1}', '{"b":"x"}'],
        ['{"a":"x"}', '{"b":1,"a":"x"}'],
    ),
    "a declared key in escapes": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        [],
        ['{"\\u0061":"x"}', '{"b":1,"\\u0061":"x"}'],
    ),
    "a declared key in escapes, others typed": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": {"type": "string"},
        },
        ['{"a":1,"b":"x"}', '{"ab":"x"}', '{"":"x"}'],
        ['{"\\u0061":"x"}', '{"b":1}'],
    ),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        ['{"x1":1}', "{}"],
        ['{"x1":"a"}', '{"y":1}', '{"\\u0078":"a"}'],
    ),
    "patternProperties over a declared key": (
        {
            "type": "object",
            "properties": {"xa": {"minimum": 2}},
            "patternProperties": {"^x": {"type": "integer"}},
        },
        ['{"xa":2}', '{"y":"a","xb":1}'],
        ['{"xa":1}', '{"xa":"a"}', '{"xb":"a"}', '{"\\u0078b":"a"}'],
    ),
    "patternProperties that overlap": (
        {"type": "object", "patternProperties": {"^a": {"minimum": 2}, "b$": {"type": "integer"}}},
        ['{"ab":2}', '{"a":2.5}', '{"b":1}', '{"c":"x"}'],
        ['{"ab":1}', '{"ab":2.5}', '{"a":1}', '{"b":1.5}'],
    ),
    "propertyNames by pattern": (
        {**OTHERS, "propertyNames": {"pattern": "^k"}},
        ['{"k1":"a"}'],
        ['{"a":"a"}', '{"k":1}'],
    ),
    "propertyNames by enum": (
        {**OTHERS, "propertyNames": {"enum": ["a", "b"]}},
        ['{"a":"x"}'],
        ['{"c":"x"}'],
    ),
    "propertyNames by length": (
        {**OTHERS, "propertyNames": {"maxLength": 2}},
        ['{"ab":"x"}'],
        ['{"abc":"x"}'],
    ),
    "propertyNames by exclusion": (
        {**OTHERS, "propertyNames": {"not": {"const": "a"}}},
        ['{"b":"x"}'],
        ['{"a":"x"}'],
    ),
    "minProperties of a map": ({**OTHERS, "minProperties": 1}, ['{"a":"x"}'], ["{}"]),
    "maxProperties of a map": ({**OTHERS, "maxProperties": 1}, ["{}", '{"a":"x"}'], ['{"a":"x","b":"x"}']),
    "minProperties of optional keys": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}, "c": {}},
            "minProperties": 2,
            "additionalProperties": False,
        },
        ['{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'],
        ["{}", '{"b":1}'],
    ),
    "maxProperties beside optional keys": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1},
        ["{}", '{"a":1}', '{"c":1}'],
        ['{"a":1,"b":1}', '{"a":1,"c":1}', '{"c":1,"d":1}'],
    ),
    "dependentRequired": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"b": ["a"]}},
        ["{}", '{"a":1}', '{"a":1,"b":1}'],
        ['{"b":1}'],
    ),
    "dependencies": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "dependencies": {"b": ["a"], "a": {"maxProperties": 1}},
        },
        ["{}", '{"a":1}'],
        ['{"b":1}', '{"a":1,"b":1}'],
    ),
    "dependentSchemas": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentSchemas": {"a": {"required": ["b"]}}},
        ['{"b":1}', '{"a":1,"b":1}'],
        ['{"a":1}'],
    ),
    "allOf": (
        {"allOf": [{"type": "integer", "minimum": 3}, {"multipleOf": 2}, {"maximum": 8}]},
        ["4", "8"],
        ["3", "77", "10", '"4"'],
    ),
    "allOf beside a closed object": (
        {
            "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "additionalProperties": False}],
            "type": "object",
        },
        ['{"b":1}', "{}"],
        ['{"a":1}', '{"c":1}'],
    ),
    "anyOf": (
        {"anyOf": [{"type": "integer"}, {"maxLength": 1, "type": "string"}]},
        ["1", '"a"'],
        ["1.5", '"ab"'],
    ),
    "anyOf beside properties": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'],
        ["{}", '{"a":"x"}'],
    ),
    "oneOf by type": ({"oneOf": [{"type": "string"}, {"type": "array"}]}, ['"a"', "[]"], ["1"]),
    "oneOf by a tag": (
        {
            "oneOf": [
                {
                    "properties": {"t": {"const": t}, t: {"type": "integer"}},
                    "required": ["t", t],
                    "type": "object",
                }
                for t in "ab"
            ]
        },
        ['{"t":"a","a":1}', '{"t":"b","b":1,"a":"x"}'],
        ['{"t":"c"}', '{"t":"a","b":1}'],
    ),
    "oneOf that overlaps": (
        {"oneOf": [{"minimum": 2, "type": "integer"}, {"maximum": 5, "type": "integer"}]},
        ["1", "6"],
        ["3"],
    ),
    "oneOf of required keys": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        ['{"a":1}', '{"b":1}'],
        ["{}", '{"a":1,"b":1}'],
    ),
    "not of a required key": (
        {"type": "object", "not": {"required": ["a"]}},
        ["{}", '{"b":1}'],
        ['{"a":1}', '{"b":1,"a":1}'],
    ),
    "not of an enum": (
        {"type": "string", "not": {"enum": ["a", "bc"]}},
        ['"b"', '""', '"abc"'],
        ['"a"', '"bc"'],
    ),
    "not of a type": ({"not": {"type": ["object", "string"]}}, ["1", "[]"], ["{}", '"a"']),
    "not of a number": ({"type": "integer", "not": {"const": 3}, "minimum": 2}, ["2", "4"], ["3", "1"]),
    "if by const": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "v": {}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"required": ["v"]},
            "else": {"properties": {"v": {"type": "integer"}}},
        },
        ['{"kind":"a","v":"x"}', '{"kind":"b"}', '{"kind":"b","v":1}'],
        ['{"kind":"a"}', '{"kind":"b","v":"x"}'],
    ),
    "then without if": ({"then": False, "type": "null"}, ["null"], ["1"]),
    "$ref with siblings": (
        {"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"type": "integer", "minimum": 3}}},
        ["3", "5"],
        ["2", "6"],
    ),
    "$ref through escapes": (
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}},
        ["null"],
        ["1"],
    ),
    "$anchor": ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, ["null"], ["1"]),
    "$id": (
        {
            "$id": "http://h/r",
            "$ref": "part",
            "$defs": {"a": {"$id": "http://h/part", "$ref": "#/$defs/b", "$defs": {"b": {"type": "null"}}}},
        },
        ["null"],
        ["1"],
    ),
    "$dynamicRef to one place": (
        {"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n", "type": "null"}}},
        ["null"],
        ["1"],
    ),
    "$ref to itself": (
        {
            "type": "object",
            "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}},
            "additionalProperties": False,
        },
        ['{"next":{"next":{},"v":1}}'],
        ['{"next":{"next":1}}', '{"next":{"v":"a"}}'],
    ),
    "siblings of a $ref in old drafts": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"$ref": "#/definitions/n", "maximum": 1}},
            "definitions": {"n": {"type": "integer"}},
            "type": "object",
        },
        ['{"a":5}'],
        ['{"a":"x"}'],
    ),
    "unevaluatedProperties": (
        {
            "type": "object",
            "properties": {"a": {}},
            "allOf": [{"properties": {"b": {}}}],
            "unevaluatedProperties": False,
        },
        ['{"a":1,"b":1}', "{}"],
        ['{"c":1}'],
    ),
    "unevaluatedProperties beside alternatives": (
        {
            "type": "object",
            "anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
            "unevaluatedProperties": False,
        },
        ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'],
        ['{"c":1}', '{"a":1,"c":1}'],
    ),
    "unevaluatedItems": (
        {"type": "array", "prefixItems": [{"const": 1}], "unevaluatedItems": False},
        ["[1]"],
        ["[1,2]"],
    ),
    "false below": ({"type": "object", "properties": {"a": False}}, ["{}", '{"b":1}'], ['{"a":1}']),
    "an alternative with no value": ({"anyOf": [False, {"enum": []}, {"type": "null"}]}, ["null"], ["1"]),
    "a branch that never ends": (
        {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/x"}}},
            ],
            "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}},
        },
        ["null"],
        ['{"a":[', "{"],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_keyword_is_enforced_to_the_letter(name: str) -> None:
    schema, right, wrong = EXACT[name]
    assert accepted(schema, *right, *wrong) == [True] * len(right) + [False] * len(wrong)


REPORTED: dict[str, tuple[object, tuple[str, str], list[str]]] = {
    "uniqueItems": (
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        ("uniqueItems", "/uniqueItems"),
        ['["a","a"]'],
    ),
    "pattern": (
        {"properties": {"a": {"pattern": "^(?=b)"}}},
        ("pattern", "/properties/a/pattern"),
        ['{"a":"x"}'],
    ),
    "patternProperties": (
        {"patternProperties": {"\\bx": {}}, "additionalProperties": False},
        ("patternProperties", "/patternProperties"),
        ['{"x":1}'],
    ),
    "not": ({"type": "string", "not": {"pattern": "a"}}, ("not", "/not"), ['"a"']),
    "if": ({"if": {"pattern": "a"}, "then": {"maxLength": 3}, "type": "string"}, ("if", "/if"), ['"abcde"']),
    "oneOf": (
        {"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"},
        ("oneOf", "/oneOf"),
        ['"ab"'],
    ),
    "minProperties": (
        {**OTHERS, "minProperties": 2},
        ("minProperties", "/minProperties"),
        ['{"a":"x","a":"x"}'],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 123456}, ("multipleOf", "/multipleOf"), ["1"]),
    "enum": ({"enum": [2**60 + 1]}, ("enum", "/enum"), [str(2**60 + 1)]),
    "contains": (
        {"type": "array", "contains": {"pattern": "a"}, "maxContains": 2},
        ("contains", "/contains"),
        ['["a","a","a"]'],
    ),
    "unevaluatedItems": (
        {"type": "array", "contains": {"const": 1}, "unevaluatedItems": False},
        ("unevaluatedItems", "/unevaluatedItems"),
        ["[1,2]"],
    ),
    "propertyNames": (
        {**OTHERS, "propertyNames": {"pattern": "\\p{L}", "maxLength": 3}},
        ("propertyNames", "/propertyNames"),
        ['{"abcde":"x"}'],
    ),
    "$dynamicRef": (
        {
            "$dynamicRef": "#n",
            "$defs": {"a": {"$dynamicAnchor": "n"}, "b": {"$id": "b", "$dynamicAnchor": "n"}},
        },
        ("$dynamicRef", "/$dynamicRef"),
        ["1"],
    ),
    "dependentRequired": (
        {"type": "object", "dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}},
        ("dependentRequired", "/dependentRequired"),
        ['{"a39":1}'],
    ),
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_keyword_that_cannot_be_enforced_is_reported_where_it_stands_and_left_out(name: str) -> None:
    schema, where, texts = REPORTED[name]
    normalised = normalise(schema)
    assert where in [(part.keyword, part.pointer) for part in normalised.unenforced]
    assert all(part.reason for part in normalised.unenforced)
    compiled = BACKEND.json(normalised.schema, compact=True)
    assert all(takes(compiled, VOCABULARY, text) for text in texts)


def test_what_is_left_out_in_one_place_is_kept_in_others() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert reported(schema) == [("uniqueItems", "/properties/a/uniqueItems")]
    compiled = BACKEND.json(normalise(schema).schema, compact=True)
    assert takes(compiled, VOCABULARY, '{"a":[1,1]}')
    assert not takes(compiled, VOCABULARY, '{"a":["x"]}')


def test_unused_definitions_are_not_looked_into() -> None:
    assert reported({"type": "null", "$defs": {"a": {"uniqueItems": True, "not": {"pattern": "a"}}}}) == []


REFUSED: dict[str, tuple[object, str]] = {
    "no schema": ([], r"must be an object, true or false, got \[\]"),
    "type": ({"type": "strin"}, r"type must be one of .*got 'strin' at /type"),
    "required": (
        {"properties": {"a": {"required": 3}}},
        r"required must be a list of names, got 3 at /properties/a",
    ),
    "minLength": ({"minLength": -1}, "minLength must be a whole number from 0 up, got -1"),
    "multipleOf": ({"multipleOf": 0}, "multipleOf must be a number over 0, got 0"),
    "properties": ({"properties": ["a"]}, "properties must be an object of schemas"),
    "anyOf": ({"anyOf": []}, "anyOf must be a list of one schema or more"),
    "pattern": ({"items": {"pattern": "(a"}}, r"pattern must be a regular expression, got '\(a' at /items"),
    "unknown $ref": ({"$ref": "#/$defs/a"}, r"\$ref leads to no schema, got '#/\$defs/a' at /"),
    "remote $ref": (
        {"items": {"$ref": "http://h/x"}},
        "must lead to a place in the schema itself, got 'http://h/x' at /items",
    ),
    "$ref to itself": ({"$ref": "#"}, "refers to itself"),
    "two that refer to each other": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
        },
        "refers to itself",
    ),
    "an object that requires itself": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "no value satisfies it",
    ),
    "false": (False, "no value satisfies it"),
    "an empty enum": ({"enum": []}, "no value satisfies it"),
    "a contradiction of types": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no value satisfies it"),
    "a contradiction of bounds": (
        {"type": "integer", "minimum": 1.2, "maximum": 1.8},
        "no value satisfies it",
    ),
    "a contradiction of lengths": (
        {"type": "string", "minLength": 3, "pattern": "^a?$"},
        "no value satisfies it",
    ),
    "a contradiction of keys": (
        {"type": "object", "required": ["a"], "properties": {"b": {}}, "additionalProperties": False},
        "no value satisfies it",
    ),
    "a contradiction below": (
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "enum": ["x"]}}},
        "no value satisfies it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_schema_or_allows_nothing_is_refused_with_what_came_and_where(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(InvalidRequest, match=message):
        normalise(schema)


def test_keys_are_written_in_the_order_in_which_the_schema_speaks_of_them() -> None:
    schema = {
        "allOf": [{"properties": {"first": {}}}],
        "properties": {"second": {}, "third": {}},
        "anyOf": [{"properties": {"fourth": {}}, "required": ["fourth"]}],
        "type": "object",
    }
    right = '{"first":1,"second":2,"third":3,"fourth":4}'
    assert accepted(schema, right, '{"second":2,"first":1,"fourth":4}') == [True, False]


def test_the_engine_gets_no_options_from_a_schema() -> None:
    assert normalise({"x-guidance": {"lenient": True}, "type": "null"}).schema == {"type": "null"}


def test_a_schema_is_not_changed() -> None:
    schema = {"allOf": [{"properties": {"a": {"enum": [1]}}}], "required": ["a"], "$defs": {"x": {}}}
    before = json.dumps(schema)
    normalise(schema)
    assert json.dumps(schema) == before


def chain(length: int, link: Any) -> Any:
    return {
        "$ref": "#/$defs/0",
        "$defs": {str(i): link(i) for i in range(length)} | {str(length): {"type": "null"}},
    }


def both_ways(i: int) -> Any:
    return {"type": "object", "properties": {side: {"$ref": f"#/$defs/{i + 1}"} for side in "lr"}}


def test_long_chains_of_references_are_followed_without_recursion() -> None:
    schema = normalise(chain(2000, lambda i: {"$ref": f"#/$defs/{i + 1}"})).schema
    assert schema == {"type": "null"}
    deep = normalise(chain(500, lambda i: {"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}})).schema
    BACKEND.json(deep, compact=True)


def test_what_is_used_twice_is_written_once() -> None:
    assert len(json.dumps(normalise(chain(100, both_ways)).schema)) < 30_000


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(40)]},
        {"oneOf": [{"required": [f"a{i}"]} for i in range(210)], "type": "object"},
        {"type": "object", "properties": {f"a{i}": {} for i in range(60)}, "minProperties": 7},
        {"type": "array", "items": {"enum": list(range(12))}, "uniqueItems": True},
        {"enum": ["a" * 3000 + "b"], "pattern": "^(a|a)*(a|aa)*$"},
        {"patternProperties": {f"^p{i}_[a-z]+$": {"minimum": i} for i in range(40)}},
    ],
)
def test_what_would_grow_too_large_is_reported(schema: object) -> None:
    normalised = normalise(schema)
    assert normalised.unenforced
    assert len(json.dumps(normalised.schema)) < 50_000


def test_schemas_that_refer_to_themselves_are_met_without_end() -> None:
    def ring(name: str, length: int) -> Any:
        return {
            f"{name}{i}": {
                "type": "object",
                "properties": {
                    "n": {"$ref": f"#/$defs/{name}{(i + 1) % length}"},
                    f"{name}{i}": {"const": i},
                },
            }
            for i in range(length)
        }

    schema = {"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": ring("a", 3) | ring("b", 5)}
    right = '{"n":{"n":{"n":{"a0":0}}},"a0":0,"b0":0}'
    assert accepted(schema, right, '{"n":{"n":{"n":{"a0":1}}}}') == [True, False]


@pytest.mark.parametrize("character", ["\0", "\x01", "\x1f", "\x7f"])
def test_texts_that_need_a_control_character_are_reported_and_never_written_without_it(
    character: str,
) -> None:
    text = f"a{character}b"
    [unenforced] = normalise({"const": text}).unenforced
    assert (unenforced.keyword, unenforced.pointer) == ("const", "/const")
    [unenforced] = normalise({"properties": {"k": {"enum": [text]}}, "required": ["k"]}).unenforced
    assert (unenforced.keyword, unenforced.pointer) == ("enum", "/properties/k/enum")
    assert accepted({"enum": [text, "c"]}, '"ab"', '"c"') == [False, True]
    pattern = {"type": "string", "pattern": f"^a\\x{ord(character):02x}b$|^c$"}
    assert accepted(pattern, '"ab"', '"c"') == [False, True]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1, True]},
        {"enum": [False, 0]},
        {"enum": [[1], [True]]},
        {"anyOf": [{"const": {"a": 0}}, {"const": {"a": False}}]},
    ],
)
def test_true_and_one_are_two_values(schema: dict[str, object]) -> None:
    values = schema.get("enum") or [{"a": 0}, {"a": False}]
    assert isinstance(values, list)
    texts = [json.dumps(value, separators=(",", ":")) for value in values]
    assert accepted(schema, *texts) == [True] * len(texts)
