"""How far a batch has come, and the bar that shows it to a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """Prompts finished so far, prompts in all, and tokens generated so far."""

    done: int
    total: int
    generated_tokens: int


@contextmanager
def progress_bar(total: int, *, unit: str = "prompt") -> Iterator[Callable[[EngineProgress], None]]:
    """A bar on standard error, removed at the end; nothing at all where that is not a terminal."""
    from tqdm import tqdm

    hidden = True if sys.stderr is None else None  # None: unless the file is a terminal
    with tqdm(total=total, unit=unit, file=sys.stderr, disable=hidden, leave=False) as bar:

        def show(progress: EngineProgress) -> None:
            if progress.generated_tokens:
                bar.set_postfix_str(f"{progress.generated_tokens} tokens", refresh=False)
            bar.update(progress.done - bar.n)

        yield show
