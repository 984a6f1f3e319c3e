"""What a run of a program came to: quality, tokens, reuse against what could have been found, time.

Quality is of the rows that the grading gave. The tokens of a run are the difference of what the backend says
of itself before and after; on a server that answers others at the same time, theirs are among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Row: TypeAlias = Mapping[str, object]
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
                ("time", f"{self.seconds:.1f} s for {len(self.rows)} items"),
            )
        )

    def _quality(self) -> str:
        measures = [f"{_words(name)} {value:.1%}" for name, value in self.shares.items()]
        measures += [f"{_words(name)} {value:.1f}" for name, value in self.means.items()]
        if self.failed:
            measures.append(f"{len(self.failed)} of {len(self.rows)} failed")
        return ", ".join(measures) or "nothing was measured"

    def _tokens(self) -> str:
        words = {
            "prompt_tokens": "in prompts",
            "generated_tokens": "generated",
            "forced_tokens": "of them forced",
        }
        counted = [f"{self.tokens[key]:,} {word}" for key, word in words.items() if key in self.tokens]
        return ", ".join(counted) or "this backend does not count them"

    def _reuse(self) -> str:
        if "optimal_tokens" not in self.tokens:
            return "this backend does not say what could have been found"
        cached, optimal = self.tokens["cached_tokens"], self.tokens["optimal_tokens"]
        share = self.reuse_of_optimal
        of_optimal = "nothing could" if share is None else f"{optimal:,} could, so {share:.1%} of optimal"
        return f"{cached:,} tokens of prompts were found in the cache; {of_optimal}"


def means_of(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """The mean of each, over the rows that have a number there; what no row has is left out."""
    found = {}
    for name in names:
        values = [float(value) for row in rows if isinstance(value := row.get(name), bool | int | float)]
        if values:
            found[name] = sum(values) / len(values)
    return found


def tokens_between(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, int]:
    """The counts that both have, less what there was before."""
    found = {}
    for key in COUNTS:
        old, new = _count(before, key), _count(after, key)
        if isinstance(old, int) and isinstance(new, int):
            found[key] = new - old
    return found


def _count(info: Mapping[str, object], key: str) -> object:
    """A figure of the programs' calls; where they have none of that name, of all of the backend's work."""
    states = info.get("internal_states")
    if key not in info and isinstance(states, list) and states and isinstance(states[0], Mapping):
        return states[0].get(key)
    return info.get(key)


def _words(name: str) -> str:
    return name.replace("_", " ")
