"""Holds that are taken or end while a step is planned: what was counted before is not true after them.

A prompt that is cached as a whole is answered by the plan itself; a hold on it pins pages, and an ending of
its program gives some up, in the middle of the plan.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from radixlm.runtime.policy import Policy
from radixlm.runtime.types import Hint
from testkit.sim import HashModel, Simulation

PROMPT = [0, 1, 1, 0, 1, 0, 0, 1]


def run_until_full(sim: Simulation) -> None:
    """Step until no page is free and the one that runs takes another in the next step."""
    (seq,) = sim.live.values()
    while sim.cache.free_pages or seq.lease is None or len(seq.tokens) <= len(seq.lease.pages) * 2:
        assert sim.step(), "it runs until it needs a page that is only cached"


def test_a_hold_that_is_taken_by_the_plan_counts_in_that_plan() -> None:
    sim = Simulation(num_pages=10, hold_budget=0.4)
    sim.add(PROMPT, max_tokens=0)
    sim.run()
    long = sim.add([1, 1, 1], max_tokens=30, salt="long")
    run_until_full(sim)
    assert sim.cache.evictable_pages == 4
    holder = sim.add(PROMPT, max_tokens=0, hint=Hint("agent", hold_s=60.0))

    sim.run()
    sim.check_outputs()
    sim.check_idle()
    assert sim.histories[holder].seq.held_tokens == len(PROMPT)
    assert len(sim.histories[long].seq.tokens) == 20, "it filled the pool: the hold gave way to it alone"
    assert sim.scheduler.stats().holds_broken == 1


def test_pages_that_the_plan_itself_gives_up_count_in_that_plan() -> None:
    sim = Simulation(num_pages=10, hold_budget=0.4)
    sim.add(PROMPT, max_tokens=0, hint=Hint("agent", hold_s=60.0))
    sim.run()
    long = sim.add([1, 1, 1], max_tokens=30, salt="long")
    run_until_full(sim)
    assert (sim.cache.evictable_pages, sim.cache.held_pages) == (0, 4)
    sim.add(PROMPT, max_tokens=0, hint=Hint("agent", done=True))

    sim.run()
    sim.check_outputs()
    sim.check_idle()
    assert len(sim.histories[long].seq.tokens) == 20, "it filled the pool"
    stats = sim.scheduler.stats()
    assert (stats.preemptions, stats.holds_broken) == (0, 0), "no hold was left that could stand in its way"


@pytest.mark.parametrize("policy", ["cache-aware", "fcfs"])
@pytest.mark.parametrize("num_pages", [5, 6, 9])
def test_whatever_is_pinned_while_a_step_is_planned_the_running_ones_find_their_pages(
    policy: Policy, num_pages: int
) -> None:
    chance = random.Random(num_pages)
    sim = Simulation(
        num_pages=num_pages,
        policy=policy,
        hold_budget=chance.choice((0.5, 1.0)),
        model=HashModel(eos_every=9),
        max_running=4,
        chunk_size=8,
    )
    prompts = [[chance.randrange(2) for _ in range(length)] for length in (2, 4, 5, 8)]
    seen: Counter[str] = Counter()
    for _ in range(1200):
        if len(sim.live) < 6:
            prompt = chance.choice(prompts)
            whole = chance.random() < 0.6
            hint = Hint(
                program_id=f"p{chance.randrange(5)}",
                parent_id=f"p{chance.randrange(5)}",
                hold_s=chance.choice((None, 2.0, 20.0, 1e9)) if whole else None,
                done=chance.random() < 0.1,
            )
            sim.add(
                prompt if whole else [*prompt[: chance.randrange(1, 4)], 1],
                max_tokens=0 if whole else chance.randrange(1, 9),
                priority=chance.choice((0, 0, 0, 1)),
                hint=hint,
            )
        if chance.random() < 0.03:
            how = chance.choice(("released", "done", "cancelled"))
            sim.scheduler.end_programs([f"p{chance.randrange(5)}"], how)  # type: ignore[arg-type]
        if sim.live and chance.random() < 0.03:
            sim.scheduler.abort(chance.choice(list(sim.live)))
        sim.now += chance.choice((0.0, 1.0))
        before = sim.scheduler.stats()
        plan = sim.plan()
        after = sim.scheduler.stats()
        seen["granted by the plan"] += after.holds_granted - before.holds_granted
        seen["steps"] += plan is not None
        if plan is not None:
            sim.commit(plan)
    sim.run()
    sim.check_outputs()
    sim.check_idle()
    assert seen["granted by the plan"] > 50
    assert seen["steps"] > 600
    assert sim.scheduler.stats().holds_broken > 5
