"""Steps of a check on a device, in their order, and the file that tells what they found.

A step is a generator of rows. After every row the file is written again, whole, so that whatever ends the run
leaves what was found before. A wrong number, or an error, ends the run; a goal that does not hold is told and
the run goes on; a step that is out of time leaves its other rows out, which is told too.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Literal

import torch

ROOT = Path(__file__).resolve().parents[4]
_LIBRARIES = ("torch", "triton", "transformers", "tokenizers", "numpy", "numba", "gguf")

Verdict = Literal["right", "wrong", "holds", "does not hold", "measured", "not timed", "left out"]
Figures = Mapping[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what it is about, what was found, and what that means. Only "wrong" ends the run."""

    name: str
    verdict: Verdict
    figures: Figures = field(default_factory=dict)

    def __str__(self) -> str:
        figures = "  ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        return f"  {self.verdict:<14}{self.name}  {figures}".rstrip()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the check runs. is_small: in the interpreter, where sizes are tiny and nothing is timed."""

    device: torch.device
    is_small: bool

    @classmethod
    def found(cls) -> Place:
        has_gpu = torch.cuda.is_available()
        return cls(torch.device("cuda" if has_gpu else "cpu"), not has_gpu)


@dataclass(frozen=True, slots=True)
class Step:
    """budget: seconds after which no further row is begun."""

    name: str
    budget: float
    rows: Callable[[Place], Iterator[Row]]


@dataclass(slots=True)
class _Done:
    """ended: "all rows", "out of time", "wrong" or the error; seconds so far."""

    name: str
    budget: float
    seconds: float = 0.0
    ended: str = "running"
    rows: list[Row] = field(default_factory=list)


def run(steps: Sequence[Step], place: Place, out: Path) -> int:
    """Writes out/check.json. Returns the exit status: 1 if a number was wrong, a step failed or was cut."""
    out.mkdir(parents=True, exist_ok=True)
    about = describe(place)
    print(json.dumps(about))
    if place.is_small:
        print("no GPU here: tiny sizes, in Triton's interpreter; nothing is timed and no goal is looked at")
    started, done = perf_counter(), list[_Done]()

    def write() -> None:
        document = {**about, "seconds": perf_counter() - started, "steps": [asdict(one) for one in done]}
        partial = out / "check.json.part"
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(out / "check.json")

    for step in steps:
        print(f"{step.name} (at most {step.budget:g} s)", flush=True)
        done.append(_Done(step.name, step.budget))
        _walk(step, place, done[-1], write)
        print(f"  {done[-1].ended}, {done[-1].seconds:.1f} s", flush=True)
        if done[-1].ended not in ("all rows", "out of time"):
            break
    rows = [row for one in done for row in one.rows]
    missed = [row.name for row in rows if row.verdict == "does not hold"]
    judged = len(missed) + sum(row.verdict == "holds" for row in rows)
    told = f"{judged} goals looked at, not held: {', '.join(missed) or 'none'}"
    print(f"{perf_counter() - started:.0f} s; {told}")
    return 0 if len(done) == len(steps) and all(one.ended == "all rows" for one in done) else 1


def _walk(step: Step, place: Place, done: _Done, write: Callable[[], None]) -> None:
    started = perf_counter()
    try:
        for row in step.rows(place):
            done.rows.append(row)
            done.seconds = perf_counter() - started
            print(row, flush=True)
            write()
            if row.verdict == "wrong":
                done.ended = "wrong"
                return
            if done.seconds > step.budget:
                done.ended = "out of time"
                return
        assert done.rows, f"step {step.name} has rows"
        done.ended = "all rows"
    except Exception as error:
        traceback.print_exc()
        done.ended = f"failed: {type(error).__name__}: {error}"
    finally:
        done.seconds = perf_counter() - started
        write()


def describe(place: Place) -> dict[str, object]:
    """The machine, the versions and the commit; nothing of it can fail."""
    device: dict[str, object] = {"name": platform.processor() or platform.machine()}
    if place.device.type == "cuda":
        found = torch.cuda.get_device_properties(place.device)
        device = {
            "name": found.name,
            "capability": f"{found.major}.{found.minor}",
            "multiprocessors": found.multi_processor_count,
            "memory": found.total_memory,
            "cuda": torch.version.cuda,
        }
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "commit": _commit(),
        "device": device,
        "is_small": place.is_small,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not there"


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
