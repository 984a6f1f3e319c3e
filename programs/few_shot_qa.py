"""Word problems, answered step by step after worked examples.

Shows a long constant prefix, computed once for all questions, and an answer in two parts: reasoning that is
free, then a number that a regex holds to its form. Chain-of-thought prompting is by Wei and others (2022);
the problems are in the manner of GSM8K (Cobbe and others, 2021), whose files `--data` takes as they are: JSON
lines with `question` and `answer`, which ends in `#### 42`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.expressions import gen
from ..frontend.program import function
from .shared.grading import last_number
from .shared.items import DataError, check_text
from .shared.task import State, Task

EXAMPLES = """\
Question: Tom has 3 red marbles and 4 blue marbles. He gives 2 of them to Ann. How many does he have now?
Answer: Tom has 3 + 4 = 7 marbles. After giving away 2 he has 7 - 2 = 5 marbles.
#### 5

Question: A carton holds 6 bottles. How many bottles are in 7 cartons?
Answer: There are 6 * 7 = 42 bottles in 7 cartons.
#### 42

Question: Eva earns 9 coins an hour. She works 4 hours and spends 10 coins. How many coins are left?
Answer: Eva earns 9 * 4 = 36 coins. After spending 10 she has 36 - 10 = 26 coins left.
#### 26

Question: 32 cards are dealt to 4 players, and each player then lays down 3. How many does each one hold?
Answer: Each player gets 32 / 4 = 8 cards. After laying down 3 each one holds 8 - 3 = 5 cards.
#### 5

Question: A fence has 15 posts. Twice as many are needed. How many posts must be bought?
Answer: Twice as many as 15 are 15 * 2 = 30 posts. So 30 - 15 = 15 posts must be bought.
#### 15

Question: On Monday 120 people came to the fair, on Tuesday 45 fewer. How many came on both days?
Answer: On Tuesday 120 - 45 = 75 people came. On both days 120 + 75 = 195 people came.
#### 195

"""


@function
def answer(s: State, question: str) -> None:
    s += EXAMPLES
    s += f"Question: {question}\nAnswer:"
    s += gen("reasoning", max_tokens=96, stop=["\n####", "\n\n", "\nQuestion:"])
    s += "\n####" + gen("answer", max_tokens=12, regex=r" -?\d{1,7}\n")


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    answer: str

    def __post_init__(self) -> None:
        check_text("question", self.question)
        if last_number(self.expected) is None:
            raise DataError(f"answer must end in a number, as in '#### 42', got {self.answer!r:.120}")

    @property
    def expected(self) -> str:
        """What stands behind the last ####; all of an answer that has none."""
        return self.answer.rpartition("####")[2].strip()


def grade(s: State, problem: Problem) -> dict[str, object]:
    return {
        "answer": s["answer"].strip(),
        "expected": problem.expected,
        "reasoning": s["reasoning"],
        "correct": last_number(s["answer"]) == last_number(problem.expected),
    }


task = Task(answer, Problem, grade, shares=["correct"])
