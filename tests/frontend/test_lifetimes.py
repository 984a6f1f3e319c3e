"""What outlives what: runs inside runs, threads of bodies, generators that nobody has, holds, journals."""

from __future__ import annotations

import dataclasses
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, BranchFailed, TimedOut
from radixlm.frontend.loop import the_loop
from radixlm.frontend.protocol import Generated
from radixlm.frontend.scripted import Scripted


@dataclasses.dataclass
class City:
    name: str


@rx.function
def ask(s, x):
    s += f"{x}: " + rx.gen("a")


def on_loop(function) -> None:
    """Run it on the programs' loop, and wait."""
    done = threading.Event()
    the_loop().call_soon_threadsafe(lambda: (function(), done.set()))
    assert done.wait(10)


def test_a_stream_of_results_that_is_collected_on_the_loop_does_not_stop_it() -> None:
    def leave() -> None:
        results = ask.run_batch([(i,) for i in range(50)], backend=Scripted("x"), generator_style=True)
        next(results)
        cycle = [results]
        cycle.append(cycle)  # so that only a collection ends it

    gc.disable()
    try:
        leave()
        on_loop(gc.collect)
    finally:
        gc.enable()
    assert ask.run("again", backend=Scripted("fine"), timeout=10)["a"] == "fine"


def test_the_time_of_a_run_is_that_of_runs_inside_it() -> None:
    backend = Scripted("x")
    backend.pause()

    @rx.function
    def outer(s):
        return ask.run("inner", backend=backend)["a"]

    with pytest.raises(TimedOut):
        outer.run(backend=backend, timeout=0.1)
    assert [call.state for call in backend.calls] == ["cancelled"]


def test_the_time_of_a_run_is_that_of_batches_inside_it() -> None:
    backend = Scripted("x")
    backend.pause()

    @rx.function
    def outer(s):
        return [state["a"] for state in ask.run_batch([("one",), ("two",)], backend=backend)]

    with pytest.raises((TimedOut, BranchFailed)) as caught:
        outer.run(backend=backend, timeout=0.1)
    assert "took longer" in str(caught.value)


@pytest.mark.parametrize("way", ["run", "run_batch"])
def test_a_thread_of_the_body_may_read_the_state(way: str) -> None:
    @rx.function
    def body(s):
        s += "a" + rx.gen("x")
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(s.text).result(timeout=10)

    backend = Scripted("b")
    state = body.run(backend=backend) if way == "run" else body.run_batch([()], backend=backend)[0]
    assert state.ret_value == "ab"


def test_a_hold_of_a_state_whose_run_is_over_is_given_back() -> None:
    backend = Scripted("x")
    state = ask.run("q", backend=backend, timeout=10)
    state.sync()
    with state.hold(60):
        pass
    assert backend.ended[-1] == ((state.branch.program_id,), "released")


def test_a_pin_outlives_the_run() -> None:
    backend = Holding("x")

    @rx.function
    def body(s):
        s += "text" + rx.gen("a")
        assert s.pin(60) > 0

    [state] = body.run_batch([()], backend=backend)
    assert state.error() is None
    assert backend.ended == []


class Holding(Scripted):
    """Grants what is asked for."""

    async def generate(self, call):
        found = await super().generate(call)
        if call.hint.hold_s is None:
            return found
        return [dataclasses.replace(each, held_tokens=4) for each in found]


class Aborting(Scripted):
    """Aborts every text."""

    async def generate(self, call):
        return [Generated("half", ((1,),), "abort")]


def test_an_aborted_text_is_an_error_of_its_call_and_is_not_journaled(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    [state] = ask.run_batch([("q",)], backend=Aborting(), resume=path)
    assert isinstance(state.error().__cause__, BackendError)
    [again] = ask.run_batch([("q",)], backend=Scripted("whole"), resume=path)
    assert again["a"] == "whole"


def test_a_journal_keeps_lists_whose_values_are_no_plain_data(tmp_path: Path) -> None:
    @rx.function
    def body(s, x):
        s += f"{x}: "
        forks = s.fork(2)
        forks += rx.gen("city", json_schema=City)
        forks.join()
        return len(s["city"])

    backend, path = Scripted('{"name": "Rome"}'), tmp_path / "journal"
    first = body.run_batch([("a",), ("b",)], backend=backend, resume=path)
    asked = len(backend.calls)
    second = body.run_batch([("a",), ("b",)], backend=backend, resume=path)
    assert first[0].value("city") == [City("Rome"), City("Rome")]
    assert [state["city"] for state in second] == [state["city"] for state in first]
    assert len(backend.calls) == asked


def test_what_a_reply_raises_ends_its_branch_whatever_it_is() -> None:
    def reply(prompt: str) -> str:
        pytest.fail("no such prompt")

    with pytest.raises(BranchFailed, match="no such prompt"):
        ask.run("q", backend=Scripted(reply), timeout=10)["a"]


def test_choices_may_come_from_a_generator() -> None:
    found = rx.select("x", (text for text in ("a", "b")))
    assert found.choices == ("a", "b")


def test_many_texts_in_a_row_leave_others_their_turn() -> None:
    @rx.function
    def body(s):
        for _ in range(20_000):
            s += "x"
        s += rx.gen("a")

    backend = Scripted("y")
    assert len(body.run(backend=backend, timeout=60).text()) == 20_001
    assert backend.calls[0].asked.parts == ("x" * 20_000,)
