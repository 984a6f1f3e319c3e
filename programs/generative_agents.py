"""A replay of the calls that the people of a small simulated town make while they go about their day.

Shows many short calls of a few kinds, with a constant prefix for each kind, run together as one batch: the
order in which they arrive does not matter to what is reused. Generative agents are by Park and others (2023).
`--data` takes a trace as SGLang's benchmark of them does: JSON lines of one key, the kind of the call, with
its arguments as an object, and if wanted `expected`, the right answer of a call that chooses a place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from ..frontend.expressions import gen, select
from ..frontend.program import function
from .shared.items import DataError
from .shared.task import State, Task

POIGNANCY = """\
How much do events move people, from 1 (brushing teeth) to 10 (the birth of a child)?

Jonas Frey: Jonas Frey is 52 years old and a gardener.
Event: Jonas Frey is watering the beans.
Mark: 1

Alma Ruiz: Alma Ruiz is 19 years old and a student.
Event: Alma Ruiz fails an exam.
Mark: 7

"""
TRIPLE = """\
Say who does what to what.

Jonas Frey is watering the beans.
(Jonas Frey, water, beans)

Alma Ruiz is writing a letter to her father.
(Alma Ruiz, write, letter)

Ines Cole is asleep.
(Ines Cole, be, asleep)

"""
PICTURE = """\
Show each action as one or two emojis.

watering the beans: 🌱💧
eating dinner: 🍽️
playing the guitar: 🎸
riding a bicycle: 🚲
"""
SECTOR = """\
Say to which place each person goes. Who can do it where he is stays there.

Jonas Frey lives in the farm house (bedroom, kitchen) and is now in the garden (beds, shed).
Jonas Frey works in the garden until evening.
Places: the farm house, the garden, the inn
After digging, for planting beans, Jonas Frey goes to: the garden

Alma Ruiz lives in the blue house (bedroom, hall) and is now in the blue house (bedroom, hall).
Alma Ruiz learns all day and eats out.
Places: the blue house, the school, the inn
After learning, for eating dinner, Alma Ruiz goes to: the inn

"""
OBJECT = """\
Say in which room each person does what comes next.

The farm house has: bedroom, kitchen, hall
After working, for eating, Jonas Frey goes to: kitchen

The school has: hall, class room, yard
After learning, for playing, Alma Ruiz goes to: yard

"""


def poignancy_event(s: State, persona_name: str, persona_iss: str, event: str) -> None:
    s += POIGNANCY + f"{persona_name}: {persona_iss}\nEvent: {event}.\nMark:"
    s += select("answer", [f" {mark}" for mark in range(1, 11)])


def generate_event_triple(s: State, persona_name: str, action: str) -> None:
    s += TRIPLE + f"{persona_name} is {action}.\n({persona_name},"
    s += gen("answer", max_tokens=24, regex=r" [a-z]{2,20}, [a-z ]{2,30}\)")


def generate_pronunciatio(s: State, action: str) -> None:
    s += PICTURE + f"{action}:"
    s += gen("answer", max_tokens=12, stop="\n")


def action_location_sector(
    s: State,
    persona_name: str,
    living_sector: str,
    living_sector_areas: str,
    current_sector: str,
    current_sector_areas: str,
    daily_plan: str,
    sector_options: str,
    current_action: str,
    next_action: str,
) -> None:
    s += SECTOR + f"{persona_name} lives in {living_sector} ({living_sector_areas})"
    s += f" and is now in {current_sector} ({current_sector_areas}).\n{daily_plan}.\n"
    s += f"Places: {sector_options}\nAfter {current_action}, for {next_action}, {persona_name} goes to:"
    s += select("answer", options(sector_options))


def action_location_object(
    s: State,
    persona_name: str,
    target_sector: str,
    target_sector_areas: str,
    current_action: str,
    next_action: str,
) -> None:
    s += OBJECT + f"{target_sector[:1].upper()}{target_sector[1:]} has: {target_sector_areas}\n"
    s += f"After {current_action}, for {next_action}, {persona_name} goes to:"
    s += select("answer", options(target_sector_areas))


def options(listed: str) -> list[str]:
    """The places of a list in words, once each."""
    return list(
        dict.fromkeys(f" {place}" for each in listed.strip("{}").split(",") if (place := each.strip()))
    )


CALLS: Mapping[str, Callable[..., None]] = {
    call.__name__: call
    for call in (
        poignancy_event,
        generate_event_triple,
        generate_pronunciatio,
        action_location_sector,
        action_location_object,
    )
}


@function
def replay(s: State, kind: str, details: Mapping[str, str]) -> None:
    CALLS[kind](s, **details)


@dataclass(frozen=True, slots=True)
class Call:
    kind: str
    details: dict[str, str]
    expected: str | None = None

    def __post_init__(self) -> None:
        wanted = list(signature(CALLS[self.kind]).parameters)[1:]
        if set(wanted) != set(self.details):
            raise DataError(
                f"{self.kind} takes {', '.join(wanted)}, got {', '.join(self.details) or 'nothing'}"
            )
        for key in ("sector_options", "target_sector_areas"):
            if not options(self.details.get(key, "somewhere")):
                raise DataError(f"{key} must name places, got {self.details[key]!r}")
        if self.expected is not None and f" {self.expected}" not in self.places:
            named = ", ".join(place.strip() for place in self.places) or f"none: {self.kind} chooses no place"
            raise DataError(f"expected must be one of the places ({named}), got {self.expected!r}")

    @property
    def places(self) -> list[str]:
        """Those that the call chooses from."""
        key = {"action_location_sector": "sector_options", "action_location_object": "target_sector_areas"}
        return options(self.details[key[self.kind]]) if self.kind in key else []

    @classmethod
    def of_line(cls, line: dict[str, Any]) -> dict[str, Any]:
        kinds = [key for key in line if key in CALLS]
        if len(kinds) != 1:
            raise DataError(f"needs exactly one of {', '.join(CALLS)}, got {', '.join(line) or 'nothing'}")
        kind, details = kinds[0], line[kinds[0]]
        if not isinstance(details, dict) or not all(isinstance(each, str) for each in details.values()):
            raise DataError(f"{kind} must be an object whose values are texts, got {details!r:.120}")
        return {"kind": kind, "details": details, "expected": line.get("expected")}


def grade(s: State, call: Call) -> dict[str, object]:
    answer = s["answer"].strip()
    picture = call.kind == "generate_pronunciatio"
    return {
        "kind": call.kind,
        "answer": answer,
        "expected": call.expected,
        "right_place": None if call.expected is None else answer == call.expected,
        "drawn": bool(answer) and not re.search("[A-Za-z0-9]", answer) if picture else None,
    }


task = Task(replay, Call, grade, shares=["right_place", "drawn"])
