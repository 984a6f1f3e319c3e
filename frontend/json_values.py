"""Values out of a server's JSON, of the type they should have; else a BackendError says what came. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import BackendError


def as_mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(value, what, "an object")
    return value


def as_list(value: object, what: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise _wrong(value, what, "a list")
    return value


def as_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, what, "a text")
    return value


def as_count(value: object, what: str) -> int:
    """None is 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(value, what, "an integer")
    return value


def as_ids(value: object, what: str) -> tuple[int, ...]:
    return tuple(as_count(item, what) for item in as_list(value, what))


def as_logprob(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, what, "a number")
    return float(value)


def _wrong(value: object, what: str, kind: str) -> BackendError:
    return BackendError(f"the server's {what} should be {kind}, it is {value!r:.200}")
