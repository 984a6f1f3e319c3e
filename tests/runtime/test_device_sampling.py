"""Sampling where the logits are, by Triton's interpreter, against sampling of one row after the other."""

from __future__ import annotations

from dataclasses import replace
from math import isnan

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.logit_mask import logit_mask
from radixlm.kernels.ops import Ops
from radixlm.kernels.sample import sample as sample_op
from radixlm.runtime.device_sampling import read_on_device
from radixlm.runtime.random_stream import stream_key
from radixlm.runtime.readings import Known, read_logits
from radixlm.runtime.sampling import Sampled, SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import SlotValue, TokenLogprob

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
    return replace(cpu_ops(2, 1, threads=1), sample=sample_op, logit_mask=logit_mask)


def row(way: str, seed: int = 0) -> SampleRow:
    params = SamplingParams.from_mapping({"max_tokens": 20, **WAYS[way]})
    return SampleRow(params, [1, 5, 40, 40, 120], [7, 8, 7, 300], (2, 6), stream_key(seed - 1, ()), 1, 9)


def masked(row: SampleRow, seed: int, vocabulary: int = VOCABULARY) -> SampleRow:
    """The same with a grammar that allows about half of the tokens."""
    words = np.random.default_rng(seed).integers(-(2**31), 2**31, -(-vocabulary // 32))
    return replace(row, mask=words.astype(np.int32))


def sample_on_device(numbers: Tensor, rows: list[SampleRow], ops: Ops) -> Sampled:
    return read_on_device(numbers, [], range(len(rows)), rows, ops).sampled


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


@pytest.mark.parametrize("vocabulary", [VOCABULARY, 64])
def test_rows_with_masks_choose_what_is_allowed_and_the_others_as_without(ops: Ops, vocabulary: int) -> None:
    plain = [replace(row(way), prompt_ids=[1], output_ids=[3]) for way in WAYS]
    numbers = logits(len(plain), 5)[:, :vocabulary].contiguous()
    rows = [masked(each, i, vocabulary) if i % 3 else each for i, each in enumerate(plain)]
    before = numbers.clone()
    forbid = cpu_ops(2, 1, threads=1).logit_mask
    found, expected = sample_on_device(numbers, rows, ops), sample(numbers, rows, forbid)
    assert found.token_ids == expected.token_ids
    assert torch.equal(numbers, before), "logits are only read"
    alone = sample(numbers, plain)
    for i, token in enumerate(found.token_ids):
        mask = rows[i].mask
        if mask is None:
            assert token == alone.token_ids[i]
        else:
            assert int(mask[token // 32]) >> token % 32 & 1
    assert any(a != b for a, b in zip(found.token_ids, alone.token_ids, strict=True))


def test_a_mask_hides_no_row_that_is_no_distribution(ops: Ops) -> None:
    numbers = logits(2)
    numbers[0, 6] = torch.nan
    mask = np.full(4, -1, dtype=np.int32)
    mask[0] ^= 1 << 6
    rows = [replace(row("greedy"), mask=mask)] * 2
    forbid = cpu_ops(2, 1, threads=1).logit_mask
    assert sample_on_device(numbers, rows, ops).bad == sample(numbers, rows, forbid).bad == [True, False]


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


@pytest.mark.parametrize("top_k", [VOCABULARY, 2**31, 2**32 + 1, 2**63, 10**30])
def test_any_top_k_beyond_the_vocabulary_is_none(ops: Ops, top_k: int) -> None:
    drawn = row("drawn")
    rows = [replace(drawn, params=replace(drawn.params, top_k=top_k)), row("greedy")]
    numbers = logits(2)
    expected = sample(numbers, [drawn, row("greedy")]).token_ids
    assert sample_on_device(numbers, rows, ops).token_ids == sample(numbers, rows).token_ids == expected


@pytest.mark.parametrize("size", [31, 32, 64, 97])
@pytest.mark.parametrize("top", [1, 3])
def test_of_equal_logits_the_best_one_told_is_the_one_that_is_chosen(ops: Ops, size: int, top: int) -> None:
    numbers = torch.zeros(1, size)
    numbers[0, [10, 16, 30]] = 9.0
    known = [Known(0, [16], top=top), Known(0, [16])]
    rows = [SampleRow(SamplingParams(temperature=0.0, logprobs=top), [], [], (), 0, 0, 0)]
    found = read_on_device(numbers, known, [0], rows, ops)
    [[entry], [value]] = found.known
    assert isinstance(entry, TokenLogprob)
    assert isinstance(value, SlotValue)
    [logprob] = found.sampled.logprobs
    assert logprob is not None
    assert found.sampled.token_ids == [10]
    assert value.best_id == entry.top[0][0] == logprob.top[0][0] == 10
    assert [i for i, _ in entry.top] == [10, 16, 30][:top]
    assert value.logprob == value.best_logprob == entry.logprob


def test_a_row_with_nothing_left_to_choose_is_bad(ops: Ops) -> None:
    numbers = torch.full((1, VOCABULARY), -torch.inf)
    numbers[0, 5:7] = 1.0
    assert sample_on_device(numbers, [row("not to end")], ops).bad == [True]
    assert sample(numbers, [row("not to end")]).bad == [True]


def test_no_rows_give_nothing(ops: Ops) -> None:
    assert sample_on_device(logits(0), [], ops).token_ids == []


def test_known_tokens_and_samples_are_read_together_as_the_host_reads_them(ops: Ops) -> None:
    numbers = logits(300, 4)
    numbers[7] = torch.nan
    known = [
        Known(0, [5, 9, 96]),
        Known(3, [1, 2, 3], one_row=True),
        Known(6, [4, 4], top=3),  # the second under a row that is no distribution
        Known(8, [x % VOCABULARY for x in range(290)], top=1),
    ]
    rows = [row("alternatives"), row("greedy"), row("values")]
    places = [2, 10, 299]
    found, expected = (
        read_on_device(numbers, known, places, rows, ops),
        read_logits(numbers, known, places, rows),
    )
    assert found.sampled.token_ids == expected.sampled.token_ids
    for one, other in zip(found.sampled.logprobs, expected.sampled.logprobs, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert len(found.known) == len(known)
    for ours, theirs in zip(found.known, expected.known, strict=True):
        assert len(ours) == len(theirs)
        for mine, its in zip(ours, theirs, strict=True):
            assert type(mine) is type(its)
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-5, nan_ok=True)
            if isinstance(mine, SlotValue) and isinstance(its, SlotValue):
                assert mine.best_id == its.best_id
            elif isinstance(mine, TokenLogprob) and isinstance(its, TokenLogprob) and not isnan(its.logprob):
                assert [i for i, _ in mine.top] == [i for i, _ in its.top]


def test_known_tokens_alone_and_nothing_at_all(ops: Ops) -> None:
    numbers = logits(2)
    [[value]] = read_on_device(numbers, [Known(1, [3])], [], [], ops).known
    assert value.logprob == pytest.approx(float(numbers[1].log_softmax(0)[3]), abs=1e-5)
    assert read_on_device(numbers, [], [], [], ops).sampled.token_ids == []


def test_one_transfer_brings_back_all_that_a_step_asks(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    whole = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: fetched.append(len(self)) or whole(self))
    for name in ("item", "__int__", "__float__", "__bool__", "numpy"):
        monkeypatch.setattr(Tensor, name, None)
    counted = replace(ops, sample=lambda scores, *_: scores.argmax(dim=1))  # the interpreter reads tensors
    known = [Known(0, [5, 9]), Known(3, [1, 2, 3], one_row=True), Known(4, [4], top=3)]
    rows = [row("alternatives"), row("penalised"), row("not to end")]
    read_on_device(logits(9), known, [2, 5, 8], rows, counted)
    assert len(fetched) == 1
