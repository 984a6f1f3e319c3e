"""The default model says what transformers says: a small part of what `make bench-exact` compares.

transformers loads the model by its own GGUF route, once; eight prompts x 24 greedy tokens, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from radixlm.runtime.embedded import resolve_model
from radixlm.runtime.engine import Engine
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

MODEL = "smollm2-135m"
MAX_TOKENS = 24
SAMPLING = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, logprobs=5)
STORY = (
    "The lighthouse keeper wrote down the weather every evening, and in thirty years she had missed only two "
    "days. When the ships came by radio and no longer by lamp, she went on writing, because"
)


@dataclass(frozen=True, slots=True)
class Run:
    """The same prompts three times: with the cache empty, full of them, and switched off."""

    prompts: list[tuple[int, ...]]
    cold: list[Completion]
    warm: list[Completion]
    off: list[Completion]


@pytest.fixture(scope="module")
def run() -> Run:
    with Engine(MODEL, kv_memory=64 << 20) as engine:
        prompts = _prompts(engine)
        cold = engine.generate(prompts, SAMPLING)
        warm = engine.generate(prompts, SAMPLING)
    with Engine(MODEL, kv_memory=64 << 20, prefix_cache=False) as engine:
        off = engine.generate(prompts, SAMPLING)
    return Run(prompts, cold, warm, off)


@pytest.fixture(scope="module")
def references(run: Run) -> Iterator[list[Reference]]:
    model = load_gguf_reference(resolve_model(MODEL))
    yield [reference(model, prompt, MAX_TOKENS) for prompt in run.prompts]
    del model


def _prompts(engine: Engine) -> list[tuple[int, ...]]:
    """Plain and chat, alone and sharing a prefix, one pair forking inside a page of 16."""
    story = engine.tokenizer.encode(STORY)
    questions = ("What is the capital of France?", "Name three colours.")
    chats = [engine.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in questions]
    plain = ("2, 4, 8, 16,", "def mean(values):\n    ", "Once upon a time")
    prompts = [*map(engine.tokenizer.encode, plain), *chats, story, story[:21], story[:21] + story[3:9]]
    return [tuple(prompt) for prompt in prompts]


def test_nearly_all_steps_of_the_reference_count(references: list[Reference]) -> None:
    assert counted_share(references) >= 0.95


@pytest.mark.parametrize("way", ["cold", "warm", "off"])
def test_greedy_tokens_equal_those_of_transformers(way: str, run: Run, references: list[Reference]) -> None:
    assert differences(references, getattr(run, way)) == []


def test_log_probabilities_have_the_same_bits_with_the_cache_cold_warm_and_off(run: Run) -> None:
    assert logprob_differences(run.cold, run.warm) == []
    assert logprob_differences(run.cold, run.off) == []


def test_the_second_time_nearly_all_of_each_prompt_is_cached(run: Run) -> None:
    assert all(c.cached_tokens >= c.prompt_tokens - 1 for c in run.warm)
    assert all(c.cached_tokens == 0 for c in run.off)
