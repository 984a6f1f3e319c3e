"""Scheduler: decides what every step computes and keeps each sequence on its way to exactly one end.

It owns the waiting queue, the running set and the leases of the sequences; rules of order and fairness are
in policy.py, pages in the cache. It knows no tensors, no text, no clock and calls nobody back: the engine
asks for a plan, runs it and commits what came out.

    plan() -> Plan -> (engine computes) -> commit(plan, outcomes) or fail(plan, message)

What must hold: one plan is in flight at most; a plan is None only when there is nothing to run; a prompt
that can never fit is refused by `add`, a sequence that outgrows context or pool ends with "length"; the
keys and values of tokens[:computed] are in the pages of the lease, which grows row by row, so that a prompt
in chunks holds no page before it fills it; every added sequence comes back once, from commit, fail or
take_ended, with its `finish_reason`; what is known of a token's log-probability lies beside its slot before
the slot is published.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ..radix.cache import PrefixCache
from .errors import InvalidRequest, TooLarge
from .holds import Holds
from .known_values import KnownValues
from .policy import Budget, Decision, Policy, RunningView, WaitingView, decide
from .programs import Programs
from .sequence import Sequence
from .types import Copy, Ending, FinishReason, Outcome, Plan, Row, SequenceKey

if TYPE_CHECKING:
    from .slot_logprobs import SlotLogprobs

# How many waiting sequences one plan looks at. Looking costs a walk down the tree for each; a prefix shared
# by prompts further apart than this is found when they come nearer. Of those forked together with one that it
# looks at, or that runs, it looks at as many more.
WINDOW = 64


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Counts at one moment (`waiting`, `running`) and totals so far. `prompt_tokens` and `cached_tokens`
    count each sequence once, at its first admission: a replay after preemption is no cache hit. `holds` and
    the totals after it: see HoldStats."""

    waiting: int
    running: int
    steps: int
    preemptions: int
    computed_tokens: int
    prompt_tokens: int
    cached_tokens: int
    ended: int
    holds: int
    holds_granted: int
    holds_refused: int
    holds_broken: int


