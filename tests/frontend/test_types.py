"""Dtypes, patterns and schemas: what a text has to look like, and what it is read as."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from radixlm.frontend.errors import InvalidCall
from radixlm.frontend.types import Unreadable, check_regex, ends_of, pattern_of, schema_of
from radixlm.runtime.grammar.regex_dialect import to_rust


def read(dtype: object, text: str) -> object:
    return pattern_of(dtype)[1](text)


def matches(dtype: object, text: str) -> bool:
    return re.fullmatch(pattern_of(dtype)[0], text) is not None


# -- dtypes


@given(st.integers())
def test_every_integer_can_be_written_and_is_read_back(value: int) -> None:
    assert matches(int, str(value))
    assert read(int, str(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_written_and_is_read_back(value: float) -> None:
    assert matches(float, repr(value))
    assert read(float, repr(value)) == value


@given(st.text())
def test_what_a_string_pattern_takes_is_read_back(value: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert matches(str, text) == ("\\u" not in text)  # control characters need that, and are left out
    assert read(str, text) == value


@given(st.from_regex(pattern_of(str)[0], fullmatch=True))
def test_every_text_of_the_string_pattern_is_a_string(text: str) -> None:
    assert isinstance(read(str, text), str)


def test_a_number_may_end_in_one_space_or_line_end_which_its_stops_cut() -> None:
    for dtype in (int, "float"):
        assert ends_of(dtype) == (" ", "\n")
        assert matches(dtype, "42\n")
        assert not matches(dtype, "42  ")
    assert ends_of(str) == ends_of(bool) == ()
    assert read(int, "42\n") == 42


def test_truth_is_true_or_false() -> None:
    assert read(bool, "True") is True
    assert read("bool", "False") is False
    assert not matches(bool, "true")


@pytest.mark.parametrize(
    ("dtype", "text"), [(int, ""), (int, "-"), (float, "1e"), (str, '"cut'), (str, "5"), (bool, "Tru")]
)
def test_a_text_that_was_cut_says_so_instead_of_giving_a_value(dtype: object, text: str) -> None:
    with pytest.raises(Unreadable, match=re.escape(f"{text!r} cannot be read as")):
        read(dtype, text)


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(InvalidCall, match=r"dtype must be int, float, str or bool, got <class 'list'>"):
        pattern_of(list)


@pytest.mark.parametrize("dtype", [int, float, str, bool])
def test_the_runtime_can_compile_the_patterns(dtype: object) -> None:
    assert to_rust(pattern_of(dtype)[0])


# -- patterns


@pytest.mark.parametrize("pattern", ["(", "[", "(?P<", "a{99999999999}", "*", "(" * 5000])
def test_a_pattern_that_python_refuses_is_quoted(pattern: str) -> None:
    with pytest.raises(InvalidCall, match=r"regex '.* cannot be read: "):
        check_regex(pattern)


def test_a_pattern_may_name_characters_by_property() -> None:
    assert check_regex(r"\p{Lu}[\p{L}-]+") == r"\p{Lu}[\p{L}-]+"


def test_a_pattern_is_text() -> None:
    with pytest.raises(InvalidCall, match="regex must be text, got 3"):
        check_regex(3)


# -- schemas


@dataclass
class Point:
    x: int
    enum: list[str]  # a field may have the name of a keyword


class Circle(BaseModel):
    kind: Literal["circle"]
    centre: Point


class Square(BaseModel):
    kind: Literal["square"]
    default: Point | None = None


class Movie(TypedDict, total=False):
    title: str


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


Shape = Annotated[Circle | Square, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (Point, '{"x": 1, "enum": ["a"]}', Point(1, ["a"])),
        (
            Circle,
            '{"kind": "circle", "centre": {"x": 1, "enum": []}}',
            Circle(kind="circle", centre=Point(1, [])),
        ),
        (Shape, '{"kind": "square"}', Square(kind="square")),
        (Movie, '{"title": "M"}', {"title": "M"}),
        (list[Movie], '[{"title": "M"}]', [{"title": "M"}]),
        (Colour, '"red"', Colour.RED),
        (int | None, "null", None),
        (dict[str, set[int]], '{"a": [1, 1]}', {"a": {1}}),
        (Literal["a", "b"], '"b"', "b"),
    ],
)
def test_a_text_becomes_an_instance_of_the_type(hint: object, text: str, value: object) -> None:
    schema, reader = schema_of(hint)
    assert isinstance(json.loads(schema), dict)
    assert reader(text) == value


def test_objects_of_a_type_take_no_keys_but_the_declared_ones_wherever_they_stand() -> None:
    schema = json.loads(schema_of(Shape)[0])
    assert {each["additionalProperties"] for each in schema["$defs"].values()} == {False}
    assert "oneOf" not in schema
    assert json.loads(schema_of(dict[str, int])[0])["additionalProperties"] == {"type": "integer"}


def test_a_model_that_takes_more_keys_says_so() -> None:
    class Open(BaseModel, extra="allow"):
        a: int

    assert json.loads(schema_of(Open)[0])["additionalProperties"] is True


def test_a_mapping_and_json_text_are_schemas_as_they_are_and_give_plain_values() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for given_schema in (schema, json.dumps(schema)):
        text, reader = schema_of(given_schema)
        assert json.loads(text) == schema
        assert reader('{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "json_schema is no JSON"),
        ("[1]", "must be a JSON object"),
        ({"a": {1}}, "cannot be written as JSON"),
        (5, "json_schema must be a dict, JSON text, .* got 5"),
        (subprocess.Popen, "json_schema must be a dict, .* got <class 'subprocess.Popen'>"),
    ],
)
def test_what_is_no_schema_is_refused_at_once(schema: object, message: str) -> None:
    with pytest.raises(InvalidCall, match=message):
        schema_of(schema)


def test_a_text_that_does_not_fit_the_type_is_unreadable() -> None:
    with pytest.raises(Unreadable, match=r"cannot be read as Point"):
        schema_of(Point)[1]('{"x": "no"}')
    with pytest.raises(Unreadable, match="cannot be read as JSON"):
        schema_of({})[1]('{"cut": ')


def test_pydantic_is_loaded_when_a_type_is_met_and_not_before() -> None:
    code = (
        "import sys; from radixlm.frontend.types import schema_of; schema_of({}); "
        "print('pydantic' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
