"""Health: alive, ready, and able to generate.

/health says whether the engine lives, /ready whether it moves on: both look at its pulse and never wait for
it. /health_generate has one token generated.
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..sampling_params import SamplingParams
from .context import context_of
from .failures import Busy
from .replies import json_reply
from .service import Job

router = APIRouter(tags=["health"])

_PROBE = Job((0,), SamplingParams(max_tokens=1, temperature=0.0), "", salt="health", priority=1 << 20)
_PROBE_SECONDS = 20.0


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the server answers and its engine lives, however long a step of it takes; else 503."""
    if not context_of(request).service.engine.pulse().alive:
        raise Busy("the engine has stopped")
    return json_reply({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """200 if requests should be sent here, 503 with the reason if not."""
    reason = context_of(request).service.unready()
    if reason is not None:
        raise Busy(reason)
    return json_reply({"status": "ready"})


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """200 if a token could be generated, 503 with the reason if not."""
    service = context_of(request).service
    reason = service.unready()
    if reason is not None:
        raise Busy(reason)
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            [events] = await service.collect([_PROBE])
    except TimeoutError:
        raise Busy(f"no token within {_PROBE_SECONDS:g} s") from None
    if events[-1].finish_reason == "error":
        raise Busy(f"no token could be generated: {events[-1].error}")
    return json_reply({"status": "ok"})
