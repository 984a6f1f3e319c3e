"""Async programs on the loop of whoever awaits them and on the programs' own; what may wait where."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

import radixlm as rx
from radixlm.frontend import loop
from radixlm.frontend.errors import BackendError, BranchFailed, Cancelled, TimedOut, UnknownVariable
from radixlm.frontend.scripted import Scripted
from radixlm.frontend.session import Defaults
from testkit.gated_backend import GatedBackend


def upper():
    return Scripted(lambda prompt: prompt[-1].upper())


def ident_of_the_loop():
    async def ident():
        return threading.get_ident()

    return loop.run_on_loop(ident()).result(10)


@rx.function
async def ask(s, question):
    s += question + rx.gen("answer")
    return await s.var("answer")


@rx.function
def ask_plainly(s, question):
    s += question + rx.gen("answer")
    return s["answer"]


@pytest.mark.parametrize("program", [ask, ask_plainly])
def test_both_kinds_of_bodies_are_run_and_awaited_alike(program) -> None:
    async def main():
        return await program.run_async("q", backend=upper())

    for state in (program.run("q", backend=upper()), asyncio.run(main())):
        assert state.ret_value == state["answer"] == "Q"
        assert state.text() == "qQ"


def test_an_async_body_runs_on_the_loop_that_awaits_it() -> None:
    seen = []

    @rx.function
    async def body(s):
        seen.append((asyncio.get_running_loop(), threading.get_ident()))
        s += "a" + rx.gen("x")
        await s.var("x")

    async def main():
        await body.run_async(backend=upper())
        state = await body.run_async(backend=upper(), stream=True)
        await state.sync_async()
        return asyncio.get_running_loop()

    mine = asyncio.run(main())
    assert seen == [(mine, threading.get_ident())] * 2
    body.run(backend=upper())
    assert seen[2] == (loop.the_loop(), ident_of_the_loop())


def test_an_awaited_run_is_over_so_that_reading_it_blocks_nobody() -> None:
    @rx.function
    async def inner(s):
        s += "a" + rx.gen("x")
        forks = s.fork(2)
        forks += "b" + rx.gen("y")
        forks.join()

    @rx.function
    async def outer(s):
        state = await inner.run_async(backend=upper())  # on the programs' loop, where nothing may block
        s.set_var("found", (state["x"], state["y"], state.text(), state.error(), "x" in state))

    assert outer.run(backend=upper())["found"] == ("A", ["B", "B"], "aA", None, True)


def test_the_same_calls_are_made_whether_awaited_or_not() -> None:
    def plain(s):
        s += "a" + rx.gen("x")
        forks = s.fork(2)
        forks += ["b", "c"]
        forks += rx.gen("y", n=2)
        forks.join()
        s += s["y"][0][1] + rx.select("z", ["1", "2"])

    async def awaited(s):
        s += "a" + rx.gen("x")
        forks = s.fork(2)
        forks += ["b", "c"]
        forks += rx.gen("y", n=2)
        await forks.join()
        s += (await s.var("y"))[0][1] + rx.select("z", ["1", "2"])

    def calls(body):
        backend = Scripted(lambda prompt: prompt[-1].upper(), scores={"1": -1.0, "2": -2.0})
        state = rx.function(body).run(backend=backend, seed=3)
        found = (state.text(), state["z"])
        made = [(call.prompt, getattr(call.asked, "sampling", None)) for call in backend.calls]
        return found, sorted(made, key=repr)

    assert calls(plain) == calls(awaited)


def test_what_is_there_may_be_read_in_an_async_body_once_it_was_waited_for() -> None:
    @rx.function
    async def body(s):
        s += rx.user("q") + rx.assistant(rx.gen("x"))
        await s.sync_async()
        assert s["x"] == "R"
        assert s.text() == "USER: q\nASSISTANT: R\n"
        assert len(s.messages()) == 2
        assert s.error() is None
        assert s.get_meta_info("x")["completion_tokens"] == 1
        assert s.cache_report().generated == 1
        assert "x" in s

    body.run(backend=Scripted("R"))


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s["x"],
        lambda s: s.text(),
        lambda s: s.sync(),
        lambda s: s.messages(),
        lambda s: s.error(),
        lambda s: s.get_meta_info("x"),
        lambda s: s.cache_report(),
        lambda s: s.text_iter("x"),
        lambda s: s.pin(5),
        lambda s: s.hold(5).__enter__(),
        lambda s: s.fork(2).join().wait() if s.branch.barrier() else None,
        lambda s: ask.run("q", backend=upper()),
    ],
)
def test_blocking_on_the_programs_loop_raises_and_does_not_hang(read) -> None:
    backend = GatedBackend("reply")
    backend.shut("a")

    @rx.function
    async def body(s):
        s += "a" + rx.gen("x")
        try:
            with pytest.raises(RuntimeError, match="async program can"):
                read(s)
        finally:
            backend.open("a")
        assert await s.var("x") == "reply"

    body.run(backend=backend)
    backend.shut("a")
    asyncio.run(body.run_async(backend=backend))


def test_a_plain_hold_in_an_async_body_says_what_to_write() -> None:
    @rx.function
    async def body(s):
        s += "text"
        with s.hold(5):
            pass

    backend = Scripted("reply")
    for run in (lambda: body.run(backend=backend), lambda: asyncio.run(body.run_async(backend=backend))):
        with pytest.raises(RuntimeError, match=r"use `async with s.hold\(\.\.\.\)`"):
            run()
    assert backend.calls == []


def test_a_plain_body_blocks_where_its_caller_waits_for_it_anyway() -> None:
    @rx.function
    def plain(s):
        s += "text" + rx.gen("x")
        with s.hold(5) as held:
            return s["x"], held.tokens > 0

    async def main():
        return plain.run(backend=Scripted("reply")).ret_value

    assert asyncio.run(main()) == ("reply", True)


def test_a_thread_of_an_async_body_may_block() -> None:
    @rx.function
    async def body(s):
        s += "a" + rx.gen("x")
        return await asyncio.to_thread(lambda: s["x"])

    assert asyncio.run(body.run_async(backend=Scripted("reply"))).ret_value == "reply"


def test_a_plain_program_that_waits_on_the_programs_loop_is_refused() -> None:
    @rx.function
    async def body(s):
        ask_plainly(s, "q")

    with pytest.raises(
        RuntimeError, match="variable 'answer' was not awaited before, and an async program cannot block"
    ):
        body.run(backend=upper())


def test_an_async_program_may_call_another_one_with_its_state() -> None:
    @rx.function
    async def body(s):
        s += await ask(s, "a")
        await ask(s, "b")

    assert body.run(backend=upper()).text() == "aAAbB"


def test_values_and_holds_and_joins_are_awaited() -> None:
    @rx.function
    async def body(s):
        s += "0123456789"
        async with s.hold(5) as held:
            assert held.tokens == 9
        assert await s.pin_async(5) == 9
        s += rx.gen_int("number")
        assert await s.value_async("number") == 7
        forks = s.fork(3)
        forks += rx.gen("x")
        assert await forks.join(rx.k_of_n(3)) == [0, 1, 2]

    backend = Scripted("7")
    body.run(backend=backend)
    assert backend.ended[0][1] == "released"


def test_a_reader_that_gives_up_leaves_the_value_to_the_others() -> None:
    backend = GatedBackend("reply")
    backend.shut("a")

    @rx.function
    async def body(s):
        s += "a" + rx.gen("x")
        forks = s.fork(1)
        joined = forks.join()
        for waits in (s.var("x"), s.value_async("x"), s.sync_async(), asyncio.wait_for(joined, None)):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(waits, 0.01)
        backend.open("a")
        assert await s.var("x") == "reply"
        assert await joined == [0]

    body.run(backend=backend)
    backend.shut("a")
    asyncio.run(body.run_async(backend=backend))


def test_a_branch_that_is_cancelled_before_its_parent_gets_there_leaves_that_alone() -> None:
    backend = GatedBackend("reply")
    backend.shut("a")

    @rx.function
    def body(s):
        s += "a" + rx.gen("x")
        forks = s.fork(2)  # which wait for their beginning
        backend.wait_until_came("a")
        forks.cancel()
        assert isinstance(forks[0].error(), Cancelled)
        backend.open("a")
        assert s["x"] == "reply"

    assert body.run(backend=backend).error() is None


def test_unknown_names_are_said_in_async_programs_too() -> None:
    @rx.function
    async def body(s):
        with pytest.raises(UnknownVariable, match="'x'; those of this state are none"):
            await s.var("x")

    body.run(backend=Scripted())


def test_errors_of_bodies_and_calls_are_raised_by_both_ways_to_run() -> None:
    @rx.function
    async def body(s):
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        body.run(backend=Scripted())
    with pytest.raises(ValueError, match="own"):
        asyncio.run(body.run_async(backend=Scripted()))
    for program in (ask, ask_plainly):
        with pytest.raises(BranchFailed, match="it broke"):
            asyncio.run(program.run_async("q", backend=Scripted(BackendError("it broke"))))


@pytest.mark.parametrize("program", [ask, ask_plainly])
def test_cancelling_an_awaited_run_cancels_what_it_has_under_way(program) -> None:
    backend = GatedBackend("reply")
    backend.shut("q")

    async def main():
        task = asyncio.create_task(program.run_async("q", backend=backend))
        await asyncio.to_thread(backend.wait_until_came, "q")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    backend.wait_until_aborted("q")
    backend.wait_until_ended(1)
    assert set(backend.endings().values()) == {"cancelled"}


def test_cancelling_a_run_whose_body_is_over_cancels_what_it_left() -> None:
    @rx.function
    async def body(s):
        s += "q" + rx.gen("x")

    backend = GatedBackend("reply")
    backend.shut("q")

    async def main():
        task = asyncio.create_task(body.run_async(backend=backend))
        await asyncio.to_thread(backend.wait_until_came, "q")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(main())
    backend.wait_until_aborted("q")


@pytest.mark.parametrize("program", [ask, ask_plainly])
def test_a_time_limit_holds_for_awaited_runs(program) -> None:
    backend = GatedBackend("reply")
    backend.shut("q")
    with pytest.raises(TimedOut, match=r"0\.05 s"):
        asyncio.run(program.run_async("q", backend=backend, timeout=0.05))
    with pytest.raises(TimedOut):
        program.run("q", backend=backend, timeout=0.05)


def test_a_time_limit_interrupts_an_async_body_wherever_it_waits() -> None:
    @rx.function
    async def body(s):
        await asyncio.Event().wait()  # a tool that never answers

    for run in (body.run, lambda **options: asyncio.run(body.run_async(**options))):
        with pytest.raises(TimedOut, match=r"0\.05 s"):
            run(backend=Scripted(), timeout=0.05)


def test_a_timeout_of_the_bodys_own_is_its_own_error() -> None:
    @rx.function
    async def body(s):
        raise TimeoutError("of a tool")

    with pytest.raises(TimeoutError, match="of a tool"):
        body.run(backend=Scripted(), timeout=30)


def test_a_launched_async_run_is_cancelled_wherever_it_waits() -> None:
    @rx.function
    async def body(s):
        started.set()
        await asyncio.Event().wait()

    started = threading.Event()
    run = body.launch((), Defaults(), Scripted())
    assert started.wait(10)
    run.cancel(Cancelled("no longer needed"))
    run.wait()
    assert str(run.state.error()) == "no longer needed"


def test_a_thousand_async_runs_at_once_take_no_threads() -> None:
    backend = GatedBackend("reply")
    backend.shut("q")

    async def main():
        loop.the_loop()
        before = threading.active_count()
        runs = [asyncio.create_task(ask.run_async("q", backend=backend)) for _ in range(1000)]
        while len(backend.came) < 1000:
            await asyncio.sleep(0)
        assert threading.active_count() <= before  # those of other tests may end meanwhile
        backend.open("q")
        return await asyncio.gather(*runs)

    assert {state["answer"] for state in asyncio.run(main())} == {"reply"}


def test_context_variables_of_the_caller_are_seen_by_bodies_on_threads() -> None:
    variable = contextvars.ContextVar("variable", default="none")

    @rx.function
    def body(s):
        s += variable.get()

    async def main():
        variable.set("seen")
        return (await body.run_async(backend=Scripted())).text()

    assert asyncio.run(main()) == "seen"


def test_a_plain_body_that_is_awaited_does_not_block_the_loop() -> None:
    backend = GatedBackend("reply")
    backend.shut("q")

    async def main():
        task = asyncio.create_task(ask_plainly.run_async("q", backend=backend))
        await asyncio.to_thread(backend.wait_until_came, "q")
        backend.open("q")  # which could not happen otherwise
        return (await task)["answer"]

    assert asyncio.run(main()) == "reply"


@rx.function
async def forked(s):
    forks = s.fork(2)
    forks += rx.gen("y")
    await s.sync_async()
    return await s.cache_report_async()


@pytest.mark.parametrize(
    ("act", "instead"),
    [
        (lambda s, backend: s["x"], "await it instead"),
        (lambda s, backend: s.text(), r"await s\.sync_async\(\) first"),
        (lambda s, backend: s.cache_report(), r"await s\.cache_report_async\(\)"),
        (lambda s, backend: ask_plainly.run("q", backend=backend), r"await run_async\(\.\.\.\) instead"),
        (lambda s, backend: ask.run("q", backend=backend), r"await run_async\(\.\.\.\) instead"),
        (lambda s, backend: ask_plainly.cache(backend), r"await asyncio\.to_thread\(program\.cache"),
        (lambda s, backend: rx.get_server_info(backend), r"await asyncio\.to_thread\(get_server_info"),
        (lambda s, backend: rx.flush_cache(backend), r"await asyncio\.to_thread\(flush_cache"),
    ],
)
def test_what_might_block_is_refused_in_async_bodies_whether_it_would_or_not(act, instead: str) -> None:
    @rx.function
    async def body(s):
        s.fork(1)
        s += "a" + rx.gen("x")
        while not s.branch.variables["x"].future.done():
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=instead):
            act(s, backend)

    for run in (body.run, lambda **options: asyncio.run(body.run_async(**options))):
        backend = Scripted("reply")
        run(backend=backend)
        assert len(backend.calls) == 1


def test_the_report_of_forks_can_be_awaited() -> None:
    assert len(forked.run(backend=Scripted("reply")).ret_value.calls) == 2
    assert len(asyncio.run(forked.run_async(backend=Scripted("reply"))).ret_value.calls) == 2


def test_states_of_runs_that_were_awaited_are_read_at_once_in_async_bodies() -> None:
    @rx.function
    async def body(s):
        [state] = await asyncio.to_thread(ask_plainly.run_batch, [("q",)], backend=upper())
        other = await ask_plainly.run_async("r", backend=upper())
        return state["answer"], state.text(), other["answer"], other.cache_report().generated

    for state in (body.run(backend=upper()), asyncio.run(body.run_async(backend=upper()))):
        assert state.ret_value == ("Q", "qQ", "R", 1)


def test_a_state_that_goes_on_after_its_run_has_to_be_awaited_again() -> None:
    @rx.function
    async def body(s):
        state = await ask_plainly.run_async("q", backend=upper())
        assert state.text() == "qQ"
        state += "r" + rx.gen("more")
        with pytest.raises(RuntimeError, match=r"await s\.sync_async"):
            state.text()
        await state.sync_async()
        return state.text()

    for state in (body.run(backend=upper()), asyncio.run(body.run_async(backend=upper()))):
        assert state.ret_value == "qQrR"


def test_a_plain_program_may_stream_in_an_async_body() -> None:
    @rx.function
    async def body(s):
        state = ask_plainly.run("q", backend=upper(), stream=True)
        return "".join([piece async for piece in state.text_async_iter()])

    assert body.run(backend=upper()).ret_value == "qQ"
    assert asyncio.run(body.run_async(backend=upper())).ret_value == "qQ"


def test_a_key_of_a_vote_may_read_what_the_body_has_read() -> None:
    @rx.function
    def body(s):
        s += "b" + rx.gen("known")
        known = s["known"]
        forks = s.fork(2)
        forks += "c" + rx.gen("x")
        forks.join(rx.vote("x", key=lambda text: (s["known"], text)))
        return known, s["x"]

    assert body.run(backend=upper()).ret_value == ("B", "C")
