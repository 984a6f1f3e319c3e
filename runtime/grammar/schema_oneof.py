"""oneOf: which of its schemas exclude each other, and what is left of those that do not.

Schemas that exclude each other are alternatives like those of anyOf. Of others, each is cut down by what the
ones it overlaps with allow, if that can be told in shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .schema_empty import are_disjoint, is_empty, literals
from .schema_nodes import Reading
from .schema_regex import Unsupported
from .schema_shapes import (
    Node,
    Object,
    Place,
    Union,
    key_nodes,
)

MAX_PAIRS = 20_000


def one_of(reading: Reading, options: Sequence[Node], place: Place) -> Union:
    unions = [reading.use(option) for option in options]
    both = tuple(shape for union in unions for shape in union)
    try:
        overlaps = _overlaps(reading, unions)
        if not overlaps:
            return both
        return tuple(
            shape
            for index in range(len(unions))
            for shape in _alone(reading, options, index, overlaps, place)
        )
    except Unsupported as reason:
        reading.report(place, "oneOf", f"its schemas may hold together: {reason}")
        return both


def _alone(
    reading: Reading, options: Sequence[Node], index: int, overlaps: set[tuple[int, int]], place: Place
) -> Union:
    """What one schema allows and no other."""
    union = reading.use(options[index])
    for other in range(len(options)):
        if (min(index, other), max(index, other)) in overlaps:
            union = reading.meet(union, reading.complement(options[other], place), place, "oneOf")
    return tuple(shape for shape in union if not is_empty(reading, shape))


def _overlaps(reading: Reading, unions: Sequence[Union]) -> set[tuple[int, int]]:
    """The pairs that may hold together."""
    if _have_discriminator(reading, unions):
        return set()
    pairs = list(combinations(range(len(unions)), 2))
    if len(pairs) > MAX_PAIRS:
        raise Unsupported("too many of them to compare")
    return {pair for pair in pairs if not are_disjoint(reading, unions[pair[0]], unions[pair[1]])}


def _have_discriminator(reading: Reading, unions: Sequence[Union]) -> bool:
    """Whether all are objects with a required key whose values differ from one to the next."""
    first = unions[0][0] if unions[0] else None
    if not isinstance(first, Object):
        return False
    for key in first.required[:8]:
        seen: set[object] = set()
        if all(_take(reading, union, key, seen) for union in unions):
            return True
    return False


def _take(reading: Reading, union: Union, key: str, seen: set[object]) -> bool:
    found: set[object] = set()
    for shape in union:
        if not isinstance(shape, Object) or key not in shape.required:
            return False
        values = literals(reading, reading.conjoined(key_nodes(shape, key)))
        if values is None or not seen.isdisjoint(values):
            return False
        found |= values.keys()
    seen |= found
    return True
