"""Values of a body's fields, of the type they should have.

Each function raises InvalidRequest, which names the field and quotes the value. null gives the default. What
a field means is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InvalidRequest
from ..text import quote


def read_switch(name: str, value: object, default: bool = False) -> bool:
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, got {quote(value)}")
    return value


def read_integer(name: str, value: object, default: int, *, least: int, most: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidRequest(f"{name} must be an integer from {least} to {most}, got {quote(value)}")
    return value


def read_mapping(name: str, value: object) -> Mapping[str, object]:
    """An object; null is none."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object, got {quote(value)}")
    return value
