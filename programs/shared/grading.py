"""How answers are held against what was expected: numbers by their value, texts without case and spacing."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(text: str) -> float | None:
    """The last number in the text, as GSM8K's answers end in one; None if there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def mentions(text: str, expected: str) -> bool:
    """Whether the text has the expected one in it, as words of its own. `|` stands between texts of which one
    is enough."""
    return any(
        re.search(rf"(?<!\w){re.escape(_plain(each))}(?!\w)", _plain(text)) for each in expected.split("|")
    )


def share(hits: Iterable[bool]) -> float | None:
    """Which part of them is true; None if there are none."""
    found = list(hits)
    return sum(found) / len(found) if found else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
