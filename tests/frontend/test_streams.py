"""Texts as they come: of states and of variables, for plain and async readers, and when they break off."""

from __future__ import annotations

import asyncio
import threading

import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, BranchFailed, Cancelled, InvalidCall, UnknownVariable
from radixlm.frontend.protocol import Delta
from radixlm.frontend.scripted import Scripted
from testkit.gated_backend import GatedBackend


@rx.function
def two_turns(s, first, second):
    s += rx.user(first) + rx.assistant(rx.gen("one"))
    s += rx.user(second) + rx.assistant(rx.gen("two"))


TEXT = "USER: a\nASSISTANT: reply 1\nUSER: b\nASSISTANT: reply 2\n"


def start(**options):
    return two_turns.run("a", "b", backend=Scripted(["reply 1", "reply 2"]), **{"stream": True, **options})


def test_the_pieces_of_the_text_joined_are_the_text() -> None:
    state = start()
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == TEXT
    assert pieces.count("rep") == pieces.count("ly ") == 2


def test_the_pieces_of_a_variable_joined_are_its_value() -> None:
    state = start()
    assert list(state.text_iter("two")) == ["rep", "ly ", "2"]
    assert "".join(state.text_iter("one")) == state["one"] == "reply 1"


def test_any_number_of_readers_see_everything() -> None:
    state = start()
    found: list[str] = []
    readers = [threading.Thread(target=lambda: found.append("".join(state.text_iter()))) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(10)
    assert found == [TEXT] * 8
    assert "".join(state.text_iter()) == TEXT


def test_without_a_stream_the_text_comes_in_larger_pieces() -> None:
    state = start(stream=False)
    pieces = list(state.text_iter())
    assert "".join(pieces) == TEXT
    assert "reply 1" in pieces
    assert list(state.text_iter("two")) == ["reply 2"]


def test_async_readers_get_the_same_with_the_metadata_if_they_like() -> None:
    async def main():
        state = start()
        whole = [piece async for piece in state.text_async_iter()]
        pairs = [pair async for pair in state.text_async_iter(var_name="two", return_meta_data=True)]
        return whole, pairs

    whole, pairs = asyncio.run(main())
    assert "".join(whole) == TEXT
    assert "".join(text for text, _ in pairs) == "reply 2"
    counts = [meta["completion_tokens"] for _, meta in pairs]
    assert counts == sorted(counts)
    assert all(meta["prompt_tokens"] > 0 for _, meta in pairs)


def test_pieces_are_there_before_the_call_is_over() -> None:
    backend = Scripted("abcdefghi")
    backend.pause(after=2)
    state = rx.function(lambda s: s.append("A" + rx.gen("x"))).run(backend=backend, stream=True)
    pieces = state.text_iter("x")
    assert [next(pieces), next(pieces)] == ["abc", "def"]
    backend.resume()
    assert list(pieces) == ["ghi"]


def test_a_variable_that_the_body_has_yet_to_name_is_waited_for() -> None:
    go = threading.Event()

    @rx.function
    def body(s):
        go.wait(10)
        s += rx.gen("x")

    state = body.run(backend=Scripted("reply"), stream=True)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append("".join(state.text_iter("x"))))
    reader.start()
    go.set()
    reader.join(10)
    assert found == ["reply"]
    with pytest.raises(UnknownVariable):
        state.text_iter("other")


def test_answers_wait_for_the_body_that_runs_elsewhere() -> None:
    go = threading.Event()

    @rx.function
    def body(s):
        s += "A"
        go.wait(10)
        s += "B" + rx.gen("x")

    state = body.run(backend=Scripted("reply"), stream=True)
    threading.Timer(0.01, go.set).start()
    assert state.text() == "ABreply"
    assert state.error() is None


def test_a_program_on_the_loop_waits_for_variables_of_another_one_there() -> None:
    go = asyncio.Event()

    @rx.function
    async def inner(s):
        await go.wait()
        s += rx.gen("x")

    @rx.function
    async def outer(s):
        state = await inner.run_async(backend=Scripted("reply"), stream=True)
        pieces = state.text_async_iter("x")
        first = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        go.set()
        s += await first

    assert outer.run(backend=Scripted()).text() == "rep"


