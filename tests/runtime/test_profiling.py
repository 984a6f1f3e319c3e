"""Profiles: the steps they hold, and what may be done when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.profiling import Profiler


def steps_in(file: Path) -> int:
    events = json.loads(file.read_text())["traceEvents"]
    return sum(event.get("name") == "radixlm step" for event in events)


def test_a_profile_holds_the_steps_between_start_and_stop_up_to_a_limit(tmp_path: Path) -> None:
    profiler = Profiler(most_steps=3)
    for wanted, steps in ((2, 2), (3, 5), (0, 0)):
        with profiler.step():
            pass
        profiler.start()
        for _ in range(steps):
            with profiler.step(), profiler.region("forward"):
                pass
        profiler.stop(tmp_path / "trace.json")
        assert steps_in(tmp_path / "trace.json") == wanted


def test_a_step_that_raises_leaves_the_profile_as_it_is(tmp_path: Path) -> None:
    profiler = Profiler()
    profiler.start()
    with pytest.raises(KeyError), profiler.step():
        raise KeyError
    with profiler.step():
        pass
    profiler.stop(tmp_path / "trace.json")
    assert steps_in(tmp_path / "trace.json") == 2


def test_there_is_one_profile_at_a_time(tmp_path: Path) -> None:
    profiler = Profiler()
    with pytest.raises(InvalidRequest, match="none was started"):
        profiler.stop(tmp_path / "trace.json")
    profiler.start()
    with pytest.raises(InvalidRequest, match="already"):
        profiler.start()
    profiler.stop(tmp_path / "trace.json")
    with pytest.raises(InvalidRequest, match="none was started"):
        profiler.stop(tmp_path / "trace.json")
