"""Values of tokens through chunks, preemption, eviction, copies and failed steps, in a world without tensors.

Simulation compares what lies beside every cached slot, and what every sequence knows, with a pure function of
the prefix after each step; so these tests only have to push it around.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from radixlm.runtime.errors import TooLarge
from testkit.sim import Simulation, cached_paths

CONTEXT = [0, 1, 1, 0, 1, 0]


def push(sim: Simulation, rng: random.Random) -> None:
    """Add up to two pieces of work that mostly share; then a step that runs, fails or has an abort in it."""
    for _ in range(rng.randint(0, 2) if len(sim.live) < 10 else 0):
        prompt = [0] * rng.randint(0, 6) + [rng.randint(0, 1) for _ in range(rng.randint(1, 5))]
        salt, priority = rng.choice(("", "", "", "a")), rng.choice((0, 0, 0, 1))
        with suppress(TooLarge):
            if rng.random() < 0.4:
                conts = [
                    [rng.randint(0, 1) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 3))
                ]
                sim.score(prompt, conts, salt=salt, priority=priority)
            else:
                sim.add(
                    prompt,
                    max_tokens=rng.randint(0, 5),
                    salt=salt,
                    priority=priority,
                    prompt_logprobs_start=rng.choice((None, 0, 0, 3)),
                    logprobs=rng.choice((None, 0, 1, 2)),
                )
    if (plan := sim.plan()) is None:
        return
    if rng.random() < 0.1:
        sim.scheduler.abort(rng.choice(list(sim.live)))
    if rng.random() < 0.1:
        sim.fail(plan)
    else:
        sim.commit(plan)


@pytest.mark.parametrize("seed", range(60))
def test_every_value_is_that_of_its_prefix_whatever_happens(seed: int) -> None:
    rng = random.Random(seed)
    sim = Simulation(
        num_pages=rng.randint(4, 14),
        page_size=rng.choice((1, 2, 4)),
        chunk_size=rng.randint(1, 9),
        max_running=rng.randint(1, 5),
        policy=rng.choice(("cache-aware", "fcfs")),
        eviction=rng.choice(("lru", "priority")),
        prefix_cache=rng.random() < 0.9,
        burst=rng.choice((1, 1, 3)),
    )
    for _ in range(40):
        push(sim, rng)
    sim.run()
    sim.check_outputs()
    sim.check_values()
    sim.check_idle()
    for history in sim.histories.values():
        assert history.logits == sorted(set(history.logits)), "no logits are asked for twice"


@pytest.mark.parametrize("chunk_size", [1, 3, 50])
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_what_was_scored_once_is_scored_again_without_a_step(page_size: int, chunk_size: int) -> None:
    sim = Simulation(num_pages=40, page_size=page_size, chunk_size=chunk_size)
    continuations = [[0], [1, 1, 0], [1, 0]]
    first = sim.score(CONTEXT, continuations)
    sim.run()
    steps = len(sim.plans)
    again = sim.score(CONTEXT, continuations)
    sim.run()
    assert len(sim.plans) == steps
    for one, other in zip(first, again, strict=True):
        assert sim.histories[one].seq.values == sim.histories[other].seq.values != {}
        assert sim.histories[other].seq.cached_tokens == sim.histories[other].seq.prompt_len
        assert sim.reason(other) == "length"


def test_the_last_position_of_a_context_is_computed_once_for_all_continuations() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50, max_running=9)
    sim.score(CONTEXT, [[0], [1], [0, 1], [1, 1]])
    assert sim.run() == 2
    rows = [row for plan in sim.plans for row in plan.rows]
    assert [(row.start, row.stop) for row in rows] == [(0, 6), (6, 7), (6, 7), (6, 8), (6, 8)]
    assert [row.logits_to - row.logits_from for row in rows] == [1, 0, 0, 1, 1]


def test_of_a_context_that_is_cached_only_the_last_position_is_asked_again() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    sim.add(CONTEXT, max_tokens=0)
    sim.run()
    sim.score(CONTEXT, [[0], [1]])
    sim.run()
    [row] = sim.plans[1].rows
    assert (row.start, row.stop, row.write_from) == (5, 6, 6)


def test_new_continuations_of_a_known_context_compute_their_own_tokens() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    sim.score(CONTEXT, [[0, 0], [0, 1]])
    sim.run()
    before = len(sim.plans)
    known, new = sim.score(CONTEXT, [[0, 1], [1, 0]])
    sim.run()
    rows = [(row.key.choice, row.start, row.stop) for plan in sim.plans[before:] for row in plan.rows]
    assert rows == [(-1, 5, 6), (1, 6, 8)]
    assert sim.histories[known].computed_tokens == 0
    assert sim.histories[new].computed_tokens == 2


def test_one_continuation_alone_is_computed_with_its_context() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    [key] = sim.score(CONTEXT, [[0, 1, 1]])
    assert sim.run() == 1
    assert sim.histories[key].logits == [5, 6, 7]


def test_scores_of_what_was_generated_use_its_keys_and_fill_its_values() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    key = sim.add(CONTEXT, max_tokens=5)
    sim.run()
    output = sim.output(key)[:4]  # of the last token no key was computed
    [score] = sim.score(CONTEXT, [output])
    sim.run()
    assert sim.histories[score].logits == [5, 6, 7, 8]
    assert all(row.write_from == row.stop for plan in sim.plans for row in plan.rows if row.key == score)
    before = len(sim.plans)
    sim.score(CONTEXT, [output])
    sim.run()
    assert len(sim.plans) == before


def test_what_was_generated_with_log_probabilities_needs_none_computed() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    key = sim.add(CONTEXT, max_tokens=5, prompt_logprobs_start=0, logprobs=0)
    sim.run()
    before = len(sim.plans)
    sim.score(CONTEXT, [sim.output(key)[:4]])
    sim.score(CONTEXT[:3], [CONTEXT[3:]])
    sim.run()
    assert len(sim.plans) == before


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4])
def test_values_of_a_prompt_that_is_cached_whole_come_in_chunks_of_any_size(chunk_size: int) -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=chunk_size)
    sim.add(CONTEXT, max_tokens=0)
    sim.run()
    key = sim.add(CONTEXT, max_tokens=0, prompt_logprobs_start=0)
    sim.run()
    assert sim.histories[key].logits == [0, 1, 2, 3, 4]


def test_who_gave_way_to_one_that_then_knew_all_goes_on() -> None:
    sim = Simulation(num_pages=40, page_size=2, chunk_size=4, max_running=1)
    low = sim.add([0, 1] * 6, max_tokens=0)
    sim.step()
    high = sim.add([0, 1] * 2, max_tokens=0, priority=1)
    sim.run()
    assert (sim.reason(low), sim.reason(high)) == ("length", "length")


def test_more_than_one_alternative_is_computed_again() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=50)
    for logprobs in (1, 2):
        key = sim.add(CONTEXT, max_tokens=0, prompt_logprobs_start=0, logprobs=logprobs)
        sim.run()
        assert sim.histories[key].logits == [0, 1, 2, 3, 4]


def test_a_preempted_prompt_loses_no_value_and_leaves_all_of_them_when_it_is_replayed() -> None:
    sim = Simulation(num_pages=40, page_size=2, chunk_size=4, max_running=1)
    key = sim.add([0, 1] * 6, max_tokens=0, prompt_logprobs_start=0)
    sim.step()
    sim.add([1], max_tokens=1, priority=1)
    sim.step()
    sim.cache.flush()
    sim.run()
    assert sim.histories[key].seq.preemptions == 1
    assert sim.histories[key].logits == list(range(11))
    before = len(sim.plans)
    sim.add([0, 1] * 6, max_tokens=0, prompt_logprobs_start=0)
    sim.run()
    assert len(sim.plans) == before


def test_continuations_wait_for_their_context_and_then_go_ahead_of_other_contexts() -> None:
    sim = Simulation(num_pages=60, page_size=4, chunk_size=6, max_running=2)
    sim.score(CONTEXT, [[0], [1]])
    sim.score([1, *CONTEXT[:5]], [[0], [1]])
    sim.run()
    order = [(row.key.request_id, row.key.choice) for plan in sim.plans for row in plan.rows]
    assert order == [("0", -1), ("0", 0), ("0", 1), ("3", -1), ("3", 0), ("3", 1)]


def test_when_a_context_fails_its_continuations_fail_with_it() -> None:
    sim = Simulation(num_pages=40, page_size=4)
    keys = sim.score(CONTEXT, [[0], [1]])
    plan = sim.plan()
    assert plan is not None
    sim.fail(plan, "the step failed")
    assert [(sim.reason(key), sim.histories[key].seq.error) for key in keys] == [
        ("error", "the step failed")
    ] * 2
    sim.check_idle()
    assert list(cached_paths(sim.cache)) == []


def test_when_a_context_is_aborted_its_continuations_are_too() -> None:
    sim = Simulation(num_pages=40, page_size=4, chunk_size=2)
    keys = sim.score(CONTEXT, [[0], [1]])
    context = next(key for key in sim.live if key.choice < 0)
    sim.step()
    sim.scheduler.abort(context)
    sim.run()
    assert [sim.reason(key) for key in keys] == ["abort", "abort"]
    sim.check_idle()


def test_a_prompt_that_asks_for_nothing_new_ends_without_a_step() -> None:
    sim = Simulation(num_pages=40, page_size=4)
    sim.add(CONTEXT, max_tokens=0)
    sim.run()
    key = sim.add(CONTEXT, max_tokens=0)
    assert sim.run() == 0
    assert (sim.reason(key), sim.histories[key].seq.cached_tokens) == ("length", 6)
    assert sim.scheduler.stats().cached_tokens == 6


def test_a_long_queue_of_known_items_ends_in_one_go() -> None:
    sim = Simulation(num_pages=40, page_size=4)
    sim.score(CONTEXT, [[0], [1]])
    sim.run()
    before = len(sim.plans)
    keys = [key for _ in range(100) for key in sim.score(CONTEXT, [[0], [1]])]
    assert sim.run() == 0
    assert len(sim.plans) == before
    assert all(sim.reason(key) == "length" for key in keys)


def test_a_context_counts_once_among_the_prompt_tokens() -> None:
    sim = Simulation(num_pages=40, page_size=4)
    sim.score(CONTEXT, [[0], [1, 1]])
    sim.run()
    stats = sim.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (9, 0, 9)
    sim.score(CONTEXT, [[0], [1, 1]])
    sim.run()
    stats = sim.scheduler.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.computed_tokens) == (18, 9, 9)
