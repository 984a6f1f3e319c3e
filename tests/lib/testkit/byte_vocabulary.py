"""A vocabulary of single bytes, a few longer tokens and control tokens, and how to look at grammars over it.

Token b writes byte b; then the words, then the control tokens, of which <eos> and <end> end a text.
"""

from __future__ import annotations

import numpy as np

from radixlm.runtime.grammar.protocol import CompiledGrammar, Grammar
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary

WORDS = ('{"', '":', "the", " a", "</", ">\n", "ab", "  ")
CONTROL = ("<eos>", "<end>", "<call>", "</call>", "<think>")
PADDING = 3


def byte_vocabulary(words: tuple[str, ...] = WORDS) -> GrammarVocabulary:
    tokens = [*(bytes([b]) for b in range(256)), *(word.encode() for word in words)]
    control = {len(tokens) + i: name for i, name in enumerate(CONTROL)}
    ends = list(control)[:2]
    tokens += [b""] * len(control)
    return GrammarVocabulary(tokens, control, ends, len(tokens) + PADDING)


def control_id(vocabulary: GrammarVocabulary, name: str) -> int:
    return next(i for i, text in vocabulary.special_tokens.items() if text == name)


def spelled(vocabulary: GrammarVocabulary, text: str) -> list[int]:
    """Tokens of a text, control tokens that are spelled out as such."""
    ids: list[int] = []
    for part in vocabulary.split_specials(text):
        ids += [part] if isinstance(part, int) else vocabulary.encode(part)
    return ids


def mask_row(vocabulary: GrammarVocabulary) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Full of bits that a mask must overwrite."""
    return np.full(vocabulary.words, -1, np.int32)


def allowed(grammar: Grammar, vocabulary: GrammarVocabulary) -> set[int]:
    row = mask_row(vocabulary)
    grammar.mask_into(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def takes(compiled: CompiledGrammar, vocabulary: GrammarVocabulary, text: str) -> bool:
    """Whether the text is a whole one, its tokens being in every mask on the way."""
    grammar = compiled.start()
    for token_id in spelled(vocabulary, text):
        masks_differ = token_id not in allowed(grammar, vocabulary)
        if not grammar.accept([token_id]):
            return False
        if masks_differ:  # the mask wants another way to write the same bytes
            assert grammar.error is None, "a refused text is no fault of the engine"
    return grammar.accepting
