"""Tracing: the first prompt of a program is found without any call, and nothing a body does makes it fail."""

from __future__ import annotations

import _thread
import asyncio
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from radixlm.frontend.errors import InvalidCall, Unreachable
from radixlm.frontend.expressions import Appendable, assistant, gen, select, system, user
from radixlm.frontend.program import function
from radixlm.frontend.scripted import Scripted
from radixlm.frontend.state import ProgramState
from radixlm.frontend.tracing import constants_of, trace


@function
def answer(s: ProgramState, question: str, examples: tuple[str, ...] = ("one", "two")) -> None:
    for each in examples:
        s += f"Example {each}\n"
    s += "Q: " + question + "\nA:" + gen("answer")
    s += "never traced"


def test_the_constant_prefix_ends_at_the_first_argument() -> None:
    found = trace(answer)
    assert found.prefix_text() == "Example one\nExample two\nQ: "
    assert found.reached_call


def test_the_key_is_the_first_prompt_with_its_arguments() -> None:
    assert trace(answer).key({"question": "Why?"}) == "Example one\nExample two\nQ: Why?\nA:"


def test_bound_text_belongs_to_the_constant_prefix() -> None:
    bound = answer.bind(question="Why?", examples=("only",))
    assert trace(bound).prefix_text() == "Example only\nQ: Why?\nA:"


def test_blocks_are_part_of_the_trace_in_every_way_of_writing_them() -> None:
    @function
    def blocks(s: ProgramState, q: str) -> None:
        s += system("Be brief.")
        s.user("First.")
        with s.assistant():
            s += "Yes?"
        s += user(q) + assistant(select("a", ["x", "y"]))

    found = trace(blocks)
    assert found.prefix_text() == "Be brief.First.Yes?"
    roles = [type(each).__name__ + ":" + getattr(each, "role", "") for each in found.pieces]
    assert roles == [
        *("RoleBegin:system", "str:", "RoleEnd:system", "RoleBegin:user", "str:", "RoleEnd:user"),
        *("RoleBegin:assistant", "str:", "RoleEnd:assistant", "RoleBegin:user", "Place:", "RoleEnd:user"),
        "RoleBegin:assistant",
    ]
    assert found.reached_call


@dataclass
class Problem:
    text: str


def test_look_ups_in_arguments_are_done_again_in_real_values() -> None:
    @function
    def looks(s: ProgramState, item: dict[str, str], problem: Problem, count: int) -> None:
        s += f"{item['q'].strip()}|{problem.text!r}|{count:03}|{item.get('none', '-')}|" + item["q"]
        s += gen("a")

    found = trace(looks)
    arguments = {"item": {"q": " why "}, "problem": Problem("p"), "count": 7}
    assert found.key(arguments) == "why|'p'|007|-| why "
    assert found.prefix_text() == ""


class Loud:
    @property
    def text(self) -> str:
        raise AssertionError("a key runs no code of the program's")


def test_a_key_runs_no_properties_of_arguments() -> None:
    @function
    def looks(s: ProgramState, problem: Problem) -> None:
        s += "P: " + problem.text + gen("a")

    assert trace(looks).key({"problem": Loud()}).startswith("P: ")


@pytest.mark.parametrize(
    "read",
    [
        bool,
        len,
        int,
        list,
        hash,
        lambda q: q == "a",
        lambda q: q > 1,
        lambda q: "a" in q,
        lambda q: {q: 1},
        lambda q: [each + "." for each in q],
        lambda q: q(),
        lambda q: q.split(),
        lambda q: q[q],
        lambda q: "-".join([q]),
        lambda q: f"{q}"[:3],
        lambda q: q.encode(),
    ],
)
def test_a_body_that_wants_the_value_of_an_argument_ends_the_trace(read: object) -> None:
    @function
    def reads(s: ProgramState, q: str) -> None:
        s += "known"
        s += f"{read(q)}"  # type: ignore[operator]
        s += "unknown" + gen("a")

    found = trace(reads)
    assert found.prefix_text() == "known"
    assert not found.reached_call or "unknown" not in found.prefix_text()


def test_items_of_a_trace_that_ended_early_are_told_apart_by_their_arguments() -> None:
    @function
    def reads(s: ProgramState, context: str, q: str) -> None:
        s += "known" if context else "other"
        s += context + q + gen("a")

    found = trace(reads)
    one, two = (found.key({"context": "same", "q": q}) for q in "12")
    assert one != two
    assert one[:-1] == two[:-1]


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s["a"],
        lambda s: s.text(),
        lambda s: s.fork(2),
        lambda s: s.pin(1.0),
        lambda s: s.messages(),
        lambda s: s.get_meta_info("a"),
        lambda s: s.value("a"),
        lambda s: next(s.text_iter()),
        lambda s: s.no_such_method(),
        lambda s: 1 / 0,
        lambda s: answer.run(question="?"),
    ],
)
def test_whatever_a_trace_cannot_follow_ends_it_quietly(act: object) -> None:
    @function
    def acts(s: ProgramState) -> None:
        s += "before"
        act(s)  # type: ignore[operator]
        s += "after"

    assert trace(acts).prefix_text() == "before"


