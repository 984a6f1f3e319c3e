"""What HTTP costs: many streams at once beside the same batch without a server, and the time to a first token
beside others.

Every run begins with an empty cache, and the texts of a workload are the same in all of them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from common import say
from http_bench import Bench, Turns, milliseconds, quantile
from http_endpoint import Endpoint
from http_streams import SURFACES, Reading
from peers.base import ChildPeer
from workloads import shared_stem, unique_prompts, with_tails

LEAST_RATIO = 0.90
OFFLINE = "Engine.generate"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A quick run shows that everything works and nothing about speed."""

    streams: int = 64
    tokens: int = 64
    shared: int = 1000
    unshared: int = 100
    probes: int = 100
    loads: tuple[int, ...] = (0, 16, 32)
    load_tokens: int = 256


def sizes_of(bench: Bench) -> Sizes:
    if bench.options.quick:
        return Sizes(streams=6, tokens=8, shared=120, unshared=30, probes=4, loads=(0, 2), load_tokens=32)
    return Sizes()


def workloads_of(bench: Bench, sizes: Sizes) -> Mapping[str, list[str]]:
    encode = bench.tokenizer.encode
    stem = shared_stem(encode, sizes.shared, 0)
    return {
        f"{sizes.streams} prompts that share {sizes.shared:,} tokens": bench.texts(
            with_tails(encode, stem, sizes.streams, seed=1)
        ),
        f"{sizes.streams} prompts of {sizes.unshared} tokens that share nothing": bench.texts(
            unique_prompts(encode, sizes.streams, sizes.unshared, seed=2)
        ),
    }


@dataclass(slots=True)
class Measured:
    """Runs of one workload against one server, by the client's clock."""

    seconds: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)
    client_cpu_s: list[float] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def first_s(self) -> list[float]:
        return [reading.first_s for reading in self.readings if reading.problem is None]

    @property
    def gaps(self) -> list[float]:
        return list(chain.from_iterable(reading.gaps for reading in self.readings))

    @property
    def problems(self) -> list[str]:
        return [reading.problem for reading in self.readings if reading.problem is not None]

    def record(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "server_cpu_s": self.server_cpu_s,
            "client_cpu_s": self.client_cpu_s,
            "first_s": self.first_s,
            "gap_quantiles_s": {share: quantile(self.gaps, share) for share in (0.5, 0.9, 0.99, 1.0)},
        }


def stream_all(
    bench: Bench, server: Endpoint, surface: str, prompts: Sequence[str], tokens: int, measured: Measured
) -> None:
    """All prompts at once, from an empty cache."""
    server.flush()
    used = server.cpu_seconds()
    found = bench.client.ask("at_once", port=server.port, surface=surface, prompts=prompts, max_tokens=tokens)
    measured.server_cpu_s.append(server.cpu_seconds() - used)
    measured.client_cpu_s.append(found["cpu_s"])
    measured.seconds.append(found["seconds"])
    measured.readings += [Reading(**reading) for reading in found["readings"]]


def throughput(bench: Bench) -> None:
    """Streams of both surfaces beside `Engine.generate` of the same texts in a process of its own."""
    sizes = sizes_of(bench)
    rounds = 1 if bench.options.quick else bench.options.rounds
    offline = ChildPeer(
        "ours",
        OFFLINE,
        python=Path(sys.executable),
        script=str(Path(__file__).resolve().with_name("http_offline_child.py")),
        log=bench.logs / "offline.log",
        options={"threads": bench.options.threads, "options": bench.engine_options},
        exact=True,
        reuses=True,
        scores=False,
    )
    try:
        offline.start()
        with bench.served("throughput") as server:
            turns = Turns(offline, server)
            for name, prompts in workloads_of(bench, sizes).items():
                _beside_offline(bench, turns, server, offline, name, prompts, sizes.tokens, rounds)
    finally:
        offline.stop()


