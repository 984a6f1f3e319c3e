"""Select methods against numbers worked out by hand, and what is refused instead of computed with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.frontend.choices import (
    METHODS,
    ChoicesDecision,
    ChoicesSamplingMethod,
    as_method,
    choose,
    greedy_token_selection,
    token_length_normalized,
    total,
    unconditional_likelihood_normalized,
)
from radixlm.frontend.errors import BackendError, InvalidCall
from radixlm.frontend.protocol import ChoiceScore, Scored

# "organ" is one token, "organism" that token and "ism", the third has eight tokens and a sure end.
TEXTS = ["organ", "organism", "antidisestablishmentarianism"]
LONG = (-0.4, -0.25, -0.1, -0.01, -0.01, -0.01, -0.01, -0.01)
SCORED = Scored(
    (
        ChoiceScore((1,), (-0.1,), (-0.2,)),
        ChoiceScore((1, 2), (-0.1, -0.3), (-0.2, -1.4)),
        ChoiceScore((3, 4, 5, 6, 7, 8, 9, 2), LONG, (-9.0, *LONG[1:])),
    ),
    prompt_tokens=7,
    cached_tokens=6,
    computed_tokens=12,
)


def scored(*choices: tuple[tuple[int, ...], tuple[float, ...]]) -> Scored:
    return Scored(tuple(ChoiceScore(ids, logprobs) for ids, logprobs in choices))


def test_the_mean_prefers_the_long_choice_with_the_sure_end() -> None:
    choice = choose(token_length_normalized, TEXTS, SCORED)
    assert (choice.index, choice.text) == (0, "organ")  # -0.1 both: the mean of the long one is -0.1 too
    assert choice.meta["normalized_prompt_logprobs"] == pytest.approx([-0.1, -0.2, -0.1])


def test_the_sum_prefers_the_short_choice() -> None:
    choice = choose(total, TEXTS, SCORED)
    assert choice.text == "organ"
    assert choice.meta["scores"] == pytest.approx([-0.1, -0.4, -0.8])


def test_what_the_prompt_adds_decides_by_the_mean_gain() -> None:
    choice = choose(unconditional_likelihood_normalized, TEXTS, SCORED)
    # gains: 0.1; (0.1 + 1.1) / 2; (8.6 + 0) / 8
    assert choice.meta["normalized_unconditional_prompt_logprobs"] == pytest.approx([0.1, 0.6, 1.075])
    assert choice.text == "antidisestablishmentarianism"
    assert choice.meta["unconditional_token_logprobs"] == [
        [[-0.2, 1, None]],
        [[-0.2, 1, None], [-1.4, 2, None]],
        [
            [value, token, None]
            for value, token in zip((-9.0, *LONG[1:]), (3, 4, 5, 6, 7, 8, 9, 2), strict=True)
        ],
    ]


def test_elimination_keeps_choices_of_one_token_together_and_extends_the_ended_one_by_its_mean() -> None:
    choice = choose(greedy_token_selection, TEXTS, SCORED)
    assert choice.text == "organ"  # its mean, -0.1, against -0.3 for "ism"
    assert choice.meta["greedy_logprob_matrix"][1] == pytest.approx([-0.1, -0.3] + [-0.2] * 6)


def test_elimination_goes_on_in_the_longer_choice_where_its_next_token_is_likelier() -> None:
    found = choose(greedy_token_selection, ["a", "ab"], scored(((1,), (-0.5,)), ((1, 2), (-0.5, -0.1))))
    assert found.text == "ab"


def test_elimination_does_not_look_behind_a_lost_token() -> None:
    found = choose(
        greedy_token_selection, ["x", "y"], scored(((1, 2), (-1.0, -0.01)), ((3, 4), (-0.9, -50.0)))
    )
    assert found.text == "y"


def test_elimination_tells_equal_tokens_by_their_ids_where_rows_differ_in_their_last_bits() -> None:
    noisy = math.nextafter(-0.5, 0)
    found = choose(
        greedy_token_selection, ["ab", "ac"], scored(((1, 2), (noisy, -3.0)), ((1, 3), (-0.5, -0.1)))
    )
    assert found.text == "ac"


def test_a_token_of_the_same_id_after_another_beginning_is_another_token() -> None:
    found = choose(greedy_token_selection, ["a", "b"], scored(((1, 9), (-0.5, -2.0)), ((2, 9), (-0.5, -1.0))))
    assert found.text == "b"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_of_equal_choices_the_first_wins(method: object) -> None:
    same = ChoiceScore((1, 2), (-0.3, -0.4), (-0.5, -0.5))
    assert choose(as_method(method), ["b", "a", "c"], Scored((same, same, same))).index == 0


numbers = st.floats(-30, 0)
rows = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4), min_size=1, max_size=5)


@given(rows)
def test_every_method_decides_as_its_definition_says(given_rows: list[list[tuple[float, float]]]) -> None:
    choices = [
        ChoiceScore(
            tuple(range(10 * i, 10 * i + len(row))), tuple(a for a, _ in row), tuple(b for _, b in row)
        )
        for i, row in enumerate(given_rows)
    ]
    texts = [str(i) for i in range(len(choices))]

    def best(values: list[float]) -> int:
        return values.index(max(values))

    def index(name: str) -> int:
        return choose(METHODS[name], texts, Scored(tuple(choices))).index

    means = [math.fsum(each.logprobs) / len(each.logprobs) for each in choices]
    assert index("token_length_normalized") == best(means)
    assert index("total") == best([math.fsum(each.logprobs) for each in choices])
    gains = [
        math.fsum(a - b for a, b in zip(each.logprobs, each.unconditional, strict=True)) / len(each.logprobs)
        for each in choices
    ]
    assert index("unconditional_likelihood_normalized") == best(gains)
    # no two choices begin alike here, so the likeliest first token decides, and after equal ones the next
    chosen = choices[index("greedy_token_selection")]
    assert chosen.logprobs[0] == max(each.logprobs[0] for each in choices)


@given(rows, st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_where_no_scores_are_equal(
    given_rows: list[list[tuple[float, float]]], shuffler: object
) -> None:
    choices = [ChoiceScore((i,), (row[0][0],), (row[0][1],)) for i, row in enumerate(given_rows)]
    values = [each.logprobs[0] for each in choices]
    if len(set(values)) < len(values):
        return
    texts = [str(i) for i in range(len(choices))]
    order = list(range(len(choices)))
    shuffler.shuffle(order)  # type: ignore[attr-defined]
    for method in (token_length_normalized, total, greedy_token_selection):
        plain = choose(method, texts, Scored(tuple(choices)))
        mixed = choose(method, [texts[i] for i in order], Scored(tuple(choices[i] for i in order)))
        assert plain.text == mixed.text


def test_metadata_has_what_sglang_has_and_what_was_counted() -> None:
    meta = choose(token_length_normalized, TEXTS, SCORED).meta
    assert meta["input_token_logprobs"][1] == [[-0.1, 1, None], [-0.3, 2, None]]  # type: ignore[index]
    assert meta["output_token_logprobs"] == [[], [], []]
    assert "unconditional_token_logprobs" not in meta
    assert (meta["method"], meta["index"]) == ("token_length_normalized", 0)
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["computed_tokens"]) == (7, 6, 12)


def test_only_the_method_that_compares_with_nothing_needs_the_second_scoring() -> None:
    needing = [name for name, method in METHODS.items() if method.requires_unconditional_logprobs]
    assert needing == ["unconditional_likelihood_normalized"]


# -- what a backend may get wrong


def test_missing_numbers_are_errors_and_never_zeros() -> None:
    holes = Scored((ChoiceScore((1, 2), (None, -0.1)),))  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="of choice 'a' must be numbers, the backend gave None"):
        choose(greedy_token_selection, ["a"], holes)
    with pytest.raises(BackendError, match="gave nan"):
        choose(total, ["a"], Scored((ChoiceScore((1,), (math.nan,)),)))


def test_the_unconditional_numbers_must_be_there_for_each_token() -> None:
    with pytest.raises(BackendError, match=r"gave 0 unconditional log-probabilities .* 1 tokens"):
        choose(unconditional_likelihood_normalized, ["a"], scored(((1,), (-1.0,))))


def test_a_choice_without_a_token_has_no_likelihood() -> None:
    with pytest.raises(InvalidCall, match="choice '' adds no token"):
        choose(token_length_normalized, ["a", ""], scored(((1,), (-1.0,)), ((), ())))


def test_as_many_scores_as_choices_must_come() -> None:
    with pytest.raises(BackendError, match="scored 1 of 2 choices"):
        choose(total, ["a", "b"], scored(((1,), (-1.0,))))


def test_the_impossible_is_never_chosen_over_the_possible() -> None:
    impossible = ChoiceScore((1, 2), (-math.inf, -0.1), (-math.inf, -math.inf))
    possible = ChoiceScore((3,), (-40.0,), (-1.0,))
    for method in METHODS.values():
        assert choose(method, ["a", "b"], Scored((impossible, possible))).index == 1


# -- drawing


def test_with_a_temperature_a_choice_is_drawn_in_proportion() -> None:
    halves = scored(((1,), (math.log(0.25),)), ((2,), (math.log(0.75),)))
    assert choose(total, ["a", "b"], halves, temperature=1.0, uniform=lambda: 0.24).text == "a"
    assert choose(total, ["a", "b"], halves, temperature=1.0, uniform=lambda: 0.26).text == "b"
    assert choose(total, ["a", "b"], halves, temperature=1e-3, uniform=lambda: 0.0).text == "b"


def test_elimination_has_no_scores_to_draw_from() -> None:
    with pytest.raises(InvalidCall, match="temperature must be 0 for greedy_token_selection"):
        choose(greedy_token_selection, TEXTS, SCORED, temperature=0.5)


# -- methods of one's own


class LastChoice(ChoicesSamplingMethod):
    def __call__(self, *, choices: list[str], **_: object) -> ChoicesDecision:
        return ChoicesDecision(choices[-1], {"note": "always the last"})


class Gaining(ChoicesSamplingMethod):
    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, **given: object) -> ChoicesDecision:  # type: ignore[override]
        return unconditional_likelihood_normalized(**given)  # type: ignore[arg-type]


def test_a_method_written_for_sglang_is_a_method() -> None:
    choice = choose(as_method(LastChoice()), TEXTS, SCORED)
    assert choice.text == TEXTS[-1]
    assert (choice.meta["note"], choice.meta["method"]) == ("always the last", "LastChoice")


def test_a_method_of_ones_own_may_ask_for_unconditional_scores_and_another_method() -> None:
    method = as_method(Gaining())
    assert method.requires_unconditional_logprobs
    assert choose(method, TEXTS, SCORED).text == "antidisestablishmentarianism"


def test_a_function_may_return_the_text_alone() -> None:
    def shortest(*, choices: list[str], **_: object) -> str:
        return min(choices, key=len)

    assert choose(as_method(shortest), TEXTS, SCORED).text == "organ"


def test_a_method_of_ones_own_must_decide_for_one_of_the_choices() -> None:
    with pytest.raises(InvalidCall, match="must decide for one of the choices, got 'neither'"):
        choose(as_method(lambda **_: "neither"), TEXTS, SCORED)


def test_methods_are_known_by_name_and_none_is_the_default() -> None:
    assert as_method("total") is total
    assert as_method(None) is token_length_normalized
    assert as_method(greedy_token_selection) is greedy_token_selection
    with pytest.raises(InvalidCall, match=r"must be one of token_length_normalized, .* got 'best'"):
        as_method("best")
