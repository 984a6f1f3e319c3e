"""What stays behind after many requests: memory, pages, and requests without an end.

    python -P benchmarks/bench_soak.py --out benchmarks/results/bench_soak.json

A tiny model with random weights: 20,000 requests of one token, watching the resident memory of the process
after the first 2,000; then 2,000 requests of every kind with aborts in every state, recounting the pages
after each step. tests/runtime/test_soak.py runs a small part of both.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import Report, command_line, say

from radixlm.runtime.engine import Engine
from testkit.soak import STATES, random_mix, save_tiny_config, soak


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--requests", type=int, default=20_000, help="of one token (default: 20,000)")
    parser.add_argument("--warm-up", type=int, default=2_000, help="of these, before memory is watched")
    parser.add_argument("--mix", type=int, default=2_000, help="requests of the random mix (default: 2,000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = Report("soak", options)
    with tempfile.TemporaryDirectory() as folder:
        model = str(save_tiny_config(Path(folder)))
        _one_token_requests(model, report)
        _random_mix(model, report)
    return report.finish()


def _one_token_requests(model: str, report: Report) -> None:
    options = report.options
    count, warm_up = options.requests, options.warm_up
    with Engine(
        model, load_format="dummy", page_size=4, num_pages=512, threads=options.threads, seed=options.seed
    ) as engine:
        resident: list[tuple[int, int]] = []

        def watch(done: int, now: int) -> None:
            resident.append((done, now))
            say(f"  {done} requests, {now / 2**20:.1f} MiB")

        done = soak(engine, count, warm_up=warm_up, seed=options.seed, on_progress=watch)
    name = f"{count:,} one-token requests"
    report.at_most(f"{name}: growth of resident memory after {warm_up:,}", done.growth, 0.02, "%")
    report.equal(f"{name}: pages lost", done.lost_pages, 0)
    report.note(f"{name}: pages evicted meanwhile", f"{done.evicted_pages:,}", done.evicted_pages)
    report.keep("one-token requests", **asdict(done), resident=resident)


def _random_mix(model: str, report: Report) -> None:
    options = report.options
    with Engine(
        model,
        load_format="dummy",
        page_size=4,
        num_pages=96,
        max_running=16,
        chunk_size=32,
        threads=options.threads,
        seed=options.seed,
    ) as engine:
        try:
            mix = random_mix(engine, options.mix, seed=options.seed)
            lost: list[str] = []
        except AssertionError as error:
            report.holds("random mix: pages recounted after each step", [str(error)], 1)
            return
    name = f"random mix of {options.mix:,} requests"
    report.holds(f"{name}: free + cached + leased = total, after each step", lost, mix.steps)
    ended = [str(key) for key, count in mix.terminal_events.items() if count != 1]
    ended += ["missing"] * (mix.sequences - len(mix.terminal_events))
    report.holds(f"{name}: sequences with exactly one terminal event", ended, mix.sequences)
    missed = [state for state in STATES if not mix.aborted_in[state]]
    report.holds(f"{name}: states in which something was aborted", missed, len(STATES))
    report.note(f"{name}: aborts", ", ".join(f"{n} {state}" for state, n in sorted(mix.aborted_in.items())))
    report.note(f"{name}: ends", ", ".join(f"{n} {reason}" for reason, n in sorted(mix.ends.items())))
    report.note(f"{name}: preemptions and evicted pages", f"{mix.preemptions:,} and {mix.evicted_pages:,}")


if __name__ == "__main__":
    sys.exit(main())
