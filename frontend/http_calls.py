"""HttpCalls: JSON to a server and back over connections that are kept, with retries and errors of ours.

It knows no route. A call is asked again only if it cannot have run: the connection was refused, or the answer
was 503 or 429; one that changes nothing also after any failure of the connection. How many calls are
under way is bounded here and not by httpx, whose pool can lose places when calls are cancelled while they
connect. What must hold: leaving a call, in any way, ends its connection unless its answer was read to the
end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from os import PathLike, getpid
from time import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .closing import is_closed
from .errors import BackendError, InvalidCall, Unreachable, Unsupported
from .event_stream import read_events
from .http_failures import error_of, message_of
from .http_options import Retries, certificates, check_verify, checked_url, is_seconds, retry_after_s

if TYPE_CHECKING:
    import httpx

_CONNECT_SECONDS = _TELLING_SECONDS = 10.0
_IDLE_SECONDS = 4.0
"""Servers close connections that nobody uses, many after five seconds; what is sent just then is lost."""
_SPENT = ("insufficient_quota", "billing_hard_limit_reached")
"""429 with one of these codes: waiting is of no use."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """`ran`: the call may have run. `is_final`: it would fail again. `after_s`: the server's Retry-After."""

    error: BackendError
    ran: bool = True
    is_final: bool = False
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Session:
    """What belongs to one event loop. `room` has a place for each call that may be under way."""

    loop: asyncio.AbstractEventLoop
    client: httpx.AsyncClient
    room: asyncio.Semaphore
    process: int


_left_behind: list[_Session] = []
"""Those of the process before a fork. Kept, since their sockets are in use there: closing them here, or
letting Python collect them, would touch what the other process reads and writes."""


