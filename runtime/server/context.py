"""ServerContext: what every route has. `app.state.context` in an app, `context_of` in a route."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING

from starlette.requests import Request

from .data_folder import DataFolder
from .service import Service
from .settings import ServerSettings

if TYPE_CHECKING:
    from .metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class ServerContext:
    """`model` is the name that clients see; `data` is None where no files and no batches are kept; `started`
    is in seconds since 1970."""

    service: Service
    settings: ServerSettings
    metrics: ServerMetrics
    model: str
    data: DataFolder | None = None
    started: int = field(default_factory=lambda: int(time.time()))


def context_of(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


def tenant(request: Request) -> str:
    """Whose request it is: "" where the server asks for no key."""
    found: str = request.scope.get("radixlm.tenant", "")
    return found


def new_id(prefix: str) -> str:
    """An id that nobody guesses, such as chatcmpl-..."""
    return f"{prefix}-{token_hex(12)}"
