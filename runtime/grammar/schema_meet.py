"""Intersections of shapes, exact: a value is in the result if and only if it is in both."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from .schema_shapes import ANY, FALSE, Array, Boolean, Fields, Null, Number, Object, Shape, Text

_PLAIN = {type(shape): shape for shape in ANY}


def intersect(one: Shape, other: Shape) -> Shape | None:
    """The values of both; None where it is plain that there are none. Raises Unsupported when a pattern takes
    too long to match."""
    if type(one) is not type(other):
        return None
    plain = _PLAIN[type(one)]
    if one is plain or one is other:
        return other
    if other is plain:
        return one
    both: Shape | None = Null()
    if isinstance(one, Number) and isinstance(other, Number):
        both = _numbers(one, other)
    elif isinstance(one, Text) and isinstance(other, Text):
        both = _texts(one, other)
    elif isinstance(one, Array) and isinstance(other, Array):
        both = _arrays(one, other)
    elif isinstance(one, Object) and isinstance(other, Object):
        both = _objects(one, other)
    elif isinstance(one, Boolean) and isinstance(other, Boolean):
        values = one.values & other.values
        both = Boolean(values) if values else None
    return None if both is None or is_void(both) else both


def is_void(shape: Shape) -> bool:
    """Whether the bounds of a shape leave nothing between them."""
    if isinstance(shape, Number):
        return shape.low is not None and shape.high is not None and _has_no_number(shape)
    if isinstance(shape, Null | Boolean):
        return False
    least = max(shape.least, len(shape.required)) if isinstance(shape, Object) else shape.least
    return shape.most is not None and least > shape.most


def _has_no_number(shape: Number) -> bool:
    """Of a shape with both bounds."""
    low, high = as_fraction(shape.low or 0), as_fraction(shape.high or 0)
    if shape.step is not None:
        first = -(-low // shape.step) * shape.step
        low = first + shape.step if shape.is_low_open and first == low else first
    elif shape.is_low_open and low == high:
        return True
    return low > high or (shape.is_high_open and low == high)


def has_number(shape: Number, value: int | float) -> bool:
    if shape.low is not None and (value < shape.low or (shape.is_low_open and value == shape.low)):
        return False
    if shape.high is not None and (value > shape.high or (shape.is_high_open and value == shape.high)):
        return False
    if value in shape.excluded:
        return False
    if shape.step is None and not shape.not_steps:
        return True
    exact = as_fraction(value)
    if shape.step is not None and exact % shape.step:
        return False
    return all(exact % step for step in shape.not_steps)


def as_fraction(value: int | float) -> Fraction:
    """As it was written: 0.1 is a tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def has_text(shape: Text, value: str) -> bool:
    """Whether the shape, whose own `values` are not looked at, holds a text."""
    if value in shape.excluded or len(value) < shape.least:
        return False
    if shape.most is not None and len(value) > shape.most:
        return False
    return all(pattern.matches(value) for pattern in shape.patterns)


def least_of(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _numbers(one: Number, other: Number) -> Number | None:
    if one.values is not None or other.values is not None:
        if one.values is None:
            one, other = other, one
        values = [value for value in one.values or () if has_number(other, value)]
        if other.values is not None:
            allowed = set(other.values)
            values = [value for value in values if value in allowed]
        return Number(tuple(values), place=one.place) if values else None
    low, is_low_open = max(_lows(one), _lows(other), key=_low_key)
    high, is_high_open = min(_highs(one), _highs(other), key=_high_key)
    if (
        low is not None
        and high is not None
        and (low > high or (low == high and (is_low_open or is_high_open)))
    ):
        return None
    step = common_step(one.step, other.step)
    not_steps = tuple(dict.fromkeys(one.not_steps + other.not_steps))
    if step is not None and any(step % unwanted == 0 for unwanted in not_steps):
        return None
    excluded = one.excluded | other.excluded
    return Number(
        None, low, is_low_open, high, is_high_open, step, not_steps, excluded, one.place or other.place
    )


def _lows(shape: Number) -> tuple[int | float | None, bool]:
    return shape.low, shape.is_low_open


def _highs(shape: Number) -> tuple[int | float | None, bool]:
    return shape.high, shape.is_high_open


def _low_key(bound: tuple[int | float | None, bool]) -> tuple[float | int, bool]:
    return (float("-inf") if bound[0] is None else bound[0]), bound[1]


def _high_key(bound: tuple[int | float | None, bool]) -> tuple[float | int, bool]:
    return (float("inf") if bound[0] is None else bound[0]), not bound[1]


def common_step(one: Fraction | None, other: Fraction | None) -> Fraction | None:
    if one is None or other is None:
        return other if one is None else one
    bottom = lcm(one.denominator, other.denominator)
    return Fraction(lcm(int(one * bottom), int(other * bottom)), bottom)


def _texts(one: Text, other: Text) -> Text | None:
    if one.values is not None or other.values is not None:
        if one.values is None:
            one, other = other, one
        values = [value for value in one.values or () if has_text(other, value)]
        if other.values is not None:
            allowed = set(other.values)
            values = [value for value in values if value in allowed]
        return Text(tuple(values), place=one.place) if values else None
    least, most = max(one.least, other.least), least_of(one.most, other.most)
    patterns = {pattern.source: pattern for pattern in one.patterns + other.patterns}
    return Text(
        None,
        one.excluded | other.excluded,
        least,
        most,
        tuple(patterns.values()),
        tuple(dict.fromkeys(one.formats + other.formats)),
        one.place or other.place,
    )


def _arrays(one: Array, other: Array) -> Array:
    least, most = max(one.least, other.least), least_of(one.most, other.most)
    layers = one.layers + tuple(
        layer for layer in other.layers if all(layer is not own for own in one.layers)
    )
    contains = one.contains + tuple(c for c in other.contains if all(c is not own for own in one.contains))
    return Array(layers, least, most, one.unique or other.unique, contains, one.place or other.place)


def _objects(one: Object, other: Object) -> Object | None:
    least, most = max(one.least, other.least), least_of(one.most, other.most)
    required = tuple(dict.fromkeys(one.required + other.required))
    layers = one.layers + tuple(
        layer for layer in other.layers if all(layer is not own for own in one.layers)
    )
    if any(_forbids(layer, key) for key in required for layer in layers):
        return None
    return Object(layers, required, least, most, one.names + other.names, one.place or other.place)


def _forbids(layer: Fields, key: str) -> bool:
    own = layer.properties.get(key)
    return own is FALSE if own is not None else layer.rest is FALSE and not layer.patterns
