"""One question, several lines of reasoning, and the answer that most of them come to.

Shows a fork whose branches sample differently after one prefill, and a join by vote, which stops the branches
that can no longer change the outcome. Self-consistency is by Wang and others (2022). `--data` takes the JSON
lines of GSM8K: `question` and `answer`, which ends in `#### 42`.
"""

from __future__ import annotations

from ..frontend.expressions import gen
from ..frontend.group import vote
from ..frontend.program import function
from .few_shot_qa import EXAMPLES, Problem
from .shared.grading import last_number
from .shared.task import State, Task


@function
def answer(s: State, question: str, paths: int = 8) -> None:
    s += EXAMPLES
    s += f"Question: {question}\nAnswer:"
    branches = s.fork(paths)
    branches += gen("reasoning", max_tokens=64, temperature=0.7, stop=["\n####", "\n\n", "\nQuestion:"])
    branches += "\n####" + gen("answer", max_tokens=12, temperature=0, regex=r" -?\d{1,7}\n")
    branches.join(vote("answer"))


def grade(s: State, problem: Problem) -> dict[str, object]:
    return {
        "answer": s["answer"].strip(),
        "expected": problem.expected,
        "correct": last_number(s["answer"]) == last_number(problem.expected),
    }


task = Task(answer, Problem, grade, shares=["correct"])
