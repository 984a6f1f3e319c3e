"""Facts taken out of a text, as JSON of a given form.

Shows `json_schema`: each token is one that the schema still allows, and what it leaves no choice about is not
even computed one by one. The schema bounds every text, so that the answer always ends. `--data` takes JSON
lines with `text`, and if wanted `expected` (an object) and `schema`, which is used in the place of the
built-in one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ..frontend.expressions import gen
from ..frontend.program import function
from .shared.grading import share
from .shared.items import check_text
from .shared.task import State, Task

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 40},
        "job": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "city", "job"],
    "additionalProperties": False,
}
EXAMPLES = """\
Text: The tailor Omar Haddad, who is 47, has his shop in Tunis.
JSON: {"name": "Omar Haddad", "age": 47, "city": "Tunis", "job": "tailor"}

Text: Anna Weber turned 25 last week. She lives in Vienna and works as a cook.
JSON: {"name": "Anna Weber", "age": 25, "city": "Vienna", "job": "cook"}

Text: In Quebec you may meet Luc Gagnon, a 70-year-old fisherman.
JSON: {"name": "Luc Gagnon", "age": 70, "city": "Quebec", "job": "fisherman"}

"""


@function
def extract(s: State, text: str, schema: dict[str, Any] | None = None) -> None:
    s += "Take the facts out of each text, as JSON.\n\n"
    s += EXAMPLES if schema is None else ""
    s += f"Text: {text}\nJSON: "
    s += gen("facts", max_tokens=128, json_schema=schema or PERSON)


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    expected: dict[str, Any] = field(default_factory=dict)
    schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_text("text", self.text)


def grade(s: State, document: Document) -> dict[str, object]:
    try:
        facts = json.loads(s["facts"])
    except ValueError:
        facts = None
    found = facts if isinstance(facts, dict) else {}
    return {
        "facts": s["facts"] if facts is None else facts,
        "expected": document.expected,
        "is_json": facts is not None,
        "right_fields": share(found.get(key) == value for key, value in document.expected.items()),
        "all_right": found == document.expected if document.expected else None,
    }


task = Task(extract, Document, grade, shares=["is_json", "right_fields", "all_right"])
