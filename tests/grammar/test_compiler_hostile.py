"""GrammarCompiler with the real engines: hostile input ends as an answer, and nothing else waits for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.compile_jobs import CompileLimits
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.spec import GrammarSpec, Kind
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_tokenizer import EOS_ID, VOCAB_SIZE, build_byte_tokenizer

HASTY = replace(CompileLimits(), index_seconds=0.3, prove_seconds=0.3, most_waiting_seconds=600.0)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary.of(build_byte_tokenizer(), VOCAB_SIZE)


@pytest.fixture(scope="module")
def compiler(vocabulary: GrammarVocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, limits=HASTY)
    yield compiler
    compiler.close()


def json_spec(schema: object, **options: bool) -> GrammarSpec:
    return GrammarSpec("json", json.dumps(schema), **options)  # type: ignore[arg-type]


def takes(compiled: CompiledGrammar, vocabulary: GrammarVocabulary, text: str) -> bool:
    """Whether the whole text, and then its end, are allowed token by token."""
    grammar = compiled.start()
    row = np.zeros(vocabulary.words, np.int32)
    for token_id in [*vocabulary.encode(text), EOS_ID]:
        grammar.mask_into(row)
        if not row[token_id // 32] >> token_id % 32 & 1 or grammar.accept([token_id]) != 1:
            return False
    return grammar.error is None


EXAMPLES: list[tuple[GrammarSpec, str, str]] = [
    (json_spec(PERSON), '{"name":"Ann","age":7}', '{"name":"Ann"}'),
    (json_spec({**PERSON, "minProperties": 2, "$comment": "no cheap one"}), '{"name":"", "age":0}', "{}"),
    (json_spec({"type": "string", "pattern": "^ab+$"}), '"abb"', '"a"'),
    (GrammarSpec("regex", r"(foo|bar){2}\d"), "foobar7", "foo7"),
    (GrammarSpec("choice", '["yes","no"]'), "no", "maybe"),
    (GrammarSpec("choice", json.dumps([f"answer {n}" for n in range(2000)])), "answer 1999", "answer"),
    (GrammarSpec("lark", 'start: "a" start "b" | "c"'), "aacbb", "aacb"),
    (GrammarSpec("gbnf", 'root ::= "a" root | "b"'), "aab", "a"),
    (GrammarSpec("regex", "[0-9]+", after="</think>"), "12? so</think>12", "12"),
]


@pytest.mark.parametrize(("spec", "good", "bad"), EXAMPLES)
def test_every_kind_is_compiled(
    compiler: GrammarCompiler, vocabulary: GrammarVocabulary, spec: GrammarSpec, good: str, bad: str
) -> None:
    compiled = compiler.compile(spec)
    assert takes(compiled, vocabulary, good)
    assert not takes(compiled, vocabulary, bad)


def test_a_grammar_with_a_marker_before_it_is_that_without_one_compiled_once(
    compiler: GrammarCompiler,
) -> None:
    plain = GrammarSpec("lark", 'start: "only once"')
    before = compiler.stats()
    compiler.compile(replace(plain, after="<a>"))
    assert compiler.stats().cache.entries == before.cache.entries + 2
    compiler.compile(replace(plain, after="<b>"))
    compiler.compile(plain)
    assert compiler.stats().compiled == before.compiled + 2


def test_a_marker_in_front_of_what_is_refused_is_refused(compiler: GrammarCompiler) -> None:
    for after in (None, "<a>", "<b>"):
        with pytest.raises(InvalidRequest, match="cannot be compiled"):
            compiler.compile(GrammarSpec("lark", "start: nothing", after=after))


def test_what_masks_cannot_enforce_is_refused_or_left_to_a_check(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(InvalidRequest, match="'uniqueItems' at /uniqueItems"):
        compiler.compile(json_spec(schema))
    compiled = compiler.compile(json_spec(schema, relaxed=True))
    assert not compiled.report.is_exact
    assert compiled.check("[1,2]") is None
    assert compiled.check("[1,1]") is not None


# -- hostile -------------------------------------------------------------------------------------------


def doubling(depth: int) -> dict[str, object]:
    """References that double at every level: a billion of them, written out."""
    below = {f"a{n}": {"$ref": f"#/$defs/a{n}"} for n in range(depth + 1)}
    levels = {
        f"a{n}": {"type": "object", "properties": {"x": below[f"a{n + 1}"], "y": below[f"a{n + 1}"]}}
        for n in range(depth)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**levels, f"a{depth}": {"type": "string"}}}


def chain(length: int) -> dict[str, object]:
    """Objects in objects, further than a stack is deep."""
    levels = {
        f"a{n}": {"type": "object", "properties": {"p": {"$ref": f"#/$defs/a{n + 1}"}}} for n in range(length)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**levels, f"a{length}": {"type": "string"}}}


def nested(depth: int) -> object:
    schema: object = {"type": "string", "pattern": "^a$"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


WIDE = {"type": "object", "properties": {f"property {n}": {"type": "string"} for n in range(4000)}}
PATTERNS = [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(2, 16)]
TERMINALS = " & ".join(f"/(a|b)*a(a|b){{{n}}}/" for n in range(3, 20))
NAMES = [f"a{n}" for n in range(5000)]

HOSTILE: dict[str, tuple[Kind, str]] = {
    "a schema as deep as is allowed": ("json", json.dumps(nested(30))),
    "a wide schema": ("json", json.dumps(WIDE)),
    "references that double": ("json", json.dumps(doubling(30))),
    "a long chain of objects": ("json", json.dumps(chain(4000))),
    "a large enum": ("json", json.dumps({"enum": [f"value {n}" for n in range(10_000)]})),
    "patterns to be met at once": ("json", json.dumps({"allOf": PATTERNS})),
    "alternatives to be multiplied": (
        "json",
        json.dumps({"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in range(8)]} for n in range(8)]}),
    ),
    "repetitions": ("regex", "(a|a)*b{1000}"),
    "repetitions of repetitions": ("regex", "((a{1,100}){1,100}){1,100}"),
    "words": ("regex", r"\w{1,200}"),
    "backtracking": ("regex", "(x+x+)+y"),
    "a count of what has been": ("regex", "(a|b)*a(a|b){200}c"),
    "many brackets": ("regex", "(" * 4000 + "a" + ")" * 4000),
    "a long choice": ("choice", json.dumps([f"{n} is one of them" for n in range(9_000)])),
    "terminals to be met at once": ("lark", f"start: A\nA: {TERMINALS}\n"),
    "a long chain of rules": (
        "lark",
        "start: a0\n" + "".join(f"{name}: {after}\n" for name, after in pairwise(NAMES)),
    ),
    "rules that double": ("lark", "start: a0\n" + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(60))),
    "ambiguity": ("lark", 'start: s\ns: s s | s s s | "a" | ""\n'),
}


def test_each_hostile_request_is_answered_and_none_is_waited_for(
    compiler: GrammarCompiler, vocabulary: GrammarVocabulary
) -> None:
    specs = {name: GrammarSpec(kind, text) for name, (kind, text) in HOSTILE.items()}
    futures = {name: compiler.submit(spec) for name, spec in specs.items()}
    for number in range(20):
        answer = compiler.submit(json_spec({"type": "object", "properties": {f"p{number}": True}}))
        assert takes(answer.result(60), vocabulary, "{}")
    assert any(not future.done() for future in futures.values())
    errors = {name: future.exception(120) for name, future in futures.items()}
    assert {type(error) for error in errors.values()} <= {InvalidRequest, type(None)}
    assert errors["a long chain of objects"] is not None, "it would overflow the stack of this process"
    answer = compiler.submit(GrammarSpec("regex", "after all that"))
    assert takes(answer.result(60), vocabulary, "after all that")


def test_distinct_schemas_stay_within_the_bound_of_the_cache(vocabulary: GrammarVocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, cache_bytes=4 << 20)
    for number in range(120):
        compiler.compile(json_spec({"type": "object", "properties": {f"p{number}": {"type": "string"}}}))
        assert compiler.stats().cache.bytes <= 4 << 20
    stats = compiler.stats().cache
    assert stats.evictions > 0
    assert stats.entries + stats.evictions == 120
    compiler.close()
