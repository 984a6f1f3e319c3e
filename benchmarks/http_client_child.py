"""The load generator: a process that asks and measures, driven through a pipe like the peers of bench.py.

It imports nothing but the standard library, so that it takes as little of the machine as it can.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from http_attacks import attack, watch
from http_endings import end_under_load
from http_streams import at_once, one_by_one, probes
from peers.child import serve


# Any: arguments and answers are JSON.
def _run(command: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    return lambda **arguments: asyncio.run(command(**arguments))


def load() -> dict[str, object]:
    """Nothing is to be loaded."""
    return {"version": "", "load_s": 0.0, "notes": {}}


if __name__ == "__main__":
    commands = (at_once, probes, one_by_one, attack, watch, end_under_load)
    serve({"load": load, **{command.__name__: _run(command) for command in commands}})
