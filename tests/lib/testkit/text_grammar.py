"""A grammar of some texts, over the byte tokenizer's single bytes: small enough to be right by reading.

What it may be told to do wrong: give up after so many tokens, raise when a mask is asked for, or find a text
wrong, and only when an event has come.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from radixlm.runtime.grammar.protocol import MaskRow, Report, Unenforced

from .byte_tokenizer import EOS_ID, FIRST_BYTE_ID


@dataclass(frozen=True)
class Texts:
    """Any one of `texts`. `wrong` is what its check finds; where it is set, the grammar is a relaxed one."""

    texts: tuple[str, ...]
    gives_up_after: int | None = None
    raises: bool = False
    wrong: str | None = None
    waits_for: threading.Event | None = None

    @property
    def report(self) -> Report:
        return Report(() if self.wrong is None else (Unenforced("texts", "", "to try it"),))

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.texts))

    def start(self) -> TextsGrammar:
        return TextsGrammar(self, ())

    def check(self, text: str) -> str | None:
        if self.waits_for is not None:
            assert self.waits_for.wait(60)
        return f"{self.wrong}: {text}" if self.wrong else None


class TextsGrammar:
    def __init__(self, compiled: Texts, tokens: Sequence[int]) -> None:
        self._compiled, self._tokens = compiled, list(tokens)

    @property
    def _followers(self) -> set[int]:
        """What may come next, the end among it."""
        found = set()
        if EOS_ID in self._tokens:
            return {EOS_ID}
        for text in self._compiled.texts:
            ids = [*(FIRST_BYTE_ID + byte for byte in text.encode()), EOS_ID]
            if ids[: len(self._tokens)] == self._tokens:
                found.add(ids[len(self._tokens)])
        return found

    @property
    def accepting(self) -> bool:
        return EOS_ID in self._followers

    @property
    def terminated(self) -> bool:
        return self._followers == {EOS_ID}

    @property
    def error(self) -> str | None:
        limit = self._compiled.gives_up_after
        return None if limit is None or len(self._tokens) <= limit else "it gave up"

    def mask_into(self, row: MaskRow) -> None:
        if self._compiled.raises:
            raise ValueError("it broke")
        row[:] = 0
        for token in self._followers:
            row[token // 32] |= 1 << token % 32

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token in enumerate(token_ids):
            if token not in self._followers or EOS_ID in self._tokens:
                return count
            self._tokens.append(token)
        return len(token_ids)

    def rollback(self, count: int) -> None:
        del self._tokens[len(self._tokens) - count :]

    def fork(self) -> TextsGrammar:
        return TextsGrammar(self._compiled, self._tokens)

    def forced_tokens(self) -> list[int]:
        ahead, found = self.fork(), []
        while len(followers := ahead._followers) == 1 and EOS_ID not in followers:
            found += followers
            ahead.accept(found[-1:])
        return found
