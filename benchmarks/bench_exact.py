"""Equal tokens, and equal bits: the default model against transformers and against itself.

    python -P benchmarks/bench_exact.py --out benchmarks/results/bench_exact.json

Every prompt is continued greedily by transformers' `generate` in float32 (its own GGUF route, one prompt at a
time, end of text ignored on both sides). A prompt counts up to the first step at which transformers' two best
logits are within 1e-3. Then one option after another is changed: the tokens must stay equal, and so must
every bit of the log-probabilities of the chosen tokens and of the five best.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import MODEL, Report, command_line, say, seconds_of
from workloads import Ids, exact_prompts

from radixlm.runtime.embedded import resolve_model
from radixlm.runtime.engine import Engine
from radixlm.runtime.metrics import EngineStats
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Completion
from testkit.exactness import (
    Reference,
    counted_share,
    differences,
    load_gguf_reference,
    logprob_differences,
    reference,
)

MEMORY = 640 << 20
"""Bytes of keys and values: all prompts and what they generate fit, with pages of any size."""

Options = Mapping[str, object]


def axes(prompts: Sequence[Ids], max_tokens: int, *, small: bool) -> dict[str, Options]:
    """What is changed against the base: page 16, chunk 512, 32 rows at once, a large pool."""
    longest = max(map(len, prompts)) + max_tokens
    cache: dict[str, Options] = {
        "cache off": {"prefix_cache": False},
        "a pool for little more than the longest request": {"num_pages": -(-longest // 16) + 4},
    }
    if small:
        return cache
    return {
        **cache,
        "page size 1": {"page_size": 1},
        "page size 4": {"page_size": 4},
        "page size 64": {"page_size": 64},
        "chunk 16": {"chunk_size": 16},
        "one row at once": {"max_running": 1},
    }


class Check:
    """Runs one engine after another over the same prompts and reports what differs."""

    def __init__(
        self, report: Report, prompts: Sequence[Ids], references: Sequence[Reference], tokens: int
    ) -> None:
        self.report, self.prompts, self.references = report, prompts, references
        self.sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=5)
        self.base: list[Completion] = []

    def run(self, quantization: str, axes: Mapping[str, Options]) -> None:
        """int8 is another model than transformers': only its bits must be its own, again and again."""
        exact = quantization == "none"
        mode = "float32" if exact else quantization
        self.base = []
        with self._engine(quantization) as engine:
            self._compare(f"{mode}, page 16, chunk 512, 32 rows: cache cold", self._generate(engine), exact)
            warm = self._generate(engine)
            self._compare(f"{mode}, cache warm", warm, exact)
            found = all(c.cached_tokens >= c.prompt_tokens - 1 for c in warm)
            self._require(f"{mode}, cache warm: every prompt came from the cache", found)
        del engine
        for name, options in axes.items():
            gc.collect()
            with self._engine(quantization, **options) as engine:
                self._compare(f"{mode}, {name}", self._generate(engine), exact)
                self._check_axis(f"{mode}, {name}", options, engine.stats())
            del engine

    def _engine(self, quantization: str, **options: object) -> Engine:
        fixed = {"kv_memory": MEMORY, "page_size": 16, "chunk_size": 512, "max_running": 32}
        threads = self.report.options.threads
        return Engine(MODEL, **{**fixed, **options, "quantization": quantization, "threads": threads})

    def _generate(self, engine: Engine) -> list[Completion]:
        completions: list[Completion] = []
        seconds = seconds_of(lambda: completions.extend(engine.generate(self.prompts, self.sampling)))
        say(f"  {len(completions)} prompts in {seconds:.1f} s")
        return completions

    def _compare(self, name: str, completions: list[Completion], exact: bool) -> None:
        wrong = differences(self.references, completions) if exact else []
        if exact:
            self.report.holds(f"{name}: tokens equal transformers'", wrong, len(completions))
        self.base = self.base or completions
        bits = logprob_differences(self.base, completions)
        if completions is not self.base:
            self.report.holds(f"{name}: bits equal the first run's", bits, len(completions))
        for line in wrong + bits:
            say(f"    {line}")
        self.report.keep(name, tokens=[c.output_ids for c in completions], wrong=wrong, other_bits=bits)

    def _check_axis(self, name: str, options: Options, stats: EngineStats) -> None:
        """An axis that did not do what it is there for proves nothing."""
        if "num_pages" in options:
            self._require(f"{name}: pages were evicted", stats.evicted_pages > 0)
            self._require(f"{name}: rows were preempted", stats.preemptions > 0)
        if options.get("prefix_cache") is False:
            self._require(f"{name}: nothing came from the cache", stats.cached_tokens == 0)
        self.report.keep(f"{name}: stats", **asdict(stats))

    def _require(self, name: str, happened: bool) -> None:
        self.report.holds(name, [] if happened else [name], 1)


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--small", action="store_true", help="8 prompts x 24 tokens, the cache's axis only")
    parser.add_argument("--prompts", type=int, help="how many prompts, at most 32 (default: 32)")
    parser.add_argument("--max-tokens", type=int, help="generated for each (default: 48)")
    options = parser.parse_args()
    count = options.prompts or (8 if options.small else 32)
    tokens = options.max_tokens or (24 if options.small else 48)

    report = Report("exact", options)
    with Engine(MODEL, num_pages=1, threads=options.threads) as engine:  # also sets torch's threads
        encode, chat = engine.tokenizer.encode, engine.tokenizer.apply_chat_template
        prompts = exact_prompts(encode, chat, count)
    del engine
    references = _references(prompts, tokens)
    gc.collect()

    report.at_least("share of transformers' steps that count", counted_share(references), 0.95, "%")
    report.keep(
        "reference",
        prompt_tokens=[len(prompt) for prompt in prompts],
        tokens=[r.tokens for r in references],
        counted=[r.counted for r in references],
        least_margin=min(min(r.margins) for r in references),
    )
    check = Check(report, prompts, references, tokens)
    for quantization in ("none", "int8"):
        check.run(quantization, axes(prompts, tokens, small=options.small))
    return report.finish()


def _references(prompts: Sequence[Ids], tokens: int) -> list[Reference]:
    model = load_gguf_reference(resolve_model(MODEL))
    made = []
    for i, prompt in enumerate(prompts):
        made.append(reference(model, prompt, tokens))
        say(f"  transformers: prompt {i + 1} of {len(prompts)}, {len(prompt)} tokens")
    return made


if __name__ == "__main__":
    sys.exit(main())
