"""`radixlm generate`: prompts from a file through the engine, completions and figures to files.

Everything that can be wrong with the input is found before the model is loaded, and files are written
after the last completion, each whole or not at all. A prompt that the engine refuses gets a line that
has `error`, and makes the exit status 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import InvalidInput
from ..progress import progress_bar
from ..prompts_file import PromptLine, read_prompts
from ..results_file import require_writable, result_line, write_figures, write_lines
from ..types import Completion
from .engine_view import OpenEngine
from .options import add_engine_flags, add_sampling_flags, engine_config, sampling_params
from .standard_output import require_output, write_note, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("files")
    files.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="one JSON object a line (required)"
    )
    files.add_argument("--output", type=Path, metavar="FILE", help="completions; not given: standard output")
    files.add_argument("--stats", type=Path, metavar="FILE", help="figures of the run, as one JSON object")
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    config = engine_config(arguments)
    sampling = sampling_params(arguments)
    lines = read_prompts(arguments.prompts, sampling)
    _check_targets(arguments)
    with open_engine(config) as engine:
        with progress_bar(len(lines)) as on_progress:
            completions = engine.generate([line.prompt for line in lines], sampling, on_progress=on_progress)
        stats = engine.stats()
    _write_completions(arguments.output, lines, completions)
    if arguments.stats is not None:
        write_figures(arguments.stats, stats)
    return _report_errors(completions)


def _check_targets(arguments: argparse.Namespace) -> None:
    if arguments.output is None:
        require_output()
    files: dict[Path, str] = {arguments.prompts.resolve(): "--prompts"}
    for flag, path in (("--output", arguments.output), ("--stats", arguments.stats)):
        if path is None:
            continue
        target = require_writable(flag, path)
        other = files.setdefault(target, flag)
        if other != flag and (target.is_file() or not target.exists()):
            raise InvalidInput(f"{flag} and {other} are the same file, {str(path)!r}")


def _write_completions(path: Path | None, lines: list[PromptLine], completions: list[Completion]) -> None:
    ids = {line.prompt.id: line.id for line in lines}
    texts = [result_line(completion, ids[completion.id]) for completion in completions]
    if path is not None:
        write_lines(path, texts)
    else:
        write_output("".join(f"{text}\n" for text in texts))


def _report_errors(completions: list[Completion]) -> int:
    failed = [completion for completion in completions if completion.error is not None]
    if not failed:
        return 0
    write_note(
        f"radixlm generate: {len(failed)} of {len(completions)} completions have an error; "
        f"the first, {failed[0].id}: {failed[0].error}"
    )
    return 1
