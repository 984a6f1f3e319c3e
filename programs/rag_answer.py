"""Questions answered from passages that a search has found.

Shows a prompt put together so that others can use it: passages come first and in the order of the library,
not of their scores, so that questions about the same passages share their prefix. Retrieval-augmented
generation is by Lewis and others (2020), the search is BM25. `--data` takes JSON lines with `question` and
`answer` (`|` stands between texts of which one is enough), `--documents` a folder of `.txt` files.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.expressions import assistant, gen, system, user
from ..frontend.program import function
from .shared.grading import mentions
from .shared.items import check_text, check_wanted
from .shared.library import Library
from .shared.task import State, Task


@function
def answer(s: State, question: str, library: Library, passages: int = 3) -> None:
    found = sorted(library.search(question, passages), key=lambda passage: passage.place)
    s.set_var("passages", [passage.text for passage in found])
    s += system("Answer the question in a few words, with what the passages say and nothing else.")
    s += user("\n\n".join([*s["passages"], f"Question: {question}"]))
    s += assistant(gen("answer", max_tokens=40))


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answer: str

    def __post_init__(self) -> None:
        check_text("question", self.question)
        check_wanted("answer", self.answer)


def grade(s: State, item: Question) -> dict[str, object]:
    return {
        "answer": s["answer"],
        "expected": item.answer,
        "correct": mentions(s["answer"], item.answer),
        "answer_was_in_the_passages": any(mentions(passage, item.answer) for passage in s["passages"]),
    }


task = Task(answer, Question, grade, shares=["correct", "answer_was_in_the_passages"], searches=True)
