"""normalise: a JSON Schema as the subset that the engine enforces to the letter.

The schema is read into shapes (schema_rules), each is written as forms that the engine takes (schema_objects,
schema_arrays, schema_scalars), and the forms are put together: what refers to itself or is needed twice by
name, the rest where it stands. What nothing satisfies is taken out, so that a text never comes to a place
with no way on. Keywords that could not be kept are reported; the schema then allows more than was asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InvalidRequest
from .protocol import Unenforced
from .schema_arrays import ArrayForm, array_forms
from .schema_nodes import Reading
from .schema_objects import ObjectForm, object_forms
from .schema_rules import union_of
from .schema_scalars import number_schemas, text_schemas
from .schema_shapes import FALSE, TRUE, Array, Boolean, Node, Number, Object, Shape, Text

MAX_FORMS = 30_000
MAX_INLINE_DEPTH = 12
"""Levels of schemas that are written one inside the other; the engine's reader takes 128 of JSON."""

Scalar: TypeAlias = dict[str, object]
Form: TypeAlias = ObjectForm | ArrayForm | Scalar


@dataclass(frozen=True, slots=True)
class Normalised:
    """`schema` is what the engine gets; `unenforced` is what it does not say of what was asked."""

    schema: object
    unenforced: tuple[Unenforced, ...] = ()


def normalise(schema: object) -> Normalised:
    """Raises InvalidRequest for what is no JSON Schema, refers to other documents, or allows no value."""
    reading = Reading(schema, union_of)
    root = reading.node_at(reading.document.root)
    written = _Writing(reading, root).document()
    return Normalised(written, tuple(reading.unenforced.values()))


class _Writing:
    """The forms of every node that the root needs, and the document they make."""

    def __init__(self, reading: Reading, root: Node) -> None:
        self._root = root
        self._forms: dict[Node, list[Form]] = {TRUE: [], FALSE: []}
        self._uses: dict[Node, int] = {root: 1}
        self._names: dict[Node, str] = {}
        self._unnamed: list[Node] = []
        self._collect(reading)
        self._empty = _empty_nodes(self._forms)

    def document(self) -> object:
        if self._root in self._empty:
            raise InvalidRequest("json_schema: no value satisfies it")
        root = self._union(self._root, 0)
        definitions: dict[str, object] = {}
        while self._unnamed:
            node = self._unnamed.pop()
            definitions[self._names[node]] = self._union(node, 0)
        if not definitions:
            return root
        if not isinstance(root, dict) or "$ref" in root:
            root = {"anyOf": [root]}
        return {**root, "$defs": definitions}

    def _collect(self, reading: Reading) -> None:
        waiting = [self._root]
        count = 0
        while waiting:
            node = waiting.pop()
            if node in self._forms:
                continue
            forms = self._forms[node] = [
                form for shape in reading.union(node) for form in _forms_of(reading, shape)
            ]
            count += len(forms)
            if count > MAX_FORMS:
                raise InvalidRequest(f"json_schema grows over {MAX_FORMS:,} parts when it is written out")
            for form in forms:
                for child in _children(form):
                    self._uses[child] = self._uses.get(child, 0) + 1
                    waiting.append(child)

    def _schema(self, node: Node, depth: int) -> object:
        """What stands for a node inside another schema."""
        if node is TRUE:
            return True
        if node in self._empty:
            return False
        is_long = any(not isinstance(form, dict) for form in self._forms[node])
        if not is_long or (self._uses[node] == 1 and depth < MAX_INLINE_DEPTH and node is not self._root):
            return self._union(node, depth + 1)
        name = self._names.get(node)
        if name is None:
            name = self._names[node] = str(len(self._names))
            self._unnamed.append(node)
        return {"$ref": f"#/$defs/{name}"}

    def _union(self, node: Node, depth: int) -> object:
        if node is TRUE:
            return {}
        parts: list[object] = []
        types: list[object] = []
        for form in self._forms[node]:
            if _is_empty(form, self._empty):
                continue
            part = self._part(form, depth)
            if len(part) == 1 and isinstance(part.get("type"), str):
                types.append(part["type"])
            elif not parts or json.dumps(part) != json.dumps(parts[-1]):  # to Python, true is 1
                parts.append(part)
        if types:
            parts.insert(0, {"type": types[0] if len(types) == 1 else types})
        return parts[0] if len(parts) == 1 else {"anyOf": parts}

    def _part(self, form: Form, depth: int) -> Scalar:
        if isinstance(form, ObjectForm):
            return self._object(form, depth)
        return self._array(form, depth) if isinstance(form, ArrayForm) else form

    def _object(self, form: ObjectForm, depth: int) -> Scalar:
        schema: Scalar = {"type": "object"}
        rest = self._schema(form.rest, depth)
        patterns = {
            source: self._schema(node, depth) for source, node in form.patterns if node not in self._empty
        }
        fields = {key: self._schema(node, depth) for key, node in form.fields.items()}
        if rest is False and not patterns:
            fields = {key: part for key, part in fields.items() if part is not False}
        if fields:
            schema["properties"] = fields
        if form.required:
            schema["required"] = [key for key in form.fields if key in form.required]
        if patterns:
            schema["patternProperties"] = patterns
        if rest is not True:
            schema["additionalProperties"] = rest
        if form.least:
            schema["minProperties"] = form.least + len(form.required)
        if form.most is not None:
            schema["maxProperties"] = form.most + len(form.required)
        return schema

    def _array(self, form: ArrayForm, depth: int) -> Scalar:
        schema: Scalar = {"type": "array"}
        if form.prefix:
            schema["prefixItems"] = [self._schema(node, depth) for node in form.prefix]
        rest = self._schema(form.rest, depth)
        if rest is not True:
            schema["items"] = rest
        if form.least:
            schema["minItems"] = form.least
        if form.most is not None:
            schema["maxItems"] = form.most
        return schema


