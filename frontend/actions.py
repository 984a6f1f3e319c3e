"""What can be queued on a branch. Each action runs on the loop when those before it have ended, or is failed
in its place.

Whatever an action promised (a variable, a future) it keeps or fails, so that nobody waits for ever.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from .choices import choose
from .errors import BackendError, InvalidCall
from .expressions import Expression, Gen, RoleBegin, RoleEnd, Select, Text
from .line import Line
from .loop import result_of
from .protocol import GenerateCall, Generated, Hint, Plain, Sampling, ScoreCall
from .report import CallReport
from .session import seed_of
from .variable import Variable

if TYPE_CHECKING:
    from .branch import Branch


class Action(Protocol):
    """`run` on the loop; `fail` in its place if the branch has failed. One of the two is called, once; `fail`
    also where `run` raised."""

    @property
    def what(self) -> str:
        """Its name in messages."""
        ...

    async def run(self, branch: Branch) -> None: ...
    def fail(self, error: BaseException) -> None: ...


@dataclass(slots=True)
class Write:
    expression: Expression

    @property
    def what(self) -> str:
        return "appending"

    async def run(self, branch: Branch) -> None:
        match self.expression:
            case Text(text, is_plain):
                branch.write(Plain(text) if is_plain else branch.plain(text), text)
            case RoleBegin(role):
                await branch.begin_role(role)
            case RoleEnd(role):
                branch.end_role(role)
            case other:
                raise InvalidCall(f"{other!r:.200} cannot be appended")

    def fail(self, error: BaseException) -> None:
        pass


@dataclass(slots=True)
class Generate:
    gen: Gen
    variable: Variable

    @property
    def what(self) -> str:
        return _called("gen", self.gen.name)

    async def run(self, branch: Branch) -> None:
        backend, line = branch.session.backend, branch.line
        sampling = branch.sampling(self.gen)
        call = GenerateCall(line.prompt(), sampling, branch.hint(), line.conversation())
        streams = branch.session.stream and sampling.n == 1
        if streams:
            found = [await self._streamed(branch, call)]
        else:
            found = await backend.generate(call)
        if len(found) != sampling.n:
            raise BackendError(f"the backend gave {len(found)} texts where {sampling.n} were asked for")
        if any(each.finish_reason == "abort" for each in found):
            raise BackendError("the call was aborted at the backend, and its text is not whole")
        first = found[0]
        branch.ledger.note(CallReport.of(self.gen.name, first, found, line.known))
        branch.take(first, shown=streams)
        if sampling.n == 1:
            self.variable.set(first.text, _meta(first))
        else:
            self.variable.set([each.text for each in found], [_meta(each) for each in found])

    async def _streamed(self, branch: Branch, call: GenerateCall) -> Generated:
        found = None
        async with aclosing(branch.session.backend.stream(call)) as deltas:
            async for delta in deltas:
                if delta.text:
                    branch.feed.add(delta.text, delta.meta)
                    self.variable.feed.add(delta.text, delta.meta)
                found = delta.done or found
        if found is None:
            raise BackendError("the stream ended without a last delta")
        return found

    def fail(self, error: BaseException) -> None:
        self.variable.fail(error)


@dataclass(slots=True)
class Choose:
    select: Select
    variable: Variable

    @property
    def what(self) -> str:
        return _called("select", self.select.name)

    async def run(self, branch: Branch) -> None:
        select, line = self.select, branch.line
        call = ScoreCall(
            line.prompt(),
            select.choices,
            branch.hint(),
            select.method.requires_unconditional_logprobs,
            line.conversation(),
        )
        scored = await branch.session.backend.score(call)
        seed = branch.session.defaults.options.get("seed")
        drawn = random.Random(None if seed is None else seed_of(seed, (*branch.path, branch.ledger.made)))
        choice = choose(
            select.method, select.choices, scored, temperature=select.temperature, uniform=drawn.random
        )
        branch.ledger.note(CallReport.of_scores(select.name, scored, line.known))
        branch.write(branch.plain(choice.text), choice.text)
        line.known = max(line.known, scored.prompt_tokens)
        self.variable.set(choice.text, choice.meta)

    def fail(self, error: BaseException) -> None:
        self.variable.fail(error)


@dataclass(slots=True)
class Fork:
    start: Future[Line]

    @property
    def what(self) -> str:
        return "the fork"

    async def run(self, branch: Branch) -> None:
        self.start.set_result(branch.line.copy())

    def fail(self, error: BaseException) -> None:
        self.start.set_exception(error)


@dataclass(slots=True)
class Begin:
    """The first action of a branch that was forked off: its parent's line, as it was there."""

    start: Future[Line]

    @property
    def what(self) -> str:
        return "the fork"

    async def run(self, branch: Branch) -> None:
        line = branch.line = (await result_of(self.start)).copy()
        branch.forked_texts, branch.forked_parts = len(line.texts), len(line.parts)
        line.solid = len(line.parts)  # a join appends what comes from here on
        branch.forked_messages, branch.forked_role = len(line.messages), line.role

    def fail(self, error: BaseException) -> None:
        pass


@dataclass(slots=True)
class Barrier:
    done: Future[None]

    @property
    def what(self) -> str:
        return "waiting"

    async def run(self, branch: Branch) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        raise AssertionError("a barrier cannot fail")


@dataclass(slots=True)
class Hold:
    """Read the prompt as it stands, and ask for its being kept. The future tells how many tokens are."""

    seconds: float
    granted: Future[int]

    @property
    def what(self) -> str:
        return "the hold"

    async def run(self, branch: Branch) -> None:
        hint = branch.hint()
        asked = Hint(hint.program_id, hint.parent_id, hint.fork_group, hold_s=self.seconds)
        line = branch.line
        sampling = Sampling(max_new_tokens=0)
        (found,) = await branch.session.backend.generate(
            GenerateCall(line.prompt(), sampling, asked, line.conversation())
        )
        branch.ledger.note(CallReport.of_hold(found, line.known))
        line.known = max(line.known, found.prompt_tokens)
        if found.held_tokens:
            branch.ledger.pinned_until = monotonic() + self.seconds
        self.granted.set_result(found.held_tokens or 0)

    def fail(self, error: BaseException) -> None:
        if not self.granted.done():
            self.granted.set_exception(error)


@dataclass(slots=True)
class Mark:
    """Where a scope begins."""

    at: int = 0

    @property
    def what(self) -> str:
        return "the scope"

    async def run(self, branch: Branch) -> None:
        self.at = len(branch.line.texts)

    def fail(self, error: BaseException) -> None:
        pass


@dataclass(slots=True)
class Capture:
    """A variable with the text since the mark."""

    mark: Mark
    variable: Variable

    @property
    def what(self) -> str:
        return "the scope"

    async def run(self, branch: Branch) -> None:
        self.variable.set("".join(branch.line.texts[self.mark.at :]))

    def fail(self, error: BaseException) -> None:
        self.variable.fail(error)


def _meta(generated: Generated) -> Mapping[str, object]:
    """Why the text ended is always among it."""
    if "finish_reason" in generated.meta:
        return generated.meta
    return {**generated.meta, "finish_reason": {"type": generated.finish_reason}}


def _called(kind: str, name: str | None) -> str:
    return f"{kind}()" if name is None else f"{kind}({name!r:.100})"
