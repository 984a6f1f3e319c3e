"""Greedy tokens of tiny models, end to end: the engine on this device says what transformers says in float32.

Prompts share beginnings, and one is so long that plans cut it. They are run with a cold cache, again with
what that left behind, and with none.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from radixlm.kernels.pieces import Costs
from radixlm.kernels.plan import AttentionSpec
from radixlm.runtime.batch import BatchBuilder
from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from testkit.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, save_byte_tokenizer
from testkit.exactness import Reference, counted_share, differences, reference, without_end
from testkit.tiny_model import save_tiny, tiny_model

from .report import Place, Row

_FAMILIES = {
    "llama": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16},
    "qwen3": {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64},
    "smollm3": {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 80},
}
"""Head sizes that the kernels take; everything else is that of the tiny models."""
LONG = 2 * Costs().least_tokens + 60


def rows(place: Place) -> Iterator[Row]:
    disable_progress_bar()
    for name in list(_FAMILIES)[: 1 if place.is_small else None]:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_model(
                name,
                vocab_size=VOCAB_SIZE,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                max_position_embeddings=1024,
                **_FAMILIES[name],
            )
            save_tiny(model, Path(folder))
            save_byte_tokenizer(Path(folder))
            yield from _compare(place, name, model, folder)


def _compare(place: Place, name: str, model: PreTrainedModel, folder: str) -> Iterator[Row]:
    prompts = _prompts(place)
    steps = 4 if place.is_small else 24
    model = without_end(model.to(place.device))
    with torch.device(place.device):
        expected = [reference(model, prompt, steps) for prompt in prompts]
    for cache in (True, False):
        with Engine(
            folder,
            device=place.device.type,
            attention="triton",
            dtype="float32",
            page_size=4,
            num_pages=1024,
            chunk_size=48,
            prefix_cache=cache,
        ) as engine:
            if place.is_small:
                _cut_everything(engine)
            yield _row(f"{name}, cache {'cold' if cache else 'off'}", engine, prompts, expected, steps)
            if cache:
                yield _row(f"{name}, cache warm", engine, prompts, expected, steps)


def _cut_everything(engine: Engine) -> None:
    """Pieces of a page: the interpreter has no time for contexts that are long enough to be cut for a GPU."""
    ops, page = engine._ops, engine.config.page_size
    costs = Costs(item=1, partial=0, least_tokens=page)
    options = replace(ops.plan_options, align_tokens=page, min_saved_tokens=1, workers=16, costs=costs)
    spec = AttentionSpec(engine.model_config.attention_scale)
    engine._builder = BatchBuilder(page, spec, replace(ops, plan_options=options))


def _row(name: str, engine: Engine, prompts: list[list[int]], expected: list[Reference], steps: int) -> Row:
    before = engine.stats().cached_tokens
    completions = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True))
    lines = differences(expected, completions)
    share = counted_share(expected)
    is_right = not lines and share > 0.9
    figures = {
        "prompts": len(prompts),
        "steps that count": share,
        "cached tokens": engine.stats().cached_tokens - before,
    }
    return Row(name, "right" if is_right else "wrong", figures | ({"first": lines[0]} if lines else {}))


def _prompts(place: Place) -> list[list[int]]:
    """Two families of prompts with a beginning in common, and some alone. The longest has pieces of 256."""
    numbers = random.Random(1)

    def ids(count: int) -> list[int]:
        return [numbers.randrange(2, VOCAB_SIZE) for _ in range(count)]

    if place.is_small:
        shared = ids(21)
        return [[*shared, *ids(2)], [*shared, *ids(7)]]
    first, second = ids(150), ids(61)
    told = [[*first, *ids(count)] for count in (1, 5, 5, 40)]
    return [*told, *([*second, *ids(count)] for count in (2, 3, 17)), ids(1), ids(33), ids(200), ids(LONG)]
