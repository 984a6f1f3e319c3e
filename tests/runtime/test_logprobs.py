"""token_logprobs: right to rounding, ordered, and the same bits whatever rows stand beside."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.runtime.logprobs import best_ids, slot_values, token_logprobs, values_after

INF = math.inf


def _logits(rows: int, size: int, seed: int = 0, scale: float = 4.0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("size", [1, 2, 7, 1003, 49_152])
def test_values_are_log_softmax_to_float32_rounding(size: int) -> None:
    logits = _logits(5, size)
    token_ids = [0, size - 1, size // 2, size // 3, 0]
    truth = torch.log_softmax(logits.double(), dim=-1)
    for i, entry in enumerate(token_logprobs(logits, token_ids, 0)):
        assert entry.token_id == token_ids[i]
        assert entry.logprob == pytest.approx(truth[i, token_ids[i]].item(), abs=3e-6)
        assert entry.top == ()


@pytest.mark.parametrize("rounding", [None, 1.0])
def test_the_top_list_is_best_first_with_ties_by_lower_id(rounding: float | None) -> None:
    logits = _logits(4, 300)
    logits = logits if rounding is None else logits.round()
    truth = torch.log_softmax(logits.double(), dim=-1)
    for i, entry in enumerate(token_logprobs(logits, [0] * 4, 40)):
        order = sorted(range(300), key=lambda token, i=i: (-logits[i, token].item(), token))[:40]
        assert [token for token, _ in entry.top] == order
        assert [value for _, value in entry.top] == pytest.approx(truth[i, order].tolist(), abs=3e-6)


def test_the_greedy_token_has_the_very_number_that_leads_the_top_list() -> None:
    logits = _logits(50, 501).round()
    greedy = logits.argmax(dim=1).tolist()
    for entry in token_logprobs(logits, greedy, 1):
        assert entry.top == ((entry.token_id, entry.logprob),)


def test_a_top_list_is_no_longer_than_the_vocabulary() -> None:
    (entry,) = token_logprobs(_logits(1, 3), [1], 1000)
    assert sorted(token for token, _ in entry.top) == [0, 1, 2]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(("size", "top"), [(5, 3), (1003, 5), (49_153, 2)])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(size: int, top: int, threads: int) -> None:
    logits = _logits(9, size, seed=3)
    token_ids = [(7 * i) % size for i in range(9)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = token_logprobs(logits, token_ids, top)
        assert token_logprobs(logits[2:7], token_ids[2:7], top) == together[2:7]
        for i in range(9):
            assert token_logprobs(logits[i : i + 1].clone(), [token_ids[i]], top) == [together[i]]
    finally:
        torch.set_num_threads(before)


def test_a_row_of_nan_does_not_touch_the_others() -> None:
    logits = _logits(3, 20)
    alone = token_logprobs(logits, [1, 2, 3], 2)
    logits[1, 5] = math.nan
    first, broken, last = token_logprobs(logits, [1, 2, 3], 2)
    assert (first, last) == (alone[0], alone[2])
    assert broken.logprob is not None
    assert math.isnan(broken.logprob)
    assert broken.top == ()


def test_a_forbidden_token_has_log_probability_minus_infinity() -> None:
    (entry,) = token_logprobs(torch.tensor([[0.0, -INF, 0.0]]), [1], 3)
    assert entry.logprob == -INF
    assert entry.top[2] == (1, -INF)
    assert entry.top[0] == (0, pytest.approx(math.log(0.5)))


def test_huge_logits_do_not_overflow() -> None:
    (entry,) = token_logprobs(torch.tensor([[3e38, 3e38, -3e38]]), [1], 1)
    assert entry.logprob == pytest.approx(math.log(0.5))


def test_logits_are_only_read_and_no_rows_give_nothing() -> None:
    logits = _logits(2, 9)
    copy = logits.clone()
    token_logprobs(logits, [1, 2], 3)
    assert torch.equal(logits, copy)
    assert token_logprobs(logits[:0], [], 3) == []


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [5, 1003, 49_153])
def test_the_value_of_a_slot_is_the_top_list_of_one_in_any_batch(size: int, threads: int) -> None:
    logits = _logits(37, size, seed=5)
    token_ids = [(7 * i) % size for i in range(37)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = slot_values(logits, token_ids)
        for value, entry in zip(values, token_logprobs(logits, token_ids, 1), strict=True):
            assert (entry.logprob, entry.top) == (value.logprob, ((value.best_id, value.best_logprob),))
        for first, count in ((0, 1), (3, 2), (5, 16), (20, 17), (36, 1)):
            part = slice(first, first + count)
            assert slot_values(logits[part].clone(), token_ids[part]) == values[part]
        assert values_after(logits[4], [token_ids[4], 0])[0] == values[4]
    finally:
        torch.set_num_threads(before)


def test_several_tokens_after_one_row_have_the_values_they_have_alone() -> None:
    logits = _logits(1, 300)
    expected = [slot_values(logits, [token])[0] for token in (7, 0, 299, 7)]
    assert values_after(logits[0], [7, 0, 299, 7]) == expected


@pytest.mark.parametrize("wrong", [math.nan, INF, None])
def test_a_row_that_is_no_distribution_has_no_best_value(wrong: float | None) -> None:
    logits = _logits(3, 20)
    alone = slot_values(logits, [1, 2, 3])
    logits[1] = -INF if wrong is None else logits[1]
    logits[1, 5] = -INF if wrong is None else wrong
    first, broken, last = slot_values(logits, [1, 2, 3])
    assert (first, last) == (alone[0], alone[2])
    assert math.isnan(broken.best_logprob)


def test_ties_for_the_best_go_to_the_lower_id() -> None:
    assert [value.best_id for value in slot_values(torch.tensor([[1.0, 3.0, 3.0, 3.0]] * 2), [3, 0])] == [
        1,
        1,
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30), st.integers(1, 40))
def test_best_ids_is_a_stable_sort_cut_short(scores: list[float], count: int) -> None:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    assert best_ids(torch.tensor(scores), count).tolist() == order[:count]
