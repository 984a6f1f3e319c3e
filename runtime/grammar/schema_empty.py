"""Whether shapes hold anything, and how many values, as far as a look at a few levels of children tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .schema_meet import intersect
from .schema_shapes import (
    FALSE,
    TRUE,
    Array,
    Boolean,
    Node,
    Null,
    Number,
    Object,
    Shape,
    Text,
    Union,
    identity,
    item_nodes,
    key_nodes,
)

if TYPE_CHECKING:
    from .schema_nodes import Reading

MAX_DEPTH = 3
"""Levels of children that are looked at to find out that nothing is allowed."""


def literals(reading: Reading, node: Node) -> dict[object, object] | None:
    """The values of a node that allows only so many, by what makes them the same; None for others."""
    union = reading.peek(node) if node.atoms else None
    if union is None:
        return None
    found: dict[object, object] = {}
    for shape in union:
        values = _literals(shape)
        if values is None:
            return None
        found.update((identity(value), value) for value in values)
    return found


def _literals(shape: Shape) -> Sequence[object] | None:
    if isinstance(shape, Text | Number):
        return shape.values
    if isinstance(shape, Boolean):
        return sorted(shape.values)
    return [None] if isinstance(shape, Null) else None


def are_disjoint(reading: Reading, one: Union, other: Union) -> bool:
    """Whether no value is in both, as far as a look at some levels can tell. Raises Unsupported."""
    for a in one:
        for b in other:
            both = intersect(a, b)
            if both is not None and not is_empty(reading, both):
                return False
    return True


def is_empty(reading: Reading, shape: Shape, depth: int = MAX_DEPTH) -> bool:
    """Whether a shape is known to hold nothing."""
    if isinstance(shape, Object):
        nodes = [reading.conjoined(key_nodes(shape, key)) for key in shape.required]
    elif isinstance(shape, Array):
        nodes = [reading.conjoined(item_nodes(shape, index)) for index in range(min(shape.least, 8))]
    else:
        return False
    return depth > 0 and any(is_empty_node(reading, node, depth - 1) for node in nodes)


def is_empty_node(reading: Reading, node: Node, depth: int = MAX_DEPTH) -> bool:
    """Whether a node is known to allow nothing. What is just being read may allow something."""
    if node is TRUE or node is FALSE:
        return node is FALSE
    known = reading.known_empty.get(node)
    if known is None:
        union = reading.peek(node)
        known = union is not None and all(is_empty(reading, shape, depth) for shape in union)
        if union is not None:
            reading.known_empty[node] = known
    return known
