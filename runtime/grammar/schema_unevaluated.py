"""unevaluatedProperties and unevaluatedItems, where the alternatives of a schema say what is evaluated.

Each shape of the union knows the keys and items that its own schemas looked at, so that what is left can be
told statically. What was left out before may have evaluated more; then these keywords are left out as well.
"""

from __future__ import annotations

from .schema_nodes import Reading
from .schema_shapes import TRUE, Array, Fields, Items, Node, Object, Place, Union, prefix_length


def unevaluated_properties(reading: Reading, place: Place, union: Union) -> Union:
    node = reading.child(place, "unevaluatedProperties")
    if node is not TRUE and not reading.is_exact_so_far:
        reading.report(place, "unevaluatedProperties", "what is evaluated is not known")
        return union
    return tuple(_close_object(shape, node) if isinstance(shape, Object) else shape for shape in union)


def _close_object(shape: Object, node: Node) -> Object:
    layers = [layer for layer in shape.layers if layer.is_seen]
    if any(layer.is_said for layer in layers):
        return shape
    properties = {key: TRUE for layer in layers for key in layer.properties}
    patterns = tuple((pattern, TRUE) for layer in layers for pattern, _ in layer.patterns)
    return shape._replace(layers=(*shape.layers, Fields(properties, patterns, node, is_said=True)))


def unevaluated_items(reading: Reading, place: Place, union: Union) -> Union:
    node = reading.child(place, "unevaluatedItems")
    arrays = [shape for shape in union if isinstance(shape, Array)]
    if node is not TRUE and (not reading.is_exact_so_far or any(shape.contains for shape in arrays)):
        reading.report(place, "unevaluatedItems", "what is evaluated is not known")
        return union
    return tuple(_close_array(shape, node) if isinstance(shape, Array) else shape for shape in union)


def _close_array(shape: Array, node: Node) -> Array:
    layers = tuple(layer for layer in shape.layers if layer.is_seen)
    if any(layer.is_said for layer in layers):
        return shape
    evaluated = (TRUE,) * prefix_length(shape._replace(layers=layers))
    return shape._replace(layers=(*shape.layers, Items(evaluated, node, is_said=True)))
