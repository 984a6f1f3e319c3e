"""The record of a run as a Markdown page with plots. Reads what bench.py wrote and measures nothing.

python -P benchmarks/render.py benchmarks/results/bench.json
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DPI = 80
# Any: a record is JSON.
Record = Mapping[str, Any]


def render(record: Record, path: Path) -> None:
    """Write `path` and the plots beside it, which are named after it."""
    plots = [plot for plot in (_speeds(record, path), _growth(record, path), _chat(record, path)) if plot]
    environment = record["environment"]
    machine = environment["machine"]
    quick = record["options"].get("quick")
    parts = [
        "# Benchmark",
        *(
            ["**A quick run: sizes are tiny, and no number here says anything about speed.**"]
            if quick
            else []
        ),
        f"{machine['cpu']}, {machine['cores']} cores, {environment['threads']} threads each; "
        f"{_versions(environment)}; commit {environment['commit']}"
        f"{' with uncommitted changes' if environment['uncommitted_changes'] else ''}; "
        f"started {record['started']}, {record['seconds']:.0f} s, load {record['load_at_start'][0]:.1f}.",
        "## Figures",
        _table(
            ("figure", "asked", "measured", "holds"),
            [(f["name"], f["asked"], f["measured"], _mark(f["holds"])) for f in record["figures"]],
        ),
        "## Speeds",
        "Medians of interleaved repeats. *floor f32* and *floor int8*: what the measured bandwidth and rates "
        "allow, for decoding alone or for the prompt alone. `-`: not measured.",
        _speed_table(record),
        *(f"![{plot.stem}]({plot.name})" for plot in plots),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _lines(record: Record) -> list[Record]:
    found: list[Record] = record["details"].get("speeds", {}).get("lines", [])
    return found


def _names(lines: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line["repeats"]))


def _speed_table(record: Record) -> str:
    lines = _lines(record)
    names = _names(lines)
    rows = []
    for line in lines:
        values = [_number(line["repeats"].get(name)) for name in names]
        floors = [_floor(line["bounds"].get(row)) for row in ("float32", "int8")]
        rows.append((f"{line['name']} ({line['unit']})", *values, *floors))
    return _table(("workload", *names, "floor f32", "floor int8"), rows)


def _speeds(record: Record, path: Path) -> Path | None:
    """One panel a workload: its units differ."""
    lines = [line for line in _lines(record) if line["repeats"]]
    if not lines:
        return None
    columns = 3
    height = -(-len(lines) // columns)
    figure, axes = plt.subplots(height, columns, figsize=(13, 1.9 * height), squeeze=False)
    for axis in axes.flat[len(lines) :]:
        axis.set_visible(False)
    for axis, line in zip(axes.flat, lines, strict=False):
        names = list(line["repeats"])[::-1]
        values = [statistics.median(line["repeats"][name]) for name in names]
        axis.barh(
            names, values, color=["tab:blue" if name.startswith("ours") else "silver" for name in names]
        )
        axis.set_title(textwrap.fill(f"{line['name']}, {line['unit']}", 44), fontsize=7)
        axis.tick_params(labelsize=6)
    return _save(figure, path, "speeds")


def _growth(record: Record, path: Path) -> Path | None:
    curves = record["details"].get("growth of a decode step, milliseconds", {}).get("curves", {})
    what = list(dict.fromkeys(name for found in curves.values() for name in found))
    if not what:
        return None
    figure, axes = plt.subplots(1, len(what), figsize=(3.5 * len(what), 3), squeeze=False)
    for axis, name in zip(axes.flat, what, strict=True):
        for who, found in curves.items():
            xs, ys = zip(*found.get(name, [(0, 0)]), strict=True)
            axis.plot(xs, ys, marker="o", markersize=3, label=who)
        axis.set_xlabel(name, fontsize=8)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=7)
    axes.flat[0].set_ylabel("ms a decode step", fontsize=8)
    axes.flat[0].legend(fontsize=7)
    return _save(figure, path, "growth")


def _chat(record: Record, path: Path) -> Path | None:
    repeats = record["details"].get("chat, milliseconds to the first token by turn", {}).get("repeats", {})
    if not repeats:
        return None
    figure, axis = plt.subplots(figsize=(6, 3))
    for who, runs in repeats.items():
        medians = [statistics.median(turn) for turn in zip(*runs, strict=True)]
        axis.plot(range(1, len(medians) + 1), medians, marker="o", markersize=3, label=who)
    axis.set_xlabel("turn", fontsize=8)
    axis.set_ylabel("ms to the first token", fontsize=8)
    axis.set_yscale("log")
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=6)
    return _save(figure, path, "chat")


# Any: matplotlib's figure.
def _save(figure: Any, path: Path, name: str) -> Path:
    plot = path.with_name(f"{path.stem}-{name}.png")
    figure.tight_layout()
    figure.savefig(plot, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    return plot


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _versions(environment: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in environment["versions"].items())


def _number(repeats: Sequence[float] | None) -> str:
    return f"{statistics.median(repeats):.1f}" if repeats else "-"


def _floor(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _mark(holds: bool | None) -> str:
    return {True: "yes", False: "NO", None: ""}[holds]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    render(json.loads(source.read_text(encoding="utf-8")), source.with_suffix(".md"))
