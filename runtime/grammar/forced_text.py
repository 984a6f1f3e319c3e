"""ForcedText: the tokens that must come next where an automaton over bytes leaves no choice.

The text is what single next bytes spell, up to where a whole text may end. Its tokens are the tokenizer's
own, read together with the last tokens before them; where those would then be others, or a token could reach
on over the end of what is forced, the tokenizer might write it otherwise once the text goes on, and such
tokens are left to the model.
"""

from __future__ import annotations

import codecs
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from .byte_automaton import ByteAutomaton
from .token_walk import TokenWalk
from .vocabulary import GrammarVocabulary

_LEAST_CONTEXT, _MOST_CONTEXT = 2, 8
_MOST_CACHED = 512

_Place: TypeAlias = "tuple[int, tuple[int, ...]]"


class ForcedText:
    """Of one automaton; may be shared by threads."""

    def __init__(self, vocabulary: GrammarVocabulary, automaton: ByteAutomaton, walk: TokenWalk) -> None:
        self._vocabulary = vocabulary
        self._automaton = automaton
        self._walk = walk
        self._next_byte = _only_bytes(automaton)
        self._known: OrderedDict[_Place, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def tokens(self, state: int, before: Sequence[int]) -> list[int]:
        """What must come in this state, behind the tokens `before`, all there are."""
        if self._is_choice(state):
            return []
        place = (state, tuple(self._context(before)))
        with self._lock:
            if place in self._known:
                self._known.move_to_end(place)
                return list(self._known[place])
        tokens = self._tokens(*place)
        with self._lock:
            self._known[place] = tuple(tokens)
            if len(self._known) > _MOST_CACHED:
                self._known.popitem(last=False)
        return tokens

    def _tokens(self, state: int, context: Sequence[int]) -> list[int]:
        text, states = self._run(state)
        lead = b"".join(self._vocabulary.tokens[i] for i in context)
        readable, size = _whole_characters(lead + text)
        ids = self._vocabulary.encode(readable)
        if size <= len(lead) or ids[: len(context)] != list(context):
            return []
        ids = ids[len(context) :]
        settled = self._settled(states, size - len(lead))
        stops = accumulate(len(self._vocabulary.tokens[i]) for i in ids)
        fitting = [stop for stop in stops if stop <= settled and self._automaton.may_rest[states[stop]]]
        return ids[: len(fitting)]

    def _is_choice(self, state: int) -> bool:
        return self._next_byte[state] < 0 or bool(self._automaton.is_final[state])

    def _run(self, state: int) -> tuple[bytes, list[int]]:
        """The forced bytes, and the state before each and behind the last."""
        text = bytearray()
        states = [state]
        while not self._is_choice(state):
            text.append(self._next_byte[state])
            state = int(self._automaton.table[state, self._automaton.classes[text[-1]]])
            states.append(state)
        return bytes(text), states

    def _settled(self, states: Sequence[int], size: int) -> int:
        """How much of the first `size` bytes no token from within can reach out of."""
        begin = max(0, size - self._walk.longest)
        return next((i for i in range(begin, size) if self._walk.reach(states[i]) > size - i), size)

    def _context(self, before: Sequence[int]) -> Sequence[int]:
        """The last tokens, from the beginning of a character on."""
        tokens = self._vocabulary.tokens
        most = min(len(before), _MOST_CONTEXT)
        for count in range(min(len(before), _LEAST_CONTEXT), most):
            if not 0x80 <= tokens[before[-count]][0] < 0xC0:
                return before[len(before) - count :]
        return before[len(before) - most :]


def _only_bytes(automaton: ByteAutomaton) -> list[int]:
    """By state, the one byte that leads on, -1 where there are more or none."""
    sizes = np.bincount(automaton.classes, minlength=automaton.table.shape[1])
    leads_on = automaton.table != 0
    bytes_of_class = np.zeros(automaton.table.shape[1], np.int64)
    bytes_of_class[automaton.classes] = np.arange(256)
    is_only = (leads_on @ sizes) == 1
    only: list[int] = np.where(is_only, bytes_of_class[leads_on.argmax(axis=1)], -1).tolist()
    return only


def _whole_characters(data: bytes) -> tuple[str, int]:
    """The text up to a character that is not complete, and its bytes; nothing, if it begins within one."""
    try:
        text = codecs.getincrementaldecoder("utf-8")("strict").decode(data)
    except UnicodeDecodeError:
        return "", 0
    return text, len(text.encode())
