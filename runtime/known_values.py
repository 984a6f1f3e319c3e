"""KnownValues: what sequences are told of how likely their tokens are, and what they leave to others.

With L tokens of a sequence cached, its next wanted value is that of position u, or whichever later one is the
first that is unknown or not below L. Those before it are taken from beside the cached slots, so the sequence
goes on at u - 1 and writes from L. What its rows compute it keeps, and lays beside its slots as soon as they
have pages: a value arises one position before its slot, perhaps a chunk or a preemption earlier.
It moves no sequence on and takes no pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from ..radix.cache import PrefixCache
from ..radix.views import Peek
from .sequence import Sequence
from .types import Outcome, Row, SlotValue

if TYPE_CHECKING:
    from .slot_logprobs import SlotLogprobs


class KnownValues:
    """`values` lie beside the slots of the pages of `cache`."""

    def __init__(self, cache: PrefixCache, values: SlotLogprobs) -> None:
        self._cache, self._values = cache, values

    def count(self, seq: Sequence, peek: Peek) -> int:
        """How many of the values that `seq` wants next are known beside what it finds cached. The one that a
        context wants is for its branches, and counts only if it is known for each of them."""
        if seq.branches:
            return int(peek.cached_tokens == seq.prompt_len and self._of_branches(seq) is not None)
        if not seq.wants_values:
            return 0
        stop = min(peek.cached_tokens, seq.prompt_len)
        return self._values.count(peek.pages, seq.logits_needed_from + 1, stop)

    def give(self, seq: Sequence, pages: Items[int], cached_tokens: int) -> None:
        """Tell `seq`, which begins on these pages, the values that are known. Not for a context, which is
        either told all or computes them."""
        if seq.wants_values:
            stop = min(cached_tokens, seq.prompt_len)
            seq.find(self._values.read(pages, seq.logits_needed_from + 1, stop))

    def give_all(self, seq: Sequence, peek: Peek) -> None:
        """Tell `seq` all it wants, which is known; what it was told before may be news to the slots."""
        if seq.branches:
            values = self._of_branches(seq)
            assert values is not None, "what was counted is still there"
            _tell_branches(seq, values)
        else:
            self.give(seq, peek.pages, peek.cached_tokens)
            assert seq.start_after(seq.prompt_len, 0) == seq.prompt_len, "nothing is left to compute"
            self._put(seq, peek.pages, 0, seq.prompt_len)

    def keep(self, seq: Sequence, row: Row, outcome: Outcome) -> None:
        """The row was computed: the values of tokens that `seq` has stay with it, and beside their slots."""
        first = row.logits_from + 1
        seq.learn(first, outcome.values[: max(0, len(seq.tokens) - first)])
        _tell_branches(seq, outcome.branch_values)
        self._put(seq, row.pages, row.start, row.stop)

    def _put(self, seq: Sequence, pages: Items[int], start: int, stop: int) -> None:
        start = max(start, seq.first_value)
        self._values.put(pages, start, seq.known_run(start, stop))

    def _of_branches(self, seq: Sequence) -> list[SlotValue] | None:
        """The value of the first token of each branch, if all of them are known."""
        place, found = seq.prompt_len, []
        for branch in seq.branches:
            peek = self._cache.peek(branch.tokens[: place + 1], seq.request.namespace)
            values = self._values.read(peek.pages, place, peek.cached_tokens)
            if not values:
                return None
            found += values
        return found


def _tell_branches(seq: Sequence, values: Iterable[SlotValue]) -> None:
    """Of a row that is not the last of a context there are none to tell."""
    for branch, value in zip(seq.branches, values, strict=False):
        branch.find([value])
