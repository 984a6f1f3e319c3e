"""What goes wrong in the endpoint, and the one place that says which status each failure has.

RadixError (errors.py)
├── HttpFailure            has a status of its own
│   ├── Aborted            499: by /abort_request; no client tries that again
│   ├── Forbidden          403: from a page of another origin
│   ├── Unauthorized       401, with OpenAI's code
│   ├── NotFound           404
│   │   └── ModelNotFound  404, with the code that OpenAI's clients look for
│   ├── BodyTooLarge       413
│   ├── Busy               503 with Retry-After: too much waits, or the server shuts down
│   └── TookTooLong        504: over the time a request has
├── InvalidInput           400
├── RequestFailed          500: an accepted request that ended with an error
└── EngineStopped          503

The body is the same on both surfaces: {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import EngineStopped, InvalidInput, RadixError, TooLarge

FAILURES = {
    400: "what was asked for is wrong; the message says what and why",
    401: "no key, or a wrong one",
    403: "asked by a page of another origin",
    404: "there is no such thing",
    413: "the body is too large",
    499: "the request was aborted",
    500: "the request was accepted and then failed",
    503: "too much waits, or the server shuts down; try again",
    504: "the request took too long",
}
"""Each status of a failure, for the description of the routes."""

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["integer", "string"]},
            },
        }
    },
}

RETRY_SECONDS = 1
"""What clients are told to wait when there is too much to do."""


class HttpFailure(RadixError):
    """A failure that exists over HTTP only."""

    status = 500
    kind = "server_error"
    code: str | None = None  # None: the status


class Unauthorized(HttpFailure):
    """No key, or a wrong one."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Forbidden(HttpFailure):
    """A browser asks on behalf of a page that has no business here."""

    status = 403
    kind = "permission_error"


class Aborted(HttpFailure):
    """Its client ended it by /abort_request."""

    status = 499
    kind = "aborted_error"


class NotFound(HttpFailure):
    """There is no such thing, or not for this key."""

    status = 404
    kind = "not_found_error"


class ModelNotFound(NotFound):
    """A model that is not served here."""

    code = "model_not_found"


class BodyTooLarge(HttpFailure):
    """The body has more bytes than are taken."""

    status = 413
    kind = "invalid_request_error"


class Busy(HttpFailure):
    """Too much waits already, or the server is shutting down."""

    status = 503
    kind = "overloaded_error"


class TookTooLong(HttpFailure):
    """A request that was ended because its time was over."""

    status = 504
    kind = "timeout_error"


def status_of(error: BaseException) -> int:
    if isinstance(error, HttpFailure):
        return error.status
    if isinstance(error, InvalidInput):
        return 400
    return 503 if isinstance(error, EngineStopped) else 500


def headers_of(error: BaseException) -> dict[str, str]:
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": str(RETRY_SECONDS)} if status_of(error) == 503 else {}


def body_of(error: BaseException) -> Mapping[str, object]:
    """What a client is told. Of what is not ours, only that it happened: its text may hold anything."""
    if not isinstance(error, RadixError):
        return error_body(f"internal error: {type(error).__name__}", "server_error", 500)
    if isinstance(error, HttpFailure):
        return error_body(str(error), error.kind, error.code or error.status)
    kind = "invalid_request_error" if isinstance(error, InvalidInput) else "server_error"
    code = "context_length_exceeded" if isinstance(error, TooLarge) else status_of(error)
    return error_body(str(error), kind, code)


def error_body(message: str, kind: str, code: int | str) -> Mapping[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
