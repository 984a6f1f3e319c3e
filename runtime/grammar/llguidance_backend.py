"""LlguidanceBackend: every kind of grammar as a parser over the bytes of tokens, by the llguidance library.

What the library is told: the vocabulary, how masks and grammars are limited, that nothing is lenient. What
it answers is put into one line. Hostile grammars can take seconds or end the process by overflowing its
stack, whatever the limits: the caller compiles them in a process of its own first.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from time import perf_counter

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ..errors import InvalidRequest
from .gbnf import gbnf_to_lark
from .json_grammar import json_source
from .llguidance_grammar import CompiledLlguidance, reason_of
from .protocol import CompiledGrammar, Report, Unenforced
from .tags import Normalise, tags_grammar
from .vocabulary import GrammarVocabulary

# A mask of the schemas of MaskBench takes less than 20,000 units of lexer fuel and 2,000 items, an anyOf of
# 2,000 objects 2,000 items in a row. Fuel is about 14,000 units/ms, items 20,000/ms, so that no mask takes
# more than some 5 ms. A lexer state is 2.6 KB and stays: 20,000 are 52 MB a grammar. Fuel to begin with
# is as the library has it (20,000 choices of 12 letters take between 200,000 and 300,000).
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_items_in_row=2_000,
    max_lexer_states=20_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

# Measured: 15 to 280 KB for short grammars and the schemas of MaskBench, 28 to 160 bytes a character of
# longer ones (3 MB for a multipleOf of four digits, which no length tells). Texts add to it: see the states.
_LEAST_BYTES = 256 << 10
_BYTES_PER_CHARACTER = 100

_TRIED_TOKENS = 4
_QUICK_SECONDS = 0.05
"""What building a grammar again may take while a step waits for it."""


class LlguidanceBackend:
    """Compiles for one vocabulary; may be shared by threads. Each method raises InvalidRequest for what
    is no grammar or is over the limits."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def json(
        self, schema: object, *, compact: bool, unenforced: Sequence[Unenforced] = ()
    ) -> CompiledLlguidance:
        """Of a normalised schema. `unenforced` is what normalising left out, for the report. compact: without
        whitespace, else with a little of it."""
        return self._compile("json_schema", json_source(schema, compact=compact), Report(tuple(unenforced)))

    def regex(self, pattern: str) -> CompiledLlguidance:
        """Of a pattern in the syntax of Rust's regex library, for the whole text."""
        return self._compile("regex", LLMatcher.grammar_from_regex(pattern))

    def choice(self, texts: Sequence[str]) -> CompiledLlguidance:
        literals = " | ".join(json.dumps(text) for text in texts)
        return self._compile("choice", f"start: CHOICE\nCHOICE: {literals}\n")

    def lark(self, text: str) -> CompiledLlguidance:
        """Of a grammar in llguidance's dialect of Lark."""
        if text.lstrip().startswith("{"):
            raise InvalidRequest("grammar must be Lark, not JSON")
        return self._compile("grammar", text, has_lines=True)

    def gbnf(self, text: str) -> CompiledLlguidance:
        """Of a grammar of llama.cpp."""
        return self._compile("grammar", gbnf_to_lark(text))

    def tags(self, text: str, compact: bool, *, normalise: Normalise | None = None) -> CompiledLlguidance:
        """Of a structural tag, see tags.py. Raises InvalidRequest also for schemas within it that cannot be
        enforced as a whole: there is no relaxed form of it."""
        if normalise is None:
            from .schema_normalise import normalise as normalise_schema

            normalise = normalise_schema
        source, unenforced = tags_grammar(text, self._vocabulary, normalise, compact)
        if unenforced:
            named = "; ".join(map(str, unenforced[:8]))
            raise InvalidRequest(f"structural_tag asks for what cannot be enforced token by token: {named}")
        return self._compile("structural_tag", source)

    def try_out(self, compiled: CompiledGrammar) -> None:
        """Go some way into two texts: what is cheap to compile may be dear to use. Raises InvalidRequest if a
        limit is met there."""
        row = np.zeros(self._vocabulary.words, dtype=np.int32)
        for which in (0, -1):
            text = compiled.start()
            for _ in range(_TRIED_TOKENS):
                text.accept(text.forced_tokens())
                text.mask_into(row)
                if text.error is not None:
                    raise InvalidRequest(f"the grammar is more than its engine can do: {text.error}")
                allowed = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]
                if text.terminated or not len(allowed):
                    break
                text.accept([int(allowed[which])])

    def _compile(
        self, name: str, source: str, report: Report | None = None, *, has_lines: bool = False
    ) -> CompiledLlguidance:
        tokenizer = self._shared_tokenizer()

        def build() -> LLMatcher:
            return LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)

        begun = perf_counter()
        matcher = build()
        if not matcher.is_error():
            matcher.compute_bitmask()  # some limits are only met here
        if matcher.is_error():
            raise InvalidRequest(f"{name} cannot be compiled: {reason_of(matcher, has_lines=has_lines)}")
        is_quick = perf_counter() - begun <= _QUICK_SECONDS
        size = _LEAST_BYTES + _BYTES_PER_CHARACTER * len(source)
        return CompiledLlguidance(self._vocabulary, build, matcher, report or Report(), size, is_quick)

    def _shared_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                wrapper = TokenizerWrapper(_Vocabulary(self._vocabulary))
                self._tokenizer = LLTokenizer(wrapper, eos_token=list(self._vocabulary.eos_ids))
            return self._tokenizer


class _Vocabulary:
    """As the library asks for it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        padding = [b""] * (vocabulary.width - len(vocabulary.tokens))
        self.tokens = [*vocabulary.tokens, *padding]
        for token_id, name in vocabulary.special_tokens.items():
            self.tokens[token_id] = name.encode()
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self._encode = vocabulary.encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode())
