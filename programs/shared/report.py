"""What a run of a program came to: quality, tokens, reuse against what could have been found, time.

Quality is of the rows that the grading gave. The tokens of a run are the difference of what the backend says
of itself before and after; on a server that answers others at the same time, theirs are among them. What it
does not say is summed up from the reports of the program's own calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, object]
_FEW = 30
COUNTS = ("prompt_tokens", "cached_tokens", "optimal_tokens", "generated_tokens", "forced_tokens")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. `shares` and `means` are by the names of the grading; `tokens` has those of COUNTS that the
    backend counts."""

    name: str
    rows: Sequence[Row]
    shares: Mapping[str, float]
    means: Mapping[str, float]
    tokens: Mapping[str, int]
    seconds: float

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if "error" in row]

    @property
    def reuse_of_optimal(self) -> float | None:
        """Cached tokens over those that a cache that never forgets would have found; None if unknown."""
        cached, optimal = self.tokens.get("cached_tokens"), self.tokens.get("optimal_tokens")
        return None if cached is None or not optimal else cached / optimal

    def text(self) -> str:
        """A line each for quality, tokens, reuse and time."""
        return "\n".join(
            f"{label:8} {line}"
            for label, line in (
                ("quality", self._quality()),
                ("tokens", self._tokens()),
                ("reuse", self._reuse()),
                ("time", f"{self.seconds:.1f} s for {_items(len(self.rows))}"),
            )
        )

    def _quality(self) -> str:
        measures = [f"{_words(name)} {value:.1%}{self._of(name)}" for name, value in self.shares.items()]
        measures += [f"{_words(name)} {value:.1f}{self._of(name)}" for name, value in self.means.items()]
        answered = len(self.rows) - len(self.failed)
        if not measures and answered:
            measures = ["nothing was measured: none of these items says what a right answer is"]
        elif measures and answered < _FEW:
            measures[-1] += f" ({_items(answered)}: too few to compare models by)"
        if self.failed:
            measures.append(f"{len(self.failed)} of {len(self.rows)} failed")
        return ", ".join(measures) or "nothing was run"

    def _of(self, name: str) -> str:
        """How many items it is of, where that are not all that were answered."""
        graded = len(_numbers(self.rows, name))
        answered = len(self.rows) - len(self.failed)
        return "" if graded == answered else f" (of {graded} that can be graded)"

    def _tokens(self) -> str:
        words = {
            "prompt_tokens": "in prompts",
            "generated_tokens": "generated",
            "forced_tokens": "of them forced",
        }
        counted = [
            f"{self.tokens[key]:,} {word}"
            for key, word in words.items()
            if key in self.tokens and (self.tokens[key] or key != "forced_tokens")
        ]
        return ", ".join(counted) or "this backend does not count them"

    def _reuse(self) -> str:
        unknown = "this backend does not say what could have been found"
        if "cached_tokens" not in self.tokens:
            return unknown
        cached = self.tokens["cached_tokens"]
        if "optimal_tokens" not in self.tokens:
            return f"{cached:,} tokens of prompts were found in the cache; {unknown}"
        optimal = self.tokens["optimal_tokens"]
        share = self.reuse_of_optimal
        of_optimal = "nothing could" if share is None else f"{optimal:,} could, so {_share(share)} of optimal"
        return f"{cached:,} tokens of prompts were found in the cache; {of_optimal}"


def means_of(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """The mean of each, over the rows that have a number there; what no row has is left out."""
    found = {}
    for name in names:
        if values := _numbers(rows, name):
            found[name] = sum(values) / len(values)
    return found


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    return [float(value) for row in rows if isinstance(value := row.get(name), bool | int | float)]


def tokens_between(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, int]:
    """The counts that both have, less what there was before."""
    found = {}
    for key in COUNTS:
        old, new = _count(before, key), _count(after, key)
        if isinstance(old, int) and isinstance(new, int):
            found[key] = new - old
    return found


def tokens_of(states: Iterable[Any]) -> dict[str, int]:  # Any: as State of task.py
    """What the reports of the states count, for backends that tell no figures of their own."""
    reports = [state.cache_report() for state in states]
    calls = [call for report in reports for call in report.calls]
    if not any(call.prompted for call in calls):
        return {}
    found = {
        "prompt_tokens": sum(report.prompted for report in reports),
        "generated_tokens": sum(report.generated for report in reports),
        "forced_tokens": sum(report.forced for report in reports),
    }
    if all(call.tells_reused for call in calls):
        found["cached_tokens"] = sum(report.reused for report in reports)
    return found


def _count(info: Mapping[str, object], key: str) -> object:
    """A figure of the programs' calls; where they have none of that name, of all of the backend's work."""
    states = info.get("internal_states")
    if key not in info and isinstance(states, list) and states and isinstance(states[0], Mapping):
        return states[0].get(key)
    return info.get(key)


def _items(count: int) -> str:
    return f"{count} item" if count == 1 else f"{count} items"


def _share(value: float) -> str:
    """What is not all of it is not called that."""
    return "99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


def _words(name: str) -> str:
    return name.replace("_", " ")
