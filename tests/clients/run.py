"""Clients of this field, unmodified, against `radixlm serve`; a line for each.

    python -P tests/clients/run.py --venvs FOLDER --only openai,lm-eval --out clients.json

A client lives in an environment of its own, made on the first run, and its check (check_NAME.py) runs there.
Nothing is asked of the network but packages. At last the server must be idle, flush its cache and end when it
is told to. Exit status 1 if anything failed; a client that could not be installed has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

sys.path.insert(0, str(Path(__file__).resolve().parent))

from clients import CLIENTS, Client
from endpoint import KEY, Endpoint, EndpointFailed, serving
from environments import NotInstalled, environment_of, version_of

from radixlm import __version__
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.embedded import resolve_model
from radixlm.runtime.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
CHECK_SECONDS = 300.0
VENVS = Path("~/.cache/radixlm-clients")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one client. `passed` counts what held; `note` says what is particular about how it was run."""

    name: str
    version: str
    passed: int
    failures: tuple[str, ...]
    note: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        said = f"{self.name} {self.version} "
        if not self.failures:
            return f"{said}{self.passed} passed" + (f" ({self.note})" if self.note else "")
        ran = self.passed + len(self.failures)
        more = f" (and {len(self.failures) - 1} more of {ran})" if len(self.failures) > 1 else ""
        return f"{said}failed: {' '.join(self.failures[0].split())[:400]}{more}"


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server and the client end too
    chosen = [client for client in CLIENTS if client.name in options.only]
    begin = time.monotonic()
    pythons = {client.name: _installed(client, options.venvs) for client in chosen}
    installed = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="radixlm-clients-") as folder:
        logs = options.logs or Path(folder) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        failure = None
        try:
            with serving(Path(folder), logs / "server.log") as endpoint:
                given = _given(endpoint, Path(folder))
                for client in chosen:
                    outcomes.append(_outcome_of(client, pythons[client.name], given, Path(folder), logs))
                    print(outcomes[-1].line(), flush=True)
                failure = _left_behind(endpoint)
        except EndpointFailed as error:
            failure = str(error)
    if failure is not None:
        late = [Outcome(client.name, client.wanted, 0, ("there was no server",)) for client in chosen]
        late = [*late[len(outcomes) :], Outcome("server", __version__, 0, (failure,))]
        print("\n".join(outcome.line() for outcome in late), flush=True)
        outcomes += late
    seconds = {"install_s": round(installed - begin, 1), "run_s": round(time.monotonic() - installed, 1)}
    if options.out is not None:
        _write(options.out, outcomes, seconds)
    return int(any(outcome.failures for outcome in outcomes))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--venvs", type=Path, default=VENVS, metavar="FOLDER", help=f"environments, kept (default: {VENVS})"
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument(
        "--only", type=_names, default=names, metavar="NAME,...", help=f"of {', '.join(names)} (default: all)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the outcomes as JSON")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="what server and clients said")
    options = parser.parse_args()
    options.venvs = options.venvs.expanduser().resolve()
    return options


def _names(text: str) -> list[str]:
    known = [client.name for client in CLIENTS]
    names = [name for name in text.replace(",", " ").split() if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown client {' '.join(unknown)!r}, there are {', '.join(known)}"
        )
    return names


def _installed(client: Client, venvs: Path) -> Path | NotInstalled:
    try:
        return environment_of(client, venvs)
    except NotInstalled as error:
        return error


def _given(endpoint: Endpoint, folder: Path) -> dict[str, str]:
    """What a check is told, see checks.py."""
    config = EngineConfig()
    Tokenizer.load(resolve_model(config.model), folder)
    [tokenizer] = (folder / "tokenizers").iterdir()
    return {
        "RADIXLM_URL": endpoint.url,
        "RADIXLM_API_KEY": KEY,
        "RADIXLM_MODEL": config.model,
        "RADIXLM_TOKENIZER": str(tokenizer),
        "RADIXLM_COMMAND": str(Path(sys.executable).with_name("radixlm")),
    }


def _outcome_of(
    client: Client, python: Path | NotInstalled, given: Mapping[str, str], folder: Path, logs: Path
) -> Outcome:
    if isinstance(python, NotInstalled):
        return Outcome(client.name, client.wanted, 0, (f"not installed: {python}",))
    scratch = folder / client.name
    scratch.mkdir()
    result = scratch / "result.json"
    here = {**given, "RADIXLM_SCRATCH": str(scratch), "RADIXLM_RESULT": str(result)}
    log = logs / f"{client.name}.log"
    begin = time.monotonic()
    status = _run([str(python), str(HERE / client.check)], {**_environment(scratch), **here}, log)
    seconds = round(time.monotonic() - begin, 1)
    told: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {"ran": 0, "failures": []}
    failures = [str(failure) for failure in told["failures"]]
    if status is None:
        failures.append(f"took longer than {CHECK_SECONDS:.0f} s")
    elif not result.is_file() or not told["ran"] or (status != 0 and not failures):
        failures.append(f"exit status {status}: {log.read_text(errors='replace')[-300:]}")
    passed = told["ran"] - len(told["failures"])
    version = version_of(client, python)
    return Outcome(client.name, version, passed, tuple(failures), told.get("note", ""), seconds)


def _environment(scratch: Path) -> dict[str, str]:
    """This process's, without what would reach into the client or lead it to a service elsewhere."""
    drop = ("PYTHON", "OPENAI_", "HF_", "LANGCHAIN_", "LANGSMITH_", "LITELLM_", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    offline = dict.fromkeys(
        ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK"), "1"
    )
    kept |= offline | {"HF_HOME": str(scratch / "hf"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return kept


def _run(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int | None:
    """The exit status, None if it took too long; then all that it started has ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(environment), stdout=output, stderr=output, start_new_session=True
        )
    try:
        return process.wait(CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _left_behind(endpoint: Endpoint) -> str | None:
    """What is wrong with the server after its clients, None if nothing is: it flushes only when idle."""
    try:
        endpoint.get("/health_generate")
        endpoint.get("/flush_cache?timeout=5")
    except (OSError, HTTPError) as error:
        return f"{type(error).__name__}: {error}: {endpoint.tail()}"
    return None


def _write(out: Path, outcomes: Sequence[Outcome], seconds: Mapping[str, float]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "python": platform.python_version(),
        **seconds,
        "clients": [{**asdict(outcome), "line": outcome.line()} for outcome in outcomes],
    }
    out.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
