"""Session: what all branches of one run have in common: the backend, the defaults, the names, the end.

It knows no actions. When the body is over and nothing is under way, the backend is told that the branches are
done, so that what only they have cached goes first.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING

from .loop import is_here, result_of, run_on_loop, the_loop
from .protocol import Backend, Ending

if TYPE_CHECKING:
    from .branch import Branch

_inside: ContextVar[tuple[Session, ...]] = ContextVar("radixlm_inside", default=())
"""The sessions whose bodies run here: that of a program, and of the programs that started it."""


class Session:
    """`defaults` are fields of protocol.Sampling. With `stream`, texts are shown as they come."""

    def __init__(self, backend: Backend, defaults: Mapping[str, object], *, stream: bool = False) -> None:
        self.backend = backend
        self.defaults = dict(defaults)
        self.stream = stream
        self.lock = threading.Lock()
        self.branches: list[Branch] = []
        self.body: Future[None] | None = None
        """The end of a body that does not run where its state is read."""
        self.nested: set[Session] = set()
        """Those of runs that this one's body started and that are not over."""
        self._outer = (*_inside.get(),)[-1:]
        for outer in self._outer:
            outer.nested.add(self)
        self._name = secrets.token_hex(8)
        self._ended: set[str] = set()

    def adopt(self, branch: Branch) -> str:
        """What the backend knows the branch by: short at any depth, and no branch of any process has the
        same."""
        with self.lock:
            self.branches.append(branch)
            return f"{self._name}.{len(self.branches) - 1}"

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

    def end(self, branches: Iterable[Branch], how: Ending) -> None:
        """Tell the backend of those that asked for anything: that they are over, once."""
        if how == "done":  # a pin lasts as long as was said
            branches = [each for each in branches if each.pinned_until <= monotonic()]
        ids = [each.program_id for each in branches if each.asked]
        if how != "released":
            ids = [each for each in ids if each not in self._ended]
            self._ended.update(ids)
        if ids:
            self.backend.end(ids, how)

    def cancel(self, error: BaseException, branches: Iterable[Branch] | None = None) -> None:
        """End these branches (None: all) with what was forked off them: what they run is aborted, and what
        waits fails with this error. From any thread."""
        if is_here():
            self._cancel(error, branches)
        else:
            the_loop().call_soon_threadsafe(self._cancel, error, branches)

    def _cancel(self, error: BaseException, branches: Iterable[Branch] | None) -> None:
        found = list(self.branches if branches is None else branches)
        if branches is None:
            for inner in list(self.nested):
                inner.cancel(error)
        else:
            for branch in found:
                found += branch.children
        for branch in found:
            branch.stop(error)
        self.end(found, "cancelled")

    def finish(self) -> Future[None]:
        """The body is over: done when nothing is under way any more and the backend knows."""
        return run_on_loop(self._finish())

    async def _finish(self) -> None:
        seen = 0
        while seen < len(self.branches):  # a branch that is waited for may fork
            waited = self.branches[seen:]
            seen = len(self.branches)
            await asyncio.gather(*(result_of(branch.barrier()) for branch in waited))
        for branch in self.branches:
            branch.feed.close()
        self.end(self.branches, "done")
        for outer in self._outer:
            outer.nested.discard(self)


def seed_of(seed: object, path: Sequence[int]) -> int:
    """A seed of its own for each branch; the root has the one that was given."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{path}".encode(), digest_size=8).digest()) >> 1
