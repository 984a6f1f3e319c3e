"""A real server for tests: uvicorn on a thread, on a free port of loopback, over any engine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from radixlm.runtime.server.context import ServerContext
from radixlm.runtime.server.engine_face import EngineFace
from radixlm.runtime.server.lifecycle import EndpointServer, address_of, listen
from radixlm.runtime.server.settings import ServerSettings

_PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` has no slash at its end. `stop` ends the server as a signal does, and waits."""

    url: str
    server: EndpointServer
    thread: threading.Thread

    @property
    def context(self) -> ServerContext:
        context = self.server.context
        assert context is not None, "a server that answers has a context"
        return context

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(_PATIENCE)
        assert not self.thread.is_alive(), "the server ends"


@contextmanager
def running_server(engine: EngineFace, settings: ServerSettings | None = None) -> Iterator[Endpoint]:
    """`settings` are taken but for the port; the engine is the caller's to close."""
    settings = replace(settings or ServerSettings(shutdown_timeout=5.0), port=0, host="127.0.0.1")
    listening = listen(settings)
    started = threading.Event()
    server = EndpointServer(engine, settings, announce=started.set)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    endpoint = Endpoint(address_of(listening), server, thread)
    try:
        assert started.wait(_PATIENCE), "the server starts"
        yield endpoint
    finally:
        endpoint.stop()
        listening.close()


def received_until(found: socket.socket, text: bytes) -> bytes:
    """What comes up to this text and some more."""
    got = b""
    while text not in got:
        more = found.recv(65536)
        assert more, got
        got += more
    return got


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it has not happened within 10 s")