def test_variables_of_the_programs_own_can_be_read() -> None:
    @function
    def sets(s: ProgramState) -> None:
        s.set_var("a", "mine")
        with s.var_scope("inside"):
            s += f"{s['a']} "
        if "a" in s:
            s += "more"
        s += s["inside"]

    assert trace(sets).prefix_text() == "mine more"


def test_a_body_that_catches_everything_writes_nothing_more() -> None:
    @function
    def stubborn(s: ProgramState, q: str) -> None:
        s += "before"
        for _ in range(3):
            try:
                s += gen("a")
                s += "after"
            except BaseException:
                continue

    assert trace(stubborn).prefix_text() == "before"


def test_a_program_called_with_the_state_is_followed() -> None:
    @function
    def outer(s: ProgramState, q: str) -> None:
        s += "outer "
        answer(s, q)

    assert trace(outer).prefix_text() == "outer Example one\nExample two\nQ: "


def test_an_async_body_is_traced_up_to_what_it_waits_for() -> None:
    @function
    async def waits(s: ProgramState, q: str) -> None:
        s += "Q: "
        await asyncio.sleep(0)
        s += "unknown"

    @function
    async def reads(s: ProgramState, q: str) -> None:
        s += "Q: " + q
        s += "A:" + gen("a")
        s += str(await s.var("a"))

    assert trace(waits).prefix_text() == "Q: "
    assert trace(reads).key({"q": "why"}) == "Q: whyA:"


def test_a_trace_does_not_wait_for_a_body_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixlm.frontend.tracing._LIMIT_SECONDS", 0.05)
    never = threading.Event()

    @function
    def hangs(s: ProgramState) -> None:
        s += "before"
        never.wait()
        s += "after"

    assert trace(hangs).prefix_text() == "before"
    never.set()


def test_many_threads_trace_at_once_and_each_finds_its_own() -> None:
    gate = threading.Barrier(8)

    def one(number: int) -> str:
        @function
        def mine(s: ProgramState, q: str) -> None:
            gate.wait(10)
            for each in range(50):
                s += f"{number}.{each} "
            s += q + gen("a")

        return trace(mine).key({"q": str(number)})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    for number, key in enumerate(found):
        assert key == "".join(f"{number}.{each} " for each in range(50)) + str(number)


def test_a_run_beside_a_trace_is_a_run() -> None:
    backend = Scripted(" because")

    @function
    def waits(s: ProgramState) -> None:
        s += "before"
        inside.set()
        assert over.wait(10)
        s += "after"

    def run_another() -> None:
        assert inside.wait(10)
        done.append(answer.run("?", backend=backend)["answer"])
        over.set()

    inside, over = threading.Event(), threading.Event()
    done: list[object] = []
    thread = threading.Thread(target=run_another)
    thread.start()
    assert trace(waits).prefix_text() == "beforeafter"
    thread.join()
    assert done == [" because"]


_POOL = ThreadPoolExecutor(1)


@pytest.mark.parametrize(
    "way",
    [
        lambda work: threading.Thread(target=work).start(),
        lambda work: threading.Timer(0, work).start(),
        lambda work: _thread.start_new_thread(work, ()),
        lambda work: ThreadPoolExecutor(1).submit(work),
        lambda work: list(ThreadPoolExecutor(2).map(lambda _: work(), range(2))),
        lambda work: _POOL.submit(work),
    ],
    ids=["thread", "timer", "bare thread", "pool", "map", "pool that runs already"],
)
def test_no_program_is_run_with_placeholders_on_any_thread(
    way: Callable[[Callable[[], object]], object],
) -> None:
    @function
    def hands_over(s: ProgramState, q: str) -> None:
        for made in (lambda: q, lambda: f"{q}", lambda: f"{q}"[:9], lambda: {"in": [q]}):

            def work(made: Callable[[], object] = made) -> None:
                try:
                    given.run(made(), backend=backend)
                except InvalidCall as error:
                    refused.append(str(error))
                finally:
                    over.put(None)

            way(work)
            over.get(timeout=10)
        s += "before" + q + gen("a")

    @function
    def given(s: ProgramState, text: object) -> None:
        s += f"{text}" + gen("b")
        s["b"]

    over: queue.SimpleQueue[None] = queue.SimpleQueue()
    refused: list[str] = []
    _POOL.submit(int).result()
    backend = Scripted(" because")
    found = trace(hands_over)
    assert found.key({"q": "why"}) == "beforewhy"
    assert found.reached_call
    assert backend.calls == []
    assert len(refused) >= 4
    assert all("with a placeholder in the place of an argument" in each for each in refused)


