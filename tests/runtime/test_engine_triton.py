"""The whole engine on Triton's kernels, in the interpreter: the CPU's tokens, with the cache in any state."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm.runtime.engine import Engine
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.score_items import ScoreItem
from radixlm.runtime.types import Completion
from testkit.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, save_byte_tokenizer
from testkit.tiny_model import save_tiny, tiny_model

STEM = [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(38)]
PROMPTS = [[BOS_ID], STEM[:9], [*STEM, 40, 41], [*STEM[:35], 50, 51, 52], [*STEM, 60]]
WAYS = {
    "greedy": SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=3),
    "drawn": SamplingParams(max_tokens=4, temperature=0.9, seed=7, ignore_eos=True, logprobs=1),
    "filtered": SamplingParams(
        max_tokens=4, temperature=1.3, top_k=40, top_p=0.9, min_p=0.02, seed=3, n=2, ignore_eos=True
    ),
    "edited": SamplingParams(
        max_tokens=4,
        temperature=0.0,
        min_tokens=3,
        logit_bias=((5, 4.0), (9, -100.0)),
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.2,
    ),
    "guided": SamplingParams(
        max_tokens=6, temperature=0.9, seed=5, logprobs=2, choice=["xyzzy thing", "xyzq", "xyzz the"]
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(
        "llama",
        vocab_size=VOCAB_SIZE,
        head_dim=16,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        max_position_embeddings=256,
    )
    path = tmp_path_factory.mktemp("triton")
    save_byte_tokenizer(path)
    return save_tiny(model, path)


def engine_of(folder: Path, attention: str, **more: object) -> Engine:
    fixed = {"device": "cpu", "dtype": "float32", "kv_memory": 4 << 20, "threads": 1}
    return Engine(folder, attention=attention, **{**fixed, **more})


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[Completion]]:
    with engine_of(folder, "cpu") as engine:
        return {name: engine.generate(PROMPTS, sampling) for name, sampling in WAYS.items()}


def tokens(completions: list[Completion]) -> list[tuple[int, ...]]:
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [completion.output_ids for completion in completions]


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_those_of_the_cpu(way: str, folder: Path, expected: dict[str, list[Completion]]) -> None:
    with engine_of(folder, "triton") as engine:
        assert engine.info().attention == "triton"
        found = engine.generate(PROMPTS, WAYS[way])
    assert tokens(found) == tokens(expected[way])
    for ours, theirs in zip(found, expected[way], strict=True):
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"page_size": 1, "chunk_size": 17}, {"page_size": 64, "prefix_cache": False}, {"num_pages": 8}],
    ids=str,
)
def test_tokens_are_the_same_with_any_pages_chunks_and_cache(
    options: dict[str, object], folder: Path, expected: dict[str, list[Completion]]
) -> None:
    with engine_of(folder, "triton", **options) as engine:
        cold, warm = (tokens(engine.generate(PROMPTS, WAYS["greedy"])) for _ in range(2))
    assert cold == warm == tokens(expected["greedy"])


def test_scores_are_those_of_the_cpu_and_are_kept(folder: Path) -> None:
    items = [ScoreItem(tuple(STEM), ((5, 6), (7,), (8, 9, 10)))]
    with engine_of(folder, "cpu") as engine:
        [theirs] = engine.score(items)
    with engine_of(folder, "triton") as engine:
        [ours], [again] = engine.score(items), engine.score(items)
    assert again.computed_tokens == 0
    for one, other, second in zip(ours.continuations, theirs.continuations, again.continuations, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)
        assert one.token_logprobs == second.token_logprobs
