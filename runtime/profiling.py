"""Profiler: what torch computes in an engine's steps, as a trace for a browser.

torch records the thread that begins a profile, so everything here is called on the engine's. A profile holds
the steps between `start` and `stop`, and not more than MOST_STEPS: what it takes of memory grows with each.
While none is under way a region costs nothing to speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidRequest

if TYPE_CHECKING:
    import torch

MOST_STEPS = 1000


class Profiler:
    """One profile at a time."""

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._most_steps = most_steps
        self._steps = 0
        self._profile: torch.profiler.profile | None = None
        self._records = False

    def start(self) -> None:
        """Raises InvalidRequest if there is a profile that was not stopped."""
        from torch.profiler import profile

        if self._profile is not None:
            raise InvalidRequest("there is a profile already, which has to be stopped first")
        self._profile = profile()
        self._profile.start()
        self._steps, self._records = 0, True

    def stop(self, file: Path) -> None:
        """Write what was recorded, as chrome://tracing reads it. Raises InvalidRequest if nothing was."""
        if self._profile is None:
            raise InvalidRequest("there is no profile to stop, none was started")
        profile, self._profile = self._profile, None
        if self._records:
            self._records = False
            profile.stop()
        profile.export_chrome_trace(str(file))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step."""
        with self.region("step"):
            yield
        if self._records:
            self._steps += 1
            if self._steps == self._most_steps:
                assert self._profile is not None, "what is recorded belongs to a profile"
                self._records = False
                self._profile.stop()

    def region(self, name: str) -> AbstractContextManager[object]:
        """A part of a step that has a name in the trace."""
        if not self._records:
            return nullcontext()
        from torch.profiler import record_function

        return record_function(f"radixlm {name}")
