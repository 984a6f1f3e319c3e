"""`radixlm grammar check`: whether a grammar can be enforced, and whether texts are of it.

Only the tokenizer of the model is loaded. A grammar that is refused, and input that is wrong, is status 2; a
text that is not of the grammar makes it 1. Files are read before anything is loaded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from ..byte_size import format_bytes
from ..config import EngineConfig
from ..errors import InvalidInput
from ..grammar.spec import FIELDS, GrammarSpec
from ..grammar.text_walk import find_fault
from ..sampling_params import SamplingParams
from .options import ENGINE_FLAGS
from .standard_output import require_output, write_output

if TYPE_CHECKING:
    from ..grammar.compiler import GrammarCompiler
    from ..grammar.protocol import CompiledGrammar
    from ..grammar.vocabulary import GrammarVocabulary

OpenCompiler: TypeAlias = Callable[[str], "AbstractContextManager[tuple[GrammarCompiler, GrammarVocabulary]]"]
"""The compiler for a model's tokenizer, which is closed at the end, and its vocabulary."""

_SUFFIXES: Mapping[str, str] = {
    ".json": "json",
    ".regex": "regex",
    ".re": "regex",
    ".txt": "choice",
    ".choices": "choice",
    ".lark": "lark",
    ".gbnf": "gbnf",
    ".ebnf": "gbnf",
}
_SCHEMA = GrammarSpec("json", '{"type":"string","pattern":"first"}')
_LARK = GrammarSpec("lark", 'start: "first"')
_FIRST: Mapping[str, tuple[GrammarSpec, ...]] = {
    "json": (_SCHEMA,),
    "tags": (_SCHEMA,),
    "lark": (_LARK,),
    "gbnf": (_LARK,),
    "regex": (GrammarSpec("regex", "first"), _LARK),
    "choice": (GrammarSpec("choice", '["first"]'), _LARK),
}
_RELAXED = (GrammarSpec("json", '{"$comment":"first","type":"array","uniqueItems":true}', relaxed=True),)
"""Compiled before time is taken: whoever is first starts the engines, of which some kinds have two."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="check", prog=parser.prog)
    check = actions.add_parser(
        "check",
        usage=f"{parser.prog} check FILE [options]",
        help="compile the grammar of a file, and hold texts against it",
        description="Compile the grammar of a file, and hold texts against it.",
        formatter_class=parser.formatter_class,
        allow_abbrev=False,
    )
    suffixes = "; ".join(
        f"{kind}: {' '.join(suffix for suffix, of in _SUFFIXES.items() if of == kind)}"
        for kind in dict.fromkeys(_SUFFIXES.values())
    )
    check.add_argument("file", type=Path, metavar="FILE", help="the grammar; a choice has one text a line")
    check.add_argument(
        "--kind",
        choices=FIELDS,
        help=f"what the file holds; not given: by its name ({suffixes}), and tags if it is a structural_tag",
    )
    model = EngineConfig().model
    check.add_argument(
        "--model", default=model, metavar="NAME", help=f"{ENGINE_FLAGS['model'].help} (default: {model})"
    )
    check.add_argument(
        "--relaxed", action="store_true", help="check finished texts for what masks cannot enforce"
    )
    check.add_argument("--compact", action="store_true", help="JSON without whitespace between its parts")
    check.add_argument(
        "--instance",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a text to hold against the grammar; may be repeated",
    )


def run(arguments: argparse.Namespace, open_compiler: OpenCompiler) -> int:
    require_output()
    kind, spec = _read_grammar(arguments)
    instances = [(path, _read(path)) for path in arguments.instance]
    with open_compiler(arguments.model) as (compiler, vocabulary):
        for first in _RELAXED if arguments.relaxed else _FIRST[kind]:
            compiler.compile(first)
        start = perf_counter()
        compiled = compiler.compile(spec)
        write_output(f"{describe(kind, compiled, perf_counter() - start)}\n")
        faults = [_check(compiled, vocabulary, path, text) for path, text in instances]
    return int(any(faults))


def describe(kind: str, compiled: CompiledGrammar, seconds: float) -> str:
    """One aligned line a fact."""
    unenforced = [f"relaxed: {each}" for each in compiled.report.unenforced]
    facts = [
        ("kind", kind),
        *(("enforced", fact) for fact in unenforced or ["exact"]),
        ("compiled", f"in {seconds * 1e3:,.1f} ms, {format_bytes(compiled.size_bytes)}"),
    ]
    return "\n".join(f"{name:<10} {fact}" for name, fact in facts)


def _check(compiled: CompiledGrammar, vocabulary: GrammarVocabulary, path: Path, text: str) -> bool:
    """Write what is to be said of an instance; whether it is at fault. A line break at its very end is a part
    of it only where it is needed."""
    meant = _without_line_break(text)
    fault = find_fault(compiled, vocabulary, meant)
    if fault is None:
        verdict = "valid"
    elif text != meant and find_fault(compiled, vocabulary, text) is None:
        fault, verdict = None, "valid with its last line break"
    else:
        place = "" if fault.character is None else f" at character {fault.character}"
        verdict = f"invalid{place}: {fault.reason}"
    write_output(f"{'instance':<10} {path}: {verdict}\n")
    return fault is not None


def _read_grammar(arguments: argparse.Namespace) -> tuple[str, GrammarSpec]:
    """The kind and the spec, as a request would have it. Raises InvalidInput."""
    text = _without_line_break(_read(arguments.file))
    kind = arguments.kind or _kind(arguments.file, text)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    value = lines if kind == "choice" else text
    options: dict[str, object] = {
        FIELDS[kind]: value,
        "relaxed": arguments.relaxed,
        "compact": arguments.compact,
    }
    if FIELDS[kind] == "grammar":
        options["grammar_kind"] = kind
    spec = SamplingParams.from_mapping(options).structure
    if spec is None:
        raise InvalidInput(f"{arguments.file} is empty")
    return kind, spec


def _kind(path: Path, text: str) -> str:
    kind = _SUFFIXES.get(path.suffix)
    if kind is None:
        kinds = ", ".join(FIELDS)
        raise InvalidInput(f"{path}: the name does not say what it holds; give --kind, one of {kinds}")
    return "tags" if kind == "json" and _is_tag(text) else kind


def _is_tag(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # said better where the schema is read
        return False
    return isinstance(value, dict) and value.get("type") == "structural_tag"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"cannot read {path}: not valid UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a NUL character in the name
        raise InvalidInput(f"cannot read {str(path)!r}: {error}") from error


def _without_line_break(text: str) -> str:
    """All but one line break at the very end, which editors add."""
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
