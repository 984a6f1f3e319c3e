"""A text judged from several sides at once, then a verdict over all of them.

Shows a fork with a branch for each side, each of which explains itself and gives a mark, and a join whose
lists the verdict is drawn from. Judging in branches is by Saha and others (2023, Branch-Solve-Merge);
language models as judges are studied by Zheng and others (2023). `--data` takes JSON lines with `text`, and
`label`, which is `strong` or `weak`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.expressions import assistant, gen, select, system, user
from ..frontend.program import function
from .shared.items import DataError, check_text
from .shared.task import State, Task

SIDES = {
    "clarity": "Is it clear what the writer wants, and does every sentence serve it?",
    "evidence": "Does the writer give facts, numbers or examples for what is claimed?",
    "fairness": "Does the writer take up what speaks against the claim?",
    "style": "Is it well written?",
}
LABELS = ["strong", "weak"]


@function
def judge(s: State, text: str) -> None:
    s += system("You are a strict judge of short essays.")
    s += user(f"Essay:\n{text}")
    branches = s.fork(len(SIDES))
    branches += [
        user(f"{question} Judge the {side} in one sentence, then give a mark from 1 to 5.")
        for side, question in SIDES.items()
    ]
    branches += assistant(gen("reason", max_tokens=48, stop="\n") + "\nMark: " + gen("mark", regex="[1-5]"))
    branches.join()
    marks = [f"{side}: {mark} of 5" for side, mark in zip(SIDES, s["mark"], strict=True)]
    s += user(f"Marks: {', '.join(marks)}. Is the essay strong or weak?")
    s += assistant("The essay is " + select("verdict", LABELS) + ".")


@dataclass(frozen=True, slots=True)
class Essay:
    text: str
    label: str | None = None

    def __post_init__(self) -> None:
        check_text("text", self.text)
        if self.label is not None and self.label not in LABELS:
            raise DataError(f"label must be strong or weak, got {self.label!r}")


def grade(s: State, essay: Essay) -> dict[str, object]:
    marks = [int(mark) for mark in s["mark"] if mark is not None]
    return {
        "verdict": s["verdict"],
        "expected": essay.label,
        "marks": dict(zip(SIDES, s["mark"], strict=True)),
        "reasons": s["reason"],
        "agrees": None if essay.label is None else s["verdict"] == essay.label,
        "mean_mark": sum(marks) / len(marks) if marks else None,
    }


task = Task(judge, Essay, grade, shares=["agrees"], means=["mean_mark"])
