"""Numbers and texts in the engine's language: schemas that allow exactly, or a little less than, a shape.

The engine reads numbers of many digits a little off, computes with 64-bit integers, knows no exponents beside
bounds, and reads a step by multiplying by ten. Where that would allow a wrong value, bounds move inward, a
step is written another way, or it is reported; a few very large or very long numbers are then never written.
Nor are texts with control characters other than those that JSON has a short escape for.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .schema_meet import common_step, has_number, is_void
from .schema_nodes import Reading
from .schema_pattern import Pattern
from .schema_regex import Unsupported, all_but, can_be_written, lengths
from .schema_shapes import Number, Place, Text

Schema: TypeAlias = dict[str, object]

_ENGINE_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6",
                             "uuid", "uri"))  # fmt: skip
_FORMAT_PATTERNS = {
    "json-pointer": r"^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "uri-reference": r"^(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*"
    r"(?:#(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*)?$",
}
MAX_EXCLUDED = 128
"""Most numbers that are taken out of a range."""

_WHOLE = 2**53
"""Up to here every integer is a double; numbers of more digits are read a little off."""
_DIGITS = 22
"""Up to here powers of ten are read exactly."""
_LIMIT = 9 * 10**18
"""Bounds beyond this do not fit what the engine computes with."""
_WIDE = 10**17
"""From here on, the engine needs a bound at the other end as well."""
_MAX_STEP = 10_000
"""The engine keeps a state for every remainder."""


def number_schemas(reading: Reading, shape: Number) -> list[Schema]:
    if shape.values is not None:
        return _constants(reading, shape)
    if shape.not_steps:
        _report(reading, shape.place, "not", "numbers that are no multiples")
    return [
        schema
        for step in _steps(reading, shape)
        for part in _gaps(reading, shape)
        for schema in _stepped(reading, part, step)
    ]


def _gaps(reading: Reading, shape: Number) -> list[Number]:
    """The ranges between the excluded numbers."""
    points = sorted(
        point for point in shape.excluded if has_number(shape._replace(excluded=frozenset()), point)
    )
    if len(points) > MAX_EXCLUDED:
        _report(reading, shape.place, "not", "too many numbers to exclude")
        return [shape]
    parts = []
    for point in points:
        parts.append(shape._replace(high=point, is_high_open=True))
        shape = shape._replace(low=point, is_low_open=True)
    return [part for part in (*parts, shape) if not is_void(part)]


def _report(reading: Reading, place: Place | None, keyword: str, reason: str) -> None:
    reading.report(place or reading.document.root, keyword, reason)


def _literal(place: Place | None) -> str:
    """The keyword by which a place names its values."""
    schema = None if place is None else place.schema
    return "const" if isinstance(schema, dict) and "const" in schema else "enum"


def _constants(reading: Reading, shape: Number) -> list[Schema]:
    exact = [_plain(value) for value in shape.values or () if abs(value) <= _WHOLE and _is_writable(value)]
    if len(exact) == len(shape.values or ()):
        return [{"enum": exact}]
    _report(reading, shape.place, _literal(shape.place), "a number that is too large or has too many digits")
    return [{"type": "number"}]


def _plain(value: int | float) -> int | float:
    """Whole numbers without a fraction, as texts have them most often."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= _WHOLE else value


def _is_writable(value: int | float) -> bool:
    """Whether the engine reads the number as it is meant, and writes it out in not too many digits."""
    digits, exponent = _scientific(value)
    return digits <= _WHOLE and -_DIGITS <= exponent <= _DIGITS


def _scientific(value: int | float) -> tuple[int, int]:
    """The digits of a number as an integer, and by which power of ten it is to be multiplied."""
    parts = Decimal(repr(value)).as_tuple()
    assert isinstance(parts.exponent, int), "numbers of a schema are finite"
    return int("".join(map(str, parts.digits))), parts.exponent


def _steps(reading: Reading, shape: Number) -> list[Fraction | None]:
    """Steps that together give the shape's: the engine takes 0.75 for a multiple of 0.25, and 0.5 not."""
    step = shape.step
    if step is None:
        return [None]
    steps: list[Fraction | None] = []
    whole = Fraction(1)
    while step.denominator != 1 and (step * whole).denominator != 1 and len(steps) < 20:
        whole *= 10
        steps.append(None)
    digits = len(steps)
    steps = [common_step(step, Fraction(1, 10**places)) for places in range(digits, -1, -1)]
    written = [part for part in dict.fromkeys(steps) if part is not None and _is_step(part)]
    if written and written[0] == step:
        return list(written)
    _report(reading, shape.place, "multipleOf", "a step of more than four digits")
    return [Fraction(1) if step.denominator == 1 else None]


def _is_step(step: Fraction) -> bool:
    """Whether the engine reads the step as it is meant."""
    value, places = float(step), 0
    while value != math.floor(value) and places < 30:
        value, places = value * 10, places + 1
    return value <= _MAX_STEP and Fraction(int(value), 10**places) == step


