"""What hints do: holds, endings and forks, in a world of hashes where every read is checked."""

from __future__ import annotations

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.runtime.holds import MOST_PINS, MOST_PINS_OF_A_TENANT, Holds
from radixlm.runtime.lineage import Lineage
from radixlm.runtime.policy import Policy
from radixlm.runtime.scheduler import WINDOW
from radixlm.runtime.types import Ending, Hint, SequenceKey
from testkit.sim import Simulation

POLICIES: list[Policy] = ["cache-aware", "fcfs"]
PROMPT = [0, 1, 1, 0, 1, 0, 0, 1]


def finish(sim: Simulation) -> None:
    sim.run()
    sim.check_outputs()
    sim.check_idle()


def ask(sim: Simulation, prompt: list[int], program: str = "", *, max_tokens: int = 4, **hint: object) -> int:
    """A call of a program, to its end; how many of its prompt's tokens were cached."""
    key = sim.add(prompt, max_tokens=max_tokens, hint=Hint(program, **hint))  # type: ignore[arg-type]
    finish(sim)
    return sim.histories[key].seq.cached_tokens


def held(sim: Simulation) -> int | None:
    """What the last call was told."""
    return list(sim.histories.values())[-1].seq.held_tokens


def flood(sim: Simulation, count: int = 8, *, program: str = "") -> None:
    """Traffic that shares nothing and needs the whole pool several times."""
    salt = f"flood {len(sim.plans)}"
    for number in range(count):
        sim.add([1] * 10, max_tokens=6, salt=f"{salt} {number}", hint=Hint(program))
    finish(sim)


def cached(sim: Simulation, prompt: list[int]) -> int:
    return sim.cache.peek(prompt, ("", "")).cached_tokens


# -- holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seconds", [None, 10.0])
def test_the_next_call_of_an_agent_is_cached_after_a_flood_if_it_held_its_prefix(
    policy: Policy, seconds: float | None
) -> None:
    sim = Simulation(num_pages=24, policy=policy)
    first = sim.add(PROMPT, max_tokens=4, hint=Hint("agent", hold_s=seconds))
    finish(sim)
    state = [*PROMPT, *sim.output(first)]
    assert sim.histories[first].seq.held_tokens == (None if seconds is None else len(state) - 1)

    flood(sim)
    sim.now += 2
    again = ask(sim, [*state, 1, 1, 0], "agent")

    assert again == (0 if seconds is None else len(state) - 1)
    assert sim.scheduler.stats().holds_broken == 0


def test_a_hold_ends_with_its_deadline_at_the_next_plan() -> None:
    sim = Simulation(num_pages=24)
    ask(sim, PROMPT, "agent", hold_s=5.0)
    assert (sim.cache.held_pages, sim.scheduler.stats().holds) == (6, 1)
    sim.now += 4.9
    sim.plan()
    assert sim.cache.held_pages == 6

    sim.now += 0.2
    sim.plan()
    assert (sim.cache.held_pages, sim.scheduler.stats().holds) == (0, 0)
    flood(sim)
    assert cached(sim, PROMPT) == 0


def test_a_new_hold_takes_the_place_of_the_one_before_it() -> None:
    sim = Simulation(num_pages=40)
    ask(sim, PROMPT, "agent", hold_s=5.0)
    sim.now += 4
    ask(sim, [1] * 12, "agent", hold_s=5.0)
    assert (sim.cache.held_pages, sim.scheduler.stats().holds) == (8, 1)

    sim.now += 4
    flood(sim)
    assert (cached(sim, PROMPT), cached(sim, [1] * 12)) == (0, 12)


def test_a_call_that_asks_for_no_hold_leaves_the_one_there_is() -> None:
    sim = Simulation(num_pages=24)
    ask(sim, PROMPT, "agent", hold_s=5.0)
    ask(sim, [*PROMPT, 1, 1], "agent")
    flood(sim)

    assert cached(sim, PROMPT) == len(PROMPT)