@pytest.mark.parametrize(
    "append",
    [
        lambda q: q,
        lambda q: gen("a", stop=f"{q}"),
        lambda q: gen("a", json_schema={"enum": [f"{q}"]}),
        lambda q: select("a", [f"{q}", "other"]),
        lambda q: user(f"{q}"),
    ],
)
def test_no_call_of_a_run_holds_a_placeholder(append: Callable[[object], Appendable]) -> None:
    @function
    def leaks(s: ProgramState, q: str) -> None:
        found.append(q)
        s += q + gen("a")

    @function
    def uses(s: ProgramState) -> None:
        s += "text"
        s += append(found[0])
        s += gen("b")

    found: list[object] = []
    trace(leaks)
    backend = Scripted(" because")
    with pytest.raises(InvalidCall, match="with a placeholder in the place of an argument"):
        uses.run(backend=backend)
    assert backend.calls == []


def test_a_batch_of_placeholders_is_refused_before_anything_runs() -> None:
    found: list[str] = []

    @function
    def leaks(s: ProgramState, q: str) -> None:
        found.append(f"{q}")

    trace(leaks)
    backend = Scripted(" because")
    with pytest.raises(InvalidCall, match="with a placeholder"):
        answer.run_batch([("fine",), (found[0],)], backend=backend)
    assert backend.calls == []


def test_a_body_that_starts_its_worker_once_finds_it_in_the_run() -> None:
    started: list[threading.Thread] = []
    todo: queue.SimpleQueue[queue.SimpleQueue[str]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            todo.get().put("done ")

    @function
    def asks_worker(s: ProgramState, q: str) -> None:
        if not started:
            started.append(threading.Thread(target=work, daemon=True))
            started[0].start()
        done: queue.SimpleQueue[str] = queue.SimpleQueue()
        todo.put(done)
        s += done.get(timeout=10) + q + gen("a")

    states = asks_worker.run_batch([("one",), ("two",)], backend=Scripted("fine"))
    assert [state.text() for state in states] == ["done onefine", "done twofine"]


def test_a_trace_leaves_the_profiler_of_a_body_alone() -> None:
    def watch(*_: object) -> None:
        pass

    @function
    def profiled(s: ProgramState) -> None:
        assert sys.getprofile() is None
        sys.setprofile(watch)
        s += "in "
        kept = sys.getprofile()
        sys.setprofile(None)
        s += "kept" if kept is watch else "lost"

    assert trace(profiled).prefix_text() == "in kept"


def test_what_another_thread_writes_ends_a_trace() -> None:
    @function
    def shares(s: ProgramState) -> None:
        s += "before"
        thread = threading.Thread(target=s.append, args=("elsewhere",))
        thread.start()
        thread.join()
        s += "after"

    assert trace(shares).prefix_text() == "before"


def test_the_key_of_many_items_copies_no_argument() -> None:
    text = "a long text"
    (first, second) = trace(answer).keys([{"question": text}, {"question": text}])
    assert any(piece is text for piece in first)
    assert first == second


# -- constants of a batch


def test_what_is_the_same_plain_data_in_all_items_is_constant() -> None:
    examples = ["a", "b"]
    items = [{"question": str(each), "examples": examples, "mode": "short"} for each in range(3)]
    found = constants_of(answer, items)
    assert found == {"examples": ["a", "b"], "mode": "short"}
    assert found["examples"] is not examples


def test_tools_are_placeholders_so_that_a_trace_does_not_use_them() -> None:
    used = []

    @function
    def asks(s: ProgramState, tool: object, q: str) -> None:
        s += "T: "
        s += tool(q)  # type: ignore[operator]

    def tool(q: str) -> str:
        used.append(q)
        return q

    items = [{"tool": tool, "q": "1"}, {"tool": tool, "q": "2"}]
    assert trace(asks, constants_of(asks, items)).prefix_text() == "T: "
    assert not used


def test_a_default_that_an_item_replaces_is_no_constant() -> None:
    assert constants_of(answer, [{"question": "1"}, {"question": "2", "examples": ()}]) == {}


# -- warming


def test_cache_lets_the_backend_read_the_constant_prefix_and_nothing_else() -> None:
    backend = Scripted()
    assert answer.cache(backend) == len("Example one\nExample two\nQ: ")
    (call,) = backend.calls
    assert call.prompt == "Example one\nExample two\nQ: "
    assert call.asked.sampling.max_new_tokens == 0  # type: ignore[union-attr]
    assert call.asked.hint.program_id == ""
    assert not backend.ended


def test_cache_writes_blocks_as_the_backend_does() -> None:
    @function
    def chat(s: ProgramState, q: str) -> None:
        s += system("Be brief.") + user("Q: " + q) + assistant(gen("a"))

    backend = Scripted("yes", chat_template="chatml")
    chat.cache(backend)
    state = chat.run("why", backend=backend)
    assert state["a"] == "yes"
    assert backend.prompts[1].startswith(backend.prompts[0])
    assert backend.prompts[0].endswith("Q: ")


def test_a_program_without_a_constant_prefix_asks_for_nothing() -> None:
    @function
    def bare(s: ProgramState, q: str) -> None:
        s += q + gen("a")

    backend = Scripted()
    assert bare.cache(backend) == 0
    assert not backend.calls


def test_cache_says_what_went_wrong() -> None:
    backend = Scripted()
    backend.fail_next(Unreachable("nobody there"))
    with pytest.raises(Unreachable, match="nobody there"):
        answer.cache(backend)
