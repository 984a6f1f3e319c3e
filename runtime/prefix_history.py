"""PrefixHistory: which prefixes there have been, to tell what a cache that never forgets would find.

Texts are cut into runs of 16 tokens; the hash of a run is that of its tokens and of all before it. So what is
found is at most 15 tokens short of the longest prefix that two texts share; with runs of one token it is
exact, for sixteen times the memory. No token is kept, and no page is known. The memory is bounded: when its
newer half is full the older one is dropped; what is met again moves to the newer one. Nothing but figures
follows from it, so hashes are trusted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

RUN = 16


@dataclass(frozen=True, slots=True)
class Trail:
    """Where an entered text goes on: after `length` tokens, whole runs; `known` of them were known."""

    known: int
    length: int
    state: int


class PrefixHistory:
    """Remembers the last runs that were entered, `most_runs` of them or down to half as many, each in some 80
    bytes and of so many tokens as `run` says. Namespaces share nothing."""

    def __init__(self, most_runs: int = 1 << 18, run: int = RUN) -> None:
        self._run = run
        self._half = max(1, most_runs // 2)
        self._newer: set[int] = set()
        self._older: set[int] = set()

    def __len__(self) -> int:
        return len(self._newer | self._older)

    def enter(self, namespace: Hashable, tokens: tuple[int, ...]) -> Trail:
        """How much of the beginning of `tokens` was known; from now on all of it is."""
        return self.go_on(Trail(0, 0, hash((namespace,))), tokens)

    def go_on(self, trail: Trail, tokens: tuple[int, ...]) -> Trail:
        """As `enter`, of a text whose first `trail.length` tokens were entered: `tokens` are the others."""
        newer, older, state, run = self._newer, self._older, trail.state, self._run
        length = len(tokens) - len(tokens) % run
        known = None
        for at in range(0, length, run):
            state = hash((state, tokens[at : at + run]))
            if state in newer:
                continue
            if state not in older and known is None:
                known = at
            newer.add(state)
            if len(newer) >= self._half:
                newer, older = self._turn()
        found = length if known is None else known
        whole = trail.known == trail.length
        return Trail(trail.length + found if whole else trail.known, trail.length + length, state)

    def _turn(self) -> tuple[set[int], set[int]]:
        """Forget the older half."""
        self._newer, self._older = set(), self._newer
        return self._newer, self._older
