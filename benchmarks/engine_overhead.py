"""What is not the model: the share of wall time that goes to the tree, copies, planning and batches."""

from __future__ import annotations

import statistics

from common import Report
from engine_runs import decode_steps, difference, fixed_length, open_engine, timed_copies
from workloads import unique_prompts


def bookkeeping(report: Report) -> None:
    """64 prompts that share nothing, which is all cost and no gain; then the same 64 rows decoding."""
    options = report.options
    rows, length, steps = (8, 32, 4) if options.quick else (64, 128, 32)
    repeats = 1 if options.quick else options.repeats
    whole: list[dict[str, float]] = []
    decoding: list[dict[str, float]] = []
    with open_engine(options.threads, max_running=rows) as engine:
        prompts = unique_prompts(engine.tokenizer.encode, rows, length, seed=12)
        decode_steps(engine, prompts, 2)  # warm-up
        for _ in range(repeats):
            engine.flush()
            before = engine.stats()
            with timed_copies() as copies:
                engine.generate(prompts, fixed_length(steps))
            counted = difference(before, engine.stats())
            whole.append({**counted, "copies_s": sum(copies), "copies": len(copies)})
            decoding.append(decode_steps(engine, prompts, steps).counted)
    report.keep(f"{rows} unique prompts", runs=whole)
    report.keep(f"{rows} rows decoding", runs=decoding)
    report.at_most(
        f"radix + copies + publish over wall, {rows} unique prompts of {length} tokens",
        statistics.median((run["radix_s"] + run["copies_s"]) / run["wall_s"] for run in whole),
        0.01,
        "%",
    )
    report.at_most(
        f"radix over wall in decoding, {rows} rows",
        statistics.median(run["radix_s"] / run["wall_s"] for run in decoding),
        0.003,
        "%",
    )
    report.at_most(
        f"scheduling + batch building over wall in decoding, {rows} rows",
        statistics.median(run["schedule_s"] / run["wall_s"] for run in decoding),
        0.03,
        "%",
    )
