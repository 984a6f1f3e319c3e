"""Grammars: how much is enforced, what it costs, and what it saves.

    python -P benchmarks/bench_grammar.py --data FOLDER --out benchmarks/results/bench_grammar.json

FOLDER holds maskbench/ and json-schema-suite/ (docs/benchmarks.md says where they come from). Parts can be
chosen with --only: coverage, costs, memory, engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import grammar_coverage
import grammar_engine
import grammar_parts
import torch
from common import MODEL, Report, command_line

from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.grammar.compiler import GrammarCompiler
from radixlm.runtime.grammar.protocol import CompiledGrammar
from radixlm.runtime.grammar.spec import GrammarSpec, schema_text
from radixlm.runtime.grammar.vocabulary import GrammarVocabulary
from radixlm.runtime.tokenizer import Tokenizer

PARTS = ("coverage", "costs", "memory", "engine")


def coverage(report: Report, vocabulary: GrammarVocabulary, data: Path) -> None:
    compiler = GrammarCompiler(vocabulary)

    def compile_schema(schema: object, relaxed: bool) -> CompiledGrammar:
        return compiler.compile(GrammarSpec("json", schema_text(schema), relaxed=relaxed))

    quick = report.options.quick
    try:
        suite = grammar_coverage.suite_figures(
            data / "json-schema-suite" / "draft2020-12", compile_schema, vocabulary
        )
        sample = grammar_coverage.maskbench_figures(data / "maskbench", compile_schema, vocabulary)
        schemas = list(grammar_coverage.maskbench_schemas(data / "maskbench"))
        walks = grammar_coverage.walk_figures(
            schemas, compile_schema, vocabulary, walks=200 if quick else 5_500
        )
    finally:
        compiler.close()
    for name, figures in (("suite", suite), ("maskbench", sample), ("walks", walks)):
        report.keep(name, **figures)
    told, plain = sample["all"], sample["without_adversarial"]
    report.at_least("schemas of the sample that compile exact", plain["exact_share"], 0.93, "%")
    report.at_least("exact or relaxed, all families", told["exact_or_relaxed_share"], 0.99, "%")
    report.at_least("valid instances accepted", told["valid_accepted_share"], 0.99, "%")
    report.equal("invalid instances accepted as exact", told["invalid_accepted"], 0)
    report.equal("leaks in the official suite", suite["leaks"], 0)
    report.at_least("groups of the official suite that are exact", suite["exact_share"], 180 / 368, "%")
    report.equal(f"wrong texts in {walks['finished']:,} finished random walks", walks["bad"], 0)


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it runs")
    options = parser.parse_args()
    report = Report("bench_grammar", options)
    torch.set_num_threads(options.threads)
    data, quick = options.data, options.quick
    path = resolve_model(MODEL, with_weights=False)
    vocabulary = GrammarVocabulary.of(Tokenizer.load(path, user_cache()), 49_152)
    if "costs" in options.only:
        cases = grammar_parts.sample_specs(data / "maskbench")[:: 20 if quick else 1]
        grammar_parts.compile_times(report, vocabulary, [spec for spec, _ in cases])
        grammar_parts.mask_times(report, "49,152 tokens", vocabulary, cases)
        large = grammar_parts.large_vocabulary(vocabulary)
        grammar_parts.mask_times(report, "128,000 tokens", large, cases)
    if "engine" in options.only:
        grammar_engine.masks_beside_the_step(report, data / "maskbench")
        grammar_engine.jump_forward(report, data / "maskbench", 3 if quick else 100)
        grammar_engine.json_texts(report, data / "maskbench", 8 if quick else 200)
        grammar_engine.hostile_input(report)
    if "memory" in options.only:
        grammar_parts.many_schemas(report, vocabulary, 100 if quick else 10_000)
    if "coverage" in options.only:
        coverage(report, vocabulary, data)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
