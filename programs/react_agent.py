"""An agent that thinks, uses a tool, reads what came back, and goes on until it can answer.

Shows a loop in plain Python around the model's steps, actions held by a regex to what the tools understand,
and `hold`, which keeps the agent's prefix while a tool works. The tools are real: a calculator and a search
over text files. ReAct is by Yao and others (2022). `--data` takes JSON lines with `question` and `answer`
(`|` stands between texts of which one is enough), `--documents` a folder of `.txt` files to search.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.expressions import gen, plain
from ..frontend.program import function
from .shared.calculator import CalculatorError, calculate
from .shared.grading import mentions
from .shared.items import check_text, check_wanted
from .shared.library import Library
from .shared.task import State, Task

EXAMPLES = """\
Answer each question in steps. Actions are calculate[arithmetic], search[words] and finish[answer].

Question: What is 12 times 11?
Thought: I need to multiply 12 and 11.
Action: calculate[12 * 11]
Observation: 132
Thought: The product is 132.
Action: finish[132]

Question: What is the name of the bridge of Ostby?
Thought: I need to find the bridge of Ostby.
Action: search[name of the bridge of Ostby]
Observation: Two roads lead over the river. The bridge of Ostby is called the Long Arch.
Thought: The bridge is called the Long Arch.
Action: finish[the Long Arch]

Question: What is (40 + 8) / 4?
Thought: I need to divide 40 + 8 by 4.
Action: calculate[(40 + 8) / 4]
Observation: 12
Thought: The result is 12.
Action: finish[12]

Question: Who painted the ceiling of the church of Ostby?
Thought: I need to find who painted the ceiling.
Action: search[who painted the ceiling of the church of Ostby]
Observation: The church of Ostby is small. Its ceiling was painted by Ida Falk in 1790.
Thought: The ceiling was painted by Ida Falk.
Action: finish[Ida Falk]

Question: How much is 20 percent of 150?
Thought: I need to multiply 150 by 20 and divide by 100.
Action: calculate[150 * 20 / 100]
Observation: 30
Thought: 20 percent of 150 is 30.
Action: finish[30]

Question: How much do 3 tickets for the museum of Ostby cost, in crowns?
Thought: I need to find the price of a ticket.
Action: search[price of a ticket for the museum of Ostby]
Observation: A ticket for the museum of Ostby costs 8 crowns.
Thought: I need to multiply 8 by 3.
Action: calculate[8 * 3]
Observation: 24
Thought: The tickets cost 24 crowns.
Action: finish[24]

"""
ACTION = r" (calculate|search|finish)\[[^\[\]\n]{1,60}\]\n"


@function
def agent(s: State, question: str, library: Library, steps: int = 5) -> None:
    s += EXAMPLES + "Question: " + plain(question) + "\n"
    for step in range(1, steps + 1):
        s += "Thought:" + gen(f"thought_{step}", max_tokens=32, stop="\n")
        s += "\nAction:" + gen(f"action_{step}", max_tokens=48, regex=ACTION)
        tool, _, argument = s[f"action_{step}"].strip().rstrip("]").partition("[")
        if tool == "finish":
            s.set_var("answer", argument)
            return
        with s.hold(ttl=30):
            observation = use(tool, argument, library)
        s += "Observation: " + plain(observation) + "\n"


def use(tool: str, argument: str, library: Library) -> str:
    """What a tool answers, in one line. A tool that cannot do what it is asked for says so: the agent may try
    something else."""
    if tool == "calculate":
        try:
            return calculate(argument)
        except CalculatorError as error:
            return f"error: {error}"
    found = library.search(argument)
    return found[0].text if found else "nothing found"


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    answer: str

    def __post_init__(self) -> None:
        check_text("question", self.question)
        check_wanted("answer", self.answer)


def grade(s: State, item: Question) -> dict[str, object]:
    answered = "answer" in s
    actions = [name for name in (f"action_{step}" for step in range(1, 100)) if name in s]
    return {
        "answer": s["answer"] if answered else None,
        "expected": item.answer,
        "actions": [s[name].strip() for name in actions],
        "correct": answered and mentions(s["answer"], item.answer),
        "finished": answered,
        "steps": len(actions),
    }


task = Task(agent, Question, grade, shares=["correct", "finished"], means=["steps"], searches=True)
