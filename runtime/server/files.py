"""/v1/files: input files of batches, and their results. What is kept where is known to file_store.py."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, Response

from ..errors import InvalidRequest
from .body import body_parts
from .context import context_of, tenant
from .data_folder import require_data
from .file_store import INPUT, MOST_FILES, FileStore, StoredFile
from .records import page_json
from .replies import json_reply
from .upload_form import UploadForm

router = APIRouter(tags=["files"])

_FORM_BYTES = 64 << 10
"""What a form may have besides the file."""
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [INPUT]},
                    },
                }
            }
        },
    }
}


@router.post("/v1/files", openapi_extra=_FORM)
async def upload(request: Request) -> Response:
    files = _files(request)
    with files.upload(tenant(request)) as coming:
        form = UploadForm(request.headers.get("content-type", ""), coming.write)
        await form.read(body_parts(request, files.most_bytes + _FORM_BYTES))
        if "purpose" not in form.fields:
            raise InvalidRequest(f"the form must have a field called 'purpose', which is {INPUT!r}")
        assert form.filename is not None, "a form that was read has a file"
        found = await asyncio.to_thread(
            files.keep, coming, tenant(request), form.filename, form.fields["purpose"]
        )
    return json_reply(found.to_json())


@router.get("/v1/files")
async def list_files(
    request: Request,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_FILES)] = MOST_FILES,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    def page() -> dict[str, object]:
        found = files.page(
            tenant(request), after=after, limit=limit, purpose=purpose, oldest_first=order == "asc"
        )
        return page_json(found, StoredFile.to_json)

    files = _files(request)
    return json_reply(await asyncio.to_thread(page))


@router.get("/v1/files/{file_id}")
async def retrieve(request: Request, file_id: str) -> Response:
    return json_reply(_files(request).get(tenant(request), file_id).to_json())


@router.get("/v1/files/{file_id}/content")
async def content(request: Request, file_id: str) -> Response:
    files = _files(request)
    found = files.get(tenant(request), file_id)
    # A server may ignore ranges. Starlette's own answers to bad ones are not in JSON.
    request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]
    return FileResponse(
        files.content(tenant(request), file_id),
        headers={"Accept-Ranges": "none"},
        media_type="application/octet-stream",
        filename=found.filename,
    )


@router.delete("/v1/files/{file_id}")
async def delete(request: Request, file_id: str) -> Response:
    await asyncio.to_thread(_files(request).delete, tenant(request), file_id)
    return json_reply({"id": file_id, "object": "file", "deleted": True})


def _files(request: Request) -> FileStore:
    return require_data(context_of(request).data).files
