"""The scheduling policy: one pure function from frozen views to a decision.

It owns every rule about order, fairness, preemption and the token budget. It knows no queue, no cache, no
clock and no device: lengths, matches and page counts are in the views, age is counted in steps. The same
views always give the same decision, so a rule can be tested by writing down the situation it is about.

What must hold: a decision never exceeds the budget; with anything to run it lets something run or
preempts one sequence (the caller applies that and asks again with new views), and preempting ends, since
the most senior running sequence is never a victim while it is not outranked.

A sequence takes pages chunk by chunk, but it is admitted only if its whole prompt fits beside what the
running ones have still to take: `reserved` pages are free now and are kept from admissions. They are not
kept from running rows, which would only preempt sooner. So prefills alone never run each other out of
pages; decoding can, and then the least senior gives way.

Pages that holds keep are neither free nor evictable: a hold is a promise, and whoever runs is preempted, and
whoever waits goes on waiting for those who run, before it is broken. It is broken where nothing else will
help: for a sequence that runs alone, for prefills, which had their pages reserved, for the next in turn when
nothing runs, and for one that would not fit beside the holds even then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .types import Namespace, SequenceKey

Policy = Literal["cache-aware", "fcfs"]

# Longest match first lets a stream of hot prompts pass a cold one for ever. After this many steps in which
# a later arrival went ahead, the passed-over one goes first. About the length of one long prefill in chunks:
# short for the one who waits, long enough to keep runs of prompts with a common prefix together.
AGE_LIMIT = 32


class RunningView(NamedTuple):
    """A running sequence. `remaining` tokens are to be computed before its next token is chosen. `pages` is
    what it holds, `growth` the most it takes in this step, `reserved` what it takes after that for the rest
    of them: together the most that preempting it can give to others. `prefills` says that it publishes what
    it computes as it goes, so that others may wait for it. `group` names those it was forked with, if any."""

    key: SequenceKey
    priority: int
    arrival: int
    namespace: Namespace
    tokens: list[int]
    computed: int
    remaining: int
    pages: int
    growth: int
    reserved: int
    prefills: bool
    group: str = ""


class WaitingView(NamedTuple):
    """A candidate. `cached` tokens of it are in the cache; admitting it makes `pages` pages unavailable
    (those that its match pins, and fresh ones, taken now or later, for the rest of its tokens and the next)
    and leaves `remaining` tokens to compute. `own_pages` is set for a member of a batch, which has the best
    order there is: the pages it needs beside those that it shares with the member before it."""

    key: SequenceKey
    priority: int
    arrival: int
    namespace: Namespace
    tokens: list[int]
    cached: int
    remaining: int
    pages: int
    preempted: bool
    passed_over: int
    own_pages: int | None = None
    group: str = ""


class Budget(NamedTuple):
    """What one step may use: tokens, running sequences, pages (free or evictable). `above` is set in a step
    that preempted something: only a higher priority than that is admitted then, or the victim's pages would
    go to someone behind it. `shares` is False without a prefix cache: nobody waits for anybody. `idle_held`
    pages are kept by nothing but holds, and `beside_holds` are all that no hold keeps, in use or not."""

    tokens: int
    slots: int
    pages: int
    page_size: int
    shares: bool = True
    above: int | None = None
    idle_held: int = 0
    beside_holds: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Either `preempt` names one sequence, or holds have to give way for `give_way` pages, and nothing else
    is decided; or `rows` and `admit` say how many tokens each running and each new sequence computes.
    `blocked`: the next in turn lacks pages."""

    rows: tuple[tuple[SequenceKey, int], ...] = ()
    admit: tuple[tuple[SequenceKey, int], ...] = ()
    preempt: SequenceKey | None = None
    give_way: int = 0
    blocked: bool = False


class _Prefill(NamedTuple):
    """A prefill that this step works on: tokens[:computed] are published, the rest of them will be."""

    priority: int
    namespace: Namespace
    tokens: list[int]
    computed: int


