"""What outlives what: runs inside runs, threads of bodies, generators that nobody has, holds, journals; and
what does not: branches, sessions, calls of a run that was interrupted."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

import radixlm as rx
from radixlm.frontend.branch import Branch
from radixlm.frontend.endpoint import RuntimeEndpoint
from radixlm.frontend.errors import BackendError, BranchFailed, TimedOut
from radixlm.frontend.loop import the_loop
from radixlm.frontend.protocol import Generated
from radixlm.frontend.scripted import Scripted
from radixlm.frontend.session import Session
from testkit.fake_http import Asked, Handler, fake_http


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


def test_a_block_that_was_left_open_is_collected_anywhere_without_a_deadlock() -> None:
    @rx.function
    def body(s):
        def parts():
            with s.user():
                yield

        for _ in range(1000):
            left = parts()
            next(left)
            cycle = [left]
            cycle.append(cycle)  # so that only a collection ends it, wherever one comes
            del left, cycle
            s.fork(2).cancel()
        return "ok"

    before = gc.get_threshold()
    gc.set_threshold(7, 50, 1000)
    try:
        thread, done = in_thread(lambda: body.run(backend=Scripted("x")).ret_value)
        thread.join(60)
    finally:
        gc.set_threshold(*before)
    assert done == ["ok"]
    assert ask.run("again", backend=Scripted("fine"), timeout=10)["a"] == "fine"


def test_a_group_may_be_cancelled_by_code_of_its_own_actions() -> None:
    @rx.function
    def body(s, before):
        forks = s.fork(1)

        def method(*, choices, **_):
            forks.cancel()
            return choices[0]

        for _ in range(before):  # the cancel comes where the branch lets others have their turn
            forks += "t"
        forks += rx.select("a", ["x", "y"], choices_method=method)
        for _ in range(5):
            forks += "u"
        return str(forks[0].error())

    backend = Scripted("x", scores={"x": -1.0, "y": -2.0})
    for before in range(94, 99):
        thread, done = in_thread(lambda before=before: body.run(before, backend=backend).ret_value)
        thread.join(10)
        assert done == ["this branch was cancelled: its group was given up"]


def in_thread(function):
    """And what it gives, once it does."""
    done = []
    thread = threading.Thread(target=lambda: done.append(function()), daemon=True)
    thread.start()
    return thread, done


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


class Forgetful(Scripted):
    """Keeps nothing of its calls."""

    async def generate(self, call):
        found = await super().generate(call)
        self.calls.clear()
        return found


def until(holds: Callable[[], bool]) -> None:
    """`run` does not wait for what the loop does after the body."""
    for _ in range(100_000):
        if holds():
            return
        on_loop(lambda: None)
    raise AssertionError("it never holds")


def live(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("mode", ["first", "gather_variable", "concate_and_append", rx.vote("x"), None])
def test_branches_that_a_long_program_has_done_with_are_collected(mode: object) -> None:
    counts: list[int] = []

    @rx.function
    def body(s):
        for turn in range(300):
            forks = s.fork(4)
            forks += rx.gen("x")
            if mode is None:
                [fork["x"] for fork in forks]
            else:
                joined = forks.join(mode)
                joined.wait()
            if turn % 100 == 99:
                s.sync()
                counts.append(live(Branch))
        return joined.winners if mode is not None else []

    before = live(Branch)
    backend = Forgetful("reply")
    state = body.run(backend=backend)
    assert max(counts) - before < 30
    calls = state.cache_report().calls
    assert mode in ("first", rx.vote("x")) or len(calls) == 1200
    until(lambda: any(how == "done" for _, how in backend.ended))
    ended = [each for ids, _ in backend.ended for each in ids]
    assert len(ended) == len(set(ended)) >= len(calls)


def test_a_chain_of_copies_keeps_none_but_the_last() -> None:
    @rx.function
    def body(s):
        last = s
        for _ in range(300):
            last = last.copy()
            last += rx.gen("x")
            last["x"]
        return live(Branch)

    before = live(Branch)
    state = body.run(backend=Forgetful("reply"))
    assert state.ret_value - before < 10
    assert len(state.cache_report().calls) == 300


def test_a_branch_whose_parent_nobody_has_is_cancelled_with_the_family() -> None:
    backend = Scripted("reply")
    backend.pause()

    @rx.function
    def body(s):
        grandchild = s.fork(1)[0].fork(1)[0]
        grandchild += "a" + rx.gen("x")
        backend.wait_for_calls(1)
        gc.collect()
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        body.run(backend=backend)
    until(lambda: [call.state for call in backend.calls] == ["cancelled"])


def test_what_is_under_way_ends_though_nobody_has_its_branch() -> None:
    backend = Scripted("reply")
    backend.pause()

    @rx.function
    def body(s):
        s.copy().append("a" + rx.gen("x"))
        backend.wait_for_calls(1)
        gc.collect()
        backend.resume()

    report = body.run(backend=backend).cache_report()
    assert [call.state for call in backend.calls] == ["answered"]
    assert [call.generated for call in report.calls] == [5]


# -- with a server


async def radix(asked: Asked) -> None:
    meta = {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 1}
    answers = {
        "/get_server_info": {"runtime": "radixlm", "version": "1"},
        "/generate": {"text": "a", "output_parts": [[7]], "meta_info": meta},
        "/chat_frame": {"before": "<", "after": ">"},
        "/end_programs": {},
    }
    await asked.json(answers[asked.path])


@contextmanager
def endpoint_on(handler: Handler) -> Iterator[RuntimeEndpoint]:
    """On a fake server that has a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()
    try:
        entered = asyncio.run_coroutine_threadsafe(stack.enter_async_context(fake_http(handler)), loop)
        endpoint = RuntimeEndpoint(entered.result(10).url)
        yield endpoint
        endpoint.close()
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_chats_of_any_length_leave_no_session_behind() -> None:
    @rx.function
    def chat(s, turns):
        for turn in range(turns):
            s += rx.user(f"{turn}?") + rx.assistant(rx.gen("a"))
        s["a"]

    before = live(Session)
    with endpoint_on(radix) as endpoint:
        for turns in range(1, 15):
            assert chat.run(turns, backend=endpoint).error() is None
        deadline = time.monotonic() + 10
        while live(Session) > before and time.monotonic() < deadline:
            on_loop(lambda: None)
        assert live(Session) == before


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_ctrl_c_ends_a_run_on_an_endpoint_and_leaves_nothing_running(kind: str) -> None:
    came, left = threading.Event(), threading.Event()

    async def hanging(asked: Asked) -> None:
        if asked.path != "/generate":
            return await radix(asked)
        came.set()
        await asked.gone()
        left.set()

    @rx.function
    async def waits(s):
        s += "a" + rx.gen("x")
        await s.var("x")

    @rx.function
    def waits_plainly(s):
        s += "a" + rx.gen("x")
        s["x"]

    def interrupt() -> None:
        assert came.wait(10)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    program = waits if kind == "async" else waits_plainly
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with endpoint_on(hanging) as endpoint:
            threading.Thread(target=interrupt, daemon=True).start()
            with pytest.raises(KeyboardInterrupt):
                program.run(backend=endpoint)
            assert left.wait(10)
    finally:
        signal.signal(signal.SIGINT, before)
    on_loop(lambda: None)
    assert not [task for task in asyncio.all_tasks(the_loop()) if "Branch" in repr(task.get_coro())]


# -- streams


class Telling(Scripted):
    """Tells with each token of a stream what it has told before, as log-probabilities are told."""

    async def stream(self, call):
        told: list[float] = []
        async for delta in super().stream(call):
            told = [*told, -1.0]
            yield dataclasses.replace(delta, meta={**delta.meta, "output_token_logprobs": told})


def test_what_is_told_beside_a_stream_takes_memory_in_proportion_to_its_length() -> None:
    def peak(tokens: int) -> int:
        backend = Telling("t" * tokens, piece=1)
        gc.collect()
        tracemalloc.start()
        try:
            state = ask.run("q", backend=backend, stream=True)
            assert sum(map(len, state.text_iter("a"))) == tokens
            state.sync()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    short, long = peak(1000), peak(4000)
    assert long < 8 * short  # of what grows with the square it would be 16 times
    assert long < 5_000_000
