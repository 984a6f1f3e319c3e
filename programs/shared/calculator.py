"""A calculator for agents: arithmetic in, its exact value out, and nothing else is ever evaluated.

The text is parsed, not run: numbers, `+ - * / // % **` and brackets are known, names, calls and all the rest
are refused. Every number on the way is bounded in size, and a power is estimated before it is computed, so
that no input takes long.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

LONGEST = 200
_BITS = 256
_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: _power(a, b),
}
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "$": " ", "€": " "})


class CalculatorError(ValueError):
    """What was wrong with the expression, in words an agent can read."""


def calculate(expression: str) -> str:
    """The value as text: whole numbers exactly, others to ten digits. Raises CalculatorError."""
    if len(expression) > LONGEST:
        raise CalculatorError(f"at most {LONGEST} characters, got {len(expression)}")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", expression.translate(_SPELLINGS)).strip().rstrip("= ")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CalculatorError(f"not arithmetic: {expression!r}") from None
    value = _value(tree.body)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise CalculatorError(f"only numbers can be computed with, got {node.value!r}")
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        try:
            return _bounded(_OPERATIONS[type(node.op)](_value(node.left), _value(node.right)))
        except ZeroDivisionError:
            raise CalculatorError("division by zero") from None
    raise CalculatorError("only numbers, + - * / // % ** and brackets are known")


def _bounded(number: float | Fraction) -> Fraction:
    """As an exact fraction; 0.1 is a tenth, as it was written. Raises CalculatorError."""
    try:
        value = Fraction(repr(number)) if isinstance(number, float) else Fraction(number)
    except ValueError:  # inf
        value = Fraction(1 << _BITS)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _BITS:
        raise CalculatorError("a number on the way is too long")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise CalculatorError("the exponent of ** must be a whole number")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if (abs(exponent) > _BITS and abs(base) not in (0, 1)) or bits * abs(exponent) > _BITS:
        raise CalculatorError("a number on the way is too long")
    return Fraction(base ** int(exponent))
