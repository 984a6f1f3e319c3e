"""A batch known as a whole: its order, and how the scheduler admits it subtree by subtree."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from radixlm.radix.replay import optimal_hit_rate
from radixlm.runtime.batch_order import Place, batch_order
from radixlm.runtime.policy import Policy
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Request, SequenceKey
from testkit.sim import HashModel, Simulation

PAGE = 2


def request(prompt: Sequence[int], *, priority: int = 0, salt: str = "") -> Request:
    return Request("any", tuple(prompt), SamplingParams(), salt=salt, priority=priority)


def groups(count: int, each: int, *, stem: int = 24, own: int = 6, seed: int = 1) -> list[list[int]]:
    """Prompts with a stem for each group, shuffled."""
    rng = random.Random(seed)
    stems = [[rng.randrange(1000) for _ in range(stem)] for _ in range(count)]
    prompts = [stem + [rng.randrange(1000) for _ in range(own)] for stem in stems for _ in range(each)]
    rng.shuffle(prompts)
    return prompts


def tree(seed: int = 2) -> list[list[int]]:
    """Four branches of three twigs of four leaves, shuffled."""
    rng = random.Random(seed)
    prompts = []
    for _ in range(4):
        branch = [rng.randrange(1000) for _ in range(12)]
        for _ in range(3):
            twig = branch + [rng.randrange(1000) for _ in range(14)]
            prompts += [twig + [rng.randrange(1000) for _ in range(4)] for _ in range(4)]
    rng.shuffle(prompts)
    return prompts


def simulate(
    prompts: Sequence[Sequence[int]], *, longest: float, policy: Policy = "cache-aware"
) -> Simulation:
    """A pool of so many times the longest prompt and its token."""
    pages = max(-(-(len(prompt) + 1) // PAGE) for prompt in prompts)
    num_pages = int(longest * pages)
    return Simulation(num_pages=num_pages, page_size=PAGE, policy=policy, max_running=16, chunk_size=32)


def submit(sim: Simulation, prompts: Sequence[Sequence[int]], *, max_tokens: int = 1) -> list[SequenceKey]:
    """Keys in the order in which the batch was submitted."""
    order = batch_order([request(prompt) for prompt in prompts])
    return [sim.add(prompts[index], max_tokens=max_tokens, shared=shared) for index, shared in order]


def finish(sim: Simulation) -> None:
    sim.run()
    sim.check_outputs()
    sim.check_idle()


def achieved(sim: Simulation, prompts: Sequence[Sequence[int]]) -> float:
    stats = sim.scheduler.stats()
    return stats.cached_tokens / stats.prompt_tokens / optimal_hit_rate(prompts)


def admissions(sim: Simulation) -> list[SequenceKey]:
    """Keys in the order of their first rows."""
    seen: dict[SequenceKey, None] = {}
    for plan in sim.plans:
        seen.update(dict.fromkeys(row.key for row in plan.rows))
    return list(seen)


# -- the order -----------------------------------------------------------------------------------------


def test_what_shares_stands_together_and_says_how_much() -> None:
    prompts = [[1, 2, 3], [9], [1, 2, 4, 5], [9, 9], [1, 2, 4, 5]]
    assert batch_order([request(prompt) for prompt in prompts]) == [
        Place(0, 0), Place(2, 2), Place(4, 4), Place(3, 0), Place(1, 1),
    ]  # fmt: skip


def test_a_higher_priority_comes_first_whatever_it_shares() -> None:
    requests = [request([1, 2]), request([1, 3], priority=2), request([7], priority=1), request([1, 2])]
    assert [place.member for place in batch_order(requests)] == [1, 2, 0, 3]


def test_namespaces_share_nothing_and_keep_the_order_of_their_first_requests() -> None:
    requests = [request([1, 2], salt="b"), request([1, 2], salt="a"), request([1, 3], salt="b")]
    assert batch_order(requests) == [Place(0, 0), Place(2, 1), Place(1, 0)]


def test_an_empty_batch_has_an_empty_order() -> None:
    assert batch_order([]) == []


# -- admission -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("longest", "max_tokens"), [(1, 1), (1.5, 1), (2, 1), (3, 1), (30, 1), (1.5, 12), (2, 12)]
)
@pytest.mark.parametrize("prompts", [groups(6, 5), groups(20, 2), tree()], ids=["groups", "pairs", "tree"])
def test_a_batch_finds_all_there_is_in_any_pool(
    prompts: list[list[int]], longest: float, max_tokens: int
) -> None:
    sim = simulate(prompts, longest=longest)
    submit(sim, prompts, max_tokens=max_tokens)
    finish(sim)
    assert achieved(sim, prompts) >= 0.99


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_in_the_order_of_arrival_the_same_prompts_find_less(longest: float) -> None:
    prompts = groups(6, 5)
    sim = simulate(prompts, longest=longest, policy="fcfs")
    for prompt in prompts:
        sim.add(prompt, max_tokens=1)
    finish(sim)
    assert achieved(sim, prompts) < 0.9


def test_a_large_pool_works_on_several_subtrees_at_once() -> None:
    prompts = groups(6, 5, stem=8, own=4)
    sim = simulate(prompts, longest=30)
    submit(sim, prompts, max_tokens=1)
    first = sim.plan()
    assert first is not None
    assert len(first.rows) == 3, "a step of 32 tokens begins three groups of 12 while their siblings wait"
    sim.commit(first)
    finish(sim)
    assert achieved(sim, prompts) == 1.0


def test_a_small_pool_does_not_begin_the_next_subtree_while_siblings_wait() -> None:
    prompts = groups(2, 3, stem=8, own=4)
    sim = simulate(prompts, longest=2)
    submit(sim, prompts, max_tokens=1)
    first = sim.plan()
    assert first is not None
    assert len(first.rows) == 1
    sim.commit(first)
    finish(sim)


@pytest.mark.parametrize("longest", [1, 1.5, 2])
def test_in_a_small_pool_members_are_admitted_in_their_order(longest: float) -> None:
    prompts = groups(6, 5)
    sim = simulate(prompts, longest=longest)
    keys = submit(sim, prompts)
    finish(sim)
    assert admissions(sim) == keys


def test_preemption_brings_a_member_back_before_the_batch_goes_on() -> None:
    prompts = groups(4, 5, stem=10, own=3)
    sim = simulate(prompts, longest=2)
    keys = submit(sim, prompts, max_tokens=14)
    finish(sim)
    assert sim.scheduler.stats().preemptions > 0
    assert admissions(sim) == keys
    assert achieved(sim, prompts) >= 0.99


def test_an_abort_in_the_middle_of_a_subtree_costs_nobody_what_is_shared() -> None:
    prompts = groups(4, 6, stem=40)
    sim = simulate(prompts, longest=2)
    keys = submit(sim, prompts)
    sim.step()
    assert sim.scheduler.abort(keys[0]), "it computes what the others of its subtree wait for"
    assert sim.scheduler.abort(keys[9])
    finish(sim)
    assert sim.scheduler.stats().computed_tokens <= 4 * 40 + 6 * len(prompts)


def test_a_batch_of_a_higher_priority_runs_first_and_shares_as_well() -> None:
    low, high = groups(3, 5, seed=3), groups(3, 5, seed=4)
    sim = simulate(low + high, longest=2)
    requests = [request(prompt) for prompt in low] + [request(prompt, priority=1) for prompt in high]
    for index, shared in batch_order(requests):
        one = requests[index]
        sim.add(one.prompt_ids, max_tokens=1, priority=one.priority, shared=shared)
    finish(sim)
    last_high = max(h.first_row_at or 0 for h in sim.histories.values() if h.seq.request.priority)
    first_low = min(h.first_row_at or 0 for h in sim.histories.values() if not h.seq.request.priority)
    assert last_high <= first_low
    assert achieved(sim, low + high) >= 0.99


def test_namespaces_of_a_batch_follow_each_other() -> None:
    prompts = groups(3, 5)
    sim = simulate(prompts, longest=2)
    requests = [request(prompt, salt=salt) for prompt in prompts for salt in ("a", "b")]
    for index, shared in batch_order(requests):
        sim.add(requests[index].prompt_ids, max_tokens=1, salt=requests[index].salt, shared=shared)
    finish(sim)
    assert achieved(sim, prompts) >= 0.99


def test_single_requests_between_are_served_and_disturb_no_output() -> None:
    prompts = groups(4, 5)
    sim = simulate(prompts, longest=3)
    early = sim.add([5, 5, 5], max_tokens=2)
    submit(sim, prompts, max_tokens=3)
    late = sim.add([5, 5, 5, 6], max_tokens=2)
    finish(sim)
    assert len(sim.output(early)) == len(sim.output(late)) == 2


def test_what_is_pushed_out_by_the_step_that_would_have_shared_it_waits_on() -> None:
    sim = Simulation(num_pages=8, page_size=4, max_running=4, chunk_size=16, model=HashModel(4))
    prompts = ("310012", "32120", "20101", "311", "131", "22", "1232")
    for prompt, max_tokens in zip(prompts, (4, 8, 4, 9, 4, 2, 5), strict=True):
        sim.add(map(int, prompt), max_tokens=max_tokens)
    finish(sim)
