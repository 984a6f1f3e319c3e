"""What the runtime sees of a grammar, whichever engine enforces it.

A CompiledGrammar is made once, shared by requests and threads, and never changes. A Grammar is one text's
place in it and has one owner at a time: whoever fills its mask on another thread leaves it alone until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

MaskRow: TypeAlias = NDArray[np.int32]
"""Bit j of word w: token 32 w + j may come next. One word for each 32 logits, rounded up."""


class Unenforced(NamedTuple):
    """A keyword of a JSON Schema that masks cannot enforce, where it stands (a JSON pointer, "" for the
    root), and why, in a few words."""

    keyword: str
    pointer: str
    reason: str

    def __str__(self) -> str:
        return f"{self.keyword!r} at {self.pointer or 'the root'} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Report:
    """How much of what was asked masks enforce: all of it, or all but what is listed."""

    unenforced: tuple[Unenforced, ...] = ()

    @property
    def is_exact(self) -> bool:
        return not self.unenforced


class Grammar(Protocol):
    """One text's place in a grammar. Nothing raises for what the text does.

    Bits of tokens that end a text are set in a mask where the text may end here. `accept` takes those tokens
    too: then the grammar is terminated.
    """

    @property
    def accepting(self) -> bool:
        """The text so far is a whole one."""

    @property
    def terminated(self) -> bool:
        """Nothing but the end can follow, or the end was accepted."""

    @property
    def error(self) -> str | None:
        """Why the engine cannot go on (a limit, a fault of its own); the owner must end the request."""

    def mask_into(self, row: MaskRow) -> None:
        """Overwrite all of `row` with what may come next; of a terminated grammar, the end alone."""

    def accept(self, token_ids: Sequence[int]) -> int:
        """Move on over the tokens, up to the first that is not allowed; how many were. The state is that
        after the accepted ones, whatever came."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens, the end too."""

    def fork(self) -> Self:
        """A second one at the same place, independent of this."""

    def forced_tokens(self) -> list[int]:
        """Tokens that must come next, whatever the model says, and that the tokenizer itself would write
        here; often none. The end is never among them. Does not move on."""


class CompiledGrammar(Protocol):
    """A grammar ready for use with one vocabulary."""

    @property
    def report(self) -> Report: ...

    @property
    def size_bytes(self) -> int:
        """About what it keeps in memory, for the bound of the cache."""

    def start(self) -> Grammar:
        """At the beginning of a text."""

    def check(self, text: str) -> str | None:
        """Why a finished text is not what was asked for, where masks did not enforce all of it; None if it
        is, and always None of an exact one."""
