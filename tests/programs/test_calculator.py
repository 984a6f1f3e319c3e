"""The calculator of agents: what it computes, and what it does with everything else a model may write."""

from __future__ import annotations

from time import perf_counter

import pytest

from radixlm.programs.shared.calculator import LONGEST, CalculatorError, calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("17 * 23", "391"),
        ("(120 - 36) / 7", "12"),
        ("0.1 + 0.2", "0.3"),
        ("1/3 * 3", "1"),
        ("2/3", "0.6666666667"),
        ("2**10", "1024"),
        ("2^10", "1024"),
        ("2**-2", "0.25"),
        ("7 // 2", "3"),
        ("-7 % 5", "3"),
        ("--5", "5"),
        ("1,250 + 2,000,000", "2001250"),
        ("$12 × 3 ÷ 4 =", "9"),
        ("8 − 3", "5"),
        ("1**99999999999", "1"),
        ("(-1)**99999999999", "-1"),
        ("0**99999999999", "0"),
    ],
)
def test_arithmetic_is_exact(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "open('/etc/passwd')",
        "pi * 2",
        "abs(-3)",
        "[1, 2][0]",
        "'a' * 3",
        "True + 1",
        "1j * 1j",
        "1 < 2",
        "1 if 2 else 3",
        "x := 4",
        "lambda: 0",
        "(1).real",
        "f'{1}'",
        "~3",
        "1 << 9",
        "3 & 1",
        "1 and 2",
        "not 1",
        "...",
        "b'1'",
        "None",
    ],
)
def test_what_is_not_arithmetic_is_refused_and_never_run(expression: str) -> None:
    with pytest.raises(CalculatorError, match=r"only numbers|not arithmetic"):
        calculate(expression)


@pytest.mark.parametrize(
    "expression", ["", "   ", "=", "3 +", "(3", "3)", "1 2", "3\n4", "\0", "\ud800", "15% * 2", "٣ + +"]
)
def test_what_cannot_be_read_is_refused_in_words(expression: str) -> None:
    with pytest.raises(CalculatorError, match="not arithmetic"):
        calculate(expression)


@pytest.mark.parametrize("expression", ["1 / 0", "1 // 0", "5 % 0", "0 ** -1", "1 / (2 - 2)"])
def test_division_by_zero_is_named(expression: str) -> None:
    with pytest.raises(CalculatorError, match="division by zero"):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9",
        "2**999999999999999999999",
        "2**-999999999999999999999",
        "(9**80)**80",
        "10**100 * 10**100",
        "(1/3)**200 * (1/7)**200",
        "1e308 * 1e308",
        "1e999",
        "(-2)**1000",
        "(3/2)**100000",
        "9" * LONGEST,
        "*".join(["9" * 60] * 3),
    ],
)
def test_numbers_that_grow_are_refused_at_once(expression: str) -> None:
    begin = perf_counter()
    with pytest.raises(CalculatorError, match="too long"):
        calculate(expression)
    assert perf_counter() - begin < 1


def test_the_exponent_of_a_power_is_whole() -> None:
    with pytest.raises(CalculatorError, match="whole number"):
        calculate("2 ** 0.5")


def test_a_long_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CalculatorError, match=f"at most {LONGEST} characters, got {LONGEST + 1}"):
        calculate("(" * (LONGEST + 1))


def test_brackets_and_signs_as_deep_as_there_is_room_for_are_no_trouble() -> None:
    deep = LONGEST // 2 - 1
    assert calculate("(" * deep + "1" + ")" * deep) == "1"
    assert calculate("-" * (LONGEST - 1) + "1") == "-1"
