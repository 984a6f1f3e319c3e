"""Cases of the scheduler, one sentence each, in a world of hashes (testkit/sim.py)."""

from __future__ import annotations

import pytest

from radixlm.runtime.errors import InvalidRequest, TooLarge
from radixlm.runtime.policy import AGE_LIMIT, Policy
from radixlm.runtime.scheduler import WINDOW
from radixlm.runtime.types import Outcome, Plan, Row, SequenceKey
from testkit.sim import HashModel, Simulation

POLICIES: list[Policy] = ["cache-aware", "fcfs"]


def finish(sim: Simulation) -> int:
    """Run to the end, check every output and that nothing is held; the number of steps."""
    steps = sim.run()
    sim.check_outputs()
    sim.check_idle()
    return steps


def first_row(sim: Simulation, key: SequenceKey) -> Row:
    return next(row for plan in sim.plans for row in plan.rows if row.key == key)


def keys(plan: Plan | None) -> list[SequenceKey]:
    assert plan is not None
    return [row.key for row in plan.rows]


# -- what can never fit --------------------------------------------------------------------------------


def test_a_prompt_larger_than_the_pool_is_refused_at_once_and_the_next_is_served() -> None:
    sim = Simulation(num_pages=4, page_size=2)

    with pytest.raises(TooLarge, match=r"12 tokens \(a prompt of 11.*pool holds 8 \(4 pages of 2\)"):
        sim.add([0, 1] * 5 + [0])
    served = sim.add([0, 1, 0], max_tokens=2)

    finish(sim)
    assert len(sim.output(served)) == 2


def test_a_prompt_as_large_as_the_pool_is_refused_if_it_is_to_be_continued() -> None:
    sim = Simulation(num_pages=4, page_size=2)

    with pytest.raises(TooLarge, match="9 tokens"):
        sim.add([0, 1] * 4, max_tokens=1)


@pytest.mark.parametrize("cached", [0, 3, 7, 8])
def test_a_prompt_as_large_as_the_pool_is_prefilled_whatever_is_cached(cached: int) -> None:
    sim = Simulation(num_pages=4, page_size=2)
    prompt = [0, 1, 1, 0, 1, 0, 0, 1]
    if cached:
        sim.add(prompt[:cached], max_tokens=0)
        finish(sim)

    key = sim.add(prompt, max_tokens=0)

    finish(sim)
    assert (sim.output(key), sim.reason(key)) == ([], "length")


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_prompt_that_leaves_one_slot_gets_one_token(prefix_cache: bool) -> None:
    sim = Simulation(num_pages=4, page_size=2, prefix_cache=prefix_cache)
    keys = [sim.add([0, 1, 1, 0, 1, 0, 0], max_tokens=50) for _ in range(3)]

    finish(sim)
    assert [(len(sim.output(key)), sim.reason(key)) for key in keys] == [(1, "length")] * 3


def test_a_generation_that_outgrows_the_pool_ends_with_length() -> None:
    sim = Simulation(num_pages=4, page_size=2)
    key = sim.add([0, 1], max_tokens=100)

    finish(sim)
    assert (len(sim.output(key)), sim.reason(key)) == (6, "length")


def test_a_generation_that_reaches_the_context_ends_with_length() -> None:
    sim = Simulation(num_pages=40, page_size=2, max_context=5)
    key = sim.add([0, 1], max_tokens=100)

    with pytest.raises(TooLarge, match=r"6 tokens .*the context is 5 tokens"):
        sim.add([0] * 5)

    finish(sim)
    assert (len(sim.output(key)), sim.reason(key)) == (3, "length")


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt has no tokens"):
        Simulation(num_pages=4).add([])


def test_a_key_in_use_is_refused_and_can_be_used_again_after_the_end() -> None:
    sim = Simulation(num_pages=8)
    sim.add([0, 1], request_id="same")
    sim.add([0, 1], request_id="same", index=1)

    with pytest.raises(InvalidRequest, match="'same': choice 1 of this id is in use"):
        sim.add([1], request_id="same", index=1)
    finish(sim)
    sim.add([0, 1], request_id="same")
    finish(sim)


