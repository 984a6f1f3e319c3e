"""The best of some endings, by the model's own log-probabilities.

Shows `select`: all endings are scored at once behind one prefix, without generating anything. Contexts are in
the manner of HellaSwag (Zellers and others, 2019), questions in that of MMLU (Hendrycks and others, 2020).
`--data` takes JSON lines of both: `ctx`, `endings` and `label`, or `question`, `choices` and `answer`; the
right one is a place counted from 0, or for questions a letter from A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..frontend.expressions import select
from ..frontend.program import function
from .shared.items import DataError, check_text
from .shared.task import State, Task

EXAMPLES = """\
A boy sits down at the piano and opens the book of notes. He lays his hands on the keys and begins to play.

Question: Which animal barks?
Answer: the dog

The plane has landed and the doors are open. The passengers take their bags and walk down the stairs.

Question: What is the largest planet of the Solar System?
Answer: Jupiter

A woman cuts onions on a wooden board. Her eyes begin to water and she reaches for a handkerchief.

Question: How many days does a week have?
Answer: seven

The candle is lit and the lamp is turned off. The room is dark now except for a small yellow flame.

Question: What do we call frozen water?
Answer: ice

"""


@function
def choose(s: State, ctx: str, endings: list[str]) -> None:
    s += EXAMPLES + ctx
    s += select("ending", endings)


@dataclass(frozen=True, slots=True)
class Choice:
    ctx: str
    endings: list[str]
    label: int

    def __post_init__(self) -> None:
        check_text("ctx", self.ctx)
        if not self.endings:
            raise DataError("endings must hold the texts to choose from, got []")
        if not all(map(str.strip, self.endings)):
            raise DataError(f"endings must not be empty, got {self.endings}")
        if len(set(self.endings)) < len(self.endings):
            raise DataError(f"endings must differ, got {self.endings}")
        if not 0 <= self.label < len(self.endings):
            raise DataError(f"label must be from 0 to {len(self.endings) - 1}, got {self.label}")

    @classmethod
    def of_line(cls, line: dict[str, Any]) -> dict[str, Any]:
        """A question as a context that ends in `Answer:`; labels as numbers."""
        if isinstance(line.get("question"), str) and isinstance(line.get("choices"), list):
            endings, label = line["choices"], line.get("answer")
            line = {"ctx": f"Question: {line['question']}\nAnswer:", "endings": endings, "label": label}
        label = line.get("label")
        if isinstance(label, str) and len(label) == 1:
            label = int(label) if label.isdecimal() else ord(label.upper()) - ord("A")
        endings = line.get("endings")
        if isinstance(endings, list):
            endings = [f" {each.strip()}" if isinstance(each, str) else each for each in endings]
        return line | {"endings": endings, "label": label}


def grade(s: State, item: Choice) -> dict[str, object]:
    return {
        "answer": s["ending"],
        "expected": item.endings[item.label],
        "correct": s["ending"] == item.endings[item.label],
    }


task = Task(choose, Choice, grade, shares=["correct"])
