"""The sampling kernel against its reference and against sampling on a CPU, filter by filter."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from radixlm.kernels import reference
from radixlm.kernels.sample import sample
from radixlm.runtime.sampling import SampleRow
from radixlm.runtime.sampling import sample as sample_on_cpu
from radixlm.runtime.sampling_params import SamplingParams
from testkit.gpu.sampling import SMALL_TAILS, against_rival

INF = math.inf


@dataclass(frozen=True)
class Row:
    """What one row asks for beside its logits."""

    logits: Tensor = field(repr=False)
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    key: int = 7
    position: int = 3
    choice: int = 0


def arguments(rows: list[Row]) -> tuple[Tensor, ...]:
    return (
        torch.stack([row.logits for row in rows]),
        torch.tensor([row.temperature for row in rows], dtype=torch.float32),
        torch.tensor([row.top_k for row in rows], dtype=torch.int32),
        torch.tensor([row.top_p for row in rows], dtype=torch.float32),
        torch.tensor([row.min_p for row in rows], dtype=torch.float32),
        torch.tensor([row.key - (1 << 64) if row.key >> 63 else row.key for row in rows]),
        torch.tensor([row.position for row in rows]),
        torch.tensor([row.choice for row in rows]),
    )


def drawn(rows: list[Row]) -> list[int]:
    return [int(token) for token in sample(*arguments(rows))]


def on_cpu(rows: list[Row]) -> list[int]:
    asked = [
        SampleRow(
            SamplingParams(temperature=row.temperature, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p),
            (),
            (),
            (),
            row.key,
            row.choice,
            row.position,
        )
        for row in rows
    ]
    return sample_on_cpu(torch.stack([row.logits for row in rows]), asked).token_ids


def loss(row: Row, token: int) -> float:
    """How far the token is behind the best of the reference in float64."""
    columns = [column.tolist()[0] for column in arguments([row])[1:]]
    scores = reference.sample_scores(row.logits.double(), *columns)
    assert scores is not None
    return float(scores.max() - scores[token])


def random_row(draw: random.Random, logits: Tensor) -> Row:
    return Row(
        logits,
        temperature=draw.choice([0.3, 0.7, 1.0, 1.0, 4.0]),
        top_k=draw.choice([0, 0, 1, 3, 20, len(logits), len(logits) + 5]),
        top_p=draw.choice([1.0, 1.0, 0.95, 0.5, 1e-9]),
        min_p=draw.choice([0.0, 0.0, 0.05, 1.0]),
        key=draw.getrandbits(64),
        position=draw.randrange(2**32),
        choice=draw.randrange(2**32),
    )


def random_logits(draw: random.Random, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(draw.getrandbits(40))
    return torch.randn(size, generator=generator) * draw.choice([0.3, 2.0, 8.0])


def noisy_rows(logits: Tensor, count: int, **asked: float) -> list[Row]:
    """The same question at so many positions."""
    row = replace(Row(logits), **asked)
    return [replace(row, position=position) for position in range(count)]


@pytest.mark.parametrize(("size", "batches"), [(7, 14), (64, 12), (1000, 8)])
def test_tokens_are_those_of_the_reference_and_of_a_cpu(size: int, batches: int) -> None:
    draw = random.Random(size)
    for _ in range(batches):
        rows = [random_row(draw, random_logits(draw, size)) for _ in range(3)]
        tokens = drawn(rows)
        assert tokens == on_cpu(rows)
        assert max(loss(row, token) for row, token in zip(rows, tokens, strict=True)) < 1e-5


@pytest.mark.parametrize("size", [7, 64, 1000])
def test_ties_and_masked_tokens_are_treated_as_on_a_cpu(size: int) -> None:
    draw = random.Random(size + 1)
    for _ in range(4):
        rows = []
        for _ in range(3):
            logits = random_logits(draw, size).round()
            logits[torch.tensor([draw.random() < 0.4 for _ in range(size)])] = -INF
            logits[draw.randrange(size)] = 0.0
            rows.append(random_row(draw, logits))
        tokens = drawn(rows)
        assert tokens == on_cpu(rows)
        assert all(row.logits[token] > -INF for row, token in zip(rows, tokens, strict=True))


def test_a_vocabulary_of_several_blocks_is_one_row() -> None:
    draw = random.Random(5)
    logits = random_logits(draw, 9000) * 0 + 1.0
    logits[8000:] = torch.linspace(0, 3, 1000)
    rows = [
        Row(logits, temperature=0.0),
        Row(logits),
        Row(logits, top_k=300, top_p=0.7),
        Row(logits, top_k=2000, top_p=0.9, min_p=0.05),
    ]
    tokens = drawn(rows)
    assert tokens == on_cpu(rows)
    assert tokens[0] == 8999
    assert max(loss(row, token) for row, token in zip(rows[1:], tokens[1:], strict=True)) < 1e-5


def test_greedy_takes_the_lowest_id_of_a_tie_whatever_else_is_asked() -> None:
    logits = torch.zeros(1000)
    logits[[3, 700, 999]] = 2.0
    assert drawn([Row(logits, temperature=0.0, top_p=0.1, top_k=2), Row(logits[:4].repeat(250), 0.0)]) == [
        3,
        3,
    ]


@pytest.mark.parametrize(("position", "token"), SMALL_TAILS)
def test_noise_far_out_is_right_to_a_thousandth(position: int, token: int) -> None:
    assert reference.gumbel(4, 7, position, 0)[token] > 20 * math.log(2), "1 - tail has lost bits of the tail"
    for distance, best in ((-1e-3, token), (1e-3, (token + 1) % 4)):
        rows = [Row(against_rival(9, position, token, distance), position=position)]
        assert drawn(rows) == on_cpu(rows) == [best]


def test_the_check_against_the_reference_notices_wrong_noise_and_a_wrong_temperature() -> None:
    draw = random.Random(2)
    rows = [Row(random_logits(draw, 64), key=i) for i in range(8)]
    tokens = drawn(rows)
    for wrong in (
        [replace(row, key=row.key + 1) for row in rows],
        [replace(row, choice=1) for row in rows],
        [replace(row, position=row.position + 1) for row in rows],
        [replace(row, temperature=1.5) for row in rows],
        [replace(row, top_k=2) for row in rows],
    ):
        assert max(loss(row, token) for row, token in zip(wrong, tokens, strict=True)) > 1e-2


# -- filters


def test_top_k_keeps_the_lower_ids_of_a_tie() -> None:
    rows = noisy_rows(torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0]), 12, top_k=3)
    assert set(drawn(rows)) == {0, 1, 4}


def test_top_p_includes_the_crossing_token_and_nothing_after_it() -> None:
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    for top_p, kept in [(0.49, {0}), (0.51, {0, 1}), (0.76, {0, 1, 2})]:
        assert set(drawn(noisy_rows(logits, 12, top_p=top_p))) == kept


def test_a_mass_that_equals_top_p_is_enough() -> None:
    assert set(drawn(noisy_rows(torch.zeros(4), 8, top_p=0.5))) == {0, 1}


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    # Alone, top_p 0.6 would keep three of five equal tokens; of the two that top_k leaves it keeps both.
    assert set(drawn(noisy_rows(torch.zeros(5), 8, top_k=2, top_p=0.6))) == {0, 1}


def test_min_p_is_relative_to_the_likeliest_after_temperature() -> None:
    logits = torch.tensor([1.0, 0.5, 0.1]).log()
    assert set(drawn(noisy_rows(logits, 10, min_p=0.4))) == {0, 1}
    assert set(drawn(noisy_rows(logits, 10, min_p=0.4, temperature=10.0))) == {0, 1, 2}


@pytest.mark.parametrize("asked", [{"top_k": 1}, {"top_p": 1e-9}, {"top_p": 1e-45}, {"min_p": 1.0}])
def test_the_narrowest_filters_are_greedy(asked: dict[str, float]) -> None:
    logits = torch.linspace(0, 0.1, 1000)
    logits[123] = 0.5
    assert drawn(noisy_rows(logits, 3, **asked)) == [123] * 3


@pytest.mark.parametrize("asked", [{"min_p": 2.0, "top_k": 1}, {"top_p": 0.0}, {"top_p": -1.0, "top_k": 3}])
def test_filters_out_of_range_still_end_with_the_best(asked: dict[str, float]) -> None:
    assert drawn(noisy_rows(torch.tensor([0.0, 1.0, 0.5, 0.25]), 3, **asked)) == [1, 1, 1]


def test_zeros_of_both_signs_are_one_number() -> None:
    logits = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1.0])
    rows = noisy_rows(logits, 8, top_k=2, top_p=0.99)
    assert set(drawn(rows)) == {0, 1}
    assert drawn(rows) == on_cpu(rows)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("temperature", [1e-6, 1e30, INF])
def test_extreme_temperatures_and_logits_give_a_possible_token(temperature: float) -> None:
    logits = torch.tensor([-INF, 3e38, 3e38, -3e38, -INF])
    assert set(drawn(noisy_rows(logits, 4, temperature=temperature, top_k=4, top_p=0.999))) <= {1, 2, 3}


# -- rows


def test_rows_without_a_finite_largest_logit_give_minus_one_and_leave_their_mates_alone() -> None:
    good = torch.linspace(-1, 1, 10)
    broken = []
    for place, value in [(0, math.nan), (9, math.nan), (4, INF), (2, math.nan)]:
        logits = good.clone()
        logits[place] = value
        broken.append(logits)
    broken.append(torch.full((10,), -INF))
    for asked in ({"temperature": 0.0}, {}, {"top_p": 0.9, "top_k": 5}):
        rows = [Row(good, **asked), *(Row(logits, **asked) for logits in broken), Row(good, **asked)]
        (alone,) = drawn(rows[:1])
        assert drawn(rows) == [alone, -1, -1, -1, -1, -1, alone]


def test_a_row_alone_is_the_row_in_a_batch_and_comes_again() -> None:
    draw = random.Random(9)
    rows = [random_row(draw, random_logits(draw, 100)) for _ in range(6)]
    tokens = drawn(rows)
    assert [drawn([row])[0] for row in rows] == tokens
    assert drawn(rows[::-1]) == tokens[::-1]


def test_choices_positions_and_keys_draw_differently() -> None:
    row = Row(torch.zeros(1000))
    others = [
        replace(row, key=8),
        replace(row, key=7 | 1 << 63),
        replace(row, position=4),
        replace(row, choice=1),
    ]
    assert len(set(drawn([row, *others]))) == 5


def test_logits_may_be_rows_of_something_wider_and_are_only_read() -> None:
    wide = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    wide[:, 30:] = 100.0
    kept = wide.clone()
    columns = arguments([Row(row[:30]) for row in wide])
    assert torch.equal(sample(wide[:, :30], *columns[1:]), sample(*columns))
    assert torch.equal(wide, kept)


def test_no_rows_give_no_tokens() -> None:
    columns = arguments([Row(torch.zeros(5))])
    assert sample(*(column[:0] for column in columns)).shape == (0,)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (
            0,
            torch.zeros(2, 5, dtype=torch.float64),
            r"logits must be \(R, V\) float32 .* got \(2, 5\) torch.float64",
        ),
        (0, torch.zeros(5, 2).T, r"last stride of 1, got .* strides \(1, 2\)"),
        (0, torch.zeros(2, 0), "from 1 to 262144 columns, got 0"),
        (1, torch.zeros(2, dtype=torch.float64), r"temperature must be \(2\) torch.float32 .* torch.float64"),
        (2, torch.zeros(2, dtype=torch.int64), r"top_k must be \(2\) torch.int32"),
        (3, torch.zeros(3), r"top_p must be \(2\) .* got \(3,\)"),
        (5, torch.zeros(2, dtype=torch.int32), r"keys must be \(2\) torch.int64"),
    ],
)
def test_what_does_not_fit_is_refused(place: int, wrong: Tensor, message: str) -> None:
    columns = list(arguments([Row(torch.zeros(5))] * 2))
    columns[place] = wrong
    with pytest.raises(ValueError, match=message):
        sample(*columns)
