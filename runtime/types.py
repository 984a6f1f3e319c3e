"""The values that cross the runtime's seams: what is asked, what one step computes, what comes back.

All are frozen and plain (ints, strings, tuples), so that they can be sent to another process and used
in tests without torch. A *request* is the outside view, a *sequence* (sequence.py) the inside one:
a request with n choices becomes n sequences, told apart by (request id, choice index).

Interval picture of a row (one row computes tokens[start:stop] of one sequence):

    0 ........ start ....... write_from ............ stop
    |  cached   | queries only | queries, KV is written |
                 KV is read,    ^ the first slot this row writes
                 never written
    logits are wanted for positions logits_from .. stop-1 (none if logits_from == stop)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
Namespace = tuple[str, ...]
"""Prompts of different namespaces never share pages. ("a", "bc") and ("ab", "c") differ."""


class SequenceKey(NamedTuple):
    """Names one sequence: the request's id and which of its n choices it is."""

    request_id: str
    choice: int


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `adapter` is part of the namespace: pages of two adapters are never shared."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    salt: str = ""
    adapter: str = ""
    priority: int = 0

    @property
    def namespace(self) -> Namespace:
        return (self.salt, self.adapter)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy slots [0, slots) of page `source` to page `target`; runs before any KV write of its step."""

    source: int
    target: int
    slots: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: compute tokens[start:stop] of the sequence `key`. See the module's picture.

    `tokens` are the token ids of positions start..stop-1, `pages` is the block table covering at least
    `stop` slots. `samples` says whether the logits of position stop-1 choose the next token.
    """

    key: SequenceKey
    tokens: tuple[int, ...]
    start: int
    stop: int
    write_from: int
    logits_from: int
    pages: tuple[int, ...]
    samples: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes. `step` counts from 0; `preempted` names sequences that lost their pages."""

    step: int
    rows: tuple[Row, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[SequenceKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine decided for one row: tokens to append (none for a prefill chunk), and its end."""

    key: SequenceKey
    new_tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The raw log-probability (before temperature, bias, penalties, masks) of one token, and the best
    alternatives of the distribution that predicted it, best first, as (token id, log-probability).
    `logprob` is None at position 0, which nothing predicts."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """News of one sequence: text and tokens since the last event; the terminal one has `finish_reason`.

    Joined `text` of all events is the final text. Exactly one event of each (request_id, index) has a
    finish reason. Counts are totals so far; `cached_tokens` counts prompt tokens found in the cache when
    the sequence was first admitted (a replay after preemption does not raise it).
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    matched_stop: int | str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole result of one choice; the fields of one output line of `radixlm generate`."""

    id: str
    index: int
    text: str
    output_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    matched_stop: int | str | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
