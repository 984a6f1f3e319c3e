"""A program with what it is asked and how its answers are graded: what `radixlm run` makes of a module.

Each program's module has one, under the name `task`. What its `grade` gives is the item's line of output;
some of that is the quality of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

from ...frontend.loop import run_on_loop
from ...frontend.program import Program
from ...frontend.protocol import Backend
from .items import BUILT_IN, DataError, read_items
from .library import Library
from .report import Figures, Row, means_of, tokens_between, tokens_of

Item = TypeVar("Item")

State: TypeAlias = Any
"""A ProgramState of frontend/state.py: what its variables hold, only the program that set them knows."""


@dataclass(frozen=True, slots=True)
class Task(Generic[Item]):
    """An item's fields are the program's arguments, as far as it has parameters of these names. Of what
    `grade` gives, `shares` are true or false or from 0 to 1, and `means` are any numbers. `sampling` is for
    the whole run. A program that `searches` has a parameter `library`."""

    program: Program
    item: type[Item]
    grade: Callable[[State, Item], Mapping[str, object]]
    shares: Sequence[str]
    means: Sequence[str] = ()
    sampling: Mapping[str, object] = field(default_factory=lambda: {"temperature": 0, "seed": 0})
    searches: bool = False

    def arguments(self, item: Item) -> dict[str, object]:
        return {name: getattr(item, name) for name in self.program.arg_names if hasattr(item, name)}


@dataclass(frozen=True, slots=True)
class Run:
    """A task with its data: everything that can be wrong with the input has been looked at."""

    name: str
    task: Task[Any]  # Any: of the items below
    items: Sequence[Any]
    library: Library | None

    def on(self, backend: Backend, *, num_threads: int | str = "auto", progress_bar: bool = False) -> Figures:
        """Runs every item, and says how it went. Raises ProgramError where the backend is of no use."""
        program = self.task.program if self.library is None else self.task.program.bind(library=self.library)
        before = run_on_loop(backend.info()).result()
        begin = perf_counter()
        states = program.run_batch(
            [self.task.arguments(item) for item in self.items],
            backend=backend,
            num_threads=num_threads,
            progress_bar=progress_bar,
            **self.task.sampling,
        )
        seconds = perf_counter() - begin
        after = run_on_loop(backend.info()).result()
        rows = [self._row(place, *each) for place, each in enumerate(zip(states, self.items, strict=True))]
        return Figures(
            self.name,
            rows,
            means_of(rows, self.task.shares),
            means_of(rows, self.task.means),
            {**tokens_of(states), **tokens_between(before, after)},
            seconds,
        )

    def _row(self, place: int, state: State, item: Any) -> Row:
        error = state.error()
        if error is not None:
            return {"item": place, "error": f"{type(error).__name__}: {error}"}
        return {"item": place, **self.task.grade(state, item)}


def prepare(
    name: str, *, data: Path | None = None, documents: Path | None = None, n: int | None = None
) -> Run:
    """The program of this name with its items: the first `n`, of a file or the built-in ones. Raises
    DataError."""
    task: Task[Any] = import_module(f"...{name}", __name__).task
    if documents is not None and not task.searches:
        raise DataError(f"{name} searches no documents, got {str(documents)!r}")
    items = read_items(BUILT_IN / f"{name}.jsonl" if data is None else data, task.item, n)
    return Run(name, task, items, Library.of_folder(documents) if task.searches else None)
