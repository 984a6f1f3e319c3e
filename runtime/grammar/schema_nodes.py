"""Reading: from the places of a document to the unions they stand for, and what had to be left out.

One Reading serves one schema. It keeps nodes apart by their atoms, looks into each once and only when asked,
and bounds the work: what would need too many shapes is left out and reported like any other keyword.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import TypeAlias

from ..errors import InvalidRequest
from ..text import quote
from .protocol import Unenforced
from .schema_document import Document, escaped
from .schema_empty import is_empty
from .schema_meet import intersect
from .schema_negate import MAX_SHAPES, complement
from .schema_regex import Unsupported
from .schema_shapes import (
    ANY,
    FALSE,
    TRUE,
    Array,
    Atom,
    Boolean,
    Fields,
    Fixed,
    Items,
    Negation,
    Node,
    Null,
    Number,
    Object,
    Place,
    Shape,
    Text,
    Union,
    identity,
)

MAX_WORK = 200_000
"""Most pairs of shapes that are intersected for one schema."""
MAX_NODES = 20_000
MAX_JOINT_NODES = 8_000
"""Most nodes of more than one schema: as many as pairs of schemas that refer to themselves can come to."""
FEW_SHAPES = 8
"""Shapes that are not worth a look whether they hold anything."""
MAX_NESTING = 64
"""Most schemas that apply to the same value one inside the other."""

_NOTES = frozenset((
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary",
    "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "deprecated",
    "description", "examples", "id", "readOnly", "title", "writeOnly",
))  # fmt: skip


UnionOf: TypeAlias = "Callable[[Reading, Place, bool], Union]"
"""The rules: what a place asks for, and with every combination of alternatives if that is wanted."""


class Busy(Exception):
    """What is asked about is just being read."""


class Reading:
    """Raises InvalidRequest for what is no schema or refers to itself without anything in between."""

    def __init__(self, schema: object, union_of: UnionOf) -> None:
        self._union_of = union_of
        self.document = Document(schema)
        self.unenforced: dict[tuple[str, str], Unenforced] = {}
        self._nodes: dict[tuple[int | bool, ...], Node] = {}
        self._kept: list[object] = []
        self._negations: dict[int, Node] = {}
        self._values: dict[object, Node] = {}
        self._is_exact: list[bool] = [True]
        self._work = 0
        self._joint = 0
        self._guesses = 0
        self.known_empty: dict[Node, bool] = {}
        """Nodes that were looked at, and whether they turned out to allow nothing."""

    @property
    def is_exact_so_far(self) -> bool:
        """Whether nothing was left out yet of what is being read."""
        return self._is_exact[-1]

    def report(self, place: Place, keyword: str, reason: str) -> None:
        """The keyword is left out of what is being read."""
        pointer = f"{place.pointer}{escaped(keyword)}"
        self.unenforced.setdefault((keyword, pointer), Unenforced(keyword, pointer, reason))
        self._is_exact[-1] = False

    def doubt(self) -> None:
        """Drafts disagree about what is being read. All of it is asked for, and none of it is negated."""
        self._is_exact[-1] = False

    def node_at(self, place: Place, annotates: bool = False) -> Node:
        """The node of a place; what only refers elsewhere is the node of that."""
        seen: set[int] = set()
        while True:
            schema = place.schema
            if not isinstance(schema, Mapping):
                return TRUE if schema else FALSE
            keywords = [keyword for keyword in schema if keyword not in _NOTES]
            if not keywords:
                return TRUE
            if "$ref" not in schema or not (len(keywords) == 1 or self.document.is_old):
                return self._kept_node((place,), annotates)
            target = self.document.follow(place, "$ref")
            assert target is not None, "a plain reference leads somewhere or raises"
            if id(target.schema) in seen:
                raise _endless(place)
            seen.add(id(target.schema))
            place = target

    def child(self, place: Place, *steps: str) -> Node:
        return self.node_at(self.document.child(place, *steps))

    def conjoined(self, nodes: Iterable[Node]) -> Node:
        """What all of the nodes allow."""
        atoms: dict[int, Atom] = {}
        found: set[Node] = set()
        for node in nodes:
            if node is FALSE:
                return FALSE
            if node is not TRUE and node not in found:
                found.add(node)
                for atom in node.atoms:
                    atoms[id(atom)] = atom
        if len(found) < 2:
            return found.pop() if found else TRUE
        return self._kept_node(tuple(atoms.values()))

    def negated(self, node: Node, place: Place) -> Node:
        if node is TRUE or node is FALSE:
            return FALSE if node is TRUE else TRUE
        if len(node.atoms) == 1 and isinstance(node.atoms[0], Negation):
            return node.atoms[0].node
        found = self._negations.get(id(node))
        if found is None:
            found = self._kept_node((Negation(node, place),))
            self._negations[id(node)] = found
        return found

    def value_node(self, value: object) -> Node:
        """The node of one value."""
        key = identity(value)
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = self._kept_node((Fixed(self.value_shapes([value])),))
        return found

    def value_shapes(self, values: Iterable[object], place: Place | None = None) -> Union:
        """The shapes of a list of values."""
        groups: dict[type, list[object]] = {}
        shapes: list[Shape] = []
        for value in values:
            if isinstance(value, list):
                layer = Items(tuple(map(self.value_node, value)), FALSE, is_seen=False)
                shapes.append(Array((layer,), len(value), len(value), place=place))
            elif isinstance(value, Mapping):
                fields = Fields({k: self.value_node(v) for k, v in value.items()}, (), FALSE, is_seen=False)
                shapes.append(Object((fields,), tuple(value), place=place))
            else:
                kind = float if isinstance(value, int) and not isinstance(value, bool) else type(value)
                groups.setdefault(kind, []).append(value)
        for kind, found in groups.items():
            if kind is bool:
                shapes.append(Boolean(frozenset(value is True for value in found)))
            elif kind is float:
                shapes.append(Number(tuple(dict.fromkeys(found)), place=place))  # type: ignore[arg-type]
            elif kind is str:
                shapes.append(Text(tuple(dict.fromkeys(found)), place=place))  # type: ignore[arg-type]
            elif kind is type(None):
                shapes.append(Null())
            else:
                raise InvalidRequest(f"json_schema must hold JSON values only, got {quote(found[0])}")
        return tuple(shapes)

    def union(self, node: Node) -> Union:
        """The shapes of a node, read once."""
        if node.union is None:
            if node.is_busy or len(self._is_exact) > MAX_NESTING:
                raise Busy if self._guesses else _endless(_first_place(node))
            node.is_busy = True
            self._is_exact.append(True)
            try:
                node.union = self._read(node)
            finally:
                node.is_busy = False
                node.is_exact = self._is_exact.pop()
        return node.union

    def peek(self, node: Node) -> Union | None:
        """The shapes of a node, for a guess; None for what is just being read."""
        self._guesses += 1
        try:
            return self.union(node)
        except Busy:
            return None
        finally:
            self._guesses -= 1

    def use(self, node: Node) -> Union:
        """The shapes of a node as a part of what is being read: it is only as exact as this one."""
        union = self.union(node)
        self._is_exact[-1] &= node.is_exact
        return union

    def exact(self, node: Node) -> Union:
        """The shapes of a node where nothing may be left out. Raises Unsupported."""
        union = self.union(node)
        if not node.is_exact:
            raise Unsupported("not all of it can be enforced")
        return union

    def complement(self, node: Node, place: Place) -> Union:
        """The shapes of what a node does not allow. Raises Unsupported."""
        return complement(self.exact(node), lambda child: self.negated(child, place))

    def meet(self, one: Union, other: Union, place: Place, keyword: str) -> Union:
        """What both allow; `other`, which is what the keyword asks for, is left out if that is too much."""
        if one is ANY:
            return other
        if other is ANY:
            return one
        self._work += len(one) * len(other)
        try:
            met = [both for a, b in product(one, other) if (both := intersect(a, b)) is not None]
        except Unsupported as reason:
            self.report(place, keyword, str(reason))
            return one
        if len(met) > FEW_SHAPES:
            met = [shape for shape in met if not is_empty(self, shape)]
        if len(met) > max(MAX_SHAPES, len(one), len(other)) or self._work > MAX_WORK:
            self.report(place, keyword, "too many combinations of alternatives")
            return one
        return tuple(met)

    def _read(self, node: Node) -> Union:
        if len(node.atoms) == 1:
            return self._read_atom(node.atoms[0], node.annotates)
        atoms = node.atoms
        known = self._nodes.get((False, *map(id, atoms[:-1])))
        is_next = known is not None and known.union is not None
        union = self.use(known) if known is not None and is_next else ANY
        for atom in atoms[-1:] if is_next else atoms:
            union = self.meet(union, self.use(self._kept_node((atom,))), _place_of(atom, node), "allOf")
        return union

    def _read_atom(self, atom: Atom, annotates: bool) -> Union:
        if isinstance(atom, Fixed):
            return atom.union
        if isinstance(atom, Place):
            return self._union_of(self, atom, annotates)
        try:
            return self.complement(atom.node, atom.place)
        except Unsupported as reason:
            self.report(atom.place, "not", str(reason))
            return ANY

    def _kept_node(self, atoms: tuple[Atom, ...], annotates: bool = False) -> Node:
        key = (annotates, *map(id, atoms))
        found = self._nodes.get(key)
        if found is None:
            self._joint += len(atoms) > 1
            if len(self._nodes) > MAX_NODES or self._joint > MAX_JOINT_NODES:
                raise InvalidRequest("json_schema grows too large when its references are followed")
            found = self._nodes[key] = Node(atoms, annotates)
            self._kept.append(atoms)
        return found


def _place_of(atom: Atom, node: Node) -> Place:
    if isinstance(atom, Place):
        return atom
    return atom.place if isinstance(atom, Negation) else _first_place(node)


def _first_place(node: Node) -> Place:
    for atom in node.atoms:
        if isinstance(atom, Place):
            return atom
        if isinstance(atom, Negation):
            return atom.place
    return Place({}, None, "", "")


def _endless(place: Place) -> InvalidRequest:
    return InvalidRequest(
        f"json_schema: the schema at {place.pointer or '/'} refers to itself, or is nested too deep,"
        " without a value in between"
    )
