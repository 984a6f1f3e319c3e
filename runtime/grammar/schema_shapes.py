"""What a JSON Schema says, as sets of values: a union of shapes, each of one JSON type.

Shapes say exactly which values they hold, never more and never less; what becomes of them in the engine's
language is decided elsewhere. A Node stands for a child's schema: the conjunction of its atoms, not yet
looked into, so that schemas that refer to themselves stay finite. Nodes with the same atoms are one object.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple, TypeAlias

from .schema_pattern import Pattern


class Place:
    """A schema inside the document: where it stands, and what its references are relative to."""

    __slots__ = ("base", "parent", "schema", "step")

    def __init__(self, schema: object, parent: Place | None, step: str, base: str) -> None:
        self.schema = schema
        self.parent = parent
        self.step = step
        self.base = base

    @property
    def pointer(self) -> str:
        steps: list[str] = []
        place: Place | None = self
        while place is not None:
            steps.append(place.step)
            place = place.parent
        return "".join(reversed(steps))


class Node:
    """The values that all atoms allow; no atoms, any value. `union` is filled in when it is asked for, and
    `is_exact` says whether it leaves nothing out that was asked. `annotates`: alternatives that hold together
    stand in the union as well, as they have to where unevaluated keys or items matter."""

    __slots__ = ("annotates", "atoms", "is_busy", "is_exact", "union")

    def __init__(self, atoms: tuple[Atom, ...], annotates: bool = False) -> None:
        self.atoms = atoms
        self.annotates = annotates
        self.union: Union | None = None
        self.is_exact = True
        self.is_busy = False


class Negation:
    """The values that a node does not allow; `place` is where that was asked."""

    __slots__ = ("node", "place")

    def __init__(self, node: Node, place: Place) -> None:
        self.node = node
        self.place = place


class Fixed:
    """Shapes that no place of the document stands for: those of a value."""

    __slots__ = ("union",)

    def __init__(self, union: Union) -> None:
        self.union = union


class Null(NamedTuple):
    pass


class Boolean(NamedTuple):
    values: frozenset[bool] = frozenset((False, True))


class Number(NamedTuple):
    """`values`, or all between the bounds without those excluded; multiples of `step`, and of none of
    `not_steps`. An integer is a multiple of 1, as 1.0 is."""

    values: tuple[int | float, ...] | None = None
    low: int | float | None = None
    is_low_open: bool = False
    high: int | float | None = None
    is_high_open: bool = False
    step: Fraction | None = None
    not_steps: tuple[Fraction, ...] = ()
    excluded: frozenset[int | float] = frozenset()
    place: Place | None = None


class Text(NamedTuple):
    """`values`, or all of so many characters that every pattern matches, without those excluded. Formats say
    how a text should look; by the standard they exclude none."""

    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    least: int = 0
    most: int | None = None
    patterns: tuple[Pattern, ...] = ()
    formats: tuple[str, ...] = ()
    place: Place | None = None


class Items(NamedTuple):
    """Of arrays: what each of the first items is, and all further ones. `is_said`: `rest` was asked for, so
    that no item is unevaluated. `is_seen`: evaluates items at all; what stands inside `not` does not."""

    prefix: tuple[Node, ...]
    rest: Node
    is_said: bool = False
    is_seen: bool = True


class Contains(NamedTuple):
    node: Node
    least: int
    most: int | None
    place: Place


class Array(NamedTuple):
    """Every one of `layers` holds. `unique`: the place that asks for items that differ."""

    layers: tuple[Items, ...] = ()
    least: int = 0
    most: int | None = None
    unique: Place | None = None
    contains: tuple[Contains, ...] = ()
    place: Place | None = None


class Fields(NamedTuple):
    """Of objects: the value of a key is what `properties` says and every matching pattern; of other keys it
    is `rest`. `is_said` and `is_seen` as in Items."""

    properties: dict[str, Node]
    patterns: tuple[tuple[Pattern, Node], ...]
    rest: Node
    is_said: bool = False
    is_seen: bool = True


class Object(NamedTuple):
    """Every one of `layers` holds; every key is what each of `names` says."""

    layers: tuple[Fields, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: tuple[tuple[Node, Place], ...] = ()
    place: Place | None = None


Shape: TypeAlias = Null | Boolean | Number | Text | Array | Object
Union: TypeAlias = tuple[Shape, ...]
Atom: TypeAlias = Place | Negation | Fixed

TRUE = Node(())
FALSE = Node((Fixed(()),))
ANY: Union = (Null(), Boolean(), Number(), Text(), Array(), Object())
TYPES: dict[str, Shape] = {
    "null": ANY[0],
    "boolean": ANY[1],
    "number": ANY[2],
    "integer": Number(step=Fraction(1)),
    "string": ANY[3],
    "array": ANY[4],
    "object": ANY[5],
}


def identity(value: object) -> object:
    """Equal for values that JSON Schema takes for equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool):
        return "bool", value
    if isinstance(value, list | tuple):
        return "array", tuple(map(identity, value))
    if isinstance(value, dict):
        return "object", frozenset((key, identity(item)) for key, item in value.items())
    return value


def field_node(layer: Fields, key: str) -> list[Node]:
    """What one layer asks of a key's value. Raises Unsupported if a pattern takes too long to match."""
    found = [node for pattern, node in layer.patterns if pattern.matches(key)]
    own = layer.properties.get(key)
    if own is not None:
        return [own, *found]
    return found or [layer.rest]


def key_nodes(shape: Object, key: str) -> list[Node]:
    return [node for layer in shape.layers for node in field_node(layer, key)]


def item_nodes(shape: Array, index: int) -> list[Node]:
    return [layer.prefix[index] if index < len(layer.prefix) else layer.rest for layer in shape.layers]


def prefix_length(shape: Array) -> int:
    return max((len(layer.prefix) for layer in shape.layers), default=0)
