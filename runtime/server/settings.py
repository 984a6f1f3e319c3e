"""ServerSettings: every limit and habit of the endpoint, in one frozen value; its flags are in serve.py.

A field brings its range with it. What belongs to the engine is in EngineConfig.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..errors import InvalidConfig
from ..text import is_unicode, quote
from .reasoning import check_reasoning_parser
from .tool_formats.detection import check_tool_parser


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Options of `radixlm serve`. Raises InvalidConfig on the first value that is not allowed.

    Seconds, bytes, tokens, counts; 0 seconds is no limit. max_queued and max_queued_tokens bound the prompts,
    and their tokens, that have not given a first token yet. request_timeout is from arrival to
    the last token, stream_idle_timeout how long a client may leave a stream unread, stuck_after how long work
    may wait without a step before the server says that it is not ready. shutdown_timeout is how
    long after SIGTERM the server may live on. data_dir keeps files and batches (None: those routes are
    refused).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_name: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_queued: int = 1024
    max_queued_tokens: int = 2_000_000
    max_prompts: int = 512
    max_choices: int = 128
    max_body_bytes: int = 4 << 20
    request_timeout: float = 600.0
    stream_idle_timeout: float = 60.0
    shutdown_timeout: float = 30.0
    stuck_after: float = 120.0
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    native_null_first_logprob: bool = False
    data_dir: str | None = None
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            _check_number(name, getattr(self, name), least, most)
        for name in ("host", "log_level"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise InvalidConfig(f"{name} must be text, got {quote(getattr(self, name))}")
        for name in ("served_model_name", "data_dir"):
            value = getattr(self, name)
            if value is not None and not (value and is_unicode(value)):  # clients are told of it
                raise InvalidConfig(f"{name} must be valid Unicode text, got {quote(value)}")
        if self.log_level not in LOG_LEVELS:
            raise InvalidConfig(
                f"log_level must be one of {', '.join(LOG_LEVELS)}, got {quote(self.log_level)}"
            )
        check_tool_parser(self.tool_parser)
        check_reasoning_parser(self.reasoning_parser)
        if not all(
            isinstance(key, str) and key.isascii() and key.isprintable() and key for key in self.api_keys
        ):
            raise InvalidConfig("api_key must be printable ASCII text that is not empty")


LOG_LEVELS = ("debug", "info", "warning", "error")

_RANGES: dict[str, tuple[int, float]] = {
    "port": (0, 65_535),
    "max_queued": (1, 1 << 31),
    "max_queued_tokens": (1, 1 << 48),
    "max_prompts": (1, 1 << 20),
    "max_choices": (1, 1024),
    "max_body_bytes": (1 << 10, 1 << 40),
    "request_timeout": (0, math.inf),
    "stream_idle_timeout": (0, math.inf),
    "shutdown_timeout": (0, math.inf),
    "stuck_after": (1, math.inf),
}
_WHOLE = {field.name for field in fields(ServerSettings) if field.type == "int"}


def _check_number(name: str, value: object, least: int, most: float) -> None:
    kinds = (int,) if name in _WHOLE else (int, float)
    if (
        isinstance(value, bool)
        or not isinstance(value, kinds)
        or not least <= value <= most
        or value == math.inf
    ):
        kind = "an integer" if name in _WHOLE else "a number"
        allowed = f"of at least {least}" if most == math.inf else f"from {least} to {most:g}"
        raise InvalidConfig(f"{name} must be {kind} {allowed}, got {quote(value)}")
