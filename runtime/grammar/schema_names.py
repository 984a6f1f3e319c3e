"""Keys of objects that are not declared: which there may be, and what each of them is.

propertyNames, patternProperties and additionalProperties, of any number of schemas that hold together, become
patterns of which a key matches at most one. The engine asks the same, and gives up on long ones.
"""

from __future__ import annotations

from typing import NamedTuple

from .schema_automaton import Automaton, Holding, both
from .schema_meet import has_text
from .schema_nodes import Reading
from .schema_pattern import Pattern
from .schema_regex import ANYTHING, NOTHING, Alt, Tree, Unsupported, all_but, counted, lengths, literal
from .schema_shapes import FALSE, TRUE, Node, Object, Text

MAX_WRITTEN = 2800
"""Most characters of the patterns of one object; the engine cannot tell longer ones apart."""


def is_name(reading: Reading, node: Node, key: str) -> bool:
    """Whether a key is one that a node of propertyNames allows. Raises Unsupported."""
    if node is TRUE:
        return True
    texts = [part for part in reading.union(node) if isinstance(part, Text)]
    return any(key in part.values if part.values is not None else has_text(part, key) for part in texts)


class Names(NamedTuple):
    """The keys an object may have: so many, or those of a tree."""

    values: tuple[str, ...] | None
    tree: Tree


def allowed_names(reading: Reading, shape: Object) -> Names | None:
    """Raises Unsupported."""
    node = reading.conjoined(node for node, _ in shape.names)
    if node is TRUE:
        return None
    texts = [part for part in reading.union(node) if isinstance(part, Text)]
    if all(text.values is not None for text in texts):
        return Names(tuple(value for text in texts for value in text.values or ()), ANYTHING)
    return Names(None, Alt(tuple(_name_tree(text) for text in texts)))


def _name_tree(text: Text) -> Tree:
    if text.values is not None:
        return Alt(tuple(literal(value) for value in text.values))
    trees: list[Tree] = [pattern.tree for pattern in text.patterns]
    if text.excluded:
        trees.append(all_but(tuple(text.excluded)))
    bounds = [lengths(tree) for tree in trees]
    least = 0 if any(shortest >= text.least for shortest, _ in bounds) else text.least
    most = text.most
    if most is not None and any(longest is not None and longest <= most for _, longest in bounds):
        most = None
    if least or most is not None or not trees:
        trees.append(counted(least, most))
    tree = trees[0]
    for other in trees[1:]:
        tree = both(tree, other)
    return tree


def other_keys(
    reading: Reading, shape: Object, rest: Node, names: Tree | None
) -> tuple[tuple[str, Node], ...] | None:
    """Patterns that exclude each other, for all keys that are not declared; None where one node stands for
    all of them. `names`: the keys there may be. Raises Unsupported."""
    patterns = {pattern.source: pattern.tree for layer in shape.layers for pattern, _ in layer.patterns}
    declared = tuple(
        dict.fromkeys((*(key for layer in shape.layers for key in layer.properties), *shape.required))
    )
    if not patterns:
        return None if names is None else _written([(names, rest)], declared)
    if len(patterns) == 1 and names is None and rest is FALSE:
        regions = [(tree, _region(reading, shape, {source})) for source, tree in patterns.items()]
    else:
        regions = _regions(reading, shape, patterns, names)
    written = _written(regions, declared)
    if len(written) > 1 and sum(len(source) for source, _ in written) > MAX_WRITTEN:
        raise Unsupported("patterns that are too long when they are combined")
    return written


def _regions(
    reading: Reading, shape: Object, patterns: dict[str, Tree], names: Tree | None
) -> list[tuple[Tree, Node]]:
    """For each node, the keys it is for: those that just so many of the patterns match."""
    automaton = Automaton([*patterns.values(), *([] if names is None else [names])])
    found: dict[Node, set[Holding]] = {}
    for holding in automaton.holdings:
        if names is None or holding[-1]:
            matched = {source for source, is_held in zip(patterns, holding, strict=False) if is_held}
            found.setdefault(_region(reading, shape, matched), set()).add(holding)
    return [(automaton.tree_of(held), node) for node, held in found.items() if node is not FALSE]


def _written(regions: list[tuple[Tree, Node]], declared: tuple[str, ...]) -> tuple[tuple[str, Node], ...]:
    """Without the declared keys, unless anything goes: the engine would ask both of them."""
    found = []
    for tree, node in regions:
        if node is not TRUE and node is not FALSE and declared:
            tree = both(tree, all_but(declared))
        if node is not FALSE and tree != NOTHING:
            found.append((Pattern(tree).written(), node))
    return tuple(found)


def _region(reading: Reading, shape: Object, matched: set[str]) -> Node:
    """What a key is that just these patterns match, and that is not declared."""
    nodes: list[Node] = []
    for layer in shape.layers:
        own = [node for pattern, node in layer.patterns if pattern.source in matched]
        nodes += own or [layer.rest]
    return reading.conjoined(nodes)
