"""Finished texts against the schema as it was given."""

from __future__ import annotations

import pytest

from radixlm.runtime.grammar.schema_check import check_instance

AGAIN = {"anyOf": [{"properties": {"x": {"$ref": "#/$defs/a"}}, "required": [key]} for key in "yz"]}


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        (
            {"properties": {"a": {"items": {"minimum": 3}}}},
            '{"a": [5, 2]}',
            "minimum 3 does not hold at /a/1, got 2",
        ),
        ({"properties": {"a/b": False}}, '{"a/b": 1}', "allows no value at /a~1b, got 1"),
        ({"type": "array", "uniqueItems": True}, "[1, 1.0]", "uniqueItems True does not hold at /"),
        ({"type": "array"}, "{}", "type 'array' does not hold at /"),
        ({"pattern": "^(?=a)"}, '"b"', "pattern '^(?=a)' does not hold"),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}', "type 'null' does not hold at /ab"),
        (
            {"additionalProperties": False, "patternProperties": {"^a": {}}},
            '{"b": 1}',
            "allows no value at /b",
        ),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"b": 1}', "unevaluatedProperties"),
        ({"multipleOf": 0.01}, "0.075", "multipleOf 0.01 does not hold"),
        ({}, "[1", "not JSON"),
        ({}, "[NaN]", "not JSON"),
        ({}, "[" * 5000, "nested too deep"),
        ({"$ref": "http://h/x"}, "1", "cannot be checked"),
    ],
)
def test_what_is_wrong_is_told_with_where_and_which_keyword(schema: object, text: str, message: str) -> None:
    reason = check_instance(schema, text)
    assert reason is not None
    assert message in reason


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (True, "1"),
        ({"multipleOf": 0.01}, "0.07"),
        ({"type": "array", "uniqueItems": True}, "[1, true, [1], [true]]"),
        ({"format": "email"}, '"nobody"'),
        ({"enum": [1]}, "1.0"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null"),
    ],
)
def test_what_is_right_passes(schema: object, text: str) -> None:
    assert check_instance(schema, text) is None


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"items": [{"const": 1}], "additionalItems": False}, "[1]", "[1, 2]"),
        ({"minimum": 1, "exclusiveMinimum": True}, "2", "1"),
        ({"dependencies": {"a": ["b"], "c": {"maxProperties": 1}}}, '{"c": 1}', '{"a": 1}'),
        (
            {"properties": {"dependencies": {"type": "object"}, "items": {}}},
            '{"dependencies": {}}',
            '{"dependencies": 1}',
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"const": 1}]}, "[1, 2]", "[2]"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 1, "exclusiveMaximum": True},
            "0",
            "1",
        ),
    ],
)
def test_spellings_of_old_drafts_mean_what_they_meant(schema: object, right: str, wrong: str) -> None:
    assert check_instance(schema, right) is None
    assert check_instance(schema, wrong) is not None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "^(?=.)(a|a)*(a|aa)*$"}, '"' + "a" * 5000 + 'b"'),
        ({"properties": {}, "patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, "{}"),
        ({"$defs": {"a": AGAIN}, "$ref": "#/$defs/a"}, '{"x":' * 60 + "{}" + "}" * 60),
    ],
)
def test_what_cannot_be_said_in_bounded_time_is_no_success(schema: object, text: str) -> None:
    reason = check_instance(schema, text)
    assert reason is not None
    assert "cannot be checked" in reason


def test_items_are_told_apart_without_comparing_each_with_each() -> None:
    items = ", ".join(f'{{"a": {i}}}' for i in range(20_000))
    assert check_instance({"uniqueItems": True}, f"[{items}]") is None
