"""Sequence: the inside view of one choice of a request, from its arrival to its end.

A sequence knows its tokens, how many of them have keys and values in place, and the lease that holds
their pages. It does not know the scheduler, the cache or time. The scheduler is the only writer; everyone
else reads. What must hold while it runs: `computed <= len(tokens)`, and the lease covers every slot below
`computed` and those of the row in flight. The next row of a sequence follows from its fields alone, whatever
happened before:

    0 ............. start ............ computed ............ len(tokens)
    |  KV in place   |  KV in place,    |  KV still to write   |
                     |  logits wanted (prompt log-probabilities, or only the last token)

Where continuations of one prompt are scored, each is a sequence whose prompt is both together, and they wait
for another one, the context, which hands each of them the value of its first token.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal

from ..radix.lease import Lease
from .types import CONTEXT, FinishReason, Request, Row, SequenceKey, SlotValue

Status = Literal["waiting", "running", "finished"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Choice `index` of `request`. Mutable; `tokens` is the prompt and everything generated so far. The
    prompt of a scored continuation is the request's and the continuation.

    `logits_needed_from` is the first position whose logits nobody has seen yet although they are wanted;
    it moves on with every row that delivers some, so a replay after preemption never repeats them.
    `values` are those of the tokens by position, as far as they were asked for and are known; they stay with
    the sequence, whatever becomes of its pages.
    `cached_tokens` is what the first admission found in the cache and never changes afterwards.
    `context` is what a scored continuation waits for, `branches` are those that wait for this one.
    `shared` is given to the members of a batch that is known as a whole, see batch_order.py: how many tokens
    this one shares with the one before it in the order of the batch.
    `held_tokens` is set at its end, if its request asked for a hold.
    """

    request: Request
    index: int = 0
    shared: int | None = None
    key: SequenceKey = field(init=False)
    prompt_len: int = field(init=False)
    tokens: list[int] = field(init=False)
    logits_needed_from: int = field(init=False)
    arrival: int = -1
    status: Status = "waiting"
    abort_requested: bool = False
    computed: int = 0
    lease: Lease | None = None
    cached_tokens: int = 0
    computed_tokens: int = 0
    context: Sequence | None = None
    branches: list[Sequence] = field(default_factory=list)
    values: dict[int, SlotValue] = field(default_factory=dict)
    preemptions: int = 0
    passed_over: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    held_tokens: int | None = None
    _table: tuple[int, ...] = ()
    _table_version: int = -1

    def __post_init__(self) -> None:
        self.key = SequenceKey(self.request.id, self.index)
        self.tokens = list(self.request.prompt_ids)
        if self.request.continuations and self.index != CONTEXT:
            self.tokens += self.request.continuations[self.index]
        self.prompt_len = len(self.tokens)
        self.logits_needed_from = self._first_wanted_logits()

    @property
    def start(self) -> int:
        """First position of the next row; `len(tokens)` if there is nothing to compute."""
        return self.start_after(self.computed, 0)

    def start_after(self, computed: int, found: int) -> int:
        """What `start` is once the KV of `computed` tokens and `found` more wanted values are in place."""
        needed = self.logits_needed_from + found
        return min(computed, needed) if needed < self._logits_end else computed

    @property
    def is_ready(self) -> bool:
        """Whether it may be admitted: what it waits for has ended."""
        return self.context is None or self.context.status == "finished"

    @property
    def first_value(self) -> int:
        """The first position whose value is wanted; `prompt_len` if none of the prompt is."""
        if self.index == CONTEXT:
            return self.prompt_len
        if self.request.continuations:
            return len(self.request.prompt_ids)
        first = self.request.sampling.prompt_logprobs_start
        return self.prompt_len if first is None else min(max(first, 1), self.prompt_len)

    @property
    def wants_values(self) -> bool:
        """Whether values kept beside cached tokens will do: no more than the best one is asked for."""
        return self.first_value < self.prompt_len and (self.request.sampling.logprobs or 0) <= 1

    @property
    def own_tokens(self) -> int:
        """Tokens of the prompt that are not its context's, which counts those itself."""
        return self.prompt_len - (0 if self.context is None else self.context.prompt_len)

    @property
    def reach(self) -> int:
        """Slots for which there must be pages when it is admitted, though it takes them chunk by chunk: every
        token there is, and one more if its KV will ever be written."""
        length = len(self.tokens)
        return max(length, min(length + 1, self.prompt_len + self.request.sampling.max_tokens - 1))

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[self.prompt_len :]

    def block_table(self) -> tuple[int, ...]:
        """The pages of the lease as a tuple, made anew only when they changed."""
        lease = self.lease
        assert lease is not None, "only a running sequence has pages"
        if lease.version != self._table_version or len(lease.pages) != len(self._table):
            self._table = tuple(lease.pages)
            self._table_version = lease.version
        return self._table

    def row(self, count: int) -> Row:
        """The next `count` tokens to compute, on the pages held now."""
        start = self.start
        stop = start + count
        logits_from, logits_to = max(start, self.logits_needed_from), min(stop, self._logits_end)
        if logits_from >= logits_to:
            logits_from = logits_to = stop
        return Row(
            key=self.key,
            tokens=tuple(self.tokens[start:stop]),
            start=start,
            stop=stop,
            write_from=min(self.computed, stop),
            logits_from=logits_from,
            logits_to=logits_to,
            pages=self.block_table(),
            samples=stop == len(self.tokens) and self.request.sampling.max_tokens > 0,
        )

    def advance(self, row: Row) -> None:
        """The row was computed: its KV is in place and its logits were seen."""
        self.computed = max(self.computed, row.stop)
        self.computed_tokens += row.stop - row.start
        if row.logits_from < row.logits_to:
            self.logits_needed_from = row.logits_to

    def append(self, tokens: Items[int]) -> None:
        """Generated tokens. Behind the first, their logits are wanted only for log-probabilities."""
        self.tokens += tokens
        if tokens and self.request.sampling.logprobs is None:
            self.logits_needed_from = len(self.tokens) - 1

    def learn(self, position: int, values: Items[SlotValue]) -> None:
        """Keep the values of the tokens from `position` on."""
        self.values.update(enumerate(values, position))

    def find(self, values: Items[SlotValue]) -> None:
        """The next wanted values were known already: nobody computes their logits."""
        self.learn(self.logits_needed_from + 1, values)
        self.logits_needed_from += len(values)

    def known_run(self, start: int, stop: int) -> list[SlotValue]:
        """The values kept for the positions from `start` on, below `stop`, up to the first without one."""
        found = []
        while start < stop and (value := self.values.get(start)) is not None:
            found.append(value)
            start += 1
        return found

    def hold(self, lease: Lease) -> None:
        """Start running on `lease`: what it matched is in place, the first match of all is remembered."""
        assert self.lease is None, "a sequence has one lease at a time"
        self.meet(lease.cached_tokens)
        self.lease = lease
        self.computed = lease.cached_tokens
        self.passed_over = 0
        self.status = "running"
        self._table_version = -1

    def meet(self, cached_tokens: int) -> None:
        """So many of its tokens are in the cache, now that its turn has come. Of those that a grammar forced
        at the beginning none counts."""
        if self.preemptions == 0:
            self.cached_tokens = min(cached_tokens, self.prompt_len)

    def drop(self) -> Lease:
        """Stop running: hand the lease back. Nothing is in place any more."""
        lease = self.lease
        assert lease is not None, "only a running sequence has a lease to drop"
        self.lease = None
        self.computed = 0
        self.status = "waiting"
        self._table = ()
        return lease

    @property
    def _logits_end(self) -> int:
        """Logits are wanted of no position from here on. Those of the last token say what may come next."""
        goes_on = self.request.sampling.max_tokens > 0 or self.index == CONTEXT
        return len(self.tokens) if goes_on else self.prompt_len - 1

    def _first_wanted_logits(self) -> int:
        """The logits of position i predict token i + 1: values from `first_value` on need the one before."""
        return self.first_value - 1


def connect(sequences: Items[Sequence]) -> None:
    """Tell the sequences of one request which wait for its context, which comes first if there is one."""
    context, *branches = sequences
    if context.index == CONTEXT:
        context.branches = branches
        for branch in branches:
            branch.context = context