def test_the_budget_is_kept_and_a_refusal_says_so_and_leaves_what_was_held() -> None:
    sim = Simulation(num_pages=40, hold_budget=0.2)
    ask(sim, PROMPT, "a", max_tokens=3, hold_s=5.0)
    assert (held(sim), sim.cache.held_pages) == (10, 5)
    ask(sim, [1] * 8, "b", max_tokens=3, hold_s=5.0)
    assert (held(sim), sim.cache.held_pages) == (0, 5)
    ask(sim, [*PROMPT, *[1] * 12], "a", hold_s=5.0)
    assert (held(sim), sim.cache.held_pages) == (0, 5)
    ask(sim, [*PROMPT[:6], 1], "b", max_tokens=3, hold_s=5.0)
    assert (held(sim), sim.cache.held_pages) == (9, 7), "what both hold counts once"

    stats = sim.scheduler.stats()
    assert (stats.holds, stats.holds_granted, stats.holds_refused) == (2, 2, 2)


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_budget_of_nothing_holds_nothing_and_one_of_all_holds_all(budget: float) -> None:
    sim = Simulation(num_pages=6, hold_budget=budget)
    ask(sim, PROMPT, "agent", hold_s=5.0)

    assert held(sim) == (11 if budget else 0)


@pytest.mark.parametrize(
    "hint", [Hint(hold_s=5.0), Hint("agent", hold_s=5.0, done=True)], ids=["nobody", "done"]
)
def test_nothing_is_held_for_nobody_or_for_who_asks_for_nothing_more(hint: Hint) -> None:
    sim = Simulation(num_pages=24)
    key = sim.add(PROMPT, hint=hint)
    finish(sim)

    assert (sim.histories[key].seq.held_tokens, sim.cache.held_pages) == (0, 0)


@pytest.mark.parametrize("how", ["abort", "fail"])
def test_nothing_is_held_for_a_call_that_did_not_end_by_itself(how: str) -> None:
    sim = Simulation(num_pages=24)
    key = sim.add(PROMPT, hint=Hint("agent", hold_s=5.0))
    plan = sim.plan()
    assert plan is not None
    if how == "fail":
        sim.fail(plan)
    else:
        sim.scheduler.abort(key)
        sim.commit(plan)

    assert (sim.histories[key].seq.held_tokens, sim.cache.held_pages) == (0, 0)


def test_each_choice_of_a_call_is_held_and_they_end_together() -> None:
    sim = Simulation(num_pages=60)
    hint = Hint("agent", hold_s=5.0)
    keys = [sim.add(PROMPT, request_id="r", index=index, max_tokens=5, hint=hint) for index in range(3)]
    finish(sim)
    assert [sim.histories[key].seq.held_tokens for key in keys] == [12] * 3
    flood(sim, 12)
    assert [cached(sim, [*PROMPT, *sim.output(key)]) for key in keys] == [12] * 3
    assert sim.scheduler.stats().holds == 1

    sim.scheduler.end_programs(["agent"], "released")
    assert sim.cache.held_pages == 0


def test_a_call_that_computes_nothing_holds_what_it_found() -> None:
    sim = Simulation(num_pages=24)
    for hint in (Hint(), Hint("agent", hold_s=5.0)):
        keys = sim.score(PROMPT, [[0, 1], [1, 1]], hint=hint)
        finish(sim)
    assert not any(sim.histories[key].computed_tokens for key in keys)
    assert [sim.histories[key].seq.held_tokens for key in keys] == [10, 10]

    flood(sim)
    assert [cached(sim, [*PROMPT, *choice]) for choice in ([0, 1], [1, 1])] == [10, 10]


def test_without_a_prefix_cache_there_is_nothing_to_hold() -> None:
    sim = Simulation(num_pages=24, prefix_cache=False)
    ask(sim, PROMPT, "agent", hold_s=5.0)

    assert (held(sim), sim.cache.free_pages) == (0, 24)


# -- holds give way ------------------------------------------------------------------------------------


