"""check_instance: whether a finished text is what a JSON Schema asks for, by the schema as it was given.

The validator is jsonschema's, with a limit of time and with what would take unbounded time done in another
way: patterns run under a timeout, items are told apart by hashing, and multiples are counted as decimals,
not as doubles (0.07 is a multiple of 0.01). Nothing outside the schema is looked up, and formats are notes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from ..text import quote
from .schema_document import LISTS, MAPS, ONES, escaped
from .schema_ecma import BadPattern
from .schema_meet import as_fraction
from .schema_pattern import parse_pattern
from .schema_regex import Repeat, Tree, Unsupported, parts_of
from .schema_shapes import identity

CHECK_SECONDS = 2.0
"""Processor time one text may take."""
MAX_DEPTH = 120
"""Rules one inside the other."""
SEARCH_SECONDS = 0.1
"""Processor time one search of a pattern may take."""

Rule: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]
"""A keyword of jsonschema: validator, value of the keyword, instance, schema. Any: values of JSON."""


class _TooSlow(Exception):
    pass


def check_instance(schema: object, text: str) -> str | None:
    """Why `text` is not what `schema` asks for, and where; None if it is. What cannot be said in bounded time
    counts as a reason."""
    try:
        instance = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        return "the text is nested too deep to be checked"
    except ValueError as error:
        return f"the text is not JSON: {error}"
    try:
        broken = next(_validator(schema).iter_errors(instance), None)
    except _TooSlow as reason:
        return f"the text cannot be checked against the schema: {reason}"
    except RecursionError:
        return "the text is nested too deep to be checked"
    except Unresolvable as reason:
        return f"the text cannot be checked against the schema: {reason}"
    return None if broken is None else _told(broken)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no value of JSON")


def _told(error: ValidationError) -> str:
    where = "".join(escaped(str(step)) for step in error.absolute_path)
    if error.schema is False:
        return f"the schema allows no value at {where or '/'}, got {quote(error.instance)}"
    return (
        f"{error.validator} {quote(error.validator_value)} does not hold at {where or '/'},"
        f" got {quote(error.instance)}"
    )


def _validator(schema: object) -> Any:
    """Any: jsonschema makes its classes at run time."""
    kind: Any = validator_for(schema, default=Draft202012Validator) if isinstance(schema, Mapping) else None
    if kind is None or kind is Draft202012Validator:
        kind, schema = Draft202012Validator, _in_new_spelling(schema)
    rules: dict[str, Rule] = {name: _OWN_RULES.get(name, rule) for name, rule in kind.VALIDATORS.items()}
    budget = _Budget()
    bounded = {name: budget.within(rule) for name, rule in rules.items()}
    return extend(kind, bounded)(schema, registry=Registry())  # type: ignore[no-untyped-call]


class _Budget:
    """What one check may still take: time, and rules one inside the other. Python's own limit is no help, as
    it may be met inside a library that does not survive it."""

    def __init__(self) -> None:
        self._deadline = time.thread_time() + CHECK_SECONDS
        self._depth = 0

    def within(self, rule: Rule) -> Rule:
        def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if time.thread_time() > self._deadline:
                raise _TooSlow(f"it takes over {CHECK_SECONDS:g} s")
            if self._depth >= MAX_DEPTH:
                raise _TooSlow("it is nested too deep")
            self._depth += 1
            try:
                yield from rule(validator, value, instance, schema) or ()
            finally:
                self._depth -= 1

        return checked


def _multiple_of(validator: Any, step: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "number"):
        return
    is_finite = abs(instance) < float("inf")
    if not is_finite or as_fraction(instance) % as_fraction(step):
        yield ValidationError(f"{instance!r} is not a multiple of {step!r}")


def _unique_items(validator: Any, is_unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if (
        is_unique
        and validator.is_type(instance, "array")
        and len(set(map(identity, instance))) < len(instance)
    ):
        yield ValidationError("the items are not unique")


def _pattern(validator: Any, source: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _has_match(source, instance):
        yield ValidationError(f"{instance!r} does not match {source!r}")


def _properties(validator: Any, parts: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for key, part in parts.items():
            if key in instance:
                yield from _at_key(validator, key, instance[key], part)


def _at_key(validator: Any, key: str, value: object, part: object) -> Iterator[ValidationError]:
    """What is wrong with the value of a key; the library forgets the key where none is allowed."""
    if part is False:
        yield ValidationError("no value is allowed", path=(key,), instance=value, schema=False)
    else:
        yield from validator.descend(value, part, path=key)


def _pattern_properties(
    validator: Any, patterns: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "object"):
        for source, part in patterns.items():
            for key, value in instance.items():
                if _has_match(source, key):
                    yield from _at_key(validator, key, value, part)


def _additional_properties(
    validator: Any, rest: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key not in declared and not any(_has_match(source, key) for source in patterns):
            yield from _at_key(validator, key, value, rest)


def _unevaluated_properties(
    validator: Any, rest: Any, instance: Any, schema: Any
) -> Iterator[ValidationError] | None:
    """The library's own rule, which searches with `re`: only for patterns that cannot run away."""
    if any(_may_run_away(source) for source in _sources(schema)):
        raise _TooSlow("a pattern beside unevaluatedProperties may take too long")
    rule: Rule = Draft202012Validator.VALIDATORS["unevaluatedProperties"]
    return rule(validator, rest, instance, schema)


