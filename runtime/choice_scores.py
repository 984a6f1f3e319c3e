"""Choices scored behind one context: the events of such a request as log-probabilities.

All choices of a request begin at the same place, so that one request scores all of them. What they are like
after nothing is asked by a second one, behind the token that a text begins with. It knows no engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .errors import EngineStopped, InvalidRequest, RequestFailed
from .text_parts import Ids, beginning
from .tokenizer import Tokenizer
from .types import CONTEXT, Event


@dataclass(frozen=True, slots=True)
class ContinuationScores:
    """Log-probabilities of the tokens of each continuation, in their order."""

    logprobs: tuple[tuple[float, ...], ...]
    cached_tokens: int
    computed_tokens: int


def read_scores(continuations: tuple[Ids, ...], context: Ids, events: Iterable[Event]) -> ContinuationScores:
    """All events of a request that scored these. Raises RequestFailed, InvalidRequest or EngineStopped if it
    did not come to its end."""
    found: list[list[float]] = [[] for _ in continuations]
    first = 0 if len(continuations) == 1 else CONTEXT
    cached = computed = 0
    for event in events:
        check_ended_well(event)
        if event.index != CONTEXT:
            values = (entry.logprob for entry in event.prompt_logprobs)
            found[event.index] += [value for value in values if value is not None]
        if event.finish_reason is not None:
            computed += event.computed_tokens
            if event.index == first:
                cached = min(event.cached_tokens, len(context))
    assert list(map(len, found)) == list(map(len, continuations)), "every token behind a context has a value"
    return ContinuationScores(tuple(map(tuple, found)), cached, computed)


def check_ended_well(event: Event) -> None:
    """Raises if nothing can come of its request."""
    if event.refused:
        raise InvalidRequest(event.error)
    if event.finish_reason == "error":
        raise RequestFailed(event.error or "the request failed")
    if event.finish_reason == "abort":
        raise EngineStopped(event.error) if event.error else RequestFailed("the request was aborted")


def nothing_before(tokenizer: Tokenizer) -> Ids:
    """The context of unconditional scores. Raises InvalidRequest if the model has none."""
    found = beginning(tokenizer)
    if not found:
        raise InvalidRequest("unconditional needs a token that begins a text, and the model has none")
    return found
