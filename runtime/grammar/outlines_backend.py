"""OutlinesBackend: regexes and choices as automata over bytes, which outlines_core makes.

An automaton is built where time and memory can be bounded (`regex`, `choice`), is small, holds nothing but
arrays and can be sent to another process; `load` makes a grammar of it. A place in a text is then one
integer, so that going back and forking are cheap and a mask, once computed, is kept for all texts that come
by. What needs too many states is refused, and llguidance is the engine for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import numpy as np

from .byte_automaton import ByteAutomaton, Spelling, build_automaton, spelling_of
from .forced_text import ForcedText
from .protocol import MaskRow, Report
from .regex_characters import escape
from .token_walk import TokenTrie, TokenWalk
from .vocabulary import GrammarVocabulary, mask_of

MASK_CACHE_BYTES = 2 << 20
_ENDED = 0  # nothing leads on from there, see ByteAutomaton


class OutlinesBackend:
    """For one vocabulary; may be shared by threads. A pattern is in Rust's syntax, without anchors and lazy
    quantifiers (what regex_dialect.to_rust gives), and matches the whole text."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary

    def regex(self, pattern: str) -> ByteAutomaton:
        """See build_automaton: nothing bounds what this takes."""
        return build_automaton("regex", pattern, self._spelling)

    def choice(self, texts: Sequence[str]) -> ByteAutomaton:
        """One of these texts."""
        return build_automaton("choice", "|".join(map(escape, texts)), self._spelling)

    def load(self, automaton: ByteAutomaton) -> CompiledOutlines:
        return CompiledOutlines(self._vocabulary, automaton, self._trie)

    @cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self._vocabulary.tokens)

    @cached_property
    def _trie(self) -> TokenTrie:
        return TokenTrie(self._vocabulary.tokens)


class CompiledOutlines:
    """See CompiledGrammar. Its masks, of any state that was met, lie in a bounded cache of its own."""

    report = Report()

    def __init__(self, vocabulary: GrammarVocabulary, automaton: ByteAutomaton, trie: TokenTrie) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._walk = TokenWalk(trie, automaton, vocabulary.words)
        self.forced = ForcedText(vocabulary, automaton, self._walk)
        self.leads_on = [bool(row.any()) for row in automaton.table]
        self.is_whole = [True, *map(bool, automaton.is_final[1:])]  # so is a text that was ended
        self._rows: OrderedDict[int, MaskRow] = OrderedDict()
        self._lock = threading.Lock()
        states, row_bytes = len(automaton.table), 4 * vocabulary.words
        self._most_rows = max(1, MASK_CACHE_BYTES // row_bytes)
        masks = min(states, self._most_rows) * row_bytes
        self.size_bytes = automaton.size_bytes + self._walk.size_bytes + masks + 64 * states

    def start(self) -> OutlinesGrammar:
        return OutlinesGrammar(self, [self.automaton.start], [])

    def check(self, text: str) -> str | None:
        return None

    def row(self, state: int) -> MaskRow:
        """The mask in a state, the end too where a text may end. Nobody can write to it."""
        return self._cached(state, lambda: self._computed(state))

    def row_of(self, token_id: int) -> MaskRow:
        """The mask of one token."""
        return self._cached(-1 - token_id, lambda: mask_of([token_id], self.vocabulary.words))

    def _cached(self, key: int, compute: Callable[[], MaskRow]) -> MaskRow:
        with self._lock:
            if key in self._rows:
                self._rows.move_to_end(key)
                return self._rows[key]
        row = compute()
        with self._lock:
            self._rows[key] = row
            if len(self._rows) > self._most_rows:
                self._rows.popitem(last=False)
        return row

    def after(self, state: int, token_id: int) -> int | None:
        """The state behind a token, None if it is not allowed."""
        automaton = self.automaton
        if token_id in self.vocabulary.eos_ids:
            return _ENDED if self.is_whole[state] else None
        token = self.vocabulary.tokens[token_id] if 0 <= token_id < len(self.vocabulary.tokens) else b""
        table, classes = automaton.table.data, automaton.classes.data
        for byte in token:
            state = table[state, classes[byte]]
        return state if token and automaton.may_rest[state] else None

    def _computed(self, state: int) -> MaskRow:
        if not self.leads_on[state]:
            return self.vocabulary.end_row
        row = self._walk.row(state)
        if not self.is_whole[state]:
            return row
        row = np.bitwise_or(row, self.vocabulary.end_row)
        row.flags.writeable = False
        return row


class OutlinesGrammar:
    """See Grammar. The state before each of the tokens, and behind the last."""

    error = None

    def __init__(self, compiled: CompiledOutlines, states: list[int], tokens: list[int]) -> None:
        self._compiled = compiled
        self._states = states
        self._tokens = tokens

    @property
    def accepting(self) -> bool:
        return self._compiled.is_whole[self._states[-1]]

    @property
    def terminated(self) -> bool:
        return not self._compiled.leads_on[self._states[-1]]

    def mask_into(self, row: MaskRow) -> None:
        """Of forced text, the tokenizer's own next token alone, so that a text is the same whether forced
        tokens are taken at once or one by one. `accept` takes others that write the same as well."""
        forced = self.forced_tokens()
        np.copyto(row, self._compiled.row_of(forced[0]) if forced else self._compiled.row(self._states[-1]))

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self._compiled.after(self._states[-1], token_id)
            if state is None:
                return count
            self._states.append(state)
            self._tokens.append(token_id)
        return len(token_ids)

    def rollback(self, count: int) -> None:
        assert 0 <= count <= len(self._tokens), "only what was accepted can be taken back"
        del self._states[len(self._states) - count :]
        del self._tokens[len(self._tokens) - count :]

    def fork(self) -> Self:
        return type(self)(self._compiled, self._states.copy(), self._tokens.copy())

    def forced_tokens(self) -> list[int]:
        return self._compiled.forced.tokens(self._states[-1], self._tokens)
