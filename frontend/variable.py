"""Variable: a value that a program will have, or has; Feed: what a text grows by, for whoever reads along.

Written on the loop (or before anyone else knows the variable), read from any thread.
"""

from __future__ import annotations

import threading
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
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._meta: Mapping[str, object] = {}
        self._closed = False
        self._waiting: list[Future[None]] = []

    @property
    def is_empty(self) -> bool:
        return not self._texts

    def add(self, text: str, meta: Mapping[str, object]) -> None:
        with self._lock:
            self._texts.append(text)
            self._meta = meta
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            _wake(future)

    def close(self) -> None:
        """Nothing more comes. Closing twice is one close."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            _wake(future)

    def after(self, place: int) -> list[Chunk] | Future[None] | None:
        """The chunks from that place on; a future that is done when there are some; None at the end."""
        with self._lock:
            if place < len(self._texts):
                return [Chunk(text, self._meta) for text in self._texts[place:]]
            if self._closed:
                return None
            future: Future[None] = Future()
            self._waiting.append(future)
            return future


class Variable:
    """`future` holds the value, or what prevented it; `meta` what the backend told of it."""

    __slots__ = ("feed", "future", "meta", "reader")

    def __init__(self, reader: object = None) -> None:
        self.future: Future[object] = Future()
        self.meta: Meta = {}
        self.feed = Feed()
        self.reader = reader

    @classmethod
    def of(cls, value: object, meta: Meta | None = None) -> Variable:
        made = cls()
        made.set(value, meta)
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


def _wake(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
