"""Which error each HTTP status is, with the server's own message. Pure.

InvalidCall: asked again, it fails again. Unsupported: there is no such route. Unreachable: later it may work.
Anything else is a failure of the server, a BackendError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from .errors import BackendError, InvalidCall, Unreachable, Unsupported

_MOST = 1000
"""Characters of a server's message that are passed on."""


def error_of(
    status: int, message: str, code: object = None, where: str = "", location: str | None = None
) -> BackendError:
    """`where` is what was asked, `location` where the server sends on to, `code` the server's own word."""
    said = f": {message}" if message else ""
    if status in (401, 403):
        return InvalidCall(f"{where} is not allowed ({status}){said} (is api_key the right one?)")
    if status == 404 and code != "model_not_found":
        return Unsupported(f"{where} does not exist on this server (404){said}")
    if status in (405, 501):
        return Unsupported(f"{where} is not supported by this server ({status}){said}")
    if 300 <= status < 400:
        return InvalidCall(f"{where} leads elsewhere ({status}); use base_url={location!r}")
    if status in (408, 429, 502, 503, 504):
        return Unreachable(f"{where} was not answered ({status}){said}")
    if status == 499 or status >= 500:
        return BackendError(f"{where} failed ({status}){said}")
    return InvalidCall(message or f"{where} was refused ({status})")


def message_of(content: bytes) -> tuple[str, object]:
    """Message and code of a server's answer; a message that is no JSON is taken as it is."""
    try:
        value: object = json.loads(content)
    except ValueError:
        return content[:_MOST].decode("utf-8", "replace").strip(), None
    return failure_in(value)


def failure_in(value: object) -> tuple[str, object]:
    """The same of an answer that is data already: {"error": {"message", "code"}}, or as others write it."""
    if not isinstance(value, Mapping):
        return str(value)[:_MOST], None
    inside = value.get("error")
    if isinstance(inside, Mapping):
        return failure_in(inside)
    said = inside or value.get("message") or value.get("detail") or ""
    text = said if isinstance(said, str) else json.dumps(said)
    return text[:_MOST], value.get("code") or value.get("type")


def raise_failure(value: object, where: str) -> None:
    """If an event of a stream is an error in the place of a text."""
    if isinstance(value, Mapping) and value.get("error") is not None:
        message, code = failure_in(value)
        status = code if isinstance(code, int) else 400 if code == "invalid_request_error" else 500
        raise error_of(status, message, code, where)
