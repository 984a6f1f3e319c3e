"""`radixlm serve` in a process of its own: the default model, a key, and a folder for files and batches."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 180.0
STOP_SECONDS = 60.0
KEY = "key-of-the-clients"

_SERVING = re.compile(r"serving at (http://\S+)")


class EndpointFailed(Exception):
    """The server did not start, or did not end as it should."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` has no slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> str:
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-600:]


@contextmanager
def serving(folder: Path, log: Path) -> Iterator[Endpoint]:
    """Until the end of the block; then the server gets SIGTERM, and has to end with status 0."""
    data = folder / "data"
    data.mkdir()
    command = [sys.executable, "-P", "-m", "radixlm", "serve", "--port", "0", "--data-dir", str(data)]
    environment = {**os.environ, "RADIXLM_API_KEY": KEY}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield Endpoint(_address(process, log), process, log)
        _stop(process, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    begin = time.monotonic()
    while time.monotonic() - begin < START_SECONDS:
        said = log.read_text(errors="replace")
        if found := _SERVING.search(said):
            return found[1]
        if process.poll() is not None:
            raise EndpointFailed(f"radixlm serve ended with {process.returncode}: {said[-600:]}")
        time.sleep(0.1)
    raise EndpointFailed(f"radixlm serve was not ready in {START_SECONDS:.0f} s: {log.read_text()[-600:]}")


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise EndpointFailed(f"radixlm serve did not end within {STOP_SECONDS:.0f} s of SIGTERM") from None
    if status != 0:
        raise EndpointFailed(f"radixlm serve ended with {status} after SIGTERM: {log.read_text()[-600:]}")
