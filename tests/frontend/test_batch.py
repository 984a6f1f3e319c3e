"""run_batch: every item ends for itself, in order, within bounds, and what has finished is not lost."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pydantic import BaseModel

from radixlm.frontend.batch import Batch
from radixlm.frontend.batch_items import ItemFailed, read_items
from radixlm.frontend.errors import BranchFailed, InvalidCall, TimedOut, Unreachable
from radixlm.frontend.expressions import gen, gen_int, select
from radixlm.frontend.program import check_defaults, function
from radixlm.frontend.scripted import Scripted
from radixlm.frontend.state import ProgramState
from radixlm.frontend.types import Unreadable


@function
def echo(s: ProgramState, q: str, fail: bool = False) -> str:
    s += "Q: " + q + "\nA:" + gen("a")
    answer = s["a"]
    if fail:
        raise ValueError(f"no answer to {q}")
    return f"{answer}!"


@function
async def echo_async(s: ProgramState, q: str, fail: bool = False) -> str:
    s += "Q: " + q + "\nA:" + gen("a")
    answer = await s.var("a")
    if fail:
        raise ValueError(f"no answer to {q}")
    return f"{answer}!"


PROGRAMS = pytest.mark.parametrize("program", [echo, echo_async], ids=["plain", "async"])


def replying() -> Scripted:
    return Scripted(lambda prompt: "re " + prompt.removeprefix("Q: ").removesuffix("\nA:"))


def questions(count: int) -> list[dict[str, object]]:
    return [{"q": str(each)} for each in range(count)]


# -- results


@PROGRAMS
def test_results_come_in_the_order_of_the_items(program: object) -> None:
    states = program.run_batch(questions(50), backend=replying())  # type: ignore[attr-defined]
    assert [state["a"] for state in states] == [f"re {each}" for each in range(50)]
    assert states[7].text() == "Q: 7\nA:re 7"
    assert states[7].ret_value == "re 7!"
    assert states[7].error() is None


def test_an_item_may_be_a_tuple_of_arguments() -> None:
    states = echo.run_batch([("one",), ["two", False]], backend=replying())
    assert [state["a"] for state in states] == ["re one", "re two"]


def test_no_items_need_no_backend_and_give_no_results() -> None:
    assert echo.run_batch([]) == []
    assert list(echo.run_batch([], generator_style=True)) == []


def test_sampling_parameters_are_those_of_every_item() -> None:
    backend = replying()
    echo.run_batch(questions(2), backend=backend, max_new_tokens=7, temperature=0, stop="x")
    assert {call.asked.sampling.max_new_tokens for call in backend.calls} == {7}  # type: ignore[union-attr]
    assert {call.asked.sampling.stop for call in backend.calls} == {("x",)}  # type: ignore[union-attr]


def test_bound_arguments_are_given_to_every_item() -> None:
    states = echo.bind(fail=True).run_batch(questions(2), backend=replying())
    assert all(isinstance(state.error(), ItemFailed) for state in states)


# -- failures


@PROGRAMS
def test_an_item_that_fails_says_which_and_why_and_loses_no_other(program: object) -> None:
    items = [{"q": str(each), "fail": each == 3} for each in range(8)]
    states = program.run_batch(items, backend=replying())  # type: ignore[attr-defined]
    error = states[3].error()
    assert str(error) == "item 3 failed: ValueError: no answer to 3"
    assert isinstance(error.__cause__, ValueError)
    assert states[3].text() == "Q: 3\nA:re 3"
    others = [state["a"] for state in states if state.error() is None]
    assert others == [f"re {each}" for each in range(8) if each != 3]


def test_a_backend_that_fails_fails_the_item_with_its_own_words() -> None:
    def reply(prompt: str) -> str | Exception:
        return InvalidCall("too long") if "Q: 1\n" in prompt else "fine"

    states = echo.run_batch(questions(3), backend=Scripted(reply))
    assert str(states[1].error()) == "item 1 failed: InvalidCall: too long"
    with pytest.raises(BranchFailed) as caught:
        states[1]["b"]
    assert str(caught.value) == "not there, because item 1 failed: InvalidCall: too long"
    assert states[2]["a"] == "fine"


class _FailsBesideOthers(Scripted):
    """The fourth call fails; those before it wait until they are cancelled."""

    async def generate(self, call):  # type: ignore[no-untyped-def]
        if len(self.calls) == 3:
            raise InvalidCall("no")
        self.pause()
        return await super().generate(call)


@PROGRAMS
def test_raising_ends_the_batch_and_cancels_the_rest(program: object) -> None:
    backend = _FailsBesideOthers("never")
    with pytest.raises(ItemFailed, match="item 3 failed: InvalidCall: no"):
        program.run_batch(questions(100), backend=backend, num_threads=4, on_error="raise")  # type: ignore[attr-defined]
    assert [call.state for call in backend.calls] == ["cancelled"] * 3


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([{"q": "1"}, {"p": "2"}], "item 1 does not fit the program: .*; its parameters are q, fail"),
        ([()], "item 0 does not fit the program: missing a required argument: 'q'"),
        ([("1", True, "3")], "item 0 does not fit"),
        (["text"], "item 0 must be a dict or a tuple of arguments, got 'text'"),
        ({"q": "1"}, "a batch is a list of dicts or tuples of arguments, got {'q': '1'}"),
    ],
)
def test_items_that_do_not_fit_are_refused_before_anything_runs(batch: object, message: str) -> None:
    backend = replying()
    with pytest.raises(InvalidCall, match=message):
        echo.run_batch(batch, backend=backend)
    assert not backend.calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "num_threads must be 'auto' or at least 1, got 0"),
        ({"num_threads": True}, "num_threads"),
        ({"retries": -1}, "retries must be an integer of at least 0, got -1"),
        ({"on_error": "ignore"}, "on_error must be 'return' or 'raise', got 'ignore'"),
        ({"generator_style": "any"}, "generator_style must be a bool or 'finished'"),
        ({"progress_bar": "yes"}, "progress_bar must be a bool or 'always'"),
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": "5"}, "timeout must be a number of seconds above 0, got '5'"),
        ({"retries": "2"}, "retries must be an integer of at least 0, got '2'"),
        ({"resume": 5}, "resume must be the path of a file, got 5"),
        ({"resume": ""}, "resume must be the path of a file, got ''"),
        ({"resume": True}, "resume must be the path of a file, got True"),
        ({"progress_bar": []}, r"progress_bar must be a bool or 'always', got \[\]"),
        ({"on_error": ["raise"]}, r"on_error must be 'return' or 'raise', got \['raise'\]"),
        ({"num_threads": "4"}, "num_threads must be 'auto' or at least 1, got '4'"),
        ({"max_new_tokens": "3"}, "max_new_tokens must be an integer, got '3'"),
        ({"max_new_token": 3}, r"run_batch has no option 'max_new_token'; did you mean max_new_tokens\?"),
        ({"num_thread": 3}, r"run_batch has no option 'num_thread'; did you mean num_threads\?"),
        ({"colour": 3}, "run_batch has no option 'colour'; its options are max_new_tokens"),
    ],
)
def test_options_are_checked_before_anything_runs(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidCall, match=message):
        echo.run_batch([{"q": "1"}], backend=replying(), **options)


def test_an_async_program_is_told_that_it_cannot_wait_for_a_batch() -> None:
    @function
    async def outer(s: ProgramState) -> None:
        echo.run_batch(questions(2), backend=replying())

    with pytest.raises(RuntimeError, match="cannot wait for a batch"):
        outer.run(backend=replying())


# -- bounds, order


@PROGRAMS
def test_a_bounded_number_runs_at_once_with_few_threads_and_tasks(program: object) -> None:
    most = []

    def reply(prompt: str) -> str:
        most.append((threading.active_count(), len(asyncio.all_tasks())))
        return "x"

    before = threading.active_count()
    backend = Scripted(reply)
    program.run_batch(questions(2000), backend=backend, num_threads=8)  # type: ignore[attr-defined]
    assert max(threads for threads, _ in most) <= before + 8 + 3
    assert max(tasks for _, tasks in most) <= 4 * 8 + 8


@PROGRAMS
def test_items_start_subtree_by_subtree_and_a_cold_one_is_not_passed_over(program: object) -> None:
    stems = [f"{'Text about ' + name:64}" for name in ("ants", "bees", "cats")]
    items = [{"q": stems[each % 3] + str(each)} for each in range(9)]
    items.insert(1, {"q": f"{'cold':64}"})
    backend = replying()
    program.run_batch(items, backend=backend, num_threads=1)  # type: ignore[attr-defined]
    order = [items.index({"q": call.prompt[3:-3]}) for call in backend.calls]
    assert order == [0, 4, 7, 1, 2, 5, 8, 3, 6, 9]


def test_the_constant_prefix_is_read_once_before_the_items() -> None:
    @function
    def long(s: ProgramState, q: str) -> None:
        s += "An instruction of some length. " * 4 + q + gen("a")

    backend = Scripted("x")
    long.run_batch(questions(5), backend=backend)
    assert backend.prompts[0] == "An instruction of some length. " * 4
    assert backend.calls[0].asked.sampling.max_new_tokens == 0  # type: ignore[union-attr]
    assert len(backend.calls) == 6


def test_a_backend_that_cannot_read_ahead_runs_the_items_all_the_same() -> None:
    @function
    def long(s: ProgramState, q: str) -> None:
        s += "An instruction of some length. " * 4 + q + gen("a")

    backend = Scripted("x")
    backend.fail_next(Unreachable("not yet"))
    assert [state["a"] for state in long.run_batch(questions(3), backend=backend)] == ["x"] * 3


# -- streams of results


def test_states_come_one_by_one_in_order() -> None:
    states = echo.run_batch(questions(20), backend=replying(), generator_style=True)
    assert [state["a"] for state in states] == [f"re {each}" for each in range(20)]


def test_states_come_as_they_finish_with_their_places() -> None:
    backend = _HeldBack("Q: 0\n")
    states = echo.run_batch(questions(5), backend=backend, generator_style="finished", num_threads=5)
    places = []
    for place, state in states:
        places.append(place)
        assert state["a"] == f"re {place}"
        if len(places) == 4:
            backend.resume()
    assert sorted(places[:4]) == [1, 2, 3, 4]
    assert places[4] == 0


class _HeldBack(Scripted):
    """One prompt waits until it is let go."""

    def __init__(self, held: str) -> None:
        super().__init__(lambda prompt: "re " + prompt.removeprefix("Q: ").removesuffix("\nA:"))
        self._held = held
        self._go = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, call):  # type: ignore[no-untyped-def]
        self._loop = asyncio.get_running_loop()
        if self._held in "".join(part for part in call.parts if isinstance(part, str)):
            await self._go.wait()
        return await super().generate(call)

    def resume(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go.set)


@PROGRAMS
def test_leaving_a_stream_of_results_cancels_the_rest(program: object) -> None:
    backend = _HeldBack("Q: 5\n")
    states = program.run_batch(questions(1000), backend=backend, generator_style="finished", num_threads=3)  # type: ignore[attr-defined]
    for _ in itertools.islice(states, 2):
        pass
    states.close()
    count = len(backend.calls)
    assert count < 1000
    program.run_batch(questions(1), backend=backend)  # type: ignore[attr-defined]
    assert len(backend.calls) == count + 1


# -- again, and not forever


def run_all(program: object, items: list[object], backend: Scripted, **options: object) -> list[ProgramState]:
    """Without waiting between tries."""
    found = Batch(
        program,  # type: ignore[arg-type]
        read_items(program, items),  # type: ignore[arg-type]
        backend,
        check_defaults({}),
        at_once=4,
        backoff=0.0,
        **options,  # type: ignore[arg-type]
    )
    return [state for _, state in sorted(found.run(None, False), key=lambda each: each[0])]


def test_an_item_begins_again_where_the_backend_could_not_be_reached() -> None:
    backend = replying()
    backend.fail_next(Unreachable("busy"), times=3)
    (state,) = run_all(echo, [("1",)], backend, retries=3)
    assert state["a"] == "re 1"
    assert len(backend.calls) == 4


def test_an_item_gives_up_after_its_retries_and_says_why() -> None:
    backend = replying()
    backend.fail_next(Unreachable("busy"), times=9)
    (state,) = run_all(echo, [("1",)], backend, retries=2)
    assert str(state.error()) == "item 0 failed: Unreachable: busy"
    assert len(backend.calls) == 3


def test_other_failures_are_not_tried_again() -> None:
    backend = replying()
    backend.fail_next(InvalidCall("wrong"))
    (state,) = run_all(echo, [("1",)], backend, retries=5)
    assert "InvalidCall: wrong" in str(state.error())
    assert len(backend.calls) == 1


@PROGRAMS
def test_an_item_that_takes_too_long_is_cancelled_and_no_other(program: object) -> None:
    backend = _HeldBack("Q: 1\n")
    states = program.run_batch(questions(3), backend=backend, timeout=1.0)  # type: ignore[attr-defined]
    assert isinstance(states[1].error().__cause__, TimedOut)
    assert "item 1 failed: TimedOut" in str(states[1].error())
    assert [states[0]["a"], states[2]["a"]] == ["re 0", "re 2"]


def test_a_body_that_sleeps_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.frontend.batch._GRACE_SECONDS", 0.05)
    never = threading.Event()

    @function
    def sleeps(s: ProgramState, q: str) -> None:
        s += "Q: " + q + gen("a")
        s.sync()
        if q == "1":
            never.wait()

    states = sleeps.run_batch([("0",), ("1",), ("2",)], backend=Scripted("x"), timeout=1.0)
    assert [state.branch.error is None for state in states] == [True, False, True]
    assert isinstance(states[1].branch.error.__cause__, TimedOut)
    never.set()


# -- resuming


def test_what_has_finished_is_not_run_again_and_comes_as_it_was(tmp_path: Path) -> None:
    @function
    def rich(s: ProgramState, q: str) -> dict[str, str]:
        s.user("Q: " + q)
        with s.assistant():
            s += gen_int("n") + " " + select("c", ["yes", "no"]) + gen("many", n=2)
        s.set_var("own", {"q": q})
        return {"of": q}

    backend = Scripted({"ASSISTANT: ": "42", " ": "yes", "": "t"})
    path = tmp_path / "batch.jsonl"
    first = rich.run_batch([("a",), ("b",)], backend=backend, resume=path)
    assert [state.error() for state in first] == [None, None]
    count = len(backend.calls)
    again = rich.run_batch([("a",), ("b",)], backend=backend, resume=path)
    assert len(backend.calls) == count
    for old, new in zip(first, again, strict=True):
        assert new.error() is None
        assert new.text() == old.text()
        assert new.messages() == old.messages()
        assert new.ret_value == old.ret_value
        assert {name: new[name] for name in ("n", "c", "many", "own")} == {
            name: old[name] for name in ("n", "c", "many", "own")
        }
        assert new.value("n") == 42
        assert new.get_meta_info("n") == old.get_meta_info("n")
        assert new.get_meta_info("c")["scores"] == old.get_meta_info("c")["scores"]  # type: ignore[index]
        assert "".join(new.text_iter()) == old.text()


def test_failed_items_run_again_and_new_ones_too(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    backend = replying()
    backend.fail_next(Unreachable("busy"))
    first = echo.run_batch(questions(3), backend=backend, resume=path, num_threads=1)
    assert [state.error() is None for state in first] == [False, True, True]
    again = echo.run_batch(questions(4), backend=backend, resume=path)
    assert [state["a"] for state in again] == ["re 0", "re 1", "re 2", "re 3"]
    assert sorted(backend.prompts[3:]) == ["Q: 0\nA:", "Q: 3\nA:"]


def test_other_sampling_parameters_are_another_batch(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    echo.run_batch(questions(2), backend=replying(), resume=path)
    with pytest.raises(InvalidCall, match="of another batch: its program or its sampling parameters"):
        echo.run_batch(questions(2), backend=replying(), resume=path, temperature=0)
    with pytest.raises(InvalidCall, match="of another batch"):
        echo_async.run_batch(questions(2), backend=replying(), resume=path)


def test_a_journal_that_is_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    backend = replying()
    states = echo.run_batch(questions(3), backend=backend, resume=path, generator_style=True)
    next(states)
    with pytest.raises(InvalidCall, match="another process writes"):
        echo.run_batch(questions(3), backend=backend, resume=path)
    assert [state["a"] for state in states] == ["re 1", "re 2"]
    assert len(echo.run_batch(questions(3), backend=backend, resume=path)) == 3


class Answer(BaseModel):
    n: int


def test_values_that_are_no_plain_data_are_told_to_be_lost(tmp_path: Path) -> None:
    @function
    def structured(s: ProgramState, q: str) -> None:
        s += q + gen("a", json_schema=Answer)

    path = tmp_path / "batch.jsonl"
    (first,) = structured.run_batch([("a",)], backend=Scripted('{"n": 1}'), resume=path)
    assert first.value("a") == Answer(n=1)
    (again,) = structured.run_batch([("a",)], backend=Scripted("none"), resume=path)
    assert again["a"] == '{"n": 1}'
    with pytest.raises(Unreadable, match="a journal keeps no other: read its text"):
        again.value("a")


def test_an_item_whose_result_cannot_be_kept_fails_and_says_so(tmp_path: Path) -> None:
    @function
    def odd(s: ProgramState, q: str) -> None:
        s += q
        s.set_var("tool", object() if q == "b" else 1)

    states = odd.run_batch([("a",), ("b",)], backend=Scripted(), resume=tmp_path / "batch.jsonl")
    assert states[0].error() is None
    assert "resume keeps plain data alone, and variable 'tool' is none" in str(states[1].error())


CHILD = """
import os, signal, sys, json
from radixlm.frontend.expressions import gen
from radixlm.frontend.program import function
from radixlm.frontend.scripted import Scripted

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
path, after, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
count = 0