class HttpCalls:
    """`timeout` is how many seconds the server may be silent, in an answer that streams between two pieces of
    it; None is no limit. At most `max_connections` calls are under way, others wait. `verify` is a file with
    certificates, or False for none; `transport` an httpx transport, for other sockets than TCP and for tests.
    `hint` is what to add where a route does not exist. A process that was forked off opens connections of its
    own. Raises InvalidCall for what none of this can be.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 600.0,
        max_connections: int = 128,
        retries: int | Retries = 3,
        verify: bool | str | PathLike[str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        hint: str = "",
    ) -> None:
        self.base_url = checked_url(base_url)
        if timeout is not None and not is_seconds(timeout):
            raise InvalidCall(f"timeout must be seconds above 0, or None for no limit, got {timeout!r:.200}")
        if isinstance(max_connections, bool) or not isinstance(max_connections, int) or max_connections < 1:
            raise InvalidCall(f"max_connections must be a count of at least 1, got {max_connections!r:.200}")
        check_verify(verify)
        if transport is not None and not callable(getattr(transport, "handle_async_request", None)):
            raise InvalidCall(f"transport must be an async transport of httpx, got {transport!r:.200}")
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        self._timeout = timeout
        self._max_connections = max_connections
        self._retries = retries if isinstance(retries, Retries) else Retries(retries)
        self._verify = verify
        self._transport = transport
        self._hint = hint
        self._session: _Session | None = None
        self._closed = False

    async def get(self, path: str) -> object:
        return await self._call("GET", path, None, changes_nothing=True)

    async def post(self, path: str, body: object, *, changes_nothing: bool = False) -> object:
        """The answer, as plain data."""
        return await self._call("POST", path, body, changes_nothing=changes_nothing)

    async def command(self, path: str, body: object) -> None:
        """Post, whatever the answer is, if it says success."""
        session = self._current()
        async with session.room:
            response = await self._opened(session, "POST", path, body, changes_nothing=False)
            await self._content(response)

    async def tell(self, path: str, body: object) -> None:
        """Post at once, past those who wait for a connection, and once only."""
        session = self._current()
        outcome = await self._try(session, self._request(session, "POST", path, body, _TELLING_SECONDS))
        if isinstance(outcome, _Failure):
            raise outcome.error
        await self._content(outcome)

    async def stream(self, path: str, body: object) -> AsyncGenerator[object, None]:
        """Each event of the answer, as plain data, up to the one that says [DONE]."""
        session = self._current()
        async with session.room:
            response = await self._opened(session, "POST", path, body, changes_nothing=False)
            try:
                async with aclosing(read_events(_chunks(response))) as events:
                    async for event in events:
                        if event == "[DONE]":
                            async for _ in events:  # to its end, so that the connection is kept
                                pass
                            return
                        yield self._parsed(event, path)
            except _transport_errors() as error:
                raise self._lost(error, str(response.url), began=True) from None
            finally:
                await response.aclose()
        raise Unreachable(f"{self.base_url}{path}: the answer ended before its end was told")

    def home(self) -> asyncio.AbstractEventLoop | None:
        """The loop that connections are open on, None if none is here."""
        session = self._session
        if session is None or session.process != getpid() or session.loop.is_closed():
            return None
        return session.loop

    async def close(self) -> None:
        """Close all connections, on their loop. What is under way fails, and later calls are refused."""
        session = self._session
        self.drop()
        if session is not None and session.process == getpid():
            await session.client.aclose()

    def drop(self) -> None:
        """The same where no loop runs that connections could be closed on."""
        session, self._session, self._closed = self._session, None, True
        if session is not None and session.process != getpid():
            _left_behind.append(session)

    def check_open(self) -> None:
        """Raises InvalidCall if it was closed."""
        if self._closed:
            raise is_closed(self.base_url)

    # -- one call --------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str, body: object, *, changes_nothing: bool) -> object:
        session = self._current()
        async with session.room:
            response = await self._opened(session, method, path, body, changes_nothing=changes_nothing)
            content = await self._content(response)
        return self._parsed(content, path) if content else None

    async def _content(self, response: httpx.Response) -> bytes:
        try:
            return await response.aread()
        except _transport_errors() as error:
            raise self._lost(error, str(response.url), began=True) from None
        finally:
            await response.aclose()

    async def _opened(
        self, session: _Session, method: str, path: str, body: object, *, changes_nothing: bool
    ) -> httpx.Response:
        """An answer that says success, not yet read."""
        failures = 0
        while True:
            outcome = await self._try(session, self._request(session, method, path, body, self._timeout))
            if not isinstance(outcome, _Failure):
                return outcome
            after_s = outcome.after_s
            if outcome.is_final or (outcome.ran and not changes_nothing) or failures >= self._retries.times:
                raise outcome.error
            if after_s is not None and after_s > self._retries.most_s:
                raise outcome.error
            await self._retries.sleep(self._retries.delay(failures, after_s))
            failures += 1

    async def _try(self, session: _Session, request: httpx.Request) -> httpx.Response | _Failure:
        import httpx

        if session.client.is_closed:
            return _Failure(is_closed(self.base_url), is_final=True)
        try:
            response = await session.client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            reason = str(error) or f"no connection within {_least(self._timeout):g} s"
            advice = "is the server running, and are host and port the right ones?"
            return _Failure(Unreachable(f"{self.base_url} is not reached ({reason}): {advice}"), ran=False)
        except httpx.TransportError as error:
            return _Failure(self._lost(error, str(request.url), began=False))
        if response.is_success:
            return response
        try:
            content = await response.aread()
        except httpx.TransportError:
            content = b""
        finally:
            await response.aclose()
        return self._refused(response, content)

    def _refused(self, response: httpx.Response, content: bytes) -> _Failure:
        message, code = message_of(content)
        where = f"{response.request.method} {response.request.url}"
        status = response.status_code
        error = error_of(status, message, code, where, response.headers.get("location"))
        if self._hint and status == 404 and isinstance(error, Unsupported):
            error = Unsupported(f"{error} ({self._hint})")
        if status in (429, 503):
            after_s = retry_after_s(response.headers.get("retry-after"), time())
            return _Failure(error, ran=False, is_final=code in _SPENT, after_s=after_s)
        return _Failure(error, is_final=status not in (502, 504))

    def _lost(self, error: Exception, where: str, *, began: bool) -> Unreachable:
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return Unreachable(f"{where}: nothing came for {self._timeout or 0:g} s (timeout)")
        when = "in the middle of its answer" if began else "before it answered"
        return Unreachable(f"{where}: the connection ended {when}: {error or type(error).__name__}")

    def _parsed(self, content: bytes | str, path: str) -> object:
        try:
            value: object = json.loads(content)
        except ValueError:
            start = content[:200]
            raise BackendError(f"{self.base_url}{path} answered with what is no JSON: {start!r}") from None
        return value

    def _request(
        self, session: _Session, method: str, path: str, body: object, seconds: float | None
    ) -> httpx.Request:
        import httpx

        url, timeout = self.base_url + path, httpx.Timeout(seconds, connect=_least(seconds), pool=None)
        content, headers = None, {}
        if body is not None:
            try:
                content = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
            except (TypeError, ValueError) as error:
                raise InvalidCall(f"the call cannot be written as JSON: {error}") from None
            headers = {"Content-Type": "application/json"}
        try:
            return session.client.build_request(
                method, url, content=content, headers=headers, timeout=timeout
            )
        except httpx.InvalidURL as error:
            raise InvalidCall(f"base_url cannot be used: {error}, got {self.base_url!r:.200}") from None

    # -- connections -----------------------------------------------------------------------------------

    def _current(self) -> _Session:
        self.check_open()
        loop = asyncio.get_running_loop()
        session = self._session
        if session is not None and session.process != getpid():
            if self._transport is not None:
                raise InvalidCall(
                    f"{self.base_url}: the transport that this backend was given belongs to the process "
                    "before the fork: make a backend with another one in this process"
                )
            _left_behind.append(session)
            session = None
        if session is None or session.loop.is_closed():
            session = self._session = _Session(
                loop, self._new_client(), asyncio.Semaphore(self._max_connections), getpid()
            )
        if session.loop is not loop:
            raise InvalidCall(f"{self.base_url}: one backend cannot be used on two event loops at a time")
        return session

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        url = urlsplit(self.base_url)
        return httpx.AsyncClient(
            headers=self._headers,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_IDLE_SECONDS
            ),
            verify=certificates(self._verify, url.scheme),
            transport=self._transport,
            trust_env=url.hostname not in ("localhost", "127.0.0.1", "::1"),
        )


def _least(seconds: float | None) -> float:
    return _CONNECT_SECONDS if seconds is None else min(_CONNECT_SECONDS, seconds)


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


def _transport_errors() -> tuple[type[Exception], ...]:
    import httpx

    return (httpx.TransportError, httpx.StreamError)
