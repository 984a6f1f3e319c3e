"""Branches: what they share, how they differ, every way to join them, and what backends are told of each."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import radixlm as rx
from radixlm.frontend.errors import BackendError, BranchFailed, Cancelled, InvalidCall
from radixlm.frontend.group import Poll
from radixlm.frontend.scripted import Scripted
from testkit.gated_backend import GatedBackend


def run(body, backend=None, **options):
    """The state of a program of this body."""
    return rx.function(body).run(backend=backend or Scripted(lambda prompt: prompt.upper()), **options)


def branches_of(s, *texts):
    """A group of one branch for each text, which it begins with before it generates x."""
    group = s.fork(len(texts))
    group += list(texts)
    group += rx.gen("x")
    return group


def failing_at(*endings):
    """Replies with the last character twice, and fails at these."""
    return lambda prompt: BackendError(f"at {prompt[-1]}") if prompt.endswith(endings) else prompt[-1] * 2


def test_a_branch_goes_on_from_where_its_parent_was() -> None:
    def body(s):
        s += "A" + rx.gen("x")
        forks = s.fork(2)
        s += "later"
        forks[0] += "B" + rx.gen("y")
        forks[1] += "C" + rx.gen("y")
        assert [fork.text() for fork in forks] == ["AaB!", "AaC!"]
        assert forks[0]["x"] == "a"

    backend = Scripted(lambda prompt: "a" if prompt == "A" else "!")
    assert run(body, backend).text() == "Aalater"
    assert sorted(backend.prompts) == ["A", "AaB", "AaC"]


def test_branches_of_nothing_are_branches() -> None:
    """Trap 11, here for the core: a fork of an empty state."""

    def body(s):
        forks = s.fork(2)
        forks += rx.gen("x")
        forks.join()

    backend = Scripted(["1", "2"])
    assert run(body, backend)["x"] == ["1", "2"]
    assert [call.asked.parts for call in backend.calls] == [(), ()]


def test_a_group_is_indexed_iterated_and_counted() -> None:
    def body(s):
        forks = s.fork(3)
        assert len(forks) == 3
        assert list(forks) == [forks[0], forks[1], forks[2]]
        assert forks[-1] is forks[2]
        forks += "a"
        forks += ["b", "c", rx.gen("x")]
        forks += lambda index: str(index) + "!"
        forks[1] += "d"
        assert [fork.text() for fork in forks] == ["ab0!", "ac1!d", "aA2!"]
        with pytest.raises(InvalidCall, match="a list for a group of 3 must have as many items, got 2"):
            forks += ["a", "b"]
        with pytest.raises(InvalidCall, match="cannot be replaced"):
            forks[0] = forks[1]
        with pytest.raises(IndexError):
            forks[3]

    run(body)


@pytest.mark.parametrize("size", [0, -1, 4097, "2", True, 1.0])
def test_a_fork_takes_a_number(size) -> None:
    with pytest.raises(InvalidCall, match="fork takes a number from 1 to 4096, got"):
        run(lambda s: s.fork(size))


def test_joined_variables_are_lists_in_the_order_of_the_branches() -> None:
    backend = GatedBackend(lambda prompt: prompt[-1] * 2)
    backend.shut("a")

    def body(s):
        branches_of(s, "a", "b").join()
        backend.wait_until_came("a")
        backend.open("a")
        assert s["x"] == ["aa", "bb"]

    assert run(body, backend).text() == ""


def test_a_join_returns_at_once_and_can_be_waited_for() -> None:
    backend = GatedBackend("reply")
    backend.shut("a")

    def body(s):
        joined = branches_of(s, "a", "b").join()
        assert "x" in s
        backend.wait_until_came("a")
        backend.open("a")
        assert joined.wait() == joined.winners == [0, 1]

    run(body, backend)


def test_each_variable_that_any_branch_set_becomes_a_list() -> None:
    def body(s):
        forks = s.fork(2)
        forks[0].set_var("only", 5)
        forks[0] += rx.gen("x")
        forks[1] += rx.gen("x") + rx.gen("y")
        forks.join()

    state = run(body, Scripted("r"))
    assert (state["only"], state["x"], state["y"]) == ([5, None], ["r", "r"], [None, "r"])


def test_a_failed_branch_gives_none_in_its_place() -> None:
    state = run(lambda s: branches_of(s, "a", "b", "c").join(), Scripted(failing_at("b")))
    assert state["x"] == ["aa", None, "cc"]
    assert state.error() is None


def test_a_branch_that_fails_late_gives_what_it_had() -> None:
    def body(s):
        forks = s.fork(2)
        forks += rx.gen("x")
        forks[0] += "b" + rx.gen("y")
        forks[1] += "c" + rx.gen("y")
        joined = forks.join()
        assert s["y"] == [None, "cc"]
        assert s["x"] == [None, "rr"]
        assert joined.winners == [1]

    run(body, Scripted(lambda prompt: "rr" if not prompt else failing_at("b")(prompt)))


def test_a_join_gathers_a_name_that_the_parent_has_already() -> None:
    """Trap 7: both joins are gathered, and the newest list is the value."""

    def body(s):
        s.set_var("x", "old")
        forks = branches_of(s, "a", "b")
        forks.join()
        assert s["x"] == ["aa", "bb"]
        branches_of(s, "c", "d").join()
        assert s["x"] == ["cc", "dd"]

    run(body, Scripted(failing_at("!")))


def test_what_branches_inherited_is_not_gathered() -> None:
    def body(s):
        s.set_var("old", 1)
        branches_of(s, "a", "b").join()
        assert s["old"] == 1

    run(body)


def test_a_join_brings_what_was_appended_before_it_whenever_it_runs() -> None:
    def body(s):
        forks = branches_of(s, "a", "b")
        forks.join()
        forks += rx.gen("late")
        for fork in forks:
            fork.sync()
        s.sync()
        assert "late" not in s
        assert s["x"] == ["A", "B"]

    run(body)


def test_a_fork_after_a_join_has_the_lists() -> None:
    def body(s):
        branches_of(s, "a", "b").join()
        child = s.copy()
        assert "x" in child
        assert child["x"] == ["A", "B"]

    run(body)


def test_texts_are_appended_in_order_without_those_of_failed_branches() -> None:
    def body(s):
        s += "["
        forks = branches_of(s, "a", "b", "c")
        s += "|"
        forks.join("concate_and_append")
        s += "]" + rx.gen("end")

    backend = Scripted(failing_at("b"))
    state = run(body, backend)
    assert state.text() == "[|aaaccc]]]"
    assert "x" not in state
    assert backend.calls[-1].asked.parts == ("[|a", (97, 97), "c", (99, 99), "]")


def test_texts_of_branches_go_on_in_the_block_they_began_in() -> None:
    def body(s):
        with s.assistant():
            s += "1"
            branches_of(s, "a", "b").join("concate_and_append")
            s += "2"

    state = run(body, Scripted(failing_at("!")))
    assert state.messages() == [{"role": "assistant", "content": "1aaabbb2"}]
    assert state.text() == "ASSISTANT: 1aaabbb2\n"


def test_blocks_of_branches_become_messages_of_the_parent() -> None:
    def body(s):
        s += rx.system("S")
        forks = s.fork(2)
        forks += [rx.user("a"), rx.assistant("b")]
        forks.join("concate_and_append")

    assert [message["content"] for message in run(body).messages()] == ["S", "a", "b"]


def test_branches_that_leave_a_block_open_cannot_be_appended() -> None:
    def body(s):
        forks = s.fork(1)
        forks += rx.user_begin() + "text"
        forks.join("concate_and_append")

    assert "ended in the user block" in str(run(body).error())

    def other(s):
        s += rx.user_begin()
        forks = s.fork(1)
        forks += rx.user_end()
        forks.join("concate_and_append")

    assert "end where they began, in the user block" in str(run(other).error())


def test_the_first_branch_wins_and_the_others_are_aborted() -> None:
    backend = GatedBackend(lambda prompt: prompt[-1] * 2)
    backend.shut("a", "c")

    def body(s):
        forks = branches_of(s, "a", "b", "c")
        backend.wait_until_came("a", "c")
        joined = forks.join("first")
        assert s["x"] == "bb"
        assert joined.winners == [1]
        backend.wait_until_aborted("a", "c")
        for loser in (forks[0], forks[2]):
            assert isinstance(loser.error(), Cancelled)
            with pytest.raises(Cancelled, match="the join that it was forked for had what it needed"):
                loser["x"]
        s.set_var("names", [fork.branch.program_id for fork in forks])

    state = run(body, backend)
    backend.wait_until_ended(3)
    assert [backend.endings()[name] for name in state["names"]] == ["cancelled", "done", "cancelled"]


def test_a_failed_branch_is_not_the_first() -> None:
    backend = GatedBackend(failing_at("a"))
    backend.shut("b")

    def body(s):
        forks = branches_of(s, "a", "b")
        joined = forks.join("first")
        assert forks[0].error() is not None
        backend.open("b")
        assert joined.winners == [1]
        assert s["x"] == "bb"

    run(body, backend)


def test_a_first_join_of_branches_that_all_fail_fails_with_the_cause() -> None:
    state = run(lambda s: branches_of(s, "a", "b").join("first"), Scripted(failing_at("a", "b")))
    with pytest.raises(
        BranchFailed, match=r"0 of 2 branches succeeded, 1 needed; the first that failed: at a"
    ):
        state["x"]
    assert isinstance(state.error().__cause__, BackendError)


def test_k_of_n_takes_the_first_k_in_the_order_of_branches() -> None:
    backend = GatedBackend(lambda prompt: prompt[-1] * 2)
    backend.shut("a", "b")

    def body(s):
        forks = branches_of(s, "a", "b", "c")
        forks[2].sync()
        joined = forks.join(rx.k_of_n(2))
        backend.wait_until_came("a", "b")
        backend.open("b")
        assert joined.winners == [1, 2]
        assert s["x"] == ["bb", "cc"]
        assert [meta["completion_tokens"] for meta in s.get_meta_info("x")] == [2, 2]
        backend.wait_until_aborted("a")

    run(body, backend)


def test_k_of_n_fails_if_too_few_succeed() -> None:
    state = run(lambda s: branches_of(s, "a", "b").join(rx.k_of_n(2)), Scripted(failing_at("b")))
    with pytest.raises(
        BranchFailed, match="1 of 2 branches succeeded, 2 needed; the first that failed: at b"
    ):
        state["x"]


def test_a_vote_is_over_once_nothing_can_change_it() -> None:
    backend = GatedBackend(lambda prompt: "yes " if prompt[-1] in "acd" else "no")
    backend.shut("c", "d", "e")

    def body(s):
        forks = branches_of(s, "a", "b", "c", "d", "e")
        forks[0].sync()
        forks[1].sync()
        joined = forks.join(rx.vote("x"))
        backend.wait_until_came("c", "d", "e")
        backend.open("c")
        forks[2].sync()
        assert "e" not in backend.aborted  # two to one, and two are open
        backend.open("d")
        assert joined.winners == [0]
        assert s["x"] == "yes "
        backend.wait_until_aborted("e")

    run(body, backend)


def test_of_values_with_as_many_votes_that_of_the_earliest_branch_wins() -> None:
    state = run(lambda s: branches_of(s, "a", "b", "c", "d").join(rx.vote("x")), Scripted(failing_at("a")))
    assert state["x"] == "bb"


def test_a_vote_counts_by_the_key_it_is_given() -> None:
    def body(s):
        branches_of(s, "a", "b", "c").join(rx.vote("x", key=lambda text: text in ("bb", "cc")))

    assert run(body, Scripted(failing_at("!")))["x"] == "bb"


def test_a_vote_whose_key_fails_fails_the_join() -> None:
    state = run(lambda s: branches_of(s, "a").join(rx.vote("x", key=lambda text: 1 / 0)))
    with pytest.raises(BranchFailed, match="ZeroDivisionError"):
        state["x"]


def test_a_key_that_ends_the_interpreter_does_not_end_the_loop() -> None:
    def leave(text):
        raise SystemExit

    assert isinstance(run(lambda s: branches_of(s, "a").join(rx.vote("x", key=leave))).error(), SystemExit)
    assert run(lambda s: s.append("a" + rx.gen("x")))["x"] == "A"


def test_a_vote_on_what_a_branch_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(InvalidCall, match=r"vote\('y'\): branch 0 has no such variable; its variables are x"):
        run(lambda s: branches_of(s, "a").join(rx.vote("y")))


@pytest.mark.parametrize("mode", ["gather", None, 3, rx.k_of_n(4)])
def test_unknown_joins_are_refused_and_quoted(mode) -> None:
    with pytest.raises(
        InvalidCall, match=r"join takes gather_variable, .*got|k_of_n\(4\) cannot be had of 3"
    ):
        run(lambda s: s.fork(3).join(mode))


@pytest.mark.parametrize("count", [0, -1, "2", True, None])
def test_k_of_n_takes_a_number(count) -> None:
    with pytest.raises(InvalidCall, match="k_of_n needs an integer of at least 1, got"):
        rx.k_of_n(count)
    with pytest.raises(InvalidCall, match="vote needs the name of a variable, got ''"):
        rx.vote("")


def test_a_group_that_is_given_up_is_aborted_at_once_and_cannot_go_on() -> None:
    backend = GatedBackend("reply")
    backend.shut("a", "b")

    def body(s):
        forks = branches_of(s, "a", "b")
        inner = forks[0].fork(1)
        backend.wait_until_came("a", "b")
        forks.cancel()
        backend.wait_until_aborted("a", "b")
        for branch in (forks[0], forks[1], inner[0]):
            assert isinstance(branch.error(), Cancelled)
            branch += rx.gen("y")
            with pytest.raises(Cancelled, match="its group was given up"):
                branch["y"]
        s += "goes on" + rx.gen("z")

    state = run(body, backend)
    assert state["z"] == "reply"
    assert len(backend.came) == 2


@pytest.mark.parametrize("_", range(20))
def test_cancelling_what_has_just_been_queued_leaves_nothing_waiting(_) -> None:
    def body(s):
        forks = s.fork(8)
        forks += "a" + rx.gen("x")
        forks.cancel()
        for fork in forks:
            fork.sync()

    state = run(body)
    state.sync()
    assert state.error() is None


def test_branches_that_had_ended_keep_their_values_when_they_are_given_up() -> None:
    def body(s):
        forks = branches_of(s, "a", "b")
        assert [fork["x"] for fork in forks] == ["A", "B"]
        forks.cancel()
        assert [fork["x"] for fork in forks] == ["A", "B"]

    run(body)


def test_what_was_forked_off_a_loser_is_aborted_and_told_with_it() -> None:
    backend = GatedBackend("reply")
    backend.shut("deep")

    def body(s):
        forks = s.fork(2)
        forks[0] += "quick" + rx.gen("x")
        forks[1] += "slow"
        inner = forks[1].fork(2)
        inner[0] += "deep" + rx.gen("y")
        inner.join()
        s.set_var("name", inner[0].branch.program_id)
        backend.wait_until_came("deep")
        forks[0].sync()
        forks.join("first")
        backend.wait_until_aborted("deep")

    state = run(body, backend)
    backend.wait_until_ended(2)
    assert backend.endings()[state["name"]] == "cancelled"


def test_forks_of_forks_are_joined_level_by_level() -> None:
    def body(s):
        outer = s.fork(2)
        outer += ["a", "b"]
        for each in outer:
            inner = each.fork(2)
            inner += ["1", "2"]
            inner += rx.gen("x")
            inner.join()
        outer.join()
        assert s["x"] == [["A1", "A2"], ["B1", "B2"]]

    run(body)


def test_a_nested_join_that_fails_gives_none_in_the_outer_one() -> None:
    def body(s):
        outer = s.fork(2)
        outer += ["a", "b"]
        for each in outer:
            branches_of(each, "c", "d").join("first")
        outer.join()
        found = s["x"]
        assert found[0] is None
        assert found[1] in ("cc", "dd")

    run(body, Scripted(lambda prompt: failing_at("ac", "ad")(prompt)))


def test_a_parent_that_failed_before_the_fork_fails_its_branches_with_the_cause() -> None:
    def body(s):
        s += "a" + rx.gen("y")
        forks = branches_of(s, "b")
        forks.join()
        with pytest.raises(BranchFailed, match="at a") as caught:
            forks[0]["x"]
        assert isinstance(caught.value.__cause__, BackendError)
        with pytest.raises(BranchFailed, match="at a"):
            s["x"]

    run(body, Scripted(failing_at("a")))


def test_a_parent_that_fails_after_the_fork_leaves_its_branches_alone() -> None:
    def body(s):
        forks = branches_of(s, "b")
        s += "a" + rx.gen("y")
        assert s.error() is not None
        assert forks[0]["x"] == "bb"

    run(body, Scripted(failing_at("a")))


def test_a_group_can_be_joined_more_than_once() -> None:
    def body(s):
        forks = branches_of(s, "a", "b")
        forks.join()
        forks += lambda index: f" {index} " + rx.gen("y")
        forks.join()
        assert s["y"] == ["aA 0 !", "bB 1 !"] or len(s["y"]) == 2
        forks.join("concate_and_append")

    assert run(body).text().count("A") >= 1


def test_a_copy_goes_on_by_itself() -> None:
    def body(s):
        s += "A"
        other = s.copy()
        other += "B" + rx.gen("x")
        s += "C"
        assert other.text() == "ABAB"
        assert "x" not in s

    assert run(body).text() == "AC"


def test_a_copy_in_a_with_statement_is_joined_at_its_end() -> None:
    def body(s):
        s += "A"
        for _ in range(2):
            with s.copy() as other:
                other += "B" + rx.gen("x")
                assert other["x"] == "AB"
            assert s["x"] == ["AB"]

    backend = Scripted(lambda prompt: prompt.upper())
    assert run(body, backend).text() == "A"


def test_the_calls_of_a_branch_say_whose_they_are() -> None:
    def body(s):
        s += "A" + rx.gen()
        forks = s.fork(2)
        forks += "B" + rx.gen()
        more = s.fork(1)
        more += "C" + rx.gen()

    backend = Scripted("reply")
    root = run(body, backend).branch.program_id
    backend.wait_for_calls(4)
    hints = [call.asked.hint for call in sorted(backend.calls, key=lambda call: call.prompt)]
    assert (hints[0].program_id, hints[0].parent_id, hints[0].fork_group) == (root, "", "")
    assert {hint.parent_id for hint in hints[1:]} == {root}
    assert len({hint.program_id for hint in hints}) == 4
    assert sorted(Counter(hint.fork_group for hint in hints[1:]).values()) == [1, 2]


def test_two_runs_never_have_the_same_names() -> None:
    backend = Scripted("reply")
    for _ in range(2):
        run(lambda s: s.append(rx.gen()), backend).sync()
    first, second = (call.asked.hint.program_id for call in backend.calls)
    assert first != second


def test_names_stay_short_at_any_depth() -> None:
    def body(s):
        for _ in range(300):
            s = s.copy()
        s += rx.gen("x")
        s.sync()

    backend = Scripted("reply")
    run(body, backend)
    (call,) = backend.calls
    assert all(len(name) < 40 for name in (call.asked.hint.program_id, call.asked.hint.fork_group))


def test_each_branch_that_asked_is_told_to_be_over_once() -> None:
    def body(s):
        s += "A" + rx.gen()
        forks = branches_of(s, "a", "b", "c")
        forks.join()
        s.fork(2)  # ask for nothing
        loose = branches_of(s, "d")
        assert len(loose) == 1

    backend = GatedBackend(failing_at("b"))
    state = run(body, backend)
    backend.wait_until_ended(5)
    state.sync()
    assert len(backend.endings()) == 5
    assert set(backend.endings().values()) == {"done"}


def test_a_body_that_raises_cancels_all_its_branches() -> None:
    def body(s):
        s += "A" + rx.gen()
        s.sync()
        branches_of(s, "a", "b")
        backend.wait_until_came("a", "b")
        raise ValueError("no")

    backend = GatedBackend("reply")
    backend.shut("a", "b")
    with pytest.raises(ValueError, match="no"):
        run(lambda s: body(s), backend)
    backend.wait_until_aborted("a", "b")
    backend.wait_until_ended(3)
    assert set(backend.endings().values()) == {"cancelled"}


def test_a_branch_draws_with_a_seed_of_its_own_and_the_same_in_every_run() -> None:
    def body(s):
        s += "A" + rx.gen()
        forks = s.fork(2)
        forks += "B" + rx.gen()
        inner = forks[0].fork(1)
        inner += "C" + rx.gen()
        s += "D" + rx.gen()

    def seeds(**options):
        backend = Scripted("r")
        run(body, backend, **options)
        backend.wait_for_calls(5)
        for_branches = [[], [], []]
        for call in backend.calls:
            for_branches["ABC".index(call.prompt[-1]) if call.prompt[-1] in "ABC" else 0].append(
                call.asked.sampling.seed
            )
        return [sorted(each, key=str) for each in for_branches]

    root, forked, inner = seeds(seed=7)
    assert root == [7, 7]
    assert len({7, *forked, *inner}) == 4
    assert all(0 <= seed < 2**63 for seed in (*forked, *inner))
    assert seeds(seed=7) == [root, forked, inner]
    assert seeds(seed=8) != [root, forked, inner]
    assert seeds() == [[None, None], [None, None], [None]]


def test_a_seed_of_one_generation_is_told_apart_by_branch_too() -> None:
    def body(s):
        forks = s.fork(2)
        forks += rx.gen("x", seed=3)

    backend = Scripted("r")
    run(body, backend)
    backend.wait_for_calls(2)
    first, second = (call.asked.sampling.seed for call in backend.calls)
    assert first != second


def test_a_thousand_branches_run_at_once_and_take_no_threads() -> None:
    backend = GatedBackend("reply")
    backend.shut("a")

    def body(s):
        before = threading.active_count()
        forks = s.fork(1000)
        forks += "a" + rx.gen("x")
        forks.join()
        backend._wait(lambda: len(backend.came) == 1000)
        assert threading.active_count() <= before + 1
        backend.open("a")
        assert s["x"] == ["reply"] * 1000

    run(body, backend)


def test_a_thousand_branches_one_below_the_other() -> None:
    def body(s):
        before = threading.active_count()
        chain = [s]
        for _ in range(1000):
            chain.append(chain[-1].copy())
            chain[-1] += "a"
        chain[-1] += rx.gen("x")
        assert chain[-1]["x"] == "A" * 1000
        assert threading.active_count() <= before + 1
        chain[1] += rx.gen("y")

    run(body).sync()


def test_a_chain_of_a_thousand_branches_is_cancelled_as_one() -> None:
    backend = GatedBackend("reply")
    backend.shut("a" * 1000)

    def body(s):
        group = s.fork(1)
        last = group[0]
        for _ in range(1000):
            last = last.copy()
            last += "a"
        last += rx.gen("x")
        backend.wait_until_came("a" * 1000)
        group.cancel()
        backend.wait_until_aborted("a" * 1000)
        with pytest.raises(Cancelled):
            last["x"]

    run(body, backend)


def test_a_vote_looks_at_each_ballot_a_few_times_and_not_once_more_for_each_other() -> None:
    looks = 0

    class Ballot:
        def __init__(self, value: object) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Ballot) and self.value == other.value

        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return hash(self.value)

    @rx.function
    def body(s):
        forks = s.fork(200)
        for place, fork in enumerate(forks):
            fork.set_var("x", place)
        return forks.join(rx.vote("x", key=Ballot)).wait()

    assert body.run(backend=Scripted("")).ret_value == [0]
    assert looks <= 2 * 200


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.randoms(), st.sets(st.integers(0, 7)))
def test_a_vote_is_over_as_soon_as_nothing_can_change_it(ballots, drawn, failed) -> None:
    order = list(range(len(ballots)))
    drawn.shuffle(order)
    poll = Poll()
    seen: dict[int, int] = {}
    for still_open, place in zip(reversed(range(len(order))), order, strict=True):
        if place not in failed:
            seen[place] = ballots[place]
            poll.count(place, ballots[place])
        counts = Counter(seen.values())
        best = min(seen, key=lambda each: (-counts[seen[each]], each), default=None)
        others = [count for ballot, count in counts.items() if best is None or ballot != seen[best]]
        certain = best is not None and (
            not still_open or counts[seen[best]] > max(others, default=0) + still_open
        )
        assert poll.winner(still_open) == (best if certain else None)
