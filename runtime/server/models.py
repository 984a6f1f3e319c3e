"""GET /v1/models and /v1/models/{id}: the one model there is. POST /v1/embeddings: what it does not do."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import InvalidRequest
from .body import read_object
from .context import ServerContext, context_of
from .openai_body import check_model, unknown_model
from .replies import json_reply

router = APIRouter(tags=["models"])


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The served model."""
    return json_reply({"object": "list", "data": [_card(context_of(request))]})


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> Response:
    """The served model by its name, which may hold slashes."""
    context = context_of(request)
    if model != context.model:
        raise unknown_model(model, context)
    return json_reply(_card(context))


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    """Always an error: models that embed are not served."""
    context = context_of(request)
    check_model(await read_object(request, context.settings.max_body_bytes), context)
    raise InvalidRequest(f"the model {context.model!r} generates text and gives no embeddings")


def _card(context: ServerContext) -> dict[str, object]:
    return {
        "id": context.model,
        "object": "model",
        "created": context.started,
        "owned_by": "radixlm",
        "root": context.service.engine.info.model,
        "parent": None,
        "max_model_len": context.service.engine.max_length,
    }
