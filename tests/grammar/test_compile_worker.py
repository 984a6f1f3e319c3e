"""The process for hostile work: what it bounds, what it survives, and that nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from radixlm.runtime.errors import EngineStopped, InvalidRequest, RequestFailed
from radixlm.runtime.grammar.compile_worker import CompileWorker, JobFailed, JobTimedOut
from radixlm.runtime.grammar.worker_process import JobLimits
from testkit import worker_jobs as jobs

LIMITS = JobLimits(seconds=20.0, wall_seconds=60.0, memory_bytes=256 << 20, answer_bytes=1 << 20)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such limit, or does not tell")


@pytest.fixture
def worker() -> Iterator[CompileWorker]:
    worker = CompileWorker(jobs.keep, "the context")
    yield worker
    worker.close()
    assert worker.process_id is None


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it has not happened within 30 s"
        time.sleep(0.005)


def test_a_job_gets_the_context_and_its_arguments(worker: CompileWorker) -> None:
    assert worker.run(LIMITS, jobs.echo, {"a": [1, b"\xff"]}) == ("the context", {"a": [1, b"\xff"]})


def test_the_process_is_started_by_the_first_job_and_serves_the_next(worker: CompileWorker) -> None:
    assert worker.starts == 0
    assert worker.process_id is None
    first = worker.run(LIMITS, jobs.process_id)
    assert first == worker.run(LIMITS, jobs.process_id) != os.getpid()
    assert worker.starts == 1
    assert worker.process_id is not None


def test_it_can_be_started_before_there_is_a_job(worker: CompileWorker) -> None:
    worker.start()
    started = worker.process_id
    worker.start()
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)
    assert worker.process_id == started is not None


def test_what_a_job_refuses_is_refused_here(worker: CompileWorker) -> None:
    with pytest.raises(InvalidRequest, match=r"^regex must not be 'this'$"):
        worker.run(LIMITS, jobs.refuse)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (jobs.divide_by_zero, "failed with ZeroDivisionError: division by zero"),
        (jobs.recurse, "is nested too deeply"),
    ],
)
def test_a_job_that_raises_fails_alone(
    worker: CompileWorker, job: Callable[[object], object], message: str
) -> None:
    worker.start()
    with pytest.raises(JobFailed, match=f"^{message}$"):
        worker.run(LIMITS, job)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)
    assert worker.starts == 1


@pytest.mark.parametrize(
    ("job", "signal_name"),
    [(jobs.overflow_the_stack, "SIGSEGV"), (jobs.abort, "SIGABRT"), (jobs.be_killed, "SIGKILL")],
)
def test_a_job_that_ends_the_process_fails_alone(
    worker: CompileWorker, job: Callable[[object], object], signal_name: str
) -> None:
    with pytest.raises(JobFailed, match=f"is more than its engine can do .ended by {signal_name}."):
        worker.run(LIMITS, job)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


@linux
def test_after_a_crash_nothing_is_set_up_again(worker: CompileWorker) -> None:
    for job in (jobs.overflow_the_stack, jobs.abort, jobs.be_killed) * 3:
        with pytest.raises(JobFailed):
            worker.run(LIMITS, job)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)
    assert worker.starts == 1


@linux
def test_processor_time_is_bounded(worker: CompileWorker) -> None:
    with pytest.raises(JobTimedOut, match=r"^takes longer than 0\.2 s$"):
        worker.run(replace(LIMITS, seconds=0.2), jobs.loop)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


def test_real_time_is_bounded(worker: CompileWorker, tmp_path: Path) -> None:
    worker.start()
    with pytest.raises(JobTimedOut, match=r"^takes longer than 0\.3 s$"):
        worker.run(replace(LIMITS, wall_seconds=0.3), jobs.sleep_long, str(tmp_path / "started"))
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


@linux
def test_memory_is_bounded_for_each_job(worker: CompileWorker) -> None:
    with pytest.raises(JobFailed, match="takes more memory than there is for it"):
        worker.run(replace(LIMITS, memory_bytes=64 << 20), jobs.eat_memory)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


@linux
def test_a_process_that_holds_on_to_memory_is_replaced() -> None:
    worker = CompileWorker(jobs.keep, [])
    limits = replace(LIMITS, memory_bytes=1 << 30)
    first = worker.run(limits, jobs.hold_memory, 300 << 20)
    assert first == worker.run(limits, jobs.hold_memory, 300 << 20)
    assert first != worker.run(limits, jobs.hold_memory, 1)
    worker.close()


def test_the_answer_is_bounded(worker: CompileWorker) -> None:
    assert len(worker.run(LIMITS, jobs.many_bytes, 1 << 19)) == 1 << 19
    with pytest.raises(JobFailed, match=r"^has a result of more than 1 MiB$"):
        worker.run(LIMITS, jobs.many_bytes, 1 << 20)
    assert worker.starts == 1


def test_what_a_job_prints_does_not_come_between_the_answers(
    worker: CompileWorker, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.run(LIMITS, jobs.write_to_standard_output) == b""
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)
    assert capfd.readouterr() == ("", "")


def test_a_process_killed_between_two_jobs_costs_nobody_a_job(worker: CompileWorker) -> None:
    worker.start()
    assert worker.process_id is not None
    os.kill(worker.process_id, signal.SIGKILL)
    wait_until(lambda: worker.process_id is None)
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)


@linux
def test_nor_does_the_one_that_jobs_run_in(worker: CompileWorker) -> None:
    child = worker.run(LIMITS, jobs.process_id)
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(child))
    assert worker.run(LIMITS, jobs.echo, 1) == ("the context", 1)
    assert worker.starts == 1


def test_ctrl_c_does_not_end_it(worker: CompileWorker) -> None:
    assert worker.run(LIMITS, jobs.interrupt_itself) == "alive"


def test_threads_take_turns(worker: CompileWorker) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: worker.run(LIMITS, jobs.echo, number), range(200)))
    assert answers == [("the context", number) for number in range(200)]
    assert worker.starts == 1


def test_a_setup_that_fails_is_told_and_tried_again() -> None:
    worker = CompileWorker(jobs.fail, "no vocabulary")
    for _ in range(2):
        with pytest.raises(RequestFailed, match="cannot be started: failed with ValueError: no vocabulary"):
            worker.run(LIMITS, jobs.echo, 1)
    assert worker.starts == 2
    assert worker.process_id is None
    worker.close()


def test_without_an_interpreter_to_start_it_says_so(
    worker: CompileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RequestFailed, match="the compile process cannot be started: this interpreter"):
        worker.run(LIMITS, jobs.echo, 1)


def test_closing_ends_a_job_in_progress(worker: CompileWorker, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.run, LIMITS, jobs.sleep_long, str(started))
        wait_until(started.exists)
        worker.close()
        with pytest.raises(EngineStopped):
            waiting.result()


def test_once_closed_it_refuses_and_leaves_no_process(worker: CompileWorker) -> None:
    worker.run(LIMITS, jobs.echo, 1)
    started = psutil.Process(worker.process_id)
    processes = [started, *started.children(recursive=True)]
    worker.close()
    worker.close()
    assert not any(map(psutil.Process.is_running, processes)), "not even a zombie is left"
    with pytest.raises(EngineStopped):
        worker.run(LIMITS, jobs.echo, 1)
    with pytest.raises(EngineStopped):
        worker.start()


def test_closing_while_others_ask_ends_all_of_them(worker: CompileWorker) -> None:
    def ask(number: int) -> None:
        while True:
            worker.run(LIMITS, jobs.echo, number)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        wait_until(lambda: worker.starts == 1)
        worker.close()
        for one in asking:
            with pytest.raises(EngineStopped):
                one.result(30)
    assert worker.process_id is None


def test_its_process_loads_neither_torch_nor_transformers(worker: CompileWorker) -> None:
    loaded = set(worker.run(LIMITS, jobs.modules))
    assert not loaded & {"torch", "transformers", "jsonschema", "pydantic"}


# -- other programs ------------------------------------------------------------------------------------

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path[:0] = {path!r}
from testkit import worker_jobs as jobs
from radixlm.runtime.grammar.compile_worker import CompileWorker
from radixlm.runtime.grammar.worker_process import JobLimits
limits = JobLimits(60.0, 60.0, 256 << 20, 1 << 20)
worker = CompileWorker(jobs.keep, 7)
print(worker.run(limits, jobs.process_id), flush=True)
"""