# -- preemption ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [2, 11])
def test_two_requests_of_sixty_percent_of_the_pool_both_finish(policy: Policy, prompt: int) -> None:
    sim = Simulation(num_pages=10, page_size=2, policy=policy)
    for first in (0, 1):
        sim.add([first] * prompt, max_tokens=12 - prompt)

    finish(sim)
    assert sim.scheduler.stats().preemptions <= 2


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("prompt", [11, 12])
def test_two_prompts_of_sixty_percent_of_the_pool_in_chunks_run_one_after_the_other(
    policy: Policy, prefix_cache: bool, prompt: int
) -> None:
    sim = Simulation(num_pages=10, page_size=2, policy=policy, chunk_size=3, prefix_cache=prefix_cache)
    keys = [sim.add([first] * prompt, max_tokens=12 - prompt) for first in (0, 1)]

    finish(sim)
    assert sim.scheduler.stats().preemptions == 0
    assert [sim.histories[key].computed_tokens for key in keys] == [prompt, prompt]


@pytest.mark.parametrize(("length", "fits"), [(2, True), (3, False)])
def test_a_higher_priority_is_admitted_beside_what_a_prefill_has_still_to_take_or_in_its_place(
    length: int, fits: bool
) -> None:
    sim = Simulation(num_pages=12, page_size=1, chunk_size=4)
    low = sim.add([0] * 10, max_tokens=0)
    sim.step()
    assert sim.cache.free_pages == 8
    high = sim.add([1] * length, max_tokens=0, priority=1)

    plan = sim.plan()
    assert plan is not None
    assert plan.preempted == (() if fits else (low,))
    assert keys(plan)[-1] == high
    sim.commit(plan)
    finish(sim)


def test_decoding_takes_what_a_younger_prefill_reserved_and_both_end() -> None:
    sim = Simulation(num_pages=12, page_size=1, chunk_size=2)
    old = sim.add([0], max_tokens=8)
    sim.step()
    young = sim.add([1] * 10, max_tokens=1)

    finish(sim)
    assert sim.histories[old].seq.preemptions == 0
    assert sim.histories[young].seq.preemptions > 0


