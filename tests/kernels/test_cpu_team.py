"""The team: every item is done once, whoever sleeps, is busy or is gone; its threads end with it."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from radixlm.kernels import cpu_team
from radixlm.kernels.cpu_ir import atomic_add, load_int
from radixlm.kernels.cpu_team import MOST_THREADS, Team, job
from testkit.compiled import packed


@job
def _count(call, item):  # type: ignore[no-untyped-def]
    """Adds one to counters[item], and the second argument to the number behind the third."""
    atomic_add(load_int(call + 8) + 8 * item, 1)
    atomic_add(load_int(call + 24), load_int(call + 16))


class Counters:
    """How often each item was done, and the sum of what its jobs gave along."""

    def __init__(self, items: int = 1000) -> None:
        self.done: NDArray[np.int64] = np.zeros(items, dtype=np.int64)
        self.total: NDArray[np.int64] = np.zeros(1, dtype=np.int64)

    def run(self, team: Team, items: int, value: int = 1, *, count: int = 0) -> None:
        team.run(_count.address, items, self.done.ctypes.data, value, self.total.ctypes.data, count=count)


def wait_for(reached: Callable[[], bool]) -> None:
    """Gives way to other threads until something is so."""
    limit = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < limit, "it takes too long"
        os.sched_yield()


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_every_item_of_thousands_of_jobs_is_done_once(threads: int) -> None:
    team, counters = Team(threads), Counters()
    wanted, total, chance = np.zeros(1000, dtype=np.int64), 0, random.Random(threads)
    for n in range(4000):
        items = chance.choice((0, 1, 1, 2, 3, 5, 40, 1000 if n % 10 == 0 else 7))
        counters.run(team, items, n)
        wanted[:items] += 1
        total += n * items
    assert counters.done.tolist() == wanted.tolist()
    assert counters.total[0] == total


@pytest.mark.parametrize("threads", [1, 3])
def test_recorded_jobs_are_done_when_they_are_played_in_their_order_and_as_often(threads: int) -> None:
    team, counters, items = Team(threads), Counters(), np.array([7], dtype=np.int64)
    team.recording = []
    counters.run(team, 3)
    counters.run(team, 0)
    counters.run(team, -1, count=items.ctypes.data)
    counters.run(team, 1000)
    jobs, team.recording = np.array(team.recording, dtype=np.int64), None
    assert not counters.done.any(), "nothing is done while it is recorded"
    for played, n in enumerate((7, 0, 1, 2, 999), start=1):
        items[0] = n
        before = counters.done.copy()
        team.play(jobs)
        wanted = before + 1
        wanted[:3] += 1
        wanted[:n] += 1
        assert counters.done.tolist() == wanted.tolist(), played


def test_members_that_sleep_are_woken_and_nobody_waits_for_them() -> None:
    team, counters = Team(3), Counters()
    for round_ in range(1, 4):
        wait_for(lambda: int(team._sleepers[0]) == 2)
        counters.run(team, 1000)
        assert counters.done.tolist() == [round_] * 1000
        assert team._sleepers[0] < 2, "who slept was called"


def test_a_number_of_threads_that_makes_no_sense_is_one_that_does() -> None:
    assert [Team(threads).threads for threads in (-3, 0, 1)] == [1, 1, 1]
    assert min(5000, MOST_THREADS) == MOST_THREADS


def members() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("radixlm-")]


def test_many_teams_leave_no_threads_behind() -> None:
    before = set(members())
    counters = Counters()
    for _ in range(50):
        counters.run(Team(3), 10)
    gc.collect()
    wait_for(lambda: not set(members()) - before)
    assert counters.done[:10].tolist() == [50] * 10


def test_a_team_that_sleeps_ends_too() -> None:
    before = set(members())
    team = [Team(3)]
    wait_for(lambda: int(team[0]._sleepers[0]) == 2)
    assert len(set(members()) - before) == 2
    team.clear()
    gc.collect()
    wait_for(lambda: not set(members()) - before)


def test_two_teams_work_at_the_same_time_for_two_threads() -> None:
    def work(seed: int) -> tuple[list[int], int]:
        team, counters, total = Team(3), Counters(), 0
        for n in range(1500):
            items = (seed + 7 * n) % 60
            counters.run(team, items, seed)
            total += items * seed
        return counters.done.tolist(), int(counters.total[0]) - total

    alone = [work(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(work, (1, 2)))
    assert together == alone
    assert [rest for _, rest in together] == [0, 0]


def test_a_linear_serves_one_thread_after_another() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(300, 70, generator=generator), torch.randn(20, 70, generator=generator)
    linear = packed(weight, None, threads=3)
    wanted = linear(x)
    found: list[torch.Tensor] = []
    for _ in range(5):
        thread = threading.Thread(target=lambda: found.append(linear(x)))
        thread.start()
        thread.join()
    assert all(torch.equal(one, wanted) for one in found)


FORK = """
import faulthandler
import os
import threading
import torch
from testkit.compiled import packed

linear, x = packed(torch.arange(300 * 70).view(300, 70) % 11 * 1.0, None, threads=3), torch.ones(20, 70)
wanted = linear(x)


def work(stop):
    while not stop.is_set():
        linear(x)


def fork():
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(100, exit=True)  # where it hangs, if it does
        right = all(torch.equal(linear(x), wanted) for _ in range(50))
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


print(fork(), torch.equal(linear(x), wanted))
stop = threading.Event()
other = threading.Thread(target=work, args=(stop,))
other.start()
print({fork() for _ in range(20)})
stop.set()
other.join()
print(torch.equal(linear(x), wanted))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_a_fork_parent_and_child_work_on() -> None:
    """The child has none of the team's threads, and whoever was in the middle of a job is not there."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", FORK],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.split() == ["0", "True", "{0}", "True"], done.stderr


def test_what_two_processes_compile_at_once_is_kept_apart(tmp_path: Path) -> None:
    numbas = SimpleNamespace(_index_name="job-1.py311.nbi", _cache_path=str(tmp_path), _source_stamp=(1, 2))
    one, other = cpu_team._Kept(numbas), cpu_team._Kept(numbas)

    one.save(("float32",), b"of float32")
    other.save(("float16",), b"of float16")

    for kept in (one, other):
        assert kept.load(("float32",)) == b"of float32"
        assert kept.load(("float16",)) == b"of float16"
        assert kept.load(("bfloat16",)) is None


def test_what_is_kept_of_other_sources_is_neither_found_nor_left(tmp_path: Path) -> None:
    before = SimpleNamespace(_index_name="job-1.py311.nbi", _cache_path=str(tmp_path), _source_stamp=(1, 2))
    after = SimpleNamespace(_index_name="job-1.py311.nbi", _cache_path=str(tmp_path), _source_stamp=(3, 4))
    cpu_team._Kept(before).save("key", b"old")

    kept = cpu_team._Kept(after)
    assert kept.load("key") is None
    kept.save("key", b"new")
    assert kept.load("key") == b"new"
    assert len(list(tmp_path.iterdir())) == 1
