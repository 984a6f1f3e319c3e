"""Branch: one line of text with its variables, and the work that is still to be done on it, in order.

A state of a program is a branch; a fork makes new ones. `submit` may be called from any thread and returns at
once; the actions run one after the other on the loop. The first failure ends a branch: what comes after it
fails with the same cause, and never hides it.

There is no lock: `submit` may run inside of itself, where Python collects a generator that was left in a
block and whose end appends. So each step is one that nothing can come between, such as taking the only token.

What must hold: every submitted action ends, in success or in failure; the texts joined are the branch's text,
and `parts` stand for exactly that text; a value that was read never changes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import cast

from .actions import Action, Barrier, Begin, Choose, Fork, Generate, Write
from .errors import BranchFailed, Cancelled, InvalidCall, ProgramError, TimedOut, UnknownVariable
from .expressions import Chain, Expression, Gen, Select, Text, a_block
from .line import Line
from .loop import is_here, the_loop
from .options import FORMS, OF_SCHEMAS
from .placeholders import refuse_placeholders, texts_of_value
from .protocol import Generated, Hint, Part, Plain, Sampling
from .session import Ledger, Session, seed_of
from .types import Reader
from .variable import Feed, Variable

_IN_A_ROW = 100
"""Actions of a branch, most of which take a few microseconds, before others are looked at."""


class Branch:
    """`path` tells its place in the tree of forks; the root's is empty."""

    def __init__(
        self, session: Session, path: tuple[int, ...] = (), parent: Branch | None = None, group: str = ""
    ) -> None:
        self.session = session
        self.path = path
        self.is_root = parent is None
        self.parent_id = "" if parent is None else parent.ledger.program_id
        self.group = group
        self.line = Line()
        self.variables: dict[str, Variable] = {} if parent is None else dict(parent.variables)
        self.inherited: dict[str, Variable] = dict(self.variables)
        self.feed = Feed()
        self.error: BaseException | None = None
        self._fork_numbers = count(1)
        self.submitted = 0  # actions so far
        self.forked_texts = self.forked_parts = self.forked_messages = 0
        self.forked_role: str | None = None
        self._cause = ""  # of the error, in words
        self._queue: deque[Action] = deque()
        self._idle = [True]  # a token; who takes it starts the task, which puts it back at its end
        self._acting = False  # an action runs
        self._task: asyncio.Task[None] | None = None
        self.ledger: Ledger = session.adopt(self, None if parent is None else parent.ledger)

    @property
    def program_id(self) -> str:
        """What the backend knows it by."""
        return self.ledger.program_id

    # -- from any thread -------------------------------------------------------------------------------

    def submit(self, action: Action) -> None:
        self.ledger.settled = self.session.is_over = False
        self.submitted += 1
        self._queue.append(action)
        self._wake()

    def _wake(self) -> None:
        try:
            self._idle.pop()
        except IndexError:
            return
        self.session.active.add(self)
        if is_here():
            self._start()
        else:
            the_loop().call_soon_threadsafe(self._start)

    def append(self, expression: Expression) -> None:
        """Queue an expression; the variables that it sets are known from now on. Raises InvalidCall for what
        holds a placeholder of a trace."""
        if isinstance(expression, Chain):
            for item in expression.items:
                self.append(item)
        elif isinstance(expression, Gen):
            refuse_placeholders(texts_of_value(expression.options))
            self.submit(Generate(expression, self.declare(expression.name, self._reader(expression))))
        elif isinstance(expression, Select):
            refuse_placeholders(expression.choices)
            self.submit(Choose(expression, self.declare(expression.name)))
        else:
            refuse_placeholders([expression.text if isinstance(expression, Text) else expression])
            self.submit(Write(expression))

    def _reader(self, gen: Gen) -> Reader | None:
        """Of a call that says no form, that of the run."""
        return self.session.defaults.reader if FORMS.isdisjoint(gen.options) else gen.reader

    def declare(self, name: str | None, reader: object = None) -> Variable:
        """A variable that will have a value; without a name nobody else sees it."""
        variable = Variable(reader)
        if name is not None:
            self.variables[name] = variable
        return variable

    def fork(self, count: int) -> list[Branch]:
        """Branches that go on from here, once what is queued has been done."""
        number = next(self._fork_numbers)
        group = f"{self.ledger.program_id}/{number}"
        made = [Branch(self.session, (*self.path, number, i), self, group) for i in range(count)]
        start: Future[Line] = Future()
        for child in made:
            child.submit(Begin(start))
        self.submit(Fork(start))
        return made

    def barrier(self) -> Future[None]:
        """Done when everything that was queued before has ended, whatever became of it."""
        done: Future[None] = Future()
        if self._idle and not self._queue:
            done.set_result(None)
        else:
            self.submit(Barrier(done))
        return done

    @property
    def is_settled(self) -> bool:
        """Whether all that is queued is known to have ended, as that was awaited."""
        return self.session.is_settled(self.ledger)

    def body_elsewhere(self) -> Future[None] | None:
        """The end of the body that has this branch in hand, if the caller is not a part of it."""
        return self.session.body_elsewhere() if self.is_root else None

    def lookup(self, name: str) -> Variable | Future[None]:
        """The variable; or the end of the body, which may set it still. Raises UnknownVariable."""
        body = self.body_elsewhere()
        if (found := self.variables.get(name)) is not None:
            return found
        if body is not None:
            return body
        if self.error is not None:
            raise self.failure("not there, because ")
        known = ", ".join(sorted(self.variables)) or "none"
        raise UnknownVariable(f"no variable is called {name!r}; those of this state are {known}")

    def fail_as(self, error: ProgramError) -> None:
        """From now on this is the failure that readers are told, in its own words."""
        self.error, self._cause = error, ""

    def own_variables(self) -> dict[str, Variable]:
        """Those that were not there when the branch began, or have been set anew."""
        return {
            name: variable
            for name, variable in list(self.variables.items())
            if self.inherited.get(name) is not variable
        }

    def failure(self, behind: str = "") -> ProgramError:
        """What whoever reads this branch now is told; `behind` begins it for what comes after that."""
        error = self.error
        assert error is not None, "only a branch that failed is asked why"
        if isinstance(error, BranchFailed | Cancelled | TimedOut):
            return error
        words = f"{self._cause}: {type(error).__name__}: {error}" if self._cause else str(error)
        failed = BranchFailed(behind + words)
        failed.__cause__ = error
        return failed

    # -- on the loop -----------------------------------------------------------------------------------

    def _start(self) -> None:
        self._task = the_loop().create_task(self._run())

    async def _run(self) -> None:
        for turn in count(1):
            if turn % _IN_A_ROW == 0:
                await asyncio.sleep(0)  # other branches have their turn
            if not self._queue:
                self._rest()
                return
            action = self._queue.popleft()
            if self.error is not None and not isinstance(action, Barrier):
                action.fail(self.failure("not there, because "))
                continue
            self._acting = True
            try:
                await action.run(self)
            except asyncio.CancelledError:
                self._fail(Cancelled("the program was cancelled"), "the program was cancelled")
                task = asyncio.current_task()
                if task is not None:
                    task.uncancel()
                action.fail(self.failure())
                self.feed.close()
            except BaseException as error:  # whatever it is, it ends this branch and not the loop
                self._fail(error, f"{action.what} failed")
                action.fail(self.failure())
                self.feed.close()
            finally:
                self._acting = False
            if self.error is not None:
                await _take_cancels()

    def _rest(self) -> None:
        self._task = None
        self.session.active.discard(self)
        self._idle.append(True)
        if self._queue:  # since this was asked before
            self._wake()

    def stop(self, error: BaseException) -> None:
        """What runs is aborted, and what waits fails, now and later. A failure that was there stays."""
        if self.error is not None:
            return
        self._fail(error, "the program failed")
        self.feed.close()
        if self._acting and self._task is not None:
            self._task.cancel()

    def _fail(self, error: BaseException, cause: str) -> None:
        """The first failure is the one that counts."""
        if self.error is None:
            self.error, self._cause = error, cause

    def write(self, part: Part | None, text: str) -> None:
        """Text that was not generated now, or was but is not in `parts` yet."""
        line = self.line
        if part is not None and part not in ("", ()):
            line.parts.append(part)
        if text:
            line.texts.append(text)
            line.loose = line.loose or line.role is None
            self.feed.add(text, {})

    def plain(self, text: str) -> Part:
        """In a message of a person or a tool, text is text."""
        return text if self.line.role in (None, "assistant") else Plain(text)

    async def begin_role(self, role: str) -> None:
        line = self.line
        if line.role is not None:
            raise InvalidCall(f"{a_block(role)} cannot begin inside {a_block(line.role)}: end that one first")
        roles = (*(str(message["role"]) for message in line.messages), role)
        frame = await self.session.backend.frame(roles)
        line.role = role
        self.write(frame.before, frame.before)
        line.role_start, line.role_after = len(line.texts), frame.after

    def end_role(self, role: str) -> None:
        line = self.line
        if line.role != role:
            opened = "no block is open" if line.role is None else f"{a_block(line.role)} is open"
            raise InvalidCall(f"{a_block(role)} cannot end here: {opened}")
        content = "".join(line.texts[line.role_start :])
        line.messages.append({"role": role, "content": content})
        self.write(line.role_after, line.role_after)
        line.role = None

    def take(self, generated: Generated, *, shown: bool) -> None:
        """Go on behind a generated text; `shown` if the feed has had it."""
        line = self.line
        line.parts += [part for part in generated.parts if part]
        if generated.text:
            line.texts.append(generated.text)
            line.loose = line.loose or line.role is None
            if not shown:
                self.feed.add(generated.text, generated.meta)
        kept = sum(len(part) for part in generated.parts if isinstance(part, tuple))
        line.known = generated.prompt_tokens + max(0, min(kept, generated.completion_tokens - 1))

    def hint(self) -> Hint:
        """Of a call that is made now."""
        self.ledger.asked = True
        return Hint(self.ledger.program_id, self.parent_id, self.group)

    def sampling(self, gen: Gen) -> Sampling:
        defaults = self.session.defaults.options
        if not FORMS.isdisjoint(gen.options):  # a form of its own, in the place of the run's
            defaults = {name: value for name, value in defaults.items() if name not in FORMS}
        merged = {**defaults, **gen.options}
        if "json_schema" not in merged:  # what a run says of schemas is for those calls that have one
            for name in OF_SCHEMAS - gen.options.keys():
                merged.pop(name, None)
        if gen.ends:
            merged["stop"] = (*cast("tuple[str, ...]", merged.get("stop", ())), *gen.ends)
        if (seed := merged.get("seed")) is not None and self.path:
            merged["seed"] = seed_of(seed, self.path)
        return Sampling(**merged)  # type: ignore[arg-type]  # checked where they were given


async def _take_cancels() -> None:
    """An action that cancels its own branch is told so where it next waits, which it may never do: the cancel
    is for it, and not for the task that runs the actions."""
    task = asyncio.current_task()
    assert task is not None, "actions run in a task"
    while task.cancelling():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        task.uncancel()