def test_what_fits_the_pool_is_served_although_holds_keep_most_of_it() -> None:
    sim = Simulation(num_pages=12, page_size=1, hold_budget=0.8)
    for name, seconds in (("late", 9.0), ("soon", 3.0), ("later", 99.0)):
        key = sim.add([0, 1], max_tokens=2, salt=name, hint=Hint(name, hold_s=seconds))
        finish(sim)
        assert sim.histories[key].seq.held_tokens == 3
    assert sim.cache.held_pages == 9

    sim.add([1] * 5, max_tokens=1)
    finish(sim)
    assert (sim.cache.held_pages, sim.scheduler.stats().holds_broken) == (6, 1)
    assert sim.cache.peek([0, 1], ("soon", "")).cached_tokens < 2
    assert sim.cache.peek([0, 1], ("late", "")).cached_tokens == 2

    sim.add([1] * 11, max_tokens=1, salt="whole")
    finish(sim)
    assert (sim.cache.held_pages, sim.scheduler.stats().holds_broken) == (0, 3)


def test_a_sequence_that_runs_alone_grows_into_what_was_held() -> None:
    sim = Simulation(num_pages=12, page_size=1, hold_budget=0.8)
    ask(sim, [0] * 4, "a", max_tokens=2, hold_s=9.0)
    ask(sim, [1] * 4, "b", max_tokens=2, hold_s=3.0)
    key = sim.add([1], max_tokens=100, salt="long")

    finish(sim)
    assert len(sim.output(key)) == 11
    assert (sim.cache.held_pages, sim.scheduler.stats().preemptions) == (0, 0)


def test_a_large_one_that_never_fits_beside_the_holds_does_not_wait_for_those_that_run() -> None:
    sim = Simulation(num_pages=20, page_size=1, hold_budget=0.5)
    ask(sim, [0] * 8, "agent", max_tokens=2, hold_s=100.0)
    sim.add([0], max_tokens=6, salt="runs")
    sim.step()
    large = sim.add([1] * 12, max_tokens=1)
    sim.step()

    assert sim.histories[large].first_row_at == len(sim.plans) - 1
    assert sim.cache.held_pages == 0
    finish(sim)


def test_one_that_fits_beside_the_holds_later_waits_and_breaks_none() -> None:
    sim = Simulation(num_pages=20, page_size=1, hold_budget=0.5)
    ask(sim, [0] * 8, "agent", max_tokens=2, hold_s=100.0)
    running = sim.add([0] * 4, max_tokens=4, salt="runs")
    sim.step()
    large = sim.add([1] * 9, max_tokens=1)
    finish(sim)

    assert sim.histories[large].first_row_at is not None
    assert sim.histories[large].first_row_at >= (sim.histories[running].ended_at or 0)
    assert (sim.cache.held_pages, sim.scheduler.stats().holds_broken) == (9, 0)


def test_a_queue_that_was_blocked_by_a_hold_moves_on_when_it_expires() -> None:
    sim = Simulation(num_pages=20, page_size=1, hold_budget=0.5)
    ask(sim, [0] * 8, "agent", max_tokens=2, hold_s=5.0)
    sim.add([0] * 4, max_tokens=6, salt="runs")
    sim.step()
    large = sim.add([1] * 9, max_tokens=1)
    sim.step()
    assert sim.histories[large].first_row_at is None

    sim.now += 6
    sim.step()
    assert sim.histories[large].first_row_at == len(sim.plans) - 1
    finish(sim)


@pytest.mark.parametrize("how", ["released", "done", "cancelled"])
def test_a_queue_that_was_blocked_by_a_hold_moves_on_when_its_program_ends(how: Ending) -> None:
    sim = Simulation(num_pages=20, page_size=1, hold_budget=0.5)
    ask(sim, [0] * 8, "agent", max_tokens=2, hold_s=5.0)
    sim.add([0] * 4, max_tokens=6, salt="runs")
    sim.step()
    large = sim.add([1] * 9, max_tokens=1)
    sim.step()

    sim.scheduler.end_programs(["agent"], how)
    sim.step()
    assert sim.histories[large].first_row_at == len(sim.plans) - 1
    finish(sim)


