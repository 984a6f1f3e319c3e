"""Holds: what programs keep in the cache between two calls, each until its deadline.

A program has one hold, that of its last request that asked for one, with a pin for each of its choices.
Pages under holds are counted in the cache, each once, and holds together keep at most a budget of them. As
many programs can hold the same page, the number of pins is bounded too, all in all and for each tenant. It
owns the deadlines and is given the clock; it knows neither queue nor sequences, and decides neither when time
is looked at nor when holds stand in somebody's way: the scheduler does.

What must hold: a refused hold changes nothing, the one before it stays; no hold outlives the `expire` that
follows its deadline; there are as many deadlines as programs with a hold, and no tenant without one is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from sortedcontainers import SortedSet

from ..radix.cache import PrefixCache
from ..radix.lease import Hold
from .types import Namespace

MOST_PINS = 4096
MOST_PINS_OF_A_TENANT = 1024
"""Where there are tenants: no one of them keeps the others from holding anything."""


@dataclass(frozen=True, slots=True)
class HoldStats:
    """Programs that have a hold now, and totals of pins: granted, refused (beyond the budget, or too many of
    them, or with nothing cached), and broken: ended before their time because they stood in the way."""

    programs: int
    granted: int
    refused: int
    broken: int


@dataclass(slots=True)
class _Kept:
    """The hold of one program of `tenant`: for the request `request_id`, until `deadline`."""

    tenant: str
    request_id: str
    deadline: float
    pins: list[Hold]


class Holds:
    """`budget` is in pages; `clock` gives seconds."""

    def __init__(self, cache: PrefixCache, budget: int, clock: Callable[[], float] = monotonic) -> None:
        self._cache = cache
        self._budget = budget
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._deadlines: SortedSet[tuple[float, str]] = SortedSet()
        self._pins: Counter[str] = Counter()  # by tenant
        self._granted = self._refused = self._broken = 0

    def stats(self) -> HoldStats:
        return HoldStats(len(self._kept), self._granted, self._refused, self._broken)

    @property
    def next_end(self) -> float | None:
        """The seconds until the nearest deadline, less than 0 behind it; None if there is none."""
        return self._deadlines[0][0] - self._clock() if self._deadlines else None

    def has(self, program_id: str) -> bool:
        return program_id in self._kept

    def take(
        self,
        program_id: str,
        request_id: str,
        tokens: Sequence[int],
        namespace: Namespace,
        seconds: float,
        *,
        tenant: str = "",
    ) -> int:
        """Keep what is cached of `tokens` for so long, beside other choices of the same request, in the place
        of what an earlier request held: how many tokens; 0 if refused."""
        kept = self._kept.get(program_id)
        earlier = [] if kept is None or kept.request_id == request_id else kept.pins
        pin = None
        if earlier or self._has_room(tenant):
            pin = self._cache.hold(tokens, namespace, self._budget, owner=program_id, instead_of=earlier)
        if pin is None:
            self._refused += 1
            return 0
        self._granted += 1
        pins = [] if kept is None or earlier else kept.pins
        if kept is not None:
            self._drop(program_id, kept)
        deadline = self._clock() + seconds
        self._kept[program_id] = _Kept(tenant, request_id, deadline, [*pins, pin])
        self._pins[tenant] += len(pins) + 1
        self._deadlines.add((deadline, program_id))
        return pin.tokens

    def release(self, program_id: str) -> bool:
        """Whether the program held anything."""
        kept = self._kept.get(program_id)
        if kept is None:
            return False
        self._drop(program_id, kept)
        for pin in kept.pins:
            self._cache.release_hold(pin)
        return True

    def expire(self) -> bool:
        """End those whose time is over; whether there were any."""
        if not self._deadlines:
            return False
        now, before = self._clock(), len(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now:
            self.release(self._deadlines[0][1])
        return len(self._deadlines) < before

    def give_way(self, pages: int) -> None:
        """End holds, the one with the nearest deadline first, until so many more pages can be evicted or
        there are no holds left: at least one of them."""
        assert self._deadlines, "there is a hold that could give way"
        aim = self._cache.evictable_pages + pages
        while self._deadlines:
            program_id = self._deadlines[0][1]
            self._broken += len(self._kept[program_id].pins)
            self.release(program_id)
            if self._cache.evictable_pages >= aim:
                break

    def release_all(self) -> None:
        for program_id in list(self._kept):
            self.release(program_id)

    def _has_room(self, tenant: str) -> bool:
        """For one more pin. Who has no tenant is alone, or all are one."""
        full = tenant != "" and self._pins[tenant] >= MOST_PINS_OF_A_TENANT
        return not full and self._pins.total() < MOST_PINS

    def _drop(self, program_id: str, kept: _Kept) -> None:
        del self._kept[program_id]
        self._deadlines.discard((kept.deadline, program_id))
        self._pins[kept.tenant] -= len(kept.pins)
        if not self._pins[kept.tenant]:
            del self._pins[kept.tenant]