class Scheduler:
    """Runs at most `max_running` sequences and computes at most `chunk_size` tokens a step.

    A chunk below `max_running` limits the running ones too, so that every step moves each of them that
    decodes and at least one that prefills. At most `max_running_per_tenant` of them are of one
    tenant, where that is given. No sequence grows beyond `max_context` tokens or the whole pool.
    `values` is what the cache tells of its pages, `holds` what programs keep there between two calls.
    """

    def __init__(
        self,
        cache: PrefixCache,
        values: SlotLogprobs,
        holds: Holds,
        *,
        policy: Policy,
        chunk_size: int,
        max_running: int,
        max_context: int,
        max_running_per_tenant: int | None = None,
    ) -> None:
        self._cache = cache
        self._known = KnownValues(cache, values)
        self._holds = holds
        self._programs = Programs(cache, holds)
        self._policy: Policy = policy
        self._chunk_size = chunk_size
        self._slots = min(max_running, chunk_size)
        self._max_context = max_context
        self._tenant_slots = max_running_per_tenant
        self.max_length = min(max_context, cache.num_pages * cache.page_size)
        self._sequences: dict[SequenceKey, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._forked: dict[str, dict[SequenceKey, Sequence]] = {}  # those waiting, by fork group
        self._running: dict[SequenceKey, Sequence] = {}
        self._aborting: list[Sequence] = []
        self._ended: list[Sequence] = []
        self._in_flight: Plan | None = None
        # The next in turn lacks pages. Until something is published, given back or admitted, it stays so.
        self._blocked = False
        self._arrivals = 0
        self._steps = 0
        self._preemptions = 0
        self._computed_tokens = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._total_ended = 0

    # -- questions ---------------------------------------------------------------------------------

    def get(self, key: SequenceKey) -> Sequence | None:
        """The sequence of that key, if it was added and has not ended."""
        return self._sequences.get(key)

    @property
    def is_idle(self) -> bool:
        """Nothing waits or runs, and every end has been handed out."""
        return not self._sequences and not self._ended

    @property
    def held_tokens(self) -> int:
        """Tokens whose keys and values are in place, in the cache and in pages of running sequences."""
        leases = ((seq, seq.lease) for seq in self._running.values())
        private = sum(max(0, seq.computed - lease.published) for seq, lease in leases if lease is not None)
        return self._cache.cached_tokens + private

    @property
    def next_hold_end(self) -> float | None:
        """In how many seconds the time of a hold is over; None if there is none."""
        return self._holds.next_end

    def stats(self) -> SchedulerStats:
        holds = self._holds.stats()
        return SchedulerStats(
            waiting=len(self._waiting),
            running=len(self._running),
            steps=self._steps,
            preemptions=self._preemptions,
            computed_tokens=self._computed_tokens,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            ended=self._total_ended,
            holds=holds.programs,
            holds_granted=holds.granted,
            holds_refused=holds.refused,
            holds_broken=holds.broken,
        )

    # -- commands ----------------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises what `check` raises."""
        self.check(seq)
        seq.arrival = self._arrivals
        self._arrivals += 1
        if self._waiting and seq.request.priority > self._waiting[0].request.priority:
            self._blocked = False
        self._sequences[seq.key] = seq
        self._programs.begin(seq)
        self._queue(seq)

    def check(self, seq: Sequence) -> None:
        """Raises InvalidRequest for an empty prompt or a key that is in use, TooLarge when the prompt and one
        token to generate (none if max_tokens is 0) fit context or pool never."""
        if seq.prompt_len == 0:
            raise InvalidRequest("the prompt has no tokens, at least 1 is needed")
        if seq.key in self._sequences:
            raise InvalidRequest(
                f"{seq.key.request_id!r}: choice {seq.index} of this id is in use, ids must differ"
            )
        least = seq.prompt_len + min(1, seq.request.sampling.max_tokens)
        if least > self.max_length:
            pages, size = self._cache.num_pages, self._cache.page_size
            raise TooLarge(
                f"the request needs room for {least} tokens (a prompt of {seq.prompt_len} and what it "
                f"generates), but the context is {self._max_context} tokens and the pool holds "
                f"{pages * size} ({pages} pages of {size})"
            )

    def refuse(self, seq: Sequence, message: str) -> None:
        """End with an error, at once, what was added and has never run; see take_ended."""
        assert seq.status == "waiting", "it never ran"
        self._end(seq, "error", message, publish=False)

    def abort(self, key: SequenceKey) -> bool:
        """Let the sequence end: at the commit of the step it is in, or else at the next plan. False if there
        is no such sequence."""
        seq = self._sequences.get(key)
        if seq is None:
            return False
        if not seq.abort_requested:
            seq.abort_requested = True
            self._aborting.append(seq)
        return True

    def expect(self, seq: Sequence) -> None:
        """It will be added later: its program has it from now on."""
        self._programs.begin(seq)

    def end_programs(self, program_ids: Iterable[str], how: Ending) -> list[Sequence]:
        """See Ending. What runs of cancelled ones ends as if it was aborted, but leaves nothing cached.
        Returns what is to be aborted of those that are expected."""
        stopped = self._programs.end(program_ids, how)
        self._blocked = False
        return [seq for seq in stopped if not self.abort(seq.key)]

    def expire_holds(self) -> None:
        """End the holds whose time is over; each plan does so by itself."""
        if self._holds.expire():
            self._blocked = False

    def release_holds(self) -> None:
        """End all holds."""
        self._holds.release_all()
        self._blocked = False

    def plan(self) -> Plan | None:
        """What the next step computes; None when nothing is there to run. Takes pages and may preempt.
        Ends what was aborted, and what asks for nothing that is not cached: see take_ended."""
        assert self._in_flight is None, "a plan is committed or failed before the next one is made"
        self.end_aborted()
        self.expire_holds()
        if not self._sequences:
            return None
        preempted: list[Sequence] = []
        candidates, decision = self._decide(preempted)
        while decision.preempt is not None:
            seq = self._running[decision.preempt]
            self._preempt(seq)
            preempted.append(seq)
            candidates, decision = self._decide(preempted)
        if not self._sequences:
            return None
        if not (decision.rows or decision.admit):
            # Those that were preempted published all that the one they gave way to asked for: they go on.
            candidates, decision = self._decide([])
        rows = [self._grow(self._running[key], count) for key, count in decision.rows]
        remaining = {view.key: view.remaining for view in candidates}
        admitted = []
        for key, count in decision.admit:
            seq = self._sequences[key]
            row = self._admit(seq, count, remaining[key])
            if row is None:
                break
            rows.append(row)
            admitted.append(seq)
        assert rows, "with anything to run, a plan has rows"
        self._note_passed_over(candidates, admitted)
        self._in_flight = Plan(
            step=self._steps,
            rows=tuple(rows),
            copies=tuple(Copy(c.source, c.target, c.slots) for c in self._cache.take_copies()),
            preempted=tuple(seq.key for seq in preempted),
        )
        self._steps += 1
        self._computed_tokens += sum(row.stop - row.start for row in rows)
        return self._in_flight

    def commit(self, plan: Plan, outcomes: Iterable[Outcome]) -> list[Sequence]:
        """The step ran: apply one outcome a row. Returns what ended since the last such call."""
        by_key = {outcome.key: outcome for outcome in outcomes}
        assert by_key.keys() == {row.key for row in plan.rows}, "a commit has one outcome for each row"
        self._land(plan)
        for row in plan.rows:
            self._apply(row, by_key[row.key])
        self.end_aborted()
        return self.take_ended()

    def fail(self, plan: Plan, message: str) -> list[Sequence]:
        """The step raised: its rows end with an error and nothing of it is published. Returns as commit."""
        self._land(plan)
        for row in plan.rows:
            self._end_failed(self._running[row.key], message)
        self.end_aborted()
        return self.take_ended()

    def take_ended(self) -> list[Sequence]:
        """The sequences that ended and were not handed out yet: needed when plan() gave None."""
        ended, self._ended = self._ended, []
        return ended

    # -- making a plan -----------------------------------------------------------------------------

    def _decide(self, preempted: list[Sequence]) -> tuple[list[WaitingView], Decision]:
        """What the policy says once no hold has to give way."""
        while True:
            waiting, decision = self._ask(preempted)
            if not decision.give_way:
                return waiting, decision
            self._holds.give_way(decision.give_way)

    def _ask(self, preempted: list[Sequence]) -> tuple[list[WaitingView], Decision]:
        """What the policy says now. Pages are counted once those that need none have ended: the hold that one
        of them takes, or its program's end, makes other pages free, evictable or held."""
        running = [self._running_view(seq) for seq in self._running.values()]
        waiting = self._waiting_views(running)
        decision = decide(self._policy, running, waiting, self._budget(preempted))
        self._blocked = self._blocked or decision.blocked
        return waiting, decision

    def _budget(self, preempted: list[Sequence]) -> Budget:
        return Budget(
            tokens=self._chunk_size,
            slots=self._slots,
            pages=self._available_pages,
            page_size=self._cache.page_size,
            shares=self._cache.enabled,
            above=max((seq.request.priority for seq in preempted), default=None),
            idle_held=self._cache.idle_held_pages,
            beside_holds=self._cache.num_pages - self._cache.held_pages,
        )

    @property
    def _available_pages(self) -> int:
        return self._cache.free_pages + self._cache.evictable_pages

    def _waiting_views(self, running: list[RunningView]) -> list[WaitingView]:
        """The candidates that have something to compute; those that have nothing end here, and then all are
        looked at again: whatever is returned was seen after the last of these ends."""
        while True:
            views = [self._waiting_view(seq) for seq in self._candidates(running)]
            answered = [self._sequences[view.key] for view in views if view.remaining == 0]
            if not answered:
                return views
            for seq in answered:
                self._answer(seq)

    def _candidates(self, running: list[RunningView]) -> list[Sequence]:
        """Who may be admitted now. Nobody is looked at when nobody could be."""
        window = self._window()
        if not running or not window:
            return window
        if self._blocked:
            return []
        if len(running) >= self._slots or sum(view.remaining for view in running) >= self._chunk_size:
            lowest = min(view.priority for view in running)
            return [seq for seq in window if seq.request.priority > lowest]
        return window

    def _window(self) -> list[Sequence]:
        """Those that wait and may run, as they stand in the queue, and their siblings from further back."""
        taken = Counter(seq.request.tenant for seq in self._running.values() if self._tenant_slots)
        window = list(islice(self._admissible(self._waiting, taken), WINDOW))
        if self._forked and len(self._waiting) > len(window):
            window += islice(self._admissible(self._siblings_of(window), taken), WINDOW)
        return window

    def _admissible(self, waiting: Iterable[Sequence], taken: Counter[str]) -> Iterator[Sequence]:
        """No more of a tenant than it has room for beside what it has `taken`."""
        for seq in waiting:
            if not seq.is_ready:
                continue
            if self._tenant_slots is not None:
                if taken[seq.request.tenant] >= self._tenant_slots:
                    continue
                taken[seq.request.tenant] += 1
            yield seq

    def _siblings_of(self, window: list[Sequence]) -> list[Sequence]:
        """Who else waits of those that were forked together with one that runs or is in the window."""
        groups = dict.fromkeys(_group(seq) for seq in [*self._running.values(), *window])
        seen = {seq.key for seq in window}
        waiting = (seq for group in groups for seq in self._forked.get(group, {}).values())
        return [seq for seq in waiting if seq.key not in seen]

    def _running_view(self, seq: Sequence) -> RunningView:
        lease = seq.lease
        assert lease is not None, "a running sequence holds a lease"
        length, held = len(seq.tokens), len(lease.pages)
        remaining = length - seq.start
        prefills = remaining > 1 or length == seq.prompt_len
        growth = max(0, self._pages_for(seq.start + min(remaining, self._chunk_size)) - held)
        return RunningView(
            key=seq.key,
            priority=seq.request.priority,
            arrival=seq.arrival,
            namespace=lease.namespace,
            tokens=seq.tokens,
            computed=seq.computed,
            remaining=remaining,
            pages=held,
            growth=growth,
            reserved=max(0, self._pages_for(seq.reach if prefills else length) - held - growth),
            prefills=prefills,
            group=_group(seq),
        )

    def _waiting_view(self, seq: Sequence) -> WaitingView:
        namespace = seq.request.namespace
        peek = self._cache.peek(seq.tokens, namespace)
        length = len(seq.tokens)
        start = seq.start_after(peek.cached_tokens, self._known.count(seq, peek))
        return WaitingView(
            key=seq.key,
            priority=seq.request.priority,
            arrival=seq.arrival,
            namespace=namespace,
            tokens=seq.tokens,
            cached=peek.cached_tokens,
            remaining=length - start,
            pages=peek.needed(seq.reach) + self._available_pages - peek.room,
            preempted=seq.preemptions > 0,
            passed_over=seq.passed_over,
            own_pages=None
            if seq.shared is None
            else self._pages_for(seq.reach) - seq.shared // self._cache.page_size,
            group=_group(seq),
        )

    def _grow(self, seq: Sequence, count: int) -> Row:
        lease, stop = seq.lease, seq.start + count
        assert lease is not None, "a running sequence holds a lease"
        if stop > len(lease.pages) * self._cache.page_size:
            grown = self._cache.grow(lease, stop)
            assert grown, "the pages that running sequences grow by were counted before"
        return seq.row(count)

    def _admit(self, seq: Sequence, count: int, remaining: int) -> Row | None:
        """Its first row. If less of it is cached by now than was seen, the row starts and ends earlier; None,
        and it waits on, if such a loss before it cost the page that it lacks: what was matched whole may now
        have to be copied, and its source is kept as well until the step has run."""
        stop, request = len(seq.tokens) - remaining + count, seq.request
        lease = self._cache.acquire(
            seq.tokens,
            request.namespace,
            stop,
            priority=request.priority,
            owner=request.hint.program_id,
        )
        if lease is None:
            return None
        seq.hold(lease)
        self._known.give(seq, lease.pages, lease.cached_tokens)
        self._count_prompt(seq)
        self._remove_waiting(seq)
        self._running[seq.key] = seq
        self._blocked = False  # what it pinned is no longer missing to others with the same prefix
        return seq.row(count)

    def _count_prompt(self, seq: Sequence) -> None:
        if seq.preemptions == 0:
            self._prompt_tokens += seq.own_tokens
            self._cached_tokens += max(0, seq.cached_tokens - (seq.prompt_len - seq.own_tokens))

    def _pages_for(self, length: int) -> int:
        return -(-length // self._cache.page_size)

    def _note_passed_over(self, candidates: list[WaitingView], admitted: list[Sequence]) -> None:
        """Age those who still wait although someone of their class who came later was admitted."""
        latest: dict[int, int] = {}
        for seq in admitted:
            priority = seq.request.priority
            latest[priority] = max(seq.arrival, latest.get(priority, -1))
        for view in candidates if latest else ():
            seq = self._sequences[view.key]
            if seq.status == "waiting" and view.arrival < latest.get(view.priority, -1):
                seq.passed_over += 1

    def _answer(self, seq: Sequence) -> None:
        """End a waiting sequence all of which is known: no row computes anything for it."""
        request, owner = seq.request, seq.request.hint.program_id
        seen = self._cache.visit(seq.tokens, request.namespace, priority=request.priority, owner=owner)
        seq.meet(seen.cached_tokens)
        self._known.give_all(seq, seen)
        self._count_prompt(seq)
        self._end(seq, "length", None, publish=False)

    # -- moving sequences on -----------------------------------------------------------------------

    def _land(self, plan: Plan) -> None:
        expected = self._in_flight
        assert expected is not None, "a plan is in flight until it is committed or failed"
        assert plan.step == expected.step, "only the plan in flight can be committed or failed"
        self._in_flight = None
        self._cache.settle()

    def _apply(self, row: Row, outcome: Outcome) -> None:
        seq = self._running[row.key]
        if outcome.finish == "error":
            self._end_failed(seq, outcome.error)
            return
        seq.advance(row)
        if seq.abort_requested:
            self._known.keep(seq, row, outcome)
            return
        assert outcome.new_tokens or outcome.finish or not row.samples, "what samples gives a token or ends"
        seq.append(outcome.new_tokens)
        assert len(seq.tokens) <= self.max_length, "a sequence stays below context and pool"
        self._known.keep(seq, row, outcome)
        finish = outcome.finish or self._exhausted(seq)
        if finish is not None:
            self._end(seq, finish, outcome.error, publish=True)
        elif _is_prefill(seq, row):
            self._publish(seq)

    def _exhausted(self, seq: Sequence) -> FinishReason | None:
        """Whether it ends with "length": there is no room for a next token, or no token was asked for."""
        if seq.request.sampling.max_tokens == 0:
            return "length" if seq.start == seq.prompt_len else None
        return "length" if len(seq.tokens) >= self.max_length else None

    def _publish(self, seq: Sequence) -> None:
        assert seq.lease is not None, "only a running sequence has something to publish"
        self._cache.publish(seq.lease, seq.tokens, seq.computed)
        self._blocked = False

    def _preempt(self, seq: Sequence) -> None:
        """Back to the front of its class, without pages. What was computed stays cached while it can."""
        self._publish(seq)
        self._cache.release(seq.drop())
        seq.preemptions += 1
        self._preemptions += 1
        del self._running[seq.key]
        self._queue(seq)

    def end_aborted(self) -> None:
        """End what was aborted, between two steps; plan, commit and fail do so by themselves."""
        for seq in self._aborting:
            if seq.status != "finished":
                self._end(seq, "abort", None, publish=not self._programs.is_cancelled(seq))
        self._aborting.clear()

    def _end_failed(self, seq: Sequence, error: str | None) -> None:
        """Its pages may hold anything now: none of them is published."""
        if seq.abort_requested:
            self._end(seq, "abort", None, publish=False)
        else:
            self._end(seq, "error", error, publish=False)

    def _end(self, seq: Sequence, reason: FinishReason, error: str | None, *, publish: bool) -> None:
        if seq.status == "running":
            if publish:
                self._publish(seq)
            self._cache.release(seq.drop())
            del self._running[seq.key]
        else:
            self._remove_waiting(seq)
        del self._sequences[seq.key]
        seq.status = "finished"
        seq.finish_reason = reason
        seq.error = error
        self._blocked = False
        self._total_ended += 1
        self._ended.append(seq)
        self._programs.leave(seq, reason)
        if reason in ("abort", "error"):
            self._end_branches(seq, reason, error)

    def _end_branches(self, seq: Sequence, reason: FinishReason, error: str | None) -> None:
        """What `seq` was to tell them, nobody will: those that wait for it end as it did."""
        for branch in seq.branches:
            if branch.status != "finished":
                self._end(branch, reason, error, publish=False)

    def _queue(self, seq: Sequence) -> None:
        insort(self._waiting, seq, key=_place)
        if group := _group(seq):
            self._forked.setdefault(group, {})[seq.key] = seq

    def _remove_waiting(self, seq: Sequence) -> None:
        place = bisect_left(self._waiting, _place(seq), key=_place)
        assert self._waiting[place] is seq, "the queue is sorted by place"
        del self._waiting[place]
        if group := _group(seq):
            siblings = self._forked[group]
            del siblings[seq.key]
            if not siblings:
                del self._forked[group]


def _place(seq: Sequence) -> tuple[int, bool, int]:
    """Where a sequence waits: by priority, those that were preempted first, then by arrival."""
    return (-seq.request.priority, seq.preemptions == 0, seq.arrival)


def _group(seq: Sequence) -> str:
    """With whom it was forked; a batch that is known as a whole has an order of its own."""
    return seq.request.hint.fork_group if seq.shared is None else ""


def _is_prefill(seq: Sequence, row: Row) -> bool:
    """Whether the row wrote more than the one token of a decode step."""
    return row.write_from < row.stop and (row.start < seq.prompt_len or row.stop - row.start > 1)
