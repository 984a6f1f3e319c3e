"""Speed, reuse and overhead of the engine on the default model, by itself; bench.py puts it beside others.

    python -P benchmarks/bench_engine.py --out benchmarks/results/bench_engine.json --data FOLDER

FOLDER holds mmlu/ with *_dev.csv and *_test.csv; without it the hit rates are left out. Whether results are
equal is bench_exact.py's matter.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Report, command_line, say
from engine_overhead import bookkeeping, planning
from engine_reuse import hit_rates, page_fill
from engine_speed import shared_decoding

PARTS = {
    "decode": shared_decoding,
    "overhead": bookkeeping,
    "planning": planning,
    "hits": hit_rates,
    "fill": page_fill,
}


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="holds mmlu/")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run")
    parser.add_argument("--repeats", type=int, default=3, help="of everything timed (default: 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not what it says")
    report = Report("engine", parser.parse_args())
    for name in report.options.only:
        say(f"{name}: {PARTS[name].__doc__}")
        PARTS[name](report)
        gc.collect()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