def test_the_holder_itself_is_served_whatever_it_needs() -> None:
    sim = Simulation(num_pages=12, page_size=1, hold_budget=1.0)
    prompt = [0, 1]
    for _ in range(3):
        key = sim.add(prompt, max_tokens=3, hint=Hint("agent", hold_s=100.0))
        finish(sim)
        assert sim.histories[key].seq.cached_tokens >= len(prompt) - 2 or len(prompt) == 2
        prompt = [*prompt, *sim.output(key), 1][:11]


def test_holds_know_no_more_deadlines_than_programs() -> None:
    cache = PrefixCache(40, 2)
    now = 0.0
    holds = Holds(cache, 20, lambda: now)
    lease = cache.acquire(PROMPT, (), len(PROMPT))
    assert lease is not None
    cache.publish(lease, PROMPT, len(PROMPT))
    cache.release(lease)
    for number in range(1000):
        assert holds.take(f"p{number % 3}", str(number), PROMPT, (), 10.0 + number) == len(PROMPT)
    assert holds.stats().programs == 3
    now = 1e6
    assert holds.expire()
    assert (holds.stats().programs, cache.held_pages) == (0, 0)
    assert not holds.expire()


def cached_prompt(cache: PrefixCache) -> None:
    lease = cache.acquire(PROMPT, (), len(PROMPT))
    assert lease is not None
    cache.publish(lease, PROMPT, len(PROMPT))
    cache.release(lease)


def test_a_tenant_has_so_many_pins_and_others_have_room_beside_them() -> None:
    cache, now = PrefixCache(40, 2), 0.0
    holds = Holds(cache, 20, lambda: now)
    cached_prompt(cache)

    def take(name: str, tenant: str, request: str = "r") -> int:
        return holds.take(f"{tenant} {name}", request, PROMPT, (), 9.0, tenant=tenant)

    granted = [take(str(number), "greedy") for number in range(MOST_PINS_OF_A_TENANT + 9)]
    assert granted == [8] * MOST_PINS_OF_A_TENANT + [0] * 9
    assert holds.stats().programs == MOST_PINS_OF_A_TENANT
    assert take("1", "greedy", "another request") == 8, "in the place of its own"
    assert take("2", "greedy") == 0, "beside its own"
    assert take("1", "modest") == 8
    assert holds.release("greedy 7")
    assert take("new", "greedy") == 8
    now = 10.0
    assert holds.expire()
    assert take("again", "greedy") == 8
    holds.release_all()
    assert (holds.stats().programs, cache.held_pages, len(holds._pins)) == (0, 0, 0)


def test_all_tenants_together_have_so_many_pins() -> None:
    cache = PrefixCache(40, 2)
    holds = Holds(cache, 20, lambda: 0.0)
    cached_prompt(cache)
    granted = [
        holds.take(str(number), "r", PROMPT, (), 9.0, tenant=f"t{number % 7}") for number in range(MOST_PINS)
    ]
    assert granted == [8] * MOST_PINS
    for tenant in ("t0", "new", ""):
        assert holds.take(f"of {tenant}", "r", PROMPT, (), 9.0, tenant=tenant) == 0
    assert holds.stats().refused == 3


def test_requests_count_for_their_tenant() -> None:
    sim = Simulation(num_pages=64, hold_budget=1.0)
    sim.scheduler._holds._pins["t"] = MOST_PINS_OF_A_TENANT
    keys = [sim.add(PROMPT, tenant=tenant, hint=Hint(f"{tenant} agent", hold_s=5.0)) for tenant in ("t", "u")]
    finish(sim)
    assert [sim.histories[key].seq.held_tokens for key in keys] == [0, 11]


