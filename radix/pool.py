"""PagePool: which page ids are free. It knows nothing of tokens, trees or leases.

A page is either free (here) or out (in the tree, or in exactly one lease). The pool hands out the most
recently freed page first, so the order is a function of the calls alone. Giving back a page that is
not out is a bug of this package and asserts at once.
"""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Page ids 0 .. num_pages-1. `take` and `give` are the only commands."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._out = bytearray(num_pages)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def free_pages(self) -> tuple[int, ...]:
        """The ids of the free pages, the next one to be handed out last."""
        return tuple(self._free)

    def take(self, count: int) -> list[int]:
        assert 0 <= count <= len(self._free), f"{count} pages taken where {len(self._free)} are free"
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._out[page] = 1
        return pages

    def give(self, pages: Iterable[int]) -> None:
        for page in pages:
            assert self._out[page], f"page {page} is given back but was not out"
            self._out[page] = 0
            self._free.append(page)


def pages_for(length: int, page_size: int) -> int:
    """Pages that hold `length` tokens."""
    return -(-length // page_size)
