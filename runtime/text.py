"""Text from callers: refused where it cannot be encoded, and quoted so that a message stays short."""

from __future__ import annotations

from .errors import InvalidRequest


def require_text(name: str, value: object) -> str:
    """`value`, known to be text that can be encoded; a lone surrogate (half an emoji) cannot."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text, got {quote(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        broken = value[error.start]
        raise InvalidRequest(f"{name} is not valid Unicode: {broken!r} at character {error.start}") from None
    return value


def is_unicode(text: str) -> bool:
    """Whether it can be encoded: names that a shell hands over may be bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quote(value: object) -> str:
    """The value as it was written, cut short: a client's megabyte must not come back in a message."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a value too large to print"
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."