# -- endings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["hint", "command", "nobody"])
def test_what_a_done_program_had_for_itself_goes_before_older_shared_prefixes(by: str) -> None:
    sim = Simulation(num_pages=18)
    shared, own = [0] * 12, [1] * 12
    ask(sim, shared, "a", max_tokens=0)
    ask(sim, shared, "b", max_tokens=0)
    ask(sim, own, "c", max_tokens=0, done=by == "hint")
    if by == "command":
        sim.scheduler.end_programs(["c"], "done")
    sim.add([1] * 20, max_tokens=0, salt="other")
    finish(sim)

    assert (cached(sim, shared), cached(sim, own)) == ((4, 12) if by == "nobody" else (12, 4))


def test_an_ending_waits_for_what_the_program_has_under_way() -> None:
    sim = Simulation(num_pages=40)
    sim.add(PROMPT, max_tokens=6, hint=Hint("agent"))
    sim.step()
    sim.scheduler.end_programs(["agent"], "done")
    assert sim.cache.owners == 1
    finish(sim)

    assert sim.cache.owners == 0
    assert " spent" in sim.cache.dump()
    assert len(sim.output(SequenceKey("0", 0))) == 6


@pytest.mark.parametrize("when", ["before it runs", "between two steps", "during a step"])
def test_a_cancelled_program_ends_and_its_pages_are_free_within_two_steps(when: str) -> None:
    sim = Simulation(num_pages=40, chunk_size=6)
    other = sim.add([1] * 4, max_tokens=20)
    sim.step()
    key = sim.add(PROMPT, max_tokens=20, hint=Hint("agent"))
    plan = None
    if when != "before it runs":
        for _ in range(4):
            sim.step()
    if when == "during a step":
        plan = sim.plan()
    sim.scheduler.end_programs(["agent"], "cancelled")
    if plan is not None:
        sim.commit(plan)
    sim.step()

    assert sim.reason(key) == "abort"
    assert cached(sim, PROMPT) == 0
    assert sim.cache.num_pages - sim.cache.free_pages == len(sim.live[other].lease.pages)  # type: ignore[union-attr]
    finish(sim)


def test_what_others_use_of_a_cancelled_program_stays() -> None:
    sim = Simulation(num_pages=60)
    ask(sim, PROMPT, "parent")
    for name in ("left", "right"):
        ask(sim, [*PROMPT, 1, len(name) % 2, 1, 1, 0, 1], name)
    sim.scheduler.end_programs(["left"], "cancelled")

    assert cached(sim, [*PROMPT, 1, 0, 1, 1, 0, 1]) < 14
    assert cached(sim, [*PROMPT, 1, 1, 1, 1, 0, 1]) == 14
    assert cached(sim, PROMPT) == 8


def test_an_aborted_call_leaves_what_it_computed_unless_its_program_is_cancelled() -> None:
    for how, left in (("done", 8), ("cancelled", 0)):
        sim = Simulation(num_pages=40)
        key = sim.add(PROMPT, max_tokens=20, hint=Hint("agent"))
        for _ in range(3):
            sim.step()
        sim.scheduler.abort(key)
        sim.scheduler.end_programs(["agent"], how)  # type: ignore[arg-type]
        finish(sim)
        assert cached(sim, PROMPT) == left


def test_endings_of_unknown_programs_and_of_nobody_change_nothing() -> None:
    sim = Simulation(num_pages=40)
    ask(sim, PROMPT)
    before = sim.cache.dump()
    for how in ("released", "done", "cancelled"):
        sim.scheduler.end_programs(["", "unknown"], how)  # type: ignore[arg-type]

    assert sim.cache.dump() == before


