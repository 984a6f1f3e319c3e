"""The values that a union of shapes does not hold, as a union again, where shapes can say so.

They cannot for "some key", "some item of many" and "no match of a pattern"; that is Unsupported, with the
keyword in words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .schema_meet import intersect
from .schema_regex import Unsupported
from .schema_shapes import (
    ANY,
    FALSE,
    TRUE,
    Array,
    Boolean,
    Contains,
    Fields,
    Items,
    Node,
    Null,
    Number,
    Object,
    Shape,
    Text,
    Union,
    item_nodes,
    prefix_length,
)

MAX_SHAPES = 128
MAX_ITEMS = 16
"""Most items looked at one by one where any of them may be the one that breaks a rule."""

Negate: TypeAlias = Callable[[Node], Node]


def complement(union: Union, negate: Negate) -> Union:
    """`negate` gives the node of what a node does not allow. Raises Unsupported."""
    result: list[Shape] = []
    for plain in ANY:
        parts: list[Shape] = [plain]
        for shape in union:
            if type(shape) is type(plain):
                others = _negated(shape, negate)
                met = (intersect(part, other) for part in parts for other in others)
                parts = [shape for shape in met if shape is not None]
                if len(parts) > MAX_SHAPES:
                    raise Unsupported("too many cases to forbid")
        result += parts
    return tuple(result)


def _negated(shape: Shape, negate: Negate) -> list[Shape]:
    """All other values of the shape's own type."""
    if isinstance(shape, Null):
        return []
    if isinstance(shape, Boolean):
        rest = frozenset((False, True)) - shape.values
        return [Boolean(rest)] if rest else []
    if isinstance(shape, Number):
        return _numbers(shape)
    if isinstance(shape, Text):
        return _texts(shape)
    if isinstance(shape, Array):
        return _arrays(shape, negate)
    return _objects(shape, negate)


def _numbers(shape: Number) -> list[Shape]:
    if shape.not_steps:
        raise Unsupported("numbers that are not multiples")
    place = shape.place
    if shape.values is not None:
        return [Number(excluded=frozenset(shape.values), place=place)]
    result: list[Shape] = [Number(tuple(sorted(shape.excluded)), place=place)] if shape.excluded else []
    if shape.low is not None:
        result.append(Number(None, None, False, shape.low, not shape.is_low_open, place=place))
    if shape.high is not None:
        result.append(Number(None, shape.high, not shape.is_high_open, place=place))
    if shape.step is not None:
        result.append(Number(not_steps=(shape.step,), place=place))
    return result


def _texts(shape: Text) -> list[Shape]:
    if shape.patterns:
        raise Unsupported("texts that a pattern does not match")
    if shape.values is not None:
        return [Text(excluded=frozenset(shape.values), place=shape.place)]
    result: list[Shape] = [Text(tuple(sorted(shape.excluded)))] if shape.excluded else []
    return [*result, *_shorter_or_longer(shape)]


def _shorter_or_longer(shape: Text | Array | Object) -> list[Shape]:
    plain: Text | Array | Object = type(shape)(place=shape.place)
    result: list[Shape] = []
    if shape.least:
        result.append(plain._replace(most=shape.least - 1))
    if shape.most is not None:
        result.append(plain._replace(least=shape.most + 1))
    return result


def _arrays(shape: Array, negate: Negate) -> list[Shape]:
    if shape.unique is not None:
        raise Unsupported("arrays whose items are not unique")
    result = _shorter_or_longer(shape)
    for contains in shape.contains:
        result += _contains_negated(shape, contains, negate)
    length = prefix_length(shape)
    if any(layer.rest is not TRUE for layer in shape.layers):
        if shape.most is None or shape.most > MAX_ITEMS:
            if length or any(layer.rest is not FALSE for layer in shape.layers if layer.rest is not TRUE):
                raise Unsupported("arrays with some item of another kind")
            return [*result, Array(least=1, place=shape.place)]
        length = max(length, shape.most)
    for index in range(length):
        for node in item_nodes(shape, index):
            if node is not TRUE:
                layer = Items((*[TRUE] * index, negate(node)), TRUE, is_seen=False)
                result.append(Array((layer,), least=index + 1, place=shape.place))
    return result


def _contains_negated(shape: Array, contains: Contains, negate: Negate) -> list[Shape]:
    if contains.most is not None:
        raise Unsupported("arrays with more of some items")
    if contains.least > 1:
        return [Array(contains=(Contains(contains.node, 0, contains.least - 1, contains.place),))]
    layer = Items((), negate(contains.node), is_seen=False)
    return [Array((layer,), place=shape.place)] if contains.least else []


def _objects(shape: Object, negate: Negate) -> list[Shape]:
    if shape.names:
        raise Unsupported("objects with some key of another kind")
    result = _shorter_or_longer(shape)
    for key in shape.required:
        result.append(Object((Fields({key: FALSE}, (), TRUE, is_seen=False),), place=shape.place))
    for layer in shape.layers:
        result += _fields_negated(shape, layer, negate)
    return result


def _fields_negated(shape: Object, layer: Fields, negate: Negate) -> list[Shape]:
    if layer.rest is not TRUE or any(node is not TRUE for _, node in layer.patterns):
        if layer.properties or layer.patterns or layer.rest is not FALSE:
            raise Unsupported("objects with some value of another kind")
        return [Object(least=1, place=shape.place)]
    result: list[Shape] = []
    for key, node in layer.properties.items():
        if node is not TRUE:
            other = Fields({key: negate(node)}, (), TRUE, is_seen=False)
            result.append(Object((other,), (key,), place=shape.place))
    return result