def program(more: str = "") -> str:
    lib = str(Path(jobs.__file__).parent.parent)
    return PROGRAM.format(path=[lib]) + more


def run_program(text: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


def is_gone(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE  # of a parent that is not ours
    except psutil.NoSuchProcess:
        return True


def test_a_program_without_a_main_module_to_import_may_use_it_and_exit_without_closing() -> None:
    done = run_program(program())
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: is_gone(int(done.stdout)))


def test_so_may_a_script_without_a_guard_and_one_read_from_standard_input(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(program())
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    done = subprocess.run([sys.executable, "-P"], input=program(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


@pytest.mark.parametrize("closed", [(0,), (0, 2), (0, 1, 2)])
def test_standard_streams_may_be_closed(closed: tuple[int, ...], tmp_path: Path) -> None:
    result = tmp_path / "result"
    text = program(f"open({str(result)!r}, 'w').write(str(worker.run(limits, jobs.echo, 1)))")
    text = text.replace("print(", "(").replace(", flush=True", "")
    closing = f"import os\nfor number in {closed}: os.close(number)\n"
    run_program(closing + text)
    assert result.read_text() == "(7, 1)"


def test_the_package_may_be_made_importable_by_hand(tmp_path: Path) -> None:
    """Not by the environment's finder, which an isolated interpreter without site-packages has not."""
    import radixlm

    (tmp_path / "radixlm").symlink_to(Path(radixlm.__file__).parent)
    text = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + program()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


@linux
def test_it_ends_with_its_parent_in_the_midst_of_a_job(tmp_path: Path) -> None:
    started = tmp_path / "started"
    text = program(f"worker.run(limits, jobs.sleep_long, {str(started)!r})")
    parent = subprocess.Popen([sys.executable, "-P", "-c", text], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(started.exists)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: is_gone(child))


@linux
def test_ctrl_c_in_the_midst_of_a_job_ends_the_job_and_not_the_program(tmp_path: Path) -> None:
    started = tmp_path / "started"
    more = f"""
try:
    worker.run(limits, jobs.sleep_long, {str(started)!r})
except KeyboardInterrupt:
    print(worker.run(limits, jobs.echo, "after"), worker.starts)
"""
    parent = subprocess.Popen([sys.executable, "-P", "-c", program(more)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    first = parent.stdout.readline()
    wait_until(started.exists)
    parent.send_signal(signal.SIGINT)
    out, _ = parent.communicate(timeout=60)
    assert (parent.returncode, out) == (0, "(7, 'after') 2\n")
    assert re.fullmatch(r"\d+\n", first)
    wait_until(lambda: is_gone(int(first)))


def test_a_worker_may_be_started_and_closed_on_different_threads(worker: CompileWorker) -> None:
    starter = threading.Thread(target=worker.start)
    starter.start()
    starter.join()
    started = worker.process_id
    worker.run(LIMITS, jobs.echo, 1)
    assert worker.process_id == started, "it does not end with the thread that started it"
    closer = threading.Thread(target=worker.close)
    closer.start()
    closer.join()
    assert worker.process_id is None
