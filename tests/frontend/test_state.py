"""What a state takes, what it tells, and when it waits."""

from __future__ import annotations

import dataclasses
import threading

import pytest

import radixlm as rx
from radixlm.frontend.errors import BackendError, BranchFailed, InvalidCall, UnknownVariable, Unsupported
from radixlm.frontend.protocol import Plain
from radixlm.frontend.scripted import Scripted
from testkit.gated_backend import GatedBackend


def run(body, backend=None, **options):
    """The state of a program of this body."""
    return rx.function(body).run(backend=backend or Scripted("reply"), **options)


def test_texts_and_generations_stand_in_the_order_they_were_appended() -> None:
    def body(s):
        s += "A" + rx.gen("x") + "B"
        s += ["C", rx.gen("y"), ("D", "E")]

    state = run(body, Scripted(["1", "2"]))
    assert state.text() == "A1BC2DE"
    assert (state["x"], state["y"]) == ("1", "2")


def test_each_call_sees_all_that_stands_before_it() -> None:
    def body(s):
        s += "A" + rx.gen() + "B" + rx.gen() + "C"

    backend = Scripted(["1", "2"])
    run(body, backend).sync()
    assert backend.prompts == ["A", "A1B"]


def test_generated_text_is_carried_as_token_ids() -> None:
    def body(s):
        s += "ab" + rx.gen() + "cd" + rx.gen()

    backend = Scripted(["xy", "z"])
    run(body, backend).sync()
    assert backend.calls[1].asked.parts == ("ab", (ord("x"), ord("y")), "cd")


@pytest.mark.parametrize("value", [5, None, 1.5, {"a": 1}, b"text"])
def test_what_is_no_text_and_no_expression_is_refused_and_quoted(value) -> None:
    def body(s):
        s += value

    with pytest.raises(InvalidCall, match="takes text and expressions") as caught:
        run(body)
    assert repr(value) in str(caught.value)


def test_a_name_that_nobody_sets_is_said_with_those_there_are() -> None:
    state = run(lambda s: s.append("A" + rx.gen("x")))
    with pytest.raises(UnknownVariable, match=r"no variable is called 'y'; those of this state are x"):
        state["y"]
    with pytest.raises(KeyError):
        state["y"]


def test_get_var_and_in_and_set_var() -> None:
    def body(s):
        s.set_var("own", [1, 2])
        s += rx.gen("x")
        assert "own" in s
        assert "x" in s
        assert "other" not in s
        assert 3 not in s

    state = run(body)
    assert state.get_var("own") == [1, 2]
    assert state.get_var("x") == "reply"


def test_a_name_is_known_before_its_value_is_there() -> None:
    backend = GatedBackend("reply")
    backend.shut("A")
    state = run(lambda s: s.append("A" + rx.gen("x")), backend)
    assert "x" in state
    backend.open("A")
    assert state["x"] == "reply"


def test_setting_a_name_again_gives_the_newest_value() -> None:
    def body(s):
        s += rx.gen("x") + rx.gen("x")
        assert s["x"] == "2"
        s.set_var("x", 3)

    assert run(body, Scripted(["1", "2"]))["x"] == 3


def test_a_scope_keeps_the_text_that_was_added_inside() -> None:
    def body(s):
        s += "before "
        with s.var_scope("whole"):
            s += "inside " + rx.gen("x")
        s += " behind"

    state = run(body)
    assert state["whole"] == "inside reply"
    assert list(state.text_iter("whole")) == ["inside reply"]


def test_several_texts_are_a_list_and_the_first_is_appended() -> None:
    def body(s):
        s += "A" + rx.gen("x", n=2) + "B" + rx.gen("y")

    backend = Scripted(["1", "2", "3"])
    state = run(body, backend)
    assert state["x"] == ["1", "2"]
    assert state.text() == "A1B3"
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1, 1]


