"""Scores of choices out of log-probabilities of whole texts, for servers that score nothing else. Pure.

A text and a choice are tokenized as one, so the choice may change tokens at the end of the text. Choices are
compared from the first token that any of them changes; what stands before it is the same in all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .errors import BackendError
from .protocol import ChoiceScore


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Tokens, what tells them apart, and the log-probability of each, None where the server has none."""

    tokens: Sequence[Hashable]
    ids: Sequence[int]
    logprobs: Sequence[float | None]


def first_change(prompt: Sequence[Hashable], texts: Sequence[ScoredText]) -> int:
    """How many tokens the prompt has in common with all of the texts that continue it."""
    return min(_common(prompt, text.tokens) for text in texts)


def choice_score(text: ScoredText, start: int) -> ChoiceScore:
    """Of the tokens from `start`. Raises BackendError if one has no log-probability."""
    values = text.logprobs[start:]
    known = tuple(value for value in values if value is not None)
    if len(known) != len(text.ids) - start:
        raise BackendError(
            f"the server gave {len(known)} log-probabilities for {len(text.ids) - start} tokens of a choice"
        )
    return ChoiceScore(tuple(text.ids[start:]), known)


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
