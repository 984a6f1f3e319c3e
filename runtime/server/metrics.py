"""ServerMetrics: what is counted of a server's requests, and told together with the engine's own figures.

It is the service's watcher. Counting takes a few microseconds an event. Neither it nor telling waits for
anybody: the engine's figures are those after its last step. It lives in one event loop and needs no lock.
What is told under which name is in metric_families.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

from ..errors import InvalidInput
from ..prefix_history import PrefixHistory, Trail
from ..types import Event
from .engine_face import EngineFace
from .failures import TookTooLong
from .metric_families import End, Tallies, of_engine, of_requests
from .service import Job

_PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class ServerMetrics:
    """`model` is the name that clients see, by default the engine's; `clock` tells seconds."""

    def __init__(
        self, engine: EngineFace, model: str | None = None, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._engine = engine
        self._model = engine.info.model if model is None else model
        self._clock = clock
        self._tallies = Tallies()
        self._history = PrefixHistory()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def arrived(self, job: Job) -> JobWatch:
        self._tallies.arrived += 1
        return JobWatch(job, self._tallies, self._history, self._clock)

    @property
    def tallies(self) -> Tallies:
        return self._tallies

    def turned_away(self, job: Job) -> None:
        self._tallies.turned_away += 1

    def replied(self, status: int) -> None:
        """A request over HTTP has been answered so."""
        replies = self._tallies.replies
        replies[status] = replies.get(status, 0) + 1

    def render(self) -> tuple[bytes, str]:
        """All figures as Prometheus reads them, and the type of that content."""
        return generate_latest(self._registry), _PLAIN_TEXT

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for."""
        stats, pulse = self._engine.snapshot(), self._engine.pulse()
        yield from of_requests(self._tallies, self._model)
        yield from of_engine(stats, pulse, self._engine.info, self._model, self._tallies.open_choices)


class JobWatch:
    """Counts one job: the service tells it of every event, and of the end."""

    __slots__ = (
        "_arrived",
        "_begun",
        "_choices",
        "_clock",
        "_history",
        "_job",
        "_open",
        "_speaks",
        "_tallies",
        "_trail",
    )

    def __init__(
        self, job: Job, tallies: Tallies, history: PrefixHistory, clock: Callable[[], float]
    ) -> None:
        self._job, self._tallies, self._history, self._clock = job, tallies, history, clock
        self._arrived = clock()
        scored = len(job.continuations)
        self._open = scored + (scored > 1) or job.sampling.n  # beside several, what they share has an end too
        self._begun = self._speaks = False  # an event has come, a token has come
        self._trail: Trail | None = None  # of the prompt, once it is computed
        self._choices: dict[int, _Choice] = {}
        tallies.open_choices += self._open

    def event(self, event: Event) -> None:
        now, tallies = self._clock(), self._tallies
        if not self._begun:
            self._begun = True
            self._begin(event)
        tokens = event.token_ids
        if tokens:
            tallies.generated_tokens += len(tokens)
            choice = self._choices.get(event.index)
            if choice is None:
                if not self._speaks:
                    self._speaks = True
                    tallies.first_token.add(now - self._arrived)
                self._choices[event.index] = _Choice(now, tokens)
            else:
                tallies.between_tokens.add(now - choice.latest)
                choice.go_on(now, tokens)
        if event.finish_reason is not None:
            self._end(event.index, event.finish_reason)
            if self._job.continuations:
                self._remember_scored(event)
            else:
                tallies.output_sizes.add(event.completion_tokens)

    def over(self, cause: BaseException | None) -> None:
        if not self._open:
            self._tallies.whole.add(self._clock() - self._arrived)
        for index in list(self._choices):
            self._remember(index)
        if self._open:
            self._count_ends(_end_by(cause), self._open)

    # -- inside ------------------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        """The first event: the prompt has been computed, unless that is what went wrong."""
        tallies, prompt = self._tallies, self._job.prompt_ids
        if event.waited_s is not None:
            tallies.queued.add(event.waited_s)
        if event.finish_reason in ("abort", "error"):
            return
        self._trail = self._history.enter((self._job.tenant, self._job.salt), prompt)
        known, hit = self._trail.known, event.cached_tokens
        tallies.prompt_sizes.add(len(prompt))
        tallies.prompt_tokens += len(prompt)
        tallies.hit_tokens += hit
        # Known are whole runs only: what was hit beyond them, a cache that never forgets would hit too.
        tallies.optimal_hit_tokens += max(known, hit)
        tallies.recomputed_tokens += max(0, known - hit)

    def _remember_scored(self, last: Event) -> None:
        if self._trail is not None and last.index >= 0 and last.finish_reason not in ("abort", "error"):
            rest = self._job.prompt_ids[self._trail.length :]
            self._history.go_on(self._trail, rest + self._job.continuations[last.index][:-1])

    def _end(self, index: int, reason: End) -> None:
        if reason == "error":
            self._choices.pop(index, None)  # nothing of it is cached
        else:
            self._remember(index)
        self._count_ends(reason, 1)

    def _count_ends(self, reason: End, count: int) -> None:
        self._open -= count
        self._tallies.open_choices -= count
        self._tallies.ends[reason] += count

    def _remember(self, index: int) -> None:
        """What a choice wrote is known from here on, but for its last tokens: they were never computed."""
        choice, trail = self._choices.pop(index, None), self._trail
        if choice is not None and trail is not None:
            rest = self._job.prompt_ids[trail.length :]
            self._history.go_on(trail, rest + tuple(choice.computed))


class _Choice:
    """When tokens of a choice came last, and those before them."""

    __slots__ = ("_last", "computed", "latest")

    def __init__(self, now: float, tokens: tuple[int, ...]) -> None:
        self.latest = now
        self.computed: list[int] = []
        self._last = tokens

    def go_on(self, now: float, tokens: tuple[int, ...]) -> None:
        self.latest = now
        self.computed += self._last
        self._last = tokens


def _end_by(cause: BaseException | None) -> End:
    """How choices ended that had no terminal event."""
    if isinstance(cause, InvalidInput):
        return "refused"
    if isinstance(cause, TookTooLong):
        return "timeout"
    return "error" if isinstance(cause, Exception) else "abort"
