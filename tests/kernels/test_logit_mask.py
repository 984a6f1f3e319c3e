"""Forbidding tokens by a bit mask, in place."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.logit_mask import logit_mask


def random_mask(rows: int, words: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, words), generator=generator).to(torch.int32)


def random_logits(rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 7, 31, 32, 33, 64, 1000, 5000])
def test_masked_logits_are_those_of_the_reference(size: int) -> None:
    logits, mask = random_logits(3, size), random_mask(3, (size + 31) // 32)
    expected = logits.clone()
    reference.logit_mask(expected, mask)
    logit_mask(logits, mask)
    assert torch.equal(logits, expected)


def test_bit_j_of_word_w_is_token_32_w_plus_j() -> None:
    logits = torch.zeros(1, 70)
    mask = torch.tensor([[1 << 5, -(2**31), 1 << 3]], dtype=torch.int32)
    logit_mask(logits, mask)
    assert logits.isfinite().nonzero()[:, 1].tolist() == [5, 63, 67]


def test_the_check_against_the_reference_notices_one_wrong_bit() -> None:
    logits, mask = random_logits(1, 100), random_mask(1, 4)
    expected = logits.clone()
    reference.logit_mask(expected, mask ^ torch.tensor([0, 0, 1 << 20, 0], dtype=torch.int32))
    logit_mask(logits, mask)
    assert not torch.equal(logits, expected)


def test_an_allowed_logit_stays_what_it_is_and_a_forbidden_one_goes_whatever_it_was() -> None:
    strange = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    logits = strange.repeat(1, 2)
    logit_mask(logits, torch.tensor([[0b1111]], dtype=torch.int32))
    assert torch.equal(logits[0, :4].view(torch.int32), strange.view(torch.int32))
    assert logits[0, 4:].tolist() == [-math.inf] * 4


def test_rows_say_which_logits_a_mask_is_for_and_the_others_stay() -> None:
    logits, mask = random_logits(5, 40), random_mask(2, 2)
    expected = logits.clone()
    rows = torch.tensor([3, 0])
    reference.logit_mask(expected, mask, rows)
    untouched = logits.clone()
    logit_mask(logits, mask, rows)
    assert torch.equal(logits, expected)
    assert torch.equal(logits[[1, 2, 4]], untouched[[1, 2, 4]])
    assert logits[3].isinf().any()


def test_two_masks_of_one_row_both_hold() -> None:
    logits = torch.zeros(2, 8)
    mask = torch.tensor([[0b00001111], [0b11111100]], dtype=torch.int32)
    logit_mask(logits, mask, torch.tensor([1, 1]))
    assert logits[1].isfinite().nonzero().flatten().tolist() == [2, 3]
    assert torch.equal(logits[0], torch.zeros(8))


def test_bits_beyond_the_vocabulary_change_nothing_beside_it() -> None:
    wide = torch.zeros(2, 100)
    logit_mask(wide[:, :40], torch.zeros(2, 5, dtype=torch.int32))
    assert wide[:, :40].isinf().all()
    assert torch.equal(wide[:, 40:], torch.zeros(2, 60))


def test_a_mask_may_be_part_of_a_wider_one() -> None:
    logits, wide = random_logits(2, 64), random_mask(2, 9)
    expected = logits.clone()
    reference.logit_mask(expected, wide[:, 3:5])
    logit_mask(logits, wide[:, 3:5])
    assert torch.equal(logits, expected)


def test_no_masks_change_nothing() -> None:
    logits = torch.zeros(3, 8)
    logit_mask(logits, torch.zeros(0, 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(logits, torch.zeros(3, 8))


@pytest.mark.parametrize(
    ("logits", "mask", "rows", "message"),
    [
        (
            torch.zeros(2, 8).double(),
            torch.zeros(2, 1),
            None,
            r"logits must be \(R, V\) float32 .* torch.float64",
        ),
        (
            torch.zeros(2, 33),
            torch.zeros(2, 1).int(),
            None,
            r"mask must be \(M, 2 or more\) int32 .* got \(2, 1\)",
        ),
        (torch.zeros(2, 8), torch.zeros(2, 1), None, r"mask must be .* int32 .* torch.float32"),
        (torch.zeros(2, 8), torch.zeros(3, 1).int(), None, "a mask row for each of 2, got 3"),
        (
            torch.zeros(2, 8),
            torch.zeros(1, 1).int(),
            torch.zeros(2).long(),
            r"rows must be \(1\) int64 .* \(2,\)",
        ),
        (torch.zeros(2, 8), torch.zeros(1, 1).int(), torch.zeros(1).int(), "int64 .* torch.int32"),
    ],
)
def test_what_does_not_fit_is_refused(
    logits: Tensor, mask: Tensor, rows: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        logit_mask(logits, mask, rows)


@pytest.mark.parametrize("row", [-1, 2])
def test_rows_that_the_logits_have_not_are_refused_where_asked(row: int) -> None:
    with pytest.raises(ValueError, match=f"rows must be from 0 to 1, got {row}"):
        logit_mask(torch.zeros(2, 8), torch.zeros(1, 1).int(), torch.tensor([row]), debug=True)


def test_a_mask_of_one_word_may_have_any_stride() -> None:
    logits = torch.zeros(2, 8)
    logit_mask(logits, torch.tensor([[1, 2]], dtype=torch.int32).T)
    assert logits.isfinite().nonzero().tolist() == [[0, 0], [1, 1]]
