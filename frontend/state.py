"""ProgramState: what a program's body has in hand. Everything it does is queued on a branch and runs on the
loop; only reading waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from .actions import Capture, Hold, Mark
from .branch import Branch
from .errors import BranchFailed, Cancelled, InvalidCall, TimedOut, UnknownVariable
from .expressions import Appendable, RoleBegin, RoleEnd, as_expression
from .group import Group
from .loop import may_block, refuse_to_block, result_of, wait_for
from .protocol import Message
from .report import CacheReport
from .types import Reader, Unreadable
from .variable import Feed, Variable

_MOST_BRANCHES = 4096
_LONGEST_HOLD = 3600


class ProgramState:
    """`s += "text"`, `s += gen("name")`, `s["name"]`. See docs/dsl.md."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.ret_value: object = None
        self._copied: Group | None = None

    def __repr__(self) -> str:
        return f"ProgramState({self.branch.line.text!r:.200})"

    # -- writing ---------------------------------------------------------------------------------------

    def __iadd__(self, other: Appendable) -> ProgramState:
        self.append(other)
        return self

    def append(self, other: Appendable) -> None:
        """What `+=` does."""
        self.branch.append(as_expression(other))

    def system(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        """`s.system("...")`, or `with s.system(): ...`."""
        return self._role("system", expression)

    def user(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        return self._role("user", expression)

    def assistant(self, expression: Appendable | None = None) -> AbstractContextManager[None]:
        return self._role("assistant", expression)

    def set_var(self, name: str, value: object) -> None:
        """A variable of the program's own."""
        self.branch.variables[name] = Variable.of(value)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text that is added inside is kept under `name`."""
        mark = Mark()
        self.branch.submit(mark)
        try:
            yield
        finally:
            self.branch.submit(Capture(mark, self.branch.declare(name)))

    # -- reading ---------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:  # Any: text, a list of texts, or what set_var was given
        """The value, as soon as it is there. Raises UnknownVariable, and BranchFailed with the cause if it
        will never be there."""
        return self._waited(self._variable(name), name)

    def get_var(self, name: str) -> Any:  # Any: as above
        return self[name]

    async def var(self, name: str) -> Any:  # Any: as above
        """The same for async programs."""
        return await _awaited(await self._variable_async(name))

    def value(self, name: str) -> Any:  # Any: whatever was asked for
        """What the text of a `gen` with a dtype or a json_schema says: an int, a dict, a model, ..."""
        variable = self._variable(name)
        return _read(variable, self._waited(variable, name), variable.meta)

    async def value_async(self, name: str) -> Any:  # Any: as above
        variable = await self._variable_async(name)
        return _read(variable, await _awaited(variable), variable.meta)

    def __contains__(self, name: object) -> bool:
        """Whether there is a variable of that name, whose value may still be under way, or never come."""
        if not isinstance(name, str):
            return False
        try:
            self._variable(name)
        except (UnknownVariable, BranchFailed, Cancelled, TimedOut):
            return False
        return True

    def get_meta_info(self, name: str) -> object:
        """What the backend told of a generation; a list for several."""
        variable = self._variable(name)
        self._waited(variable, name)
        return variable.meta

    def text(self) -> str:
        """All text so far, when what is queued has ended. A state that failed has the text up to there."""
        self.sync()
        return self.branch.line.text

    def messages(self) -> list[Message]:
        """The role blocks so far, as in OpenAI's chat format."""
        self.sync()
        return [dict(message) for message in self.branch.line.messages]

    def sync(self) -> None:
        """Wait until everything that was queued has ended; outside of the body, until that is over too."""
        if not may_block() and self.branch.is_settled:
            return
        refuse_to_block("await s.sync_async() first")
        if (body := self.branch.body_elsewhere()) is not None:
            body.result()
        ended, submitted = self.branch.barrier(), self.branch.submitted
        ended.result()
        self._settle(submitted)

    async def sync_async(self) -> None:
        """The same for async programs. What `text`, `messages`, `error` and the like tell is there then."""
        if (body := self.branch.body_elsewhere()) is not None:
            await result_of(body)
        ended, submitted = self.branch.barrier(), self.branch.submitted
        await result_of(ended)
        self._settle(submitted)

    def error(self) -> BaseException | None:
        """What made this state fail, None if nothing did; when what is queued has ended."""
        self.sync()
        return self.branch.error

    def cache_report(self) -> CacheReport:
        """Tokens prompted, reused, computed again and generated by the calls of this state and of all that
        was forked off it; when what is queued there has ended."""
        ledger = self.branch.ledger
        if not self.branch.session.is_over and len(list(ledger.family())) > 1:
            refuse_to_block("await s.cache_report_async()")
        self.sync()
        if may_block():
            for branch in ledger.branches():
                branch.barrier().result()
        return CacheReport(tuple(ledger.calls()))

    async def cache_report_async(self) -> CacheReport:
        """The same for async programs."""
        await self.sync_async()
        for branch in self.branch.ledger.branches():
            await result_of(branch.barrier())
        return CacheReport(tuple(self.branch.ledger.calls()))

    # -- streams ---------------------------------------------------------------------------------------

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """What the text, or a variable, grows by, as it comes where the run was started with stream=True.
        Joined it is the whole text. Raises what prevented more at its end. The whole text is only known to be
        whole outside of the body; inside, name a variable."""
        refuse_to_block("use text_async_iter")
        variable = None if var_name is None else self._variable(var_name)
        return self._pieces(self._feed(variable), variable)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[str | tuple[str, Mapping[str, object]]]:
        """The same for async callers; with return_meta_data, pairs of text and what the backend told."""
        variable = None if var_name is None else await self._variable_async(var_name)
        feed, place = self._feed(variable), 0
        while (found := feed.after(place)) is not None:
            if isinstance(found, Future):
                await result_of(found)
                continue
            for chunk in found:
                place += 1
                yield (chunk.text, chunk.meta) if return_meta_data else chunk.text
        self._raise_for(variable)

    # -- branches --------------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: object = None) -> Group:
        """Branches that go on from here, with all text and variables, and sample differently.
        `position_ids_offset` is of SGLang's signature, and nothing else than None is taken."""
        if position_ids_offset is not None:
            raise InvalidCall("position_ids_offset is not supported, only None")
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MOST_BRANCHES:
            raise InvalidCall(f"fork takes a number from 1 to {_MOST_BRANCHES}, got {size!r:.200}")
        return Group(self.branch, [ProgramState(child) for child in self.branch.fork(size)])

    def copy(self) -> ProgramState:
        """One branch that goes on from here. `with s.copy() as other: ...` joins it at the end, so that its
        variables are lists of one here, as in SGLang."""
        group = self.fork(1)
        group[0]._copied = group
        return group[0]

    def __enter__(self) -> ProgramState:
        if self._copied is None:
            raise InvalidCall("only a copy can be used in a with statement: with s.copy() as other")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._copied is not None, "it was entered"
        self._copied.join()

    # -- holds -----------------------------------------------------------------------------------------

    def pin(self, ttl: float) -> int:
        """Keep what has been written so far in the cache for so many seconds, within the server's budget; how
        many tokens are kept, 0 if that was refused."""
        refuse_to_block("await s.pin_async(ttl)")
        return wait_for(self._pin(ttl), "the hold")

    async def pin_async(self, ttl: float) -> int:
        return await result_of(self._pin(ttl))

    def hold(self, ttl: float = 60.0) -> HeldPrefix:
        """`with s.hold(ttl): call_a_tool()`: kept meanwhile, and given back then. Also `async with`."""
        return HeldPrefix(self, ttl)

    # -- inside ----------------------------------------------------------------------------------------

    def _settle(self, submitted: int) -> None:
        """So many actions have ended, which were all at that time."""
        if self.branch.submitted == submitted:
            self.branch.ledger.settled = True

    def _pin(self, ttl: float) -> Future[int]:
        if not isinstance(ttl, int | float) or isinstance(ttl, bool) or not 0 < ttl <= _LONGEST_HOLD:
            raise InvalidCall(
                f"a hold needs a number of seconds above 0, up to {_LONGEST_HOLD}, got {ttl!r:.200}"
            )
        action = Hold(float(ttl), Future())
        self.branch.submit(action)
        return action.granted

    @contextmanager
    def _block(self, role: str) -> Iterator[None]:
        self.append(RoleBegin(role))
        try:
            yield
        finally:
            self.append(RoleEnd(role))

    def _role(self, role: str, expression: Appendable | None) -> AbstractContextManager[None]:
        if expression is None:
            return self._block(role)
        self.append(RoleBegin(role) + as_expression(expression) + RoleEnd(role))
        return nullcontext()

    def _waited(self, variable: Variable, name: str) -> object:
        is_known = variable.is_known or self.branch.is_settled
        try:
            return wait_for(variable.future, f"variable {name!r}", is_known=is_known)
        finally:
            variable.is_known = is_known or (may_block() and variable.future.done())

    def _variable(self, name: str) -> Variable:
        while True:
            found = self.branch.lookup(name)
            if isinstance(found, Variable):
                return found
            wait_for(found, f"variable {name!r}")

    async def _variable_async(self, name: str) -> Variable:
        while True:
            found = self.branch.lookup(name)
            if isinstance(found, Variable):
                return found
            await result_of(found)

    def _pieces(self, feed: Feed, variable: Variable | None) -> Iterator[str]:
        place = 0
        while (found := feed.after(place)) is not None:
            if isinstance(found, Future):
                found.result()
                continue
            for chunk in found:
                place += 1
                yield chunk.text
        self._raise_for(variable)

    def _feed(self, variable: Variable | None) -> Feed:
        if variable is not None:
            return variable.feed
        if self.branch.session.is_inside():
            raise InvalidCall(
                "the whole text ends with the body, so a body cannot wait for it: name a variable"
            )
        return self.branch.feed

    def _raise_for(self, variable: Variable | None) -> None:
        """A stream that broke off says so at its end."""
        if variable is not None:
            variable.future.result()
        elif self.branch.error is not None:
            raise self.branch.failure()


async def _awaited(variable: Variable) -> object:
    try:
        return await result_of(variable.future)
    finally:
        variable.is_known = variable.future.done()


def _read(variable: Variable, value: object, meta: object) -> object:
    """`meta` is of the shape of the value: a list for a list."""
    reader: Reader | None = variable.reader  # type: ignore[assignment]  # of no other type
    if reader is None:
        return value
    if isinstance(value, list):
        metas = meta if isinstance(meta, list) and len(meta) == len(value) else [meta] * len(value)
        return [_read(variable, each, its) for each, its in zip(value, metas, strict=True)]
    if not isinstance(value, str):
        return value
    try:
        return reader(value)
    except Unreadable as error:
        if not _was_cut(meta):
            raise
        raise Unreadable(f"the text was cut by max_tokens before its end: {error}") from error


def _was_cut(meta: object) -> bool:
    """As SGLang writes it, or as OpenAI."""
    reason = meta.get("finish_reason") if isinstance(meta, Mapping) else None
    return (reason.get("type") if isinstance(reason, Mapping) else reason) == "length"


class HeldPrefix:
    """A hold for the length of a block; `tokens` of the prefix are held, 0 if it was refused."""

    def __init__(self, state: ProgramState, ttl: float) -> None:
        self._state = state
        self._ttl = ttl
        self.tokens = 0

    def __enter__(self) -> HeldPrefix:
        refuse_to_block("use `async with s.hold(...)`")
        self.tokens = self._state.pin(self._ttl)
        return self

    def __exit__(self, *_: object) -> None:
        branch = self._state.branch
        branch.ledger.pinned_until = 0.0
        branch.session.end([branch.ledger], "released")

    async def __aenter__(self) -> HeldPrefix:
        self.tokens = await self._state.pin_async(self._ttl)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()