def test_ten_thousand_programs_that_begin_and_end_leave_nothing_behind() -> None:
    sim = Simulation(num_pages=64, page_size=4, max_running=64, chunk_size=512)
    scheduler, cache = sim.scheduler, sim.cache
    how: list[Ending] = ["done", "cancelled", "released"]
    for number in range(10_000):
        hint = Hint(f"program {number}", fork_group=f"fork {number // 4}", hold_s=1e9, done=number % 5 == 0)
        sim.add([number % 7, number % 11, 1], max_tokens=1, hint=hint)
        if number % 50 == 49:
            sim.run()
            ended = [f"program {n}" for n in range(number - 49, number + 1)]
            scheduler.end_programs(ended, how[number // 50 % 3])
            sim.histories.clear()
    assert len(scheduler._programs) == 0
    assert not scheduler._programs._endings
    assert not scheduler._forked
    assert scheduler.stats().holds == 0
    assert cache.owners <= cache.cached_pages <= 64
    cache.flush()
    assert (cache.owners, cache.free_pages) == (0, 64)


def spent(sim: Simulation) -> int:
    return sim.cache.dump().count(" spent")


@pytest.mark.parametrize("by", ["hint", "command"])
def test_what_was_forked_off_a_program_is_done_with_it(by: str) -> None:
    sim = Simulation(num_pages=60)
    ask(sim, [0, *PROMPT], "child", parent_id="head")
    ask(sim, [1, 1, *PROMPT], "grandchild", parent_id="child")
    ask(sim, [1, 0, *PROMPT], "stranger", parent_id="other")
    ask(sim, [0, 1, *PROMPT], "head", done=by == "hint")
    if by == "command":
        sim.scheduler.end_programs(["head"], "done")

    assert sim.cache.owners == 1
    assert spent(sim) >= 3
    assert len(sim.scheduler._programs._lineage) == 1


def test_a_child_that_runs_or_holds_something_goes_on_when_its_parent_is_done() -> None:
    sim = Simulation(num_pages=60, hold_budget=0.5)
    ask(sim, [0, *PROMPT], "holder", parent_id="head", hold_s=9.0)
    ask(sim, [0, *PROMPT, 1, 1, 1], "of holder", parent_id="holder")
    sim.add([1, *PROMPT], max_tokens=6, hint=Hint("runner", "head"))
    sim.step()
    sim.scheduler.end_programs(["head"], "done")
    assert (sim.scheduler.stats().holds, spent(sim)) == (1, 0)

    finish(sim)
    assert (sim.scheduler.stats().holds, spent(sim)) == (1, 0)


@pytest.mark.parametrize("when", ["at rest", "running"])
def test_what_was_forked_off_a_cancelled_program_is_cancelled(when: str) -> None:
    sim = Simulation(num_pages=60, chunk_size=16)
    prompts = {"child": [0, *PROMPT], "grandchild": [1, *PROMPT]}
    keys = [
        sim.add(prompts[name], max_tokens=9, hint=Hint(name, parent))
        for name, parent in (("child", "head"), ("grandchild", "child"))
    ]
    sim.step()
    if when == "at rest":
        finish(sim)
    sim.scheduler.end_programs(["head"], "cancelled")
    finish(sim)

    assert [sim.reason(key) for key in keys] == ["length" if when == "at rest" else "abort"] * 2
    assert [cached(sim, prompt) for prompt in prompts.values()] == [0, 0]
    assert sim.cache.owners == len(sim.scheduler._programs._lineage) == 0


def test_a_family_that_goes_round_in_a_circle_ends() -> None:
    sim = Simulation(num_pages=60)
    for name, parent in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "d")):
        ask(sim, PROMPT, name, parent_id=parent)
    for how in ("done", "cancelled"):
        ask(sim, PROMPT, "a", parent_id="b")
        ask(sim, PROMPT, "b", parent_id="a")
        sim.scheduler.end_programs(["b", "d"], how)  # type: ignore[arg-type]
        assert len(sim.scheduler._programs._lineage) == 0


