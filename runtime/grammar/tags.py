"""Structural tags: free text with pieces in it that must have a form, as one grammar for llguidance.

Two ways to write them are taken: structures with their triggers, and a tree of formats. Text between tags is
free up to the first trigger, which must then be followed by one of the tags that begin with it; a control
token is met by its id, anything else by its bytes. What cannot be said in the library's language is refused
with the name of its part. Schemas are normalised by the caller's function; what that could not keep is
reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ..errors import InvalidRequest
from ..text import quote
from .json_grammar import with_spacing
from .protocol import Unenforced
from .vocabulary import GrammarVocabulary


class Normalised(Protocol):
    """What becomes of a schema."""

    @property
    def schema(self) -> object: ...
    @property
    def unenforced(self) -> tuple[Unenforced, ...]: ...


Normalise: TypeAlias = Callable[[object], Normalised]
Json: TypeAlias = Mapping[str, Any]  # Any: parsed JSON, each value is checked where it is used

_TEXT = "TEXT"
_ANY = "/(?s:.*)/"
_OTHER = "not_beginning"
_FORMATS = "any_text, const_string, json_schema, or, sequence, tag, tags_with_separator and triggered_tags"
_FLAGS = ("at_least_one", "stop_after_first")


def tags_grammar(
    text: str, vocabulary: GrammarVocabulary, normalise: Normalise, compact: bool
) -> tuple[str, tuple[Unenforced, ...]]:
    """The grammar of a structural tag, a JSON object, and what its schemas ask for that the grammar does not
    enforce. Raises InvalidRequest."""
    tags: object = json.loads(text)
    if not isinstance(tags, dict) or tags.get("type") != "structural_tag":
        raise _refused("", f'"type" must be "structural_tag", got {quote(tags)}')
    writer = _Writer(vocabulary, normalise, compact)
    if "format" in tags:
        _only(tags, "", "type", "format")
        start = writer.format(tags["format"], "/format", follows=None)
    else:
        start = _structures(writer, tags)
    lines = [f"start: {start.text}", *writer.rules, f"{_TEXT}: {_ANY}", ""]
    return "\n".join(lines), tuple(writer.unenforced)


@dataclass(frozen=True, slots=True)
class _Part:
    """An expression. `took_end`: it contains the text that follows it, since free text ends with that."""

    text: str
    took_end: bool = False


@dataclass(frozen=True, slots=True)
class _Schema:
    """Where a format could stand, a schema."""

    schema: object


@dataclass(frozen=True, slots=True)
class _Tag:
    begin: str
    content: object
    end: str
    where: str
    content_where: str


def _structures(writer: _Writer, tags: Json) -> _Part:
    _only(tags, "", "type", "structures", "triggers", *_FLAGS)
    parts = []
    for i, structure in enumerate(_list(tags, "structures", "")):
        where = f"/structures/{i}"
        form = _object(structure, where)
        _only(form, where, "begin", "schema", "end")
        begin, end = (_text(form, name, where) for name in ("begin", "end"))
        parts.append(_Tag(begin, _Schema(form.get("schema", True)), end, where, f"{where}/schema"))
    return writer.triggered(parts, tags, "", follows=None)


@dataclass(slots=True)
class _Writer:
    vocabulary: GrammarVocabulary
    normalise: Normalise
    compact: bool
    rules: list[str] = field(default_factory=list)
    unenforced: list[Unenforced] = field(default_factory=list)

    def format(self, value: object, where: str, follows: str | None) -> _Part:
        """`follows`: the text behind it, empty if that is not known, None if the text ends there."""
        if isinstance(value, _Schema):
            return _Part(self.schema(value.schema, where))
        form = _object(value, where)
        kind = form.get("type")
        if kind == "const_string":
            _only(form, where, "type", "value")
            return _Part(self.literal(_text(form, "value", where)))
        if kind == "json_schema":
            _only(form, where, "type", "json_schema", "relaxed")
            relaxed = _flag(form, "relaxed", where)
            return _Part(self.schema(form.get("json_schema", True), f"{where}/json_schema", relaxed))
        if kind == "any_text":
            _only(form, where, "type", _OTHER)
            return self.other(form, where, follows) if _OTHER in form else self.free(where, follows)
        if kind == "sequence":
            _only(form, where, "type", "elements")
            return self.sequence(_list(form, "elements", where), f"{where}/elements", follows)
        if kind == "or":
            _only(form, where, "type", "elements")
            return self.either(_list(form, "elements", where), f"{where}/elements", follows)
        if kind == "tag":
            return _Part(self.tag(_tag(form, where)))
        if kind in ("triggered_tags", "tags_with_separator"):
            tags = [_tag(tag, f"{where}/tags/{i}") for i, tag in enumerate(_list(form, "tags", where))]
            if kind == "triggered_tags":
                _only(form, where, "type", "tags", "triggers", *_FLAGS)
                return self.triggered(tags, form, where, follows)
            _only(form, where, "type", "tags", "separator", *_FLAGS)
            return self.separated(tags, form, where)
        raise _refused(where, f"/type must be one of {_FORMATS}, got {quote(kind)}")

    def sequence(self, elements: Sequence[object], where: str, follows: str | None) -> _Part:
        written: list[str] = []
        end_is_taken = False
        for i, element in enumerate(elements):
            if end_is_taken:  # the text of this one ended the free text before it
                end_is_taken = False
                element = _without_beginning(element)
            is_last = i == len(elements) - 1
            after = follows if is_last else _beginning(elements[i + 1])
            part = self.format(element, f"{where}/{i}", after)
            written.append(part.text)
            end_is_taken = part.took_end
        return _Part(" ".join(written), end_is_taken)

    def either(self, elements: Sequence[object], where: str, follows: str | None) -> _Part:
        parts = []
        for i, element in enumerate(elements):
            form = _object(element, f"{where}/{i}")
            kind, is_other = form.get("type"), _OTHER in form
            if kind in ("any_text", "triggered_tags") and not is_other:
                raise _refused(where, f"/{i}: {kind} cannot be one of several choices")
            parts.append(self.format(element, f"{where}/{i}", follows if is_other else "").text)
        return _Part(self.rule(" | ".join(parts)))

    def free(self, where: str, follows: str | None) -> _Part:
        if follows is None:
            return _Part(_TEXT)
        return _Part(self.up_to(follows, where), took_end=True)

    def other(self, form: Json, where: str, follows: str | None) -> _Part:
        """Free text that begins with none of some texts, blanks before them included."""
        if follows is not None:
            raise _refused(where, f": text behind any_text with {_OTHER} is not supported")
        begins = "|".join(_pattern(text, where) for text in _list(form, _OTHER, where))
        name = f"OTHER_{len(self.rules)}"
        self.rules.append(rf"{name}: {_ANY} & ~/(?s:\s*({begins}).*)/")
        return _Part(name)

    def tag(self, tag: _Tag, skipped: int = 0) -> str:
        """A tag, the first `skipped` characters of whose beginning are written already."""
        content = self.format(tag.content, tag.content_where, follows=tag.end)
        end = "" if content.took_end else self.literal(tag.end)
        return self.rule(f"{self.literal(tag.begin[skipped:])} {content.text} {end}")

    def triggered(self, tags: Sequence[_Tag], form: Json, where: str, follows: str | None) -> _Part:
        at_least_one, stop_after_first = (_flag(form, name, where) for name in _FLAGS)
        groups = self.groups(tags, _list(form, "triggers", where), where)
        call = self.rule(" | ".join(self.group(trigger, group, where) for trigger, group in groups))
        if stop_after_first:
            if follows is None:
                return _Part(call if at_least_one else self.rule(f"{call} | {_TEXT}"))
            if not at_least_one:
                raise _refused(where, ": stop_after_first needs at_least_one where more text follows")
            return _Part(call)
        tail = self.free(where, follows)
        return _Part(f"{call}{'+' if at_least_one else '*'} {tail.text}", tail.took_end)

    def groups(
        self, tags: Sequence[_Tag], triggers: Sequence[object], where: str
    ) -> list[tuple[str, list[_Tag]]]:
        """Each tag under the shortest trigger that it begins with, which is the first to be met."""
        for trigger in triggers:
            if not isinstance(trigger, str) or not trigger:
                raise _refused(where, f"/triggers must hold texts, got {quote(trigger)}")
        found: dict[str, list[_Tag]] = {}
        for tag in tags:
            fitting = [trigger for trigger in triggers if tag.begin.startswith(str(trigger))]
            if not fitting:
                raise _refused(tag.where, "/begin starts with none of the triggers")
            found.setdefault(str(min(fitting, key=lambda trigger: len(str(trigger)))), []).append(tag)
        for trigger in triggers:
            if not any(tag.begin.startswith(str(trigger)) for tag in tags):
                raise _refused(where, f"/triggers: no tag begins with {quote(trigger)}")
        return list(found.items())

    def group(self, trigger: str, tags: Sequence[_Tag], where: str) -> str:
        head = self.vocabulary.split_specials(trigger)
        if isinstance(head[0], int):  # a control token alone is met, whatever it stands for
            trigger = self.vocabulary.special_tokens[head[0]]
        bodies = " | ".join(self.tag(tag, len(trigger)) for tag in tags)
        return f"{self.up_to(trigger, f'{where}/triggers')} {self.rule(bodies)}"

    def separated(self, tags: Sequence[_Tag], form: Json, where: str) -> _Part:
        at_least_one, stop_after_first = (_flag(form, name, where) for name in _FLAGS)
        one = self.rule(" | ".join(map(self.tag, tags)))
        more = "" if stop_after_first else f" ({self.literal(_text(form, 'separator', where))} {one})*"
        return _Part(self.rule(f"{one}{more}" if at_least_one else f'{one}{more} | ""'))

    def up_to(self, end: str, where: str) -> str:
        """Free text, and the first `end` in it."""
        parts = self.vocabulary.split_specials(end)
        if len(parts) == 1 and isinstance(parts[0], str):
            name = f"text_{len(self.rules)}"
            self.rules.append(f"{name}[lazy]: {_TEXT} {json.dumps(end)}")
            return name
        if parts and isinstance(parts[0], int):
            return f"{_TEXT} {self.literal(end)}"
        why = "the end of free text must be known" if not parts else "text before a control token"
        raise _refused(where, f": {why} cannot end free text, got {quote(end)}")

    def literal(self, text: str) -> str:
        parts = self.vocabulary.split_specials(text)
        if set(parts) & set(self.vocabulary.eos_ids):
            raise InvalidRequest(f"structural_tag must hold no token that ends the text, got {quote(text)}")
        return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in parts)

    def schema(self, schema: object, where: str, relaxed: bool = False) -> str:
        """`relaxed`: what is not enforced of it is of no importance."""
        if not isinstance(schema, Mapping | bool):
            raise _refused(where, f" needs a JSON Schema, got {quote(schema)}")
        try:
            normalised = self.normalise(schema)
            spaced = with_spacing(normalised.schema, compact=self.compact)
        except InvalidRequest as error:
            raise _refused(where, f": {error}") from None
        if not relaxed:
            parts = normalised.unenforced
            self.unenforced += [part._replace(pointer=f"{where}{part.pointer}") for part in parts]
        return self.rule(f"%json {json.dumps(spaced)}")

    def rule(self, body: str) -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}: {body.strip() or json.dumps('')}")
        return name


def _tag(form: object, where: str) -> _Tag:
    form = _object(form, where)
    if form.get("type", "tag") != "tag":
        raise _refused(where, f'/type must be "tag", got {quote(form["type"])}')
    _only(form, where, "type", "begin", "content", "end")
    begin, end = (_text(form, name, where) for name in ("begin", "end"))
    return _Tag(begin, form.get("content"), end, where, f"{where}/content")


def _pattern(text: object, where: str) -> str:
    """A text as a regular expression that needs no other escapes."""
    if not isinstance(text, str) or not text:
        raise _refused(where, f"/{_OTHER} must hold texts, got {quote(text)}")
    return "".join(one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


def _beginning(element: object) -> str:
    """The text that an element of a sequence always begins with, empty if none is known."""
    if not isinstance(element, Mapping):
        return ""
    name = {"const_string": "value", "tag": "begin"}.get(str(element.get("type")), "")
    return str(element.get(name, ""))


def _without_beginning(element: object) -> object:
    assert isinstance(element, Mapping), "it has a beginning"
    return {**element, "value" if element["type"] == "const_string" else "begin": ""}


def _object(value: object, where: str) -> Json:
    if not isinstance(value, Mapping):
        raise _refused(where, f" must be an object, got {quote(value)}")
    return value


def _list(form: Json, name: str, where: str) -> Sequence[object]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise _refused(where, f"/{name} must be a list of one or more, got {quote(value)}")
    return value


def _text(form: Json, name: str, where: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise _refused(where, f"/{name} must be a text, got {quote(value)}")
    return value


def _flag(form: Json, name: str, where: str) -> bool:
    value = form.get(name, False)
    if not isinstance(value, bool):
        raise _refused(where, f"/{name} must be true or false, got {quote(value)}")
    return value


def _only(form: Json, where: str, *names: str) -> None:
    unknown = next((name for name in form if name not in names), None)
    if unknown is not None:
        raise _refused(where, f" has no {quote(unknown)}, only {', '.join(names)}")


def _refused(where: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"structural_tag: {(where + why).strip()}")
