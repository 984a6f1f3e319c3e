"""Schemas made at random, against a validator: nothing wrong is taken, and nothing wrong can be written."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.schema_check import check_instance
from radixlm.runtime.grammar.schema_normalise import Normalised, normalise
from testkit.byte_vocabulary import allowed, byte_vocabulary

VOCABULARY = byte_vocabulary(())
BACKEND = LlguidanceBackend(VOCABULARY)
KEYS = ("a", "b", "ab")
PATTERNS = ("^a", "b", "^[a-b]$", "a|c", "b$", "[^a]")
VALUES: tuple[Any, ...] = (None, True, False, 0, 1, 2, 3, -1, 1.5, 0.25, 10, "a", "b", "ab", "abc", "", "é")
TYPES: tuple[Any, ...] = (
    "null",
    "boolean",
    "number",
    "integer",
    "string",
    "array",
    "object",
    ["string", "object"],
    ["array", "integer"],
)
CLOSERS = frozenset(b'"]}')


class Maker:
    """Values and schemas of a few levels, which meet often because there are few keys and values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        kind = self.rng.random()
        if depth < 2 and kind < 0.25:
            keys = self.rng.sample(KEYS, self.rng.randint(0, 3))
            return {key: self.value(depth + 1) for key in keys}
        if depth < 2 and kind < 0.45:
            return [self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        return self.rng.choice(VALUES)

    def schema(self, depth: int = 0) -> Any:
        if depth > 2 or self.rng.random() < 0.05:
            return self.rng.choice([True, False, {}, {"type": "integer"}, {"const": 1}, {"enum": ["a", 2]}])
        schema: dict[str, Any] = {}
        if self.rng.random() < 0.6:
            schema["type"] = self.rng.choice(TYPES)
        for _ in range(self.rng.randint(1, 3)):
            schema.update(self.keywords(depth + 1))
        shuffled = list(schema.items())
        self.rng.shuffle(shuffled)
        return dict(shuffled)

    def schemas(self, depth: int) -> list[Any]:
        return [self.schema(depth) for _ in range(self.rng.randint(1, 3))]

    def keywords(self, depth: int) -> dict[str, Any]:
        rng = self.rng
        key, other, pattern = rng.choice(KEYS), rng.choice(KEYS), rng.choice(PATTERNS)
        number = rng.choice([0, 1, 2, 3, -1, 1.5, 0.5])
        choices: list[dict[str, Any]] = [
            {"enum": [self.value() for _ in range(rng.randint(1, 4))]},
            {rng.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]): number},
            {"multipleOf": rng.choice([1, 2, 0.5, 1.5])},
            {"minLength": rng.randint(0, 2), "maxLength": rng.randint(0, 3)},
            {"pattern": pattern},
            {"items": self.schema(depth), "minItems": rng.randint(0, 1)},
            {"prefixItems": self.schemas(depth), "maxItems": rng.randint(0, 3)},
            {"contains": self.schema(depth), "minContains": rng.randint(0, 2)},
            {"uniqueItems": True},
            {"properties": {key: self.schema(depth), other: self.schema(depth)}},
            {"required": [key]},
            {"additionalProperties": rng.choice([False, self.schema(depth)])},
            {"patternProperties": {pattern: self.schema(depth)}},
            {"propertyNames": rng.choice([{"pattern": pattern}, {"enum": ["a", "b"]}, {"maxLength": 1}])},
            {"minProperties": rng.randint(0, 2)},
            {"maxProperties": rng.randint(0, 2)},
            {"dependentRequired": {key: [other]}},
            {"dependentSchemas": {key: self.schema(depth)}},
            {rng.choice(["allOf", "anyOf", "oneOf"]): self.schemas(depth)},
            {"not": self.schema(depth)},
            {"if": self.schema(depth), "then": self.schema(depth), "else": self.schema(depth)},
            {
                rng.choice(["unevaluatedProperties", "unevaluatedItems"]): rng.choice(
                    [False, self.schema(depth)]
                )
            },
            {"$ref": "#/$defs/x"},
        ]
        return rng.choice(choices)


def orders(value: Any) -> Iterator[Any]:
    """The value with its keys in some other orders."""
    if isinstance(value, dict):
        for keys in itertools.permutations(value):
            for parts in itertools.product(*(list(orders(value[key])) for key in keys)):
                yield dict(zip(keys, parts, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*map(list, map(orders, value))))
    else:
        yield value


def accepts(compiled: CompiledGrammar, value: Any) -> bool:
    """In some order of its keys."""
    for ordered in itertools.islice(orders(value), 24):
        ids = list(json.dumps(ordered, ensure_ascii=False).encode())
        grammar = compiled.start()
        if grammar.accept(ids) == len(ids) and grammar.accepting:
            return True
    return False


def walk(compiled: CompiledGrammar, rng: random.Random) -> str | None:
    """A text drawn from the masks; None if it does not end in time."""
    grammar, text = compiled.start(), bytearray()
    for step in range(120):
        ids = allowed(grammar, VOCABULARY)
        assert ids, f"nothing may follow {bytes(text)!r}"
        assert grammar.error is None
        closing = sorted(ids & CLOSERS)
        if ids & set(VOCABULARY.eos_ids) and rng.random() < 0.5:
            return text.decode()
        ids -= set(VOCABULARY.eos_ids)
        chosen = rng.choice(closing if closing and rng.random() < step / 60 else sorted(ids) or [-1])
        if chosen < 0:
            return text.decode()
        assert grammar.accept([chosen]) == 1
        text.append(chosen)
    return None


@pytest.mark.parametrize("seed", range(40))
def test_exact_grammars_take_and_write_nothing_that_a_validator_refuses(seed: int) -> None:
    maker = Maker(seed)
    for _ in range(3):
        schema = maker.schema()
        if isinstance(schema, dict):
            try_schema({**schema, "$defs": {"x": maker.schema(2)}}, maker)


def try_schema(schema: Any, maker: Maker) -> None:
    values = [maker.value() for _ in range(12)]
    right = [value for value in values if check_instance(schema, json.dumps(value)) is None]
    normalised = normalised_or_none(schema, is_satisfied=bool(right))
    if normalised is None:
        return
    compiled = BACKEND.json(normalised.schema, compact=False)
    if normalised.unenforced:
        assert all(accepts(compiled, value) for value in right), schema
        return
    for value in values:
        assert value in right or not accepts(compiled, value), (schema, value)
    for _ in range(2):
        text = walk(compiled, maker.rng)
        assert text is None or check_instance(schema, text) is None, (schema, text)


def normalised_or_none(schema: Any, *, is_satisfied: bool) -> Normalised | None:
    """None for what is refused, as what some value satisfies is only for what it refers to."""
    if is_satisfied:
        try:
            return normalise(schema)
        except InvalidRequest as error:
            if "refers to itself" in str(error):
                return None
            raise
    with contextlib.suppress(InvalidRequest):
        return normalise(schema)
    return None
