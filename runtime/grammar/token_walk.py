"""Which tokens an automaton over bytes allows in a state.

TokenTrie is a vocabulary's tokens as a tree of bytes, made once. TokenWalk is what an automaton makes of it:
bytes that the automaton treats alike are one class, tokens of the same classes are one word, and words with
a byte that leads nowhere are dropped, so that a tree of 100,000 nodes becomes one of some hundred and is
walked in microseconds, all nodes of a depth at once. States are those of one automaton; what text they stand
for, and the end of a text, are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .byte_automaton import ByteAutomaton, Flags
from .protocol import MaskRow

_FEW = 8


class _Level(NamedTuple):
    """The nodes of one depth, numbered on from `first`: parents, and bytes or classes."""

    parents: NDArray[np.int32]
    labels: NDArray[np.uint8]
    first: int

    @property
    def nodes(self) -> slice:
        return slice(self.first, self.first + len(self.parents))


class TokenTrie:
    """Node 0 is the empty text; `node_of` token i is where its bytes end. Tokens without bytes are at 0."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        ids = np.array([i for i, token in enumerate(tokens) if token], np.int32)
        lengths = np.array([len(tokens[i]) for i in ids], np.int32)
        text = np.frombuffer(b"".join(tokens), np.uint8)
        begins = np.cumsum(lengths) - lengths
        self.node_of = np.zeros(len(tokens), np.int32)
        self.levels: list[_Level] = []
        self.size = 1
        at = np.zeros(len(ids), np.int32)
        going = np.arange(len(ids))
        while len(going):
            depth = len(self.levels)
            labels = text[begins[going] + depth]
            keys, which = np.unique(at[going].astype(np.int64) << 8 | labels, return_inverse=True)
            self.levels.append(_Level((keys >> 8).astype(np.int32), (keys & 255).astype(np.uint8), self.size))
            at[going] = self.size + which
            self.size += len(keys)
            ended = lengths[going] == depth + 1
            self.node_of[ids[going[ended]]] = at[going[ended]]
            going = going[~ended]


class TokenWalk:
    """`longest`: bytes of the longest token that the automaton may allow at all."""

    def __init__(self, trie: TokenTrie, automaton: ByteAutomaton, words: int) -> None:
        self._automaton = automaton
        self._words = words
        self._levels: list[_Level] = []
        self._size = 1
        node_of = self._merge(trie)
        ends, word_of = np.unique(node_of[trie.node_of], return_inverse=True)
        self._ends: NDArray[np.int32] = ends.astype(np.int32)  # by word; node 0 is for what is never allowed
        self._word_of: NDArray[np.uint16 | np.int32] = word_of.astype(
            np.uint16 if len(ends) <= 1 << 16 else np.int32
        )
        self._is_end: Flags = np.zeros(self._size, np.bool_)
        self._is_end[self._ends] = True
        few = [len(level.parents) <= _FEW for level in self._levels]
        broad = len(few) - (few[::-1].index(False) if False in few else len(few))
        self._broad = self._levels[:broad]
        self._narrow = [
            list(enumerate(zip(level.parents.tolist(), level.labels.tolist(), strict=True), level.first))
            for level in self._levels[broad:]
        ]
        self._reach: dict[int, int] = {}

    @property
    def longest(self) -> int:
        return len(self._levels)

    @property
    def size_bytes(self) -> int:
        levels = sum(level.parents.nbytes + level.labels.nbytes for level in self._levels)
        return self._word_of.nbytes + self._ends.nbytes + self._is_end.nbytes + levels

    def row(self, state: int) -> MaskRow:
        """The mask of the tokens that may come next. Nobody can write to it."""
        states = self._walked(state)
        allowed: Flags = self._automaton.may_rest[states[self._ends]]
        packed = np.packbits(allowed.take(self._word_of, mode="clip"), bitorder="little")
        row = np.zeros(self._words * 4, np.uint8)
        row[: len(packed)] = packed
        words = row.view("<i4").astype(np.int32, copy=False)
        words.flags.writeable = False
        return words

    def reach(self, state: int) -> int:
        """Bytes of the longest token that may come next."""
        if state not in self._reach:
            states = self._walked(state)
            alive: Flags = self._is_end & self._automaton.may_rest[states]
            depths = [depth for depth, level in enumerate(self._levels, 1) if np.any(alive[level.nodes])]
            self._reach[state] = max(depths, default=0)
        return self._reach[state]

    def _merge(self, trie: TokenTrie) -> NDArray[np.int32]:
        """Fill the levels; the node here of each node of the trie, 0 for what leads nowhere."""
        classes = self._automaton.classes
        leads_on: Flags = (self._automaton.table.max(axis=0) > 0)[classes]
        node_of = np.zeros(trie.size, np.int32)
        for depth, level in enumerate(trie.levels):
            parents = node_of[level.parents]
            live = np.flatnonzero(leads_on[level.labels] & ((parents != 0) | (depth == 0)))
            if not len(live):
                break
            labels = classes[level.labels[live]]
            keys, which = np.unique(parents[live].astype(np.int64) << 8 | labels, return_inverse=True)
            self._levels.append(
                _Level((keys >> 8).astype(np.int32), (keys & 255).astype(np.uint8), self._size)
            )
            node_of[level.first + live] = self._size + which
            self._size += len(keys)
        return node_of

    def _walked(self, state: int) -> NDArray[np.int32]:
        """The state in which each node is reached, 0 where it is not; and for node 0."""
        table = self._automaton.table
        states = np.zeros(self._size, np.int32)
        states[0] = state
        for level in self._broad:
            reached = table[states[level.parents], level.labels]
            if not reached.any():
                break
            states[level.nodes] = reached
        else:
            self._walk_narrow(states)
        states[0] = 0
        return states

    def _walk_narrow(self, states: NDArray[np.int32]) -> None:
        """A few nodes a level, for tens of levels: runs of the same character."""
        if not self._narrow:
            return
        table = self._automaton.table.data
        reached = {parent: int(states[parent]) for _, (parent, _) in self._narrow[0]}
        found: dict[int, int] = {}
        for level in self._narrow:
            reached = {
                node: table[reached[parent], label] for node, (parent, label) in level if reached.get(parent)
            }
            found |= reached
            if not any(reached.values()):
                break
        states[list(found)] = list(found.values())
