"""Programs: what can be one, its arguments and options, how a run ends, and that nothing is left behind."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from typing import Literal

import pytest

import radixlm as rx
from radixlm.frontend.backends import default_backend
from radixlm.frontend.branch import Branch
from radixlm.frontend.errors import BackendError, BranchFailed, Cancelled, InvalidCall, TimedOut
from radixlm.frontend.program import DEFAULTS
from radixlm.frontend.scripted import Scripted
from radixlm.frontend.session import Defaults
from testkit.gated_backend import GatedBackend


@dataclasses.dataclass
class Place:
    name: str


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Mixed(enum.Enum):
    ONE = "one"
    TWO = 2


@rx.function
def ask(s, question, suffix="?"):
    s += question + suffix + rx.gen("answer")
    return "returned"


@pytest.fixture
def _no_default():
    rx.set_default_backend(None)
    yield
    rx.set_default_backend(None)


def test_arguments_are_given_by_place_or_name() -> None:
    backend = Scripted("reply")
    for state in (
        ask.run("Q", "!", backend=backend),
        ask.run(question="Q", suffix="!", backend=backend),
        ask("Q", suffix="!", backend=backend),
    ):
        assert state.text() == "Q!reply"
        assert state.ret_value == "returned"


def test_a_program_keeps_the_name_and_the_text_of_its_function() -> None:
    assert ask.__name__ == "ask"
    assert ask.arg_names == ["question", "suffix"]


def test_the_decorator_takes_what_sglangs_takes() -> None:
    @rx.function(num_api_spec_tokens=64)
    def body(s):
        s += "A"

    @rx.program
    def other(s):
        s += "B"

    assert body.run(backend=Scripted()).text() == "A"
    assert body.num_api_spec_tokens == 64
    assert other.run(backend=Scripted()).text() == "B"


def test_bound_arguments_are_given_beforehand() -> None:
    bound = ask.bind(question="Q").bind(suffix="!")
    assert bound.run(backend=Scripted("r")).text() == "Q!r"
    assert bound.run(suffix="?", backend=Scripted("r")).text() == "Q?r"
    with pytest.raises(InvalidCall, match="ask has no parameter 'nothing', only question, suffix"):
        ask.bind(nothing=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "ask: missing a required argument: 'question'; its parameters are"),
        (
            {"question": "Q", "max_token": 5},
            r"argument 'max_token'; did you mean max_tokens\? its parameters are question, suffix$",
        ),
        (
            {"question": "Q", "colour": 5},
            "'colour'; its parameters are question, suffix, and those of a run backend, choice, ",
        ),
    ],
)
def test_wrong_arguments_are_said_before_anything_runs(arguments, message) -> None:
    backend = Scripted("r")
    with pytest.raises(InvalidCall, match=message):
        ask.run(backend=backend, **arguments)
    assert not backend.calls


@pytest.mark.parametrize("made", [5, "text", lambda: None, None])
def test_what_cannot_be_a_program_is_refused(made) -> None:
    if made is None:

        def made(s):
            yield s

    with pytest.raises(InvalidCall, match=r"function decorates|needs the state|is a generator"):
        rx.program(made)


def test_a_method_cannot_be_a_program_and_is_told_so() -> None:
    with pytest.raises(InvalidCall, match=r"ask is a method \(its first parameter is self\), and methods"):

        class Asker:
            @rx.function
            def ask(self, s, question):
                s += question


def test_both_names_of_a_length_are_taken_by_runs_batches_and_calls() -> None:
    backend = Scripted("r")
    plain = rx.function(lambda s: s.append(rx.gen()))
    own = rx.function(lambda s: s.append(rx.gen(max_new_tokens=7, min_new_tokens=2)))
    plain.run(backend=backend, max_tokens=7, min_tokens=2).sync()
    plain.run_batch([()], backend=backend, max_tokens=7, min_tokens=2)
    own.run(backend=backend, max_tokens=9).sync()
    asked = [call.asked.sampling for call in backend.calls]
    assert [(each.max_new_tokens, each.min_new_tokens) for each in asked] == [(7, 2)] * 3


def test_choices_and_what_is_of_no_use_to_them_may_stand_side_by_side() -> None:
    both = rx.function(lambda s: s.append(rx.gen("x", choices=["a", "b"], max_tokens=5, temperature=0, n=1)))
    assert both.run(backend=Scripted("b"))["x"] == "b"


@pytest.mark.parametrize(
    ("choice", "value"), [(Literal["good", "bad"], "bad"), (Mood, Mood.BAD), (["good", "bad"], "bad")]
)
def test_a_choice_may_be_a_literal_or_an_enum_and_is_read_back(choice, value) -> None:
    backend = Scripted("bad")
    own = rx.function(lambda s: s.append(rx.gen("x", choice=choice))).run(backend=backend)
    of_run = rx.function(lambda s: s.append(rx.gen("x"))).run(backend=backend, choice=choice)
    for state in (own, of_run):
        assert (state["x"], state.value("x")) == ("bad", value)
    assert [call.asked.sampling.choice for call in backend.calls] == [("good", "bad")] * 2


def test_a_body_that_gives_a_coroutine_is_refused() -> None:
    async def body(s):
        s += "never"

    with pytest.raises(InvalidCall, match="decorate the async def itself"):
        rx.function(lambda s: body(s)).run(backend=Scripted())


def test_a_partial_function_can_be_a_program() -> None:
    def body(s, word):
        s += word

    assert rx.function(functools.partial(body, word="A")).run(backend=Scripted()).text() == "A"


def test_each_generation_overrides_the_defaults_of_the_run() -> None:
    def body(s):
        s += rx.gen() + rx.gen(max_tokens=5, temperature=0, stop="x", top_k=3)

    backend = Scripted("r")
    rx.function(body).run(
        backend=backend, max_new_tokens=9, temperature=0.5, stop=["a", "b"], top_p=0.9
    ).sync()
    first, second = (call.asked.sampling for call in backend.calls)
    assert (first.max_new_tokens, first.temperature, first.stop, first.top_p) == (9, 0.5, ("a", "b"), 0.9)
    assert (second.max_new_tokens, second.temperature, second.stop, second.top_p) == (5, 0, ("x",), 0.9)
    assert (first.top_k, second.top_k) == (None, 3)


def test_what_nobody_says_is_the_backends_own() -> None:
    backend = Scripted("r")
    rx.function(lambda s: s.append(rx.gen())).run(backend=backend).sync()
    sampling = backend.calls[0].asked.sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.n) == (128, 1.0, 1)
    assert (sampling.top_p, sampling.top_k, sampling.seed) == (None, None, None)


def test_every_default_that_a_run_may_set_reaches_the_call() -> None:
    values = {
        "max_new_tokens": 1,
        "min_new_tokens": 1,
        "stop": ("a",),
        "stop_token_ids": (1,),
        "stop_regex": ("b",),
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "seed": 3,
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "n": 2,
    }
    assert {*values, "regex", "json_schema", "grammar", "choice", "relaxed", "compact"} == set(DEFAULTS)
    backend = Scripted("r")
    rx.function(lambda s: s.append("A" + rx.gen())).run(backend=backend, **values).sync()
    sampling = backend.calls[0].asked.sampling
    assert {name: getattr(sampling, name) for name in values} == values
    forms = ({"regex": "r+"}, {"json_schema": '{"type": "object"}'}, {"grammar": 'root ::= "r"'})
    for form in (*forms, {"choice": ("r", "s")}):
        backend = Scripted("{}" if "json_schema" in form else "r")
        rx.function(lambda s: s.append(rx.gen())).run(backend=backend, **form).sync()
        ((name, value),) = form.items()
        assert getattr(backend.calls[0].asked.sampling, name) == value


def test_every_argument_of_gen_reaches_the_call() -> None:
    values = {
        "min_tokens": ("min_new_tokens", 2),
        "max_tokens": ("max_new_tokens", 3),
        "stop_token_ids": ("stop_token_ids", (4, 5)),
        "stop_regex": ("stop_regex", ("z",)),
        "min_p": ("min_p", 0.1),
        "frequency_penalty": ("frequency_penalty", 0.2),
        "presence_penalty": ("presence_penalty", 0.3),
        "repetition_penalty": ("repetition_penalty", 1.1),
        "ignore_eos": ("ignore_eos", True),
        "seed": ("seed", 6),
        "return_logprob": ("return_logprob", True),
        "logprob_start_len": ("logprob_start_len", 0),
        "top_logprobs_num": ("top_logprobs_num", 2),
        "return_text_in_logprobs": ("return_text_in_logprobs", True),
    }
    backend = Scripted("r")
    given = {name: value for name, (_, value) in values.items()}
    rx.function(lambda s: s.append("A" + rx.gen("x", **given))).run(backend=backend).sync()
    sampling = backend.calls[0].asked.sampling
    for field, value in values.values():
        assert getattr(sampling, field) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": 5}, "stop must be a text or a list of texts, got 5"),
        ({"stop": [5]}, r"stop must be a text or a list of texts, got \[5\]"),
        ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids, got 'ab'"),
        ({"regex": "("}, "cannot be read"),
        ({"json_schema": 3}, "json_schema must be"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, got 0"),
        ({"timeout": "5"}, "timeout must be a number of seconds above 0, got '5'"),
        ({"backend": 7}, "a backend is an Engine, .*got 7"),
        ({"max_new_tokens": "5"}, "max_new_tokens must be an integer, got '5'"),
        ({"n": 2.0}, "n must be an integer, got 2.0"),
        ({"seed": True}, "seed must be an integer, got True"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
        ({"grammar": 3}, "grammar must be text, got 3"),
        ({"choice": "yes"}, "choice must be a list of texts that are not empty, got 'yes'"),
        ({"stream": "yes"}, "stream must be True or False, got 'yes'"),
        ({"regex": "a", "grammar": "b"}, "one may be given, got regex and grammar"),
        ({"temprature": 0}, "did you mean temperature?"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_tokens and max_new_tokens are two names of one"),
        ({"max_tokens": "5"}, "max_tokens must be an integer, got '5'"),
        (
            {"choice": Mixed},
            "choice must be a list of texts, a Literal or an Enum of texts, got <enum 'Mixed'>",
        ),
    ],
)
def test_wrong_options_are_said_before_anything_runs(options, message) -> None:
    with pytest.raises(InvalidCall, match=message):
        ask.run("Q", **{"backend": Scripted("r"), **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_token": 5}, "gen has no option 'max_token'; did you mean max_tokens?"),
        ({"max_new_tokens": "5"}, "max_new_tokens must be an integer, got '5'"),
        ({"min_tokens": 5, "min_new_tokens": 5}, "min_tokens and min_new_tokens are two names of one option"),
        ({"choice": Literal["a", 1]}, "choice must be a list of texts, a Literal or an Enum of texts"),
        ({"choices": ["a"], "regex": "a"}, "scored and not generated, so regex cannot be kept to"),
        ({"choices": ["a"], "dtype": int, "json_schema": {}}, "so dtype and json_schema cannot be kept to"),
        ({"choices": ["a"], "choice": ["a"]}, "so choice cannot be kept to"),
        ({"choices": ["a"], "n": 4}, "of choices one is chosen, so n must be 1 beside them, got 4"),
        ({"temprature": 0}, "gen has no option 'temprature'; did you mean temperature?"),
        ({"colour": 0}, "gen has no option 'colour'; its options are max_tokens, "),
        ({"max_tokens": "5"}, "max_tokens must be an integer, got '5'"),
        ({"relaxed": "yes"}, "relaxed must be True or False, got 'yes'"),
        ({"choice": ["a", "a"]}, "choice must differ"),
        ({"choice": ["a"], "regex": "a"}, "one may be given, got regex and choice"),
    ],
)
def test_wrong_options_of_a_call_are_said_where_it_is_written(options, message) -> None:
    with pytest.raises(InvalidCall, match=re.escape(message)):
        rx.gen("x", **options)
    if "max_token" in options:
        with pytest.raises(InvalidCall, match=re.escape(message)):
            rx.gen_int("x", **options)


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    made = rx.gen("x", max_tokens=numpy.int64(5), temperature=numpy.float32(0.5))
    assert dict(made.options) == {"max_new_tokens": 5, "temperature": 0.5}
    assert [type(value) for value in made.options.values()] == [int, float]


def test_how_a_schema_is_kept_to_goes_with_schemas_alone() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen("one", json_schema={"type": "object"}) + rx.gen("two")
        s += rx.gen("three", json_schema={"type": "object"}, compact=False)

    backend = Scripted(["{}", "text", "{}"])
    assert body.run(backend=backend, relaxed=True, compact=True).error() is None
    asked = [(call.asked.sampling.relaxed, call.asked.sampling.compact) for call in backend.calls]
    assert asked == [(True, True), (False, False), (True, False)]


def test_the_form_of_a_run_is_that_of_every_call_with_its_value() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen("place")

    state = body.run(backend=Scripted('{"name": "Rome"}'), json_schema=Place)
    assert state.value("place") == Place("Rome")
    [state] = body.run_batch([()], backend=Scripted('{"name": "Rome"}'), json_schema=Place)
    assert state.value("place") == Place("Rome")
    assert body.run(backend=Scripted("[1]"), json_schema='{"type": "array"}').value("place") == [1]


def test_a_form_of_a_call_takes_the_place_of_the_runs() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen_int("number") + rx.gen("text", choice=["yes", "no"])

    backend = Scripted(["7", "yes"])
    state = body.run(backend=backend, json_schema=Place, stop=".")
    assert (state.value("number"), state.value("text")) == (7, "yes")
    number, text = (call.asked.sampling for call in backend.calls)
    assert (number.json_schema, number.stop) == (None, (".", " ", "\n"))
    assert (text.json_schema, text.choice, text.stop) == (None, ("yes", "no"), (".",))


def test_a_parameter_of_the_program_may_have_the_name_of_an_option() -> None:
    @rx.function
    def body(s, temperature):
        s += f"{temperature} degrees" + rx.gen()

    backend = Scripted("r")
    body.run(temperature=20, backend=backend).sync()
    assert backend.prompts == ["20 degrees"]
    assert backend.calls[0].asked.sampling.temperature == 1.0


@pytest.mark.usefixtures("_no_default")
def test_the_default_backend_is_used_and_can_be_an_object_with_an_endpoint() -> None:
    with pytest.raises(InvalidCall, match="no backend: give one with backend"):
        ask.run("Q")

    class Runtime:
        endpoint = Scripted("reply")

    rx.set_default_backend(Runtime())
    assert default_backend() is Runtime.endpoint
    assert ask.run("Q")["answer"] == "reply"
    assert rx.get_server_info()["calls"] == 1
    rx.flush_cache()
    assert ask.run("Q", backend=Scripted("other"))["answer"] == "other"


def test_a_program_may_call_another_one_with_its_state() -> None:
    @rx.function
    def inner(s, word):
        s += word + rx.gen("x")
        return s["x"]

    @rx.function
    def outer(s):
        s += "A"
        s.set_var("told", inner(s, word="B"))
        forks = s.fork(2)
        for fork, word in zip(forks, "CD", strict=True):
            inner(fork, word)
        forks.join()

    backend = Scripted(lambda prompt: prompt[-1].lower())
    state = outer.run(backend=backend)
    assert state.text() == "ABb"
    assert (state["told"], state["x"]) == ("b", ["c", "d"])


def test_a_bound_program_may_be_called_with_a_state() -> None:
    bound = ask.bind(suffix="!")
    assert rx.function(lambda s: bound(s, "Q")).run(backend=Scripted("r")).text() == "Q!r"


def test_a_program_may_run_another_one_for_itself() -> None:
    @rx.function
    def outer(s):
        s += "A" + ask.run("Q", backend=backend)["answer"]

    backend = Scripted("reply")
    assert outer.run(backend=backend).text() == "Areply"


def test_the_body_may_be_over_while_calls_are_outstanding() -> None:
    backend = GatedBackend("reply")
    backend.shut("Q?")
    state = ask.run("Q", backend=backend)
    backend.wait_until_came("Q?")
    backend.open("Q?")
    assert state["answer"] == "reply"


def test_a_state_goes_on_after_its_run() -> None:
    backend = Scripted("r")
    state = ask.run("Q", backend=backend)
    state.sync()
    state += "more" + rx.gen("x")
    forks = state.fork(2)
    forks += rx.gen("y")
    forks.join("first")
    assert (state["x"], state["y"]) == ("r", "r")


def test_an_error_of_the_body_is_raised_and_everything_it_left_is_cancelled() -> None:
    backend = GatedBackend("reply")
    backend.shut("A")
    kept = []

    @rx.function
    def body(s):
        kept.append(s)
        s += "A" + rx.gen("x")
        backend.wait_until_came("A")
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        body.run(backend=backend)
    backend.wait_until_aborted("A")
    assert isinstance(kept[0].error(), KeyError)
    with pytest.raises(BranchFailed, match="KeyError: 'own'"):
        kept[0]["x"]


def test_an_error_of_a_call_is_raised_where_its_value_is_read() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen("x")
        s["x"]

    with pytest.raises(BranchFailed, match=r"^gen\('x'\) failed: BackendError: it broke$") as caught:
        body.run(backend=Scripted(BackendError("it broke")))
    assert isinstance(caught.value.__cause__, BackendError)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_of_the_body_cancels_it_and_leaves_the_loop_alive(error) -> None:
    backend = GatedBackend("reply")
    backend.shut("A")

    @rx.function
    def body(s):
        s += "A" + rx.gen("x")
        backend.wait_until_came("A")
        raise error

    with pytest.raises(error):
        body.run(backend=backend)
    backend.wait_until_aborted("A")

    @rx.function
    async def on_the_loop(s):
        raise error

    with pytest.raises(error):
        on_the_loop.run(backend=backend)
    assert ask.run("Q", backend=backend)["answer"] == "reply"


def test_a_run_that_takes_too_long_is_cancelled_where_it_reads() -> None:
    backend = GatedBackend("reply")
    backend.shut("Q?")

    @rx.function
    def body(s):
        ask(s, "Q")
        s["answer"]

    with pytest.raises(TimedOut, match=r"took longer than the 0\.05 s it may take"):
        body.run(backend=backend, timeout=0.05)
    backend.wait_until_aborted("Q?")


def test_calls_after_the_time_is_over_are_not_made() -> None:
    @rx.function
    def body(s):
        s += "A" + rx.gen("x")
        s.sync()
        over.wait(10)
        s += rx.gen("y")
        assert isinstance(s.error(), TimedOut)
        s["y"]

    over = threading.Event()
    backend = Scripted("r")
    end = backend.end

    def told(ids, how):
        end(ids, how)
        over.set()

    backend.end = told
    with pytest.raises(TimedOut):
        body.run(backend=backend, timeout=0.05)
    assert len(backend.calls) == 1
    assert backend.ended == [((backend.calls[0].asked.hint.program_id,), "cancelled")]


def test_calls_outstanding_behind_the_body_end_with_the_time_too() -> None:
    backend = GatedBackend("reply")
    backend.shut("Q?")
    state = ask.run("Q", backend=backend, timeout=0.05)
    assert isinstance(state.error(), TimedOut)
    with pytest.raises(TimedOut):
        state["answer"]


def test_a_run_that_ends_in_time_is_not_touched_later() -> None:
    state = ask.run("Q", backend=Scripted("r"), timeout=30)
    assert state.error() is None
    state += rx.gen("x")
    assert state["x"] == "r"


def test_a_launched_run_can_be_cancelled() -> None:
    backend = GatedBackend("reply")
    backend.shut("Q?")
    run = ask.launch({"question": "Q"}, Defaults({"max_new_tokens": 5}), backend)
    backend.wait_until_came("Q?")
    run.cancel(Cancelled("no longer needed"))
    run.wait()
    with pytest.raises(Cancelled, match="no longer needed"):
        run.state["answer"]
    assert run.raised is None
    run.cancel(Cancelled("once more"))


def test_a_launched_run_takes_a_tuple_of_arguments() -> None:
    run = ask.launch(("Q",), Defaults(), Scripted("r"))
    run.wait()
    assert run.state["answer"] == "r"


def test_a_traced_body_that_starts_a_program_never_runs_it() -> None:
    @rx.function
    def outer(s, word):
        s += "constant "
        ask.run("Q")
        s += "not reached"

    rx.set_default_backend(None)
    trace = outer.trace()
    assert trace.prefix_text() == "constant "
    assert not trace.reached_call


def test_a_program_is_warmed_and_its_run_finds_the_prefix() -> None:
    @rx.function
    def body(s, word):
        s += "0123456789" + word + rx.gen("x")

    backend = Scripted("r")
    assert body.cache(backend) == 10
    assert body.run("w", backend=backend).cache_report().reused == 10


@pytest.mark.parametrize("runs", [400, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_runs_leave_no_branches_behind(runs) -> None:
    class Quiet(Scripted):
        async def generate(self, call):
            found = await super().generate(call)
            self.calls.clear()
            return found

        def end(self, program_ids, how):
            pass

    @rx.function
    def body(s):
        s += "A" + rx.gen("x")
        forks = s.fork(2)
        forks += rx.gen("y")
        forks.join()
        s["y"]

    def round_of(count: int) -> None:
        for _ in range(count):
            body.run(backend=backend)

    backend = Quiet("r")
    round_of(200)
    gc.collect()
    tracemalloc.start()
    try:
        round_of(50)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        round_of(runs)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000
    assert sum(type(each) is Branch for each in gc.get_objects()) < 50


def test_a_state_that_is_dropped_is_collected_while_its_timer_runs() -> None:
    state = ask.run("Q", backend=Scripted("r"), timeout=1000)
    state.sync()
    gone = weakref.ref(state)
    del state
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
    assert gone() is None


def test_a_process_that_was_forked_off_runs_programs_of_its_own() -> None:
    code = (
        "import os, radixlm as rx;"
        "body = rx.function(lambda s: s.append('A' + rx.gen('x')));"
        "assert body.run(backend=rx.Scripted('r'))['x'] == 'r';"
        "child = os.fork();"
        "assert body.run(backend=rx.Scripted('r'))['x'] == 'r';"
        "child or os._exit(7);"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_runs_from_many_threads_do_not_meet() -> None:
    def work(name: str) -> None:
        for number in range(50):
            state = ask.run(f"{name}{number}", backend=backend)
            found.append(state["answer"] == f"{name}{number}?!")

    backend = Scripted(lambda prompt: prompt + "!")
    found: list[bool] = []
    workers = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert found == [True] * 400
