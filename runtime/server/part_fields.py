"""Fields that programs send: a prompt in parts, choices to score, a hint. Read from a parsed body.

A mistake is an InvalidRequest, which names the field and quotes the value. What parts come to is in
text_parts.py, what a hint may hold in hints.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidRequest
from ..hints import NO_HINT, checked_hint
from ..text import quote, require_text
from ..text_parts import Part, Plain
from ..types import Hint
from .field_values import read_mapping

MOST_PARTS = 10_000
_ID_LIMIT = 1 << 31
_HINT_FIELDS = ("program_id", "parent_id", "fork_group", "hold_s", "done")


@dataclass(frozen=True, slots=True)
class InputParts:
    """A prompt in parts."""

    parts: tuple[Part, ...]

    @property
    def characters(self) -> int:
        """Of all its texts, which have as many tokens at least as a text of that length may have."""
        texts = (part for part in self.parts if not isinstance(part, tuple))
        return sum(len(text if isinstance(text, str) else text.text) for text in texts)


def read_parts(name: str, value: object) -> InputParts:
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{name} must be a list of texts, plain texts and lists of ids, got {quote(value)}"
        )
    if len(value) > MOST_PARTS:
        raise InvalidRequest(f"{name} may hold {MOST_PARTS} parts, got {len(value)}")
    return InputParts(tuple(_part(f"{name}[{index}]", item) for index, item in enumerate(value)))


def _part(name: str, value: object) -> Part:
    if isinstance(value, str):
        return require_text(name, value)
    if isinstance(value, list):
        if all(type(item) is int and 0 <= item < _ID_LIMIT for item in value):
            return tuple(value)
    elif isinstance(value, Mapping) and set(value) == {"plain"}:
        return Plain(require_text(f"{name}.plain", value["plain"]))
    raise InvalidRequest(
        f'{name} must be a text, {{"plain": text}} or a list of token ids, got {quote(value)}'
    )


def read_choices(value: object, most: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"choices must be a list of texts that is not empty, got {quote(value)}")
    if len(value) > most:
        raise InvalidRequest(f"choices may hold {most} texts, got {len(value)}")
    for index, item in enumerate(value):
        if not require_text(f"choices[{index}]", item):
            raise InvalidRequest(f"choices[{index}] must be a text that is not empty, got ''")
    return tuple(value)


def read_names(name: str, value: object, most: int) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{name} must be a list of texts that is not empty, got {quote(value)}")
    if len(value) > most:
        raise InvalidRequest(f"{name} may hold {most} texts, got {len(value)}")
    return tuple(require_text(f"{name}[{index}]", item) for index, item in enumerate(value))


def read_hint(value: object, *, strict: bool = False) -> Hint:
    """null is none; `strict` refuses what is not known."""
    if value is None:
        return NO_HINT
    given = read_mapping("hint", value)
    unknown = next((key for key in given if key not in _HINT_FIELDS), None)
    if strict and unknown is not None:
        raise InvalidRequest(f"hint may hold {', '.join(_HINT_FIELDS)}, got {quote(unknown)}")
    return checked_hint(
        program_id=given.get("program_id"),
        parent_id=given.get("parent_id"),
        fork_group=given.get("fork_group"),
        hold_s=given.get("hold_s"),
        done=given.get("done"),
    )