def test_a_backend_that_gives_too_few_texts_is_told_on() -> None:
    class Short(Scripted):
        async def generate(self, call):
            return (await super().generate(call))[:1]

    error = run(lambda s: s.append(rx.gen("x", n=3)), Short("reply")).error()
    assert isinstance(error, BackendError)
    assert "gave 1 texts where 3 were asked for" in str(error)


def test_a_choice_is_appended_and_its_scores_are_in_the_metadata() -> None:
    def body(s):
        s += "Is it? " + rx.select("answer", ["yes", "no"]) + "."

    state = run(body, Scripted(scores={"yes": -2.0, "no": -1.0}))
    assert state["answer"] == "no"
    assert state.text() == "Is it? no."
    assert state.get_meta_info("answer")["scores"] == [-2.0, -1.0]
    assert list(state.text_iter("answer")) == ["no"]


def test_gen_with_choices_is_a_select() -> None:
    state = run(lambda s: s.append("Q" + rx.gen("x", choices=["a", "b"])), Scripted("b"))
    assert state["x"] == "b"


def test_a_choice_that_is_drawn_is_drawn_alike_with_the_same_seed_and_differs_by_branch() -> None:
    def body(s):
        s += "Q"
        forks = s.fork(40)
        forks += rx.select("x", ["a", "b"], temperature=1.0)
        forks.join()

    backend = Scripted(scores={"a": -1.0, "b": -1.0})
    found = [run(body, backend, seed=7)["x"] for _ in range(2)]
    assert found[0] == found[1]
    assert set(found[0]) == {"a", "b"}
    assert run(body, backend, seed=8)["x"] != found[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rx.select("x", []), "choices must be a list of texts that are not empty, got \\[\\]"),
        (lambda: rx.select("x", "yes"), "choices must be a list of texts that are not empty, got 'yes'"),
        (lambda: rx.select("x", ["a", "a"]), "choices must differ"),
        (lambda: rx.select("x", ["a"], temperature=-1), "temperature must be .*, got -1"),
        (lambda: rx.gen(""), "a name must be text that is not empty, or None, got ''"),
        (lambda: rx.gen(3), "a name must be text"),
        (lambda: rx.gen("x", regex="("), "regex '\\(' cannot be read"),
        (lambda: rx.gen("x", regex="a", dtype=int), "one may be given, got dtype and regex"),
        (lambda: rx.gen("x", dtype=list), "dtype must be int, float, str or bool, got"),
        (lambda: rx.gen("x", stop=3), "stop must be a text or a list of texts, got 3"),
        (lambda: rx.gen("x", stop=["a", 3]), "stop must be a text or a list of texts"),
        (
            lambda: rx.gen("x", stop_token_ids=["a"]),
            "stop_token_ids must be a list of token ids, got \\['a'\\]",
        ),
        (lambda: rx.gen("x", stop_token_ids="12"), "stop_token_ids must be a list of token ids, got '12'"),
        (lambda: rx.gen("x", json_schema=5), "json_schema must be .*, got 5"),
        (lambda: rx.gen("x", choices_method="total"), "choices_method is of no use without choices"),
    ],
)
def test_wrong_expressions_are_refused_where_they_are_written(make, message) -> None:
    with pytest.raises(InvalidCall, match=message):
        make()


@pytest.mark.parametrize("name", ["image", "video"])
def test_pictures_are_not_supported_and_that_is_said(name) -> None:
    with pytest.raises(Unsupported, match=f"{name} is not supported by this model"):
        getattr(rx, name)("path.png")


def test_values_of_types_are_parsed() -> None:
    def body(s):
        s += rx.gen_int("i") + rx.gen_float("f") + rx.gen_bool("b") + rx.gen_string("s")
        s += rx.gen("n", dtype=int, n=2)

    state = run(body, Scripted(["4", "1.5", "True", '"a"', "1", "2"]))
    assert [state[name] for name in "ifbs"] == ["4", "1.5", "True", '"a"']
    assert [state.value(name) for name in "ifbs"] == [4, 1.5, True, "a"]
    assert state.value("n") == [1, 2]


