"""A virtual environment for each client, kept between runs.

An environment is taken as it is if its marker says that it was made from the same words, else it is made
anew. The marker is written last, so that half an environment is never taken for a whole one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from clients import Client

_MARKER = "installed.json"
_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
INSTALL_SECONDS = 1800.0


class NotInstalled(Exception):
    """The client could not be had, with the reason in a line."""


def environment_of(client: Client, folder: Path) -> Path:
    """The Python of the client's environment, which is made if it is not there. Raises NotInstalled."""
    place = folder / client.environment
    python = place / "bin" / "python"
    wanted = json.dumps([sys.version_info[:2], client.installs])
    marker = place / _MARKER
    if marker.is_file() and marker.read_text() == wanted:
        return python
    print(f"clients: installing {client.name} in {place}", file=sys.stderr, flush=True)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(place)])
    for words in client.installs:
        _run([str(python), "-m", "pip", "install", "--quiet", *words])
    marker.write_text(wanted)
    return python


def version_of(client: Client, python: Path) -> str:
    return _run([str(python), "-c", _VERSION, client.package]).strip()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise NotInstalled(_reason(done.stderr) or f"{' '.join(command)}: exit status {done.returncode}")
    return done.stdout


def _reason(said: str) -> str:
    """pip's errors, without the advice that follows them."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return "; ".join(errors) or " ".join(lines[-1:])
