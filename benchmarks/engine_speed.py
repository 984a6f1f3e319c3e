"""Speed of a decode step over a long shared prefix, against one over next to none: a ratio of medians of
interleaved repeats in this one process. How it grows in between, and how far it is from the machine's floor,
is bench.py's matter.
"""

from __future__ import annotations

import statistics

from common import Report, interleave, ratio
from engine_runs import decode_steps, open_engine
from workloads import shared_prompts


def shared_decoding(report: Report) -> None:
    """A decode step of 16 rows that share a long prefix over one of rows that share next to nothing."""
    options = report.options
    steps, repeats = (4, 2) if options.quick else (32, options.repeats)
    shared = 200 if options.quick else 1063
    with open_engine(options.threads) as engine:
        encode = engine.tokenizer.encode
        long = shared_prompts(encode, 16, shared=shared, seed=3)
        short = shared_prompts(encode, 16, shared=16, seed=4)
        runs = {
            "long": lambda: statistics.median(decode_steps(engine, long, steps).seconds),
            "short": lambda: statistics.median(decode_steps(engine, short, steps).seconds),
        }
        interleave(1, **runs)
        seconds = interleave(repeats, **runs)
    lengths = {"long": [len(prompt) for prompt in long], "short": [len(prompt) for prompt in short]}
    report.keep("decode step, 16 rows", seconds=seconds, prompt_tokens=lengths)
    report.note(f"decode step, 16 rows, {shared:,} shared tokens", _milliseconds(seconds["long"]))
    report.note("decode step, 16 rows, 16 shared tokens", _milliseconds(seconds["short"]))
    name = f"decode step, 16 rows: {shared:,} shared tokens over 16 shared tokens"
    report.at_most(name, ratio(seconds, "long", "short"), 1.5, "x")


def _milliseconds(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f} ms"
