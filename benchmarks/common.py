"""What every benchmark shares: its command line, the record of the machine, repeats, figures and the report.

Import it before torch: what it sets in the environment, as the command line does, is read once, when torch
is loaded. A benchmark measures, adds `Figure`s to a `Report` and returns `report.finish()`, which prints one
Markdown table, writes one JSON file with every repeat in it, and is the exit status: 1 if a figure does not
hold.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from radixlm.runtime.environment import prepare_environment

prepare_environment(os.environ)  # as the command line does: passive OpenMP threads and the like

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tests" / "lib"))  # testkit: transformers as a reference, the tiny model
MODEL = "smollm2-135m"

Runs = Mapping[str, Sequence[float]]
"""Every repeat of each thing that was timed, in seconds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `holds` None: printed only, nothing is asked of it here."""

    name: str
    asked: str
    measured: str
    value: float | None
    holds: bool | None


@dataclass(slots=True)
class Report:
    """The figures of one benchmark and what they were computed from."""

    benchmark: str
    options: argparse.Namespace
    figures: list[Figure] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    load_at_start: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def at_least(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self._add(name, f"at least {_show(limit, unit)}", _show(value, unit), value, value >= limit)

    def at_most(self, name: str, value: float, limit: float, unit: str = "") -> None:
        self._add(name, f"at most {_show(limit, unit)}", _show(value, unit), value, value <= limit)

    def equal(self, name: str, value: int, wanted: int) -> None:
        self._add(name, f"{wanted}", f"{value}", value, value == wanted)

    def holds(self, name: str, problems: Sequence[str], count: int) -> None:
        """`count` comparisons were made, and these did not come out."""
        measured = f"{count - len(problems)} of {count}"
        if problems:
            self.keep(f"{name}: problems", problems=list(problems))
            say(f"{name}: {problems[0]}")
        self._add(name, f"{count} of {count}", measured, count - len(problems), not problems)

    def note(self, name: str, measured: str, value: float | None = None) -> None:
        self._add(name, "printed", measured, value, None)

    def keep(self, name: str, **values: object) -> None:
        """Raw numbers for the JSON file."""
        self.details[name] = values

    def _add(self, name: str, asked: str, measured: str, value: float | None, holds: bool | None) -> None:
        self.figures.append(Figure(name, asked, measured, value, holds))
        say(f"{name}: {measured} ({asked})")

    def finish(self) -> int:
        """Print the table, write the JSON file; the exit status."""
        print(_table(self.figures))
        if self.options.out is not None:
            _write(self.options.out, self.record())
        failed = [figure.name for figure in self.figures if figure.holds is False]
        return 1 if failed and not self.options.report_only else 0

    def record(self) -> dict[str, object]:
        """Everything, as the JSON file has it."""
        options = {k: v.name if isinstance(v, Path) else v for k, v in vars(self.options).items()}
        return {
            "benchmark": self.benchmark,
            "options": options,
            "environment": environment(),
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": (datetime.now(UTC) - self.started).total_seconds(),
            "load_at_start": self.load_at_start,
            "figures": [asdict(figure) for figure in self.figures],
            "details": self.details,
        }


def command_line(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write figures and all repeats here")
    parser.add_argument("--report-only", action="store_true", help="exit with 0 even if a figure fails")
    parser.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="of both sides (default: all cores)"
    )
    return parser


def interleave(repeats: int, **runs: Callable[[], float]) -> dict[str, list[float]]:
    """Each run once, and again, `repeats` times: what slows the machine for a while strikes all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            gc.collect()
            seconds[name].append(run())
            say(f"  {name}, repeat {repeat + 1} of {repeats}: {seconds[name][-1]:.4f} s")
    return seconds


def ratio(runs: Runs, over: str, under: str) -> float:
    """Median of one over the median of the other."""
    return statistics.median(runs[over]) / statistics.median(runs[under])


def seconds_of(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def say(line: str) -> None:
    """Progress, which is not part of the report."""
    print(line, file=sys.stderr, flush=True)


# -- the record ----------------------------------------------------------------------------------------


def environment() -> dict[str, object]:
    """Machine, versions, commit, threads: what a number means nothing without."""
    import torch

    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "radixlm")},
        },
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "threads": torch.get_num_threads(),
        "omp_wait_policy": os.environ["OMP_WAIT_POLICY"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _write(path: Path, record: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_json(record) + "\n", encoding="utf-8")


def _json(record: Mapping[str, object]) -> str:
    """A line for each figure and each of the details, so that a later run can be compared by eye."""
    blocks = []
    for name, value in record.items():
        lines = [json.dumps(value)]
        if name == "figures" and isinstance(value, list):
            lines = ["[", ",\n".join(f"  {json.dumps(item)}" for item in value), " ]"]
        elif name == "details" and isinstance(value, dict):
            items = (f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items())
            lines = ["{", ",\n".join(items), " }"]
        blocks.append(f" {json.dumps(name)}: " + "\n".join(lines))
    return "{\n" + ",\n".join(blocks) + "\n}"


def _table(figures: Sequence[Figure]) -> str:
    mark = {True: "yes", False: "NO", None: ""}
    rows = [(f.name, f.asked, f.measured, mark[f.holds]) for f in figures]
    lines = ["| figure | asked | measured | holds |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _show(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g} %" if abs(value) < 0.1 else f"{100 * value:.1f} %"
    return f"{value:.3g}{f' {unit}' if unit else ''}"
