"""The far end of the pipe: a peer in a process of its own answers commands, one JSON object a line.

It runs in the peer's own environment, so it imports nothing but the standard library, and knows nothing of
the models. Whatever a library prints goes to standard error; only answers go down the pipe.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


class Unavailable(Exception):
    """What was asked for does not exist in this version of the peer; not a failure of the run."""


# Any: arguments and answers are JSON.
def serve(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answer until the pipe closes. A command that raises is answered with its error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                answer = {"answer": commands[asked.pop("do")](**asked)}
            except Unavailable as error:
                answer = {"unavailable": str(error)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
