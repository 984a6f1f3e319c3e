"""The HTTP endpoint: what it costs, what tenants and hostile clients feel, how it ends, where its engine is.

    python -P benchmarks/bench_http.py --out benchmarks/results/bench_http.json

Servers, load generators and the batch without a server are processes of their own on this machine. Parts can
be chosen with --only, comma-separated: throughput, ttft, tenants, hostile, shutdown, engine-process.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import MODEL, Report, command_line, say
from http_bench import Bench
from http_endpoint import LoadGenerator
from http_faces import faces
from http_hostile import hostile
from http_shutdown import shutdown
from http_speed import first_tokens, throughput
from http_tenants import tenants
from peers.base import PeerFailed

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.tokenizer import Tokenizer

PARTS = {
    "throughput": throughput,
    "ttft": first_tokens,
    "tenants": tenants,
    "hostile": hostile,
    "shutdown": shutdown,
    "engine-process": faces,
}


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,...", help="(default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of everything timed in turns (default: 5)")
    parser.add_argument(
        "--quantization", choices=("none", "int8"), default="none", help="of both sides (default: none)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not what it says")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers, who may be stopped, end too
    report = Report("http", options)
    tokenizer = Tokenizer.load(resolve_model(MODEL), user_cache())
    with tempfile.TemporaryDirectory() as folder, LoadGenerator("client", Path(folder)) as client:
        bench = Bench(report, Path(folder), client, tokenizer)
        for name in options.only:
            say(f"{name}: {PARTS[name].__doc__}")
            try:
                PARTS[name](bench)
            except PeerFailed as error:
                report.holds(name, [str(error)], 1)
    return report.finish()


def _parts(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
