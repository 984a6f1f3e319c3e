"""Group: the branches of one fork, and the ways to join them. A join takes no thread: it is an action of the
parent's, which waits for barriers of the children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .branch import Branch
from .errors import BranchFailed, Cancelled, InvalidCall
from .expressions import Appendable
from .loop import result_of, wait_for
from .session import Ledger, Session
from .variable import Variable

if TYPE_CHECKING:
    from .state import ProgramState


# -- modes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gather:
    """Each variable that children set becomes a list in the parent; a child that failed gives None."""


@dataclass(frozen=True, slots=True)
class Append:
    """The texts of the children since the fork are appended, in order; a child that failed adds none."""


@dataclass(frozen=True, slots=True)
class KOfN:
    """The first k children that succeed; the others are cancelled."""

    k: int


@dataclass(frozen=True, slots=True)
class First:
    """The first child that succeeds: its variables become the parent's as they are; the others are
    cancelled."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The value of `name` that most children give, by `key`; the others are cancelled once nothing can change
    it. Among values with as many votes, that of the earliest child."""

    name: str
    key: Callable[[object], Hashable]


Mode: TypeAlias = Gather | Append | KOfN | First | Vote

first = First()
gather_variable = Gather()
concate_and_append = Append()


def k_of_n(k: int) -> KOfN:
    """Join with the first k that succeed: each variable becomes a list, in the order of the children."""
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise InvalidCall(f"k_of_n needs an integer of at least 1, got {k!r}")
    return KOfN(k)


def vote(name: str, key: Callable[[object], Hashable] | None = None) -> Vote:
    """Join by the most common value of a variable; `key` says what counts as the same (text without the space
    around it, if it is not given)."""
    if not isinstance(name, str) or not name:
        raise InvalidCall(f"vote needs the name of a variable, got {name!r}")
    return Vote(name, key or _stripped)


_BY_NAME: dict[str, Mode] = {
    "gather_variable": gather_variable,
    "concate_and_append": concate_and_append,
    "concatenate_and_append": concate_and_append,
    "first": first,
}


def _stripped(value: object) -> Hashable:
    return value.strip() if isinstance(value, str) else repr(value)


def as_mode(value: object, count: int) -> Mode:
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, KOfN) and value.k > count:
        raise InvalidCall(f"k_of_n({value.k}) cannot be had of {count} branches")
    if isinstance(value, Gather | Append | KOfN | First | Vote):
        return value
    raise InvalidCall(f"join takes {', '.join(_BY_NAME)}, k_of_n(k) or vote(name), got {value!r:.200}")


# -- the group -----------------------------------------------------------------------------------------


class Group:
    """The children of one fork, which can be indexed, iterated and appended to."""

    def __init__(self, parent: Branch, states: list[ProgramState]) -> None:
        self._parent = parent
        self._states = states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __getitem__(self, index: int) -> ProgramState:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """For `forks[i] += ...`, which puts back what it took."""
        if self._states[index] is not state:
            raise InvalidCall("a branch of a group cannot be replaced")

    def __iadd__(self, other: Appendable | Callable[[int], Appendable]) -> Group:
        """A text or expression for all, a list with one for each, or a function of the index."""
        if isinstance(other, list | tuple):
            if len(other) != len(self):
                raise InvalidCall(
                    f"a list for a group of {len(self)} must have as many items, got {len(other)}"
                )
            each = list(other)
        elif callable(other):
            each = [other(index) for index in range(len(self))]
        else:
            each = [other] * len(self)
        for state, item in zip(self._states, each, strict=True):
            state.append(item)
        return self

    def join(self, mode: object = "gather_variable") -> Joined:
        """Bring the children back: see the modes. What it brings is there when it is read; to wait for the
        join itself, `wait()` or await what this returns."""
        action = Join([state.branch for state in self._states], as_mode(mode, len(self)))
        action.announce(self._parent)
        self._parent.submit(action)
        return Joined(action, self._parent.session, self._parent.ledger)

    def cancel(self) -> None:
        """Give the children up: what they run is aborted and their pages are free within a step."""
        given_up = Cancelled("this branch was cancelled: its group was given up")
        self._parent.session.cancel(given_up, [state.branch for state in self._states])


class Joined:
    """A join under way. `winners`, once it is done, are the indexes of the children it was made of."""

    def __init__(self, action: Join, session: Session, ledger: Ledger) -> None:
        self._action, self._session, self._ledger = action, session, ledger
        self._is_known = False

    def wait(self) -> list[int]:
        """The winners. Raises what prevented the join."""
        is_known = self._is_known or self._session.is_settled(self._ledger)
        return wait_for(self._action.done, "the join", is_known=is_known)

    @property
    def winners(self) -> list[int]:
        return self.wait()

    def __await__(self):  # type: ignore[no-untyped-def]
        return self._awaited().__await__()

    async def _awaited(self) -> list[int]:
        try:
            return await result_of(self._action.done)
        finally:
            self._is_known = self._action.done.done()


@dataclass(slots=True)
class Join:
    """The parent's action. It brings what the children had set, or were about to set, when it was asked for:
    `owned` are the variables of each child, `announced` those that the parent gets."""

    children: list[Branch]
    mode: Mode
    done: Future[list[int]] = field(default_factory=Future)
    barriers: list[Future[None]] = field(default_factory=list)
    owned: list[dict[str, Variable]] = field(default_factory=list)
    announced: dict[str, Variable] = field(default_factory=dict)

    def announce(self, parent: Branch) -> None:
        """Raises InvalidCall for a vote on what a child does not have."""
        if isinstance(self.mode, Vote):
            self.owned = [_ballot(self.mode.name, place, child) for place, child in enumerate(self.children)]
        elif not isinstance(self.mode, Append):
            self.owned = [child.own_variables() for child in self.children]
        self.barriers = [child.barrier() for child in self.children]
        names = dict.fromkeys(name for each in self.owned for name in each)
        self.announced = {name: parent.declare(name) for name in names}

    @property
    def what(self) -> str:
        return "the join"

    async def run(self, branch: Branch) -> None:
        children = self.children
        winners = await self._winners()
        if not isinstance(self.mode, Gather | Append):
            won = set(winners)
            losers = [child for place, child in enumerate(children) if place not in won]
            had = "this branch was cancelled: the join that it was forked for had what it needed"
            branch.session.cancel(Cancelled(had), losers)
        if isinstance(self.mode, Append):
            for place in winners:  # the parent may go on just where a child was, so none is done with
                _append(branch, children[place])
        else:
            self._bring(winners)
            branch.session.end([children[place].ledger for place in winners], "done")
        self._forget()
        self.done.set_result(winners)

    def fail(self, error: BaseException) -> None:
        for variable in self.announced.values():
            variable.fail(error)
        self.done.set_exception(error)
        if self.children:
            self.children[0].session.cancel(error, self.children)
        self._forget()

    def _forget(self) -> None:
        """Whoever has a join that is over does not keep the branches."""
        self.children, self.barriers, self.owned = [], [], []

    async def _winners(self) -> list[int]:
        """Those that the join is made of, as soon as that is certain."""
        mode, count = self.mode, len(self.children)
        ended: asyncio.Queue[int] = asyncio.Queue()
        for place, barrier in enumerate(self.barriers):  # all are done on this loop
            barrier.add_done_callback(lambda _, place=place: ended.put_nowait(place))  # type: ignore[misc]
        poll = Poll()
        good: list[int] = []
        for still_open in reversed(range(count)):
            place = await ended.get()
            if self.children[place].error is None:
                good.append(place)
                if isinstance(mode, Vote):
                    poll.count(place, mode.key(_value(self.owned[place][mode.name])))
            if isinstance(mode, First) and good:
                return good
            if isinstance(mode, KOfN) and len(good) == mode.k:
                return sorted(good)
            if isinstance(mode, Vote) and (leader := poll.winner(still_open)) is not None:
                return [leader]
        needed = mode.k if isinstance(mode, KOfN) else 1
        if not isinstance(mode, Gather | Append) and len(good) < needed:
            causes = [child.error for child in self.children if child.error is not None]
            message = f"{len(good)} of {count} branches succeeded, {needed} needed"
            raise BranchFailed(f"{message}; the first that failed: {causes[0]}") from causes[0]
        return sorted(good)

    def _bring(self, winners: list[int]) -> None:
        """Set the variables of the parent. A child that failed, or did not set one, gives None."""
        won = set(winners)
        for name, target in self.announced.items():
            found = [each.get(name) if place in won else None for place, each in enumerate(self.owned)]
            if isinstance(self.mode, KOfN):
                found = [found[place] for place in winners]
            metas = [{} if each is None else each.meta for each in found]
            target.reader = next((each.reader for each in found if each is not None), None)
            if isinstance(self.mode, First | Vote):
                target.set(_value(found[winners[0]]), metas[winners[0]])
            else:
                target.set([_value(each) for each in found], metas)  # type: ignore[arg-type]  # of n > 1: lists


def _ballot(name: str, place: int, child: Branch) -> dict[str, Variable]:
    found = child.variables.get(name)
    if found is None:
        known = ", ".join(sorted(child.variables)) or "none"
        raise InvalidCall(f"vote({name!r}): branch {place} has no such variable; its variables are {known}")
    return {name: found}


@dataclass(slots=True)
class _Candidate:
    votes: int
    place: int
    """Of the earliest child that gave it."""


class Poll:
    """The votes so far, counted as they come: the leader, and how many the next one has."""

    def __init__(self) -> None:
        self._candidates: dict[Hashable, _Candidate] = {}
        self._leader: _Candidate | None = None
        self._second = 0

    def count(self, place: int, vote: Hashable) -> None:
        one = self._candidates.setdefault(vote, _Candidate(0, place))
        one.votes, one.place = one.votes + 1, min(one.place, place)
        leader = self._leader
        if leader is None or one is leader:
            self._leader = one
        elif (one.votes, -one.place) > (leader.votes, -leader.place):
            self._leader, self._second = one, leader.votes
        else:
            self._second = max(self._second, one.votes)

    def winner(self, still_open: int) -> int | None:
        """The earliest child with the vote that wins, once none that is still open can change that."""
        leader = self._leader
        if leader is None or (still_open and leader.votes <= self._second + still_open):
            return None
        return leader.place


def _value(variable: Variable | None) -> object:
    if variable is None or not variable.future.done() or variable.future.exception() is not None:
        return None
    return variable.future.result()


def _append(parent: Branch, child: Branch) -> None:
    """The text of the child since the fork, its ids as they are. Raises InvalidCall."""
    line, role = child.line, child.forked_role
    ended = child.line.messages[child.forked_messages :]
    if line.role != role or (role is not None and ended):
        raise InvalidCall(
            f"concate_and_append takes branches that end where they began, in {_place_of(role)}; one "
            f"ended in {_place_of(line.role)}"
        )
    parent.line.parts += line.parts[child.forked_parts :]
    loose = parent.line.loose or line.loose
    for text in line.texts[child.forked_texts :]:
        parent.write(None, text)
    parent.line.loose = loose  # text of whole messages is none that stands outside of them
    parent.line.messages += ended


def _place_of(role: str | None) -> str:
    return "no block" if role is None else f"the {role} block"
