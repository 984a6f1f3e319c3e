"""A long answer written in parallel: first its points, then all of them at once.

Shows a skeleton held by a regex, a fork with a branch for each point, and a join that gathers what they
wrote. Skeleton-of-thought is by Ning and others (2023). `--data` takes JSON lines with `question`, and
`keywords` (a list) of which a good answer has many.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..frontend.expressions import Expression, assistant, gen, system, user
from ..frontend.program import function
from .shared.grading import share
from .shared.items import check_text
from .shared.task import State, Task

POINT = r"[A-Z][a-z]{1,14}( [a-z]{1,14}){1,6}"
SKELETON = rf"1\. {POINT}\n2\. {POINT}\n3\. {POINT}\n"


SHOWN = (
    "How can I learn to cook?",
    ["Begin with simple dishes", "Taste while you cook", "Clean up as you go"],
)
SHOWN_TEXT = (
    "A dish changes with every minute in the pot, so try a spoonful often. "
    "Add salt little by little, because you can never take it out again."
)


@function
def write(s: State, question: str) -> None:
    s += system("You answer questions with short and practical advice.")
    s += ask(SHOWN[0]) + assistant(numbered(SHOWN[1])) + expand(SHOWN[1][1]) + assistant(SHOWN_TEXT)
    s += ask(question) + assistant(gen("skeleton", max_tokens=72, regex=SKELETON))
    points = re.findall(r"\d\. (.+)", s["skeleton"])
    branches = s.fork(len(points))
    branches += [expand(point) + assistant(gen("text", max_tokens=80)) for point in points]
    branches.join()
    written = [f"{point}: {text}" for point, text in zip(points, s["text"], strict=True) if text]
    s.set_var("answer", "\n\n".join(written))


def ask(question: str) -> Expression:
    return user(f"{question}\nName three points, a few words each, as a numbered list.")


def expand(point: str) -> Expression:
    return user(f"Write two sentences on this point only: {point}")


def numbered(points: list[str]) -> str:
    return "".join(f"{number}. {point}\n" for number, point in enumerate(points, start=1))


@dataclass(frozen=True, slots=True)
class Topic:
    question: str
    keywords: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_text("question", self.question)
        for word in self.keywords:
            check_text("a word of keywords", word)


def grade(s: State, topic: Topic) -> dict[str, object]:
    answer, points = s["answer"].casefold(), re.findall(r"\d\. (.+)", s["skeleton"])
    return {
        "answer": s["answer"],
        "keywords_found": share(word.casefold() in answer for word in topic.keywords),
        "points_differ": len({point.casefold() for point in points}) == len(points),
        "words": len(answer.split()),
    }


task = Task(write, Topic, grade, shares=["keywords_found", "points_differ"], means=["words"])
