"""How much of JSON Schema is enforced, and whether anything wrong gets through.

Three questions, each a function from a folder, a way to compile and a vocabulary to figures: the keyword
files of the official test suite (`*.json`, lists of groups with `schema` and `tests`), MaskBench (`*.json`,
one object with `schema` and `tests` each, in the order of their names), and random walks, in which tokens are
drawn from the masks until a text ends, and the text is then checked against the schema.

A text that breaks its schema and was let through as exact is a leak; there may be none. Instances are written
as `json.dumps` writes them, with and without spaces, in the order in which the file has their keys.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.protocol import CompiledGrammar, Grammar, MaskRow
from radixlm.runtime.grammar.schema_check import check_instance
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary

Compile = Callable[[object, bool], CompiledGrammar]
"""A schema, and whether what masks cannot enforce may be left to a check; raises InvalidRequest."""
Figures = dict[str, Any]
"""Counts, shares and lists of texts, for a JSON file."""

ADVERSARIAL = ("Handwritten", "Synthesized")
"""Families of MaskBench that were made to break engines; what a file is called begins with its family."""
MOST_TOLD = 20
CLOSERS = frozenset(b'"]}')


@dataclass(slots=True)
class Tally:
    """What became of some schemas and of the instances that come with them."""

    schemas: int = 0
    exact: int = 0
    relaxed: int = 0
    unsatisfiable: int = 0
    refused: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    valid: int = 0
    valid_accepted: int = 0
    invalid: int = 0
    invalid_accepted: int = 0
    compile_ms: list[float] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self) -> Figures:
        served = self.exact + self.relaxed
        known = self.schemas - self.unsatisfiable
        return {
            "schemas": self.schemas,
            "exact": self.exact,
            "exact_share": _share(self.exact, known),
            "exact_or_relaxed_share": _share(served, known),
            "unsatisfiable": self.unsatisfiable,
            "refused": len(self.refused),
            "refused_first": self.refused[:MOST_TOLD],
            "valid": self.valid,
            "valid_accepted_share": _share(self.valid_accepted, self.valid),
            "invalid": self.invalid,
            "invalid_accepted": self.invalid_accepted,
            "leaks": len(self.leaks),
            "leaks_first": self.leaks[:MOST_TOLD],
            "compile_ms_p50": _percentile(self.compile_ms, 50),
            "compile_ms_p95": _percentile(self.compile_ms, 95),
            "compile_ms_max": _percentile(self.compile_ms, 100),
        }


def suite_figures(folder: Path, compile_schema: Compile, vocabulary: GrammarVocabulary) -> Figures:
    """The official suite. A group whose schema no value satisfies is right to be refused."""
    tally = Tally()
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            name = f"{path.stem}: {group['description']}"
            tally.add(_tried(name, group["schema"], group["tests"], compile_schema, vocabulary))
    return tally.figures()


def maskbench_figures(
    folder: Path,
    compile_schema: Compile,
    vocabulary: GrammarVocabulary,
    adversarial: Sequence[str] = ADVERSARIAL,
) -> Figures:
    """MaskBench: all of it, and without the families that were made to break engines."""
    everything, plain = Tally(), Tally()
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        tried = _tried(path.stem, case["schema"], case.get("tests", ()), compile_schema, vocabulary)
        everything.add(tried)
        if not path.name.startswith(tuple(adversarial)):
            plain.add(tried)
    return {"all": everything.figures(), "without_adversarial": plain.figures()}


def maskbench_schemas(folder: Path) -> Iterator[tuple[str, object]]:
    for path in sorted(folder.glob("*.json")):
        yield path.stem, json.loads(path.read_text("utf-8"))["schema"]


def walk_figures(
    schemas: Sequence[tuple[str, object]],
    compile_schema: Compile,
    vocabulary: GrammarVocabulary,
    *,
    walks: int,
    seed: int = 0,
    most_tokens: int = 400,
) -> Figures:
    """So many random walks, spread over the schemas that are enforced exactly. A text that is not finished
    within `most_tokens` is cut and counts for nothing but that."""
    compiled = []
    for name, schema in schemas:
        try:
            grammar = compile_schema(schema, False)
        except InvalidRequest:
            continue
        compiled.append((name, schema, grammar))
    rng = random.Random(seed)
    walker = Walker(vocabulary, rng, most_tokens)
    finished = cut = 0
    bad: list[str] = []
    for number in range(walks if compiled else 0):
        name, schema, grammar = compiled[number % len(compiled)]
        text = walker.text(grammar.start())
        if isinstance(text, Stuck):
            bad.append(f"{name}: {text.reason} after {text.text!r}")
            continue
        if text is None:
            cut += 1
            continue
        finished += 1
        reason = check_instance(schema, text)
        if reason is not None:
            bad.append(f"{name}: {reason}: {text[:200]!r}")
    return {
        "schemas": len(compiled),
        "walks": walks,
        "finished": finished,
        "cut": cut,
        "bad": len(bad),
        "bad_first": bad[:MOST_TOLD],
    }


@dataclass(frozen=True, slots=True)
class Stuck:
    """A walk that came to where nothing is allowed, or to an error of the engine."""

    text: str
    reason: str


class Walker:
    """Draws tokens from masks, ever more often those that close something, so that texts end."""

    def __init__(self, vocabulary: GrammarVocabulary, rng: random.Random, most_tokens: int) -> None:
        self._tokens = vocabulary.tokens
        self._eos = frozenset(vocabulary.eos_ids)
        self._rng = rng
        self._most = most_tokens
        self._row: MaskRow = np.zeros(vocabulary.words, dtype=np.int32)
        closing = [bool(token) and token[-1] in CLOSERS for token in vocabulary.tokens]
        self._closing = np.zeros(vocabulary.words * 32, dtype=bool)
        self._closing[: len(closing)] = closing

    def text(self, grammar: Grammar) -> str | Stuck | None:
        """A whole text; None if it did not end in time."""
        written: list[bytes] = []
        for step in range(self._most):
            grammar.mask_into(self._row)
            allowed = _bits(self._row)
            if grammar.error is not None or not allowed.any():
                text = b"".join(written).decode("utf-8", "replace")
                return Stuck(text, grammar.error or "nothing is allowed")
            token = self._draw(allowed, step)
            if token in self._eos:
                return b"".join(written).decode("utf-8", "replace")
            if grammar.accept([token]) != 1:
                return Stuck(b"".join(written).decode("utf-8", "replace"), f"{token} is allowed and refused")
            written.append(self._tokens[token])
        return None

    def _draw(self, allowed: NDArray[np.bool_], step: int) -> int:
        haste = min(1.0, 0.1 + step / self._most * 1.5)
        ends = [token for token in self._eos if allowed[token]]
        if ends and self._rng.random() < max(0.3, haste):
            return self._rng.choice(ends)
        closing = allowed & self._closing
        some = closing if closing.any() and self._rng.random() < haste else allowed
        ids = np.flatnonzero(some)
        return int(ids[self._rng.randrange(len(ids))])


def _tried(
    name: str,
    schema: object,
    tests: Sequence[Mapping[str, Any]],
    compile_schema: Compile,
    vocabulary: GrammarVocabulary,
) -> Tally:
    """The tally of one schema."""
    tally = Tally(schemas=1)
    begun = time.perf_counter()
    try:
        compiled = compile_schema(schema, True)
    except InvalidRequest as error:
        if any(test["valid"] for test in tests):
            tally.refused.append(f"{name}: {error}")
        else:
            tally.unsatisfiable = 1
        return tally
    tally.compile_ms.append((time.perf_counter() - begun) * 1000)
    tally.exact, tally.relaxed = int(compiled.report.is_exact), int(not compiled.report.is_exact)
    for test in tests:
        for text in _written(test["data"]):
            is_accepted = accepts(compiled, vocabulary, text)
            if test["valid"]:
                tally.valid += 1
                tally.valid_accepted += is_accepted
                continue
            tally.invalid += 1
            tally.invalid_accepted += is_accepted
            if is_accepted and tally.exact:
                tally.leaks.append(f"{name}: {text[:200]}")
    return tally


def accepts(compiled: CompiledGrammar, vocabulary: GrammarVocabulary, text: str) -> bool:
    """Whether the text can be written, and is a whole one; a check of finished texts is not asked."""
    ids = vocabulary.encode(text)
    grammar = compiled.start()
    return grammar.accept(ids) == len(ids) and grammar.accepting


def _written(value: object) -> tuple[str, str]:
    return (
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    )


def _bits(row: MaskRow) -> NDArray[np.bool_]:
    return np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0


def _percentile(values: Sequence[float], percent: int) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3)
