"""A scheduler's whole world without tensors: a model and a page store made of hashes, and a driver.

HashModel chooses the next token from the hash of the whole prefix (namespace included), so a token that
was computed from wrong, stale or foreign keys and values differs from the one the request gets alone.
HashPool keeps, per slot, the hash of the prefix whose last token was written there, and every row checks
each slot it reads. The value of a token (SlotValue) comes from the hash as well, so that what lies beside any
slot can be checked. Simulation drives a Scheduler with both and checks budgets, page counts and values on the
way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

from radixlm.radix.cache import PrefixCache
from radixlm.runtime.holds import Holds
from radixlm.runtime.policy import Policy
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.scheduler import Scheduler
from radixlm.runtime.sequence import Sequence, connect
from radixlm.runtime.slot_logprobs import SlotLogprobs
from radixlm.runtime.types import (
    FinishReason,
    Hint,
    Namespace,
    Outcome,
    Plan,
    Request,
    Row,
    SequenceKey,
    SlotValue,
)

NO_HINT = Hint()


@dataclass(frozen=True, slots=True)
class HashModel:
    """Tokens 0 .. vocab-1; about one prefix in `eos_every` ends the sequence with token `vocab` (0: none)."""

    vocab: int = 2
    eos_every: int = 0

    def prefixes(self, namespace: Namespace, tokens: Iterable[int]) -> list[int]:
        """For each position the hash of everything up to and including it."""
        state, states = crc32(repr(namespace).encode()), []
        for token in tokens:
            state = hash((state, token))
            states.append(state)
        return states

    def next_token(self, prefix: int, index: int) -> int:
        mixed = (prefix ^ (index * 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % (1 << 64) >> 20
        if self.eos_every and mixed % self.eos_every == 0:
            return self.vocab
        return mixed // 64 % self.vocab

    def value(self, prefix: int, token: int) -> SlotValue:
        """What the distribution after the prefix says of `token`; the numbers are exact as float32."""
        best = self.next_token(prefix, 0)
        most = -float(prefix % 997)
        return SlotValue(most if token == best else most - 1.0 - hash((prefix, token)) % 1009, best, most)

    def outcome(self, seq: Sequence, states: list[int], most: int) -> Outcome:
        """The engine's side of a row that samples: up to `most` tokens, as if the rest were forced."""
        tokens: list[int] = []
        state, room = states[-1], seq.request.sampling.max_tokens - len(seq.output)
        for left in range(room, max(0, room - most), -1):
            tokens.append(self.next_token(state, seq.index))
            if tokens[-1] == self.vocab or left == 1:
                return Outcome(seq.key, tuple(tokens), "stop" if tokens[-1] == self.vocab else "length")
            state = hash((state, tokens[-1]))
        return Outcome(seq.key, tuple(tokens))

    def solo(self, seq: Sequence, max_length: int) -> tuple[list[int], FinishReason]:
        """Output and finish reason of a sequence that runs alone, with nothing cached."""
        alone = Sequence(seq.request, seq.index)
        finish: FinishReason | None = "length" if seq.request.sampling.max_tokens == 0 else None
        while finish is None:
            outcome = self.outcome(alone, self.prefixes(seq.request.namespace, alone.tokens), 1)
            alone.tokens.extend(outcome.new_tokens)
            finish = outcome.finish or ("length" if len(alone.tokens) >= max_length else None)
        return alone.output, finish


