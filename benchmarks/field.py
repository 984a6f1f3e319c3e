"""Everybody who takes part, started once and stopped but for the one whose turn it is; and what was measured.

A workload asks the field for turns: repeat after repeat, each contender once, so that what slows the machine
for a while strikes all of them. A contender that fails is out of that workload, and the report says why.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from common import Report, say
from peers.base import Contender, PeerFailed
from peers.child import Unavailable

OURS = "ours"
SLOW = 45.0
"""Seconds after which a repeat is the last one of its contender in that workload."""


def label(contender: Contender) -> str:
    return f"{contender.name} {contender.row}"


@dataclass(slots=True)
class Line:
    """One line of the table of speeds: every repeat of each contender, and what the machine allows."""

    name: str
    unit: str
    repeats: dict[str, list[float]] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

    def add(self, contender: Contender, value: float) -> None:
        self.repeats.setdefault(label(contender), []).append(value)
        say(f"  {self.name}, {label(contender)}: {value:.1f} {self.unit}")

    def median(self, of: str) -> float | None:
        return statistics.median(self.repeats[of]) if self.repeats.get(of) else None


class Field:
    """The contenders of a run. Use it as a context manager: all processes end with it."""

    def __init__(self, report: Report, contenders: Sequence[Contender]) -> None:
        self.report = report
        self.there: list[Contender] = []
        self.lines: list[Line] = []
        self.wrong: set[str] = set()
        self.not_exact: set[str] = set()
        self.unproven = {"int8"}
        self._waiting = contenders

    def __enter__(self) -> Field:
        try:
            for contender in self._waiting:
                self._start(contender)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for contender in self.there:
            contender.stop()
        self.there = []

    def _start(self, contender: Contender) -> None:
        try:
            started = contender.start()
        except (Unavailable, PeerFailed) as error:
            contender.stop()
            self.report.note(f"{label(contender)}", f"row not available: {error}")
            self.report.keep(label(contender), unavailable=str(error))
            return
        except BaseException:
            contender.stop()
            raise
        contender.pause()
        self.there.append(contender)
        text = f"{started.version}, loaded and compiled in {started.load_s:.1f} s"
        self.report.note(label(contender), text, started.load_s)
        self.report.keep(label(contender), exact=contender.exact, **_plain(started))

    @property
    def peers(self) -> list[Contender]:
        return [contender for contender in self.there if contender.name != OURS]

    def ours(self, row: str) -> Contender | None:
        return next((c for c in self.there if c.name == OURS and c.row == row), None)

    def line(self, name: str, unit: str = "tokens/s") -> Line:
        self.lines.append(Line(name, unit))
        return self.lines[-1]

    @contextmanager
    def turn(self, contender: Contender) -> Iterator[Contender]:
        """Only this one runs."""
        gc.collect()
        contender.resume()
        try:
            yield contender
        finally:
            contender.pause()

    def rounds(self, who: Sequence[Contender], repeats: int, run: Callable[[Contender, int], None]) -> None:
        """`run(contender, repeat)` for each of them, in turns. Repeat -1 is the warm-up.

        Whoever takes longer than SLOW for a repeat has no further one.
        """
        out: set[str] = set()
        for repeat in range(-1, repeats):
            for contender in who:
                if label(contender) in out:
                    continue
                start = perf_counter()
                try:
                    with self.turn(contender):
                        run(contender, repeat)
                except (PeerFailed, Unavailable, OSError) as error:
                    out.add(label(contender))
                    self.report.note(f"{label(contender)} failed", f"left out here: {error}")
                if repeat >= 0 and perf_counter() - start > SLOW:
                    out.add(label(contender))

    def best(self, line: Line, *, exact: bool) -> tuple[str, float] | None:
        """The fastest peer row whose results are right; of the exact rows only, if asked."""
        found = [
            (label(peer), median)
            for peer in self.peers
            if label(peer) not in self.wrong
            if not exact or (peer.exact and label(peer) not in self.not_exact)
            for median in [line.median(label(peer))]
            if median is not None
        ]
        return max(found, key=lambda pair: pair[1], default=None)

    def over_best(self, line: Line, row: str, least: float, *, exact: bool) -> None:
        """The figure: our row over the best row of a peer."""
        who = "best exact row of a peer" if exact else "best peer"
        name = f"{line.name}: {row} of ours over the {who}"
        mine, best = line.median(f"{OURS} {row}"), self.best(line, exact=exact)
        if mine is None or best is None or f"{OURS} {row}" in self.wrong:
            missing = who if best is None else f"{OURS} {row} that counts"
            self.report.note(name, f"not measured, at least {least:.3g} x asked: no {missing}")
            return
        name = f"{name} ({best[0]}, {best[1]:.1f})"
        if row in self.unproven:
            text = f"{mine / best[1]:.2f} x, does not count: its quality was not measured in this run"
            self.report.note(name, text, mine / best[1])
        else:
            self.speed(name, mine / best[1], least)

    def speed(self, name: str, times: float, least: float) -> None:
        """A ratio of speeds, which a quick run prints and does not judge."""
        if self.report.options.quick:
            self.report.note(name, f"{times:.2f} x, a quick run: at least {least:.3g} x is not judged", times)
        else:
            self.report.at_least(name, times, least, "x")


def _plain(started: object) -> dict[str, object]:
    return {name: getattr(started, name) for name in ("version", "load_s", "notes")}
