"""A whole batch through an engine: computed in the order that shares most, answered in the order given."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from testkit.byte_tokenizer import VOCAB_SIZE

OpenEngine = Callable[..., Engine]


def groups(count: int = 6, each: int = 4, *, stem: int = 24, own: int = 6) -> list[tuple[int, ...]]:
    """Prompts one after the other from groups that share a stem, so that neighbours share nothing."""
    rng = random.Random(5)
    stems = [[group + 2, *(rng.randrange(2, VOCAB_SIZE) for _ in range(stem - 1))] for group in range(count)]
    return [
        tuple(stem + [rng.randrange(2, VOCAB_SIZE) for _ in range(own)])
        for _ in range(each)
        for stem in stems
    ]


def greedy(max_tokens: int = 2, **more: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **more})


def of_optimal(engine: Engine) -> float:
    return engine.stats().hit_rate_of_optimal


def test_a_pool_of_two_requests_finds_all_that_a_batch_shares(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=2 * 8, chunk_size=32)
    engine.generate(groups(), greedy(1))
    assert of_optimal(engine) >= 0.99
    stats = engine.stats()
    assert stats.hit_rate_of_optimal == pytest.approx(stats.hit_rate / stats.optimal_hit_rate)


def test_first_come_first_served_keeps_the_order_given_and_finds_less(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=2 * 8, chunk_size=32, policy="fcfs")
    engine.generate(groups(), greedy(1))
    assert of_optimal(engine) < 0.5


def test_answers_come_in_the_order_given_and_are_those_of_each_prompt_alone(open_engine: OpenEngine) -> None:
    prompts = groups(4, 3)
    batch = [Prompt(prompt, id=f"name-{i}") for i, prompt in enumerate(prompts)]
    completions = open_engine(num_pages=20).generate(batch, greedy(5))
    assert [completion.id for completion in completions] == [f"name-{i}" for i in range(12)]
    alone = open_engine(prefix_cache=False)
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.output_ids == alone.generate([prompt], greedy(5))[0].output_ids


def test_what_is_refused_has_its_place_among_the_answers(open_engine: OpenEngine) -> None:
    first, second, third, *_ = groups(3, 1)
    wrong: tuple[int, ...] = (VOCAB_SIZE + 7,)
    engine = open_engine(num_pages=10)
    completions = engine.generate([first, "", second, wrong, first * 3, third], greedy(1))
    assert [completion.finish_reason for completion in completions] == [
        "length", "error", "length", "error", "error", "length",
    ]  # fmt: skip
    assert [completion.prompt_tokens for completion in completions] == [30, 0, 30, 1, 90, 30]
    assert [completion.id for completion in completions] == list("012345")


def test_choices_stand_together_and_the_prompt_is_computed_once(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=24, chunk_size=32)
    completions = engine.generate(groups(4, 2), greedy(1, n=2, temperature=1.0))
    assert [(c.id, c.index) for c in completions] == [(str(i), n) for i in range(8) for n in range(2)]
    assert of_optimal(engine) >= 0.99


def test_a_higher_priority_is_answered_first_and_salts_share_nothing(open_engine: OpenEngine) -> None:
    one, two, *_ = groups(2, 1)
    batch = [Prompt(one), Prompt(two, salt="a"), Prompt(one, priority=1), Prompt(two, salt="b")]
    completions = open_engine(num_pages=9).generate(batch, greedy(1))
    assert [completion.cached_tokens for completion in completions] == [30, 0, 0, 0]


def test_seeds_are_drawn_in_the_order_given_whatever_runs_first(open_engine: OpenEngine) -> None:
    prompts, sampling = groups(3, 3), SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
    ordered = open_engine(seed=3).generate(prompts, sampling)
    arrival = open_engine(seed=3, policy="fcfs").generate(prompts, sampling)
    assert [c.output_ids for c in ordered] == [c.output_ids for c in arrival]


def test_a_batch_that_is_broken_off_leaves_nothing_and_the_next_is_answered(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=20)

    def stop(_: object) -> None:
        if engine.stats().steps == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(groups(), greedy(4), on_progress=stop)
    assert not engine.has_work
    assert all(completion.error is None for completion in engine.generate(groups(2, 2), greedy(4)))