@dataclasses.dataclass
class City:
    name: str


def test_values_of_schemas_are_instances() -> None:
    state = run(lambda s: s.append(rx.gen("city", json_schema=City)), Scripted('{"name": "Rome"}'))
    assert state.value("city") == City("Rome")
    state = run(lambda s: s.append(rx.gen("x", json_schema={"type": "array"})), Scripted("[1]"))
    assert state.value("x") == [1]


def test_values_of_a_joined_variable_are_parsed_one_by_one() -> None:
    def body(s):
        forks = s.fork(3)
        forks += ["a", "b", "c"]
        forks += rx.gen("x", dtype=int)
        forks.join()

    def reply(prompt: str) -> str | Exception:
        return BackendError("broken") if prompt == "b" else str(ord(prompt))

    assert run(body, Scripted(reply)).value("x") == [97, None, 99]


@pytest.mark.parametrize("meta", [True, False])
def test_a_value_that_was_cut_says_by_what(meta) -> None:
    class Bare(Scripted):
        async def generate(self, call):
            return [dataclasses.replace(each, meta={}) for each in await super().generate(call)]

    def body(s):
        s += "A" + rx.gen("place", max_tokens=5, json_schema={"type": "object"})
        forks = s.fork(2)
        forks += rx.gen("each", max_tokens=6, json_schema={"type": "object"})
        forks.join()

    state = run(body, (Scripted if meta else Bare)('{"name": "Rome"}', limit=True))
    for name in ("place", "each"):
        with pytest.raises(rx.Unreadable, match=r"^the text was cut by max_tokens before its end: '\{\"nam"):
            state.value(name)


def test_a_value_that_was_not_cut_says_nothing_of_it() -> None:
    state = run(lambda s: s.append(rx.gen("x", dtype=int)), Unchecked("seven"))
    with pytest.raises(rx.Unreadable, match=r"^'seven' cannot be read as int"):
        state.value("x")


class Unchecked(Scripted):
    """Does not hold its replies to any form."""

    async def generate(self, call):
        free = dataclasses.replace(call, sampling=dataclasses.replace(call.sampling, regex=None))
        return await super().generate(free)


def test_metadata_is_what_the_backend_told() -> None:
    state = run(lambda s: s.append("abc" + rx.gen("x", return_logprob=True)))
    meta = state.get_meta_info("x")
    assert meta["prompt_tokens"] == 3
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert len(meta["output_token_logprobs"]) == 5


def test_a_failed_call_ends_its_state_and_every_value_behind_it_tells_the_cause() -> None:
    def body(s):
        s += "A" + rx.gen("x") + "B" + rx.gen("y") + "C" + rx.select("z", ["a"])

    state = run(body, Scripted(["1", BackendError("it broke")]))
    assert state["x"] == "1"
    for name in "yz":
        with pytest.raises(BranchFailed, match="BackendError: it broke") as caught:
            state[name]
        assert isinstance(caught.value.__cause__, BackendError)
    assert str(state.error()) == "it broke"
    assert state.text() == "A1B"
    assert "y" in state
    assert "other" not in state


def test_a_name_nobody_set_on_a_failed_state_tells_the_failure() -> None:
    state = run(lambda s: s.append(rx.gen("x")), Scripted(BackendError("it broke")))
    state.sync()
    with pytest.raises(BranchFailed, match="it broke"):
        state["unheard"]


def test_a_failure_is_told_by_what_failed_and_what_was_not_run_for_it() -> None:
    def body(s):
        s += "A" + rx.gen("x") + rx.gen("y")

    state = run(body, Scripted(InvalidCall("too long")))
    for name, words in (
        ("x", "gen('x') failed: InvalidCall: too long"),
        ("y", "not there, because gen('x') failed: InvalidCall: too long"),
        ("unheard", "not there, because gen('x') failed: InvalidCall: too long"),
    ):
        with pytest.raises(BranchFailed) as caught:
            state[name]
        assert str(caught.value) == words
        assert isinstance(caught.value.__cause__, InvalidCall)


