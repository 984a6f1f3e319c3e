"""GrammarCache: compiled grammars and failures, the least recently used of them forgotten.

Grammars are bounded by the bytes they say they take, failures by the bytes of their texts. A failure that
says nothing for good, a time that ran out on a busy machine, is forgotten after a while. One cache serves one
vocabulary, so that a spec is the whole key. Nothing is compiled here; any thread may ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from .protocol import CompiledGrammar
from .spec import GrammarSpec

Item = TypeVar("Item")

_ENTRY_BYTES = 1 << 10
"""What an entry costs beside its texts and its grammar, roughly."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a spec cannot be compiled. `until`: after this time it may be tried again; None is never."""

    message: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Entries and bytes are those of now, the rest counts from the beginning. A hit on a failure is a hit."""

    entries: int
    bytes: int
    failures: int
    hits: int
    misses: int
    evictions: int


class GrammarCache:
    """`now` is a clock in seconds, for failures that are kept for `retry_seconds`."""

    def __init__(
        self,
        most_bytes: int,
        most_failure_bytes: int = 4 << 20,
        retry_seconds: float = 60.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._grammars = _Shelf[CompiledGrammar](most_bytes)
        self._failures = _Shelf[Failure](most_failure_bytes)
        self._retry_seconds = retry_seconds
        self._now = now
        self._lock = threading.RLock()
        self._hits = self._misses = 0

    def find(self, spec: GrammarSpec) -> CompiledGrammar | Failure | None:
        """What is known of the spec, which is thereby used."""
        with self._lock:
            found = self._grammar(spec) or self._failure(spec)
            self._hits += found is not None
            self._misses += found is None
            return found

    def keep(self, spec: GrammarSpec, compiled: CompiledGrammar) -> None:
        """One that is larger than the whole cache is not kept."""
        with self._lock:
            self._failures.drop(spec)
            self._grammars.put(spec, compiled, _size_of(spec, compiled))

    def keep_failure(self, spec: GrammarSpec, message: str, *, for_good: bool) -> None:
        until = None if for_good else self._now() + self._retry_seconds
        with self._lock:
            self._grammars.drop(spec)
            size = _key_bytes(spec) + len(message.encode())
            self._failures.put(spec, Failure(message, until), size)

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                entries=len(self._grammars.items),
                bytes=self._grammars.bytes,
                failures=len(self._failures.items),
                hits=self._hits,
                misses=self._misses,
                evictions=self._grammars.evictions,
            )

    def check(self) -> None:
        """Counts again what is kept."""
        with self._lock:
            for shelf in (self._grammars, self._failures):
                assert shelf.bytes == sum(size for _, size in shelf.items.values()), "the bytes add up"
                assert shelf.bytes <= shelf.most_bytes, "the bound holds"
            both = self._grammars.items.keys() & self._failures.items.keys()
            assert not both, "a spec compiles or it does not"

    def _grammar(self, spec: GrammarSpec) -> CompiledGrammar | None:
        compiled = self._grammars.get(spec)
        if compiled is not None:  # it may have grown: masks are kept with it
            self._grammars.put(spec, compiled, _size_of(spec, compiled))
        return compiled

    def _failure(self, spec: GrammarSpec) -> Failure | None:
        failure = self._failures.get(spec)
        if failure is not None and failure.until is not None and failure.until <= self._now():
            self._failures.drop(spec)
            return None
        return failure


class _Shelf(Generic[Item]):
    """Items in the order of their last use, each with its size."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.items: OrderedDict[GrammarSpec, tuple[Item, int]] = OrderedDict()
        self.bytes = 0
        self.evictions = 0

    def get(self, spec: GrammarSpec) -> Item | None:
        if spec not in self.items:
            return None
        self.items.move_to_end(spec)
        return self.items[spec][0]

    def put(self, spec: GrammarSpec, item: Item, size: int) -> None:
        self.drop(spec)
        if size > self.most_bytes:
            return
        self.items[spec] = (item, size)
        self.bytes += size
        while self.bytes > self.most_bytes:
            _, (_, freed) = self.items.popitem(last=False)
            self.bytes -= freed
            self.evictions += 1

    def drop(self, spec: GrammarSpec) -> None:
        _, size = self.items.pop(spec, (None, 0))
        self.bytes -= size


def _size_of(spec: GrammarSpec, compiled: CompiledGrammar) -> int:
    return _key_bytes(spec) + compiled.size_bytes


def _key_bytes(spec: GrammarSpec) -> int:
    return _ENTRY_BYTES + len(spec.text.encode()) + len((spec.after or "").encode())