def _beside_offline(
    bench: Bench,
    turns: Turns,
    server: Endpoint,
    offline: ChildPeer,
    name: str,
    prompts: Sequence[str],
    tokens: int,
    rounds: int,
) -> None:
    """The first round does not count: shapes are met for the first time in it. Within a round all meet the
    same machine, more or less, so rounds are compared one by one."""
    batches: list[float] = []
    for each in range(rounds + 1):
        if each <= 1:
            streams = {surface: Measured() for surface in SURFACES}
            batches = []
        names = [OFFLINE, *streams]
        for contender in (*names[each % 3 :], *names[: each % 3]):
            if contender == OFFLINE:
                with turns.of(offline):
                    batch = offline.ask("texts", prompts=prompts, max_tokens=tokens)
                batches.append(batch["seconds"])
            else:
                with turns.of(server):
                    stream_all(bench, server, contender, prompts, tokens, streams[contender])
        shown = ", ".join(f"{surface} {measured.seconds[-1]:.2f} s" for surface, measured in streams.items())
        say(f"  round {each} of {rounds}: offline {batches[-1]:.2f} s, {shown}")
    report, count = bench.report, len(prompts) * tokens
    report.note(f"{name}: {OFFLINE}", f"{count / statistics.median(batches):.0f} tokens/s")
    for surface, measured in streams.items():
        what = f"{name}: {surface}"
        report.holds(f"{what}, streams that are whole", measured.problems, len(measured.readings))
        report.holds(
            f"{what}, texts equal those of {OFFLINE}", _unlike(measured, batch["texts"]), len(prompts)
        )
        ratios = sorted(alone / streamed for alone, streamed in zip(batches, measured.seconds, strict=True))
        report.at_least(
            f"{what}, tokens a second over those of {OFFLINE}, median of rounds",
            statistics.median(ratios),
            LEAST_RATIO,
        )
        report.note(f"{what}, the same, of each round", ", ".join(f"{each:.2f}" for each in ratios))
        report.note(f"{what}, tokens/s", f"{count / statistics.median(measured.seconds):.0f}")
        report.note(f"{what}, first token p50 / p95", milliseconds(measured.first_s, 0.5, 0.95))
        report.note(f"{what}, between tokens p50 / p99", milliseconds(measured.gaps, 0.5, 0.99))
        shares = [cpu / s for cpu, s in zip(measured.client_cpu_s, measured.seconds, strict=True)]
        report.note(f"{what}, processor time of the client", f"{statistics.median(shares):.1%} of a core")
        report.keep(what, offline_seconds=batches, **measured.record())


def _unlike(measured: Measured, texts: Sequence[str]) -> list[str]:
    """Of the last round."""
    last = measured.readings[-len(texts) :]
    pairs = zip(last, texts, strict=True)
    return [f"{reading.text!r} and {text!r}" for reading, text in pairs if reading.text != text]


def first_tokens(bench: Bench) -> None:
    """Time to the first token of a cached prompt, alone and beside streams that decode all the time."""
    sizes = sizes_of(bench)
    with bench.served("ttft") as server:
        for load in sizes.loads:
            found = probe(bench, server, sizes, load, sizes.probes, seed=load)
            what = f"first token of a cached prompt of {sizes.shared:,} tokens, {beside(load)}"
            report, first = bench.report, [reading.first_s for reading in found.readings]
            report.holds(f"{what}, probes answered from the cache", found.problems, len(found.readings))
            report.note(f"{what}, p50 / p95 / p99", milliseconds(first, 0.5, 0.95, 0.99))
            if load:
                report.note(f"{what}, between tokens of the others, p50 / p99", found.shown_gaps)
                report.note(f"{what}, tokens/s of the others", f"{found.load_tokens_s:.0f}")
            report.keep(what, first_s=first, load_tokens_s=found.load_tokens_s)


@dataclass(frozen=True, slots=True)
class Probed:
    readings: list[Reading]
    gaps: list[float]
    load_tokens_s: float
    problems: list[str]

    @property
    def shown_gaps(self) -> str:
        return milliseconds(self.gaps, 0.5, 0.99)


def probe(bench: Bench, server: Endpoint, sizes: Sizes, load: int, count: int, seed: int) -> Probed:
    """`count` probes beside `load` streams. A stream that failed is a problem, and so is a probe that was
    computed."""
    encode = bench.tokenizer.encode
    [prompt] = bench.texts([shared_stem(encode, sizes.shared, 7)])
    # Each is cached when it comes again, so that the others' prompts cost next to nothing.
    others = bench.texts(unique_prompts(encode, load, sizes.unshared, seed=3))
    found = bench.client.ask(
        "probes",
        port=server.port,
        prompt=prompt,
        count=count,
        others=others,
        load=load,
        load_tokens=sizes.load_tokens,
        seed=seed,
    )
    server.wait_idle()
    readings = [Reading(**reading) for reading in found["readings"]]
    problems = [*found["problems"], *(reading.problem for reading in readings if reading.problem is not None)]
    problems += [
        f"{reading.cached_tokens} of {reading.prompt_tokens} tokens were cached"
        for reading in readings
        if reading.problem is None and reading.cached_tokens < reading.prompt_tokens - 1
    ]
    return Probed(readings, found["gaps"], found["load_tokens_s"], problems)


def beside(load: int) -> str:
    return f"beside {load} streams" if load else "with nothing else going on"
