"""The values that cross the runtime's seams: what is asked, what one step computes, what comes back.

All are frozen and plain (ints, strings, tuples), so that they can be sent to another process and used
in tests without torch. A *request* is the outside view, a *sequence* (sequence.py) the inside one:
a request with n choices becomes n sequences, told apart by (request id, choice index). One whose
continuations are to be scored becomes a sequence for each of them, and one for what they share, CONTEXT.

Interval picture of a row (one row computes tokens[start:stop] of one sequence):

    0 ........ start ....... write_from ............ stop
    |  cached   | queries only | queries, KV is written |
                 KV is read,    ^ the first slot this row writes
                 never written
    logits are wanted for positions logits_from .. logits_to-1 (none if they are equal; logits_to <= stop)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
Namespace = tuple[str, ...]
"""Prompts of different namespaces never share pages. ("a", "bc") and ("ab", "c") differ."""


CONTEXT = -1
"""The choice index of the prompt itself where several continuations of it are scored."""


class SequenceKey(NamedTuple):
    """Names one sequence: the request's id and which of its n choices it is."""

    request_id: str
    choice: int


class SlotValue(NamedTuple):
    """What the distribution that predicted a token says of it: the token's raw log-probability, the best
    token's id and log-probability, as float32. Where the token is the best, both are the same number."""

    logprob: float
    best_id: int
    best_logprob: float

    def entry(self, token_id: int, top: int) -> TokenLogprob:
        """The same as what a caller gets who asked for `top` alternatives, 0 or 1."""
        return TokenLogprob(token_id, self.logprob, ((self.best_id, self.best_logprob),)[:top])


@dataclass(frozen=True, slots=True)
class Hint:
    """What a program tells about a request. It changes when things run and what is kept, never a result.

    `program_id` names the branch of a program that asks, unique among all that share a namespace, `parent_id`
    the branch that it was forked from, `fork_group` those that were forked together. `hold_s` asks to keep
    the prefix, with what is generated, for so many seconds after the end, in the place of an earlier hold of
    this branch; it takes a `program_id`. `done`: the branch asks for nothing after this. See Ending for what
    becomes of those that were forked from it.
    """

    program_id: str = ""
    parent_id: str = ""
    fork_group: str = ""
    hold_s: float | None = None
    done: bool = False


Ending = Literal["released", "done", "cancelled"]
"""What becomes of a branch. released: what is held for it need not be held any longer. done: it also asks for
nothing any more, so what only it has cached goes first. cancelled: that goes at once, and what it runs is
aborted. What was forked from it is cancelled with it, and done with it if it neither runs nor holds
anything."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `adapter` is part of the namespace: pages of two adapters are never shared.

    `tenant` is who asks, for limits on what one of them may run at a time.
    With `continuations` nothing is generated: each of them is scored after the prompt, as the choice of its
    index. The prompt runs first, and once for all of them.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    salt: str = ""
    adapter: str = ""
    priority: int = 0
    continuations: tuple[tuple[int, ...], ...] = ()
    tenant: str = ""
    hint: Hint = Hint()

    @property
    def choices(self) -> range:
        """The choice index of each of its sequences, each of which has one terminal event."""
        if self.continuations:
            return range(0 if len(self.continuations) == 1 else CONTEXT, len(self.continuations))
        return range(self.sampling.n)

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
    logits_to: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step computes. `step` counts from 0; `preempted` names sequences that lost their pages."""

    step: int
    rows: tuple[Row, ...]
    copies: tuple[Copy, ...]
    preempted: tuple[SequenceKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the engine decided for one row: tokens to append (none for a prefill chunk), and its end.

    `values` are those of the tokens at positions logits_from + 1 and on, as far as they were asked for, new
    tokens included. `branch_values`: of the first token of each continuation, after the last of a CONTEXT.
    """

    key: SequenceKey
    new_tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None
    values: tuple[SlotValue, ...] = ()
    branch_values: tuple[SlotValue, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The raw log-probability (before temperature, bias, penalties, masks) of one token, and the best
    alternatives of the distribution that predicted it, best first, as (token id, log-probability).
    `logprob` is None at position 0, which nothing predicts."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()

    @property
    def value(self) -> SlotValue | None:
        """What a slot keeps of it; None where the best token is not said."""
        if self.logprob is None or not self.top:
            return None
        return SlotValue(self.logprob, *self.top[0])


@dataclass(frozen=True, slots=True)
class Event:
    """News of one sequence: text and tokens since the last event; the terminal one has `finish_reason`.

    Joined `text` of all events is the final text. Exactly one event of each (request_id, index) has a
    finish reason. Counts are totals so far; `cached_tokens` counts prompt tokens found in the cache when
    the sequence was first admitted (a replay after preemption does not raise it), `computed_tokens` every
    token that a row of it computed, `forced_tokens` the generated ones that a grammar left no choice about.
    `waited_s`: from its arrival to the first step it took part in, if any; it makes no two events differ.
    `held_tokens`, in the terminal event of a request that asked for a hold: how many are held, 0 if it was
    refused. Of a scored continuation, `prompt_logprobs` are those of its tokens. With `refused`, the one
    event of a request whose grammar turned out to be of no use, for the reason in `error`.
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
    computed_tokens: int = 0
    forced_tokens: int = 0
    refused: bool = False
    held_tokens: int | None = None
    waited_s: float | None = field(default=None, compare=False)


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
    forced_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ScoredContinuation:
    """One continuation of an item. `logprob` is the sum of `token_logprobs`, raw natural logarithms;
    `is_greedy`: each of its tokens is the likeliest where it stands."""

    text: str
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    logprob: float
    mean_logprob: float
    is_greedy: bool


@dataclass(frozen=True, slots=True)
class ItemScore:
    """The scores of one item, in the order of its continuations; none of them where it was refused.

    `cached_tokens`: tokens of the context that were in the cache when its turn came. `computed_tokens`: what
    was computed for the item, context and continuations together; 0 if all was known.
    """

    id: str
    continuations: tuple[ScoredContinuation, ...]
    cached_tokens: int
    computed_tokens: int
    error: str | None = None

    @property
    def best(self) -> int | None:
        """The index of the continuation with the largest `logprob`, the first of equal ones."""
        if not self.continuations:
            return None
        return max(range(len(self.continuations)), key=lambda i: self.continuations[i].logprob)