def test_many_growing_requests_are_not_preempted_for_ever() -> None:
    sim = Simulation(num_pages=12, page_size=1, max_running=6)
    for number in range(6):
        sim.add([number % 2, number // 2 % 2, number // 4], max_tokens=8, salt=str(number))

    finish(sim)
    assert 0 < sim.scheduler.stats().preemptions <= 36


def test_the_oldest_is_never_preempted() -> None:
    sim = Simulation(num_pages=6, page_size=1)
    oldest = sim.add([0], max_tokens=5)
    for _ in range(3):
        sim.add([1], max_tokens=5)

    finish(sim)
    assert sim.scheduler.stats().preemptions > 0
    assert sim.histories[oldest].seq.preemptions == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_of_three_pages_serves_many_requests(policy: Policy) -> None:
    sim = Simulation(num_pages=3, page_size=2, policy=policy)
    for number in range(40):
        sim.add([number % 2, number // 2 % 2, number // 4 % 2][: 1 + number % 3], max_tokens=1 + number % 5)

    finish(sim)


def test_a_replay_after_preemption_is_no_cache_hit() -> None:
    sim = Simulation(num_pages=8, page_size=1)
    keys = [sim.add([first] * 2, max_tokens=5) for first in (0, 1)]

    finish(sim)
    assert sim.scheduler.stats().preemptions > 0
    assert [sim.histories[key].seq.cached_tokens for key in keys] == [0, 0]
    assert sim.scheduler.stats().cached_tokens == 0
    assert sim.scheduler.stats().prompt_tokens == 4


def test_a_preempted_sequence_finds_what_it_computed_again() -> None:
    sim = Simulation(num_pages=16, page_size=1, max_running=1)
    low = sim.add([0] * 6, max_tokens=4)
    sim.step()
    high = sim.add([1], max_tokens=2, priority=1)

    finish(sim)
    assert sim.histories[low].seq.preemptions == 1
    # The last prompt token's row gave a first token, whose KV was still to be computed.
    assert sim.histories[low].computed_tokens == 6 + 3
    assert sim.histories[high].computed_tokens == 1 + 1


def test_a_preempted_sequence_comes_back_before_others_of_its_class() -> None:
    sim = Simulation(num_pages=40, max_running=1)
    low = sim.add([0] * 3, max_tokens=4)
    sim.step()
    hot = sim.add([0] * 3, max_tokens=4)
    sim.add([1], max_tokens=1, priority=1)

    finish(sim)
    history = sim.histories
    assert history[low].seq.preemptions == 1
    ended, started = history[low].ended_at, history[hot].first_row_at
    assert ended is not None
    assert started is not None
    assert ended <= started


# -- order ---------------------------------------------------------------------------------------------


def test_a_cold_request_among_a_stream_of_hot_ones_waits_a_bounded_time() -> None:
    sim = Simulation(num_pages=60, page_size=2, max_running=2, chunk_size=8)
    sim.add([0] * 9, max_tokens=0)
    finish(sim)
    for _ in range(4):
        sim.add([0] * 10, max_tokens=2)
    cold = sim.add([1] * 9, max_tokens=1)
    while sim.histories[cold].first_row_at is None:
        sim.add([0] * 10, max_tokens=2)
        sim.step()
        waited = len(sim.plans) - sim.histories[cold].added_at
        # A hot one runs for two steps, so that others pass in every other step at least.
        assert waited <= 2 * (AGE_LIMIT + 3)
    assert waited > AGE_LIMIT / 2, "the stream was not hot: nobody passed the cold one"
    finish(sim)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_high_priority_does_not_wait_for_a_full_batch_of_low_ones(policy: Policy) -> None:
    sim = Simulation(num_pages=100, policy=policy, max_running=2)
    for _ in range(4):
        sim.add([0], max_tokens=50)
    sim.step()
    high = sim.add([1], max_tokens=2, priority=1)

    plan = sim.plan()
    assert plan is not None
    assert high in keys(plan)
    assert len(plan.preempted) == 1
    sim.commit(plan)
    finish(sim)


def test_a_high_priority_gets_the_pages_of_low_ones() -> None:
    sim = Simulation(num_pages=10, page_size=1, chunk_size=10)
    low = [sim.add([0], max_tokens=4, salt=str(number)) for number in range(3)]
    sim.step()
    high = sim.add([1] * 7, max_tokens=2, priority=1)

    plan = sim.plan()
    assert plan is not None
    assert plan.preempted == (low[2], low[1])
    assert keys(plan) == [low[0], high]
    sim.commit(plan)
    finish(sim)


def test_siblings_wait_and_only_one_computes_the_shared_part() -> None:
    sim = Simulation(num_pages=60, page_size=4, chunk_size=16, max_running=8)
    shared = [0, 1, 1, 0] * 5
    siblings = [sim.add([*shared, 10 + number], max_tokens=3) for number in range(4)]

    finish(sim)
    computed = [sim.histories[key].computed_tokens for key in siblings]
    assert computed == [20 + 1 + 2, 1 + 2, 1 + 2, 1 + 2]
    assert sim.scheduler.stats().cached_tokens == 3 * 20


def test_the_choices_of_one_request_share_its_prompt() -> None:
    sim = Simulation(num_pages=60, page_size=4, chunk_size=16, max_running=8)
    choices = [sim.add([0, 1] * 5, request_id="r", index=index, max_tokens=5) for index in range(4)]

    finish(sim)
    assert sim.scheduler.stats().cached_tokens == 3 * 10
    assert sum(sim.histories[key].computed_tokens for key in choices) == 10 + 3 * 1 + 4 * 4
    assert len({tuple(sim.output(key)) for key in choices}) > 1


def test_a_sibling_goes_on_when_the_one_it_waits_for_is_aborted() -> None:
    sim = Simulation(num_pages=60, page_size=2, chunk_size=2)
    first, second = (sim.add([0, 1] * 6, max_tokens=2) for _ in range(2))
    sim.step()
    assert sim.scheduler.stats().running == 1

    sim.scheduler.abort(first)
    finish(sim)
    assert sim.histories[second].seq.cached_tokens == 2
    assert len(sim.output(second)) == 2


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    sim = Simulation(num_pages=12, page_size=1, max_running=4)
    for number in range(3):
        sim.add([0], max_tokens=3, salt=str(number))
    sim.step()
    large = sim.add([1] * 9, max_tokens=1)
    while sim.histories[large].first_row_at is None:
        sim.add([0], max_tokens=3)
        sim.step()
        assert len(sim.plans) < 12
    finish(sim)


@pytest.mark.parametrize("how", ["abort the large one", "fail a step", "a higher priority"])
def test_a_blocked_queue_moves_on_as_soon_as_it_can(how: str) -> None:
    sim = Simulation(num_pages=12, page_size=1, chunk_size=12)
    running = [sim.add([0], max_tokens=8, salt=str(number)) for number in range(2)]
    sim.step()
    large = sim.add([1] * 11, max_tokens=1)
    small = sim.add([0], max_tokens=2, salt="small")
    sim.step()
    assert sim.scheduler.stats().waiting == 2

    expected = small
    if how == "abort the large one":
        sim.scheduler.abort(large)
    elif how == "fail a step":
        plan = sim.plan()
        assert plan is not None
        assert keys(plan) == running
        sim.fail(plan)
        expected = large
    else:
        expected = sim.add([1], max_tokens=2, priority=1)
    sim.step()
    assert sim.histories[expected].first_row_at == len(sim.plans) - 1
    finish(sim)


def test_a_chunk_smaller_than_the_batch_still_moves_everyone() -> None:
    sim = Simulation(num_pages=60, chunk_size=2, max_running=4)
    for first in (0, 1, 0, 1):
        sim.add([first] * 3, max_tokens=5)

    finish(sim)
    assert max(len(plan.rows) for plan in sim.plans) == 2


# -- tenants -------------------------------------------------------------------------------------------


def running(sim: Simulation) -> list[SequenceKey]:
    return [key for key, seq in sim.live.items() if seq.status == "running"]


@pytest.mark.parametrize("policy", POLICIES)
def test_of_one_tenant_no_more_run_than_allowed_and_all_of_them_end(policy: Policy) -> None:
    sim = Simulation(num_pages=200, policy=policy, max_running=8, max_running_per_tenant=2)
    for number in range(6):
        sim.add([0], max_tokens=3, salt=str(number), tenant="a")

    assert finish(sim) >= 3 * 3
    assert max(len(plan.rows) for plan in sim.plans) == 2


def test_others_are_not_kept_waiting_behind_those_that_wait_for_room_of_their_tenant() -> None:
    sim = Simulation(num_pages=200, max_running=8, max_running_per_tenant=2)
    many = [sim.add([0], max_tokens=9, salt=str(number), tenant="a") for number in range(5)]
    sim.step()
    later = [sim.add([1], max_tokens=2, tenant=tenant) for tenant in ("b", "")]
    sim.step()

    assert running(sim) == [*many[:2], *later]
    finish(sim)


def test_a_long_queue_of_one_tenant_hides_nobody_behind_it() -> None:
    sim = Simulation(num_pages=200, max_running=8, max_running_per_tenant=1)
    for number in range(WINDOW + 40):
        sim.add([0], max_tokens=2, salt=str(number), tenant="a")
    last = sim.add([1], max_tokens=2, tenant="b")
    sim.step()

    assert last in running(sim)
    finish(sim)


def test_room_of_a_tenant_goes_to_the_highest_priority_it_has() -> None:
    sim = Simulation(num_pages=200, max_running=8, max_running_per_tenant=1)
    first = sim.add([0], max_tokens=3, tenant="a")
    sim.step()
    low = sim.add([0], max_tokens=3, salt="low", tenant="a")
    high = sim.add([0], max_tokens=3, salt="high", tenant="a", priority=1)
    while running(sim) in ([first], []):
        sim.step()

    assert running(sim) == [high]
    assert sim.live[low].status == "waiting"
    finish(sim)


def test_choices_and_scored_continuations_of_a_tenant_count_one_each() -> None:
    sim = Simulation(num_pages=200, max_running=8, max_running_per_tenant=3)
    for index in range(5):
        sim.add([0, 1], request_id="r", index=index, max_tokens=4, tenant="a")
    sim.score([1, 1, 1], [[0], [1, 0], [1, 1], [0, 0]], tenant="a")
    other = sim.add([0], max_tokens=1, tenant="b")
    sim.step()

    assert sim.histories[other].ended == 1
    finish(sim)
    assert max(len(plan.rows) for plan in sim.plans[1:]) == 3


def test_a_preempted_one_of_a_tenant_comes_back_within_its_share() -> None:
    sim = Simulation(num_pages=10, page_size=1, chunk_size=10, max_running_per_tenant=2)
    for number in range(4):
        sim.add([0], max_tokens=7, salt=str(number), tenant="a")

    finish(sim)
    assert sim.scheduler.stats().preemptions > 0


def test_without_such_a_limit_tenants_change_nothing() -> None:
    plans = []
    for tenants in ("", "ab"):
        sim = Simulation(num_pages=12, page_size=1, max_running=4)
        for number in range(8):
            tenant = tenants[number % 2] if tenants else ""
            sim.add([0] * (number % 3 + 1), max_tokens=4, salt=str(number % 2), tenant=tenant)
        finish(sim)
        plans.append(sim.plans)

    assert plans[0] == plans[1]


# -- rows ----------------------------------------------------------------------------------------------


def test_a_full_hit_computes_one_token() -> None:
    sim = Simulation(num_pages=30, page_size=4)
    prompt = [0, 1, 1, 0, 1, 1]
    sim.add(prompt, max_tokens=1)
    finish(sim)

    again = sim.add(prompt, max_tokens=1)
    finish(sim)
    row = first_row(sim, again)
    assert (row.start, row.stop, row.write_from, row.logits_from, row.samples) == (5, 6, 6, 5, True)
    assert sim.histories[again].seq.cached_tokens == 6


def test_the_next_turn_reuses_all_but_the_last_generated_token() -> None:
    sim = Simulation(num_pages=30, page_size=4)
    first = sim.add([0, 1, 1], max_tokens=7)
    finish(sim)

    second = sim.add([0, 1, 1, *sim.output(first), 1, 0], max_tokens=1)
    finish(sim)
    assert sim.histories[second].seq.cached_tokens == 3 + 7 - 1


@pytest.mark.parametrize("chunk_size", [2, 3, 50])
@pytest.mark.parametrize(("start", "first"), [(0, 0), (1, 0), (4, 3), (9, 8), (50, 9)])
def test_prompt_logprobs_see_each_wanted_position_once_and_what_is_known_never_again(
    chunk_size: int, start: int, first: int
) -> None:
    sim = Simulation(num_pages=30, page_size=4, chunk_size=chunk_size)
    prompt = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]
    for wanted in (list(range(first, 10)), [9]):
        key = sim.add(prompt, max_tokens=1, prompt_logprobs_start=start)
        finish(sim)
        assert sim.histories[key].logits == wanted
    assert sim.histories[key].seq.cached_tokens == 10
    assert sim.histories[key].computed_tokens == 1
    assert all(row.write_from == row.stop for p in sim.plans for row in p.rows if row.key == key)


def test_prompt_logprobs_survive_a_preemption_without_being_repeated() -> None:
    sim = Simulation(num_pages=40, page_size=2, chunk_size=4, max_running=1)
    key = sim.add([0, 1] * 6, max_tokens=2, prompt_logprobs_start=0)
    sim.step()
    sim.add([1], max_tokens=1, priority=1)

    finish(sim)
    assert sim.histories[key].seq.preemptions == 1
    assert sim.histories[key].logits == list(range(13))


def test_zero_tokens_fill_the_cache_and_sample_nothing() -> None:
    sim = Simulation(num_pages=30, page_size=4, chunk_size=4)
    prefill = sim.add([0, 1, 1, 0, 1, 0], max_tokens=0)
    assert finish(sim) == 2

    assert not any(row.samples for plan in sim.plans for row in plan.rows)
    assert (sim.reason(prefill), sim.histories[prefill].logits) == ("length", [])
    after = sim.add([0, 1, 1, 0, 1, 0, 1], max_tokens=1)
    finish(sim)
    assert sim.histories[after].seq.cached_tokens == 6


def test_zero_tokens_with_prompt_logprobs_see_the_prompt() -> None:
    sim = Simulation(num_pages=30)
    key = sim.add([0, 1, 1, 0], max_tokens=0, prompt_logprobs_start=2)

    finish(sim)
    assert sim.histories[key].logits == [1, 2]


def test_equal_prompts_that_were_computed_side_by_side_end_on_the_same_pages() -> None:
    sim = Simulation(num_pages=9, page_size=2, chunk_size=4)
    prompt = [0, 1, 1, 0, 1, 0]
    low = sim.add(prompt, max_tokens=4)
    high = sim.add(prompt, max_tokens=4, priority=1)
    plan = sim.plan()
    assert keys(plan) == [high]
    assert plan is not None
    sim.commit(plan)
    while sim.histories[low].first_row_at is None:
        sim.step()
    sim.add([1] * 5, max_tokens=8)

    finish(sim)


def test_salts_share_nothing() -> None:
    sim = Simulation(num_pages=30)
    for salt in ("a", "b", "a"):
        key = sim.add([0, 1, 1, 0], salt=salt, max_tokens=1)
        finish(sim)
        assert sim.histories[key].seq.cached_tokens == (4 if sim.scheduler.stats().ended == 3 else 0)


def test_nothing_is_shared_without_a_prefix_cache() -> None:
    sim = Simulation(num_pages=30, prefix_cache=False)
    for _ in range(3):
        sim.add([0, 1, 1, 0], max_tokens=3)

    finish(sim)
    assert sim.scheduler.stats().cached_tokens == 0
    assert sim.cache.free_pages == 30


def test_several_tokens_of_one_outcome_are_one_row_of_the_next_step() -> None:
    sim = Simulation(num_pages=30, burst=3)
    key = sim.add([0, 1], max_tokens=7)

    assert finish(sim) == 3
    assert [(row.start, row.stop) for p in sim.plans for row in p.rows if row.key == key] == [
        (0, 2),
        (2, 5),
        (5, 8),
    ]


def test_a_cache_flush_while_running_changes_no_output() -> None:
    sim = Simulation(num_pages=12, page_size=2)
    for first in (0, 1, 0):
        sim.add([first] * 5, max_tokens=6)
    while sim.step():
        sim.cache.flush()

    sim.check_outputs()
    sim.check_idle()


# -- pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("chunk_size", [3, 4, 7])
def test_a_prompt_in_chunks_holds_only_the_pages_it_has_filled(prefix_cache: bool, chunk_size: int) -> None:
    sim = Simulation(num_pages=20, page_size=4, chunk_size=chunk_size, prefix_cache=prefix_cache)
    key = sim.add([0, 1] * 20, max_tokens=2)
    used = []
    while (plan := sim.plan()) is not None:
        used.append(sim.cache.num_pages - sim.cache.free_pages)
        sim.commit(plan)

    rows = [row for plan in sim.plans for row in plan.rows if row.key == key]
    assert used == [-(-row.stop // 4) for row in rows]
    assert rows[-1].stop == 41


def test_pages_are_full_while_prompts_of_every_length_are_prefilled_in_chunks() -> None:
    sim = Simulation(num_pages=500, page_size=16, chunk_size=512)
    for number, length in enumerate((2000, 1367, 733, 100)):
        sim.add([number] * length, max_tokens=0)
    fills = []
    while sim.step():
        fills.append(sim.page_fill)

    assert len(fills) == 9
    assert min(fills) > 0.98


# -- ends ----------------------------------------------------------------------------------------------


def test_an_abort_before_admission_ends_at_the_next_plan() -> None:
    sim = Simulation(num_pages=8)
    key = sim.add([0, 1])

    assert sim.scheduler.abort(key)
    assert not sim.scheduler.is_idle
    assert sim.plan() is None
    assert sim.reason(key) == "abort"
    assert not sim.scheduler.abort(key)
    sim.check_idle()


def test_an_abort_during_a_step_ends_at_its_commit_and_its_outcome_is_ignored() -> None:
    sim = Simulation(num_pages=8, page_size=2)
    key = sim.add([0, 1, 1, 0])
    plan = sim.plan()
    assert plan is not None

    assert sim.scheduler.abort(key)
    assert sim.scheduler.abort(key)
    assert sim.reason(key) is None
    sim.commit(plan)
    assert (sim.reason(key), sim.output(key)) == ("abort", [])
    sim.check_idle()
    assert sim.cache.cached_pages == 2, "what the step computed is kept"


def test_an_abort_between_steps_ends_before_the_next() -> None:
    sim = Simulation(num_pages=8, page_size=2)
    gone, stays = sim.add([0, 1]), sim.add([1, 1])
    sim.step()

    sim.scheduler.abort(gone)
    assert keys(sim.plan()) == [stays]


def test_an_abort_of_a_running_sequence_without_a_row_ends_at_the_commit() -> None:
    sim = Simulation(num_pages=30, chunk_size=4)
    sim.add([0] * 3, max_tokens=1)
    late = sim.add([1] * 9)
    sim.step()
    sim.add([0, 1] * 2, priority=1, salt="other")
    plan = sim.plan()
    assert plan is not None
    assert late not in keys(plan)

    sim.scheduler.abort(late)
    sim.commit(plan)
    assert sim.reason(late) == "abort"
    finish(sim)


def test_an_abort_of_an_unknown_key_says_so() -> None:
    assert not Simulation(num_pages=8).scheduler.abort(SequenceKey("nobody", 0))


def test_a_failed_step_ends_its_rows_publishes_nothing_and_spares_the_others() -> None:
    sim = Simulation(num_pages=30, page_size=2, chunk_size=4)
    failed = sim.add([0, 1] * 2)
    other = sim.add([1, 1] * 2)
    plan = sim.plan()
    assert keys(plan) == [failed]
    assert plan is not None

    sim.fail(plan, "out of memory")
    history = sim.histories[failed].seq
    assert (history.finish_reason, history.error) == ("error", "out of memory")
    assert sim.cache.cached_pages == 0
    finish(sim)
    assert len(sim.output(other)) == 4


def test_a_failed_step_keeps_only_what_was_published_before() -> None:
    sim = Simulation(num_pages=30, page_size=2)
    sim.add([0, 1], max_tokens=20)
    for _ in range(6):
        sim.step()
    plan = sim.plan()
    assert plan is not None

    sim.fail(plan)
    assert (sim.cache.cached_pages, sim.cache.free_pages) == (1, 29)


def test_a_failed_step_gives_its_copies_up() -> None:
    sim = Simulation(num_pages=30, page_size=4)
    sim.add([0, 1, 1], max_tokens=0)
    finish(sim)
    sim.add([0, 1, 0])
    plan = sim.plan()
    assert plan is not None
    assert len(plan.copies) == 1

    sim.fail(plan)
    sim.check_idle()
    sim.add([0, 1, 0])
    finish(sim)


def test_an_abort_in_a_step_that_fails_is_an_abort() -> None:
    sim = Simulation(num_pages=30)
    key = sim.add([0, 1])
    plan = sim.plan()
    assert plan is not None

    sim.scheduler.abort(key)
    sim.fail(plan)
    assert (sim.reason(key), sim.histories[key].seq.error) == ("abort", None)
    sim.check_idle()


def test_a_row_that_ends_with_an_error_is_not_published() -> None:
    sim = Simulation(num_pages=30)
    bad = sim.add([0, 1, 1, 0])
    plan = sim.plan()
    assert plan is not None

    (ended,) = sim.scheduler.commit(plan, [Outcome(bad, finish="error", error="logits are not finite")])
    assert (ended.key, ended.finish_reason, ended.error) == (bad, "error", "logits are not finite")
    assert sim.cache.cached_pages == 0
    assert sim.cache.free_pages == 30


def test_a_stop_ends_the_sequence_before_its_length() -> None:
    sim = Simulation(num_pages=200, model=HashModel(eos_every=3), max_running=8)
    keys = [sim.add([n % 2, n // 2 % 2, n // 4], max_tokens=30) for n in range(8)]

    finish(sim)
    assert {sim.reason(key) for key in keys} == {"stop"}


def test_nothing_to_do_gives_no_plan() -> None:
    sim = Simulation(num_pages=8)

    assert sim.plan() is None
    assert sim.scheduler.is_idle


def test_ended_sequences_are_forgotten() -> None:
    sim = Simulation(num_pages=8)
    key = sim.add([0, 1])
    assert sim.scheduler.get(key) is sim.live[key]

    finish(sim)
    assert sim.scheduler.get(key) is None


def test_steps_are_committed_one_at_a_time() -> None:
    sim = Simulation(num_pages=8)
    sim.add([0, 1])
    plan = sim.plan()
    assert plan is not None

    with pytest.raises(AssertionError, match="before the next one"):
        sim.scheduler.plan()
    with pytest.raises(AssertionError, match="one outcome for each row"):
        sim.scheduler.commit(plan, [])
    sim.commit(plan)
    with pytest.raises(AssertionError, match="in flight"):
        sim.scheduler.fail(plan, "too late")


def test_the_simulation_notices_a_slot_that_does_not_hold_its_prefix() -> None:
    sim = Simulation(num_pages=8, page_size=2)
    sim.add([1, 1, 1], max_tokens=0)
    plan = sim.plan()
    assert plan is not None
    (row,) = plan.rows
    skips = Row(row.key, row.tokens[2:], 2, 3, 2, 3, row.pages, samples=False, logits_to=3)

    with pytest.raises(AssertionError, match="does not hold the key and value of that prefix"):
        sim.pool.run(Plan(plan.step, (skips,), ()), sim.live)
