"""Grammars of llama.cpp, translated and walked."""

from __future__ import annotations

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.gbnf import gbnf_to_lark
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_vocabulary import byte_vocabulary, takes

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws (
            value          # a comment with "quotes"
    ("," ws value)*
  )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


@pytest.mark.parametrize(
    ("grammar", "whole", "not_whole"),
    [
        (JSON, ["{}", '{"a": [1, {"b": null}], "c":"x\\n"}'], ["[1]", '{"a"}', '{"a":"\n"}']),
        ('root ::= [a-z]+ "x"', ["abx", "xx"], ["ab", "x"]),
        ('root ::= "\\u0041\\U0001F600" [\\u0041-\\u0043]', ["A\U0001f600B"], ["A\U0001f600D"]),
        ('root ::= "a\\x41\\"\\\\\\[\\n"', ['aA"\\[\n'], ["aA"]),
        ("root ::= [a&&b]", ["a", "b", "&"], ["c", ""]),
        ("root ::= [-a] [a-] [b\\-d] [^^] [/]", ["--bx/", "aadx/"], ["--cx/", "--b^/"]),
        ("root ::= [\\]\\[\\\\]", ["]", "[", "\\"], ["a"]),
        ('root ::= . "a"', ["\na", "日a"], ["a"]),
        ('root ::= "a" |', ["", "a"], ["aa"]),
        ('root ::= ( | "x") () "y"', ["y", "xy"], ["x"]),
        ('root ::= "a"{,3}{2} "b"{1,} "c"{2}', ["bcc", "aaaaaabbcc"], ["aaaaaaabcc", "bc"]),
        ('root ::= ("ab" | "c")+?', ["", "abc"], ["a"]),
        ('root ::= start fooBar foo-bar\nstart ::= "1"\nfooBar ::= "2"\nfoo-bar ::= "3"', ["123"], ["12"]),
        ('root ::=\n  a |\n  b\na ::= "x"\r\nb::="y"', ["x", "y"], ["xy"]),
        ('root ::= "(" root ")" | "日本"', ["((日本))"], ["(日本"]),
    ],
)
def test_what_llama_cpp_would_take_is_taken(
    backend: LlguidanceBackend,
    vocabulary: GrammarVocabulary,
    grammar: str,
    whole: list[str],
    not_whole: list[str],
) -> None:
    compiled = backend.gbnf(grammar)
    for text in whole:
        assert takes(compiled, vocabulary, text), text
    for text in not_whole:
        assert not takes(compiled, vocabulary, text), text


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('foo ::= "a"', "a rule named root"),
        ("", "a rule named root"),
        ("root ::= bar", "'bar' at line 1, column 10 is no rule"),
        ('root ::= a\na ::= "x"\na ::= "y"', "'a' at line 3, column 1 is defined twice"),
        ('root ::= "a" @', "'@' at line 1, column 14 cannot be read"),
        ('root ::= "a', "at line 1, column 10 cannot be read"),
        ('root ::= "a\\q"', "is no escape"),
        ("root ::= [\\ud800]", "is no escape"),
        ("root ::= []", "holds no character"),
        ("root ::= [^]", "holds no character"),
        ('root ::= * "a"', "repeats nothing"),
        ('root ::= "a" | +', "repeats nothing"),
        ('root ::= "a"{}', "needs a number"),
        ('root ::= "a"{3,2}', "wrong way round"),
        ('root ::= ("a"', "missing"),
        ('root ::= "a")', "closes nothing"),
        ('"a" root ::= "b"', "stands where the name of a rule"),
        ('root ::= "a" ::= "b"', "stands where the name of a rule"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(grammar: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"grammar.*{reason}"):
        gbnf_to_lark(grammar)


def test_long_chains_of_rules_are_translated_at_once() -> None:
    rules = [f'r{i} ::= "{i}" | r{i + 1}' for i in range(10_000)]
    lark = gbnf_to_lark("\n".join(["root ::= r0", *rules, 'r10000 ::= "x"']))
    assert lark.startswith("start: T0\n")
    assert len(lark.splitlines()) == 10_003