def test_so_many_parents_are_remembered() -> None:
    lineage = Lineage(most=3)
    for number in range(5):
        lineage.note(f"child {number}", "head")
    assert lineage.children_of("head") == ["child 2", "child 3", "child 4"]
    lineage.note("child 2", "head")
    lineage.note("child 9", "another")
    assert lineage.family_of(["head"]) == ["head", "child 2", "child 4"]
    lineage.note("child 2", "another")
    assert lineage.family_of(["another"]) == ["another", "child 9", "child 2"]
    lineage.forget("another")
    assert len(lineage) == 1
    for child, parent in (("", "head"), ("x", ""), ("y", "y")):
        lineage.note(child, parent)
    assert len(lineage) == 1


class CountingLineage(Lineage):
    """Counts how often it is asked for somebody's children."""

    visits = 0

    def children_of(self, parent: str) -> list[str]:
        self.visits += 1
        return super().children_of(parent)


@pytest.mark.parametrize("shape", ["chain", "star", "circle"])
def test_a_family_of_which_all_are_named_is_walked_once(shape: str) -> None:
    lineage, size = CountingLineage(), 500
    for number in range(1, size):
        lineage.note(f"p{number}", "p0" if shape == "star" else f"p{number - 1}")
    if shape == "circle":
        lineage.note("p0", f"p{size - 1}")
    names = [f"p{number}" for number in range(size)]
    for heads in (names, names[::-1], ["p0"]):
        lineage.visits = 0
        assert sorted(lineage.family_of(heads)) == sorted(names)
        assert lineage.visits == size


def test_cancelling_a_whole_chain_by_name_looks_at_each_of_it_a_few_times() -> None:
    sim = Simulation(num_pages=24)
    lineage, size = CountingLineage(), 300
    sim.scheduler._programs._lineage = lineage
    for number in range(size):
        sim.add([0, 1], max_tokens=1, hint=Hint(f"p{number}", parent_id=f"p{number - 1}" if number else ""))
    sim.scheduler.end_programs([f"p{number}" for number in range(size)], "cancelled")
    finish(sim)
    assert lineage.visits <= 4 * size
    assert len(lineage) == len(sim.scheduler._programs) == 0


# -- forks ---------------------------------------------------------------------------------------------


def first_rows(sim: Simulation, keys: list[SequenceKey]) -> list[int | None]:
    return [sim.histories[key].first_row_at for key in keys]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("forked", [True, False])
def test_siblings_run_in_the_same_steps_behind_one_prefill_beside_hot_traffic(
    policy: Policy, forked: bool
) -> None:
    sim = Simulation(num_pages=400, page_size=4, chunk_size=32, max_running=8, policy=policy)
    hot = [1, 0] * 12
    ask(sim, hot)
    state = [0, 1, 1, 0] * 25
    siblings = []
    for number in range(6):
        hint = Hint(f"child {number}", "parent", "fork" if forked else "")
        siblings.append(sim.add([*state, 10 + number], max_tokens=12, hint=hint))
        for _ in range(4):
            sim.add([*hot, number], max_tokens=3)
    while any(sim.histories[key].ended_at is None for key in siblings):
        sim.add([*hot, 1], max_tokens=3)
        sim.step()

    first, *others = first_rows(sim, siblings)
    assert sim.histories[siblings[0]].computed_tokens == 100 + 1 + 11
    assert [sim.histories[key].computed_tokens for key in siblings[1:]] == [1 + 11] * 5
    if forked:
        assert len(set(others)) == 1
        assert others[0] is not None
        assert first is not None
        assert others[0] - first <= 5
    else:
        assert len(set(others)) > 1
    finish(sim)


