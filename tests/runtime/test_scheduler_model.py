"""A scheduler in a tiny world, pushed around at random: every read verified, every page counted."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
)

from radixlm.runtime.errors import TooLarge
from radixlm.runtime.types import Ending, Hint, Plan, SequenceKey
from testkit.sim import HashModel, Simulation

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
PROGRAMS = ("a", "b", "c")
HINTS = st.one_of(
    st.just(Hint()),
    st.builds(
        Hint,
        program_id=st.sampled_from(("", *PROGRAMS)),
        parent_id=st.sampled_from(("", "", *PROGRAMS)),
        fork_group=st.sampled_from(("", "f", "g")),
        hold_s=st.sampled_from((None, 0.0, 3.0, 5.0, 1e9)),
        done=st.sampled_from((False, False, True)),
    ),
)
TENANTS = st.sampled_from(("", "t"))


class SchedulerMachine(RuleBasedStateMachine):
    """Two-token prompts over a pool of a few pages. Whatever happens to the others, each request that ends
    by itself has the output it has alone; each ends once; nothing is in use when all have ended, but for
    holds within their time and budget."""

    keys: Bundle[SequenceKey] = Bundle("keys")

    @initialize(
        num_pages=st.integers(2, 9),
        page_size=st.sampled_from((1, 2, 4)),
        policy=st.sampled_from(("cache-aware", "fcfs")),
        chunk_size=st.integers(1, 9),
        max_running=st.integers(1, 5),
        max_context=st.sampled_from((7, 1000)),
        prefix_cache=st.sampled_from((True, True, False)),
        eviction=st.sampled_from(("lru", "priority")),
        model=st.sampled_from((HashModel(), HashModel(eos_every=5))),
        burst=st.sampled_from((1, 3)),
        hold_budget=st.sampled_from((0.0, 0.3, 0.6, 1.0)),
        max_running_per_tenant=st.sampled_from((None, None, 1, 2)),
    )
    def start(self, **options: object) -> None:
        self.in_flight: Plan | None = None
        self.sim = Simulation(**options)  # type: ignore[arg-type]  # one strategy for each of its options

    @rule(
        target=keys,
        prompt=PROMPTS,
        max_tokens=st.integers(0, 8),
        priority=st.sampled_from((0, 0, 1)),
        salt=st.sampled_from(("", "", "a")),
        choices=st.integers(1, 2),
        prompt_logprobs_start=st.sampled_from((None, None, 0, 3)),
        shared=st.sampled_from((None, 0, 4)),
        logprobs=st.sampled_from((None, None, 1, 2)),
        tenant=TENANTS,
        hint=HINTS,
    )
    def add(
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int,
        salt: str,
        choices: int,
        prompt_logprobs_start: int | None,
        shared: int | None,
        logprobs: int | None,
        tenant: str,
        hint: Hint,
    ) -> SequenceKey | MultipleResults[SequenceKey]:
        name = f"request {len(self.sim.histories)}"
        try:
            added = [
                self.sim.add(
                    prompt,
                    max_tokens=max_tokens,
                    priority=priority,
                    salt=salt,
                    request_id=name,
                    index=index,
                    prompt_logprobs_start=prompt_logprobs_start,
                    shared=shared,
                    logprobs=logprobs,
                    tenant=tenant,
                    hint=hint,
                )
                for index in range(choices)
            ]
        except TooLarge:
            assert len(prompt) + min(1, max_tokens) > self.sim.scheduler.max_length, (
                "refused although it fits"
            )
            return multiple()
        return multiple(*added)

    @rule(
        target=keys,
        context=PROMPTS,
        continuations=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=3),
        priority=st.sampled_from((0, 0, 1)),
        tenant=TENANTS,
        hint=HINTS,
    )
    def score(
        self, context: list[int], continuations: list[list[int]], priority: int, tenant: str, hint: Hint
    ) -> MultipleResults[SequenceKey]:
        try:
            return multiple(
                *self.sim.score(context, continuations, priority=priority, tenant=tenant, hint=hint)
            )
        except TooLarge:
            longest = len(context) + max(map(len, continuations))
            assert longest > self.sim.scheduler.max_length, "refused although it fits"
            return multiple()

    @rule(key=consumes(keys))
    def abort(self, key: SequenceKey) -> None:
        seq = self.sim.live.get(key)  # one that a plan has ended is handed out with the next commit
        goes_on = seq is not None and seq.finish_reason is None
        assert self.sim.scheduler.abort(key) == goes_on

    @rule()
    def plan(self) -> None:
        if self.in_flight is None:
            self.in_flight = self.sim.plan()

    @rule()
    def commit(self) -> None:
        if self.in_flight is not None:
            self.sim.commit(self.in_flight)
            self.in_flight = None

    @rule()
    def fail(self) -> None:
        if self.in_flight is not None:
            self.sim.fail(self.in_flight)
            self.in_flight = None

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        self.commit()
        for _ in range(count):
            self.sim.step()

    @rule(
        names=st.lists(st.sampled_from(("", *PROGRAMS, "unknown")), max_size=2),
        how=st.sampled_from(("released", "done", "cancelled")),
    )
    def end_programs(self, names: list[str], how: Ending) -> None:
        self.sim.scheduler.end_programs(names, how)

    @rule(seconds=st.sampled_from((1.0, 4.0)))
    def wait(self, seconds: float) -> None:
        self.sim.now += seconds

    @rule()
    def flush(self) -> None:
        self.sim.cache.flush()

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.commit()
        self.sim.run()
        self.sim.check_outputs()
        self.sim.check_idle()
        for history in self.sim.histories.values():
            held, asked = history.seq.held_tokens, history.seq.request.hint.hold_s
            assert (held is None) == (asked is None), "who asked for a hold is told what came of it"
            assert held is None or 0 <= held <= len(history.seq.tokens)
        self.sim.scheduler.end_programs(PROGRAMS, "cancelled")
        self.sim.cache.check()
        assert (self.sim.cache.held_pages, self.sim.cache.owners) == (0, 0), "no program is left"
        assert self.sim.cache.free_pages + self.sim.cache.evictable_pages == self.sim.cache.num_pages
        for history in self.sim.histories.values():
            assert history.logits == sorted(set(history.logits)), "no logits are asked for twice"


TestSchedulerMachine = SchedulerMachine.TestCase