def test_a_program_that_a_streamed_body_runs_does_not_wait_for_that_body() -> None:
    @rx.function
    def inner(s, other):
        with pytest.raises(UnknownVariable):
            other["unheard"]
        assert other.text() == "A"

    @rx.function
    def outer(s):
        s += "A"
        inner.run(other=s, backend=Scripted())

    assert outer.run(backend=Scripted(), stream=True).error() is None


def test_a_body_cannot_wait_for_the_end_of_its_own_text() -> None:
    @rx.function
    def body(s):
        s += rx.gen("x")
        assert "".join(s.text_iter("x")) == "reply"
        for state in (s, s.copy()):
            with pytest.raises(InvalidCall, match="so a body cannot wait for it: name a variable"):
                state.text_iter()

    assert body.run(backend=Scripted("reply")).error() is None


def test_several_texts_and_choices_in_a_stream() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen("x", n=2) + rx.select("y", ["b", "c"])
        s.set_var("z", "own")

    state = body.run(backend=Scripted(["1", "2", "b"]), stream=True)
    assert "".join(state.text_iter()) == "A1b"
    assert list(state.text_iter("x")) == []
    assert list(state.text_iter("y")) == ["b"]
    assert list(state.text_iter("z")) == ["own"]


def test_texts_of_branches_are_streamed_as_the_join_appends_them() -> None:
    @rx.function
    def body(s):
        s += "A"
        forks = s.fork(2)
        forks += ["1", "2"]
        forks += rx.gen("x")
        forks.join("concate_and_append")

    assert "".join(body.run(backend=Scripted("r"), stream=True).text_iter()) == "A1r2r"


def test_a_stream_that_breaks_off_gives_what_came_and_then_the_cause() -> None:
    class Breaking(Scripted):
        async def stream(self, call):
            yield Delta("half", {})
            raise BackendError("it broke")

    state = rx.function(lambda s: s.append("A" + rx.gen("x"))).run(backend=Breaking(), stream=True)
    for name in ("x", None):
        pieces: list[str] = []
        with pytest.raises(BranchFailed, match="it broke"):
            pieces.extend(state.text_iter(name))
        assert "".join(pieces).endswith("half")


def test_a_stream_without_an_end_is_told_on() -> None:
    class Endless(Scripted):
        async def stream(self, call):
            yield Delta("half", {})

    state = rx.function(lambda s: s.append("A" + rx.gen("x"))).run(backend=Endless(), stream=True)
    assert "ended without a last delta" in str(state.error())


def test_a_variable_that_is_set_again_while_it_is_streamed_does_not_hide_the_failure() -> None:
    backend = GatedBackend(BackendError("it broke"))
    backend.shut("A")
    state = rx.function(lambda s: s.append("A" + rx.gen("x"))).run(backend=backend)
    pieces = state.text_iter("x")
    state.set_var("x", "other")
    backend.open("A")
    with pytest.raises(BranchFailed, match="it broke"):
        list(pieces)


def test_an_error_of_the_body_ends_the_stream_with_it() -> None:
    @rx.function
    def body(s):
        s += "A"
        s.sync()
        raise ValueError("own")

    state = body.run(backend=Scripted(), stream=True)
    pieces: list[str] = []
    with pytest.raises(BranchFailed, match="ValueError: own"):
        pieces.extend(state.text_iter())
    assert pieces == ["A"]
    assert isinstance(state.error(), ValueError)


def test_cancelling_a_streamed_branch_aborts_its_call() -> None:
    @rx.function
    def body(s):
        forks = s.fork(1)
        forks += "A" + rx.gen("x")
        pieces = forks[0].text_iter("x")
        assert next(pieces) == "abc"
        forks.cancel()
        with pytest.raises(Cancelled):
            list(pieces)

    backend = Scripted("abcdef")
    backend.pause(after=1)
    state = body.run(backend=backend, stream=True)
    assert state.error() is None
    assert [call.state for call in backend.calls] == ["cancelled"]


def test_a_reader_that_goes_away_disturbs_nobody() -> None:
    backend = Scripted("abcdef")
    backend.pause(after=1)
    state = rx.function(lambda s: s.append("A" + rx.gen("x"))).run(backend=backend, stream=True)

    async def main():
        pieces = state.text_async_iter("x")
        assert await anext(pieces) == "abc"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(pieces), 0.01)

    asyncio.run(main())
    backend.resume()
    assert "".join(state.text_iter("x")) == "abcdef"
