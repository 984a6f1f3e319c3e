"""The command line: `radixlm generate | score | run | serve | info | demo | grammar`.

Owns the exit status. Every failure that is the caller's is one line on standard error.

    0    all done                       2    the input is wrong: nothing was computed, nothing written
    1    a prompt, text or run failed   130  interrupted

torch is imported after `prepare_environment`, when an engine is opened, and `--help` never imports it.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from .. import __version__
from .commands import demo, generate, grammar, info, run, score, serve
from .commands.engine_view import EngineView, OpenEngine
from .commands.options import ENGINE_FLAGS, fields_as_flags
from .commands.serve import SERVER_FLAGS
from .commands.standard_output import write_note, write_output
from .config import EngineConfig
from .environment import prepare_environment
from .errors import InvalidInput, RadixError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from .grammar.compiler import GrammarCompiler
    from .grammar.vocabulary import GrammarVocabulary
    from .server.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class _Command:
    usage: str
    purpose: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, OpenEngine], int]


_COMMANDS = {
    "generate": _Command(
        "--prompts FILE [options]", "continue the prompts of a file", generate.add_arguments, generate.run
    ),
    "score": _Command(
        "--prompts FILE [options]",
        "score continuations of the contexts of a file",
        score.add_arguments,
        score.run,
    ),
    "run": _Command("NAME [options]", "run a ready program of model calls", run.add_arguments, run.run),
    "serve": _Command(
        "[options]",
        "answer requests over HTTP",
        serve.add_arguments,
        lambda arguments, _: serve.run(arguments, _serve),
    ),
    "info": _Command("[options]", "show model, memory, pool and threads", info.add_arguments, info.run),
    "demo": _Command("[options]", "answer a built-in set of questions", demo.add_arguments, demo.run),
    "grammar": _Command(
        "check FILE [options]",
        "check a grammar, and texts against it",
        grammar.add_arguments,
        lambda arguments, _: _run_grammar(arguments),
    ),
}


def main(argv: Sequence[str] | None = None, *, open_engine: OpenEngine | None = None) -> int:
    """Runs one command and returns the exit status; `open_engine` stands in for the real engine in tests."""
    prepare_environment(os.environ)
    try:
        arguments = build_parser().parse_args(argv)
        return _COMMANDS[arguments.command].run(arguments, open_engine or _open_engine)
    except InvalidInput as error:
        return _fail(error, 2)
    except RadixError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)


def build_parser() -> argparse.ArgumentParser:
    layout = partial(argparse.HelpFormatter, width=100, max_help_position=30)
    parser = _Parser(
        prog="radixlm",
        usage=f"radixlm {{{','.join(_COMMANDS)}}} [options]",
        description="Run prompts that share prefixes through one engine, computing nothing twice.",
        formatter_class=layout,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"radixlm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", parser_class=_Parser)
    for name, command in _COMMANDS.items():
        command.add_arguments(
            commands.add_parser(
                name,
                prog=f"radixlm {name}",
                usage=f"radixlm {name} {command.usage}",
                help=command.purpose,
                description=f"{command.purpose[0].upper()}{command.purpose[1:]}.",
                formatter_class=layout,
                allow_abbrev=False,
            )
        )
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse, with its errors as ours, one line without the usage text, and its help as our output."""

    # Any: what a namespace holds, argparse does not say either.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuses what is unknown before what is missing is asked for: one misspelt flag is often both."""
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        try:
            found, unknown = super().parse_known_args(args)
        finally:
            for action in required:
                action.required = True
        if unknown:
            missing = [_name(action) for action in required if getattr(found, action.dest, None) is None]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._advice(unknown, missing)}")
        return super().parse_known_args(args, namespace)

    def _advice(self, unknown: Sequence[str], missing: Sequence[str]) -> str:
        flags = [name for name in self._option_string_actions if name.startswith("--")]
        word = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        near = [flag for flag in flags if len(word) > 2 and flag.startswith(word)]
        near = near[:3] or difflib.get_close_matches(word, flags, n=1)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; required: {', '.join(missing)}" if missing else ""

    def error(self, message: str) -> NoReturn:
        raise InvalidInput(f"{message} (see `{self.prog} --help`)")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if file is sys.stdout:  # argparse would swallow a failure to write
            write_output(message)
        else:
            super()._print_message(message, file)


def _name(action: argparse.Action) -> str:
    return action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)


def _open_engine(config: EngineConfig) -> EngineView:
    from .engine import Engine  # loads torch

    with fields_as_flags(ENGINE_FLAGS):
        return Engine(config=config)


def _serve(config: EngineConfig, settings: ServerSettings) -> None:
    from .server.engine_face import LocalEngine
    from .server.lifecycle import listen, serve
    from .server.logs import set_up_logs

    set_up_logs(settings.log_level)
    with listen(settings) as listening:
        write_note(f"radixlm: loading {config.model}")
        from .engine import Engine  # loads torch

        with fields_as_flags(ENGINE_FLAGS):
            engine = LocalEngine(Engine(config=config))
        with closing(engine):
            engine.prepare()
            with fields_as_flags(SERVER_FLAGS):
                serve(engine, settings, listening, announce=_announce)
    _leave()


def _leave() -> NoReturn:
    """End the process at once: everything is closed, and taking the interpreter and torch apart would take a
    second or two longer than whoever stops a server may want to wait."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _announce(address: str) -> None:
    write_note(f"radixlm: serving at {address}")


def _run_grammar(arguments: argparse.Namespace) -> int:
    return grammar.run(arguments, _open_compiler)


@contextmanager
def _open_compiler(model: str) -> Iterator[tuple[GrammarCompiler, GrammarVocabulary]]:
    from .embedded import resolve_model, user_cache
    from .grammar.compiler import GrammarCompiler
    from .grammar.vocabulary import GrammarVocabulary
    from .tokenizer import Tokenizer
    from .weights import open_model  # loads torch

    source = open_model(resolve_model(model, with_weights=False), cache=user_cache())
    tokenizer = Tokenizer.load(source.path, user_cache(), source.eos_ids)
    vocabulary = GrammarVocabulary.of(tokenizer, source.config.vocab_size)
    with closing(GrammarCompiler(vocabulary)) as compiler:
        yield compiler, vocabulary


def _fail(reason: object, status: int) -> int:
    write_note(f"radixlm: {' '.join(str(reason).split())}")
    return status


if __name__ == "__main__":
    sys.exit(main())
