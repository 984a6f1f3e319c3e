"""Guide: the grammar of one sequence, as its stream and its sampling use it.

It owns the sequence's place in the grammar, the mask of its next token, and how a grammar meets the rest of
what a request asks: tokens that must not end it yet, log-probabilities, room. The mask is filled on another
thread while a step computes (guides.py); meanwhile nobody else touches the guide.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .errors import RequestFailed
from .grammar.protocol import CompiledGrammar, Grammar, MaskRow
from .sampling_params import SamplingParams


class Guide:
    """At the beginning of a text of `compiled`, whose masks have `words` words."""

    def __init__(
        self, compiled: CompiledGrammar, params: SamplingParams, eos_ids: Collection[int], words: int
    ) -> None:
        self._compiled, self._params = compiled, params
        self._grammar = compiled.start()
        self._mask = np.zeros(words, dtype=np.int32)
        self._eos_ids = eos_ids
        self._failure: str | None = None

    @property
    def mask(self) -> MaskRow:
        """What was allowed when it was last filled."""
        return self._mask

    @property
    def is_relaxed(self) -> bool:
        """Whether the finished text has to be checked."""
        return not self._compiled.report.is_exact

    @property
    def is_done(self) -> bool:
        """Nothing but the end can follow."""
        return self._grammar.terminated

    @property
    def error(self) -> str | None:
        """Why the sequence must end: the grammar's engine cannot go on."""
        reason = self._failure or self._grammar.error
        return None if reason is None else f"the grammar cannot go on: {reason}"

    def fill(self, count: int) -> None:
        """The mask of the token after `count` generated ones. What goes wrong is kept as the error."""
        try:
            self._grammar.mask_into(self._mask)
        except Exception as error:  # the engine's own fault: it ends this sequence and touches no other
            self._failure = f"{type(error).__name__}: {error}"
            return
        if not self._mask.any() and self.error is None:
            self._failure = "no token of the vocabulary may come next"
        self._hold_open(count)

    def _hold_open(self, count: int) -> None:
        """Forbid what would end the sequence by its id where it shall go on, if the grammar lets it."""
        ids = set(self._eos_ids if self._params.ignore_eos else ())
        if count < self._params.min_tokens:
            ids |= {*self._eos_ids, *self._params.stop_token_ids}
        if not ids:
            return
        words = {token // 32: 0 for token in ids if token < 32 * len(self._mask)}
        for token in ids:
            if token // 32 in words:
                words[token // 32] |= 1 << token % 32
        kept = {word: self._mask[word] for word in words}
        for word, bits in words.items():
            self._mask[word] &= np.uint32(~bits & 0xFFFFFFFF).astype(np.int32)
        if not self._mask.any():
            for word, value in kept.items():
                self._mask[word] = value

    def accept(self, token: int) -> None:
        """Move on. Raises RequestFailed if the grammar's engine will not."""
        taken = self._grammar.accept((token,))
        if taken != 1 or self.error is not None:
            raise RequestFailed(self.error or f"the grammar cannot go on: it refused token {token}")

    def forced(self, room: int, *, to_the_end: bool) -> list[int]:
        """Tokens that must come next, at most `room`. Without `to_the_end` at least one more token can follow
        them, so that the model is still asked for one."""
        tokens = self._grammar.forced_tokens()
        if not tokens:
            return tokens
        if to_the_end:
            return tokens[: max(0, room)]
        tokens = tokens[: max(0, room - 1)]
        ahead: Grammar = self._grammar.fork()
        ahead.accept(tokens)
        return tokens[:-1] if ahead.terminated else tokens

    def check(self, text: str) -> str | None:
        """Why the finished text is not what was asked for; None if it is. It may take a while."""
        return self._compiled.check(text)
