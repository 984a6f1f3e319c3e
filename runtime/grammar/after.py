"""AfterMarker: a grammar that begins behind a marker, such as the end of a model's reasoning.

Before the marker every text goes, but not the end of it, and of the control tokens only those of the marker.
The marker must end where a token ends, so that the grammar begins with whole tokens: a token that would go
on past it is not allowed. Nothing is known of the grammar behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np

from ..errors import InvalidRequest
from ..text import quote
from .protocol import CompiledGrammar, Grammar, MaskRow, Report
from .vocabulary import GrammarVocabulary, mask_of

_MOST_CHARACTERS = 256


class AfterMarker:
    """See CompiledGrammar. A text is checked behind its first marker; without one, as a whole, since a text
    may come without its control tokens. Raises InvalidRequest for a marker that cannot be written."""

    def __init__(self, compiled: CompiledGrammar, marker: str, vocabulary: GrammarVocabulary) -> None:
        if not 0 < len(marker) <= _MOST_CHARACTERS:
            raise InvalidRequest(
                f"grammar_after must be a text of 1 to {_MOST_CHARACTERS} characters, got {quote(marker)}"
            )
        self._compiled = compiled
        self._marker = marker
        self._place = _Marker(marker, vocabulary)

    @property
    def report(self) -> Report:
        return self._compiled.report

    @property
    def size_bytes(self) -> int:
        return self._compiled.size_bytes + self._place.size_bytes

    def start(self) -> AfterGrammar:
        return AfterGrammar(self._compiled, self._place)

    def check(self, text: str) -> str | None:
        _, found, rest = text.partition(self._marker)
        return self._compiled.check(rest if found else text)


class AfterGrammar:
    """See Grammar."""

    __slots__ = ("_before", "_compiled", "_inner", "_inner_count", "_place")

    def __init__(self, compiled: CompiledGrammar, place: _Marker) -> None:
        self._compiled = compiled
        self._place = place
        self._before: list[int] = [0]  # how much of the marker was written after each token
        self._inner: Grammar | None = None
        self._inner_count = 0

    @property
    def accepting(self) -> bool:
        return self._inner is not None and self._inner.accepting

    @property
    def terminated(self) -> bool:
        return self._inner is not None and self._inner.terminated

    @property
    def error(self) -> str | None:
        return None if self._inner is None else self._inner.error

    def mask_into(self, row: MaskRow) -> None:
        if self._inner is None:
            row[:] = self._place.mask(self._before[-1])
        else:
            self._inner.mask_into(row)

    def accept(self, token_ids: Sequence[int]) -> int:
        for i, token_id in enumerate(token_ids):
            if self._inner is not None:
                taken = self._inner.accept(token_ids[i:])
                self._inner_count += taken
                return i + taken
            written = self._place.after(self._before[-1], token_id)
            if written is None:
                return i
            self._before.append(written)
            if written == self._place.length:
                self._inner = self._compiled.start()
        return len(token_ids)

    def rollback(self, count: int) -> None:
        assert 0 <= count < len(self._before) + self._inner_count, "only what was accepted is taken back"
        behind = min(count, self._inner_count)
        if self._inner is not None and behind:
            self._inner.rollback(behind)
            self._inner_count -= behind
        if count > behind:
            del self._before[behind - count :]
            self._inner = None

    def fork(self) -> Self:
        copy = type(self)(self._compiled, self._place)
        copy._before = self._before.copy()
        copy._inner = None if self._inner is None else self._inner.fork()
        copy._inner_count = self._inner_count
        return copy

    def forced_tokens(self) -> list[int]:
        return [] if self._inner is None else self._inner.forced_tokens()


class _Marker:
    """The marker as an automaton over tokens; a state is how much of it was written last. Bytes and control
    tokens are characters of one alphabet here: a byte its number, a control token 256 and its id."""

    def __init__(self, marker: str, vocabulary: GrammarVocabulary) -> None:
        parts = vocabulary.split_specials(marker)
        self._own = frozenset(part for part in parts if isinstance(part, int))
        if self._own & set(vocabulary.eos_ids):
            raise InvalidRequest(f"grammar_after must not hold the end of the text, got {quote(marker)}")
        self._symbols = "".join(
            chr(256 + part) if isinstance(part, int) else part.encode().decode("latin-1") for part in parts
        )
        self.length = len(self._symbols)
        self._vocabulary = vocabulary
        self._masks: dict[int, MaskRow] = {}

    @property
    def size_bytes(self) -> int:
        return (self.length + 1) * self._vocabulary.words * 4

    def after(self, state: int, token_id: int) -> int | None:
        """The state behind the token, `length` if it ends the marker; None if it is not allowed."""
        token = self._token(token_id)
        if not token:
            return None
        text = self._symbols[:state] + token
        at = text.find(self._symbols)
        if at >= 0:
            return self.length if at + self.length == len(text) else None
        ends = range(min(len(text), self.length - 1), 0, -1)
        return next((end for end in ends if self._symbols.startswith(text[-end:])), 0)

    def mask(self, state: int) -> MaskRow:
        """May be asked for by several threads at once: each finds the same."""
        row = self._masks.get(state)
        if row is None:
            crossing = [i for i in self._longer if self.after(state, i) is None]
            vocabulary = self._vocabulary
            row = self._open_row & ~mask_of(crossing, vocabulary.words)
            row.flags.writeable = False
            self._masks[state] = row
        return row

    def _token(self, token_id: int) -> str:
        if token_id in self._own:
            return chr(256 + token_id)
        tokens = self._vocabulary.tokens
        return tokens[token_id].decode("latin-1") if 0 <= token_id < len(tokens) else ""

    @cached_property
    def _open_row(self) -> MaskRow:
        row: MaskRow = self._vocabulary.text_row | mask_of(self._own, self._vocabulary.words)
        assert row.dtype == np.int32, "masks of masks are masks"
        return row

    @cached_property
    def _longer(self) -> list[int]:
        """Tokens that have something behind a last character of the marker."""
        last = self._symbols[-1]
        if ord(last) > 255:
            return []
        return [i for i, text in enumerate(self._vocabulary.tokens) if ord(last) in text[:-1]]
