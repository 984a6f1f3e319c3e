"""What is not the model: the share of wall time that goes to the tree, copies, planning and batches."""

from __future__ import annotations

import statistics
from time import perf_counter

import numpy as np
from common import Report
from engine_runs import decode_steps, difference, fixed_length, open_engine, timed_copies
from workloads import unique_prompts

from radixlm.kernels.plan import AttentionSpec, PlanOptions, build_plan


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


def planning(report: Report) -> None:
    """The attention plan of 256 rows x 528 pages that share on five levels, whole and cut for 66 workers."""
    rows, pages, size = 256, 528, 16
    steps = (256, 384, 448, 480, 496)  # pages after which groups of rows part: all, 64, 16, 4 and 2 of them
    groups = (rows, 64, 16, 4, 2, 1)
    tables = []
    for row in range(rows):
        table = np.empty(pages, dtype=np.int32)
        for low, high, group in zip((0, *steps), (*steps, pages), groups, strict=True):
            table[low:high] = np.arange(low, high) + pages * (row // group) * group
        tables.append(table)
    stops = [pages * size] * rows
    starts = [stop - 1 for stop in stops]
    for workers in (1, 66):
        seconds = []
        for _ in range(20 if report.options.quick else 300):
            start = perf_counter()
            build_plan(
                tables,
                starts,
                stops,
                page_size=size,
                spec=AttentionSpec(0.125),
                options=PlanOptions(workers=workers),
            )
            seconds.append(1000 * perf_counter() - 1000 * start)
        report.keep(f"plans for {workers} workers, ms", best=min(seconds), median=statistics.median(seconds))
        report.at_most(
            f"planning {rows} rows x {pages} pages on five levels, {workers} workers",
            statistics.median(seconds),
            1.0,
            "ms",
        )
