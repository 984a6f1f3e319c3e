"""Sequence: the inside view of one choice of a request, from its arrival to its end.

A sequence knows its tokens, how many of them have keys and values in place, and the lease that holds
their pages. It does not know the scheduler, the cache or time. The scheduler is the only writer; everyone
else reads. What must hold while it runs: `computed <= len(tokens)`, and the lease covers every slot below
`computed` and those of the row in flight. The next row of a sequence follows from its fields alone, whatever
happened before:

    0 ............. start ............ computed ............ len(tokens)
    |  KV in place   |  KV in place,    |  KV still to write   |
                     |  logits wanted (prompt log-probabilities, or only the last token)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..radix.lease import Lease
from .types import FinishReason, Request, Row, SequenceKey

Status = Literal["waiting", "running", "finished"]


@dataclass(slots=True, eq=False)
class Sequence:
    """Choice `index` of `request`. Mutable; `tokens` is the prompt and everything generated so far.

    `logits_needed_from` is the first position whose logits nobody has seen yet although they are wanted;
    it moves on with every row that delivers some, so a replay after preemption never repeats them.
    `cached_tokens` is what the first admission found in the cache and never changes afterwards.
    """

    request: Request
    index: int = 0
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
    preemptions: int = 0
    passed_over: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    _table: tuple[int, ...] = ()
    _table_version: int = -1

    def __post_init__(self) -> None:
        self.key = SequenceKey(self.request.id, self.index)
        self.tokens = list(self.request.prompt_ids)
        self.prompt_len = len(self.tokens)
        self.logits_needed_from = _first_wanted_logits(self.request)

    @property
    def start(self) -> int:
        """First position of the next row. The last token is always in it: its logits choose the next one."""
        return min(self.computed, self.logits_needed_from, len(self.tokens) - 1)

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
        return Row(
            key=self.key,
            tokens=tuple(self.tokens[start:stop]),
            start=start,
            stop=stop,
            write_from=min(self.computed, stop),
            logits_from=min(max(start, self.logits_needed_from), stop),
            pages=self.block_table(),
            samples=stop == len(self.tokens) and self.request.sampling.max_tokens > 0,
        )

    def advance(self, row: Row) -> None:
        """The row was computed: its KV is in place and its logits were seen."""
        self.computed = max(self.computed, row.stop)
        if row.logits_from < row.stop:
            self.logits_needed_from = row.stop

    def hold(self, lease: Lease) -> None:
        """Start running on `lease`: what it matched is in place, the first match of all is remembered."""
        assert self.lease is None, "a sequence has one lease at a time"
        if self.preemptions == 0:
            self.cached_tokens = lease.cached_tokens
        self.lease = lease
        self.computed = lease.cached_tokens
        self.passed_over = 0
        self.status = "running"
        self._table_version = -1

    def drop(self) -> Lease:
        """Stop running: hand the lease back. Nothing is in place any more."""
        lease = self.lease
        assert lease is not None, "only a running sequence has a lease to drop"
        self.lease = None
        self.computed = 0
        self.status = "waiting"
        self._table = ()
        return lease


def _first_wanted_logits(request: Request) -> int:
    """The logits of position i predict token i + 1, so log-probabilities from `first` on need first - 1."""
    length = len(request.prompt_ids)
    first = request.sampling.prompt_logprobs_start
    if first is not None:
        return min(max(first, 1), length) - 1
    return length - 1 if request.sampling.max_tokens > 0 else length
