"""Running the app until a signal: uvicorn, with a shutdown in which every client gets an answer.

On SIGTERM or SIGINT nothing more is accepted, running requests have the time of `shutdown_timeout` but its
end, then they are aborted, which ends them with an answer too. A second SIGINT ends the process at once.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import uvicorn

from ..errors import InvalidConfig
from .app import build_app
from .connection import connections
from .context import ServerContext
from .engine_face import EngineFace
from .settings import ServerSettings

_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SWITCH_SECONDS = 0.0005
"""How long another thread may keep the interpreter from the engine, which lets it go and wants it back some
hundred times a step."""
_END_SECONDS = 1.0
"""Of the time for a shutdown, what is kept for sending the last answers, giving up the rest and ending the
process."""
_SEND_SECONDS = 0.5
"""What the last answers have at least to be sent in, however short the time for a shutdown is."""


def listen(settings: ServerSettings) -> socket.socket:
    """The socket to serve on. Raises InvalidConfig where its address cannot be had."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as until_it_works:
            found = until_it_works.enter_context(socket.socket(family, kind, protocol))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
            until_it_works.pop_all()
            return found
    except OSError as error:
        raise InvalidConfig(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def address_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    engine: EngineFace,
    settings: ServerSettings,
    listening: socket.socket,
    *,
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal. `announce` gets the address once requests are answered."""

    def ready() -> None:
        gc.collect()
        gc.freeze()  # what the libraries have made: going through it again stops every thread for 0.3 s
        announce(address_of(listening))

    sys.setswitchinterval(_SWITCH_SECONDS)
    server = EndpointServer(engine, settings, announce=ready)
    before = {each: signal.signal(each, lambda *_: None) for each in _SIGNALS}
    try:
        server.run([listening])  # which ends by raising the signal again, for the handlers it has found
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class EndpointServer(uvicorn.Server):
    """A uvicorn server of the app; `announce` is called once requests are answered."""

    def __init__(
        self, engine: EngineFace, settings: ServerSettings, *, announce: Callable[[], None] = lambda: None
    ) -> None:
        self._settings = settings
        self.context: ServerContext | None = None
        app = build_app(engine, settings, started=self._started)
        self._announce = announce
        super().__init__(
            uvicorn.Config(
                app,
                http=connections(settings.stream_idle_timeout),
                log_config=None,
                access_log=False,
                lifespan="on",
                ws="none",
                server_header=False,
            )
        )

    def _started(self, context: ServerContext) -> None:
        self.context = context

    # Any: uvicorn's own signature says no more.
    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        if self.context is None:
            await super().shutdown(sockets)
            return
        closing = asyncio.ensure_future(super().shutdown(sockets))
        timeout = self._settings.shutdown_timeout
        kept = min(_END_SECONDS, timeout / 2)
        draining = asyncio.ensure_future(self.context.service.drain(timeout - kept))
        while not (draining.done() or self.force_exit):
            await asyncio.wait((draining,), timeout=0.1)
        await asyncio.wait((closing,), timeout=0 if self.force_exit else max(kept / 2, _SEND_SECONDS))
        for task in list(self.server_state.tasks):  # of clients that never sent all of their request
            task.cancel()
        await asyncio.wait((closing,), timeout=0 if self.force_exit else kept / 4)
        for connection in list(self.server_state.connections):  # of clients that do not read
            connection.transport.abort()
        await closing
