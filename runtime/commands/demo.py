"""`radixlm demo`: a built-in set of few-shot questions, answered in one batch.

The questions share a header of examples, which is computed once; what that saved, and how fast the rest
went, is printed after the answers. Kernels are compiled when a step first needs them, so that a first run
measures that: nothing here knows whether it is one, and the last line says so each time.
"""

from __future__ import annotations

import argparse

from ..demo_questions import EXAMPLES, QUESTIONS, few_shot_prompt
from ..metrics import EngineStats
from ..progress import progress_bar
from ..prompts import Prompt
from ..sampling_params import SamplingParams
from .engine_view import OpenEngine
from .options import add_engine_flags, engine_config
from .standard_output import require_output, write_output

_SAMPLING = SamplingParams(max_tokens=24, temperature=0.0, stop=("\n",))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, open_engine: OpenEngine) -> int:
    require_output()
    prompts = [Prompt(few_shot_prompt(question)) for question in QUESTIONS]
    with open_engine(engine_config(arguments)) as engine:
        questions = f"{len(QUESTIONS)} questions for {engine.info().model}"
        write_output(f"{questions}, each after the same {len(EXAMPLES)} examples\n\n")
        with progress_bar(len(prompts)) as on_progress:
            completions = engine.generate(prompts, _SAMPLING, on_progress=on_progress)
        stats = engine.stats()
    for question, completion in zip(QUESTIONS, completions, strict=True):
        answer = completion.text.strip() if completion.error is None else f"[{completion.error}]"
        write_output(f"  {question}\n    {answer}\n")
    write_output(f"\n{describe(stats)}\n")
    return int(any(completion.error is not None for completion in completions))


def describe(stats: EngineStats) -> str:
    """Reuse and speed in words."""
    computed = stats.prompt_tokens - stats.cached_tokens
    return (
        f"reuse  {stats.cached_tokens:,} of {stats.prompt_tokens:,} prompt tokens came from the cache: "
        f"{stats.hit_rate:.1%}, where {stats.optimal_hit_rate:.1%} is the most there can be\n"
        f"speed  {computed:,} prompt tokens computed at {stats.prefill_tok_s:,.0f} a second, "
        f"{stats.generated_tokens:,} generated at {stats.decode_tok_s:,.0f} a second\n"
        f"time   {stats.wall_s:.1f} s for all of them\n"
        "note   a first run compiles its kernels, and these figures count that: run it again for the speed"
    )
