"""Grammars that llguidance compiled, by the contract of protocol.py.

Copies of one of its matchers share a lexer behind a lock, and an error in that lexer (a limit reached) then
strikes all of them. So a grammar that meets an error goes on with a matcher of its own, built again and led
to the same place, and only what fails there as well is its error; the next texts get a fresh lexer too.
Tokens that end a text never reach a matcher, which refused tokens leave as it was.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Self

import numpy as np
from llguidance import LLMatcher

from .protocol import MaskRow, Report
from .vocabulary import GrammarVocabulary, mask_of

_MOST_FAILURES = 2


class CompiledLlguidance:
    """See CompiledGrammar."""

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        build: Callable[[], LLMatcher],
        matcher: LLMatcher,
        report: Report,
        size_bytes: int,
        is_quick: bool,
    ) -> None:
        self.report = report
        self.size_bytes = size_bytes
        self._vocabulary = vocabulary
        self._build = build
        self._first: LLMatcher | None = matcher  # nothing but copied; None while it is built again
        self._is_quick = is_quick
        self._failures = 0
        self._lock = threading.Lock()

    def start(self) -> LlguidanceGrammar:
        first = self._first
        if first is None:
            reason = "a limit was reached, and the grammar is being compiled again"
            return LlguidanceGrammar(self, self._vocabulary, None, None, reason)
        return LlguidanceGrammar(self, self._vocabulary, first, first.deep_copy())

    def check(self, text: str) -> str | None:
        return None

    def renewed(self, spoiled: LLMatcher | None) -> LLMatcher | None:
        """A matcher with a lexer of its own, at the beginning; None if that would take long, or if some have
        failed as well before. `spoiled` is what the failed one was copied from."""
        if self._failures >= _MOST_FAILURES:
            return None
        with self._lock:
            if spoiled is not None and self._first is spoiled:
                self._first = None
                if self._is_quick:
                    self._first = self._build()
                else:
                    threading.Thread(target=self._build_first, daemon=True).start()
        return self._build() if self._is_quick else None

    def count_failure(self) -> None:
        """A matcher of its own failed too, and each failure may take a while."""
        self._failures += 1

    def _build_first(self) -> None:
        self._first = self._build()


class LlguidanceGrammar:
    """See Grammar. `accept` also takes tokens that spell allowed text in another way than masks want it.
    Without a matcher it is in error."""

    __slots__ = ("_compiled", "_ends", "_error", "_first", "_matcher", "_tokens", "_vocabulary")

    def __init__(
        self,
        compiled: CompiledLlguidance,
        vocabulary: GrammarVocabulary,
        first: LLMatcher | None,
        matcher: LLMatcher | None,
        error: str | None = None,
    ) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._first = first  # what the matcher shares a lexer with
        self._matcher = matcher
        self._tokens: list[int] = []
        self._ends = 0
        self._error = error

    @property
    def accepting(self) -> bool:
        return self._matcher is not None and (self._ends > 0 or self._matcher.is_accepting())

    @property
    def terminated(self) -> bool:
        return self._matcher is not None and (self._ends > 0 or self._matcher.is_stopped())

    @property
    def error(self) -> str | None:
        return self._error

    def mask_into(self, row: MaskRow) -> None:
        assert row.dtype == np.int32, "a mask row has words of 32 bits"
        assert row.shape == (self._vocabulary.words,), "one word for each 32 logits"
        assert row.flags.c_contiguous, "the words of a row lie side by side"
        if self._matcher is None or self.terminated or not self._fill(row):
            row[:] = self._vocabulary.end_row

    def accept(self, token_ids: Sequence[int]) -> int:
        for taken, token_id in enumerate(token_ids):
            if not self._take(token_id):
                return taken
        return len(token_ids)

    def rollback(self, count: int) -> None:
        assert 0 <= count <= len(self._tokens) + self._ends, "only what was accepted is taken back"
        ends = min(count, self._ends)
        self._ends -= ends
        count -= ends
        if not count:
            return
        del self._tokens[len(self._tokens) - count :]
        if self._matcher is None or not self._matcher.rollback(count):
            self._begin_again("the way back to an earlier token failed")

    def fork(self) -> Self:
        matcher = None if self._matcher is None else self._matcher.deep_copy()
        copy = type(self)(self._compiled, self._vocabulary, self._first, matcher, self._error)
        copy._tokens = self._tokens.copy()
        copy._ends = self._ends
        return copy

    def forced_tokens(self) -> list[int]:
        if self._matcher is None or self.terminated:
            return []
        forced: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            self._begin_again(reason_of(self._matcher))
            return []
        ends = self._vocabulary.eos_ids
        return list(takewhile(lambda token_id: token_id not in ends, forced))

    def _fill(self, row: MaskRow) -> bool:
        matcher = self._matcher
        assert matcher is not None, "without a matcher nobody asks for a mask"
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            if not self._begin_again(reason_of(matcher)):
                return False
            matcher = self._matcher
            assert matcher is not None, "it has begun again"
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
            if matcher.is_error():
                self._compiled.count_failure()
                return self._fail(reason_of(matcher))
        if not matcher.is_accepting() and (row & self._vocabulary.end_row).any():
            row &= ~self._vocabulary.end_row  # named by the grammar itself, in the midst of a text
            if not row.any():
                return self._fail("the grammar goes on behind a token that ends the text")
        self._keep_to_named_specials(matcher, row)
        return True

    def _keep_to_named_specials(self, matcher: LLMatcher, row: MaskRow) -> None:
        """A complement takes in control tokens, which then cannot be consumed: those leave the mask."""
        specials = row & self._vocabulary.special_row
        if specials.any():
            for word in specials.nonzero()[0].tolist():
                for token_id in (32 * word + bit for bit in range(32) if int(specials[word]) >> bit & 1):
                    if matcher.validate_tokens([token_id]) == 0:
                        row[word] &= ~mask_of([token_id], len(row))[word]

    def _take(self, token_id: int) -> bool:
        matcher = self._matcher
        if matcher is None:
            return False
        if token_id in self._vocabulary.eos_ids:
            if not self.accepting:
                return False
            self._ends += 1
            return True
        if self._ends or not self._vocabulary.can_write(token_id):
            return False
        taken = matcher.try_consume_tokens([token_id])
        if not taken and matcher.is_error() and self._begin_again(reason_of(matcher)):
            assert self._matcher is not None, "it has begun again"
            taken = self._matcher.try_consume_tokens([token_id])
        if taken:
            self._tokens.append(token_id)
        if self._matcher is not None and self._matcher.is_error():
            self._fail(reason_of(self._matcher))
        return bool(taken)

    def _begin_again(self, reason: str) -> bool:
        """With a matcher that shares nothing, at the same place. If there is none, `reason` is the error."""
        matcher = self._compiled.renewed(self._first)
        self._first = None
        if matcher is None:
            return self._fail(reason)
        if self._tokens:
            matcher.consume_tokens(self._tokens)
        if matcher.is_error():
            return self._fail(reason)
        self._matcher, self._error = matcher, None
        return True

    def _fail(self, reason: str) -> bool:
        self._matcher, self._error = None, reason
        return False


_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_REGEX = re.compile(r'invalid regex ".*" \(in regex\): (?:.*\nerror: )?', re.DOTALL)
_LONGEST_REASON = 200


def reason_of(matcher: LLMatcher, has_lines: bool = False) -> str:
    """What went wrong, in one line without the text of the grammar. `has_lines`: places in it are known to
    whoever wrote the grammar."""
    text = _REGEX.sub("invalid regular expression: ", matcher.get_error()).strip()
    place = r"line \1, column \2: " if has_lines else ""
    line = _PLACE.sub(place, text.partition("\n")[0], count=1)
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."
