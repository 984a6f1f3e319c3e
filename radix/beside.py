"""PageValues: what is kept beside the keys and values of each slot, and what the cache tells its keeper.

Such values are functions of the prefix, as keys and values are, and go where those go; unlike them they may
be missing. The cache calls the keeper at the only places where a page gets a new life (`clear`), a copy of
another (`copy`), or is given up because another page holds the same tokens (`fill`), so no caller can forget
to. It never asks for a value: what they are is not its business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class PageValues(Protocol):
    """Told before the page in question is used again. `NoValues` is for a cache that keeps nothing beside."""

    def clear(self, pages: Iterable[int], start: int = 0) -> None:
        """Forget the values of the slots from `start` on of each page."""

    def copy(self, source: int, target: int, slots: int) -> None:
        """Slots [0, slots) of `target`, which was just cleared, get the tokens of `source`."""

    def fill(self, kept: int, given_up: int, slots: int) -> None:
        """Both pages hold the same tokens in slots [0, slots), after the same prefix: what is missing in
        `kept` is taken from the other."""


class NoValues:
    """Keeps nothing."""

    def clear(self, pages: Iterable[int], start: int = 0) -> None: ...

    def copy(self, source: int, target: int, slots: int) -> None: ...

    def fill(self, kept: int, given_up: int, slots: int) -> None: ...
