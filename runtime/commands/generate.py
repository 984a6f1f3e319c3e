"""`radixlm generate`: prompts from a file through the engine, completions and figures to files.

Everything that can be wrong with the input is found before the model is loaded. A prompt that the engine
refuses gets a line that has `error`, and makes the exit status 1.
"""

from __future__ import annotations

import argparse

from ..progress import progress_bar
from ..prompts_file import read_prompts
from ..results_file import result_line, write_figures
from .engine_view import OpenEngine
from .files import add_file_flags, check_targets, report_errors, write_results
from .options import add_engine_flags, add_sampling_flags, engine_config, sampling_params


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_flags(parser, "completions")
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    config = engine_config(arguments)
    sampling = sampling_params(arguments)
    lines = read_prompts(arguments.prompts, sampling)
    check_targets(arguments)
    with open_engine(config) as engine:
        with progress_bar(len(lines)) as on_progress:
            completions = engine.generate([line.prompt for line in lines], sampling, on_progress=on_progress)
        stats = engine.stats()
    ids = {line.prompt.id: line.id for line in lines}
    write_results(
        arguments.output, [result_line(completion, ids[completion.id]) for completion in completions]
    )
    if arguments.stats is not None:
        write_figures(arguments.stats, stats)
    failed = [(each.id, each.error) for each in completions if each.error is not None]
    return report_errors("generate", "completions", len(completions), failed)
