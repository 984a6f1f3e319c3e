"""`radixlm run NAME`: a ready program on an engine of its own, or on an endpoint; quality, tokens, reuse and
time.

Programs are found by name when the command runs: the runtime imports neither them nor the language that they
are written in. What is wrong with their data is found before the model is loaded.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InvalidInput, RequestFailed
from ..results_file import require_writable, write_lines
from .engine_view import OpenEngine
from .files import report_errors
from .options import ENGINE_FLAGS, add_engine_flags, engine_config, given
from .standard_output import require_output, write_output

_PACKAGE = __name__.rpartition(".runtime.")[0]
_PROGRAMS = Path(__file__).resolve().parents[2] / "programs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(_names())
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"the program: {names}")
    parser.add_argument("--list", action="store_true", help="say what each program is, and run none")
    data = parser.add_argument_group("program")
    data.add_argument(
        "--data", type=Path, metavar="FILE", help="items as JSON lines; not given: built-in ones"
    )
    data.add_argument(
        "--documents", type=Path, metavar="FOLDER", help="text files to search; not given: built-in ones"
    )
    data.add_argument("--n", type=int, metavar="N", help="run the first N items; not given: all")
    data.add_argument("--out", type=Path, metavar="FILE", help="an answer with its grading, a line an item")
    data.add_argument("--concurrency", type=int, metavar="N", help="most items that run at a time")
    place = parser.add_argument_group("endpoint", "in the place of an engine of this process")
    place.add_argument("--backend", metavar="URL", help="a server: radixlm serve, or SGLang's own")
    place.add_argument("--openai", metavar="URL", help="an endpoint like OpenAI's, for the model of --model")
    place.add_argument(
        "--api-key", metavar="KEY", help="key to send; not given: that of RADIXLM_API_KEY, if any"
    )
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    require_output()
    if arguments.list:
        write_output("".join(f"{name:<22} {_purpose(name)}\n" for name in _names()))
        return 0
    _check(arguments)
    prepared = _prepare(arguments)
    with _backend(arguments, open_engine) as backend, _failures():
        figures = prepared.on(backend, num_threads=arguments.concurrency or "auto", progress_bar=True)
    if arguments.out is not None:
        write_lines(arguments.out, [json.dumps(row, ensure_ascii=False) for row in figures.rows])
    write_output(f"{arguments.name}: {_purpose(arguments.name)}\n\n{figures.text()}\n")
    failed = [(str(row["item"]), str(row["error"])) for row in figures.failed]
    return report_errors(f"run {arguments.name}", "items", len(figures.rows), failed)


def _names() -> list[str]:
    return sorted(path.stem for path in _PROGRAMS.glob("*.py") if path.stem != "__init__")


def _purpose(name: str) -> str:
    """The first sentence of a program, which is not imported for it."""
    text = ast.get_docstring(ast.parse((_PROGRAMS / f"{name}.py").read_bytes())) or ""
    return text.partition("\n")[0]


def _check(arguments: argparse.Namespace) -> None:
    """Raises InvalidInput for a name or for flags that are wrong whatever the data is."""
    names = _names()
    if arguments.name not in names:
        near = difflib.get_close_matches(arguments.name or "", names, n=1, cutoff=0.3)
        said = "no program is named" if arguments.name is None else f"there is no program {arguments.name!r}"
        advice = f"; did you mean {near[0]}?" if near else ""
        raise InvalidInput(f"{said}{advice or '.'} The programs are {', '.join(names)}")
    for flag, value in (("--n", arguments.n), ("--concurrency", arguments.concurrency)):
        if value is not None and value < 1:
            raise InvalidInput(f"{flag} must be at least 1, got {value}")
    if arguments.out is not None:
        require_writable("--out", arguments.out)
    if arguments.backend and arguments.openai:
        raise InvalidInput("--backend and --openai are two places to run in: give one of them")
    if arguments.backend or arguments.openai:
        _check_endpoint(arguments)
    elif arguments.api_key is not None:
        raise InvalidInput("--api-key is for --backend or --openai")


def _check_endpoint(arguments: argparse.Namespace) -> None:
    engine_flags = [name for name in given(arguments, ENGINE_FLAGS) if name != "model" or arguments.backend]
    if engine_flags:
        flag = "--" + engine_flags[0].replace("_", "-")
        raise InvalidInput(f"{flag} is of an engine of this process, and an endpoint has its own")
    if arguments.openai and not hasattr(arguments, "model"):
        raise InvalidInput("--openai needs --model: the name of the model at the endpoint")


# Any: a Run of programs/shared/task.py, which cannot be imported here.
def _prepare(arguments: argparse.Namespace) -> Any:
    prepare = _module("programs.shared.task").prepare
    try:
        return prepare(arguments.name, data=arguments.data, documents=arguments.documents, n=arguments.n)
    except ValueError as error:  # DataError
        raise InvalidInput(str(error)) from error


@contextmanager
def _backend(arguments: argparse.Namespace, open_engine: OpenEngine) -> Iterator[object]:
    if not arguments.backend and not arguments.openai:
        with open_engine(engine_config(arguments)) as engine:
            yield engine.endpoint
        return
    key = arguments.api_key or os.environ.get("RADIXLM_API_KEY")
    try:
        if arguments.backend:
            backend = _module("frontend.endpoint").RuntimeEndpoint(arguments.backend, api_key=key)
        else:
            openai = _module("frontend.openai").OpenAI
            backend = openai(arguments.model, base_url=arguments.openai, api_key=key)
    except _module("frontend.errors").InvalidCall as error:
        raise InvalidInput(str(error)) from error
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def _failures() -> Iterator[None]:
    """What goes wrong in programs, as the command line knows failures."""
    try:
        yield
    except _module("frontend.errors").ProgramError as error:
        raise RequestFailed(str(error)) from error


def _module(name: str) -> ModuleType:
    return import_module(f"{_PACKAGE}.{name}")