def test_a_block_that_cannot_begin_is_told_as_what_it_is() -> None:
    state = run(lambda s: s.append(rx.user_begin() + rx.user_begin() + rx.gen("x")))
    with pytest.raises(BranchFailed, match="not there, because appending failed: InvalidCall: a user block"):
        state["x"]


def test_what_is_appended_to_a_failed_state_fails_alike() -> None:
    state = run(lambda s: s.append(rx.gen("x")), Scripted(BackendError("it broke")))
    state.sync()
    state += rx.gen("later")
    with pytest.raises(BranchFailed, match="it broke"):
        state["later"]


def test_a_value_may_be_read_by_many_threads_at_once() -> None:
    backend = GatedBackend("reply")
    backend.shut("A")
    state = run(lambda s: s.append("A" + rx.gen("x")), backend)
    found: list[object] = []
    readers = [threading.Thread(target=lambda: found.append((state["x"], state.text()))) for _ in range(20)]
    for reader in readers:
        reader.start()
    backend.open("A")
    for reader in readers:
        reader.join(10)
    assert found == [("reply", "Areply")] * 20


def test_many_threads_may_append_and_fork_at_once_and_nothing_is_lost() -> None:
    def body(s):
        def work() -> None:
            for _ in range(50):
                s.append("a")
                kept.append(s.fork(1))

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    kept: list = []
    state = run(body)
    assert state.text() == "a" * 400
    branches = [state.branch, *(fork.branch for group in kept for fork in group)]
    assert len({branch.program_id for branch in branches}) == len({branch.path for branch in branches}) == 401


def test_the_report_counts_what_was_asked_reused_and_generated() -> None:
    def body(s):
        s += "0123456789" + rx.gen("x") + "ab" + rx.gen("y", n=2)

    report = run(body, Scripted(["reply", "1", "22"])).cache_report()
    first, second = report.calls
    assert (first.name, first.prompted, first.reused, first.expected, first.generated) == ("x", 10, 0, 0, 5)
    # all but the last generated token is there, whose memory was never filled
    assert (second.prompted, second.reused, second.expected, second.generated) == (17, 14, 14, 3)
    assert (report.prompted, report.reused, report.recomputed, report.generated) == (27, 14, 0, 8)
    assert second.why == "3 were new"
    assert str(report).startswith("2 calls: 27 tokens prompted, 14 reused, 0 recomputed, 8 generated")


def test_the_report_says_what_evictions_cost() -> None:
    def body(s):
        s += "0123456789" + rx.gen("x")
        s.sync()
        rx.flush_cache(backend)
        s += "ab" + rx.gen("y")

    backend = Scripted("reply")
    report = run(body, backend).cache_report()
    assert (report.reused, report.recomputed) == (0, 14)
    assert report.calls[1].why == (
        "14 had been computed before and were evicted, or read as other tokens; 3 were new"
    )


def test_a_fork_expects_what_its_parent_computed() -> None:
    def body(s):
        s += "0123456789" + rx.gen("x")
        child = s.copy()
        child += "?" + rx.gen("y")
        s.set_var("child", child)

    report = run(body)["child"].cache_report()
    (call,) = report.calls
    assert (call.prompted, call.reused, call.expected, call.recomputed) == (16, 14, 14, 0)


def test_the_report_counts_the_calls_of_forks_though_they_are_gone() -> None:
    def body(s):
        s += "0123456789" + rx.gen("x")
        forks = s.fork(3)
        forks += rx.gen("y")
        forks.join()
        inner = s.copy().copy()
        inner += rx.gen("z")
        s.set_var("child", forks[1])

    state = run(body)
    report = state.cache_report()
    assert [call.name for call in report.calls] == ["x", "y", "y", "y", "z"]
    assert report.prompted == 10 + 4 * 15
    assert [call.name for call in state["child"].cache_report().calls] == ["y"]


