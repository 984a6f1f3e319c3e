"""Traffic: what was asked of an engine, what of it was cached, and what could have been.

The optimum is that of a cache that never forgets, for the same prompts in the order in which they were
computed, with what was generated behind them; it is exact to the token within the last half million of them.
Notes are taken on the engine's thread at no cost worth a word, and worked out by whoever calls `settle`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

from .prefix_history import PrefixHistory, Trail
from .types import Namespace

_MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens: of prompts, those of them that were cached and that could have been, and those generated."""

    prompt_tokens: int
    cached_tokens: int
    optimal_tokens: int
    generated_tokens: int


@dataclass(slots=True, eq=False)
class Course:
    """One prompt that was computed, and where what follows it goes on."""

    prompt: tuple[int, ...]
    namespace: Namespace
    cached: int
    trail: Trail | None = None


class Traffic:
    """Any thread may note; the notes of one course come in order."""

    def __init__(self) -> None:
        self._history = PrefixHistory(_MOST_TOKENS, run=1)
        self._notes: deque[tuple[Course, tuple[int, ...] | None]] = deque()
        self._settling = Lock()
        self._prompt = self._cached = self._optimal = self._generated = 0

    def begin(self, prompt: tuple[int, ...], namespace: Namespace, cached: int) -> Course:
        """A prompt has been computed, but for `cached` tokens that were found."""
        course = Course(prompt, namespace, cached)
        self._notes.append((course, None))
        return course

    def end(self, course: Course, tokens: tuple[int, ...], generated: int) -> None:
        """Such tokens followed it, so many of them generated. The last was never computed: nobody can find
        it."""
        self._generated += generated
        self._notes.append((course, tokens[:-1]))

    def settle(self) -> None:
        with self._settling:
            while self._notes:
                course, tokens = self._notes.popleft()
                if tokens is None:
                    self._enter(course)
                elif tokens:
                    assert course.trail is not None, "a course begins before it ends"
                    self._history.go_on(course.trail, tokens)

    def figures(self) -> Figures:
        self.settle()
        return Figures(self._prompt, self._cached, self._optimal, self._generated)

    def _enter(self, course: Course) -> None:
        course.trail = self._history.enter(course.namespace, course.prompt)
        self._prompt += len(course.prompt)
        self._cached += course.cached
        self._optimal += max(course.trail.known, course.cached)
