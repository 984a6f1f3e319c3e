"""Python types and terms of Outlines, as the schema or the option that a request gets."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import subprocess
import sys
import typing
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import jsonschema
import numpy as np
import pytest
import typing_extensions
from genson import SchemaBuilder
from outlines import types as terms
from outlines.types import CFG, Choice, JsonSchema, Regex
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.python_types import choices_of, options_for, schema_of
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.sampling_params import SamplingParams
from testkit.byte_tokenizer import EOS_ID, VOCAB_SIZE, build_byte_tokenizer

TOKENIZER = build_byte_tokenizer()
TOKENS = [TOKENIZER.token_bytes(each) for each in range(VOCAB_SIZE)]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(GrammarVocabulary.of(TOKENIZER, VOCAB_SIZE))
    yield compiler
    compiler.close()


class Animal(BaseModel):
    name: str
    legs: Annotated[int, Field(ge=0, le=8)] = 4


class Zoo(BaseModel):
    animals: list[Animal]
    mailbox: str | None = None


class Node(BaseModel):
    value: int
    below: list[Node] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class OldDict(typing.TypedDict):
    a: int
    b: typing.NotRequired[str]


class NewDict(typing_extensions.TypedDict, total=False):
    a: int


class Holder(typing.TypedDict):
    inner: list[OldDict]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Colour(Enum):
    RED = "red"
    BLUE = "deep blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


def search(
    query: str, limit: Annotated[int, Field(ge=1)] = 10, *, colours: list[Colour] | None = None
) -> int:
    """Look something up.

    Slowly.
    """
    return len(query) + limit


KINDS: list[tuple[object, list[object], list[object]]] = [
    (int, [0, -3], [1.5, "1", True, None]),
    (float, [0, 1.5], ["1", None]),
    (bool, [True], [0, "true"]),
    (str, ["", "a"], [1, None]),
    (type(None), [None], [0]),
    (Any, [None, 1, "a", [], {}], []),
    (list[int], [[], [1, 2]], [1, ["a"]]),
    (tuple[int, str], [[1, "a"]], [[1], [1, "a", 2], ["a", 1]]),
    (tuple[int, ...], [[], [1, 2, 3]], [["a"]]),
    (set[int], [[], [1, 1]], [["a"]]),
    (frozenset[str], [["a"]], [[1]]),
    (Decimal, [1, 0.5], ["0.5"]),
    (dict[str, int], [{}, {"a": 1}], [{"a": "b"}]),
    (dict[int, str], [{"3": "a", "-4": "b", "0": ""}], [{"a": "a"}, {"01": "a"}, {"3": 4}]),
    (dict[Literal["a", "b"], int], [{}, {"b": 1}], [{"c": 1}, {"a": "x"}]),
    (dict[Colour, int], [{"red": 1}], [{"RED": 1}, {"red": None}]),
    (dict[Annotated[str, Field(pattern="^k")], int], [{"k1": 1}], [{"other": 1}, {"k": "x"}]),
    (Annotated[int, Field(ge=3, multiple_of=2)], [4], [2, 5]),
    (Annotated[list[int], Field(min_length=1, max_length=2)], [[1]], [[], [1, 2, 3]]),
    (int | None, [1, None], ["a"]),
    (typing.Union[int, str], [1, "a"], [None]),  # noqa: UP007
    (typing.Optional[list[bool]], [None, [True]], [[1]]),  # noqa: UP045
    (Literal[1, "a", None], [1, "a", None], [2, "b"]),
    (list[Literal['a"b']], [['a"b']], [["ab"], ['a\\"b']]),
    (list[Colour], [["red", "deep blue"]], [["RED"]]),
    (Level, [1, 2], [3, "LOW"]),
    (Pair, [[1, "a"], [1]], [[], ["a", "b"], [1, "a", 2]]),
    (Point, [{"x": 1, "y": 2.5}, {"x": 0}], [{}, {"x": 1, "z": 2}, {"x": "1"}]),
    (Animal, [{"name": "a"}, {"name": "a", "legs": 8}], [{}, {"name": "a", "legs": 9}]),
    (Zoo, [{"animals": [{"name": "a"}]}], [{"animals": [{"name": "a", "z": 1}]}, {"animals": [], "z": 1}]),
    (Node, [{"value": 1, "below": [{"value": 2}]}], [{"value": 1, "below": [{}]}]),
    (Open, [{"name": "a", "z": 1}], [{}]),
    (OldDict, [{"a": 1}, {"a": 1, "b": "c"}], [{}, {"a": 1, "z": 1}]),
    (NewDict, [{}, {"a": 1}], [{"z": 1}, {"a": "b"}]),
    (list[OldDict], [[{"a": 1}]], [[{}]]),
    (OldDict | None, [{"a": 1}, None], [{}]),
    (Annotated[OldDict, Field(description="d")], [{"a": 1}], [{}]),
    (Holder, [{"inner": [{"a": 1}]}], [{"inner": [{}]}, {"inner": [{"a": 1, "z": 1}]}]),
    (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        [{"kind": "cat", "lives": 9}, {"kind": "dog", "tricks": []}],
        [{"kind": "cat", "tricks": []}, {"kind": "cow"}, {"kind": "cat", "lives": 9, "tricks": []}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "right", "wrong"), KINDS, ids=[str(kind)[:40] for kind, *_ in KINDS])
def test_the_schema_of_a_type_takes_what_the_type_takes(
    kind: object, right: list[object], wrong: list[object]
) -> None:
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [value for value in right if not validator.is_valid(value)] == []
    assert [value for value in wrong if validator.is_valid(value)] == []


# Those that pydantic itself reads on every Python: before 3.12 it takes no TypedDict of typing.
READ = [
    pytest.param(kind, right, id=str(kind)[:40])
    for kind, right, _ in KINDS
    if "OldDict" not in str(kind) and kind is not Holder
]


@pytest.mark.parametrize(("kind", "right"), READ)
def test_what_the_schema_takes_the_type_reads(kind: Any, right: list[object]) -> None:
    for value in right:
        TypeAdapter(kind).validate_json(json.dumps(value))


@pytest.mark.parametrize(
    ("kind", "named"),
    [(date, "date"), (datetime, "date-time"), (UUID, "uuid")],
)
def test_dates_and_the_like_are_texts_of_their_format(kind: object, named: str) -> None:
    assert schema_of(kind) == {"type": "string", "format": named}


def test_keys_come_in_the_order_of_their_declaration() -> None:
    assert list(typing.cast("dict[str, object]", schema_of(Cat)["properties"])) == ["kind", "lives"]


def test_a_set_that_needs_several_items_says_that_they_differ() -> None:
    assert schema_of(Annotated[set[int], Field(min_length=2)])["uniqueItems"] is True


def test_a_term_within_a_type_is_about_the_whole_text_and_is_json_there() -> None:
    validator = jsonschema.Draft202012Validator(schema_of(list[terms.email]))  # type: ignore[valid-type]
    assert validator.is_valid(["a@b.org"])
    assert not validator.is_valid(["mail to a@b.org please"])

    class Person(BaseModel):
        initials: Annotated[Any, Regex("[A-Z]|[A-Z][A-Z]")]
        mail: terms.email  # type: ignore[valid-type]

    found = jsonschema.Draft202012Validator(schema_of(Person))
    assert found.is_valid({"initials": "AB", "mail": "a@b.org"})
    assert not found.is_valid({"initials": "AB", "mail": "x a@b.org"})


def test_a_default_that_is_no_json_is_left_out() -> None:
    class Job(BaseModel):
        done: Any = object()

    assert schema_of(Job)["properties"] == {"done": {"title": "Done"}}


WRITTEN = [each.values[0] for each in READ if each.values[0] is not Decimal]  # 1e999 is no Decimal


@pytest.mark.parametrize(
    "kind",
    [*WRITTEN, date, UUID, list[terms.email]],  # type: ignore[valid-type]
    ids=lambda kind: str(kind)[:40],
)
def test_what_masks_let_through_the_type_reads(compiler: GrammarCompiler, kind: Any) -> None:
    spec = SamplingParams(json_schema=kind, compact=True).structure
    assert spec is not None
    compiled = compiler.compile(spec)
    written = [written_by_chance(compiled, random.Random(seed)) for seed in range(6)]
    texts = [text for text in written if text is not None]
    assert texts
    for text in texts:
        TypeAdapter(kind).validate_json(text)


def written_by_chance(compiled: CompiledGrammar, chance: random.Random) -> str | None:
    """What is written by one who takes any allowed token, and likes to close what is open; None if that comes
    to no end."""
    grammar, row = compiled.start(), np.zeros(-(-VOCAB_SIZE // 32), dtype=np.int32)
    written = bytearray()
    for _ in range(300):
        grammar.mask_into(row)
        allowed = [each for each in range(VOCAB_SIZE) if row[each // 32] >> each % 32 & 1]
        if EOS_ID in allowed and (len(allowed) == 1 or chance.random() < 0.5):
            return written.decode()
        allowed = [each for each in allowed if each != EOS_ID]
        closing = [each for each in allowed if TOKENS[each] in (b'"', b"}", b"]")]
        token = chance.choice(closing if closing and chance.random() < 0.5 else allowed)
        assert grammar.accept([token]) == 1
        written += TOKENS[token]
    return None


# ---- functions


def test_a_function_is_an_object_of_its_parameters() -> None:
    schema = schema_of(search)
    assert schema["description"] == "Look something up.\n\nSlowly."
    assert schema["required"] == ["query"]
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"query": "a", "limit": 1, "colours": ["red"]})
    for wrong in ({}, {"query": "a", "limit": 0}, {"query": "a", "other": 1}, {"query": "a", "colours": [1]}):
        assert not validator.is_valid(wrong), wrong


def test_what_a_function_returns_need_not_be_known() -> None:
    def job(a: int) -> NoSuchType: ...  # type: ignore[name-defined]  # noqa: F821

    assert schema_of(job)["properties"] == {"a": {"title": "A", "type": "integer"}}


def test_methods_partials_wrapped_functions_and_lambdas_are_functions() -> None:
    class Desk:
        def look(self, at: OldDict) -> None:
            """Look at it."""

    @functools.wraps(search)
    def wrapped(*values: Any, **named: Any) -> Any: ...

    assert schema_of(Desk().look)["required"] == ["at"]
    assert schema_of(Desk().look)["description"] == "Look at it."
    assert schema_of(functools.partial(search, "a"))["properties"].keys() == {"limit", "colours"}  # type: ignore[attr-defined]
    assert schema_of(wrapped) == schema_of(search)
    assert schema_of(lambda: 1) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert schema_of(lambda a, b=1: a)["required"] == ["a"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda *a: a, "'<lambda>' must take its parameters by name, got '*a', which is variadic positional"),
        (lambda **a: a, "got '**a', which is variadic keyword"),
        (lambda a, /, b: a, "got 'a', which is positional-only"),
        (dict.get, "which is positional-only"),
        (getattr, "'getattr' does not say what its parameters are"),
    ],
)
def test_a_function_whose_parameters_have_no_names_is_refused(function: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        schema_of(function)
    assert message in str(caught.value)


# ---- what has a schema already


def test_a_mapping_and_the_schemas_of_others_are_left_as_they_are() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    builder = SchemaBuilder()
    builder.add_object({"a": 1})
    assert schema_of(schema) == schema
    assert schema_of(JsonSchema(schema)) == schema
    assert schema_of(JsonSchema("true")) == {}
    assert schema_of(JsonSchema(Animal)) == Animal.model_json_schema()
    assert schema_of(builder) == builder.to_schema()


@pytest.mark.parametrize("value", [5, 1.5, True, None, "int", b"a", ["a"], ("a",), {"a"}])
def test_a_value_is_no_type(value: object) -> None:
    with pytest.raises(InvalidRequest, match="a type is needed, got the value"):
        schema_of(value)


class Plain:
    pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Plain, "no JSON Schema for 'Plain': Unable to generate"),
        (Plain(), "Plain object at"),
        (typing.Callable, "Cannot generate a JsonSchema"),
        (list["NoSuchType"], "is not fully defined"),  # type: ignore[name-defined]  # noqa: F821
        (CFG("start: 'a'"), "Cannot convert object CFG"),
    ],
)
def test_what_has_no_schema_is_refused_with_the_reason(kind: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        schema_of(kind)
    assert message in str(caught.value)
    assert "allowed are a pydantic model, a dataclass," in str(caught.value)


def test_a_hook_that_fails_is_the_types_fault() -> None:
    class Broken:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: object) -> object:
            raise KeyError("oh")

    with pytest.raises(InvalidRequest, match=r"no JSON Schema for .*Broken.*: 'oh'"):
        schema_of(Broken)


# ---- choices


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (["b", "a", "b"], ("b", "a")),
        (("a",), ("a",)),
        (Literal["a", 'b"'], ("a", 'b"')),
        (Literal["a", "c", "b"], ("a", "c", "b")),
        (Annotated[Literal["a"], "note"], ("a",)),
        (typing_extensions.TypeAliasType("Named", Literal["a", "b"]), ("a", "b")),
        (Colour, ("red", "deep blue")),
        (Choice(["x", "y"]), ("x", "y")),
    ],
)
def test_choices_are_the_texts_of_a_list_a_literal_or_an_enum(value: object, texts: tuple[str, ...]) -> None:
    assert choices_of(value) == texts
    assert options_for(value) == {"choice": texts}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (str, "choice must be a list of texts, a Literal or an Enum of texts, got 'str'"),
        ("ab", "got 'ab'"),
        (Regex("a"), "got Regex"),
        (Literal["a", 1], "choice: an entry must be text, got 1"),
        (Level, "choice: an entry must be text, got 1"),
        ([], "choice must be a list of one text or more, got []"),
        (["a", ""], "choice must hold no empty text"),
    ],
)
def test_other_choices_are_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        choices_of(value)
    assert message in str(caught.value)


# ---- options for a type


@pytest.mark.parametrize(
    ("term", "options"),
    [
        (Regex("a|b"), {"regex": "a|b"}),
        (terms.email, {"regex": terms.email.pattern}),
        (CFG('start: "a"'), {"grammar": 'start: "a"', "grammar_kind": "lark"}),
        (JsonSchema({"type": "integer"}), {"json_schema": {"type": "integer"}}),
        (JsonSchema({"type": "integer"}, ""), {"json_schema": {"type": "integer"}, "compact": True}),
        (Choice(["a", 1]), {"regex": "(a|(1))"}),
        ("v" + Regex("[0-9]+"), {"regex": "v([0-9]+)"}),
        (terms.either("a.b", Regex("c")), {"regex": r"(a\.b|(c))"}),
        (terms.between(1, 2, "a"), {"regex": "(a){1,2}"}),
        (terms.optional(Regex("c")).one_or_more(), {"regex": "(((c))?)+"}),
    ],
)
def test_terms_keep_their_meaning(term: object, options: dict[str, object]) -> None:
    assert options_for(term) == options
    assert SamplingParams(**options_for(term)).structure is not None  # type: ignore[arg-type]


def test_types_become_json_and_only_choices_at_the_top_are_raw_text() -> None:
    assert options_for(str) == {"json_schema": {"type": "string"}}
    assert options_for(Level) == {"json_schema": {"enum": [1, 2], "title": "Level", "type": "integer"}}
    assert options_for(Literal["a", 1]) == {"json_schema": {"enum": ["a", 1]}}
    assert options_for(list[Colour]) == {"json_schema": schema_of(list[Colour])}
    assert options_for(search) == {"json_schema": schema_of(search)}
    assert options_for({"type": "integer"}) == {"json_schema": {"type": "integer"}}


@pytest.mark.parametrize("part", [JsonSchema({"minimum": 3}), CFG('start: "a"')])
def test_a_schema_or_a_grammar_is_no_part_of_a_pattern(part: Any) -> None:
    for term in ("a" + part, terms.optional(part), Choice(["a", part]), terms.either("a", "b" + part)):
        with pytest.raises(InvalidRequest, match="cannot be a part of a pattern, got"):
            options_for(term)


def test_a_python_type_is_no_part_of_a_pattern() -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be a part of a pattern, got 'int' in Choice"):
        options_for(Choice([int]))


def test_a_pattern_for_whitespace_is_refused_and_not_dropped() -> None:
    for use in (options_for, schema_of):
        with pytest.raises(InvalidRequest, match="whitespace_pattern must be left out"):
            use(JsonSchema({"type": "integer"}, whitespace_pattern=" ?"))


def test_options_are_what_a_request_takes() -> None:
    spec = SamplingParams(**options_for(Animal)).structure  # type: ignore[arg-type]
    assert spec is not None
    assert json.loads(spec.text) == schema_of(Animal)
    assert SamplingParams(json_schema=Animal).structure == spec


def test_neither_pydantic_nor_outlines_is_imported_for_what_needs_neither() -> None:
    code = (
        "import sys; from radixlm.runtime.grammar.python_types import *;"
        "from radixlm.runtime.sampling_params import SamplingParams;"
        "SamplingParams(**options_for({'type': 'integer'})); SamplingParams(**options_for(['a']));"
        "print(sorted({'pydantic', 'outlines', 'torch', 'numpy'} & sys.modules.keys()));"
        "options_for(int); print('outlines' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nFalse\n"