def siblings_of_one_state(sim: Simulation, size: int, *, others: int = 0) -> tuple[int, list[SequenceKey]]:
    """Eight that share 62 pages and a half of `size` tokens, and end in the fourth page behind those. What
    each has to compute for itself, and their keys."""
    state, keys = [(number * 7 + number // 3) % 2 for number in range(62 * size + size // 2)], []
    for number in range(8):
        hint = Hint(f"child {number}", "parent", "fork")
        own = [10 + number] * (size + size // 4)
        keys.append(sim.add([*state, *own], max_tokens=2 * size, hint=hint))
        for _ in range(others):
            sim.add([number] * 40, max_tokens=8, salt=str(len(sim.histories)))
    finish(sim)
    return 3 * size + size // 4 - 1, keys


@pytest.mark.parametrize("policy", POLICIES)
def test_eight_siblings_compute_a_thousand_tokens_once_where_these_and_their_tails_just_fit(
    policy: Policy,
) -> None:
    sim = Simulation(num_pages=62 + 8 * 4, page_size=16, chunk_size=256, max_running=8, policy=policy)
    tail, siblings = siblings_of_one_state(sim, 16)

    first, *others = [sim.histories[key].computed_tokens for key in siblings]
    assert (first, others) == (1000 + tail, [tail] * 7)
    assert len(set(first_rows(sim, siblings[1:]))) == 1
    assert sim.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("pages", [80, 68, 67, 66])
@pytest.mark.parametrize(("policy", "others"), [("cache-aware", 0), ("cache-aware", 2), ("fcfs", 0)], ids=str)
def test_siblings_that_do_not_fit_together_take_turns_over_one_prefix(
    policy: Policy, others: int, pages: int
) -> None:
    sim = Simulation(num_pages=pages, page_size=4, chunk_size=64, max_running=16, policy=policy)
    tail, siblings = siblings_of_one_state(sim, 4, others=others)

    first, *later = [sim.histories[key].computed_tokens for key in siblings]
    assert first == 250 + tail
    assert max(later) <= 2 * tail, "a preemption takes from tails, and never what they share"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_preempted_sibling_goes_on_before_those_it_was_admitted_ahead_of(policy: Policy) -> None:
    sim = Simulation(num_pages=110, page_size=4, chunk_size=64, max_running=16, policy=policy)
    tail, siblings = siblings_of_one_state(sim, 4, others=2)

    assert sim.scheduler.stats().preemptions > 0
    assert max(sim.histories[key].computed_tokens for key in siblings[1:]) <= 2 * tail


def test_siblings_from_far_back_in_the_queue_come_with_the_first() -> None:
    sim = Simulation(num_pages=2000, page_size=4, chunk_size=64, max_running=8)
    siblings = [sim.add([0, 1] * 8, max_tokens=9, hint=Hint("child", "", "fork"))]
    for number in range(2 * WINDOW):
        sim.add([1, 1, 1], max_tokens=4, salt=str(number))
    siblings += [sim.add([0, 1] * 8 + [n], max_tokens=9, hint=Hint("child", "", "fork")) for n in range(5)]
    for _ in range(6):
        sim.step()

    assert None not in first_rows(sim, siblings)
    finish(sim)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_endless_fork_starves_nobody(policy: Policy) -> None:
    sim = Simulation(num_pages=400, page_size=4, chunk_size=16, max_running=2, policy=policy)
    fork = Hint("child", "", "fork")
    for _ in range(4):
        sim.add([0, 1] * 4, max_tokens=6, hint=fork)
    sim.step()
    cold = sim.add([1] * 6, max_tokens=2)
    while sim.histories[cold].first_row_at is None:
        sim.add([0, 1] * 4, max_tokens=6, hint=fork)
        sim.step()
        assert len(sim.plans) < 300
    finish(sim)


def test_hints_change_no_output() -> None:
    outputs = []
    for hinted in (False, True):
        sim = Simulation(num_pages=14, max_running=4, hold_budget=0.5)
        for number in range(24):
            hint = Hint(f"p{number % 5}", "", f"f{number % 3}", 3.0 if number % 2 else None, number % 7 == 0)
            sim.add(
                [number % 2, number // 2 % 2, number // 4 % 2] * 2,
                max_tokens=5,
                hint=hint if hinted else Hint(),
            )
            sim.now += 1
            sim.step()
            if hinted and number % 4 == 3:
                sim.scheduler.end_programs([f"p{number % 5}"], "done")
        finish(sim)
        outputs.append({key: history.seq.output for key, history in sim.histories.items()})

    assert outputs[0] == outputs[1]