class HashPool:
    """The page store: slot -> hash of the prefix written there. None: never written.

    A row that samples gives up to `burst` tokens, but no sequence gets longer than `max_length`.
    """

    def __init__(
        self, num_pages: int, page_size: int, model: HashModel, *, max_length: int, burst: int = 1
    ) -> None:
        self.page_size = page_size
        self.model = model
        self.max_length = max_length
        self.burst = burst
        self._slots: list[list[int | None]] = [[None] * page_size for _ in range(num_pages)]

    def run(self, plan: Plan, sequences: dict[SequenceKey, Sequence]) -> list[Outcome]:
        """Copies, then all writes, then all reads: the order of a real step, so a write into a page that
        somebody else reads is found as well."""
        for copy in plan.copies:
            assert copy.source != copy.target, "a copy has two pages"
            source, target = self._slots[copy.source], self._slots[copy.target]
            target[:] = source[: copy.slots] + [None] * (self.page_size - copy.slots)
        written: set[tuple[int, int]] = set()
        for row in plan.rows:
            states = self._states(row, sequences[row.key])
            for position in range(row.write_from, row.stop):
                place = self._place(row, position)
                assert place not in written, f"{row.key} writes a slot that another row of the step writes"
                written.add(place)
                self._slots[place[0]][place[1]] = states[position]
        return [self._read(row, sequences[row.key]) for row in plan.rows]

    def _states(self, row: Row, seq: Sequence) -> list[int]:
        assert row.tokens == tuple(seq.tokens[row.start : row.stop]), "a row carries the tokens it computes"
        assert seq.lease is not None, "a row is on the pages of a lease"
        assert row.pages == tuple(seq.lease.pages), "a row has the pages of its lease as they are now"
        assert 0 <= row.start < row.stop <= len(seq.tokens), "a row computes at least one token"
        assert row.start <= row.write_from <= row.stop, "a row writes what it computes"
        assert row.start <= row.logits_from <= row.stop, "a row has logits of what it computes"
        assert not row.samples or row.logits_from < row.stop == len(seq.tokens), "the last logits choose"
        return self.model.prefixes(seq.request.namespace, seq.tokens)

    def _place(self, row: Row, position: int) -> tuple[int, int]:
        return row.pages[position // self.page_size], position % self.page_size

    def _read(self, row: Row, seq: Sequence) -> Outcome:
        states = self._states(row, seq)
        for position in range(row.stop):
            page, slot = self._place(row, position)
            assert self._slots[page][slot] == states[position], (
                f"{row.key} reads slot {slot} of page {page} for position {position}: "
                "it does not hold the key and value of that prefix"
            )
        outcome = Outcome(row.key)
        if row.samples:
            outcome = self.model.outcome(seq, states, min(self.burst, self.max_length - len(seq.tokens)))
        return self._with_values(row, seq, states, outcome)

    def _with_values(self, row: Row, seq: Sequence, states: list[int], outcome: Outcome) -> Outcome:
        """As the engine does: values of the prompt where they are wanted, of a new token where it asked for
        log-probabilities, and of the first tokens of its branches after a context."""
        value, branches = self.model.value, ()
        if seq.branches and row.logits_from < row.logits_to:
            firsts = [branch.tokens[seq.prompt_len] for branch in seq.branches]
            branches = tuple(value(states[-1], token) for token in firsts)
        known = seq.tokens[: seq.prompt_len]
        if seq.request.sampling.logprobs is not None:
            known = seq.tokens + list(outcome.new_tokens[:1])
        asked = [at + 1 for at in range(row.logits_from, row.logits_to) if at + 1 < len(known)]
        values = tuple(value(states[at - 1], known[at]) for at in asked)
        return replace(outcome, values=values, branch_values=branches)


@dataclass(slots=True)
class History:
    """What a simulation saw of one sequence."""

    added_at: int
    seq: Sequence
    first_row_at: int | None = None
    ended_at: int | None = None
    ended: int = 0
    computed_tokens: int = 0
    logits: list[int] = field(default_factory=list)


class Simulation:
    """A Scheduler, its cache and a hash world, moved step by step. Checks every plan and every page count.
    `now` is what the clock of its holds shows."""

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int = 2,
        policy: Policy = "cache-aware",
        chunk_size: int = 8,
        max_running: int = 4,
        max_context: int = 1 << 20,
        prefix_cache: bool = True,
        eviction: Literal["lru", "priority"] = "lru",
        model: HashModel | None = None,
        burst: int = 1,
        hold_budget: float = 0.25,
        max_running_per_tenant: int | None = None,
    ) -> None:
        self.model = model or HashModel()
        self.values = SlotLogprobs(num_pages, page_size)
        self.cache = PrefixCache(
            num_pages, page_size, eviction=eviction, enabled=prefix_cache, values=self.values
        )
        self.now = 0.0
        self.hold_pages = int(hold_budget * num_pages)
        self.scheduler = Scheduler(
            self.cache,
            self.values,
            Holds(self.cache, self.hold_pages, lambda: self.now),
            policy=policy,
            chunk_size=chunk_size,
            max_running=max_running,
            max_context=max_context,
            max_running_per_tenant=max_running_per_tenant,
        )
        max_length = self.scheduler.max_length
        self.pool = HashPool(num_pages, page_size, self.model, max_length=max_length, burst=burst)
        self.chunk_size, self.max_running = chunk_size, max_running
        self.tenant_slots = max_running_per_tenant
        self.live: dict[SequenceKey, Sequence] = {}
        self.histories: dict[SequenceKey, History] = {}
        self.plans: list[Plan] = []

    def add(
        self,
        prompt: Iterable[int],
        *,
        max_tokens: int = 4,
        priority: int = 0,
        salt: str = "",
        index: int = 0,
        request_id: str | None = None,
        prompt_logprobs_start: int | None = None,
        logprobs: int | None = None,
        shared: int | None = None,
        tenant: str = "",
        hint: Hint = NO_HINT,
    ) -> SequenceKey:
        """Queue one sequence; raises what Scheduler.add raises. Without an id it gets a number. A member of a
        batch is added in its turn, with what it has in common with the one before it."""
        sampling = SamplingParams(
            max_tokens=max_tokens, prompt_logprobs_start=prompt_logprobs_start, logprobs=logprobs
        )
        name = str(len(self.histories)) if request_id is None else request_id
        request = Request(
            name, tuple(prompt), sampling, salt=salt, priority=priority, tenant=tenant, hint=hint
        )
        seq = Sequence(request, index, shared)
        self._queue(seq)
        return seq.key

    def score(
        self,
        context: Iterable[int],
        continuations: Iterable[Iterable[int]],
        *,
        priority: int = 0,
        salt: str = "",
        tenant: str = "",
        hint: Hint = NO_HINT,
    ) -> list[SequenceKey]:
        """Queue the sequences of one item to score; the keys of its continuations. Raises as `add`."""
        request = Request(
            str(len(self.histories)),
            tuple(context),
            SamplingParams(max_tokens=0),
            salt=salt,
            priority=priority,
            continuations=tuple(map(tuple, continuations)),
            tenant=tenant,
            hint=hint,
        )
        sequences = [Sequence(request, index) for index in request.choices]
        connect(sequences)
        for seq in sequences:
            self.scheduler.check(seq)
        for seq in sequences:
            self._queue(seq)
        return [seq.key for seq in sequences if seq.index >= 0]

    def _queue(self, seq: Sequence) -> None:
        self.scheduler.add(seq)
        self.live[seq.key] = seq
        self.histories[seq.key] = History(len(self.plans), seq)

    def plan(self) -> Plan | None:
        plan = self.scheduler.plan()
        if plan is None:
            assert self.scheduler.stats().waiting == self.scheduler.stats().running == 0, "work, but no plan"
            self._collect(self.scheduler.take_ended())
            return None
        assert plan.step == len(self.plans), "steps are counted one by one"
        self.plans.append(plan)
        keys = [row.key for row in plan.rows]
        assert len(set(keys)) == len(keys), "a sequence has one row in a step"
        assert sum(row.stop - row.start for row in plan.rows) <= self.chunk_size, "too many tokens in a step"
        assert 0 < self.scheduler.stats().running <= self.max_running, "too many sequences running"
        assert not plan.preempted or self._may_preempt(plan), "prefills ran each other out of pages"
        assert self.cache.held_pages <= self.hold_pages, "holds keep more than their budget"
        assert self._most_of_a_tenant() <= (self.tenant_slots or self.max_running), "a tenant has its share"
        return plan

    def commit(self, plan: Plan) -> None:
        outcomes = self.pool.run(plan, self.live)
        for row in plan.rows:
            history = self.histories[row.key]
            history.computed_tokens += row.stop - row.start
            history.logits.extend(range(row.logits_from, row.logits_to))
            if history.first_row_at is None:
                history.first_row_at = plan.step
        self._collect(self.scheduler.commit(plan, outcomes))

    def fail(self, plan: Plan, message: str = "the step raised") -> None:
        self._collect(self.scheduler.fail(plan, message))

    def step(self) -> bool:
        """Plan, run and commit one step. False if there was nothing to do."""
        plan = self.plan()
        if plan is None:
            return False
        self.commit(plan)
        return True

    def run(self, max_steps: int | None = None) -> int:
        """Step until idle; the number of steps. Raises AssertionError when that takes too long."""
        bound, steps = self.work_bound() if max_steps is None else max_steps, 0
        while self.step():
            steps += 1
            assert steps <= bound, f"not idle after {bound} steps: {self.scheduler.stats()}"
        return steps

    @property
    def page_fill(self) -> float:
        """The share of the slots of used pages that hold keys and values."""
        used = self.cache.num_pages - self.cache.free_pages
        return self.scheduler.held_tokens / (used * self.cache.page_size)

    def work_bound(self) -> int:
        """More steps than a fair schedule needs: everyone alone, replayed once for every other."""
        lengths = [seq.prompt_len + seq.request.sampling.max_tokens for seq in self.live.values()]
        return (sum(lengths) + 1) * (len(lengths) + 1)

    def output(self, key: SequenceKey) -> list[int]:
        return self.histories[key].seq.output

    def reason(self, key: SequenceKey) -> FinishReason | None:
        return self.histories[key].seq.finish_reason

    def check_values(self) -> None:
        """What lies beside a cached slot, and what a sequence knows, is a function of the prefix; a sequence
        that ended by itself knows all it asked for."""
        for namespace, tokens, pages in cached_paths(self.cache):
            states = self.model.prefixes(namespace, tokens)
            for at in range(len(tokens)):
                for value in self.values.read(pages, at, at + 1):
                    assert at > 0, "nothing predicts the first token"
                    assert value == self.model.value(states[at - 1], tokens[at]), f"beside {tokens[: at + 1]}"
        for history in self.histories.values():
            seq = history.seq
            states = self.model.prefixes(seq.request.namespace, seq.tokens)
            for at, value in seq.values.items():
                assert value == self.model.value(states[at - 1], seq.tokens[at]), f"known to {seq.key}"
            if seq.finish_reason in ("stop", "length"):
                wanted = range(seq.first_value, seq.prompt_len)
                assert all(at in seq.values for at in wanted), f"{seq.key} ended without its values"

    def check_outputs(self) -> None:
        """Everything that ended by itself has the output it would have alone."""
        for key, history in self.histories.items():
            seq = history.seq
            alone = self.model.solo(seq, self.scheduler.max_length)
            if seq.finish_reason in ("stop", "length"):
                assert (seq.output, seq.finish_reason) == alone, f"{key} differs from its output alone"
            else:
                assert seq.output == alone[0][: len(seq.output)], f"{key} is no prefix of its output alone"

    def check_idle(self) -> None:
        """Nothing is in use once everything has ended: each page is free, or cached and evictable but for
        holds."""
        self.cache.check()
        assert self.scheduler.is_idle, "something still waits or runs"
        assert self.cache.leased_pages == 0, "pages are leased although nothing runs"
        idle = self.cache.free_pages + self.cache.evictable_pages + self.cache.held_pages
        assert idle == self.cache.num_pages, "pages are lost"
        assert all(history.ended == 1 for history in self.histories.values()), "one end for each sequence"

    def _most_of_a_tenant(self) -> int:
        running = (s.request.tenant for s in self.live.values() if s.status == "running")
        return max(Counter(running).values())

    def _may_preempt(self, plan: Plan) -> bool:
        """Only a sequence that has begun to generate, or a higher priority, takes pages from the others."""
        part = [s for s in self.live.values() if s.status == "running" or s.key in plan.preempted]
        return any(seq.output for seq in part) or len({seq.request.priority for seq in part}) > 1

    def _collect(self, ended: list[Sequence]) -> None:
        for seq in ended:
            history = self.histories[seq.key]
            history.ended += 1
            history.ended_at = len(self.plans)
            assert history.ended == 1, f"{seq.key} ended twice"
            assert seq.finish_reason is not None, "an ended sequence says why"
            del self.live[seq.key]
        cache = self.cache
        cache.check()
        self.check_values()
        assert cache.free_pages + cache.cached_pages + cache.leased_pages == cache.num_pages, "pages are lost"


def cached_paths(cache: PrefixCache) -> Iterable[tuple[Namespace, list[int], list[int]]]:
    """Every run of the tree with all before it: namespace, tokens, pages."""
    paths: dict[int, tuple[list[int], list[int]]] = {}
    for node in cache._tree.nodes():
        tokens, pages = paths[id(node.parent)] if node.parent is not None else ([], [])
        tokens = tokens + [token for key in node.keys for token in key]
        pages = pages + node.pages
        paths[id(node)] = (tokens, pages)
        yield node.namespace, tokens, pages
