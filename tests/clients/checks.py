"""What a check is made of, inside the environment of its client: it imports nothing but the standard library.

Each public function of a check that takes no argument is one thing a client does, named by a
sentence; all are run, whatever fails. What the endpoint is, and where the result goes, is in the environment.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

URL = os.environ["RADIXLM_URL"]
"""Of the server, without a slash at its end; OpenAI's routes are under V1."""
V1 = f"{URL}/v1"
KEY = os.environ["RADIXLM_API_KEY"]
MODEL = os.environ["RADIXLM_MODEL"]
TOKENIZER = os.environ["RADIXLM_TOKENIZER"]
"""A folder that Hugging Face's tokenizers load."""
SCRATCH = Path(os.environ["RADIXLM_SCRATCH"])


def main(*scripts: ModuleType, note: str = "") -> None:
    """Run what the scripts define, in their order, and write down how it went."""
    functions = [function for script in scripts for function in _functions(script)]
    failures = [reason for function in functions if (reason := _failure_of(function)) is not None]
    result = {"ran": len(functions), "failures": failures, "note": note}
    Path(os.environ["RADIXLM_RESULT"]).write_text(json.dumps(result))
    sys.exit(bool(failures))


def _functions(script: ModuleType) -> list[Callable[[], Any]]:
    own = [value for name, value in vars(script).items() if inspect.isfunction(value) and name[0] != "_"]
    return [one for one in own if one.__module__ == script.__name__ and not inspect.signature(one).parameters]


def _failure_of(function: Callable[[], Any]) -> str | None:
    print(f"-- {function.__name__}", file=sys.stderr, flush=True)
    try:
        found = function()
        if inspect.iscoroutine(found):
            asyncio.run(found)
    except Exception as error:
        told = traceback.TracebackException.from_exception(error, capture_locals=True)
        print("".join(told.format()), file=sys.stderr, flush=True)
        here = [frame.line for frame in told.stack if frame.filename == function.__code__.co_filename]
        said = f": {error}" if str(error) else f" at {here[-1]}"
        return f"{function.__name__.replace('_', ' ')}: {type(error).__name__}{said}"
    return None


def post(path: str, body: Mapping[str, object]) -> Any:
    """What the server answers, without any client."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def run_program(words: Sequence[str], limit_s: float = 240.0, **environment: str) -> str:
    """A program's output, both kinds; of one that fails, an error with the end of it."""
    done = subprocess.run(
        words,
        cwd=SCRATCH,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    print(done.stdout, file=sys.stderr)
    if done.returncode != 0:
        raise RuntimeError(f"{Path(words[0]).name}: exit status {done.returncode}: {done.stdout[-600:]}")
    return done.stdout


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).with_name(name))


def raised(kind: type[Exception], call: Callable[..., object], **arguments: Any) -> Any:
    """The error of that kind which the call raises."""
    try:
        call(**arguments)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
