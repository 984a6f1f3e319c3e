"""Conversations of several turns, with short answers or long ones.

Shows role blocks in the model's own chat template, and that a turn finds all of the turns before it in the
cache, the answers as well, since what was generated is carried on as tokens. `--data` takes JSON lines with
`turns` (a list), as those of MT-bench (Zheng and others, 2023), and if wanted `length` (`short` or `long`)
and `expected`: for each turn a text its answer should have in it (`|` stands between texts of which one is
enough).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..frontend.expressions import assistant, gen, system, user
from ..frontend.program import function
from .shared.grading import mentions, share
from .shared.items import DataError, check_text, check_wanted
from .shared.task import State, Task

PERSONA = """\
You are an assistant who talks with many people every day. You are friendly and polite, you say what you
know and do not make up what you do not know, and you remember what was said before in the conversation. """
STYLES = {"short": ("Answer in one short sentence.", 32), "long": ("Answer at length.", 192)}


@function
def chat(s: State, turns: list[str], length: str) -> None:
    style, max_tokens = STYLES[length]
    s += system(PERSONA + style)
    for place, turn in enumerate(turns):
        s += user(turn)
        s += assistant(gen(f"answer_{place}", max_tokens=max_tokens))


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: list[str]
    length: str = "short"
    expected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.turns:
            raise DataError("turns must not be empty")
        for turn in self.turns:
            check_text("a turn", turn)
        if len(self.expected) > len(self.turns):
            raise DataError(f"expected holds {len(self.expected)} texts for {len(self.turns)} turns")
        for text in filter(None, self.expected):  # an empty one says nothing of its turn
            check_wanted("expected", text)
        if self.length not in STYLES:
            raise DataError(f"length must be {' or '.join(STYLES)}, got {self.length!r}")


def grade(s: State, item: Conversation) -> dict[str, object]:
    names = [f"answer_{place}" for place in range(len(item.turns))]
    answers = [s[name] for name in names]
    pairs = zip(answers, item.expected, strict=False)
    return {
        "length": item.length,
        "answers": answers,
        "expected_found": share(mentions(answer, wanted) for answer, wanted in pairs if wanted),
        "ended_by_itself": share(_ended(s, name) for name in names),
        "words_of_an_answer": sum(len(answer.split()) for answer in answers) / len(answers),
    }


def _ended(s: State, name: str) -> bool:
    reason = s.get_meta_info(name).get("finish_reason")
    return (reason.get("type") if isinstance(reason, dict) else reason) == "stop"


task = Task(
    chat, Conversation, grade, shares=["expected_found", "ended_by_itself"], means=["words_of_an_answer"]
)
