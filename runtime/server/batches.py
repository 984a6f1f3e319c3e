"""/v1/batches, OpenAI's Batch API on a folder of this machine, and the worker behind it.

The routes change states on disk and tell the worker; what becomes of a batch is known to batch_runner.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from ..errors import InvalidRequest
from ..text import quote
from . import chat, completions
from .batch_runner import BatchRunner
from .batch_state import Batch, parse_order
from .body import read_object
from .context import ServerContext, context_of, tenant
from .data_folder import DataFolder, require_data
from .failures import NotFound
from .records import disk_failures, page_json
from .replies import json_reply

router = APIRouter(tags=["batches"])

_ANSWERS = {"/v1/chat/completions": chat.answer, "/v1/completions": completions.answer}
_MOST_LISTED = 100
_TEXT = {"type": "string"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["input_file_id", "endpoint", "completion_window"],
                    "properties": {
                        "input_file_id": _TEXT,
                        "endpoint": {"type": "string", "enum": list(_ANSWERS)},
                        "completion_window": {"type": "string", "pattern": "^[1-9][0-9]{0,2}[hd]$"},
                        "metadata": {"type": ["object", "null"], "additionalProperties": _TEXT},
                    },
                }
            }
        },
    }
}


@asynccontextmanager
async def worker(context: ServerContext) -> AsyncIterator[None]:
    """Works on batches as long as it is open, and closes the data folder."""
    if context.data is None:
        yield
        return
    answers = {endpoint: partial(answer, context) for endpoint, answer in _ANSWERS.items()}
    task = asyncio.create_task(BatchRunner(context.data, answers, context.settings).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        context.data.close()
    if not task.cancelled():
        task.result()


@router.post("/v1/batches", openapi_extra=_BODY)
async def create(request: Request) -> Response:
    data = _data(request)
    order = parse_order(await read_object(request, context_of(request).settings.max_body_bytes), _ANSWERS)
    try:
        source = data.files.content(tenant(request), order.input_file_id)
        with disk_failures("keep the batch"):
            batch = data.batches.create(tenant(request), order, source)
    except NotFound:
        raise InvalidRequest(f"input_file_id: there is no file {quote(order.input_file_id)}") from None
    data.changes.put_nowait((batch.tenant, batch.id))
    return json_reply(batch.to_json())


@router.get("/v1/batches")
async def list_batches(
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 20,
) -> Response:
    def page() -> dict[str, object]:
        return page_json(batches.page(tenant(request), limit=limit, after=after), Batch.to_json)

    batches = _data(request).batches
    return json_reply(await asyncio.to_thread(page))


@router.get("/v1/batches/{batch_id}")
async def retrieve(request: Request, batch_id: str) -> Response:
    return json_reply(_data(request).batches.get(tenant(request), batch_id).to_json())


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel(request: Request, batch_id: str) -> Response:
    data = _data(request)
    batch = data.batches.get(tenant(request), batch_id)
    with disk_failures("keep the batch"):
        batch = data.batches.update(batch, lambda found: found.cancelling(int(time.time())))
    data.changes.put_nowait((batch.tenant, batch.id))
    return json_reply(batch.to_json())


def _data(request: Request) -> DataFolder:
    return require_data(context_of(request).data)
