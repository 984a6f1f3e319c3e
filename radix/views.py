"""What the cache tells about itself: Peek (what an acquire would find) and CacheStats. Frozen values.

Whether an acquire is granted, and how much of its match it gets, is decided in one place, `Peek.granted`:
`PrefixCache.fits` and `PrefixCache.acquire` both ask it, so the answers cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from .pool import pages_for


@dataclass(frozen=True, slots=True)
class Peek:
    """What acquiring some tokens would find. It holds until the cache next changes.

    cached_tokens: length of the longest cached prefix. room: pages such an acquire could take fresh:
    free ones and evictable ones, less those that the match itself would pin. pages: those that hold the
    prefix, the last of them perhaps in part.
    """

    cached_tokens: int
    room: int
    page_size: int
    source_pins: int
    pages: tuple[int, ...] = ()

    def needed(self, length: int) -> int:
        """Fresh pages an acquire of `length` slots takes; up to `room` of them it gets `cached_tokens`."""
        whole = self.cached_tokens // self.page_size
        return pages_for(max(length, self.cached_tokens), self.page_size) - whole

    def granted(self, length: int) -> int | None:
        """The cached tokens an acquire of `length` slots would get, None if it would be refused.

        Less than `cached_tokens` only where the page to copy from has to be evicted to make room.
        """
        if self.needed(length) <= self.room:
            return self.cached_tokens
        whole = self.cached_tokens // self.page_size
        if max(0, pages_for(length, self.page_size) - whole) <= self.room + self.source_pins:
            return whole * self.page_size
        return None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Pages now, and totals since the cache was made. Hit rate: cached_tokens / asked_tokens.

    held_pages: those that holds keep from eviction, whatever else has them pinned.
    saved_pages: how many more pages the leases would hold now if each had all of its pages to itself.
    """

    num_pages: int
    free_pages: int
    cached_pages: int
    leased_pages: int
    evictable_pages: int
    held_pages: int
    saved_pages: int
    leases: int
    acquired: int
    asked_tokens: int
    cached_tokens: int
    evicted_pages: int
