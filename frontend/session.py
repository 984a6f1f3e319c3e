"""Session: what all branches of one run have in common: the backend, the defaults, the names, the end.

It knows no actions. When the body is over and nothing is under way, the backend is told that the branches are
done, so that what only they have cached goes first. A branch is kept while something of it is under way, and
else by whoever has its state; what has to be known of it after that is in its ledger. There is no lock here:
what is allocated under one may start a collection, and what that ends may fork or append on the same thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from .loop import is_here, result_of, run_on_loop, the_loop
from .protocol import Backend, Ending
from .report import CallReport
from .types import Reader

if TYPE_CHECKING:
    from .branch import Branch

_inside: ContextVar[tuple[Session, ...]] = ContextVar("radixlm_inside", default=())
"""The sessions whose bodies run here: that of a program, and of the programs that started it."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a run says for all of its calls: fields of protocol.Sampling, and what reads the texts of those
    that say no form of their own."""

    options: Mapping[str, object] = field(default_factory=dict)
    reader: Reader | None = None


class Ledger:
    """What is known of a branch for as long as its session is, though the branch itself may be gone: its
    calls and the ledgers of its forks (`entries`), how many calls are its own, whether it has asked the
    backend for anything, has `ended` there, and until when it is pinned. `settled`: somebody awaited the end
    of all that is queued."""

    __slots__ = ("asked", "branch", "ended", "entries", "made", "pinned_until", "program_id", "settled")

    def __init__(self, branch: Branch, program_id: str) -> None:
        self.branch = weakref.ref(branch)
        self.program_id = program_id
        self.entries: list[CallReport | Ledger] = []
        self.made = 0
        self.asked = self.ended = self.settled = False
        self.pinned_until = 0.0  # in the time of `monotonic`

    def note(self, call: CallReport) -> None:
        self.entries.append(call)
        self.made += 1

    def calls(self) -> list[CallReport]:
        """Of this branch and of all that were forked off it."""
        return [entry for each in self.family() for entry in tuple(each.entries) if type(entry) is CallReport]

    def family(self) -> Iterator[Ledger]:
        """This one, and those of all forks."""
        waiting = [self]
        while waiting:
            ledger = waiting.pop()
            yield ledger
            waiting += [each for each in reversed(tuple(ledger.entries)) if isinstance(each, Ledger)]

    def branches(self) -> list[Branch]:
        """Those of the family that somebody has."""
        return [branch for each in self.family() if (branch := each.branch()) is not None]


class Session:
    """With `stream`, texts are shown as they come. `active` are the branches with anything under way."""

    def __init__(self, backend: Backend, defaults: Defaults, *, stream: bool = False) -> None:
        self.backend = backend
        self.defaults = defaults
        self.stream = stream
        self.active: set[Branch] = set()
        self.body: Future[None] | None = None
        """The end of a body that does not run where its state is read."""
        self.is_over = False
        """Nothing of it is under way or will be."""
        self.nested: set[Session] = set()
        """Those of runs that this one's body started and that are not over."""
        self._outer = (*_inside.get(),)[-1:]
        for outer in self._outer:
            outer.nested.add(self)
        self._name = secrets.token_hex(8)
        self._numbers = count()
        self._roots: list[Ledger] = []

    def adopt(self, branch: Branch, parent: Ledger | None) -> Ledger:
        """What the backend knows the branch by is short at any depth, and no branch of any process has the
        same."""
        ledger = Ledger(branch, f"{self._name}.{next(self._numbers)}")
        (self._roots if parent is None else parent.entries).append(ledger)
        return ledger

    @contextmanager
    def inside(self) -> Iterator[None]:
        """While the body runs here."""
        token = _inside.set((*_inside.get(), self))
        try:
            yield
        finally:
            _inside.reset(token)

    def is_inside(self) -> bool:
        """Whether the caller is the body, or was called by it."""
        return any(session is self for session in _inside.get())

    def body_elsewhere(self) -> Future[None] | None:
        """The end of the body, if the caller is not a part of it and it may go on."""
        body = self.body
        return None if body is None or body.done() or self.is_inside() else body

    def end(self, ledgers: Iterable[Ledger], how: Ending) -> None:
        """Tell the backend of those that asked for anything: that they are over, once."""
        ledgers = [each for each in ledgers if each.asked]
        if how == "done":  # a pin lasts as long as was said
            ledgers = [each for each in ledgers if each.pinned_until <= monotonic()]
        if how != "released":
            ledgers = [each for each in ledgers if not each.ended]
            for each in ledgers:
                each.ended = True
        if ledgers:
            self.backend.end([each.program_id for each in ledgers], how)

    def cancel(self, error: BaseException, branches: Iterable[Branch] | None = None) -> None:
        """End these branches (None: all) with what was forked off them: what they run is aborted, and what
        waits fails with this error. From any thread."""
        if is_here():
            self._cancel(error, branches)
        else:
            the_loop().call_soon_threadsafe(self._cancel, error, branches)

    def _cancel(self, error: BaseException, branches: Iterable[Branch] | None) -> None:
        heads = self._roots if branches is None else [branch.ledger for branch in branches]
        if branches is None:
            for inner in self.nested.copy():
                inner.cancel(error)
        for head in heads:
            for branch in head.branches():
                branch.stop(error)
            self.end(head.family(), "cancelled")

    def finish(self) -> Future[None]:
        """The body is over: done when nothing is under way any more and the backend knows."""
        return run_on_loop(self._finish())

    def is_settled(self, ledger: Ledger) -> bool:
        """Whether all that is queued on a branch of it is known to have ended."""
        return ledger.settled or self.is_over

    async def _finish(self) -> None:
        while waited := list(self.active.copy()):  # a branch that is waited for may fork
            await asyncio.gather(*(result_of(branch.barrier()) for branch in waited))
        for root in self._roots:
            for branch in root.branches():
                branch.feed.close()
            self.end(root.family(), "done")
        self.is_over = True
        for outer in self._outer:
            outer.nested.discard(self)


def seed_of(seed: object, path: Sequence[int]) -> int:
    """A seed of its own for each branch; the root has the one that was given."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{path}".encode(), digest_size=8).digest()) >> 1