def test_a_select_is_counted_as_well() -> None:
    def body(s):
        s += "0123456789" + rx.select("x", ["ab", "cd"]) + rx.gen("y")

    first, second = (
        run(body, Scripted(lambda prompt: "ab" if prompt.endswith("9") else "z")).cache_report().calls
    )
    assert (first.name, first.prompted, first.generated) == ("x", 10, 0)
    assert (second.prompted, second.expected) == (12, 10)


def test_a_hold_says_how_much_is_kept_and_is_given_back() -> None:
    def body(s):
        s += "0123456789"
        with s.hold(30) as held:
            s.set_var("held", held.tokens)
            assert not backend.ended
        s += rx.gen("x")

    backend = Scripted("reply")
    state = run(body, backend)
    assert state["held"] == 9
    name = state.branch.program_id
    assert backend.ended[0] == ((name,), "released")
    assert backend.calls[0].asked.hint.hold_s == 30
    assert backend.calls[0].asked.sampling.max_new_tokens == 0


def test_holds_are_called_that_in_the_report_and_are_no_calls() -> None:
    def body(s):
        s += "0123456789" + rx.gen("x")
        with s.hold(30):
            pass
        s.pin(30)

    report = run(body, Scripted("reply")).cache_report()
    first, *lines = str(report).splitlines()
    assert first == (
        "1 call and 2 holds: 40 tokens prompted, 28 reused, 0 recomputed, 5 generated, 0 of them forced"
    )
    assert [line.split(":")[0] for line in lines] == ["  x", "  hold", "  hold"]
    assert [call.is_hold for call in report.calls] == [False, True, True]


def test_a_hold_is_given_back_when_the_tool_fails() -> None:
    def body(s):
        s += "text"
        with s.hold(30):
            raise ValueError("tool")

    backend = Scripted("reply")
    with pytest.raises(ValueError, match="tool"):
        run(body, backend)
    assert backend.ended[0][1] == "released"


def test_a_pin_keeps_until_its_time_is_over() -> None:
    backend = Scripted("reply")
    state = run(lambda s: s.append("0123456789"), backend)
    assert state.pin(5) == 9
    assert all(how != "released" for _, how in backend.ended)


@pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan"), "5", True, None])
def test_a_hold_needs_a_time(ttl) -> None:
    def body(s):
        s += "text"
        s.pin(ttl)

    with pytest.raises(InvalidCall, match="a hold needs a number of seconds above 0, up to 3600, got"):
        run(body)


def test_text_of_people_is_text_and_templates_and_programs_may_spell_control_tokens() -> None:
    def body(s):
        s += rx.user("<|im_end|>")
        s += "loose" + rx.gen()

    backend = Scripted("reply")
    run(body, backend).sync()
    assert backend.calls[0].asked.parts == ("USER: ", Plain("<|im_end|>"), "\nloose")


def test_a_state_that_is_no_copy_is_not_for_with() -> None:
    def body(s):
        with s:
            pass

    with pytest.raises(InvalidCall, match=r"with s\.copy\(\) as other"):
        run(body)


def test_plain_text_is_a_part_of_its_own_kind_and_text_of_the_state_as_any() -> None:
    def body(s):
        s += "<|x|>" + rx.plain("<|y|>") + rx.plain("z") + "w" + rx.gen()

    backend = Scripted("reply")
    state = run(body, backend)
    assert state.text() == "<|x|><|y|>zwreply"
    assert backend.calls[0].asked.parts == ("<|x|>", Plain("<|y|>z"), "w")


def test_plain_takes_text_only() -> None:
    with pytest.raises(InvalidCall, match="plain takes a text, got int 5"):
        rx.plain(5)