def reply(prompt):
    global count
    count += 1
    if count > after:
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == after + 1:
            backend.pause()
            os.kill(os.getpid(), signal.SIGINT)
    return "re " + prompt[3:-3]

BODY

backend = Scripted(reply)
try:
    states = echo.run_batch([{"q": str(i)} for i in range(40)], backend=backend, resume=path, num_threads=4)
except KeyboardInterrupt:
    print(json.dumps(sorted({call.state for call in backend.calls})))
else:
    print(json.dumps([count, [state["a"] for state in states]]))
"""
PLAIN = """
@function
def echo(s, q):
    s += "Q: " + q + "\\nA:" + gen("a")
"""
ASYNC = """
@function
async def echo(s, q):
    s += "Q: " + q + "\\nA:" + gen("a")
    await s.var("a")
"""


def child(body: str, path: Path, after: int, end: str) -> subprocess.CompletedProcess[str]:
    code = CHILD.replace("BODY", body)
    command = [sys.executable, "-P", "-c", code, str(path), str(after), end]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("body", [PLAIN, ASYNC], ids=["plain", "async"])
def test_a_batch_killed_in_the_middle_does_only_the_rest(tmp_path: Path, body: str) -> None:
    path = tmp_path / "batch.jsonl"
    assert child(body, path, 25, "kill").returncode == -9
    kept = len(path.read_text().splitlines()) - 1
    assert 25 - 4 <= kept <= 25
    with path.open("a") as file:  # as if the kill had come while a line was written
        file.write('{"index": 30, "it')
    done = child(body, path, 1000, "never")
    assert done.returncode == 0, done.stderr
    count, answers = json.loads(done.stdout)
    assert count == 40 - kept
    assert answers == [f"re {each}" for each in range(40)]


@pytest.mark.parametrize("body", [PLAIN, ASYNC], ids=["plain", "async"])
def test_ctrl_c_cancels_everything_and_leaves_the_journal_good(tmp_path: Path, body: str) -> None:
    path = tmp_path / "batch.jsonl"
    done = child(body, path, 25, "interrupt")
    assert done.returncode == 0, done.stderr
    assert "running" not in json.loads(done.stdout)
    done = child(body, path, 1000, "never")
    count, answers = json.loads(done.stdout)
    assert count <= 40 - 20
    assert answers == [f"re {each}" for each in range(40)]


# -- progress


def test_the_bar_counts_items_and_tokens_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    echo.run_batch(questions(3), backend=replying(), progress_bar=True)
    assert capsys.readouterr().err == ""  # no terminal
    echo.run_batch(questions(3), backend=replying(), progress_bar="always")
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "12 tokens" in shown


def test_without_tqdm_there_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    echo.run_batch(questions(3), backend=replying(), progress_bar="always")
    assert capsys.readouterr().err == "3 of 3 items, 12 tokens\n"


def test_batches_of_many_threads_do_not_disturb_each_other() -> None:
    def one(number: int) -> None:
        backend = replying()
        states = echo.run_batch([{"q": f"{number}.{each}"} for each in range(20)], backend=backend)
        found[number] = [state["a"] for state in states]

    found: dict[int, list[object]] = {}
    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [f"re {n}.{each}" for each in range(20)] for n in range(6)}
