"""Grammars without a model: what compiling and a mask take, with the model's vocabulary and a large one, and
what many different schemas leave in memory."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil
from common import Report, say

from radixlm.runtime.errors import InvalidRequest
from radixlm.runtime.grammar.compiler import GrammarCompiler, build_engines
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.spec import GrammarSpec, schema_text
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary

LARGE = 128_000


def large_vocabulary(known: GrammarVocabulary) -> GrammarVocabulary:
    """128,000 tokens: those of `known`, and the commonest of them put together by twos, as they come."""
    tokens = list(known.tokens)
    seen = set(tokens)
    words = [text for text in tokens if 2 <= len(text) <= 6]
    draw = random.Random(0)
    while len(tokens) < LARGE:
        text = draw.choice(words) + draw.choice(words)
        if text not in seen:
            seen.add(text)
            tokens.append(text)
    return GrammarVocabulary(tokens, known.special_tokens, known.eos_ids, LARGE)


def sample_specs(data: Path) -> list[tuple[GrammarSpec, list[str]]]:
    """Each schema of the sample, and its valid instances as texts."""
    found = []
    for path in sorted(data.iterdir()):
        if path.suffix == ".json":
            case = json.loads(path.read_text())
            texts = [json.dumps(test["data"], ensure_ascii=False) for test in case["tests"] if test["valid"]]
            found.append((GrammarSpec("json", schema_text(case["schema"]), relaxed=True), texts))
    return found


def compile_times(report: Report, vocabulary: GrammarVocabulary, specs: Sequence[GrammarSpec]) -> None:
    """Every schema of the sample through the compiler, the worker process started before."""
    compiler = GrammarCompiler(vocabulary)
    try:
        compiler.compile(GrammarSpec("lark", 'start: "a" start?'))
        compiler.compile(GrammarSpec("json", '{"type":"object","not":{"required":["a"]}}'))
        seconds, refused = [], 0
        for spec in specs:
            begun = perf_counter()
            try:
                compiler.compile(spec)
            except InvalidRequest as error:
                refused += 1
                say(f"  {str(error)[:150]}")
            seconds.append(perf_counter() - begun)
        begun = perf_counter()
        for spec in specs:
            _outcome(compiler, spec)
        cached = (perf_counter() - begun) / len(specs)
    finally:
        compiler.close()
    times = 1000 * np.array(seconds)
    report.keep("compile, ms", each=times.tolist(), refused=refused)
    report.at_most("compile, p50 over the sample", float(np.percentile(times, 50)), 2, "ms")
    report.at_most("compile, p95", float(np.percentile(times, 95)), 30, "ms")
    report.at_most("compile, slowest", float(times.max()), 5000, "ms")
    report.note("a spec that is cached", f"{1e6 * cached:.0f} us")


def _outcome(compiler: GrammarCompiler, spec: GrammarSpec) -> CompiledGrammar | InvalidRequest:
    try:
        return compiler.compile(spec)
    except InvalidRequest as error:
        return error


def mask_times(
    report: Report, name: str, vocabulary: GrammarVocabulary, cases: Sequence[tuple[GrammarSpec, list[str]]]
) -> None:
    """Masks along the valid instances of the sample, as the tokenizer writes them: each once, as in a
    request, whose grammar is compiled and whose lexer has seen a text before."""
    engines = build_engines(vocabulary)
    row = np.zeros(vocabulary.words, dtype=np.int32)
    first: list[float] = []
    again: list[float] = []
    for spec, texts in cases:
        try:
            compiled = engines.direct.json(engines.normalise(json.loads(spec.text)).schema, compact=False)
        except InvalidRequest:
            continue
        for seconds in (first, again):
            for text in texts[:3]:
                grammar = compiled.start()
                for token in vocabulary.encode(text):
                    begun = perf_counter()
                    grammar.mask_into(row)
                    seconds.append(perf_counter() - begun)
                    if not grammar.accept((token,)):
                        break
    times, cold = 1e6 * np.array(again), 1e6 * np.array(first)
    cold50, cold95 = (np.percentile(cold, p) for p in (50, 95))
    report.keep(
        f"masks, {name}, us",
        count=len(times),
        percentiles={p: [float(np.percentile(each, p)) for each in (times, cold)] for p in (50, 95, 99)},
    )
    report.at_most(f"mask, {name}, p50", float(np.percentile(times, 50)), 30, "us")
    report.at_most(f"mask, {name}, p95", float(np.percentile(times, 95)), 150, "us")
    report.note(f"mask, {name}, p99", f"{np.percentile(times, 99):.0f} us")
    report.note(f"mask, {name}, first texts of a grammar, p50 / p95", f"{cold50:.0f} / {cold95:.0f} us")


def many_schemas(report: Report, vocabulary: GrammarVocabulary, count: int) -> None:
    """So many schemas, none twice: memory from a tenth of them on."""
    bound = 32 << 20
    compiler = GrammarCompiler(vocabulary, cache_bytes=bound)
    process = psutil.Process()
    sizes = []
    try:
        for i in range(count):
            properties = {f"field_{i}_{j}": {"type": "string", "maxLength": 5 + j} for j in range(5)}
            schema = {"type": "object", "properties": properties, "required": list(properties)}
            compiler.compile(GrammarSpec("json", schema_text(schema)))
            if (i + 1) % (count // 10) == 0:
                gc.collect()
                sizes.append(process.memory_info().rss)
        cache = compiler.stats().cache
    finally:
        compiler.close()
    report.keep("memory, bytes", after_each_tenth=sizes, cache=cache.bytes)
    report.at_most("cache, bytes", float(cache.bytes), bound)
    grown = sizes[-1] / sizes[0]
    report.at_most(f"memory after {count:,} schemas over that after a tenth of them", grown, 1.05)
