"""Grammars of llguidance through the contract of protocol.py: what is taken, and what goes wrong quietly."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar import llguidance_backend
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.llguidance_grammar import CompiledLlguidance
from radixlm.runtime.grammar.protocol import Grammar, Unenforced
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_vocabulary import allowed, byte_vocabulary, control_id, mask_row, takes

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
# Each further letter makes new states of the lexer: thousands of them go over the limit.
MANY_STATES = "(a|b)*a[ab]{20}d"
# A few letters lead to where one more costs more than a step may.
COSTLY = "(((a|b){1,50}){1,50}){1,50}"


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def backend(vocabulary: GrammarVocabulary) -> LlguidanceBackend:
    return LlguidanceBackend(vocabulary)


@pytest.fixture(scope="module")
def person(backend: LlguidanceBackend) -> CompiledLlguidance:
    return backend.json(PERSON, compact=True)


def test_a_json_grammar_takes_values_of_the_schema_alone(
    person: CompiledLlguidance, vocabulary: GrammarVocabulary
) -> None:
    assert takes(person, vocabulary, '{"name":"日本 \U0001f642","age":-3}')
    assert takes(person, vocabulary, '{"name":""}')
    for wrong in ('{"age":3}', '{"name":1}', '{"name":"a","x":1}', '{"name":"a"', '{"name":"<eos>"}'[:-1]):
        assert not takes(person, vocabulary, wrong)
    assert person.report.is_exact
    assert person.check("anything") is None
    assert person.size_bytes > 0


def test_what_normalising_left_out_is_reported(backend: LlguidanceBackend) -> None:
    lost = Unenforced("uniqueItems", "/properties/a", "no room")
    assert backend.json({}, compact=False, unenforced=[lost]).report.unenforced == (lost,)


def test_control_tokens_are_never_text(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    grammar = backend.regex("(?s:.*)").start()
    assert allowed(grammar, vocabulary) & vocabulary.special_ids == set(vocabulary.eos_ids)
    assert grammar.accept([control_id(vocabulary, "<call>")]) == 0
    assert grammar.accept(vocabulary.encode("<call><eos>")) == len("<call><eos>")


def test_the_end_is_allowed_where_the_text_may_end_with_every_id_of_it(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    ends = set(vocabulary.eos_ids)
    grammar = backend.regex("a|ab").start()
    assert not allowed(grammar, vocabulary) & ends
    assert grammar.accept(list(ends)) == 0
    assert grammar.accept([ord("a")]) == 1
    assert grammar.accepting
    assert not grammar.terminated
    assert allowed(grammar, vocabulary) == {ord("b"), *ends}
    for end in ends:
        ended = grammar.fork()
        assert ended.accept([end]) == 1
        assert ended.terminated
        assert ended.accepting
        assert allowed(ended, vocabulary) == ends
        assert ended.accept([ord("b")]) == 0
        ended.rollback(1)
        assert not ended.terminated
        assert allowed(ended, vocabulary) == {ord("b"), *ends}


def test_a_grammar_with_no_way_on_is_terminated_and_can_be_taken_back(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    grammar = backend.regex("ab").start()
    end = vocabulary.eos_ids[0]
    assert grammar.accept([ord("a"), ord("b"), end, ord("x")]) == 3
    assert grammar.terminated
    grammar.rollback(1)
    assert grammar.terminated
    assert allowed(grammar, vocabulary) == set(vocabulary.eos_ids)
    grammar.rollback(2)
    assert not grammar.accepting
    assert grammar.accept(vocabulary.encode("ab")) == 1
    assert grammar.terminated


def test_a_refused_token_changes_nothing(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    grammar = backend.regex("abc|abd").start()
    strange = [control_id(vocabulary, "<think>"), vocabulary.width - 1, vocabulary.width, 10**12, -1]
    for refused in (ord("x"), *strange):
        assert grammar.accept([ord("a"), refused, ord("b")]) == 1
        assert grammar.accept([ord("b"), refused]) == 1
        assert grammar.error is None
        assert allowed(grammar, vocabulary) == {ord("c"), ord("d")}
        grammar.rollback(1)
        assert ord("b") in allowed(grammar, vocabulary)
        grammar.rollback(1)
    assert grammar.accept(vocabulary.encode("abd")) == 2


def test_more_than_was_accepted_cannot_be_taken_back(person: CompiledLlguidance) -> None:
    grammar = person.start()
    grammar.accept([ord("{")])
    with pytest.raises(AssertionError, match="taken back"):
        grammar.rollback(2)


@given(data=st.data())
def test_forks_and_ways_back_lead_where_a_new_walk_leads(data: st.DataObject) -> None:
    vocabulary, compiled = _shared_person()
    grammar = compiled.start()
    history: list[int] = []
    for _ in range(data.draw(st.integers(0, 12))):
        step = data.draw(st.sampled_from(["accept", "accept", "accept", "junk", "back", "fork"]))
        if step == "accept":
            token_id = data.draw(st.sampled_from(sorted(allowed(grammar, vocabulary))))
            assert grammar.accept([token_id]) == 1
            history.append(token_id)
        elif step == "junk":
            token_id = data.draw(st.integers(-2, vocabulary.width + 2))
            history += [token_id] * grammar.accept([token_id])
        elif step == "back":
            count = data.draw(st.integers(0, len(history)))
            grammar.rollback(count)
            del history[len(history) - count :]
        else:
            other = grammar.fork()
            other.accept(sorted(allowed(other, vocabulary))[:1])
        fresh = compiled.start()
        assert fresh.accept(history) == len(history)
        assert (fresh.accepting, fresh.terminated) == (grammar.accepting, grammar.terminated)
        assert allowed(fresh, vocabulary) == allowed(grammar, vocabulary)
        assert grammar.error is None


def test_masks_fill_rows_of_their_size_alone(
    person: CompiledLlguidance, vocabulary: GrammarVocabulary
) -> None:
    grammar = person.start()
    with pytest.raises(AssertionError, match="one word for each"):
        grammar.mask_into(mask_row(vocabulary)[1:])
    with pytest.raises(AssertionError, match="side by side"):
        grammar.mask_into(mask_row(vocabulary).repeat(2)[::2])


def test_compact_values_force_their_keys_and_leave_the_rest_to_the_model(
    person: CompiledLlguidance, vocabulary: GrammarVocabulary
) -> None:
    grammar = person.start()
    forced = grammar.forced_tokens()
    assert [vocabulary.tokens[i] for i in forced] == [b'{"', *(bytes([b]) for b in b"name"), b'":']
    assert grammar.forced_tokens() == forced, "asking does not move on"
    assert grammar.accept(forced) == len(forced)
    assert grammar.forced_tokens() == [], "what follows might be written in one with the quote"
    assert grammar.accept(vocabulary.encode('"x"}')) == 4
    assert grammar.forced_tokens() == [], "the end is not forced"


def test_spaced_values_force_no_token_that_a_blank_could_replace(backend: LlguidanceBackend) -> None:
    grammar = backend.json(PERSON, compact=False).start()
    assert grammar.forced_tokens() == []


def test_a_limit_met_by_one_text_is_its_error_alone(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    compiled = backend.regex(COSTLY)
    other = compiled.start()
    assert other.accept([ord("a")]) == 1
    grammar = compiled.start()
    written = _write_until_error(grammar, vocabulary)
    assert 5 < written < 100
    assert grammar.error == "lexer error: too many expressions constructed"
    assert grammar.accept([ord("a")]) == 0
    assert grammar.forced_tokens() == []
    assert not grammar.accepting
    assert not grammar.terminated
    assert allowed(grammar, vocabulary) == set(vocabulary.eos_ids)
    assert grammar.fork().error == grammar.error
    for spared in (other, compiled.start()):
        assert allowed(spared, vocabulary) >= {ord("a"), ord("b")}
        assert spared.accept([ord("b")]) == 1
        assert spared.error is None
    grammar.rollback(written - 2)
    assert grammar.error is None
    assert allowed(grammar, vocabulary) >= {ord("a"), ord("b"), *vocabulary.eos_ids}


def test_a_full_lexer_is_replaced(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    compiled = backend.regex(MANY_STATES)
    assert _write_until_error(compiled.start(), vocabulary, most=5000) == 5000
    assert takes(compiled, vocabulary, "a" * 21 + "d")


def test_a_grammar_that_takes_long_to_build_is_built_again_beside_its_texts(
    vocabulary: GrammarVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance_backend, "_QUICK_SECONDS", -1.0)
    before = set(threading.enumerate())
    compiled = LlguidanceBackend(vocabulary).regex(COSTLY)
    grammar = compiled.start()
    _write_until_error(grammar, vocabulary)
    for thread in set(threading.enumerate()) - before:
        thread.join()
    assert compiled.start().error is None
    assert takes(compiled, vocabulary, "abba")


def test_a_grammar_that_leads_nowhere_says_so(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    grammar = backend.lark('start: "a" T\nT: /[b]/ & /[c]/\n').start()
    assert grammar.accept([ord("a")]) == 1
    assert allowed(grammar, vocabulary) == set(vocabulary.eos_ids)
    assert grammar.error == "NoExtensionBias"
    grammar = backend.lark('start: "a" <eos> "b"\n').start()
    assert grammar.accept([ord("a")]) == 1
    assert allowed(grammar, vocabulary) == set(vocabulary.eos_ids)
    assert grammar.error == "the grammar goes on behind a token that ends the text"


def test_what_no_token_can_write_is_an_error_where_it_is_due() -> None:
    vocabulary = GrammarVocabulary([b"a", b"b", b""], {2: "<eos>"}, [2], 3)
    grammar = LlguidanceBackend(vocabulary).regex("a\x04b").start()
    assert grammar.accept([0]) == 1
    assert allowed(grammar, vocabulary) == {2}
    assert grammar.error is not None


def test_threads_share_a_compiled_grammar(person: CompiledLlguidance, vocabulary: GrammarVocabulary) -> None:
    ids = vocabulary.encode('{"name":"the one","age":12}')
    alone = [sorted(allowed(grammar, vocabulary)) for grammar in _along(person, ids)]
    found: list[list[list[int]]] = []

    def walk() -> None:
        for _ in range(20):
            found.append([sorted(allowed(grammar, vocabulary)) for grammar in _along(person, ids)])

    threads = [threading.Thread(target=walk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 80


@pytest.mark.parametrize(
    ("pattern", "whole", "not_whole"),
    [
        ("日本語", ["日本語"], ["日本", "日"]),
        ("[\U0001f600-\U0001f64f]", ["\U0001f642"], ["\U0001f300", "a"]),
        ("a|ab", ["a", "ab"], ["abb", ""]),
        ("", [""], ["a"]),
        ('a/b"#x', ['a/b"#x'], ["a"]),
        (r"\w+@x\.com", ["é@x.com"], ["@x.com"]),
    ],
)
def test_a_regex_takes_whole_matches(
    backend: LlguidanceBackend,
    vocabulary: GrammarVocabulary,
    pattern: str,
    whole: list[str],
    not_whole: list[str],
) -> None:
    compiled = backend.regex(pattern)
    assert all(takes(compiled, vocabulary, text) for text in whole)
    assert not any(takes(compiled, vocabulary, text) for text in not_whole)


def test_a_choice_takes_its_texts_to_the_letter(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    texts = ['a"b', "a\\b", "a\nb", "\u2028", "\U0001f600日", "/x/", "<eos>", "%json", "a#b//c", "\x01\x7f"]
    texts += ["a", "ab", " x", "(a|b)", "\\n", "$"]
    compiled = backend.choice(texts)
    for text in texts:
        grammar = compiled.start()
        assert grammar.accept(vocabulary.encode(text)) == len(vocabulary.encode(text))
        assert grammar.accepting
    for text in ("x", "abb", "b", "(", "\n", "aab"):
        assert not takes(compiled, vocabulary, text)


def test_twenty_thousand_choices_work(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    letters = random.Random(3)
    texts = ["".join(letters.choices("abcdefgh", k=12)) for _ in range(20_000)]
    compiled = backend.choice(texts)
    for text in texts[::4000]:
        assert takes(compiled, vocabulary, text)
    assert not takes(compiled, vocabulary, "z" * 12)


def test_lark_is_taken_as_it_is(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    compiled = backend.lark('start: "(" start ")" | NUMBER\nNUMBER: /[0-9]+/\n')
    assert takes(compiled, vocabulary, "((12))")
    assert not takes(compiled, vocabulary, "((12)")
    assert not takes(compiled, vocabulary, "()")


def test_a_grammar_of_llama_cpp_is_taken(backend: LlguidanceBackend, vocabulary: GrammarVocabulary) -> None:
    compiled = backend.gbnf('root ::= "[" ws (root ("," ws root)*)? "]" ws\nws ::= [ \\n]*\n')
    assert takes(compiled, vocabulary, "[[], [\n ]] ")
    assert not takes(compiled, vocabulary, "[[],]")


@pytest.mark.parametrize(
    ("what", "text", "reason"),
    [
        ("regex", "a(?=b)", "regex .*look-around"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(" * 300 + ")" * 300, "nested"),
        ("lark", "start: foo\n", 'grammar .*line 1, column 8: unknown name: "foo"'),
        ("lark", 'start: "a\n', "line 1, column 10"),
        ("lark", "", "Empty grammar"),
        ("lark", '{"grammars": [{"json_schema": {}}]}', "must be Lark"),
        ("lark", 'start: %json {"not": {"type": "string"}}', r"Unimplemented keys: \[\"not\"\]"),
        ("gbnf", "root ::= x", "'x' at line 1, column 10 is no rule"),
    ],
)
def test_what_is_no_grammar_is_refused_in_a_line(
    backend: LlguidanceBackend, what: str, text: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        getattr(backend, what)(text)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_schemas_are_kept_to_or_refused(backend: LlguidanceBackend) -> None:
    costly = {"type": "integer", "multipleOf": 10**9 + 7}
    for schema in ({"not": {"type": "string"}}, False, {"type": "array", "contains": {}}, costly):
        with pytest.raises(InvalidRequest, match="json_schema"):
            backend.json(schema, compact=False)
    with pytest.raises(InvalidRequest, match="9007199254740993 lies beyond"):
        backend.json({"const": 2**53 + 1}, compact=False)


def test_options_of_the_library_within_a_schema_change_nothing(
    backend: LlguidanceBackend, vocabulary: GrammarVocabulary
) -> None:
    lax = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        backend.json(lax, compact=False)
    tabs = {"type": "array", "x-guidance": {"whitespace_pattern": "\\t*"}}
    assert not takes(backend.json(tabs, compact=False), vocabulary, "[\t]")


def _write_until_error(grammar: Grammar, vocabulary: GrammarVocabulary, most: int = 100) -> int:
    row = mask_row(vocabulary)
    letters = random.Random(1)
    for written in range(most):
        grammar.mask_into(row)
        if grammar.error is not None:
            return written
        assert grammar.accept([ord(letters.choice("ab"))]) == 1
    return most


def _along(compiled: CompiledLlguidance, ids: list[int]) -> Iterator[Grammar]:
    grammar = compiled.start()
    for token_id in ids:
        yield grammar
        assert grammar.accept([token_id]) == 1


_SHARED: list[tuple[GrammarVocabulary, CompiledLlguidance]] = []


def _shared_person() -> tuple[GrammarVocabulary, CompiledLlguidance]:
    if not _SHARED:
        vocabulary = byte_vocabulary()
        _SHARED.append((vocabulary, LlguidanceBackend(vocabulary).json(PERSON, compact=False)))
    return _SHARED[0]
