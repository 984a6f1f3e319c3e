"""A search over thoughts: several plans, each judged by the model, several solutions of the best ones.

Shows forks of forks, whose common text is computed once at every level, and judgements by `select` in a copy
that leaves the branch itself untouched. Tree of thoughts is by Yao and others (2023). `--data` takes the JSON
lines of GSM8K: `question` and `answer`, which ends in `#### 42`.
"""

from __future__ import annotations

from ..frontend.expressions import assistant, gen, select, system, user
from ..frontend.program import function
from .few_shot_qa import Problem
from .shared.grading import last_number
from .shared.task import State, Task

LEVELS = {
    "plan": "Say in one sentence which steps lead to the answer. Do not compute yet.",
    "solution": "Now follow the plan, compute step by step, and give the result.",
}
MARKS = ["1", "2", "3", "4", "5"]


@function
def think(s: State, question: str, width: int = 3, beam: int = 2) -> None:
    s += system("You solve word problems with care.")
    s += user(f"Problem: {question}")
    frontier = [s]
    for name, request in LEVELS.items():
        thoughts = [branch for state in frontier for branch in state.fork(width)]
        for thought in thoughts:
            thought += user(request) + assistant(gen(name, max_tokens=64, temperature=0.7))
        marks = [mark(thought, name) for thought in thoughts]
        ranked = sorted(range(len(thoughts)), key=lambda place: marks[place]["mark"], reverse=True)
        frontier = [thoughts[place] for place in ranked[:beam]]
    s.set_var("solution", frontier[0]["solution"])


def mark(thought: State, name: str) -> State:
    """A copy of the branch in which the model says what it thinks of the latest thought."""
    judge = thought.copy()
    judge += user(f"How good is this {name}? Answer with a number from 1 (wrong) to 5 (right).")
    judge += assistant(select("mark", MARKS))
    return judge


def grade(s: State, problem: Problem) -> dict[str, object]:
    found = last_number(s["solution"])
    return {
        "solution": s["solution"],
        "expected": problem.expected,
        "correct": found is not None and found == last_number(problem.expected),
        "has_number": found is not None,
    }


task = Task(think, Problem, grade, shares=["correct", "has_number"])
