"""The check of a GPU, run without one: every step runs, at tiny sizes, and a wrong number ends the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from radixlm.kernels.plan import PlanOptions
from radixlm.kernels.tree_attention import _MERGE_LEVELS
from testkit import paged
from testkit.gpu import attention, numerics
from testkit.gpu.case import Case, judge
from testkit.gpu.report import Place, Row, Step, run
from testkit.gpu.steps import STEPS

if torch.cuda.is_available():
    pytest.skip("with a GPU the check itself is what to run", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SMALL = Place(torch.device("cpu"), is_small=True)
ABSENT = ("fastapi", "uvicorn", "outlines", "llguidance", "gguf", "numba", "llvmlite")
"""What a machine with a GPU need not have."""

WITHOUT = """
import runpy, sys
absent, sys.argv = sys.argv[1].split(","), sys.argv[2:]
sys.modules.update(dict.fromkeys(absent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_step_runs_where_the_project_is_not_installed(tmp_path: Path) -> None:
    check = [str(ROOT / "tests" / "gpu" / "check.py"), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT, ",".join(ABSENT), *check],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=one_thread(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "check.json").read_text())
    assert [step["name"] for step in report["steps"]] == [step.name for step in STEPS]
    assert {step["ended"] for step in report["steps"]} == {"all rows"}
    verdicts = {step["name"]: {row["verdict"] for row in step["rows"]} for step in report["steps"]}
    assert verdicts["numerics"] == verdicts["overflow"] == verdicts["tokens"] == {"right"}
    assert verdicts["timings"] == {"right", "not timed"}
    assert verdicts["throughput"] == {"not timed"}
    assert report["commit"]
    assert report["versions"]["torch"]


def test_the_budgets_are_less_than_eight_minutes() -> None:
    assert sum(step.budget for step in STEPS) < 8 * 60


CASES = list(numerics.cases(SMALL))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_that_is_slightly_wrong_is_told(case: Case) -> None:
    wrong = replace(case, ours=lambda: spoilt(case))
    assert judge(wrong).verdict == "wrong"


def spoilt(case: Case) -> list[Tensor]:
    """What the reference says, but for a tenth of a percent, or one number, of the last output."""
    *right, last = case.expected(case.dtype)
    if not case.is_exact:
        return [*right, last * 1.001]
    changed = last.clone()
    changed[(-1,) * last.dim()] = 1000
    return [*right, changed]


SOME_GPU = PlanOptions(workers=50)
"""With the options of the engine there; any larger number gives more partials."""


@pytest.mark.parametrize("shape", attention.SHAPES, ids=str)
def test_plans_have_more_partials_a_query_than_the_merge_reads_at_once(shape: attention.Shape) -> None:
    for kind in ("in pieces", "one long row", "two long rows"):
        batch = attention.batches(shape.page_size, SOME_GPU, is_small=False)[kind]
        rows = paged.grow(shape.page_size, batch.specs)
        assert attention.partials_a_query(rows, batch.options) > _MERGE_LEVELS


@pytest.mark.parametrize("shape", attention.SMALL_SHAPES, ids=str)
def test_so_have_the_plans_of_small_sizes(shape: attention.Shape) -> None:
    found = {
        case.name.removeprefix("tree_attention ").split(f" {shape}")[0]: int(case.figures["partials a query"])
        for case in CASES
        if str(shape) in case.name and "attention" in case.name
    }
    assert found.keys() == set(attention.KINDS)
    assert min(found["in pieces"], found["one long row"]) > _MERGE_LEVELS
    assert min(found["decode"], found["mixed"]) > 1


def rows_of(*verdicts: str) -> Callable[[Place], Iterator[Row]]:
    def rows(place: Place) -> Iterator[Row]:
        for i, verdict in enumerate(verdicts):
            yield Row(str(i), verdict)  # type: ignore[arg-type]

    return rows


def report_of(folder: Path) -> list[tuple[str, str, int]]:
    steps = json.loads((folder / "check.json").read_text())["steps"]
    return [(step["name"], step["ended"], len(step["rows"])) for step in steps]


def test_the_first_wrong_number_ends_the_run(tmp_path: Path) -> None:
    steps = [Step("first", 60, rows_of("right", "wrong", "right")), Step("second", 60, rows_of("right"))]
    assert run(steps, SMALL, tmp_path) == 1
    assert report_of(tmp_path) == [("first", "wrong", 2)]


def test_an_error_ends_the_run_and_what_was_found_before_is_kept(tmp_path: Path) -> None:
    def rows(place: Place) -> Iterator[Row]:
        yield Row("found", "right")
        raise ValueError("no such device")

    assert run([Step("first", 60, rows), Step("second", 60, rows)], SMALL, tmp_path) == 1
    assert report_of(tmp_path) == [("first", "failed: ValueError: no such device", 1)]


def test_a_step_out_of_time_leaves_the_rest_of_its_rows_and_the_next_one_runs(tmp_path: Path) -> None:
    steps = [Step("first", 0, rows_of("right", "right")), Step("second", 60, rows_of("right"))]
    assert run(steps, SMALL, tmp_path) == 1
    assert report_of(tmp_path) == [("first", "out of time", 1), ("second", "all rows", 1)]


def test_a_goal_that_does_not_hold_is_told_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([Step("speed", 60, rows_of("does not hold", "holds"))], SMALL, tmp_path) == 0
    assert "2 goals looked at, not held: 0" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_step_is_not_known_by_any_other_name(tmp_path: Path) -> None:
    check = [str(ROOT / "tests" / "gpu" / "check.py"), "--out", str(tmp_path), "--steps", "speed"]
    done = subprocess.run([sys.executable, "-P", *check], capture_output=True, text=True, env=one_thread())
    assert done.returncode == 2
    assert "--steps must be among numerics, overflow, tokens, timings, throughput, got speed" in done.stderr


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
