"""Arrays in the engine's language: so many items one by one, and any number of one kind after them.

What holds for some item, or between items, becomes alternatives of such arrays where a few are enough. An
item that `contains` asks for is one of the first few then; arrays that have it only later cannot be written.
"""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb, perm
from typing import NamedTuple

from .schema_empty import are_disjoint, literals
from .schema_nodes import Reading
from .schema_regex import Unsupported
from .schema_shapes import FALSE, TRUE, Array, Contains, Node, Place, item_nodes, prefix_length

MAX_FORMS = 128
"""Most arrays that one becomes."""
FIRST_ITEMS = 6
"""Items among which one that `contains` asks for has to be, beyond those given one by one."""


class ArrayForm(NamedTuple):
    prefix: tuple[Node, ...]
    rest: Node
    least: int
    most: int | None


def array_forms(reading: Reading, shape: Array) -> list[ArrayForm]:
    length = prefix_length(shape)
    prefix = tuple(reading.conjoined(item_nodes(shape, index)) for index in range(length))
    form = _trimmed(ArrayForm(prefix, reading.conjoined(item_nodes(shape, length)), shape.least, shape.most))
    forms = [form] if form is not None else []
    for contains in shape.contains:
        try:
            forms = [part for form in forms for part in _containing(reading, form, contains)]
            if len(forms) > MAX_FORMS:
                raise Unsupported("too many places for the items")
        except Unsupported as reason:
            reading.report(contains.place, "contains", str(reason))
            return [form] if form is not None else []
    if shape.unique is not None:
        forms = [part for form in forms for part in _unique(reading, form, shape.unique)]
    return forms


def _trimmed(form: ArrayForm) -> ArrayForm | None:
    """Without items that cannot be there; None if they have to be."""
    most = form.most
    for index, node in enumerate((*form.prefix, form.rest)):
        if node is FALSE:
            most = index if most is None else min(most, index)
            break
    if most is None:
        return form
    if most < form.least:
        return None
    rest = form.rest if most > len(form.prefix) else FALSE
    return form._replace(prefix=form.prefix[:most], most=most, rest=rest)


def node_of(form: ArrayForm, index: int) -> Node:
    return form.prefix[index] if index < len(form.prefix) else form.rest


def _containing(reading: Reading, form: ArrayForm, contains: Contains) -> list[ArrayForm]:
    """Raises Unsupported."""
    node, least, most = contains.node, contains.least, contains.most
    if least == 0 and most is None:
        return [form]
    if node is TRUE or all(part is node for part in (*form.prefix, form.rest)):
        top = most if form.most is None else form.most if most is None else min(most, form.most)
        return _present(_trimmed(form._replace(least=max(form.least, least), most=top)))
    if node is FALSE:
        return [form] if least == 0 else []
    others = TRUE
    if most is not None:
        reading.complement(node, contains.place)
        others = reading.negated(node, contains.place)
    places = (
        len(form.prefix) + FIRST_ITEMS
        if form.most is None
        else min(form.most, len(form.prefix) + FIRST_ITEMS)
    )
    sizes = range(least, (least if most is None else min(most, places)) + 1)
    if sum(comb(places, size) for size in sizes) > MAX_FORMS:
        raise Unsupported("too many places for the items")
    found = []
    for size in sizes:
        for chosen in combinations(range(places), size):
            found += _present(_placed(reading, form, chosen, node, others))
    return found


def _present(form: ArrayForm | None) -> list[ArrayForm]:
    return [] if form is None else [form]


def _placed(
    reading: Reading, form: ArrayForm, chosen: tuple[int, ...], node: Node, others: Node
) -> ArrayForm | None:
    """With the item at the chosen places, and not at others."""
    length = max(len(form.prefix), chosen[-1] + 1 if chosen else 0)
    prefix = tuple(
        reading.conjoined((node_of(form, index), node if index in chosen else others))
        for index in range(length)
    )
    least = max(form.least, chosen[-1] + 1 if chosen else 0)
    return _trimmed(ArrayForm(prefix, reading.conjoined((form.rest, others)), least, form.most))


def _unique(reading: Reading, form: ArrayForm, place: Place) -> list[ArrayForm]:
    if form.most is not None and form.most <= 1:
        return [form]
    try:
        if _are_unlike(reading, form):
            return [form]
        return _permuted(reading, form)
    except Unsupported as reason:
        reading.report(place, "uniqueItems", str(reason))
        return [form]


def _are_unlike(reading: Reading, form: ArrayForm) -> bool:
    """Whether no two items can be the same, by what they are."""
    if form.most is None or form.most > 8:
        return False
    unions = [reading.peek(node_of(form, index)) for index in range(form.most)]
    return all(
        one is not None and other is not None and are_disjoint(reading, one, other)
        for one, other in combinations(unions, 2)
    )


def _permuted(reading: Reading, form: ArrayForm) -> list[ArrayForm]:
    values = literals(reading, form.rest) if form.rest is not FALSE else {}
    parts = [literals(reading, node) for node in form.prefix]
    if values is None or any(part is None for part in parts):
        raise Unsupported("items of which any number differ")
    known = dict(values)
    for part in parts:
        known.update(part or {})
    most = len(known) if form.most is None else min(form.most, len(known))
    if sum(perm(len(known), size) for size in range(form.least, most + 1)) > MAX_FORMS:
        raise Unsupported("too many orders of the items")
    found = []
    for size in range(form.least, most + 1):
        for chosen in permutations(known, size):
            allowed = (parts[index] if index < len(parts) else values for index in range(size))
            if all(key in (part or {}) for key, part in zip(chosen, allowed, strict=True)):
                found.append(
                    ArrayForm(tuple(reading.value_node(known[key]) for key in chosen), FALSE, size, size)
                )
    return found
