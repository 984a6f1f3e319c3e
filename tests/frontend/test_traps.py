"""The twelve traps of the frontend that programs here were first written for, each a test that it is none.

Numbers are those of the specification. Those of backends are also tested where the backends are: 1 to 3 by
tests of choices and of endpoints, 4 by those of endpoints, 9 by those of HTTP calls; 8, 10 and 12 by those of
batches.
"""

from __future__ import annotations

import threading

import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, BranchFailed, TimedOut
from radixlm.frontend.protocol import ScoreCall
from radixlm.frontend.scripted import Scripted
from testkit.gated_backend import GatedBackend


@pytest.mark.parametrize(
    "method",
    ["greedy_token_selection", "unconditional_likelihood_normalized", "token_length_normalized", "total"],
)
def test_trap_1_every_method_chooses_with_no_number_missing(method) -> None:
    """1: two of the methods failed on a live server, whose first log-probability was null."""
    backend = Scripted(scores={"yes": [-1.0, -1.0, -1.0], "no": [-3.0, -1.0]})
    state = rx.function(lambda s: s.append("Q" + rx.select("x", ["yes", "no"], choices_method=method))).run(
        backend=backend
    )
    assert state["x"] in ("yes", "no")
    assert state.get_meta_info("x")["method"] == method


def test_trap_2_unconditional_likelihoods_are_asked_for_with_the_call() -> None:
    """2: the unconditional call had no start position and got an empty list."""
    backend = Scripted(scores={"yes": -1.0, "no": -2.0})
    for method in (rx.unconditional_likelihood_normalized, rx.total):
        rx.function(lambda s, m=method: s.append("Q" + rx.select("x", ["yes", "no"], choices_method=m))).run(
            backend=backend
        ).sync()
    assert [call.asked.unconditional for call in backend.calls] == [True, False]


@pytest.mark.parametrize("prompt", ["", "Q", "Is it? y"])
def test_trap_3_a_choice_after_next_to_nothing_is_a_choice(prompt) -> None:
    """3: a prompt of one token, or one that merges with a choice, led to arithmetic on nulls."""
    backend = Scripted(scores={"yes": -1.0, "no": -2.0})
    state = rx.function(lambda s: s.append([prompt, rx.select("x", ["yes", "no"])])).run(backend=backend)
    assert state["x"] == "yes"
    assert isinstance(backend.calls[0].asked, ScoreCall)
    assert backend.prompts == [prompt]


def test_trap_4_several_texts_are_a_list() -> None:
    """4: a reply with several texts failed."""
    state = rx.function(lambda s: s.append("Q" + rx.gen("x", n=2))).run(backend=Scripted(["1", "2"]))
    assert (state["x"], state.text()) == (["1", "2"], "Q1")


def test_trap_5_a_list_of_stops_stays_as_it_was_given() -> None:
    """5: a stop list was appended to in place, and grew in every fork."""
    stops = ["\n"]

    @rx.function
    def body(s):
        forks = s.fork(3)
        for fork in forks:
            fork += rx.assistant(rx.gen("x", stop=stops))
            fork += rx.gen("y", stop=stops, dtype=int)
        forks.join()

    backend = Scripted(["a", "b", "c", "1", "2", "3"])
    state = body.run(backend=backend, stop=stops)
    state.sync()
    assert stops == ["\n"]
    assert {call.asked.sampling.stop for call in backend.calls if call.asked.sampling.regex is None} == {
        ("\n",)
    }


def test_trap_6_a_type_and_a_stop_that_is_a_text_go_together() -> None:
    """6: dtype=int together with stop as a plain text raised."""
    backend = Scripted("42")
    state = rx.function(lambda s: s.append(rx.gen("x", dtype=int, stop="."))).run(backend=backend)
    assert state.value("x") == 42
    stop = backend.calls[0].asked.sampling.stop
    assert stop[0] == "."
    assert len(stop) > 1


def test_trap_7_a_name_that_is_there_is_gathered_and_failures_shift_nothing() -> None:
    """7: a second join with a name already there was not gathered; a failed child shifted the indexes."""

    @rx.function
    def body(s):
        for _ in range(2):
            forks = s.fork(3)
            forks += ["a", "b", "c"]
            forks += rx.gen("x")
            forks.join()
            found.append(s["x"])
            broken.clear()

    broken = {"b"}
    found: list[object] = []
    body.run(backend=Scripted(lambda prompt: BackendError("no") if prompt in broken else prompt.upper()))
    assert found == [["A", None, "C"], ["A", "B", "C"]]


def test_trap_8_threads_that_trace_at_once_do_not_meet() -> None:
    """8: tracing was one state of the process."""

    def work(word: str) -> None:
        @rx.function
        def body(s, argument):
            for _ in range(50):
                s += word
            s += argument + rx.gen("x")

        for _ in range(20):
            found.append(body.trace().prefix_text() == word * 50)
            found.append(body.run("!", backend=backend).text() == word * 50 + "!r")

    backend = Scripted("r")
    found: list[bool] = []
    workers = [threading.Thread(target=work, args=(word,)) for word in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert found == [True] * 160


def test_trap_9_a_run_has_a_time_limit_and_a_state_has_no_thread() -> None:
    """9: there was no timeout, and a thread for every state."""
    backend = GatedBackend("reply")
    backend.shut("a")

    @rx.function
    def body(s):
        before = threading.active_count()
        forks = s.fork(100)
        forks += "a" + rx.gen("x")
        backend.wait_until_came("a")
        assert threading.active_count() <= before + 1
        forks[0].sync()
        forks[0]["x"]

    with pytest.raises(TimedOut):
        body.run(backend=backend, timeout=0.2)


def test_trap_10_what_goes_wrong_is_raised_with_its_cause() -> None:
    """10: an exception became a warning, and later a KeyError that hid the cause."""

    @rx.function
    def body(s):
        s += "Q" + rx.gen("x") + rx.gen("y")

    state = body.run(backend=Scripted(BackendError("it broke")))
    for read in (lambda: state["x"], lambda: state["y"], lambda: state["unheard"]):
        with pytest.raises(BranchFailed, match="it broke") as caught:
            read()
        assert not isinstance(caught.value, KeyError)
        assert isinstance(caught.value.__cause__, BackendError)
    assert str(state.error()) == "it broke"


def test_trap_11_a_fork_of_nothing_is_a_fork() -> None:
    """11: a fork of an empty state crashed the backend."""

    @rx.function
    def body(s):
        forks = s.fork(2)
        forks += rx.gen("x")
        forks.join()
        s += rx.gen("y")

    backend = Scripted("r")
    state = body.run(backend=backend)
    assert (state["x"], state["y"]) == (["r", "r"], "r")
    assert [call.asked.parts for call in backend.calls] == [()] * 3


def test_trap_12_a_call_is_made_when_its_turn_comes_whatever_others_share() -> None:
    """12: an order by longest prefix starved a cold request. The frontend holds no call back: branches with a
    common prefix that wait unanswered keep no other branch from being asked."""
    backend = GatedBackend("reply")
    backend.shut("hot")

    @rx.function
    def body(s):
        hot = s.fork(50)
        hot += "a long common text hot" + rx.gen("x")
        cold = s.copy()
        cold += "cold" + rx.gen("x")
        assert cold["x"] == "reply"
        backend.open("hot")

    body.run(backend=backend)
