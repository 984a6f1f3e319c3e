"""Which backend a program runs on: what was given, or the default of this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from .errors import InvalidCall
from .loop import refuse_to_block, run_on_loop, wait_for
from .protocol import Backend

_default: Backend | None = None


def set_default_backend(backend: object) -> None:
    """What programs run on that are given no backend: Engine, RuntimeEndpoint, OpenAI, ... None: none."""
    global _default
    _default = None if backend is None else as_backend(backend)


def default_backend() -> Backend | None:
    return _default


def as_backend(value: object) -> Backend:
    """A backend, or that of an object with an `endpoint`; None is the default one. Raises InvalidCall."""
    if value is None:
        if _default is None:
            raise InvalidCall(
                "no backend: give one with backend=..., or call set_default_backend(Engine(...)), "
                "set_default_backend(RuntimeEndpoint(url)) or the like"
            )
        return _default
    if isinstance(value, type):
        raise InvalidCall(f"a backend is an object, got the class: make one with {value.__name__}(...)")
    inner = getattr(value, "endpoint", None)
    if inner is not None:
        value = inner
    if all(callable(getattr(value, name, None)) for name in ("generate", "score", "frame", "end")):
        return cast("Backend", value)
    url = isinstance(value, str) and value.startswith(("http://", "https://"))
    advice = f"; a server is reached by RuntimeEndpoint({value!r:.200})" if url else ""
    raise InvalidCall(
        "a backend is an Engine, a RuntimeEndpoint, an OpenAI or an object with an endpoint, "
        f"got {value!r:.200}{advice}"
    )


def flush_cache(backend: object = None) -> None:
    """Let the backend forget what it has cached. Raises InvalidCall while anything runs there."""
    refuse_to_block("await asyncio.to_thread(flush_cache, backend)")
    wait_for(run_on_loop(as_backend(backend).flush()), "the flush")


def get_server_info(backend: object = None) -> Mapping[str, object]:
    """What the backend serves, and its figures."""
    refuse_to_block("await asyncio.to_thread(get_server_info, backend)")
    return wait_for(run_on_loop(as_backend(backend).info()), "the information")
