"""Hostile clients: what one who wants no harm feels of them, what they are answered, and what they leave.

The watch and the attacks have a process each, and keys of their own. Quiet stretches lie between the attacks,
so that both see the same machine; each attack comes alone, and in the end all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from common import say
from http_attacks import ATTACKS, CONNECTIONS, SLOW_READERS
from http_bench import Bench, quantile
from http_endpoint import Endpoint, LoadGenerator

KEYS = ("friend", "stranger")
MOST_RUNNING = 4
"""Texts of one key that run at a time: slow readers are else just many streams, which share the machine."""
MOST_TIMES_QUIET = 2.0
HEALTH_MS = 100.0
SEEN = {"gaps": "between tokens", "small": "a small request", "health": "/health"}
Watched = dict[str, list[float]]


def hostile(bench: Bench) -> None:
    """Latencies of the reference against quiet, statuses, and what is held when all have gone."""
    quick = bench.options.quick
    quiet_s, attack_s, all_s = (1.0, 2.0, 3.0) if quick else (5.0, 15.0, 40.0)
    flags = [flag for key in KEYS for flag in ("--api-key", key)]
    flags += ["--max-running-per-tenant", str(MOST_RUNNING)]
    with (
        bench.served("hostile", *flags, key=KEYS[0]) as server,
        LoadGenerator("attacks", bench.logs) as attacks,
        ThreadPoolExecutor(1) as watching,
    ):
        arena = _Arena(bench, server, attacks, watching)
        arena.warm_up()
        for name in ATTACKS:
            arena.watch(quiet_s)
            arena.attack(name, [name], attack_s)
        arena.watch(quiet_s)
        arena.attack("all at once", list(ATTACKS), all_s)
        _report(bench, arena)
        _left(bench, server)


class _Arena:
    """Keeps what was seen: `quiet`, and `beside` each attack."""

    def __init__(
        self, bench: Bench, server: Endpoint, attacks: LoadGenerator, watching: ThreadPoolExecutor
    ) -> None:
        self._bench, self._server = bench, server
        self._attacks, self._watching = attacks, watching
        self.quiet: Watched = {name: [] for name in SEEN}
        self.beside: dict[str, Watched] = {}
        self.statuses: dict[str, dict[str, int]] = {}
        self.failures: list[str] = []
        self.problems: list[str] = []
        self.resident = [0]

    def warm_up(self) -> None:
        """Shapes are met for the first time."""
        self._seen(1.0)
        self.resident = [self._server.resident_bytes()]

    def watch(self, seconds: float) -> None:
        self._server.wait_idle()
        for name, values in self._seen(seconds).items():
            self.quiet[name] += values

    def attack(self, what: str, names: Sequence[str], seconds: float) -> None:
        """The watch begins with the attack, and does not last longer than that is meant to."""
        watched = self._watching.submit(self._seen, seconds)
        told = self._attacks.ask("attack", port=self._server.port, key=KEYS[1], names=names, seconds=seconds)
        self.beside[what] = watched.result()
        self.statuses[what] = told["statuses"]
        self.failures += [f"{what}: {failure}" for failure in told["failures"]]
        self.resident.append(self._server.resident_bytes())
        say(f"  {what}: {told['statuses']}, resident {self.resident[-1] / 2**20:.0f} MiB")

    def _seen(self, seconds: float) -> Watched:
        client, port = self._bench.client, self._server.port
        found: dict[str, list[float]] = client.ask("watch", port=port, key=KEYS[0], seconds=seconds)
        self.problems += map(str, found.pop("problems"))
        return found


def _report(bench: Bench, arena: _Arena) -> None:
    report = bench.report
    for name, shown in SEEN.items():
        for share, word in ((0.5, "median"), (0.95, "p95")):
            before = quantile(arena.quiet[name], share)
            report.note(f"quiet: {shown}, {word}", f"{1000 * before:.1f} ms")
            for attack in ATTACKS if name != "health" else ():
                then = quantile(arena.beside[attack][name], share)
                what = f"beside {attack}: {shown}, {word} over that of quiet"
                report.at_most(what, then / before, MOST_TIMES_QUIET)
    slowest = 1000 * max(max(arena.beside[attack]["health"]) for attack in ATTACKS)
    report.at_most("beside any attack alone: slowest /health", slowest, HEALTH_MS, "ms")
    for attack, watched in arena.beside.items():
        ratios = [
            f"{SEEN[name]} {quantile(values, 0.5) / quantile(arena.quiet[name], 0.5):.2f} / "
            f"{quantile(values, 0.95) / quantile(arena.quiet[name], 0.95):.2f}"
            for name, values in watched.items()
        ]
        report.note(f"beside {attack}, median / p95 over quiet", ", ".join(ratios))
        report.note(f"answers to {attack}", _counted(arena.statuses[attack]))
    tried = sum(sum(statuses.values()) for statuses in arena.statuses.values())
    unanswered = [name for name, found in arena.statuses.items() for _ in range(found.get("none", 0))]
    report.holds("hostile requests without a failure of the server (5xx but 503)", arena.failures, tried)
    report.holds("hostile requests that waited for an answer and got one", unanswered, tried)
    asked = sum(
        len(values) for watched in (arena.quiet, *arena.beside.values()) for values in watched.values()
    )
    report.holds("the reference was answered as it should be", arena.problems, asked)
    grown = (arena.resident[-1] - arena.resident[0]) / 2**20
    report.note("resident memory of the server, grown over all attacks", f"{grown:.0f} MiB")
    report.keep(
        "hostile",
        quiet=arena.quiet,
        beside=arena.beside,
        statuses=arena.statuses,
        resident_bytes=arena.resident,
        connections=CONNECTIONS,
        slow_readers=SLOW_READERS,
    )


def _counted(statuses: dict[str, int]) -> str:
    return ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))


def _left(bench: Bench, server: Endpoint) -> None:
    """When all have gone: nothing runs, no page is held, and with the cache forgotten all are free."""
    report = bench.report
    seconds = server.wait_idle()
    report.note("requests left behind are gone after", f"{seconds:.2f} s")
    held = server.pages()
    report.equal("afterwards: requests that run or wait", held.active, 0)
    report.equal("afterwards: pages held by a request", held.leased, 0)
    server.flush()
    report.equal("afterwards, with the cache forgotten: pages that are not free", server.pages().used, 0)
    server.ask("GET", "/health_generate")
