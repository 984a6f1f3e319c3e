"""`radixlm score`: contexts and continuations from a file through the engine, scores and figures to files.

Everything that can be wrong with the input is found before the model is loaded. An item that the engine
refuses gets a line that has `error`, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from ..progress import progress_bar
from ..results_file import score_line, write_figures
from ..score_file import read_items
from .engine_view import OpenEngine
from .files import add_file_flags, check_targets, report_errors, write_results
from .options import add_engine_flags, engine_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_flags(parser, "scores")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    config = engine_config(arguments)
    lines = read_items(arguments.prompts)
    check_targets(arguments)
    with open_engine(config) as engine:
        begin = perf_counter()
        with progress_bar(len(lines), unit="item") as on_progress:
            scores = engine.score([line.item for line in lines], on_progress=on_progress)
        seconds = perf_counter() - begin
        stats = engine.stats()
    texts = [score_line(score, line.id) for line, score in zip(lines, scores, strict=True)]
    write_results(arguments.output, texts)
    if arguments.stats is not None:
        write_figures(arguments.stats, stats, items_per_s=len(scores) / seconds)
    failed = [(score.id, score.error) for score in scores if score.error is not None]
    return report_errors("score", "items", len(scores), failed)
