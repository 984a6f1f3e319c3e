"""A grammar behind a marker: what goes before it, where it begins, and the way back over it."""

from __future__ import annotations

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.after import AfterMarker
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from testkit.byte_vocabulary import allowed, byte_vocabulary, control_id, spelled
from testkit.text_grammar import Texts


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return byte_vocabulary()


@pytest.fixture(scope="module")
def yes(vocabulary: GrammarVocabulary) -> CompiledGrammar:
    return LlguidanceBackend(vocabulary).regex("yes|yet")


def test_everything_but_the_end_goes_before_the_marker(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary
) -> None:
    grammar = AfterMarker(yes, "</b>", vocabulary).start()
    text = {i for i, token in enumerate(vocabulary.tokens) if token}
    assert allowed(grammar, vocabulary) == text
    assert not grammar.accepting
    assert not grammar.terminated
    assert grammar.forced_tokens() == []
    for token_id in (*vocabulary.special_ids, vocabulary.width - 1, vocabulary.width, -1):
        assert grammar.accept([token_id]) == 0
    assert grammar.accept(spelled(vocabulary, "hm, </ b> or</b</")) > 0
    assert grammar.error is None
    assert grammar.accept(vocabulary.encode("b>")) == 2
    assert allowed(grammar, vocabulary) == {ord("y")}


@pytest.mark.parametrize("marker", ["</b>", "aab", "日本", "the", "</call>", "<call>a</call>", "x"])
def test_the_grammar_begins_behind_the_marker_however_that_is_cut(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary, marker: str
) -> None:
    """Reports of vLLM and SGLang: applied to the reasoning, or switched at the wrong token."""
    compiled = AfterMarker(yes, marker, vocabulary)
    for before in ("", "aa", "</", "日日", "t"):
        grammar = compiled.start()
        for token_id in spelled(vocabulary, before + marker):
            assert token_id in allowed(grammar, vocabulary)
            assert not grammar.accepting
            assert grammar.accept([token_id]) == 1
        assert allowed(grammar, vocabulary) == {ord("y")}
        assert grammar.accept(vocabulary.encode("yesx")) == 3
        assert grammar.accepting
        assert grammar.terminated
        assert grammar.accept([vocabulary.eos_ids[0]]) == 1


def test_a_token_that_goes_on_past_the_marker_is_not_allowed(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary
) -> None:
    past = vocabulary.tokens.index(b">\n")
    grammar = AfterMarker(yes, "</b>", vocabulary).start()
    assert past in allowed(grammar, vocabulary)
    assert grammar.accept(spelled(vocabulary, "</b")) > 0
    assert past not in allowed(grammar, vocabulary)
    assert grammar.accept([past]) == 0
    assert ord(">") in allowed(grammar, vocabulary)


def test_the_way_back_leads_over_the_marker(yes: CompiledGrammar, vocabulary: GrammarVocabulary) -> None:
    grammar = AfterMarker(yes, "ab!", vocabulary).start()
    ids = [*vocabulary.encode("1ab!yes"), vocabulary.eos_ids[0]]
    for taken_back in range(len(ids) + 1):
        assert grammar.accept(ids) == len(ids)
        assert grammar.terminated
        grammar.rollback(taken_back)
        fresh = AfterMarker(yes, "ab!", vocabulary).start()
        rest = len(ids) - taken_back
        assert fresh.accept(ids[:rest]) == rest
        assert allowed(grammar, vocabulary) == allowed(fresh, vocabulary)
        assert (grammar.accepting, grammar.terminated) == (fresh.accepting, fresh.terminated)
        grammar.rollback(rest)
    with pytest.raises(AssertionError, match="taken back"):
        grammar.rollback(1)


def test_forks_are_independent_on_both_sides(yes: CompiledGrammar, vocabulary: GrammarVocabulary) -> None:
    grammar = AfterMarker(yes, "!", vocabulary).start()
    behind = grammar.fork()
    assert behind.accept(vocabulary.encode("!ye")) == 3
    further = behind.fork()
    assert further.accept([ord("s")]) == 1
    assert allowed(behind, vocabulary) == {ord("s"), ord("t")}
    assert ord("z") in allowed(grammar, vocabulary)


def test_of_control_tokens_those_of_the_marker_go(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary
) -> None:
    call, close, think = (control_id(vocabulary, name) for name in ("<call>", "</call>", "<think>"))
    grammar = AfterMarker(yes, "<call>x</call>", vocabulary).start()
    assert allowed(grammar, vocabulary) & vocabulary.special_ids == {call, close}
    assert grammar.accept([close, call, call, ord("x"), think]) == 4
    assert grammar.accept([close]) == 1
    assert allowed(grammar, vocabulary) == {ord("y")}


def test_spelling_out_a_control_token_is_no_marker(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary
) -> None:
    grammar = AfterMarker(yes, "</call>", vocabulary).start()
    assert grammar.accept(vocabulary.encode("</call>")) == len(vocabulary.encode("</call>"))
    assert ord("z") in allowed(grammar, vocabulary)


def test_forced_tokens_are_those_of_the_grammar_behind(vocabulary: GrammarVocabulary) -> None:
    compiled = AfterMarker(LlguidanceBackend(vocabulary).regex("xyz"), "!", vocabulary)
    grammar = compiled.start()
    assert grammar.accept([ord("!")]) == 1
    assert grammar.forced_tokens() == vocabulary.encode("xyz")


def test_the_text_behind_the_marker_is_checked(vocabulary: GrammarVocabulary) -> None:
    texts = Texts(("yes",))
    compiled = AfterMarker(texts, "!", vocabulary)
    assert compiled.report == texts.report
    assert compiled.check("well!yes") == texts.check("yes")
    assert compiled.size_bytes >= texts.size_bytes


@pytest.mark.parametrize(
    ("marker", "reason"), [("", "1 to 256"), ("x" * 257, "1 to 256"), ("a<eos>", "end of")]
)
def test_a_marker_that_cannot_be_one_is_refused(
    yes: CompiledGrammar, vocabulary: GrammarVocabulary, marker: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        AfterMarker(yes, marker, vocabulary)
