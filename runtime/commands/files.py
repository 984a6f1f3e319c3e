"""The files of a command that reads JSON lines and writes a result for each, and figures of the run.

Targets are checked before the model is loaded, and files are written after the last result, each whole or not
at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import InvalidInput
from ..results_file import require_writable, write_lines
from .standard_output import require_output, write_note, write_output


def add_file_flags(parser: argparse.ArgumentParser, results: str) -> None:
    files = parser.add_argument_group("files")
    files.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="one JSON object a line (required)"
    )
    files.add_argument("--output", type=Path, metavar="FILE", help=f"{results}; not given: standard output")
    files.add_argument("--stats", type=Path, metavar="FILE", help="figures of the run, as one JSON object")


def check_targets(arguments: argparse.Namespace) -> None:
    """Raises InvalidInput if what the command will give could not be written where it was told to."""
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


def write_results(path: Path | None, texts: Sequence[str]) -> None:
    """One line each, to the file or to standard output."""
    if path is not None:
        write_lines(path, texts)
    else:
        write_output("".join(f"{text}\n" for text in texts))


def report_errors(command: str, results: str, total: int, failed: Sequence[tuple[str, str]]) -> int:
    """The exit status, and a note on those that failed, as (id, error)."""
    if not failed:
        return 0
    name, error = failed[0]
    write_note(
        f"radixlm {command}: {len(failed)} of {total} {results} have an error; the first, {name}: {error}"
    )
    return 1
