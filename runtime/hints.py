"""Hints of programs, checked: what callers may say in one, wherever it comes from."""

from __future__ import annotations

from .errors import InvalidRequest
from .text import quote, require_text
from .types import Hint

NO_HINT = Hint()
MOST_CHARACTERS = 200
MOST_SECONDS = 3600


def checked_hint(
    *,
    program_id: object = None,
    parent_id: object = None,
    fork_group: object = None,
    hold_s: object = None,
    done: object = None,
) -> Hint:
    """None is what a Hint has by itself. Raises InvalidRequest that names the field and quotes its value."""
    if done is not None and not isinstance(done, bool):
        raise InvalidRequest(f"hint.done must be true or false, got {quote(done)}")
    return Hint(
        checked_name("hint.program_id", program_id),
        checked_name("hint.parent_id", parent_id),
        checked_name("hint.fork_group", fork_group),
        _seconds(hold_s),
        bool(done),
    )


def checked_name(name: str, value: object) -> str:
    """The name of a branch or of several; None is none."""
    if value is None:
        return ""
    text = require_text(name, value)
    if len(text) > MOST_CHARACTERS:
        raise InvalidRequest(f"{name} must have at most {MOST_CHARACTERS} characters, got {len(text)}")
    return text


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_SECONDS:
        return float(value)
    allowed = f"a number of seconds from 0 to {MOST_SECONDS}"
    raise InvalidRequest(f"hint.hold_s must be {allowed}, got {quote(value)}")
