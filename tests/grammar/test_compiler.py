"""GrammarCompiler with engines that do as they are told: who waits for whom, and what becomes of failures."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

import testkit
from radixlm.runtime.errors import EngineStopped, InvalidRequest
from radixlm.runtime.grammar.compile_jobs import CompileLimits
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.spec import GrammarSpec, Kind
from testkit.scripted_engines import Call, Log, ScriptedGrammar, scripted

LIMITS = CompileLimits(
    quick_seconds=20.0, index_seconds=20.0, prove_seconds=20.0, total_seconds=60.0, prove_bytes=256 << 20
)
HASTY = replace(LIMITS, quick_seconds=0.05, index_seconds=0.2, prove_seconds=0.2)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such limit")

Open = Callable[..., GrammarCompiler]


@pytest.fixture
def engines(tmp_path: Path) -> tuple[Callable[[object], object], Log]:
    return scripted(tmp_path)


@pytest.fixture
def log(engines: tuple[object, Log]) -> Log:
    return engines[1]


@pytest.fixture
def open_compiler(engines: tuple[Callable[[object], object], Log]) -> Iterator[Open]:
    opened: list[GrammarCompiler] = []

    def open_one(limits: CompileLimits = LIMITS, **options: object) -> GrammarCompiler:
        opened.append(GrammarCompiler(None, limits=limits, build=engines[0], **options))  # type: ignore[arg-type]
        return opened[-1]

    yield open_one
    for compiler in opened:
        compiler.close()
    assert not [child for child in psutil.Process().children() if "worker_process" in str(child.cmdline())]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("radixlm-grammar")]


@pytest.fixture
def compiler(open_compiler: Open) -> GrammarCompiler:
    return open_compiler()


@dataclass(frozen=True)
class Gate:
    """A command that waits until it is opened."""

    path: Path

    @property
    def command(self) -> str:
        return f"wait {self.path}"

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def cheap(command: str) -> GrammarSpec:
    return GrammarSpec("json", json.dumps({"const": command}))


def schema(command: str, **more: object) -> GrammarSpec:
    """One that is not compiled at once."""
    relaxed = bool(more.pop("relaxed", False))
    return GrammarSpec("json", json.dumps({"const": command, "pattern": "a", **more}), relaxed)


def regex(command: str) -> GrammarSpec:
    return GrammarSpec("regex", command)


def spec_of(kind: Kind, command: str) -> GrammarSpec:
    if kind == "choice":
        return GrammarSpec("choice", json.dumps([command, *map(str, range(2000))]))
    return schema(command) if kind == "json" else GrammarSpec(kind, command)


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it has not happened within 30 s"
        time.sleep(0.005)


def result(future: Future[CompiledGrammar]) -> CompiledGrammar:
    return future.result(60)


def refusal(future: Future[CompiledGrammar]) -> str:
    error = future.exception(60)
    assert type(error) is InvalidRequest
    return str(error)


# -- what is done where --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "choice", "lark"])
def test_what_can_be_hostile_is_done_in_the_worker_before_it_is_done_here(
    compiler: GrammarCompiler, log: Log, kind: Kind
) -> None:
    assert compiler.compile(spec_of(kind, "word a")) == ScriptedGrammar(kind, "word a", "direct")
    assert log.calls == [Call("direct", kind, "word a", False), Call("direct", kind, "word a", True)]


@pytest.mark.parametrize("kind", ["gbnf", "tags"])
def test_what_can_be_translated_is_translated_in_the_worker(
    compiler: GrammarCompiler, log: Log, kind: Kind
) -> None:
    compiled = compiler.compile(spec_of(kind, "word a"))
    assert compiled == ScriptedGrammar("lark", "word a, as lark", "direct")
    assert log.calls == [
        Call("direct", kind, "word a", False),
        Call("direct", "lark", "word a, as lark", True),
    ]


def test_the_index_of_a_regex_is_made_in_the_worker_and_sent(compiler: GrammarCompiler, log: Log) -> None:
    assert compiler.compile(regex("word a")) == ScriptedGrammar("regex", "word a", "index")
    assert log.calls == [Call("index", "regex", "word a", False)]


@pytest.mark.parametrize(
    ("spec", "engine"),
    [
        (cheap("word a"), "direct"),
        (GrammarSpec("choice", '["word a","b"]'), "index"),
        (GrammarSpec("choice", json.dumps(["word a", "b" * 60])), "direct"),
    ],
)
def test_what_is_cheap_is_done_here_at_once_and_starts_no_process(
    compiler: GrammarCompiler, log: Log, spec: GrammarSpec, engine: str
) -> None:
    compiler.compile(spec)
    assert log.calls == [Call(engine, spec.kind, "word a", True)]
    assert compiler.stats().worker_starts == 0


def test_what_the_first_specs_need_can_be_there_before_them(compiler: GrammarCompiler) -> None:
    compiler.prepare()
    starts = compiler.stats().worker_starts
    assert starts == 4
    compiler.compile(GrammarSpec("regex", "a+"))
    assert compiler.stats().worker_starts == starts


def test_a_choice_that_the_index_engine_refuses_goes_to_the_other(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("choice", '["index-refuse x"]')
    assert compiler.compile(spec) == ScriptedGrammar("choice", "index-refuse x", "direct")


@pytest.mark.parametrize("trouble", ["refuse x", "crash", pytest.param("eat", marks=linux)])
def test_where_the_index_engine_fails_the_other_takes_over(
    compiler: GrammarCompiler, log: Log, trouble: str
) -> None:
    compiled = compiler.compile(regex(f"index-{trouble}"))
    assert compiled == ScriptedGrammar("regex", f"index-{trouble}", "direct")
    assert [(call.engine, call.is_here) for call in log.calls] == [
        ("index", False),
        ("direct", False),
        ("direct", True),
    ]


@linux
def test_where_the_index_engine_takes_too_long_the_other_takes_over(open_compiler: Open, log: Log) -> None:
    compiler = open_compiler(HASTY)
    assert compiler.compile(regex("index-loop")) == ScriptedGrammar("regex", "index-loop", "direct")
    assert compiler.stats().put_aside == 1


@pytest.mark.parametrize("pattern", ["(a{100}){101}", "((a{30}b){30}){30}"])
def test_what_makes_an_index_too_large_is_not_tried(
    compiler: GrammarCompiler, log: Log, pattern: str
) -> None:
    compiler.compile(regex(pattern))
    assert {call.engine for call in log.calls} == {"direct"}


# -- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["json", "lark", "gbnf", "tags"])
def test_what_the_engine_refuses_is_refused(compiler: GrammarCompiler, kind: Kind) -> None:
    assert refusal(compiler.submit(spec_of(kind, "refuse x"))) == "direct refuses 'x'"


def test_a_regex_that_both_engines_refuse_is_refused_for_both_reasons(compiler: GrammarCompiler) -> None:
    message = refusal(compiler.submit(regex("refuse x")))
    assert message == "regex cannot be compiled: index refuses 'x'; direct refuses 'x'"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("json", "json_schema"), ("lark", "grammar"), ("gbnf", "grammar"), ("tags", "structural_tag")],
)
def test_what_ends_the_process_is_refused_and_the_next_is_compiled(
    compiler: GrammarCompiler, kind: Kind, name: str
) -> None:
    reason = "it is more than its engine can do (ended by SIGABRT)"
    assert refusal(compiler.submit(spec_of(kind, "crash"))) == f"{name} cannot be compiled: {reason}"
    compiler.compile(spec_of(kind, "word a"))


@linux
@pytest.mark.parametrize("kind", ["json", "regex", "choice", "lark", "tags"])
def test_what_never_ends_is_refused_and_the_next_is_compiled(open_compiler: Open, kind: Kind) -> None:
    compiler = open_compiler(HASTY)
    message = refusal(compiler.submit(spec_of(kind, "loop")))
    assert message.endswith(" cannot be compiled: it takes longer than 0.2 s")
    compiler.compile(spec_of(kind, "word a"))


@linux
def test_what_takes_all_memory_is_refused(compiler: GrammarCompiler) -> None:
    message = refusal(compiler.submit(schema("eat")))
    assert message == "json_schema cannot be compiled: it takes more memory than there is for it"


def test_a_regex_outside_the_dialect_reaches_no_engine(compiler: GrammarCompiler, log: Log) -> None:
    assert refusal(compiler.submit(regex("not-rust"))) == "regex holds what is not supported"
    assert log.calls == []


def test_a_failure_is_remembered(compiler: GrammarCompiler, log: Log) -> None:
    for _ in range(3):
        assert refusal(compiler.submit(schema("refuse x"))) == "direct refuses 'x'"
    assert len(log.calls) == 1
    assert compiler.stats().cache.failures == 1
    assert compiler.stats().failed == 1


def test_each_caller_gets_an_exception_of_its_own(compiler: GrammarCompiler, gate: Gate) -> None:
    first, second = (compiler.submit(schema("refuse x")) for _ in range(2))
    assert refusal(first) == refusal(second)
    assert first.exception() is not second.exception()


# -- relaxed -------------------------------------------------------------------------------------------


def test_what_masks_do_not_enforce_is_refused_by_name_and_place(compiler: GrammarCompiler, log: Log) -> None:
    message = refusal(compiler.submit(schema("word a", **{"x-leave-out": ["not", "contains"]})))
    assert message == (
        "json_schema asks for what cannot be enforced token by token: 'not' at /not (it is left out); "
        "'contains' at /contains (it is left out). With relaxed, the finished text is checked for it instead"
    )
    assert log.calls == []


def test_a_long_list_of_what_is_not_enforced_is_cut_short(compiler: GrammarCompiler) -> None:
    keywords = [f"k{number}" for number in range(1500)]
    message = refusal(compiler.submit(schema("word a", **{"x-leave-out": keywords})))
    assert "'k7' at /k7" in message
    assert "'k8'" not in message
    assert "; and 1,492 more." in message


def test_relaxed_it_is_compiled_and_the_finished_text_is_checked(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(schema("word a", relaxed=True, **{"x-leave-out": ["not"]}))
    assert [item.keyword for item in compiled.report.unenforced] == ["not"]
    assert compiled.check("word a") is None
    assert compiled.check("word b") == "'word b' is not 'word a'"


@linux
def test_a_check_that_never_ends_is_a_failed_check(open_compiler: Open) -> None:
    compiler = open_compiler(HASTY)
    compiled = compiler.compile(schema("word a", relaxed=True, **{"x-leave-out": ["not"]}))
    assert compiled.check("loop") == "the check of the text takes longer than 0.05 s"
    assert compiled.check("word a") is None


def test_relaxed_means_nothing_where_masks_enforce_all(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(schema("word a", relaxed=True))
    assert compiled.report.is_exact
    assert compiled.check("whatever") is None


# -- who waits for whom --------------------------------------------------------------------------------


def test_a_grammar_is_compiled_once_and_then_known(compiler: GrammarCompiler, log: Log) -> None:
    first = compiler.compile(schema("word a"))
    assert compiler.compile(schema("word a")) is first
    assert len(log.calls) == 2
    stats = compiler.stats()
    assert (stats.compiled, stats.pending, stats.cache.hits, stats.cache.misses) == (1, 0, 1, 1)


def test_equal_specs_in_progress_are_one_job_with_a_future_each(
    compiler: GrammarCompiler, log: Log, gate: Gate
) -> None:
    futures = [compiler.submit(regex(gate.command)) for _ in range(5)]
    assert compiler.stats().pending == 1
    gate.open()
    assert len({id(future) for future in futures}) == 5
    assert len({id(result(future)) for future in futures}) == 1
    assert len(log.calls) == 1


def test_cancelling_a_future_takes_the_answer_from_nobody_else(compiler: GrammarCompiler, gate: Gate) -> None:
    first, second = (compiler.submit(regex(gate.command)) for _ in range(2))
    assert first.cancel()
    gate.open()
    assert isinstance(result(second), ScriptedGrammar)


def test_what_nobody_waits_for_any_more_is_not_compiled(
    compiler: GrammarCompiler, log: Log, gate: Gate
) -> None:
    blocking = compiler.submit(regex(gate.command))
    unwanted = compiler.submit(regex("word a"))
    wanted_again = compiler.submit(regex("word b"))
    assert unwanted.cancel()
    assert wanted_again.cancel()
    last = compiler.submit(regex("word b"))
    gate.open()
    assert result(blocking)
    assert result(last)
    assert [call.text for call in log.calls] == [gate.command, "word b"]
    assert compiler.stats().pending == 0


def test_neither_what_is_cheap_nor_schemas_wait_for_regexes(compiler: GrammarCompiler, gate: Gate) -> None:
    slow = [compiler.submit(regex(f"{gate.command}{end}")) for end in ("", "-2", "-3")]
    assert result(compiler.submit(cheap("word a")))
    assert result(compiler.submit(schema("word a")))
    assert result(compiler.submit(GrammarSpec("tags", "word a")))
    assert not any(future.done() for future in slow)


def test_what_is_cheap_does_not_wait_for_schemas(compiler: GrammarCompiler, gate: Gate) -> None:
    slow = compiler.submit(schema(gate.command))
    assert result(compiler.submit(cheap("word a")))
    assert result(compiler.submit(regex("word a")))
    assert not slow.done()


@linux
def test_what_takes_long_is_put_aside_for_those_behind_it(open_compiler: Open, log: Log) -> None:
    compiler = open_compiler(replace(LIMITS, quick_seconds=0.1))
    long = [compiler.submit(schema(f"spin 0.5{number}")) for number in range(2)]
    short = compiler.submit(schema("word a"))
    assert result(short)
    assert not long[1].done()
    assert [result(future) for future in long]
    assert compiler.stats().put_aside == 2


def test_too_many_that_wait_are_refused_and_not_remembered(open_compiler: Open, gate: Gate) -> None:
    compiler = open_compiler(replace(LIMITS, most_waiting=3))
    waiting = [compiler.submit(regex(command)) for command in (gate.command, "word a", "word b")]
    assert refusal(compiler.submit(cheap("word c"))) == "3 grammars wait to be compiled; try again later"
    joining = compiler.submit(regex("word b"))
    gate.open()
    assert all(result(future) for future in [*waiting, joining])
    assert result(compiler.submit(cheap("word c")))


def test_one_that_has_waited_too_long_is_refused_and_not_remembered(
    open_compiler: Open, log: Log, gate: Gate
) -> None:
    clock = iter([0.0, 1.0, 2.0, 40.0, *[50.0] * 9])  # asked, begun, asked, begun too late
    compiler = open_compiler(now=lambda: next(clock))
    first = compiler.submit(regex(gate.command))
    wait_until(lambda: log.calls)
    second = compiler.submit(regex("word a"))
    gate.open()
    assert result(first)
    assert refusal(second).startswith("the grammar waited more than 30 s for others")
    assert result(compiler.submit(regex("word a")))


def test_a_done_callback_that_raises_harms_nobody(compiler: GrammarCompiler, gate: Gate) -> None:
    first, second = (compiler.submit(regex(gate.command)) for _ in range(2))
    first.add_done_callback(lambda future: future.result().start())
    gate.open()
    assert result(second)
    assert result(compiler.submit(regex("word a")))


def test_the_cache_is_bounded_in_bytes(open_compiler: Open) -> None:
    compiler = open_compiler(cache_bytes=50_000)
    for number in range(40):
        compiler.compile(cheap(f"size 5000 {number}"))
        assert compiler.stats().cache.bytes <= 50_000
    stats = compiler.stats()
    assert stats.compiled == 40
    assert stats.cache.entries == 8
    assert stats.cache.evictions == 32


# -- the end -------------------------------------------------------------------------------------------


def test_closing_answers_what_runs_and_what_waits(compiler: GrammarCompiler, gate: Gate) -> None:
    futures = [compiler.submit(regex(command)) for command in (gate.command, "word a", "word b")]
    futures += [compiler.submit(schema(gate.command))]
    compiler.close()
    assert [type(future.exception(60)) for future in futures] == [EngineStopped] * 4


def test_once_closed_everything_is_refused_even_what_is_cached(compiler: GrammarCompiler) -> None:
    compiler.compile(cheap("word a"))
    compiler.close()
    compiler.close()
    assert isinstance(compiler.submit(cheap("word a")).exception(0), EngineStopped)


def test_it_may_be_closed_by_a_done_callback(compiler: GrammarCompiler) -> None:
    closed = threading.Event()

    def close(future: Future[CompiledGrammar]) -> None:
        compiler.close()
        closed.set()

    compiler.submit(regex("word a")).add_done_callback(close)
    assert closed.wait(60)


def test_threads_that_close_and_submit_at_once_get_an_answer_each(open_compiler: Open) -> None:
    for _ in range(5):
        compiler = open_compiler()
        answers: list[BaseException | None] = []

        def ask(compiler: GrammarCompiler = compiler, answers: list[BaseException | None] = answers) -> None:
            for number in range(50):
                answers.append(compiler.submit(cheap(f"word {number}")).exception(60))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        compiler.close()
        for thread in threads:
            thread.join()
        assert len(answers) == 150
        assert {type(answer) for answer in answers} <= {EngineStopped, type(None)}


def test_dropping_it_answers_what_waits_and_ends_its_threads(
    engines: tuple[Callable[[object], object], Log], gate: Gate
) -> None:
    compiler = GrammarCompiler(None, limits=LIMITS, build=engines[0])  # type: ignore[arg-type]
    future = compiler.submit(regex(gate.command))
    wait_until(lambda: engines[1].calls)
    del compiler
    gc.collect()
    assert isinstance(future.exception(60), EngineStopped)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("radixlm-grammar")])


def test_a_relaxed_grammar_that_outlives_it_says_that_texts_are_not_checked(
    compiler: GrammarCompiler,
) -> None:
    compiled = compiler.compile(schema("word a", relaxed=True, **{"x-leave-out": ["not"]}))
    compiler.close()
    assert compiled.check("word a") == "the text could not be checked: the grammar compiler is closed"


# -- other programs ------------------------------------------------------------------------------------


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-W", "error", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_program_may_end_with_work_in_progress_and_without_closing(tmp_path: Path) -> None:
    done = run_program(f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(testkit.__file__).parent.parent)!r})
from testkit.scripted_engines import scripted
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.spec import GrammarSpec
build, log = scripted(Path({str(tmp_path)!r}))
compiler = GrammarCompiler(None, build=build)
futures = [compiler.submit(GrammarSpec("regex", f"wait {tmp_path}/never-{{n}}")) for n in range(9)]
print(compiler.compile(GrammarSpec("choice", '["word a"]')).text)
while len(log.calls) < 2:
    time.sleep(0.001)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "word a\n", "")


def test_importing_it_loads_no_engine() -> None:
    engines = {"torch", "transformers", "llguidance", "outlines_core", "jsonschema"}
    done = run_program(
        f"import sys, radixlm.runtime.grammar.compiler; print(sorted({engines} & {{*sys.modules}}))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