def _forms_of(reading: Reading, shape: Shape) -> list[Form]:
    if isinstance(shape, Object):
        return list(object_forms(reading, shape))
    if isinstance(shape, Array):
        return list(array_forms(reading, shape))
    if isinstance(shape, Number):
        return list(number_schemas(reading, shape))
    if isinstance(shape, Text):
        return list(text_schemas(reading, shape))
    if isinstance(shape, Boolean):
        return [{"type": "boolean"} if len(shape.values) == 2 else {"enum": sorted(shape.values)}]
    return [{"type": "null"}]


def _children(form: Form) -> Iterator[Node]:
    if isinstance(form, ObjectForm):
        yield from form.fields.values()
        yield from (node for _, node in form.patterns)
        yield form.rest
    elif isinstance(form, ArrayForm):
        yield from form.prefix
        yield form.rest


def _needed(form: Form) -> Iterator[Node]:
    """The children without which there is no value."""
    if isinstance(form, ObjectForm):
        yield from (form.fields[key] for key in form.required)
    elif isinstance(form, ArrayForm):
        yield from form.prefix[: form.least]
        if form.least > len(form.prefix):
            yield form.rest


def _is_empty(form: Form, empty: set[Node]) -> bool:
    if any(node in empty for node in _needed(form)):
        return True
    others = form.least if isinstance(form, ObjectForm) else 0
    if not others or not isinstance(form, ObjectForm):
        return False
    return form.rest in empty and all(node in empty for _, node in form.patterns)


def _empty_nodes(forms: dict[Node, list[Form]]) -> set[Node]:
    """Those that no value satisfies: all at first, and then fewer as values are found for them."""
    empty = set(forms) - {TRUE}
    above: dict[Node, set[Node]] = {}
    for node, parts in forms.items():
        for form in parts:
            for child in _children(form):
                above.setdefault(child, set()).add(node)
    waiting = list(empty)
    while waiting:
        node = waiting.pop()
        if node in empty and any(not _is_empty(form, empty) for form in forms[node]):
            empty.discard(node)
            waiting.extend(above.get(node, ()))
    return empty