def decide(
    policy: Policy, running: Sequence[RunningView], waiting: Sequence[WaitingView], budget: Budget
) -> Decision:
    """Everyone who decodes gets one token. The rest goes to prefills by priority, and among equals to the
    running ones first, then to admissions in turn.

    If the running ones need more pages in this step than there are, the least senior of them is preempted.
    Who was forked together comes in turn together, see `_in_turn`.
    """
    seniors = sorted(running, key=_seniority)
    growth = sum(view.growth for view in seniors)
    if growth > budget.pages:
        if budget.idle_held and (len(seniors) == 1 or all(view.prefills for view in seniors)):
            return Decision(give_way=growth - budget.pages)
        assert len(seniors) > 1, "a sequence that runs alone always finds its next page"
        return Decision(preempt=seniors[-1].key)
    step = _Step(seniors, budget, budget.pages - growth - sum(view.reserved for view in seniors))
    for view in _in_turn(policy, seniors, waiting):
        step.continue_prefills(view.priority)
        if step.waits(view):
            step.keep_room(view)
            continue
        if step.spoils(view):
            return step.decision()
        if (pages := step.lacks_of_holds(view)) > 0:
            return Decision(give_way=pages)
        if not step.has_room(view):
            victim = step.outranked_by(view)
            if victim is not None:
                return Decision(preempt=victim)
            return step.decision(blocked=not step.fits(view))
        step.admit(view)
    return step.decision()


class _Step:
    """A decision in the making: what is left of the budget, and who got what. `pages` are those that may go
    to admissions: less than none where decoding has taken what a prefill had reserved."""

    def __init__(self, seniors: list[RunningView], budget: Budget, pages: int) -> None:
        self._seniors = seniors
        self._budget = budget
        self._rows = [(view.key, 1) for view in seniors if view.remaining == 1]
        self._admitted: list[tuple[SequenceKey, int]] = []
        self._tokens = budget.tokens - len(self._rows)
        self._slots = budget.slots - len(seniors)
        self._pages = pages
        self._kept = self._kept_slots = 0
        self._groups = {_group_of(view) for view in seniors if view.group}
        self._continuing = deque(view for view in seniors if view.remaining > 1)
        self._prefills = [
            _Prefill(v.priority, v.namespace, v.tokens, v.computed) for v in seniors if v.prefills
        ]
        assert self._tokens >= 0, "there are never more running sequences than tokens in a step"

    def continue_prefills(self, priority: int | None = None) -> None:
        """Give tokens to the running prefills of at least that priority, to all if it is None."""
        continuing = self._continuing
        while continuing and self._tokens and (priority is None or continuing[0].priority >= priority):
            view = continuing.popleft()
            self._rows.append((view.key, self._take(view.remaining)))

    def waits(self, view: WaitingView) -> bool:
        """Whether a prefill of this step is about to compute what `view` would have to compute itself."""
        return self._budget.shares and any(
            _will_publish(prefill, view, self._budget.page_size) for prefill in self._prefills
        )

    def keep_room(self, view: WaitingView) -> None:
        """It waits for a prefill. For a member of a batch are kept the pages it will need beside another of
        its subtree; for one whose sibling runs, a slot, or the siblings would begin one after the other."""
        self._kept += view.own_pages or 0
        self._kept_slots += view.group != "" and _group_of(view) in self._groups

    def spoils(self, view: WaitingView) -> bool:
        """Whether a member of a batch, admitted ahead of those that wait, would lack room beside all of them:
        then they or the others of its own subtree would find gone what they share."""
        return view.own_pages is not None and self._kept > 0 and self._kept + view.pages > self._pages

    def fits(self, view: WaitingView) -> bool:
        """No lease is left when nothing runs, and whatever was accepted fits into an empty pool."""
        return view.pages <= self._pages or not (self._seniors or self._admitted)

    def has_room(self, view: WaitingView) -> bool:
        return self._may_begin(view) and self.fits(view)

    def _may_begin(self, view: WaitingView) -> bool:
        above = self._budget.above
        in_turn = above is None or view.priority > above
        return self._slots > self._kept_slots and self._tokens > 0 and in_turn

    def lacks_of_holds(self, view: WaitingView) -> int:
        """The pages that holds have to give up for `view`, where they alone stand in its way."""
        missing = view.pages - self._pages
        if missing <= 0 or not self._budget.idle_held or not self._may_begin(view):
            return 0
        if self._seniors or self._admitted:
            in_the_way = missing <= self._budget.idle_held and view.pages > self._budget.beside_holds
            return missing if in_the_way else 0
        return missing

    def outranked_by(self, view: WaitingView) -> SequenceKey | None:
        """The least senior running sequence of a lower priority, if all of them can give what `view` lacks.

        Nobody is preempted for tokens: prefills of a lower priority stand back anyway."""
        lower = [other for other in self._seniors if other.priority < view.priority]
        missing = view.pages - self._pages
        given = sum(other.pages + other.growth + other.reserved for other in lower)
        helps = lower and (self._slots == 0 or missing > 0) and missing <= given
        return lower[-1].key if helps else None

    def admit(self, view: WaitingView) -> None:
        self._admitted.append((view.key, self._take(view.remaining)))
        self._prefills.append(_Prefill(view.priority, view.namespace, view.tokens, view.cached))
        if view.group:
            self._groups.add(_group_of(view))
        self._slots -= 1
        self._pages -= view.pages

    def decision(self, *, blocked: bool = False) -> Decision:
        self.continue_prefills()
        return Decision(tuple(self._rows), tuple(self._admitted), blocked=blocked)

    def _take(self, wanted: int) -> int:
        count = min(wanted, self._tokens)
        self._tokens -= count
        return count


