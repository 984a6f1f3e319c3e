"""An engine on a thread of the server against one in a process of its own: the loads of http_speed.py through
both faces of it, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from common import say
from http_bench import Bench, Turns, milliseconds
from http_endpoint import Endpoint
from http_speed import Measured, Probed, Sizes, beside, probe, sizes_of, stream_all, workloads_of
from http_streams import SURFACES

FACES = ("thread", "process")


def faces(bench: Bench) -> None:
    """Throughput, first tokens, gaps and processor time of both, on the same machine in the same minutes."""
    sizes = sizes_of(bench)
    servers = {face: bench.launched(f"face-{face}", "--face", face) for face in FACES}
    try:
        for server in servers.values():
            server.start()
        turns = Turns(*servers.values())
        ratios = [
            _streams(bench, turns, servers, f"faces, {name}: {surface}", surface, prompts, sizes.tokens)
            for name, prompts in workloads_of(bench, sizes).items()
            for surface in SURFACES
        ]
        mean = statistics.geometric_mean(ratios)
        bench.report.note("tokens/s of the process over the thread, mean of all", f"{mean:.3f}", mean)
        for load in sizes.loads:
            _probes(bench, turns, servers, sizes, load)
    finally:
        for server in servers.values():
            server.stop()


def _streams(
    bench: Bench,
    turns: Turns,
    servers: Mapping[str, Endpoint],
    what: str,
    surface: str,
    prompts: Sequence[str],
    tokens: int,
) -> float:
    """Tokens a second of the process over those of the thread."""
    rounds = 1 if bench.options.quick else bench.options.rounds
    for each in range(rounds + 1):
        if each <= 1:  # the round before the first does not count
            found = {face: Measured() for face in servers}
        order = list(servers) if each % 2 else list(servers)[::-1]
        for face in order:
            with turns.of(servers[face]):
                stream_all(bench, servers[face], surface, prompts, tokens, found[face])
        shown = ", ".join(f"{face} {measured.seconds[-1]:.2f} s" for face, measured in found.items())
        say(f"  round {each} of {rounds}: {shown}")
    report, count = bench.report, len(prompts) * tokens
    thread, process = (found[face] for face in FACES)
    problems = thread.problems + process.problems
    report.holds(f"{what}, streams that are whole", problems, len(thread.readings) + len(process.readings))
    unlike = [a.text for a, b in zip(thread.readings, process.readings, strict=True) if a.text != b.text]
    report.holds(f"{what}, texts of both are equal", unlike, len(thread.readings))
    rates = [count / statistics.median(found[face].seconds) for face in FACES]
    _note(bench, what, "tokens/s", *(f"{rate:.0f}" for rate in rates))
    over = rates[1] / rates[0]
    report.note(f"{what}, tokens/s of the process over the thread", f"{over:.3f}", over)
    _note(bench, what, "first token p50 / p95", *(milliseconds(found[f].first_s, 0.5, 0.95) for f in FACES))
    _note(bench, what, "between tokens p50 / p99", *(milliseconds(found[f].gaps, 0.5, 0.99) for f in FACES))
    used = (statistics.median(found[face].server_cpu_s) for face in FACES)
    _note(bench, what, "processor seconds", *(f"{seconds:.2f}" for seconds in used))
    report.keep(what, **{face: measured.record() for face, measured in found.items()})
    return over


def _probes(bench: Bench, turns: Turns, servers: Mapping[str, Endpoint], sizes: Sizes, load: int) -> None:
    """In pieces, so that what slows the machine for a while strikes both."""
    pieces = 1 if bench.options.quick else bench.options.rounds
    found: dict[str, list[Probed]] = {face: [] for face in servers}
    used = dict.fromkeys(servers, 0.0)
    for piece in range(pieces):
        for face, server in servers.items():
            with turns.of(server):
                before = server.cpu_seconds()
                found[face].append(probe(bench, server, sizes, load, -(-sizes.probes // pieces), seed=piece))
                used[face] += server.cpu_seconds() - before
        say(f"  {beside(load)}, piece {piece + 1} of {pieces}")
    what = f"faces, first token of a cached prompt of {sizes.shared:,} tokens, {beside(load)}"
    first = {face: [r.first_s for one in some for r in one.readings] for face, some in found.items()}
    gaps = {face: [gap for one in some for gap in one.gaps] for face, some in found.items()}
    problems = [problem for some in found.values() for one in some for problem in one.problems]
    bench.report.holds(f"{what}, probes answered from the cache", problems, sum(map(len, first.values())))
    _note(bench, what, "p50 / p95 / p99", *(milliseconds(first[face], 0.5, 0.95, 0.99) for face in FACES))
    if load:
        _note(
            bench,
            what,
            "between others' tokens p50 / p99",
            *(milliseconds(gaps[f], 0.5, 0.99) for f in FACES),
        )
        rates = (statistics.median(one.load_tokens_s for one in found[face]) for face in FACES)
        _note(bench, what, "tokens/s of the others", *(f"{rate:.0f}" for rate in rates))
        _note(bench, what, "processor seconds", *(f"{used[face]:.2f}" for face in FACES))
    bench.report.keep(what, first_s=first, server_cpu_s=used)


def _note(bench: Bench, what: str, unit: str, thread: str, process: str) -> None:
    bench.report.note(f"{what}, {unit}", f"thread {thread}; process {process}")
