"""Passages of text files, and a search over them: BM25 (Robertson and others, 1994), in a few lines.

A library is read once, whole, from the `.txt` files that lie directly in a folder; paragraphs are its
passages. What is searched for is only ever compared with words, never a path.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .items import BUILT_IN, DataError

MOST_BYTES = 64 << 20
_TERM = re.compile(r"\w+")
_K1, _B = 1.2, 0.75


@dataclass(frozen=True, slots=True)
class Passage:
    """One paragraph. `place` is its place in the library, counted from 0."""

    place: int
    source: str
    text: str


class Library:
    """Passages, and which of them a query is about."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = tuple(passages)
        self._counts = [Counter(_terms(passage.text)) for passage in self.passages]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean_length = sum(self._lengths) / max(1, len(self._lengths))
        self._spread = Counter(term for counts in self._counts for term in counts)

    @classmethod
    def of_folder(cls, folder: Path | None = None) -> Library:
        """The passages of a folder, or the built-in ones. Raises DataError."""
        folder = BUILT_IN / "documents" if folder is None else folder
        passages: list[Passage] = []
        for path in _files(folder):
            for paragraph in re.split(r"\n\s*\n", path.read_bytes().decode(errors="replace")):
                if text := " ".join(paragraph.split()):
                    passages.append(Passage(len(passages), path.stem, text))
        if not passages:
            raise DataError(f"{folder} holds no .txt files with text in them")
        return cls(passages)

    def search(self, query: str, count: int = 1) -> list[Passage]:
        """The passages that have most in common with the query, best first; none that has nothing."""
        terms = set(_terms(query))
        scores = [(self._score(place, terms), -place) for place in range(len(self.passages))]
        best = sorted(scores, reverse=True)[:count]
        return [self.passages[-place] for score, place in best if score > 0]

    def _score(self, place: int, terms: set[str]) -> float:
        counts, total = self._counts[place], 0.0
        damp = _K1 * (1 - _B + _B * self._lengths[place] / self._mean_length)
        for term in terms & counts.keys():
            rarity = math.log(
                1 + (len(self.passages) - self._spread[term] + 0.5) / (self._spread[term] + 0.5)
            )
            total += rarity * counts[term] * (_K1 + 1) / (counts[term] + damp)
        return total


def _terms(text: str) -> list[str]:
    """Words without case, and without the s of a plural."""
    return [
        term[:-1] if len(term) > 3 and term.endswith("s") else term for term in _TERM.findall(text.casefold())
    ]


def _files(folder: Path) -> list[Path]:
    """The folder's own text files, in the order of their names; no link leads out of it."""
    try:
        inside = folder.resolve(strict=True)
        found = [path for path in sorted(inside.iterdir()) if path.suffix == ".txt" and path.is_file()]
        found = [path for path in found if path.resolve().parent == inside]
        size = sum(path.stat().st_size for path in found)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the folder {str(folder)!r}: {error}") from None
    if size > MOST_BYTES:
        raise DataError(f"{folder} holds {size:,} bytes of text, at most {MOST_BYTES:,} are searched")
    return found
