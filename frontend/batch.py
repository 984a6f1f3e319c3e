"""run_batch: one program for many items, of which each ends for itself.

Items start in the order of the trie of their first prompts (item_order.py), and a bounded number of them runs
at once: that many tasks on the loop take one item after the other. Since each place in the order is reached
once and nothing is put before it later, no item waits for more than those before it, however cold its prompt.

What must hold: every item ends in exactly one state; results come in the order of the items; what has been
journaled is not run again; whatever ends the batch early, all that it started is cancelled before it returns.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from .backends import as_backend
from .batch_items import Item, ItemFailed, read_items, restored_state, to_record
from .errors import BackendError, Cancelled, InvalidCall, TimedOut, Unreachable
from .item_order import item_order
from .journal import Journal, batch_digest, item_digest
from .loop import is_here, may_block, result_of, the_loop
from .options import ALIASES, check_names
from .progress import Show
from .progress import progress_bar as shown_progress
from .protocol import Backend
from .session import Defaults
from .state import ProgramState
from .tracing import Trace, constants_of, trace, warm_prefix

if TYPE_CHECKING:
    from .program import Program
    from .run import Run

Finished: TypeAlias = tuple[int, ProgramState]

_OPTIONS = (
    *("backend", "num_threads", "progress_bar", "generator_style", "on_error", "retries", "resume"),
    "timeout",
)
"""Of run_batch, beside sampling parameters."""

_LEAST_WORTH_WARMING = 64
"""Characters of a constant prefix."""
_GRACE_SECONDS = 1.0
"""For what was cancelled to end. A body that sleeps in code of its own is left behind then."""
_LONGEST_BACKOFF = 30.0


def run_batch(
    program: Program,
    batch: Iterable[Mapping[str, object] | Sequence[object]],
    *,
    backend: object = None,
    num_threads: int | Literal["auto"] = "auto",
    progress_bar: bool | Literal["always"] = False,
    generator_style: bool | Literal["finished"] = False,
    on_error: Literal["return", "raise"] = "return",
    retries: int = 0,
    resume: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    **sampling: object,
) -> list[ProgramState] | Iterator[ProgramState] | Iterator[Finished]:
    """Run the program for each item, a dict or a tuple of arguments; the states in the order of the items.

    `num_threads`: how many items run at once. `progress_bar`: on standard error where that is a terminal,
    "always" elsewhere too. `generator_style`: give the states one by one in order, or with "finished" pairs
    of place and state as they finish. An item that fails has a state whose `error()` says why and whose
    `text()` is what there was; with on_error="raise" it ends the batch instead. `retries`: how often an item
    begins again that took longer than `timeout` seconds, or whose backend could not be reached. `resume`: a
    file that keeps what has finished, so that the same call, made again, runs only the rest. The other
    arguments are the sampling parameters of Program.run.

    Raises InvalidCall before anything runs if the arguments are wrong, those of an item too.
    """
    from .program import DEFAULTS, check_defaults, check_timeout

    _check(
        "num_threads", num_threads == "auto" or _is_count(num_threads, 1), "'auto' or at least 1", num_threads
    )
    _check("progress_bar", progress_bar in (True, False, "always"), "a bool or 'always'", progress_bar)
    styles = (True, False, "finished")
    _check("generator_style", generator_style in styles, "a bool or 'finished'", generator_style)
    _check("on_error", on_error in ("return", "raise"), "'return' or 'raise'", on_error)
    _check("retries", _is_count(retries, 0), "an integer of at least 0", retries)
    check_timeout(timeout)
    is_path = resume is None or (isinstance(resume, str | os.PathLike) and os.fspath(resume) != "")
    _check("resume", is_path, "the path of a file", resume)
    check_names("run_batch", sampling, [*DEFAULTS, *ALIASES, *_OPTIONS])
    if not may_block():
        raise RuntimeError("an async program cannot wait for a batch: call run_batch on another thread")
    items = read_items(program, batch)
    at_once = max(96, 16 * (os.cpu_count() or 1)) if num_threads == "auto" else num_threads
    found = Batch(
        program,
        items,
        as_backend(backend) if items else None,
        check_defaults(sampling),
        at_once=min(at_once, len(items)),
        raises=on_error == "raise",
        retries=retries,
        timeout=timeout,
    )
    finished = found.run(resume, progress_bar)
    if generator_style == "finished":
        return finished
    if generator_style:
        return _in_order(finished)
    return [state for _, state in sorted(finished, key=lambda each: each[0])]


@dataclass(frozen=True, slots=True)
class _End:
    """All that was started has ended."""

    error: BaseException | None

    @classmethod
    def of(cls, task: asyncio.Task[None]) -> _End:
        return cls(None if task.cancelled() else task.exception())


class Batch:
    """One batch under way. Its coroutines run on the programs' loop, `run` on the thread of the caller."""

    def __init__(
        self,
        program: Program,
        items: Sequence[Item],
        backend: Backend | None,
        defaults: Defaults,
        *,
        at_once: int,
        raises: bool = False,
        retries: int = 0,
        timeout: float | None = None,
        backoff: float = 0.5,
    ) -> None:
        self._program, self._items, self._defaults = program, items, defaults
        self._backend = cast("Backend", backend)  # None for no items, which ask for nothing
        self._at_once, self._raises, self._retries = at_once, raises, retries
        self._timeout, self._backoff = timeout, backoff
        self._journal: Journal | None = None
        self._told: SimpleQueue[tuple[int, ProgramState, int] | _End] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None

    def run(
        self, resume: str | os.PathLike[str] | None, shown: bool | Literal["always"]
    ) -> Generator[Finished, None, None]:
        """Places and states, as they finish. Closing it early cancels the rest."""
        if not self._items:
            return
        with ExitStack() as stack:
            if resume is not None:
                self._journal = stack.enter_context(self._open(resume))
            show = stack.enter_context(shown_progress(len(self._items), shown))
            finished = {} if self._journal is None else self._journal.finished
            for index, record in sorted(finished.items()):
                show(1, 0)
                yield index, restored_state(record, self._backend, self._defaults)
            rest = [index for index in range(len(self._items)) if index not in finished]
            if rest:
                yield from self._run_rest(rest, show)

    def _open(self, path: str | os.PathLike[str]) -> Journal:
        name = getattr(self._program.func, "__qualname__", repr(self._program.func))
        batch = batch_digest(name, self._program.bound, self._defaults.options)
        items = [item_digest(index, item.named) for index, item in enumerate(self._items)]
        return Journal(path, batch, items)

    def _run_rest(self, rest: Sequence[int], show: Show) -> Generator[Finished, None, None]:
        named = [self._items[index].named for index in rest]
        found = Trace() if len(rest) == 1 else trace(self._program, constants_of(self._program, named))
        order = [rest[place] for place in item_order(found.keys(named))]
        end: _End | None = None
        patience: float | None = None
        try:
            the_loop().call_soon_threadsafe(self._start, order, found, context=copy_context())
            while not isinstance(told := self._told.get(), _End):
                index, state, tokens = told
                show(1, tokens)
                yield index, state
            end = told
        except GeneratorExit:  # perhaps of a collection, on a thread that the loop itself waits for
            patience = 0.0 if is_here() else _GRACE_SECONDS
            raise
        finally:
            if end is None:  # interrupted, or nobody wants more of it
                the_loop().call_soon_threadsafe(self._stop)
                with suppress(Empty):
                    while not isinstance(self._told.get(timeout=patience), _End):
                        pass
        if end.error is not None:
            raise end.error

    # -- on the loop -----------------------------------------------------------------------------------

    def _start(self, order: Sequence[int], found: Trace) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_all(order, found))
        self._task.add_done_callback(lambda task: self._told.put(_End.of(task)))

    def _stop(self) -> None:
        if self._task is None:  # interrupted before it was started
            self._told.put(_End(None))
        else:
            self._task.cancel()

    async def _run_all(self, order: Sequence[int], found: Trace) -> None:
        if len(order) > 1 and len(found.prefix_text()) >= _LEAST_WORTH_WARMING:
            with suppress(BackendError, TimeoutError):  # the items will say it, if it matters
                await asyncio.wait_for(warm_prefix(found, self._backend), self._timeout)
        turns = iter(order)
        workers = [asyncio.create_task(self._work(turns)) for _ in range(min(self._at_once, len(order)))]
        try:
            await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in workers:
                if worker.done():
                    worker.result()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, turns: Iterator[int]) -> None:
        for index in turns:
            state = await self._run_item(index)
            branch = state.branch
            if branch.error is None and self._journal is not None:
                try:
                    self._journal.add(index, to_record(state))
                except Exception as error:  # of what the program returned or a reader of its own raises
                    branch.fail_as(ItemFailed(index, error))
            if branch.error is not None and self._raises:
                raise branch.error
            self._told.put((index, state, _generated(state)))

    async def _run_item(self, index: int) -> ProgramState:
        attempt = 0
        while True:
            state = await self._run_once(index)
            error = state.branch.error
            if error is None:
                return state
            if attempt == self._retries or not _is_passing(error):
                state.branch.fail_as(ItemFailed(index, error))
                return state
            pause = min(_LONGEST_BACKOFF, self._backoff * 2**attempt)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            attempt += 1

    async def _run_once(self, index: int) -> ProgramState:
        item = self._items[index]
        run = self._program.launch(item.arguments, self._defaults, self._backend, timeout=self._timeout)
        try:
            if not await _ends(run, None if self._timeout is None else self._timeout + _GRACE_SECONDS):
                branch = run.state.branch
                if branch.error is None:
                    branch.fail_as(TimedOut(f"it did not end within {self._timeout:g} s"))
        except asyncio.CancelledError:
            run.cancel(Cancelled("the batch was ended before this item was"))
            await _ends(run, _GRACE_SECONDS)
            raise
        return run.state


def _in_order(finished: Generator[Finished, None, None]) -> Generator[ProgramState, None, None]:
    """Each state as soon as it and all before it are there."""
    waiting: dict[int, ProgramState] = {}
    place = 0
    with closing(finished):
        for index, state in finished:
            waiting[index] = state
            while place in waiting:
                yield waiting.pop(place)
                place += 1


async def _ends(run: Run, seconds: float | None) -> bool:
    """Whether it ends within that time."""
    try:
        await asyncio.wait_for(result_of(run.ended), seconds)
    except TimeoutError:
        return False
    return True


def _generated(state: ProgramState) -> int:
    """Tokens, those of forks too."""
    return sum(call.generated for call in state.branch.ledger.calls())


def _is_passing(error: BaseException | None) -> bool:
    """Whether trying again may help."""
    while error is not None:
        if isinstance(error, Unreachable | TimedOut):
            return True
        error = error.__cause__
    return False


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check(name: str, is_right: bool, allowed: str, value: object) -> None:
    if not is_right:
        raise InvalidCall(f"{name} must be {allowed}, got {value!r:.200}")