def _sources(schema: object) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield from (source for source in part.get("patternProperties") or ())
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _may_run_away(source: str) -> bool:
    """Whether a repetition stands inside another one, or one after another."""
    try:
        tree = parse_pattern(source).tree
    except (Unsupported, BadPattern):
        return True
    return _loops(tree) > 4 or any(_loops(part) > 1 for part in _repeated(tree))


def _repeated(tree: Tree) -> Iterator[Tree]:
    if isinstance(tree, Repeat):
        yield tree
    for part in parts_of(tree):
        yield from _repeated(part)


def _loops(tree: Tree) -> int:
    own = isinstance(tree, Repeat) and (tree.most is None or tree.most > 8)
    return own + sum(map(_loops, parts_of(tree)))


def _has_match(source: str, text: str) -> bool:
    """As the engine reads the pattern, if it can; else as `regex` does."""
    try:
        return parse_pattern(source).matches(text)
    except (Unsupported, BadPattern):
        pass
    try:
        return regex.search(source, text, timeout=SEARCH_SECONDS) is not None
    except TimeoutError:
        raise _TooSlow(f"pattern {quote(source)} takes too long") from None
    except (regex.error, RecursionError, MemoryError) as error:
        raise _TooSlow(f"pattern {quote(source)} cannot be matched: {error}") from None


_OWN_RULES: dict[str, Rule] = {
    "multipleOf": _multiple_of,
    "uniqueItems": _unique_items,
    "pattern": _pattern,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated_properties,
}


def _in_new_spelling(schema: object) -> object:
    """Spellings of old drafts, which the validator of the newest would not understand, in that of today."""
    if not isinstance(schema, Mapping):
        return schema
    new: dict[str, Any] = {}
    for keyword, part in schema.items():
        if isinstance(part, Mapping) and keyword in MAPS:
            new[keyword] = {key: _in_new_spelling(below) for key, below in part.items()}
        elif isinstance(part, list) and keyword in LISTS:
            new[keyword] = [_in_new_spelling(below) for below in part]
        else:
            new[keyword] = _in_new_spelling(part) if keyword in ONES else part
    if isinstance(new.get("items"), list):
        new["prefixItems"] = new.pop("items")
        if "additionalItems" in new:
            new["items"] = new.pop("additionalItems")
    for above, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(new.get(above), bool) and new.pop(above) and bound in new:
            new[above] = new.pop(bound)
    for key, part in new.pop("dependencies", {}).items():
        new.setdefault("dependentRequired" if isinstance(part, list) else "dependentSchemas", {})[key] = part
    return new
