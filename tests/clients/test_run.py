"""What `make clients` says of a client, tried without any: its line, and what a check writes down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

LINES = """
import json
from run import CLIENTS, HERE, Outcome
outcomes = [
    Outcome("a", "1.0", 3, ()),
    Outcome("a", "1.0", 3, (), "in part"),
    Outcome("a", "1.0", 1, ("one\\nthing", "another")),
]
print(json.dumps([outcome.line() for outcome in outcomes]))
print(json.dumps([(HERE / client.check).is_file() for client in CLIENTS]))
print(json.dumps(sorted(client.check for client in CLIENTS)))
"""

CHECK = """
from checks import main

def it_adds() -> None:
    assert 1 + 1 == 2

async def it_waits() -> None:
    assert 1 + 1 == 3, "a number"

def it_compares() -> None:
    assert 1 > 2

def _helper() -> None:
    raise KeyError

def takes(an_argument: int) -> None:
    raise KeyError

import sys
main(sys.modules[__name__], note="a note")
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(HERE)!r})\n{code}"]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_a_client_has_one_line_and_a_check_of_its_own() -> None:
    done = run(LINES)
    assert done.returncode == 0, done.stderr
    lines, found, checks = map(json.loads, done.stdout.splitlines())
    assert lines == [
        "a 1.0 3 passed",
        "a 1.0 3 passed (in part)",
        "a 1.0 failed: one thing (and 1 more of 3)",
    ]
    assert all(found)
    assert checks == sorted(path.name for path in HERE.glob("check_*.py"))


def test_each_function_of_a_check_is_run_and_failures_are_told_in_words(tmp_path: Path) -> None:
    script = tmp_path / "check_it.py"
    script.write_text(CHECK)
    given = dict.fromkeys(("URL", "API_KEY", "MODEL", "TOKENIZER"), "x")
    given |= {"SCRATCH": str(tmp_path), "RESULT": str(tmp_path / "result.json")}
    environment = {f"RADIXLM_{name}": value for name, value in given.items()}
    done = run(f"sys.path.insert(0, {str(tmp_path)!r}); import check_it", **environment)
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ran"] == 3
    assert result["note"] == "a note"
    assert result["failures"] == [
        "it waits: AssertionError: a number",
        "it compares: AssertionError at assert 1 > 2",
    ]
