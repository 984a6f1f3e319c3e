"""Variable: a value that a program will have, or has; Feed: what a text grows by, for whoever reads along.

Written on the loop (or before anyone else knows the variable), read from any thread. A feed has no lock,
since a collection may run anybody's code in the midst of this: the order of its steps makes it sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

Meta = Mapping[str, object] | list[Mapping[str, object]]


class Chunk(NamedTuple):
    text: str
    meta: Mapping[str, object]


class Feed:
    """A list of texts that grows until it is closed. Any number of readers, each at a place of its own. What
    is told beside is cumulative, so only the latest is kept."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._meta: Mapping[str, object] = {}
        self._closed = False
        self._waiting: list[Future[None]] = []

    @property
    def is_empty(self) -> bool:
        return not self._texts

    def add(self, text: str, meta: Mapping[str, object]) -> None:
        self._meta = meta
        self._texts.append(text)
        self._wake()

    def close(self) -> None:
        """Nothing more comes. Closing twice is one close."""
        self._closed = True
        self._wake()

    def after(self, place: int) -> list[Chunk] | Future[None] | None:
        """The chunks from that place on; a future that is done when there are some; None at the end."""
        closed = self._closed  # before the texts are looked at, which all came before the end
        if place < len(self._texts):
            return [Chunk(text, self._meta) for text in self._texts[place:]]
        if closed:
            return None
        future: Future[None] = Future()
        self._waiting.append(future)
        if self._closed or place < len(self._texts):  # since then, so perhaps nobody wakes it
            self._wake()
        return future

    def _wake(self) -> None:
        while self._waiting:
            try:
                future = self._waiting.pop()
            except IndexError:  # another was quicker
                return
            if not future.done():
                future.set_result(None)


class Variable:
    """`future` holds the value, or what prevented it; `meta` what the backend told of it. `is_known`: it is
    there, and somebody awaited it."""

    __slots__ = ("feed", "future", "is_known", "meta", "reader")

    def __init__(self, reader: object = None) -> None:
        self.future: Future[object] = Future()
        self.meta: Meta = {}
        self.feed = Feed()
        self.reader = reader
        self.is_known = False

    @classmethod
    def of(cls, value: object, meta: Meta | None = None) -> Variable:
        made = cls()
        made.set(value, meta)
        made.is_known = True
        return made

    def set(self, value: object, meta: Meta | None = None) -> None:
        """A text that did not come piece by piece is one piece."""
        if meta is not None:
            self.meta = meta
        if isinstance(value, str) and value and self.feed.is_empty:
            self.feed.add(value, meta if isinstance(meta, Mapping) else {})
        if not self.future.done():
            self.future.set_result(value)
        self.feed.close()

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)
        self.feed.close()