def _stepped(reading: Reading, shape: Number, step: Fraction | None) -> list[Schema]:
    is_integer = step is not None and step.denominator == 1
    if (shape.low or 0) > _LIMIT or (shape.high or 0) < -_LIMIT:
        keyword = "minimum" if (shape.low or 0) > _LIMIT else "maximum"
        _report(reading, shape.place, keyword, "a bound that is too large")
        shape = shape._replace(low=None, high=None)
    low, high = _End(shape.low, shape.is_low_open), _End(shape.high, shape.is_high_open)
    if is_integer:
        low, high = _whole(low, ROUND_CEILING), _whole(high, ROUND_FLOOR)
    else:
        low, high = _inward(low, ROUND_CEILING), _inward(high, ROUND_FLOOR)
    low, high = _parted(*_framed(low, high, step))
    if is_void(Number(None, *low, *high, step)):
        return []
    schema: Schema = {"type": "integer" if is_integer else "number"}
    if low.bound is not None:
        schema["exclusiveMinimum" if low.is_open else "minimum"] = low.bound
    if high.bound is not None:
        schema["exclusiveMaximum" if high.is_open else "maximum"] = high.bound
    if step is not None and step != 1:
        schema["multipleOf"] = step.numerator if is_integer else float(step)
    return [schema]


class _End(NamedTuple):
    """One end of a range of numbers."""

    bound: int | float | None
    is_open: bool


def _whole(end: _End, rounding: str) -> _End:
    """The end of the integers of a range, closed, or one inside of it that is a double as well."""
    bound, is_open = end
    if bound is None:
        return end
    is_low = rounding == ROUND_CEILING
    if is_low:
        whole = math.floor(bound) + 1 if is_open else math.ceil(bound)
    else:
        whole = math.ceil(bound) - 1 if is_open else math.floor(bound)
    if abs(whole) > _WHOLE:
        double = float(whole)
        if double < whole if is_low else double > whole:
            double = math.nextafter(double, math.inf if is_low else -math.inf)
        whole = int(double)
    return _End(whole, False)


def _inward(end: _End, rounding: str) -> _End:
    """The end if the engine reads and writes it as it is meant, else one inside of it with fewer digits."""
    bound, is_open = end
    if bound is None or (abs(bound) <= _WHOLE and _is_writable(bound)):
        return end if bound is None else _End(_plain(bound), is_open)
    exact = Decimal(repr(bound))
    exponent = max(exact.adjusted() - 14, -_DIGITS)
    rounded = exact.quantize(Decimal(1).scaleb(exponent), rounding, Context(prec=400))
    return _End(_plain(float(rounded)), is_open and rounded == exact)


def _framed(low: _End, high: _End, step: Fraction | None) -> tuple[_End, _End]:
    """Ends no larger than what the engine computes with, and both of them where one is very large. Multiples
    of a fraction stay so small that a double tells them apart."""
    limit = _LIMIT
    is_wide = any(end.bound is not None and abs(end.bound) >= _WIDE for end in (low, high))
    if step is not None and step.denominator != 1:
        limit, is_wide = 10 ** max(1, 15 - len(str(step.denominator))), True
    if not is_wide:
        return low, high
    if low.bound is None or low.bound < -limit:
        low = _End(-limit, False)
    if high.bound is None or high.bound > limit:
        high = _End(limit, False)
    return low, high


def _parted(low: _End, high: _End) -> tuple[_End, _End]:
    """The engine takes an integer that is an open end for a part of a range that ends before the next one:
    there a little more is left out."""
    bottom, top = low.bound, high.bound
    if bottom is not None and top is not None:
        if low.is_open and bottom >= 0 and bottom == int(bottom) and top < bottom + 1:
            return _nudged(bottom, top), high
        if high.is_open and top <= 0 and top == int(top) and bottom > top - 1:
            return low, _nudged(top, bottom)
    return low, high


def _nudged(bound: int | float, other: int | float) -> _End:
    """A closed end next to an integer, on the side of the other end."""
    for places in range(6, 16):
        moved = round(bound + math.copysign(10.0**-places, other - bound), places)
        if moved != bound and _is_writable(moved) and abs(moved - bound) < abs(other - bound):
            return _End(moved, False)
    return _End(other, True)


def text_schemas(reading: Reading, shape: Text) -> list[Schema]:
    if shape.values is not None:
        values = [value for value in shape.values if can_be_written(value)]
        if values:
            return [{"enum": values}]
        _report(reading, shape.place, _literal(shape.place), "control characters, which are not written")
        return [{"type": "string"}]
    patterns = list(shape.patterns)
    if shape.excluded:
        try:
            patterns.append(Pattern(all_but(tuple(shape.excluded))))
        except Unsupported as reason:
            _report(reading, shape.place, "not", str(reason))
    schema: Schema = {"type": "string"}
    for name in shape.formats[:1]:
        if name in _ENGINE_FORMATS:
            schema["format"] = name
        elif name in _FORMAT_PATTERNS:
            schema["pattern"] = _FORMAT_PATTERNS[name]
    least, most = shape.least, shape.most
    for pattern in patterns:
        shortest, longest = lengths(pattern.tree)
        if (longest is not None and longest < shape.least) or (
            shape.most is not None and shortest > shape.most
        ):
            return []
        least = 0 if shortest >= least else least
        most = None if most is not None and longest is not None and longest <= most else most
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    written = [pattern.written() for pattern in patterns]
    if written and "pattern" not in schema:
        schema["pattern"] = written.pop()
    if not written:
        return [schema]
    return [{"allOf": [schema, *({"type": "string", "pattern": source} for source in written)]}]
