"""SlotLogprobs: beside each token slot of the page pool, how likely the slot's token was.

For the token in a slot it holds three numbers of the distribution that predicted it: the token's raw
log-probability (float32), the id of the best token and that one's log-probability. They are functions of the
prefix just as keys and values are, so whoever finds the slot cached finds them too. NaN: never computed.
What is known is never overwritten, so the same slot always answers the same. It knows pages and slots, no
sequences and no tokens; that a page starts empty, and what copies and merges carry, is the cache's to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .types import SlotValue


class SlotLogprobs:
    """Values of `num_pages` pages of `page_size` slots; 12 bytes a slot."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._logprobs = np.full((num_pages, page_size), math.nan, np.float32)
        self._best_logprobs = np.full((num_pages, page_size), math.nan, np.float32)
        self._best_ids = np.zeros((num_pages, page_size), np.int32)

    # -- questions ---------------------------------------------------------------------------------

    def count(self, pages: Sequence[int], start: int, stop: int) -> int:
        """How many positions from `start` on, below `stop`, are known without a gap. `pages` is the block
        table that the positions go by."""
        if stop <= start:
            return 0
        missing = np.isnan(self._logprobs[self._slots(pages, start, stop)])
        return int(missing.argmax()) if missing.any() else stop - start

    def read(self, pages: Sequence[int], start: int, stop: int) -> list[SlotValue]:
        """The values of the positions that `count` counts."""
        count = self.count(pages, start, stop)
        if not count:
            return []
        slots = self._slots(pages, start, start + count)
        columns = (self._logprobs[slots], self._best_ids[slots], self._best_logprobs[slots])
        return list(map(SlotValue, *(column.tolist() for column in columns)))

    # -- commands ----------------------------------------------------------------------------------

    def put(self, pages: Sequence[int], start: int, values: Sequence[SlotValue]) -> None:
        """The values of the positions from `start` on; those that are known already stay as they are."""
        if not values:
            return
        at, slot = self._slots(pages, start, start + len(values))
        new = np.isnan(self._logprobs[at, slot])
        logprobs, best_ids, best_logprobs = zip(*values, strict=True)
        at, slot = at[new], slot[new]
        self._logprobs[at, slot] = np.array(logprobs, np.float32)[new]
        self._best_ids[at, slot] = np.array(best_ids, np.int32)[new]
        self._best_logprobs[at, slot] = np.array(best_logprobs, np.float32)[new]

    def clear(self, pages: Iterable[int], start: int = 0) -> None:
        self._logprobs[list(pages), start:] = math.nan

    def copy(self, source: int, target: int, slots: int) -> None:
        for column in (self._logprobs, self._best_ids, self._best_logprobs):
            column[target, :slots] = column[source, :slots]

    def fill(self, kept: int, given_up: int, slots: int) -> None:
        missing = np.flatnonzero(np.isnan(self._logprobs[kept, :slots]))
        for column in (self._logprobs, self._best_ids, self._best_logprobs):
            column[kept, missing] = column[given_up, missing]

    def _slots(
        self, pages: Sequence[int], start: int, stop: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Page and slot of each position."""
        first = start // self._page_size
        table = np.array(pages[first : -(-stop // self._page_size)], np.intp)
        positions = np.arange(start, stop)
        return table[positions // self._page_size - first], positions % self._page_size
