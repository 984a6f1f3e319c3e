"""sample(): greedy and ties, bias, penalties, forbidden ends, bad rows, seeds, and rows that ignore mates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from radixlm.runtime.random_stream import stream_key
from radixlm.runtime.sampling import Sampled, SampleRow, edit_scores, sample
from radixlm.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)
INF = math.inf


def adjusted_logits(raw: torch.Tensor, row: SampleRow) -> torch.Tensor:
    scores = raw.clone()
    edit_scores(scores, row)
    return scores


def _row(
    params: SamplingParams = GREEDY,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    key: int = 1,
    choice: int = 0,
    position: int = 0,
) -> SampleRow:
    return SampleRow(params, prompt, output, eos, key, choice, position)


def _one(logits: Sequence[float], row: SampleRow) -> int:
    return sample(torch.tensor([logits]), [row]).token_ids[0]


def _random_logits(rows: int, size: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * scale


# -- greedy


def test_greedy_takes_the_largest_and_the_lowest_id_of_a_tie() -> None:
    sampled = sample(torch.tensor([[0.0, 3.0, 3.0], [5.0, 3.0, 5.0], [-1.0, -2.0, -1.0]]), [_row()] * 3)
    assert sampled == Sampled([1, 0, 0], [None] * 3, [False] * 3, [None] * 3)


@pytest.mark.parametrize("size", [1, 3, 17, 64, 1000])
def test_a_row_of_one_value_gives_id_zero_on_the_short_and_the_long_way(size: int) -> None:
    biased = SamplingParams(temperature=0, logit_bias={0: 0.0})
    assert sample(torch.zeros(3, size), [_row(), _row(biased), _row()]).token_ids == [0, 0, 0]


def test_greedy_reads_no_filter_and_no_random_number() -> None:
    params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=1.0)
    assert {_one([1.0, 4.0, 2.0], _row(params, position=i)) for i in range(20)} == {1}


def test_a_temperature_just_above_greedy_still_takes_the_best() -> None:
    for temperature in (1e-6, 1e-5):
        params = SamplingParams(temperature=temperature)
        assert {_one([1.0, 4.0, 3.99], _row(params, position=i)) for i in range(20)} == {1}


def test_no_rows_give_an_empty_result() -> None:
    assert sample(torch.zeros(0, 5), []) == Sampled([], [], [], [])


# -- bias


def test_a_bias_of_100_forces_and_of_minus_100_bans_a_token() -> None:
    logits = [9.0, 1.0, 5.0]
    for temperature in (0.0, 1.0):
        forced = SamplingParams(temperature=temperature, logit_bias={1: 100})
        banned = SamplingParams(temperature=temperature, logit_bias={0: -100, 2: -100})
        assert {_one(logits, _row(forced, position=i)) for i in range(20)} == {1}
        assert {_one(logits, _row(banned, position=i)) for i in range(20)} == {1}


def test_a_bias_is_added_before_penalties() -> None:
    params = SamplingParams(temperature=0, logit_bias={0: 2.0}, repetition_penalty=2.0, presence_penalty=0.5)
    adjusted = adjusted_logits(torch.tensor([1.0, 1.0]), _row(params, prompt=[0], output=[0]))
    assert adjusted.tolist() == [(1.0 + 2.0) / 2.0 - 0.5, 1.0]


# -- penalties


def test_frequency_counts_and_presence_marks_the_output_only() -> None:
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    row = _row(params, prompt=[3, 3, 3], output=[0, 1, 0, 0])
    adjusted = adjusted_logits(torch.tensor([4.0, 4.0, 4.0, 4.0]), row)
    assert adjusted.tolist() == [4.0 - 1.5 - 0.25, 4.0 - 0.5 - 0.25, 4.0, 4.0]


def test_repetition_divides_positive_and_multiplies_negative_scores_once() -> None:
    row = _row(SamplingParams(repetition_penalty=2.0), prompt=[0, 0, 1], output=[2, 0])
    adjusted = adjusted_logits(torch.tensor([4.0, -4.0, 0.0, 4.0, -4.0]), row)
    assert adjusted.tolist() == [2.0, -8.0, 0.0, 4.0, -4.0]


@pytest.mark.parametrize("penalty", [0.3, 1.3, 5.0])
def test_repetition_equals_the_processor_of_transformers_bit_for_bit(penalty: float) -> None:
    logits = _random_logits(1, 101)
    history = [1, 5, 5, 100, 7]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([history]), logits.clone())[0]
    row = _row(SamplingParams(repetition_penalty=penalty), prompt=history[:3], output=history[3:])
    assert torch.equal(adjusted_logits(logits[0], row), expected)


def test_extreme_repetition_penalties_stay_usable() -> None:
    for penalty in (1e-300, 1e-38, 1e38, 1e300):
        params = SamplingParams(temperature=0, repetition_penalty=penalty)
        sampled = sample(torch.tensor([[9.0, 2.0, -1.0, 0.0]]), [_row(params, prompt=[0, 2, 3])])
        assert sampled.bad == [False]
        assert sampled.token_ids == [0 if penalty < 1 else 1]


def test_history_beyond_the_models_output_is_ignored() -> None:
    params = SamplingParams(temperature=0, repetition_penalty=2.0, frequency_penalty=1.0)
    assert _one([1.0, 2.0], _row(params, prompt=[99], output=[50, 1])) == 0


# -- min_tokens


def test_below_min_tokens_nothing_ends_the_row_by_its_id() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[1])
    logits = [9.0, 8.0, 7.0]
    assert _one(logits, _row(params, output=[], eos=[0])) == 2
    assert _one(logits, _row(params, output=[2], eos=[0])) == 2
    assert _one(logits, _row(params, output=[2, 2], eos=[0])) == 0


def test_the_prompt_does_not_count_towards_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=1)
    assert _one([9.0, 8.0], _row(params, prompt=[1] * 5, eos=[0])) == 1


def test_an_ignored_end_of_text_is_an_ordinary_token_below_min_tokens() -> None:
    params = SamplingParams(temperature=0, min_tokens=5, ignore_eos=True, stop_token_ids=[1])
    assert _one([9.0, 10.0, 1.0], _row(params, eos=[0])) == 0


def test_a_draw_never_gives_a_forbidden_end() -> None:
    params = SamplingParams(min_tokens=1)
    rows = [_row(params, eos=[0, 3], position=i) for i in range(50)]
    assert set(sample(torch.zeros(50, 4), rows).token_ids) == {1, 2}


def test_a_row_with_nothing_left_to_choose_is_bad() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, min_tokens=1, logprobs=0)
        assert sample(torch.zeros(1, 1), [_row(params, eos=[0])]) == Sampled([-1], [None], [True], [None])


# -- bad rows


@pytest.mark.parametrize(
    "broken", [[math.nan, 1.0, 2.0], [0.0, 1.0, math.nan], [-INF] * 3, [0.0, INF, 1.0], [math.nan] * 3]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_usable_logits_is_bad_and_leaves_its_mates_alone(
    broken: list[float], temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, logprobs=1, top_p=0.9)
    good = _random_logits(2, 3)
    alone = sample(good, [_row(params)] * 2)
    mixed = sample(torch.stack([good[0], torch.tensor(broken), good[1]]), [_row(params)] * 3)
    assert mixed.bad == [False, True, False]
    assert mixed.token_ids == [alone.token_ids[0], -1, alone.token_ids[1]]
    assert mixed.logprobs == [alone.logprobs[0], None, alone.logprobs[1]]


def test_a_masked_token_does_not_make_a_row_bad() -> None:
    sampled = sample(torch.tensor([[-INF, 1.0], [-INF, 1.0]]), [_row(), _row(SamplingParams())])
    assert sampled == Sampled([1, 1], [None, None], [False, False], [None, None])


# -- log-probabilities


def test_logprobs_are_raw_whatever_changes_the_choice() -> None:
    logits = _random_logits(1, 11)
    params = SamplingParams(
        temperature=0.3,
        logit_bias={4: 100},
        repetition_penalty=1.5,
        frequency_penalty=1.0,
        top_k=2,
        logprobs=3,
    )
    sampled = sample(logits, [_row(params, prompt=[4], output=[4])])
    truth = torch.log_softmax(logits[0].double(), dim=0)
    entry = sampled.logprobs[0]
    assert entry is not None
    assert sampled.token_ids == [4]
    assert entry.token_id == 4
    assert entry.logprob == pytest.approx(truth[4].item(), abs=2e-6)
    assert [token for token, _ in entry.top] == truth.argsort(descending=True)[:3].tolist()


def test_only_rows_that_ask_get_logprobs() -> None:
    rows = [_row(), _row(SamplingParams(temperature=0, logprobs=0)), _row(SamplingParams(logprobs=2))]
    nothing, own, top = sample(_random_logits(3, 8), rows).logprobs
    assert nothing is None
    assert own is not None
    assert own.top == ()
    assert top is not None
    assert len(top.top) == 2


# -- seeds


def _text(seed: int, choice: int, branch: tuple[int, ...] = (), mates: int = 0) -> list[int]:
    """Twelve tokens of one choice whose logits depend on the position, sampled after `mates` greedy rows."""
    tokens = []
    for position in range(12):
        logits = _random_logits(mates + 1, 50, seed=position)
        logits[-1] = _random_logits(1, 50, seed=100 + position)[0]
        own = _row(SamplingParams(), key=stream_key(seed, branch), choice=choice, position=position)
        tokens.append(sample(logits, [_row()] * mates + [own]).token_ids[-1])
    return tokens


def test_choices_and_branches_of_one_seed_differ_and_come_back_the_same() -> None:
    texts = [_text(7, choice) for choice in range(4)] + [_text(7, 0, (child,)) for child in range(4)]
    assert len({tuple(text) for text in texts}) == 8
    assert _text(7, 2) == texts[2]
    assert _text(8, 2) != texts[2]


def test_a_seeded_text_is_the_same_with_batch_mates_that_have_no_seed() -> None:
    assert _text(7, 1, mates=5) == _text(7, 1)


# -- a row depends on itself alone


def _random_row(draw: random.Random, size: int) -> SampleRow:
    """A row with a random mix of every parameter that matters here."""
    params = SamplingParams(
        temperature=draw.choice([0.0, 1e-5, 0.7, 1.0, 100.0]),
        top_p=draw.choice([1.0, 0.9, 0.3, 1e-9]),
        top_k=draw.choice([-1, 0, 1, 3, size, size + 5]),
        min_p=draw.choice([0.0, 0.0, 0.1, 1.0]),
        frequency_penalty=draw.choice([0.0, 0.0, 0.4, -2.0]),
        presence_penalty=draw.choice([0.0, 0.0, 0.7]),
        repetition_penalty=draw.choice([1.0, 1.0, 1.3, 0.5]),
        logit_bias=draw.choice([None, {0: 1.5}, {0: -100, size - 1: 3}]) if size > 1 else None,
        min_tokens=draw.choice([0, 2]),
        stop_token_ids=draw.choice([(), (1,)]),
        ignore_eos=draw.random() < 0.3,
        logprobs=draw.choice([None, 0, 1, 5]),
    )
    prompt = [draw.randrange(size) for _ in range(draw.randrange(6))]
    output = [draw.randrange(size) for _ in range(draw.randrange(4))]
    place = (draw.getrandbits(64), draw.getrandbits(32), draw.getrandbits(32))
    return SampleRow(params, prompt, output, (size - 1,), *place)


def test_the_value_of_a_row_is_its_token_beside_the_best_of_its_raw_logits() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]]).repeat(4, 1)
    asked = [None, 0, 1, 2]
    rows = [_row(SamplingParams(temperature=0.0, logprobs=top, logit_bias={2: 50.0})) for top in asked]
    sampled = sample(logits, rows)
    assert sampled.token_ids == [2] * 4
    first, *rest = sampled.values
    assert first is None
    assert len(set(rest)) == 1
    assert rest[0] is not None
    assert (rest[0].best_id, rest[0].logprob) == (1, sampled.logprobs[1].logprob)  # type: ignore[union-attr]
    assert rest[0].best_logprob == pytest.approx(rest[0].logprob + 1.0)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([1, 2, 7, 33, 1500]), st.integers(1, 6))
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(seed: int, size: int, count: int) -> None:
    draw = random.Random(seed)
    rows = [_random_row(draw, size) for _ in range(count)]
    logits = _random_logits(count, size, seed)
    for i in range(count):
        # Ties, masked tokens and broken mates are part of the mix.
        if draw.random() < 0.3:
            logits[i] = logits[i].round()
        if draw.random() < 0.2:
            logits[i, draw.randrange(size)] = draw.choice([math.nan, -INF, INF])
    kept = logits.clone()
    together = sample(logits, rows)
    order = draw.sample(range(count), count)
    shuffled = sample(logits[order], [rows[i] for i in order])
    for i in range(count):
        parts = (together.token_ids, together.logprobs, together.bad, together.values)
        expected = Sampled(*([part[i]] for part in parts))
        place = order.index(i)
        assert sample(logits[i : i + 1].clone(), [rows[i]]) == expected
        assert shuffled.token_ids[place] == together.token_ids[i]
        assert shuffled.logprobs[place] == together.logprobs[i]
    assert torch.equal(logits.nan_to_num(7.5), kept.nan_to_num(7.5))
