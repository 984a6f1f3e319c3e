"""Ours and every peer that is asked for and installed, on the same token ids, in the same run.

    python -P benchmarks/bench.py --peers transformers,vllm,openvino,llamacpp --data FOLDER --out bench.json

docs/benchmarks.md says how peers are set up, what is compared and what is fair about it. A run that measured
no peer says so and exits with 1, as one in which a figure does not hold.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import contenders
import machine
import render
import rows_engine
import rows_generate
import rows_score
from common import MODEL, Report, command_line, say
from field import OURS, Field, label
from peers.base import Contender, PeerFailed
from peers.child import Unavailable
from rows_generate import QUICK, Setting, Sizes

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.tokenizer import Tokenizer

ROWS = ("quality", "stream", "unique", "shared", "prefill", "scoring", "chat", "growth", "roofline")


def main() -> int:
    parser = command_line(__doc__ or "")
    contenders.add_options(parser)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="holds mmlu/ and gsm8k/")
    parser.add_argument(
        "--rows",
        type=_rows,
        default=list(ROWS),
        metavar="ROW,...",
        help=f"of {', '.join(ROWS)} (default: all)",
    )
    parser.add_argument("--repeats", type=int, default=3, help="of everything timed (default: 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not what it says")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contenders, who are stopped, end too
    report = Report("peers", options)
    with tempfile.TemporaryDirectory() as logs:
        run(report, Path(logs))
    status = report.finish()
    if options.out is not None:
        render.render(report.record(), options.out.with_suffix(".md"))
    return status


def run(report: Report, logs: Path) -> None:
    options = report.options
    quick: Mapping[str, int] = QUICK if options.quick else {}
    encode = Tokenizer.load(resolve_model(MODEL), user_cache()).encode
    chosen: list[Contender] = [contenders.ours(row, options, logs) for row in contenders.OURS]
    for name in options.peers:
        try:
            chosen += contenders.peer_rows(name, options, logs)
        except contenders.Missing as error:
            report.note(name, f"not installed: {error}")
    with Field(report, chosen) as field:
        sizes = Sizes(1 if options.quick else options.repeats, **quick)
        setting = Setting(field, encode, sizes, _roofline(report, field))
        with _reference(field, logs) as reference:
            rows_score.gate(setting, reference)
        for row in options.rows:
            say(f"{row}:")
            try:
                _workloads(options)[row](setting)
            except (PeerFailed, Unavailable) as error:
                report.holds(row, [str(error)], 1)
            report.keep("speeds", lines=[asdict(line) for line in field.lines])
        measured = {name for line in field.lines for name in line.repeats if not name.startswith(OURS)}
        report.at_least("rows of peers that were measured", len(measured), 1)


def _workloads(options: argparse.Namespace) -> Mapping[str, Callable[[Setting], None]]:
    data: Path | None = options.data
    quick: bool = options.quick
    return {
        **rows_generate.WORKLOADS,
        "scoring": lambda setting: rows_score.scoring(
            setting, data, subjects=2 if quick else 16, questions=3 if quick else 25
        ),
        "quality": lambda setting: rows_score.quality(
            setting, data, windows=1 if quick else 4, length=64 if quick else 512
        ),
        "growth": lambda setting: rows_engine.growth(setting, quick=quick),
        "roofline": lambda setting: rows_engine.roofline(setting, quick=quick),
    }


@contextmanager
def _reference(field: Field, logs: Path) -> Iterator[Contender]:
    """transformers in float32: the one that takes part, or one for this alone."""
    found = next((c for c in field.there if label(c) == "transformers float32"), None)
    if found is not None:
        yield found
        return
    alone = contenders.peer_rows("transformers", field.report.options, logs / "reference")[0]
    try:
        alone.start()
        yield alone
    finally:
        alone.stop()


def _roofline(report: Report, field: Field) -> machine.Roofline | None:
    """Measured while everybody else is stopped; the sizes of the model are those ours tells."""
    mine = field.ours("float32")
    if mine is None:
        return None
    notes = report.details[label(mine)]["notes"]
    measured = machine.measure(report.options.threads, notes["matrix_parameters"])
    report.keep("machine", **asdict(measured))
    for row, speed in measured.copy.items():
        name = f"copy bandwidth at the size of the {row} weights, read and written"
        report.note(name, f"{speed / 1e9:.1f} GB/s", speed)
    for row, speed in measured.rates.items():
        report.note(f"matrix rate, {row}", f"{speed / 1e9:.0f} GFLOP/s", speed)
    sizes = ("matrix_parameters", "layer_parameters", "kv_values_a_token", "attention_operations_a_pair")
    return machine.Roofline(measured, **{name: notes[name] for name in sizes})


def _rows(text: str) -> list[str]:
    names = [name for name in text.replace(" ", ",").split(",") if name]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown row {unknown[0]!r}, allowed are {', '.join(ROWS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
