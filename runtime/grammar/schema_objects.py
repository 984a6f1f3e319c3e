"""Objects and arrays in the engine's language: forms, each of which it enforces to the letter.

The engine writes keys in the order of `properties`, then any others, which may come twice. It lets other keys
be spelled with escapes, so that a declared one could hide behind them, but not keys of a pattern: so other
keys are always those of a pattern here. It counts keys only where none of the declared ones is optional.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import NamedTuple

from .schema_names import allowed_names, is_name, other_keys
from .schema_nodes import Reading
from .schema_regex import Unsupported
from .schema_shapes import FALSE, TRUE, Node, Object, key_nodes

MAX_FORMS = 64
"""Most forms one object is split into, to count its keys."""


class ObjectForm(NamedTuple):
    """`least` and `most` count keys beyond those declared, all of which are then required or forbidden."""

    fields: dict[str, Node]
    required: frozenset[str]
    patterns: tuple[tuple[str, Node], ...]
    rest: Node
    least: int = 0
    most: int | None = None


def object_forms(reading: Reading, shape: Object) -> list[ObjectForm]:
    try:
        fields = _fields(reading, shape)
    except Unsupported as reason:
        reading.report(shape.place or reading.document.root, "patternProperties", str(reason))
        shape = shape._replace(layers=tuple(layer._replace(patterns=(), rest=TRUE) for layer in shape.layers))
        fields = _fields(reading, shape)
    form = _with_others(reading, shape, fields)
    if any(form.fields[key] is FALSE for key in form.required):
        return []
    return _counted(reading, shape, form)


def _fields(reading: Reading, shape: Object) -> dict[str, Node]:
    declared = dict.fromkeys(key for layer in shape.layers for key in layer.properties)
    declared |= dict.fromkeys(shape.required)
    return {key: _field(reading, shape, key) for key in declared}


def _field(reading: Reading, shape: Object, key: str) -> Node:
    if not all(is_name(reading, node, key) for node, _ in shape.names):
        return FALSE
    return reading.conjoined(key_nodes(shape, key))


def _with_others(reading: Reading, shape: Object, fields: dict[str, Node]) -> ObjectForm:
    """With what other keys than the declared ones may be."""
    required = frozenset(shape.required)
    rest = reading.conjoined(layer.rest for layer in shape.layers)
    try:
        named = allowed_names(reading, shape)
        if named is not None and named.values is not None:
            for key in named.values:
                fields.setdefault(key, _field(reading, shape, key))
            return ObjectForm(fields, required, (), FALSE)
        patterns = other_keys(reading, shape, rest, None if named is None else named.tree)
    except Unsupported as reason:
        keyword = "propertyNames" if shape.names else "patternProperties"
        place = shape.names[0][1] if shape.names else shape.place
        reading.report(place or reading.document.root, keyword, str(reason))
        return ObjectForm(fields, required, (), TRUE)
    if patterns is not None:
        return ObjectForm(fields, required, patterns, FALSE)
    return ObjectForm(fields, required, (), rest)


def _counted(reading: Reading, shape: Object, form: ObjectForm) -> list[ObjectForm]:
    """Split so that keys can be counted, where they have to be."""
    given = len(form.required)
    optional = [key for key, node in form.fields.items() if key not in form.required and node is not FALSE]
    is_open = form.rest is not FALSE or any(node is not FALSE for _, node in form.patterns)
    least = max(0, shape.least - given)
    most = None if shape.most is None else shape.most - given
    if most is not None and (most < 0 or least > most):
        return []
    if most is not None and not is_open and len(optional) <= most:
        most = None
    if not is_open and least > len(optional):
        return []
    if least == 0 and most is None:
        return [form]
    sizes = range(min(len(optional), most if most is not None else least) + 1)
    if sum(comb(len(optional), size) for size in sizes) > MAX_FORMS:
        keyword = "minProperties" if most is None else "maxProperties"
        reading.report(
            shape.place or reading.document.root, keyword, "too many declared keys that are optional"
        )
        return [form]
    return _chosen(reading, shape, form, optional, (least, most), is_open)


def _chosen(
    reading: Reading,
    shape: Object,
    form: ObjectForm,
    optional: list[str],
    bounds: tuple[int, int | None],
    is_open: bool,
) -> list[ObjectForm]:
    least, most = bounds
    forms: list[ObjectForm] = []
    for size in range(min(len(optional), least if most is None else most) + 1):
        is_enough = size >= least
        if not is_enough and not is_open:
            continue
        for chosen in combinations(optional, size):
            required = form.required | set(chosen)
            if is_enough and most is None:
                forms.append(form._replace(required=required))
                continue
            kept = {key: node if key in required else FALSE for key, node in form.fields.items()}
            wanted = max(0, least - size)
            if wanted > 1:
                reading.report(
                    shape.place or reading.document.root,
                    "minProperties",
                    "keys may come twice and count once",
                )
                wanted = 1
            left = None if most is None else most - size
            forms.append(ObjectForm(kept, required, form.patterns, form.rest, wanted, left))
    return forms
