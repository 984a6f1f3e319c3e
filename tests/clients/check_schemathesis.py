"""Schemathesis against the endpoint's own OpenAPI document: no status 5xx, no hang, statuses as described.

It has a server of its own, with a context so small that no answer takes long.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checks import SCRATCH, main, program, run_program

CONTEXT = "48"
SECONDS = "60"
SLOWEST = "25"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


def no_request_of_the_description_fails_or_hangs() -> None:
    with _server() as url:
        words = [program("st"), "run", f"{url}/openapi.json", "--max-time", SECONDS, "--checks", CHECKS]
        words += ["--max-response-time", SLOWEST, "--continue-on-failure", "--suppress-health-check", "all"]
        run_program([*words, "--no-color"])


@contextmanager
def _server() -> Iterator[str]:
    command = [os.environ["RADIXLM_COMMAND"], "serve", "--port", "0", "--max-context", CONTEXT]
    command += ["--request-timeout", "20", "--kv-memory", "32MiB", "--data-dir", str(SCRATCH / "data")]
    (SCRATCH / "data").mkdir()
    log = SCRATCH / "server.log"
    keyless = {name: value for name, value in os.environ.items() if name != "RADIXLM_API_KEY"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=keyless)
    try:
        yield _address(process, log)
        assert process.poll() is None, f"the server ended: {log.read_text()[-600:]}"
    finally:
        process.terminate()
        process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(600):
        if found := re.search(r"serving at (http://\S+)", log.read_text()):
            return found[1]
        assert process.poll() is None, log.read_text()[-600:]
        time.sleep(0.1)
    raise AssertionError(f"no server within a minute: {log.read_text()[-600:]}")


if __name__ == "__main__":
    main(sys.modules[__name__])
