"""Scores against transformers, and what is computed a second time: MMLU, five shots, four choices.

    python -P benchmarks/bench_score.py --data FOLDER --out benchmarks/results/bench_score.json

Some questions of every subject are scored by one forward pass of transformers in float32 each. Ours must
agree from an empty cache, again, after generating, with any chunk and page size, and from a pool that evicts.
Then all questions are scored twice in a pool that holds them: the second time computes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from common import MODEL, Report, command_line, say, seconds_of
from workloads import Ids, mmlu_prompts

from radixlm.runtime.embedded import resolve_model
from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.score_items import ScoreItem
from testkit.exactness import load_gguf_reference

LIMIT = 1e-4
POOL = 4 << 30
"""All questions: each choice takes a page of its own."""


def reference(prompts: Sequence[Ids], choices: Sequence[int]) -> list[list[float]]:
    model = load_gguf_reference(resolve_model(MODEL))
    found = []
    with torch.inference_mode():
        for prompt in prompts:
            logits = model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1].float()
            found.append(logits.log_softmax(-1)[list(choices)].tolist())
    return found


def scores(engine: Engine, items: Sequence[ScoreItem]) -> list[list[float]]:
    return [[c.logprob for c in result.continuations] for result in engine.score(list(items))]


def apart(truth: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    return max(
        abs(a - b) for one, other in zip(truth, found, strict=True) for a, b in zip(one, other, strict=True)
    )


def main() -> int:
    parser = command_line(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="has mmlu/")
    parser.add_argument("--each", type=int, default=2, help="questions a subject compared with transformers")
    options = parser.parse_args()
    report = Report("bench_score", options)
    torch.set_num_threads(options.threads)

    def open_engine(**more: object) -> Engine:
        return Engine(MODEL, threads=options.threads, **{"kv_memory": 1 << 30, **more})

    with open_engine(num_pages=1) as engine:
        encode = engine.tokenizer.encode
        few = mmlu_prompts(encode, options.data, questions=options.each)
        everything = mmlu_prompts(encode, options.data)
        choices = [tuple(encode(f" {letter}")) for letter in "ABCD"]
    say(f"{len(few)} questions by transformers")
    truth = reference(few, [choice[0] for choice in choices])
    items = [ScoreItem(prompt, choices) for prompt in few]
    longest = max(map(len, few))

    def compare(name: str, found: Sequence[Sequence[float]]) -> None:
        report.at_most(f"apart from transformers, {len(few)} questions: {name}", apart(truth, found), LIMIT)

    with open_engine() as engine:
        compare("cache empty", scores(engine, items))
        compare("cache warm", scores(engine, items))
    with open_engine() as engine:
        engine.generate([list(prompt) for prompt in few], SamplingParams(max_tokens=2, temperature=0))
        compare("after generating", scores(engine, items))
    for name, more in (
        ("chunk 16", {"chunk_size": 16}),
        ("chunk 100", {"chunk_size": 100}),
        ("page size 1", {"page_size": 1}),
        ("page size 64", {"page_size": 64}),
        ("a pool for twice the longest", {"num_pages": 2 * (-(-longest // 16) + 8)}),
    ):
        with open_engine(**more) as engine:
            compare(name, scores(engine, items))
    with open_engine(kv_memory=POOL) as engine:
        items = [ScoreItem(prompt, choices) for prompt in everything]
        results = []
        first = seconds_of(lambda: results.append(engine.score(items)))
        steps = engine.stats().steps
        second = seconds_of(lambda: results.append(engine.score(items)))
        computed = [sum(item.computed_tokens for item in result) for result in results]
        report.note(f"tokens computed for {len(items)} questions", f"{computed[0]}", computed[0])
        report.note("items/s, first time", f"{len(items) / first:.2f}", len(items) / first)
        report.note("items/s, second time", f"{len(items) / second:.0f}", len(items) / second)
        report.equal("tokens computed the second time", computed[1], 0)
        report.equal("steps the second time", engine.stats().steps - steps, 0)
        same = [[c.logprob for c in r.continuations] for r in results[0]]
        again = [[c.logprob for c in r.continuations] for r in results[1]]
        report.equal(
            "questions whose numbers are the same bits", sum(map(list.__eq__, same, again)), len(items)
        )
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
