"""Gate: what every request passes: an id, the key, a line of log. Plain ASGI.

The line says who asked for what and how it ended, in JSON; it never holds text of prompts or answers, so of
an exception that is our fault it has the place and not the message. Who sent a key is known behind the gate
as a tenant, never by the key.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Callable, Sequence
from time import perf_counter
from traceback import format_tb

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import RadixError
from .context import new_id
from .failures import Busy, Forbidden, Unauthorized
from .replies import CLIENT_GONE, SEND_PARTS, STREAM_END, error_reply
from .service import tenant_of

_OPEN = frozenset({"/", "/health", "/health_generate", "/ready", "/metrics"})
"""What needs no key: the page itself, and what monitoring asks for."""
_OPEN_FOLDER = "/page/"
_QUIET = _OPEN | {"/radix", "/status"}
"""What is asked for all the time, and logged at the level debug only."""
_KEY_HEADERS = {b"authorization", b"x-api-key"}
_ID = re.compile(r"[\x21-\x7e]{1,128}")

log = logging.getLogger("radixlm.server")


class Gate:
    """`replied` is told the status of each answer but those to monitoring."""

    def __init__(
        self,
        app: ASGIApp,
        api_keys: Sequence[str],
        origins: Sequence[str] = (),
        replied: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._app = app
        self._replied = replied
        self._origins = frozenset(origins)
        self._keys = [(key.encode(), tenant_of(key)) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        request_id = given if _ID.fullmatch(given) else new_id("req")
        begun = perf_counter()
        status: int | None = None

        async def passed_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        scope[SEND_PARTS] = send
        if scope["method"] == "HEAD":  # the server below leaves the body out
            scope = {**scope, "method": "GET"}
        failed: object = None
        try:
            await self._admitted(scope, headers)(scope, receive, passed_on)
            failed = scope.get(STREAM_END)
        except asyncio.CancelledError:  # by a shutdown, of a client that did not send all of its request
            if status is None:
                await error_reply(Busy("the server is shutting down"))(scope, receive, passed_on)
        except Exception as error:  # our fault: the server goes on, and so does a connection that is shared
            failed = error
            if status is None:
                await error_reply(error)(scope, receive, passed_on)
        finally:
            is_quiet = scope["path"] in _QUIET or scope["path"].startswith(_OPEN_FOLDER)
            if status is None or failed == CLIENT_GONE:
                status = CLIENT_GONE
            if not is_quiet:
                self._replied(status)
            fields = {
                "request_id": request_id,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(perf_counter() - begun, 4),
                **scope.get("radixlm.figures", {}),
                **_failure(failed),
            }
            is_fault = isinstance(failed, Exception) and not isinstance(failed, RadixError)
            level = logging.ERROR if is_fault else logging.DEBUG if is_quiet else logging.INFO
            log.log(level, "request", extra={"fields": fields})

    def _admitted(self, scope: Scope, headers: dict[bytes, str]) -> ASGIApp:
        """The app, or the reply to who has no key, or no business here."""
        path, method = scope["path"], scope["method"]
        is_open = path in _OPEN or path.startswith(_OPEN_FOLDER) or method == "OPTIONS"
        if not is_open and self._is_foreign(headers):
            return error_reply(Forbidden("pages of other origins may not call; --cors-origin allows one"))
        tenant = self._tenant(headers)
        if tenant is None and not is_open:
            came = "the one that came is none" if _KEY_HEADERS & headers.keys() else "none came"
            return error_reply(
                Unauthorized(f"a key of this server is needed, {came}: Authorization: Bearer KEY")
            )
        scope["radixlm.tenant"] = tenant or ""
        return self._app

    def _is_foreign(self, headers: dict[bytes, str]) -> bool:
        """Whether a browser asks for a page of another origin that is not allowed. Browsers say so of
        themselves; other clients send none of these headers."""
        origin = headers.get(b"origin")
        if origin is None:
            return headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")
        allowed = self._origins
        return not (origin.partition("://")[2] == headers.get(b"host") or origin in allowed or "*" in allowed)

    def _tenant(self, headers: dict[bytes, str]) -> str | None:
        """Whose key came, "" if none is needed, None if there should be one. Compares with every key, in a
        time that tells nothing of them."""
        if not self._keys:
            return ""
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", "")
        found = None
        for known, tenant in self._keys:
            if hmac.compare_digest(known, key.encode("latin-1")):
                found = tenant
        return found


def _failure(failed: object) -> dict[str, object]:
    """Fields of a line; of what is our fault also the place, but not the message, which may hold anything."""
    if not isinstance(failed, Exception):
        return {}
    name = type(failed).__name__
    if isinstance(failed, RadixError):
        return {"failure": name}
    return {"failure": name, "trace": format_tb(failed.__traceback__)}
