"""Where a finished text leaves a grammar, found by walking its tokens.

The tokens are the tokenizer's own for the text; where one is refused, smaller ones go on up to the very
character. Nothing is computed and no model is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..text import quote

if TYPE_CHECKING:
    from .protocol import CompiledGrammar, Grammar
    from .vocabulary import GrammarVocabulary

_SHOWN = 20


class Fault(NamedTuple):
    """The first character that cannot stand where it does, counted from 0, and why; the text's length if it
    is not finished, None if the text as a whole is at fault."""

    character: int | None
    reason: str


def find_fault(compiled: CompiledGrammar, vocabulary: GrammarVocabulary, text: str) -> Fault | None:
    """Why the text is not one of the grammar; None if it is."""
    grammar = compiled.start()
    written = text.encode()
    done = _walk(grammar, vocabulary, text, written)
    if grammar.error is not None:
        return Fault(None, f"the grammar cannot go on: {grammar.error}")
    if done < len(written):
        place = len(written[:done].decode(errors="ignore"))
        return Fault(place, f"{quote(text[place : place + _SHOWN])} cannot stand here")
    if not grammar.accepting:
        return Fault(len(text), "the text is not finished")
    reason = compiled.check(text)
    return None if reason is None else Fault(None, reason)


def _walk(grammar: Grammar, vocabulary: GrammarVocabulary, text: str, written: bytes) -> int:
    """How many bytes of the text the grammar goes along with."""
    ids = vocabulary.encode(text)
    taken = grammar.accept(ids)
    done = sum(len(vocabulary.tokens[each]) for each in ids[:taken])
    return done if done == len(written) else done + _walk_in_pieces(grammar, vocabulary, written[done:])


def _walk_in_pieces(grammar: Grammar, vocabulary: GrammarVocabulary, written: bytes) -> int:
    """As _walk, by the longest token that fits each time."""
    ids = {piece: each for each, piece in enumerate(vocabulary.tokens) if piece}
    longest = max(map(len, ids))
    done = 0
    while done < len(written):
        pieces = (written[done : done + size] for size in range(longest, 0, -1))
        fit = next((piece for piece in pieces if piece in ids and grammar.accept((ids[piece],))), None)
        if fit is None:
            break
        done += len(fit)
    return done
