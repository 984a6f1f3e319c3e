"""Regexes as users write them, translated: both engines must then take the texts that Python's `re` takes."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.byte_automaton import ByteAutomaton, Spelling, build_automaton
from radixlm.runtime.grammar.regex_characters import escape
from radixlm.runtime.grammar.regex_dialect import to_rust

BYTES = [bytes([byte]) for byte in range(256)]
SPELLING = Spelling(b"".join(BYTES), ())
END = 256


class Engines:
    """Both engines over the 256 bytes, asked whether a text matches as a whole."""

    def __init__(self) -> None:
        class Vocabulary:
            eos_token_id, bos_token_id = END, None
            tokens = (*BYTES, b"</s>")
            special_token_ids = (END,)

            def __call__(self, text: str | bytes) -> list[int]:
                return list(text.encode() if isinstance(text, str) else text)

        self._tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary()), eos_token=[END])

    def matchers(self, rust: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
        automaton = build_automaton("regex", rust, SPELLING)
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_regex(rust), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return lambda text: accepts(automaton, text), lambda text: takes(matcher, text)


def accepts(automaton: ByteAutomaton, text: str) -> bool:
    state = automaton.start
    for byte in text.encode():
        state = automaton.table[state, automaton.classes[byte]]
    return bool(automaton.is_final[state])


def takes(matcher: LLMatcher, text: str) -> bool:
    copy = matcher.deep_copy()
    data = list(text.encode())
    return bool(copy.try_consume_tokens(data) == len(data) and copy.is_accepting())


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines()


# -- random patterns and texts for them ----------------------------------------------------------------


class Part(NamedTuple):
    """A pattern, and what gives texts of which it matches most."""

    pattern: str
    sample: Callable[[random.Random], str]


LITERALS = tuple("abKkséß日😀0_- \niµ&~#/<")
CLASSES = (r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".")
SETS = (
    "[abK]", "[^ab]", "[a-k]", "[]a]", "[^]a]", "[a&&b]", "[[:alpha:]]", "[a-]", r"[\w-]", r"[^\W_]",
    "[--a]", r"[\d\s]", r"[^\n\S]", "[é-ž]", "[a~~b|#]", r"[\x00-\x7f]", r"[\]\\^]", "[^^]",
    r"[\u4e00-\u9fff]", r"[\ud800-\uffff]",
)  # fmt: skip
SPELLED = (
    r"\x41", r"\u00e9", r"\N{BULLET}", r"\101", r"\t", r"\.", r"\*", r"\\", r"\U0001f600", "{", "a{,x}", r"\-"
)  # fmt: skip
QUANTIFIERS = (
    ("*", 0, 4), ("+", 1, 4), ("?", 0, 1), ("{2}", 2, 2), ("{,2}", 0, 2), ("{1,3}", 1, 3), ("{2,}", 2, 4)
)  # fmt: skip
CHARACTERS = "abKksSé\u017fß日😀0٣_- \n\t.*\\A•iİıI&~#/<[]:x{},^µμ\u1e9e\u212a\x1c\x85\u2028"


def literal(character: str) -> Part:
    return Part(re.escape(character), lambda rng: character)


def compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets that may mean something else one day
        return re.compile(pattern)


def any_of(pattern: str) -> Part:
    matching = [c for c in CHARACTERS if compiled(pattern).fullmatch(c)] or [""]
    return Part(pattern, lambda rng: rng.choice(matching))


def random_part(rng: random.Random, depth: int) -> Part:
    roll = rng.random()
    if depth == 0 or roll < 0.3:
        return literal(rng.choice(LITERALS)) if rng.random() < 0.5 else random_single(rng)
    if roll < 0.55:
        return repeated(rng, random_part(rng, depth - 1))
    parts = [random_part(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return joined(parts) if roll < 0.75 else grouped(rng, parts)


def random_single(rng: random.Random) -> Part:
    kind = rng.random()
    if kind < 0.4:
        return any_of(rng.choice(CLASSES))
    if kind < 0.8:
        return any_of(rng.choice(SETS))
    spelled = rng.choice(SPELLED)
    return any_of(spelled) if spelled != "a{,x}" else Part(spelled, lambda rng: spelled)


def repeated(rng: random.Random, part: Part) -> Part:
    mark, least, most = rng.choice(QUANTIFIERS)
    lazy = "?" if rng.random() < 0.3 else ""

    def sample(rng: random.Random) -> str:
        return "".join(part.sample(rng) for _ in range(rng.randint(least, most)))

    return Part(f"(?:{part.pattern}){mark}{lazy}", sample)


def joined(parts: Sequence[Part]) -> Part:
    pattern = "".join(f"(?:{part.pattern})" for part in parts)
    return Part(pattern, lambda rng: "".join(part.sample(rng) for part in parts))


def grouped(rng: random.Random, parts: Sequence[Part]) -> Part:
    opening = rng.choice(["(", "(?:", "(?i:", "(?s:", "(?a:", "(?-i:", "(?is:", "(?x:"])
    inner = "|".join(part.pattern for part in parts)
    if opening == "(?x:":
        inner = re.sub(r"(?<!\\)([ \n#])", r"\\\1", inner) + " # and so on\n"
    return Part(f"{opening}{inner})", lambda rng: rng.choice(parts).sample(rng))


def random_pattern(rng: random.Random) -> Part:
    part = random_part(rng, 3)
    start, end = rng.choice([("", ""), ("", ""), ("^", "$"), (r"\A", r"\Z"), ("(?i)", ""), ("(?s)^", "")])
    return Part(f"{start}{part.pattern}{end}", part.sample)


MOST_CHARACTERS = 14  # `re` goes back and back again: longer texts can take it hours


def texts_for(part: Part, rng: random.Random) -> set[str]:
    """Members and near misses."""
    texts = {"", *(part.sample(rng) for _ in range(8))}
    for text in sorted(texts):
        at = rng.randint(0, len(text))
        texts |= {text.swapcase(), text + rng.choice(CHARACTERS), text[:at] + text[at + 1 :]}
        texts.add(text[:at] + rng.choice(CHARACTERS) + text[at:])
    return {text for text in texts if len(text) <= MOST_CHARACTERS and "\0" not in text}


def test_the_engines_take_what_re_takes_or_the_pattern_is_refused(engines: Engines) -> None:
    tried = taken = 0
    for seed in range(500):
        rng = random.Random(seed)
        part = random_pattern(rng)
        try:
            expected = compiled(part.pattern)
            rust = to_rust(part.pattern)
        except (re.error, InvalidRequest):
            continue
        tried += 1
        by_outlines, by_llguidance = engines.matchers(rust)
        for text in sorted(texts_for(part, rng)):
            matches = expected.fullmatch(text) is not None
            taken += matches
            where = (seed, part.pattern, rust, text)
            assert by_outlines(text) == matches, where
            assert by_llguidance(text) == matches, where
    assert tried > 400
    assert taken > 2000


# -- what is said of the dialect -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "rust"),
    [
        ("^abc$", "abc"),
        (r"\A(?:abc|d)\Z", "(?:abc|d)"),
        ("^a|bc$", "(?:a|bc)"),
        ("(^a|(?:b$))", "(?:a|b)"),
        ("^$", ""),
        ("(?m)^a$", "a"),
        ("a+?b*?c??d{2,3}?", "a+b*c?d{2,3}"),
        ("a{,2}b{0}c{1}", "a{0,2}c"),
        ("(?P<name>ab)+(c)", "(?:ab)+c"),
        ("[]a]", r"[\]a]"),
        (r"\x41\u00e9\N{BULLET}\101\U0001F600", "Aé•A😀"),
        ("(?x) a b # c [\n", "ab"),
        (r"[^\ud800-\udfff]", r"[^\x00]"),
        (r"[a\ud800-\udfff]", "a"),
        (r"\p{L}\pN\P{Lu}", r"\p{L}\p{N}[^\x00\p{Lu}]"),
        (r"[\p{Greek}a-c]", r"[a-c[\p{Greek}--\x00]]"),
        (r"\\p{2}", r"\\p{2}"),
        (r"a|[^\s\S]", "a"),
        ("a-b<c>d/e", r"a\-b<c>d/e"),
    ],
)
def test_a_pattern_is_written_in_one_canonical_way(pattern: str, rust: str) -> None:
    assert to_rust(pattern) == rust


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("ab(?=c)", r"look-around \(at character 2\)"),
        ("(?!)", r"look-around \(at character 0\)"),
        ("a(?<!b)c", r"look-around \(at character 1\)"),
        (r"[(?=](a)\1", r"a back reference \(at character 8\)"),
        ("(?P<x>a)(?P=x)", r"a back reference \(at character 8\)"),
        (r"\\b\bfoo", r"a word boundary \(at character 3\)"),
        (r"a\B", r"a word boundary \(at character 1\)"),
        ("(?>a)b", r"an atomic group \(at character 0\)"),
        ("[a+]++", r"a possessive quantifier \(at character 5\)"),
        ("(a)?(?(1)b|c)", r"a conditional \(at character 4\)"),
        ("^a^b", r"an anchor that is not at the beginning \(at character 2\)"),
        ("a$b$", r"an anchor that is not at the end \(at character 1\)"),
        ("a$\n?", r"an anchor that is not at the end \(at character 1\)"),
        ("(?:^a)*", "an anchor that is not at the beginning"),
        (r"[^\s\S]", "matches no text at all"),
        (r"\ud800", "matches no text at all"),
        (r"a[^\x00-\U0010ffff]b", "matches no text at all"),
        ("(", "missing .* at character 0"),
        (r"\p{L}[b", "unterminated character set at character 5"),
        (r"[\p{L}-z]", r"bad character range \\p{L}-z at character 1"),
        (r"\p{!}", "bad escape .* at character 0"),
        ("a{3,1}", "min repeat greater than max repeat"),
        ("a{99999999999}", "repetition number is too large"),
        ("(?L)a", "cannot use 'L' flag"),
        ("(?a)(?u)a", "incompatible"),
        ("(" * 4000 + ")" * 4000, "nested too deeply"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name_and_place(pattern: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        to_rust(pattern)


@pytest.mark.parametrize("pattern", ["[[a]", "[a&&b]", "[+--]", "[a~~b]", "[a||b]"])
def test_sets_with_a_meaning_elsewhere_have_pythons_without_a_warning(engines: Engines, pattern: str) -> None:
    for matches in engines.matchers(to_rust(pattern)):
        for character in "[ab&-~|":
            assert matches(character) == (compiled(pattern).fullmatch(character) is not None)


@pytest.mark.parametrize("flags", ["(?i)", "(?ai)"])
@pytest.mark.parametrize(
    "pattern", ["[a-z]", "k", "ı", "ß", "ǆ", "[^sµ]", "[α-ω]", r"[\u212a]", "ﬅ", "ΐ", r"\w"]
)
def test_case_is_pythons(flags: str, pattern: str) -> None:
    expected = re.compile(flags + pattern)
    automaton = build_automaton("regex", to_rust(flags + pattern), SPELLING)
    for letter in map(chr, [*range(1, 0xD800), *range(0xF900, 0x10000), *range(0x10400, 0x10500)]):
        if letter.lower() != letter or letter.upper() != letter:
            assert accepts(automaton, letter) == (expected.fullmatch(letter) is not None), letter


@pytest.mark.parametrize("pattern", [r"\d", r"\w", r"\s", r"(?a)\d", r"(?a)\w", r"(?a)\s", r"\W", r"."])
def test_classes_are_those_of_this_python(pattern: str) -> None:
    expected = re.compile(pattern)
    automaton = build_automaton("regex", to_rust(pattern), SPELLING)
    for point in (*range(1, 0xD800), *range(0xF900, 0x13000), *range(0x1D000, 0x20000)):
        assert accepts(automaton, chr(point)) == (expected.fullmatch(chr(point)) is not None), hex(point)


@pytest.mark.parametrize(
    "pattern", [r"\p{L}+", r"\P{Lu}", r"[\p{Greek}\d_]*", r"[^\p{L}\p{Nd}]", r"(\p{Nd}|\p{Han})?"]
)
def test_properties_are_those_of_unicode(engines: Engines, pattern: str) -> None:
    expected = regex.compile(pattern)
    for matches in engines.matchers(to_rust(pattern)):
        for text in ("", *CHARACTERS, "αβγ", "日本", "Ab", "٣3", "_"):
            assert matches(text) == (expected.fullmatch(text) is not None), text


def test_a_null_is_taken_only_where_it_is_written_alone(engines: Engines) -> None:
    for pattern, is_taken in ((r"\x00", True), (r"[\x00a]", True), ("(?s).", False), (r"[\x00-\x1f]", False)):
        for matches in engines.matchers(to_rust(pattern)):
            assert matches("\0") == is_taken
    assert "\0" not in to_rust(r"[^a]\D\S\W\P{L}\p{Cc}")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6))
def test_an_escaped_text_matches_itself(text: str) -> None:
    assert accepts(build_automaton("regex", escape(text), SPELLING), text)


@given(st.text(st.sampled_from(r"ab()[]{}|*+?^$.\\-,:<=!0129pPdwsbAZxi#&~ "), max_size=16))
def test_any_text_is_translated_or_refused(engines: Engines, pattern: str) -> None:
    try:
        rust = to_rust(pattern)
    except InvalidRequest:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if r"\p" not in pattern.lower():
            re.compile(pattern)  # what it refuses, we do
    for matches in engines.matchers(rust):
        matches("a")
