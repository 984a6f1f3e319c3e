"""The web page and what it asks for: its files from a fixed table, the tree, and what runs now.

The files need no key, since they are the same everywhere; the rest does. The page runs no script and loads
nothing but what lies in the table. What it is told are sizes and counts: never text, nor the ids of somebody
else's requests.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import InvalidRequest
from ..text import quote
from .context import context_of, tenant
from .failures import NotFound
from .page_reply import status_body, tree_body
from .replies import json_reply, until_gone

router = APIRouter(tags=["page"])

MOST_NODES = 5000
_USUAL_NODES = 2000
_FOLDER = Path(__file__).with_name("page_files")
_SCRIPT = "text/javascript; charset=utf-8"
_FILES: Mapping[str, str] = {
    "api.js": _SCRIPT,
    "app.js": _SCRIPT,
    "charts.js": _SCRIPT,
    "chat.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "requests.js": _SCRIPT,
    "style.css": "text/css; charset=utf-8",
    "tree.js": _SCRIPT,
    "tree_layout.js": _SCRIPT,
    "words.js": _SCRIPT,
}
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@router.get("/", include_in_schema=False)
async def page(request: Request) -> Response:
    return _file(request, "index.html", "text/html; charset=utf-8")


@router.get("/page/{name}", include_in_schema=False)
async def page_file(name: str, request: Request) -> Response:
    kind = _FILES.get(name)
    if kind is None:
        raise NotFound(f"the page has no file {quote(name)}")
    return _file(request, name, kind)


@router.get(
    "/radix",
    openapi_extra={
        "parameters": [
            {
                "name": "nodes",
                "in": "query",
                "schema": {"type": "integer", "minimum": 1, "maximum": MOST_NODES, "default": _USUAL_NODES},
            }
        ]
    },
)
async def radix(request: Request) -> Response:
    """The tree in at most so many nodes: sizes, hits and ages, no tokens. Waits for the engine's step."""
    most = _node_count(request.query_params.get("nodes"))
    view = await until_gone(request, asyncio.wrap_future(context_of(request).service.engine.tree(most)))
    return json_reply({} if view is None else tree_body(view))


@router.get("/status")
async def status(request: Request) -> Response:
    """What runs and waits, pages and tokens so far. Never waits for the engine."""
    return json_reply(status_body(context_of(request), tenant(request)))


def _node_count(given: str | None) -> int:
    if given is None or given == "":
        return _USUAL_NODES
    if not (given.isascii() and given.isdigit() and len(given) < 10 and 1 <= int(given) <= MOST_NODES):
        raise InvalidRequest(f"nodes must be an integer from 1 to {MOST_NODES}, got {quote(given)}")
    return int(given)


def _file(request: Request, name: str, kind: str) -> Response:
    content = (_FOLDER / name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {**_HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
