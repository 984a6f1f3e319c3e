"""Amounts of memory as people write them: `2GiB`, `512 MiB`, `1.5GB`, or a plain number of bytes."""

from __future__ import annotations

import re

from .text import quote

_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9}
_BINARY = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_UNITS = {"": 1, "b": 1, **_DECIMAL, **_BINARY}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_MOST_DIGITS = 40


def parse_bytes(text: str) -> int:
    """A number of bytes. Raises ValueError that says what is allowed."""
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        units = "KiB, MiB, GiB, kB, MB, GB or no unit"
        raise ValueError(f"must be a number of bytes with {units}, got {quote(text)}")
    if len(match[1]) > _MOST_DIGITS:
        raise ValueError(f"may have at most {_MOST_DIGITS} digits, got {quote(text)}")
    number, unit = match[1], _UNITS[match[2]]
    return round(float(number) * unit) if "." in number else int(number) * unit


def format_bytes(count: int) -> str:
    """The largest binary unit in which the amount is at least one: 2147483648 is `2 GiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{round(count / size, 1):g} {unit}"
    return f"{count} B"