def _seniority(view: RunningView) -> tuple[int, int]:
    return (-view.priority, view.arrival)


def _will_publish(prefill: _Prefill, view: WaitingView, page_size: int) -> bool:
    """Whether `prefill` is about to compute at least a page that continues what `view` finds cached.

    Nobody waits for a lower priority, which itself may have to wait for others."""
    end = view.cached + page_size
    return (
        prefill.priority >= view.priority
        and prefill.computed < end <= len(view.tokens)
        and prefill.tokens[view.cached : end] == view.tokens[view.cached : end]
        and prefill.namespace == view.namespace
        and prefill.tokens[: view.cached] == view.tokens[: view.cached]
    )


_Rank = tuple[int, int, int, int]


def _in_turn(
    policy: Policy, running: Sequence[RunningView], waiting: Sequence[WaitingView]
) -> list[WaitingView]:
    """The candidates as they come in turn: each by itself, but those that were forked together right behind
    the first of them, or, if one of them runs, where that stands: by arrival at its place, by match before
    all who had no turn yet. While somebody was passed over too often, order of arrival is just that."""
    own = _by_arrival if policy == "fcfs" else _by_match
    if not any(view.group for view in waiting):
        return sorted(waiting, key=own)
    strict = {v.priority for v in waiting if policy == "fcfs" and v.passed_over >= AGE_LIMIT}
    forked = [view for view in waiting if view.group and view.priority not in strict]
    firsts: dict[_Group, _Rank] = {}
    ranks = [(_group_of(view), (-view.priority, 1, 0, view.arrival)) for view in running if view.group]
    for group, rank in ranks + [(_group_of(view), own(view)) for view in forked]:
        firsts[group] = min(rank, firsts.get(group, rank))
    places = {view.key: firsts[_group_of(view)] for view in forked}
    return sorted(waiting, key=lambda view: (places.get(view.key, own(view)), own(view)))


_Group = tuple[int, Namespace, str]


def _group_of(view: RunningView | WaitingView) -> _Group:
    return view.priority, view.namespace, view.group


def _by_arrival(view: WaitingView) -> _Rank:
    """Who had a turn before goes on first: a sibling may have had it ahead of those who arrived before it."""
    return (-view.priority, 0 if view.preempted else 1, 0, view.arrival)


def _by_match(view: WaitingView) -> _Rank:
    """Longest match first, but behind those that had a turn before or were passed over too often. A batch
    keeps its order."""
    if view.preempted or view.passed_over >= AGE_LIMIT:
        return (-view.priority, 0, 0, view.arrival)
    return (-view.priority, 2, 0 if view.own_pages is not None else -view.cached, view.arrival)
