"""Reads what a program is asked: JSON lines, each the fields of a dataclass, from a file or the built-in set.

Fields with a default may be left out, and keys that the dataclass does not know are skipped, since public
data sets have keys of their own. The first fault raises DataError, which names the place and quotes what
came.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

BUILT_IN = Path(__file__).parent.parent / "data"

T = TypeVar("T")


class DataError(ValueError):
    """Data that a program cannot use."""


def read_items(path: Path, kind: type[T], count: int | None = None) -> list[T]:
    """Every line of the file as one `kind`, or of its first `count` items. Blank lines are skipped. Raises
    DataError, also for a fault behind those."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise DataError(f"n must be a count of at least 1, got {count!r}")
    items = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if line.strip():
            try:
                items.append(as_item(_decode(line), kind))
            except DataError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
    if not items:
        raise DataError(f"{path} holds no items")
    if count is not None and count > len(items):
        raise DataError(f"{path} holds {len(items)} items, and n is {count}")
    return items[:count]


def as_item(given: dict[str, Any], kind: type[T]) -> T:  # Any: what JSON holds
    """One item of the fields of a line. A `kind` may have a class method `of_line` that brings other forms of
    the same data into its own. Raises DataError."""
    assert is_dataclass(kind), "a kind of items is a dataclass"
    of_line = getattr(kind, "of_line", None)
    if of_line is not None:
        given = of_line(given)
    hints = get_type_hints(kind)
    needed = [
        each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING
    ]
    for name in needed:
        if name not in given:
            raise DataError(
                f"key {name!r} is missing; needed are {', '.join(needed)}, got {_quote(list(given))}"
            )
    for field in fields(kind):
        if field.name in given and not _is(given[field.name], hints[field.name]):
            raise DataError(
                f"{field.name} must be {_words(hints[field.name])}, got {_quote(given[field.name])}"
            )
    try:
        return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})
    except ValueError as error:  # what the kind itself refuses
        raise DataError(str(error)) from None


def check_text(name: str, text: str) -> None:
    """Raises DataError if there is nothing in it."""
    if not text.strip():
        raise DataError(f"{name} must be a text that is not empty, got {_quote(text)}")


def check_wanted(name: str, text: str) -> None:
    """Of texts with `|` between them, of which an answer should have one: an empty one is in every answer.
    Raises DataError."""
    if not all(map(str.strip, text.split("|"))):
        raise DataError(
            f"{name} must be a text, or several with | between them, none empty; got {_quote(text)}"
        )


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not valid UTF-8 at byte {error.start}") from None
    except ValueError as error:  # a NUL character
        raise DataError(f"cannot read {str(path)!r}: {error}") from None


def _decode(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (RecursionError, ValueError) as error:
        raise DataError(f"not JSON ({error}): {_quote(line)}") from None
    if not isinstance(value, dict):
        raise DataError(f"must be a JSON object, got {_quote(value)}")
    return value


def _is(value: object, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin in (Union, UnionType):
        return any(_is(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(_is(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(each, inner[1]) for each in value.values())
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, hint)


def _words(hint: Any) -> str:
    names = {str: "text", int: "a whole number", type(None): "null", bool: "true or false"}
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, inner))
    if origin is list:
        return f"a list (of {_words(inner[0])})"
    return "an object" if origin is dict else names.get(hint, "anything")


def _quote(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}..."
