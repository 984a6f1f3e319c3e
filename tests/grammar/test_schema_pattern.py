"""Patterns of JSON Schema: found anywhere in a text, as ECMA-262 and Python read them alike."""

from __future__ import annotations

import json
import re

import pytest

from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.schema_automaton import Automaton, both
from radixlm.runtime.grammar.schema_ecma import BadPattern
from radixlm.runtime.grammar.schema_pattern import Pattern, parse_pattern
from radixlm.runtime.grammar.schema_regex import Unsupported, all_but, lengths
from testkit.byte_vocabulary import byte_vocabulary, takes

VOCABULARY = byte_vocabulary(())
BACKEND = LlguidanceBackend(VOCABULARY)
TEXTS = (
    "", "a", "b", "x", "A", "ab", "xab", "{a}", "aB", "abc", "1", "_", "-", "/a/", " ", "x y", "@", "a@b.c",
    "123456789", "c", "aaa", "&", "~", "]", "[", "^", "a-b", "\t", "\U0001f642", "日本",
)  # fmt: skip
ALIKE = (
    "^a$", "^a|b$", "(^a|^b)", "^(a|b)$|^$", "(^$)|(^x$)", r"^[^\s]+$", r"\-", r"\_", r"\x41", r"[[]",
    r"^\/a\/$", r"(?P<n>a)", "^$", r"[\d_]", r"a{1,3}?", "x*", r"\S", r"[\s\S]", "^", "$", "", "^^a",
    "a|^$", "()", "(|a)b", r"^(\{[a-z]+\})|([a-z]+)$", r"^[^@^\s]+@[^@^\.^\s]+(\.[^@^\.^\s]+)+$", "(a$|b)",
    "^.*$", "^.{2,}$", "[a&&b]", r"[\]\[]", "[^a-c]", "a{2}", "^(ab?){1,2}$", r"\.c", "日.", "{a}",
)  # fmt: skip


def matched_by_engine(source: str) -> list[bool]:
    compiled = BACKEND.json({"type": "string", "pattern": parse_pattern(source).written()}, compact=True)
    return [takes(compiled, VOCABULARY, json.dumps(text, ensure_ascii=False)) for text in TEXTS]


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("source", ALIKE)
def test_a_pattern_means_to_the_engine_and_to_a_match_what_it_means_to_a_validator(source: str) -> None:
    expected = [re.search(source, text) is not None for text in TEXTS]
    assert [parse_pattern(source).matches(text) for text in TEXTS] == expected
    assert matched_by_engine(source) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (".", "\r"),
        (".", "\u2028"),
        (r"\s", "\ufeff"),
        (r"\s", "\x85"),
        (r"\S", "\x85"),
        (r"^[^\d]$", "٣"),
        (r"^\W$", "é"),
    ],
)
def test_characters_that_dialects_read_differently_are_not_written(source: str, text: str) -> None:
    assert not parse_pattern(source).matches(text)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(?=a)", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        (r"\bx", "word boundary"),
        (r"(a)\1", "back reference"),
        ("a{,2}", "without a minimum"),
        ("a^", "anchor inside"),
        ("(a$|b)c", "anchor inside"),
        ("[]a]", "starts with ]"),
        (r"\Ax", "read differently"),
        ("a++", "count of a count"),
        ("(?s)a", "group that starts with"),
        ("a" * 9000, "characters"),
        ("(" * 200 + ")" * 200, "nested too deep"),
        ("a{9999}", "count over"),
    ],
)
def test_what_no_automaton_can_tell_is_not_supported(source: str, why: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(why)):
        parse_pattern(source)


@pytest.mark.parametrize("source", ["(", "a)", "[b-a]", "*a", "[a", "a{3,2}", "\\"])
def test_what_is_no_regular_expression_is_told_apart(source: str) -> None:
    with pytest.raises(BadPattern, match="at character"):
        parse_pattern(source)


def test_lengths_of_matches_are_known() -> None:
    assert lengths(parse_pattern("^a{2,3}(b|cd)$").tree) == (3, 5)
    assert lengths(parse_pattern("a").tree) == (1, None)
    assert lengths(parse_pattern("^$").tree) == (0, 0)


def test_every_text_but_some_is_a_pattern() -> None:
    pattern = Pattern(all_but(("a", "ab", "", "é")))
    assert [text for text in (*TEXTS, "é", "éa") if not pattern.matches(text)] == ["", "a", "ab", "é"]


def test_texts_are_told_apart_by_the_patterns_that_match_them() -> None:
    trees = [parse_pattern(source).tree for source in ("^a", "b$")]
    automaton = Automaton(trees)
    assert set(automaton.holdings) == {(False, False), (True, False), (False, True), (True, True)}
    for holding in automaton.holdings:
        pattern = Pattern(automaton.tree_of({holding}))
        for text in TEXTS:
            found = (text.startswith("a"), text.endswith("b"))
            assert pattern.matches(text) == (found == holding), (holding, text)


def test_two_patterns_that_exclude_each_other_leave_nothing() -> None:
    nothing = Pattern(both(parse_pattern("^a+$").tree, parse_pattern("^b+$").tree))
    assert not any(nothing.matches(text) for text in TEXTS)


def test_automata_are_bounded() -> None:
    for source in ("^(a|b)*a(a|b){12}$", "(((a{1,100}){1,100}){1,100})"):
        with pytest.raises(Unsupported):
            Automaton([parse_pattern(source).tree])


def test_a_match_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(Unsupported, match="too long to match"):
        parse_pattern("^(a|a)*(a|aa)*$").matches("a" * 5000 + "b")
