"""Being told to stop, and failing, while 32 requests run: how each of them ends, and when the server does."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from http_bench import Bench
from http_endpoint import Endpoint
from workloads import unique_prompts

DEADLINE_S = 5


def shutdown(bench: Bench) -> None:
    """SIGTERM under load; a step that raises under load; both at once."""
    deadline = ("--shutdown-timeout", str(DEADLINE_S))
    with bench.served("sigterm", *deadline) as server:
        found = _ended(bench, server, "SIGTERM under load", [signal.SIGTERM], exits=True)
        complete = sum(ending == "complete" for ending in found["endings"])
        shown = f"{complete} and {len(found['endings']) - complete}"
        bench.report.note("SIGTERM under load: complete, ended by the deadline", shown)
    with bench.launched("failing", "--failing", *deadline) as server:
        found = _ended(bench, server, "a step that raises under load", [signal.SIGUSR1], exits=False)
        failed = [ending for ending in found["endings"] if "asked to fail" in ending]
        bench.report.at_least("a step that raises under load: streams that were told why", len(failed), 1)
        server.wait_idle()
        bench.report.equal("a step that raises under load: pages held afterwards", server.pages().leased, 0)
        server.ask("GET", "/health_generate")
        both = [signal.SIGUSR1, signal.SIGTERM]
        _ended(bench, server, "a step that raises, and SIGTERM, under load", both, exits=True)


# Any: what crosses the pipe is JSON.
def _ended(
    bench: Bench, server: Endpoint, what: str, numbers: Sequence[int], *, exits: bool
) -> dict[str, Any]:
    """Half of the requests are done before the deadline, the other half never would be."""
    quick, report = bench.options.quick, bench.report
    count = 8 if quick else 32
    prompts = bench.texts(unique_prompts(bench.tokenizer.encode, count, 20, seed=9))
    lengths = [24 if i % 8 < 4 else 4000 for i in range(count)]
    limit = DEADLINE_S
    with ThreadPoolExecutor(1) as waiting:
        exited = waiting.submit(server.wait_exit, 10 * limit) if exits else None
        found: dict[str, Any] = bench.client.ask(
            "end_under_load",
            port=server.port,
            pid=server.pid,
            numbers=numbers,
            prompts=prompts,
            lengths=lengths,
        )
        report.keep(what, endings=found["endings"], late=found["late"])
        problems = [ending for ending in found["endings"] if ending.startswith("problem")]
        report.holds(f"{what}: complete answers and clean errors", problems, count)
        report.note(f"{what}: requests that came later", "; ".join(sorted(set(found["late"]))))
        if exited is not None:
            code, when = exited.result()
            report.note(f"{what}: seconds until the last answer", f"{found['answered_s']:.2f} s")
            report.equal(f"{what}: exit code", code, 0)
            report.at_most(f"{what}: seconds until the exit", when - found["signalled"], limit, "s")
    return found
