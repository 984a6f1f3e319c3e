"""Caching, chunks, batches and pages are invisible: the whole product of them, on a tiny random Llama.

Every engine gives the tokens of transformers' `generate`, and the same bits of log-probabilities as every
other; one that stores weights as bytes or in half precision gives the bits of every other that does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Completion
from testkit.byte_tokenizer import BOS_ID, VOCAB_SIZE, save_byte_tokenizer
from testkit.exactness import (
    Reference,
    counted_share,
    differences,
    logprob_differences,
    reference,
    without_end,
)
from testkit.tiny_model import byte_llama, save_tiny

MAX_TOKENS = 8
PLAIN = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True)
WITH_LOGPROBS = SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True, logprobs=5)


def _prompts() -> list[list[int]]:
    """Eight of 1 to 120 tokens: alone, sharing 70 tokens, forking inside a page of 4, 16 and 64."""
    numbers = [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(400)]
    stem = numbers[:70]
    return [
        [BOS_ID],
        numbers[210:253],
        numbers[250:370],
        *(stem + numbers[300 + 7 * i : 303 + 9 * i] for i in range(2)),
        *(stem[:cut] + numbers[350:358] for cut in (5, 37, 65)),
    ]


PROMPTS = _prompts()
LONGEST = max(map(len, PROMPTS)) + MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Tiny:
    folder: str
    references: list[Reference]
    completions: list[Completion]
    """Of an engine with default options."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("tiny")
    model = byte_llama()
    save_tiny(model, folder)
    save_byte_tokenizer(folder)
    without_end(model)
    references = [reference(model, prompt, MAX_TOKENS) for prompt in PROMPTS]
    with _engine(str(folder)) as engine:
        completions = engine.generate(PROMPTS, WITH_LOGPROBS)
    return Tiny(str(folder), references, completions)


def _engine(folder: str, **options: Any) -> Engine:  # Any: the fields of EngineConfig
    return Engine(folder, **{"kv_memory": 8 << 20, **options})


def _tight(page_size: int) -> int:
    """Pages for the longest request and a little more: most of the eight cannot run at once."""
    return -(-LONGEST // page_size) + 1


def test_nearly_all_steps_of_the_reference_count(tiny: Tiny) -> None:
    assert counted_share(tiny.references) >= 0.95


def test_an_engine_with_default_options_gives_the_tokens_of_transformers(tiny: Tiny) -> None:
    assert differences(tiny.references, tiny.completions) == []


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
@pytest.mark.parametrize("cache", ["cold and warm", "off", "tight"])
def test_all_engines_give_equal_tokens_and_equal_bits(
    tiny: Tiny, cache: str, page_size: int, chunk: int, batch: int
) -> None:
    pool = {"num_pages": _tight(page_size)} if cache == "tight" else {}
    options = {"page_size": page_size, "chunk_size": chunk, "max_running": batch, **pool}
    with _engine(tiny.folder, prefix_cache=cache != "off", **options) as engine:
        for _ in range(2 if cache == "cold and warm" else 1):
            completions = engine.generate(PROMPTS, WITH_LOGPROBS)
            assert differences(tiny.references, completions) == []
            assert logprob_differences(tiny.completions, completions) == []
        engine.cache.check()
        stats = engine.stats()
    assert (stats.evicted_pages > 0) == (cache == "tight")
    assert (stats.hit_rate > 0.6) or cache != "cold and warm"
    assert stats.hit_rate == 0.0 or cache != "off"


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_the_tight_pool_of_the_product_also_preempts(tiny: Tiny, page_size: int) -> None:
    pool = {"page_size": page_size, "num_pages": _tight(page_size)}
    with _engine(tiny.folder, **pool) as engine:
        engine.generate(PROMPTS, PLAIN)
        assert engine.stats().preemptions > 0


def _other_ways(page_size: int) -> list[dict[str, Any]]:
    """Engines that differ from the default one in what must not matter."""
    return [
        {"page_size": 1, "chunk_size": 16},
        {"page_size": 64, "max_running": 1},
        {"prefix_cache": False, "chunk_size": 7, "policy": "fcfs"},
        {"page_size": page_size, "num_pages": _tight(page_size)},
    ]


@pytest.mark.parametrize(
    "stored", [{"quantization": "int8"}, {"dtype": "bfloat16"}, {"dtype": "float16"}], ids=str
)
def test_engines_that_store_less_than_float32_give_equal_bits_too(tiny: Tiny, stored: dict[str, Any]) -> None:
    with _engine(tiny.folder, **stored) as engine:
        cold = engine.generate(PROMPTS, WITH_LOGPROBS)
        warm = engine.generate(PROMPTS, WITH_LOGPROBS)
    assert logprob_differences(cold, warm) == []
    assert logprob_differences(tiny.completions, cold) != [], "they are not those of float32"
    for options in _other_ways(4):
        with _engine(tiny.folder, **stored, **options) as engine:
            assert logprob_differences(cold, engine.generate(PROMPTS, WITH_LOGPROBS)) == [], options


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(tiny: Tiny, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        with _engine(tiny.folder, threads=threads) as engine:
            assert engine.info().threads == threads
            assert logprob_differences(tiny.completions, engine.generate(PROMPTS, WITH_LOGPROBS)) == []
    finally:
        torch.set_num_threads(before)
