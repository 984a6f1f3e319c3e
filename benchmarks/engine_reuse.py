"""How much is reused and how full pages are: hit rates on few-shot prompts in file order, and page fill.

Hit rates and page fill follow from integers alone, so the large runs need no model: prompts are replayed
through the cache, requests run through the real scheduler with made-up tokens. A part runs on the engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict

from common import Report, say
from engine_runs import fixed_length, open_engine
from workloads import Ids, mmlu_prompts, unique_prompts

from radixlm.radix.cache import PrefixCache
from radixlm.radix.replay import replay
from radixlm.runtime.engine import Engine
from radixlm.runtime.holds import Holds
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.scheduler import Scheduler
from radixlm.runtime.sequence import Sequence as Tokens
from radixlm.runtime.slot_logprobs import SlotLogprobs
from radixlm.runtime.types import Outcome, Plan, Request

PAGE = 16
LEAST = {"large": 0.99, "twice the longest request": 0.96}


def hit_rates(report: Report) -> None:
    """MMLU 5-shot: every prompt through the cache alone, and through the engine."""
    options = report.options
    if options.data is None:
        report.note("hit rate over optimal, MMLU 5-shot prompts", "not run: it needs --data FOLDER")
        return
    with open_engine(options.threads, num_pages=1) as engine:
        encode = engine.tokenizer.encode
        subjects, questions = (2, 4) if options.quick else (16, 25)
        prompts = mmlu_prompts(encode, options.data, subjects=subjects, questions=questions)
    for name, num_pages in _pools(prompts).items():
        done = replay(prompts, num_pages, PAGE)
        label = f"hit rate over optimal, MMLU 5-shot, replay of {len(prompts)} prompts, pool {name}"
        report.at_least(label, done.hit_rate / done.optimal_hit_rate, LEAST[name], "%")
        report.keep(label, num_pages=num_pages, **asdict(done))
    for name, num_pages in _pools(prompts).items():
        label = f"the same, engine, {len(prompts)} prompts, pool {name}"
        with open_engine(options.threads, num_pages=num_pages, page_size=PAGE) as engine:
            completions = engine.generate(prompts, fixed_length(1))
            stats = engine.stats()
        assert not any(c.error for c in completions), "every prompt fits"
        report.at_least(label, stats.hit_rate / stats.optimal_hit_rate, LEAST[name], "%")
        report.keep(label, **asdict(stats))


def _pools(prompts: Sequence[Ids]) -> dict[str, int]:
    """Pages for all prompts at once; pages for twice the longest request, its one token included."""
    pages = [-(-(len(prompt) + 1) // PAGE) for prompt in prompts]
    return {"large": sum(pages), "twice the longest request": 2 * max(pages)}


def page_fill(report: Report) -> None:
    """Requests of 100 to 2,000 tokens, of which the last 32 are generated."""
    options = report.options
    count, generated = (20, 8) if options.quick else (400, 32)
    rng = random.Random(10)
    lengths = [rng.randint(100, 2000) for _ in range(count)]
    fills = simulated_fill(lengths, generated)
    mean = sum(fills) / len(fills)
    name = f"page fill, requests of 100 to 2,000 tokens, page {PAGE}"
    report.at_least(f"{name}: {count} requests, scheduler without a model", mean, 0.98, "%")
    report.keep("page fill, scheduler", lengths=lengths, mean=mean, least=min(fills), steps=len(fills))
    lengths = [100, 160] if options.quick else [100, 337, 574, 811, 1048, 1285, 1522, 1759, 2000]
    with open_engine(options.threads, page_size=PAGE) as engine:
        _generate_lengths(engine, lengths, generated)
        stats = engine.stats()
    report.at_least(f"{name}: {len(lengths)} requests, engine", stats.page_fill, 0.98, "%")
    report.keep("page fill, engine", lengths=lengths, **asdict(stats))


def simulated_fill(lengths: Sequence[int], generated: int) -> list[float]:
    """Page fill after each step of the real scheduler and cache over prompts that share nothing."""
    cache = PrefixCache(sum(lengths) // PAGE // 4, PAGE)
    values = SlotLogprobs(cache.num_pages, PAGE)
    scheduler = Scheduler(
        cache,
        values,
        Holds(cache, 0),
        policy="cache-aware",
        chunk_size=512,
        max_running=64,
        max_context=4096,
    )
    for i, length in enumerate(lengths):
        prompt = tuple(range(i << 16, (i << 16) + length - generated))
        scheduler.add(Tokens(Request(f"fill-{i}", prompt, fixed_length(generated))))
    fills = []
    while not scheduler.is_idle:
        plan = scheduler.plan()
        assert plan is not None, "what waits can run"
        scheduler.commit(plan, _made_up(plan, scheduler, generated))
        used = cache.num_pages - cache.free_pages
        fills.append(scheduler.held_tokens / (used * PAGE))
    return fills


def _made_up(plan: Plan, scheduler: Scheduler, generated: int) -> list[Outcome]:
    """A token for each row that samples, and an end for each that has its last."""
    outcomes = []
    for row in plan.rows:
        seq = scheduler.get(row.key)
        assert seq is not None, "a row belongs to a sequence"
        ends = row.samples and len(seq.output) + 1 >= generated
        outcomes.append(Outcome(row.key, (1,) if row.samples else (), "length" if ends else None))
    return outcomes


def _generate_lengths(engine: Engine, lengths: Sequence[int], generated: int) -> None:
    longest = unique_prompts(engine.tokenizer.encode, len(lengths), max(lengths), seed=11)
    prompts = [ids[: length - generated] for ids, length in zip(longest, lengths, strict=True)]
    say(f"  {sum(map(len, prompts)):,} prompt tokens")
    engine.generate(prompts, SamplingParams(max_tokens=generated, temperature=0.0, ignore_eos=True))
