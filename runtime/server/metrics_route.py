"""/metrics: all figures of the server and its engine as Prometheus reads them. Never waits for the engine."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from .context import context_of

router = APIRouter(tags=["metrics"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Figures in the text format of Prometheus."""
    body, content_type = context_of(request).metrics.render()
    return Response(body, media_type=content_type)
