"""Sampling where the logits are, by Triton's interpreter, against sampling of one row after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.ops import Ops
from radixlm.kernels.sample import sample as sample_op
from radixlm.runtime.device_sampling import sample_on_device
from radixlm.runtime.random_stream import stream_key
from radixlm.runtime.sampling import SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams

VOCABULARY = 97
WAYS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8},
    "top-k": {"top_k": 5},
    "filtered": {"temperature": 1.4, "top_k": 30, "top_p": 0.8, "min_p": 0.05},
    "biased": {"temperature": 0.0, "logit_bias": {3: 9.0, 8: -100.0}},
    "penalised": {"repetition_penalty": 1.7, "presence_penalty": 0.9, "frequency_penalty": 0.4},
    "extreme": {"temperature": 0.0, "repetition_penalty": 1e300},
    "not to end": {"min_tokens": 9, "stop_token_ids": [5, 6], "temperature": 0.0},
    "values": {"temperature": 0.0, "logprobs": 0},
    "alternatives": {"logprobs": 4, "temperature": 0.7},
}


@pytest.fixture(scope="module")
def ops() -> Ops:
    return replace(cpu_ops(2, 1, threads=1), sample=sample_op)


def row(way: str, seed: int = 0) -> SampleRow:
    params = SamplingParams.from_mapping({"max_tokens": 20, **WAYS[way]})
    return SampleRow(params, [1, 5, 40, 40, 120], [7, 8, 7, 300], (2, 6), stream_key(seed - 1, ()), 1, 9)


def logits(count: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_all_kinds_together_get_what_each_gets_alone(ops: Ops, seed: int) -> None:
    rows = [row(way, seed) for way in WAYS]
    numbers = logits(len(rows), seed)
    before = numbers.clone()
    found, expected = sample_on_device(numbers, rows, ops), sample(numbers, rows)
    assert found.token_ids == expected.token_ids
    assert found.bad == expected.bad == [False] * len(rows)
    assert torch.equal(numbers, before), "logits are only read"
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
            assert [token for token, _ in one.top] == [token for token, _ in other.top]
            assert [value for _, value in one.top] == pytest.approx([v for _, v in other.top], abs=1e-5)


@pytest.mark.parametrize("way", ["greedy", "not to end", "extreme", "alternatives"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_that_is_no_distribution_is_bad_whatever_is_edited(ops: Ops, way: str, wrong: float) -> None:
    numbers = logits(3)
    numbers[1, 6] = wrong  # an id that "not to end" forbids
    rows = [row(way), row(way), row("greedy")]
    found = sample_on_device(numbers, rows, ops)
    assert found.bad == sample(numbers, rows).bad == [False, True, False]
    assert found.token_ids[1] == -1
    assert found.logprobs[1] is None


def test_a_row_with_nothing_left_to_choose_is_bad(ops: Ops) -> None:
    numbers = torch.full((1, VOCABULARY), -torch.inf)
    numbers[0, 5:7] = 1.0
    assert sample_on_device(numbers, [row("not to end")], ops).bad == [True]
    assert sample(numbers, [row("not to end")]).bad == [True]


def test_no_rows_give_nothing(ops: Ops) -> None:
    assert sample_on_device(logits(0), [], ops).token_ids == []
