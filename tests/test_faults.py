"""The property tests can fail: each seeded fault of testkit.faults shows in its world, and none without it.

Worlds are the property tests themselves, loaded from their files and run with fixed examples; the first one
that fails is enough, so nothing is shrunk. Two faults that random examples meet too rarely for a few seconds
are shown to plain tests of tree and cache.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from radixlm.kernels.plan import PlanOptions
from radixlm.runtime.errors import TooLarge
from testkit.compiled import attention
from testkit.faults import FAULTS, World
from testkit.paged import Spec, attend, fill, grow, is_as_exact, make_queries, reference
from testkit.sim import Simulation

_TESTS = Path(__file__).parent


def _load(path: str) -> ModuleType:
    """A test module of its own, whichever way pytest imports the same file."""
    spec = importlib.util.spec_from_file_location(f"worlds_{Path(path).stem}", _TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _settings(examples: int, steps: int = 50) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )


def _machine(path: str, name: str, examples: int) -> Callable[[], None]:
    machine: Any = getattr(_load(path), name)
    return lambda: run_state_machine_as_test(machine, settings=_settings(examples))


def _property(path: str, name: str, examples: int) -> Callable[[], None]:
    test: Callable[[], None] = _settings(examples)(getattr(_load(path), name))
    return test


def _scheduler() -> None:
    """The scheduler in its tiny world, pushed around by plain random numbers: far more steps a second than
    the state machine, which is for finding small examples."""
    for seed in range(120):
        rng = random.Random(seed)
        page_size = rng.choice((1, 2, 4))
        sim = Simulation(
            num_pages=rng.randint(4, 12),
            page_size=page_size,
            chunk_size=rng.randint(2, 9),
            max_running=rng.randint(2, 5),
            eviction=rng.choice(("lru", "priority")),
        )
        for _ in range(40):
            _push(sim, rng)
        sim.run()
        sim.check_outputs()
        sim.check_idle()


def _push(sim: Simulation, rng: random.Random) -> None:
    """Add up to two sequences that mostly share; then a step that runs, fails or has an abort in it."""
    for _ in range(rng.randint(0, 2) if len(sim.live) < 8 else 0):
        prompt = [0] * rng.randint(0, 6) + [rng.randint(0, 1) for _ in range(rng.randint(1, 5))]
        with suppress(TooLarge):
            sim.add(prompt, max_tokens=rng.randint(0, 6), salt=rng.choice(("", "", "", "a")))
    if (plan := sim.plan()) is None:
        return
    if rng.random() < 0.1:
        sim.scheduler.abort(rng.choice(list(sim.live)))
    if rng.random() < 0.1:
        sim.fail(plan)
    else:
        sim.commit(plan)


def _values() -> None:
    """The scheduler again, with log-probabilities asked for and continuations scored."""
    for seed in range(40):
        _load("runtime/test_known_values.py").test_every_value_is_that_of_its_prefix_whatever_happens(seed)


def _replay() -> None:
    """Random steps of few shapes, replayed, are those that are not."""
    _load("kernels/test_cpu_replay.py").test_random_steps_give_and_write_the_bits_of_the_pass_itself(
        1, "none"
    )


def _attention() -> None:
    """Plans carried out by the CPU's attention give what the reference gives."""
    rows = grow(4, [Spec(19, 5), Spec(18, 1, parent=0, shared=3), Spec(21, 9, parent=0, shared=3)])
    pool, queries = fill(rows, 1, 8), make_queries(rows, 2, 8)
    options = PlanOptions(align_tokens=4, min_saved_tokens=1)
    found = attend(attention(2, 1), options, rows, pool, queries)
    plain = reference(rows, pool, queries, torch.float32)
    truth = reference(rows, pool, queries, torch.float64)
    for ours, theirs, exact in zip(found, plain, truth, strict=True):
        assert is_as_exact(ours, theirs, exact), "attention is that of the reference"


_PLAN, _BITS, _BATCH = "kernels/test_plan.py", "kernels/test_invariance.py", "runtime/test_batch.py"
WORLDS: dict[World, Callable[[], None]] = {
    "cache": _machine("radix/test_cache_model.py", "CacheModel", 80),
    "copies": _load("radix/test_cache.py").test_copy_sources_are_pinned_until_settled,
    "namespaces": _load("radix/test_tree.py").test_namespaces_that_join_to_the_same_text_share_nothing,
    "scheduler": _scheduler,
    "values": _values,
    "plan": _property(_PLAN, "test_every_query_meets_every_visible_position_once_and_in_its_own_table", 60),
    "merge": _property(_PLAN, "test_the_merge_table_has_each_partial_once_in_order_of_position", 60),
    "attention": _attention,
    "bits": _property(_BITS, "test_a_row_among_others_has_the_bits_it_has_alone_and_whole", 40),
    "replay": _replay,
    "batch": _property(_BATCH, "test_every_token_slot_and_logit_is_that_of_its_row", 60),
}


@pytest.mark.parametrize("world", WORLDS)
def test_without_a_fault_all_is_well(world: World) -> None:
    WORLDS[world]()


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_caught(name: str) -> None:
    fault = FAULTS[name]
    with fault.seed(), pytest.raises(AssertionError):
        WORLDS[fault.world]()


def test_a_fault_is_gone_when_it_is_left() -> None:
    for fault in FAULTS.values():
        with fault.seed():
            pass
    _attention()
    WORLDS["batch"]()


def test_there_are_ten_kinds_of_fault_at_least() -> None:
    assert len({name.partition(":")[0] for name in FAULTS}) >= 10
