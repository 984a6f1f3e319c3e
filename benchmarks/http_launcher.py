"""The endpoint from a program instead of the command line: over an engine on a thread or in a process of its
own, and with one that fails on request.

    python -P benchmarks/http_launcher.py --face process

With --failing, the step after a SIGUSR1 raises, once for each signal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from radixlm.runtime.commands.options import add_engine_flags, engine_config
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.environment import prepare_environment
from radixlm.runtime.server.settings import ServerSettings

if TYPE_CHECKING:
    from http_process_face import ProcessEngine

    from radixlm.runtime.engine import Engine
    from radixlm.runtime.server.engine_face import LocalEngine


def main() -> None:
    prepare_environment(os.environ)
    from radixlm.runtime.server.lifecycle import listen, serve  # loads torch
    from radixlm.runtime.server.logs import set_up_logs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--face", choices=("thread", "process"), default="thread")
    parser.add_argument("--failing", action="store_true")
    parser.add_argument("--shutdown-timeout", type=float, default=5.0)
    add_engine_flags(parser)
    arguments = parser.parse_args()
    settings = ServerSettings(port=0, shutdown_timeout=arguments.shutdown_timeout)
    set_up_logs(settings.log_level)
    with listen(settings) as listening:
        face = _open(engine_config(arguments), arguments)
        try:
            face.prepare()
            serve(face, settings, listening, announce=_announce)
        finally:
            face.close()


def _open(config: EngineConfig, arguments: argparse.Namespace) -> LocalEngine | ProcessEngine:
    from http_process_face import ProcessEngine

    from radixlm.runtime.engine import Engine
    from radixlm.runtime.server.engine_face import LocalEngine

    if arguments.face == "process":
        assert not arguments.failing, "an engine fails on request on a thread only"
        return ProcessEngine(config)
    engine = Engine(config=config)
    if arguments.failing:
        _fail_on_signal(engine)
    return LocalEngine(engine)


def _fail_on_signal(engine: Engine) -> None:
    model, due = engine._model, threading.Event()
    forward = model.forward

    def failing(*inputs: Any) -> Any:  # Any: whatever the model's own takes and gives
        if due.is_set():
            due.clear()
            raise RuntimeError("this step was asked to fail")
        return forward(*inputs)

    model.forward = failing  # type: ignore[assignment, method-assign]
    signal.signal(signal.SIGUSR1, lambda *_: due.set())


def _announce(address: str) -> None:
    print(f"serving at {address}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
