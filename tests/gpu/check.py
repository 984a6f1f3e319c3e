"""`make gpu`: everything that only a GPU can tell, in one run of less than eight minutes.

The project need not be installed: the script makes the checkout importable by itself. Nor must what only the
CPU's kernels, GGUF files or a server need be there. Without a GPU it does the same at tiny sizes in Triton's
interpreter, where nothing is timed. What is found is written to OUT/check.json after every row; the first
wrong number ends the run.

Tiny sizes were seen to notice: a partial whose weight lacks the logarithm of its sum, an output or a sum that
is not scaled to a new maximum, a merge of the first partials only, a mask without the offset of its tile,
each filter of sampling off by one id, noise of small tails as a float32 near 1 has it. Offsets of 32 bits
need the memory of a GPU.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    about = "Check kernels and engine on this machine's GPU; without one, tiny sizes in an interpreter."
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, required=True, help="folder for check.json")
    parser.add_argument("--steps", nargs="+", help="only these steps, in their order")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "radixlm").symlink_to(ROOT)
        sys.path[:0] = [folder, str(ROOT / "tests" / "lib")]
        if not glob.glob("/dev/nvidia[0-9]*"):
            os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported
        from testkit.gpu.report import Place, run
        from testkit.gpu.steps import STEPS

        names = [step.name for step in STEPS]
        unknown = sorted(set(options.steps or ()) - set(names))
        if unknown:
            parser.error(f"--steps must be among {', '.join(names)}, got {', '.join(unknown)}")
        chosen = [step for step in STEPS if not options.steps or step.name in options.steps]
        return run(chosen, Place.found(), options.out)


if __name__ == "__main__":
    sys.exit(main())
