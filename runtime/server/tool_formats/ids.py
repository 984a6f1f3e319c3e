"""Ids of calls: what clients send back with the result of a tool."""

from __future__ import annotations

from secrets import choice, token_hex
from string import ascii_letters, digits


def long_id() -> str:
    """As OpenAI's look."""
    return f"call_{token_hex(12)}"


def short_id() -> str:
    """Nine letters and digits, which is all that some templates take."""
    return "".join(choice(ascii_letters + digits) for _ in range(9))
