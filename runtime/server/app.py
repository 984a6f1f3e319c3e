"""The FastAPI application: routes of both surfaces over one engine, behind one gate.

`build_app` puts the parts together. What a route does is known in its own module, what comes before all of
them in gate.py. A failure becomes a reply here, whichever route it comes from.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

from ... import __version__
from ..errors import InvalidRequest, RadixError
from ..text import quote
from . import batches, chat, completions, files, health, metrics_route, models, native, page, programs, tokens
from .context import ServerContext
from .data_folder import open_data
from .engine_face import EngineFace
from .failures import ERROR_SCHEMA, FAILURES, error_body
from .gate import Gate
from .metrics import ServerMetrics
from .replies import CLIENT_GONE, error_reply, json_reply
from .service import Service
from .settings import ServerSettings

_PARTS = (health, metrics_route, models, completions, chat, native, programs, tokens, files, batches, page)

_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": ERROR_SCHEMA}}}
    for status, text in FAILURES.items()
}


def build_app(
    engine: EngineFace,
    settings: ServerSettings,
    *,
    started: Callable[[ServerContext], None] | None = None,
) -> FastAPI:
    """`started` is called in the event loop once everything is in place, before the first request. Raises
    InvalidConfig if the folder for files and batches cannot be had."""
    data = open_data(settings.data_dir)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        metrics = ServerMetrics(engine, settings.served_model_name)
        service = Service(engine, settings, metrics)
        model = settings.served_model_name or engine.info.model
        context = ServerContext(service, settings, metrics, model, data)
        app.state.context = context
        async with batches.worker(context):
            if started is not None:
                started(context)
            yield
            await service.drain(0.0)

    app = FastAPI(
        title="RadixLM",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in _PARTS:
        app.include_router(part.router, responses=_FAILURES)
    app.add_exception_handler(RadixError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(RecursionError, _deep)
    app.add_middleware(
        Gate,
        api_keys=settings.api_keys,
        origins=settings.cors_origins,
        replied=lambda status: app.state.context.metrics.replied(status),
    )
    if settings.cors_origins:  # around the gate: a page may read why it was turned away
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-ID"],
        )
    return app


_LONG_PATH = 100
"""Characters; for longer ones it would take its time to find what is like them."""


async def _failed(_: Request, error: Exception) -> Response:
    return error_reply(error)


async def _deep(_: Request, __: Exception) -> Response:
    """A body that could just be read, and is too deep for what is made of it."""
    return error_reply(InvalidRequest("the body is nested too deeply"))


async def _gone(_: Request, __: Exception) -> Response:
    """A client that left while its body was read: nobody gets this."""
    return Response(status_code=CLIENT_GONE)


async def _invalid(_: Request, error: Exception) -> Response:
    """Of what FastAPI itself reads: parameters in the path and the query, forms."""
    assert isinstance(error, RequestValidationError), "registered for this class"
    found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:3])
    return json_reply(error_body(found, "invalid_request_error", 400), 400)


async def _refused(request: Request, error: Exception) -> Response:
    """No such route, or not with this method."""
    assert isinstance(error, HTTPException), "registered for this class"
    status, said, headers = error.status_code, str(error.detail), error.headers
    if status == 405:  # each method has a route of its own, and Starlette names those of one
        allowed = ", ".join(_methods(request)) or (headers or {}).get("Allow", "")
        headers = {"Allow": allowed}
        said = f"{request.url.path} takes {allowed}, got {request.method}"
    if status == 404:
        said = f"there is no {quote(request.url.path)} here{_meant(request.url.path)}"
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    return json_reply(error_body(said, kind, status), status, headers)


def _meant(path: str) -> str:
    """The route that a client may have wanted: often its base URL has no /v1, or has it twice."""
    if len(path) > _LONG_PATH:
        return ""
    paths = {route.path for route in _routes()}
    for wanted in ("/v1/" + path.rstrip("/").removeprefix("/v1").lstrip("/"), path):
        if close := get_close_matches(wanted, paths, 1):
            return f"; did you mean {close[0]!r}?"
    return ""


def _methods(request: Request) -> list[str]:
    found = {
        method
        for route in _routes()
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    }
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _routes() -> list[Route]:
    return [route for part in _PARTS for route in part.router.routes if isinstance(route, Route)]
