"""ByteAutomaton: the texts of a regex as a table from state and byte to state.

outlines_core turns the regex into an index; the vocabulary it is given is the 256 bytes, not the model's,
for it looks at every token in every state, 1.5 ms a state at 50,000 tokens. Tokens come later, see
token_walk.py. Two things around the pattern make the automaton right and small: the end of text behind it,
without which outlines_core drops all that comes after the first alternative that matches (`a|ab` would not
match ab); and a character before it that occurs nowhere in it (U+0000, see regex_characters.py), without
which an automaton for finding the pattern anywhere is made as well, exponentially large for `a[ab]{20}`.

What must hold: from every state where a token may end, tokens lead to the end of a whole text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary

from ..errors import InvalidRequest

States: TypeAlias = NDArray[np.uint16]
Flags: TypeAlias = NDArray[np.bool_]
Table: TypeAlias = NDArray[np.int32]

MAX_STATES = 60_000
MAX_TABLE_BYTES = 16 << 20
_END = 256


class Spelling(NamedTuple):
    """Which bytes a vocabulary can write: those that are tokens of their own, and the tokens with others."""

    singles: bytes
    others: tuple[bytes, ...]


def spelling_of(tokens: Iterable[bytes]) -> Spelling:
    known = {token for token in tokens if token}
    singles = b"".join(sorted(token for token in known if len(token) == 1))
    return Spelling(singles, tuple(sorted(token for token in known if token.translate(None, singles))))


@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """`table[state, classes[byte]]` is the next state, 0 if there is none; nothing leads on from state 0.
    `is_final`: a whole text ends there. `may_rest`: a token may end there. Nobody changes the arrays."""

    table: States
    classes: NDArray[np.uint8]
    is_final: Flags
    may_rest: Flags
    start: int

    @property
    def size_bytes(self) -> int:
        return self.table.nbytes + self.is_final.nbytes + self.may_rest.nbytes + self.classes.nbytes


def build_automaton(name: str, pattern: str, spelling: Spelling) -> ByteAutomaton:
    """Of a pattern in Rust's syntax, without anchors and laziness. Takes time and memory without bounds.
    Raises InvalidRequest, in which `name` is what was given, for what the library refuses, for too many
    states, and for texts that the vocabulary cannot write."""
    raw, is_final, start = _indexed(name, pattern)
    _remove_unwritable(raw, spelling)
    table, classes = _by_class(raw, spelling)
    may_rest = _resting(table, classes, is_final, spelling)
    if not may_rest[start]:
        raise InvalidRequest(f"{name} matches no text that the tokens of this model can write")
    automaton = _useful(ByteAutomaton(table.astype(np.uint16), classes, is_final, may_rest, start))
    if automaton.size_bytes > MAX_TABLE_BYTES:
        raise InvalidRequest(
            f"{name} needs a table of {automaton.size_bytes:,} bytes, at most {MAX_TABLE_BYTES:,} are allowed"
        )
    return automaton


def _indexed(name: str, pattern: str) -> tuple[Table, Flags, int]:
    """Rows of 256 next states, which of them are final, and where a text begins."""
    vocabulary = Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})
    try:
        index = Index(rf"\x00(?:{pattern})\z", vocabulary)
    except ValueError as error:
        raise InvalidRequest(f"{name} cannot be compiled: {str(error).splitlines()[-1]}") from None
    transitions: dict[int, dict[int, int]] = index.get_transitions()
    if len(transitions) > MAX_STATES:
        raise InvalidRequest(f"{name} needs {len(transitions):,} states, at most {MAX_STATES:,} are allowed")
    names = np.fromiter(transitions, np.int64, len(transitions))
    numbers = np.zeros(int(names.max()) + 1, np.int32)
    numbers[names] = np.arange(1, len(names) + 1)
    table = np.zeros((len(names) + 1, 256), np.int32)
    for number, row in enumerate(transitions.values(), 1):
        row.pop(_END, None)
        bytes_of_row = np.fromiter(row, np.intp, len(row))
        table[number, bytes_of_row] = numbers[np.fromiter(row.values(), np.int64, len(row))]
    is_final = np.zeros(len(table), np.bool_)
    is_final[numbers[list(index.get_final_states())]] = True
    return table, is_final, int(table[numbers[index.get_initial_state()], 0])


def _remove_unwritable(table: Table, spelling: Spelling) -> None:
    written = np.zeros(256, np.bool_)
    written[list(spelling.singles + b"".join(spelling.others))] = True
    table[:, ~written] = 0


def _by_class(table: Table, spelling: Spelling) -> tuple[Table, NDArray[np.uint8]]:
    """Bytes that lead to the same states everywhere, and are written alike, share a column."""
    columns: dict[tuple[bytes, bool], int] = {}
    classes = np.zeros(256, np.uint8)
    kept: list[int] = []
    for byte, column in enumerate(np.ascontiguousarray(table.T)):
        key = (column.tobytes(), byte in spelling.singles)
        if key not in columns:
            columns[key] = len(columns)
            kept.append(byte)
        classes[byte] = columns[key]
    return np.ascontiguousarray(table[:, kept]), classes


def _resting(table: Table, classes: NDArray[np.uint8], is_final: Flags, spelling: Spelling) -> Flags:
    """From where a whole text can be written, token by token."""
    every = np.arange(len(table), dtype=np.int32)
    columns = {int(classes[byte]) for byte in spelling.singles}
    steps = [table[:, column] for column in sorted(columns)]
    for word in sorted({token.translate(classes.tobytes()) for token in spelling.others}):
        state = every
        for column in word:
            state = table[state, column]
        steps.append(state)
    sources = np.concatenate([every] * len(steps) or [every[:0]])
    targets = np.concatenate(steps or [every[:0]])
    return _closure(targets, sources, np.flatnonzero(is_final), len(table))


def _useful(automaton: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the states that are between the start and one where a token may end."""
    table = automaton.table.astype(np.int32)
    sources = np.repeat(np.arange(len(table), dtype=np.int32), table.shape[1])
    targets = table.ravel()
    leads_on = _closure(targets, sources, np.flatnonzero(automaton.may_rest), len(table))
    table[~leads_on[table]] = 0
    reached = _closure(sources, table.ravel(), np.array([automaton.start]), len(table))
    reached[0] = True
    numbers = (np.cumsum(reached) - 1).astype(np.uint16)
    return ByteAutomaton(
        np.ascontiguousarray(numbers[table[reached]]),
        automaton.classes,
        automaton.is_final[reached],
        automaton.may_rest[reached],
        int(numbers[automaton.start]),
    )


def _closure(sources: Table, targets: Table, begin: NDArray[np.intp], count: int) -> Flags:
    """What is reached from `begin` over the edges, without those of state 0."""
    edges = np.unique((sources.astype(np.int64) * count + targets)[(sources != 0) & (targets != 0)])
    ends = edges % count
    bounds = np.searchsorted(edges // count, np.arange(count + 1))
    reached = np.zeros(count, np.bool_)
    reached[begin] = True
    while len(begin):
        lengths = bounds[begin + 1] - bounds[begin]
        stops = np.cumsum(lengths)
        within = np.arange(stops[-1]) + np.repeat(bounds[begin + 1] - stops, lengths)
        fresh = ends[within]
        begin = np.unique(fresh[~reached[fresh]])
        reached[begin] = True
    return reached
