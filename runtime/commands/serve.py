"""`radixlm serve`: the endpoint over one engine, until SIGTERM or Ctrl-C.

A key may also come in the environment, RADIXLM_API_KEY, where other users of the machine cannot see it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..byte_size import format_bytes
from ..config import EngineConfig
from ..server.settings import LOG_LEVELS, ServerSettings
from .options import Flag, add_engine_flags, add_fields, byte_count, engine_config, fields_as_flags, given

Serve: TypeAlias = Callable[[EngineConfig, ServerSettings], None]
"""Opens an engine and answers requests until a signal."""

SERVER_FLAGS: Mapping[str, Flag] = {
    "host": Flag("address to listen on; 0.0.0.0 for every one of this machine"),
    "port": Flag("port to listen on; 0 for any that is free"),
    "api_keys": Flag(
        "key that clients must send; may be repeated",
        {"action": "append", "metavar": "KEY"},
        name="--api-key",
    ),
    "served_model_name": Flag("name of the model for clients; not given: as in --model"),
    "cors_origins": Flag(
        "web origin that may call; may be repeated",
        {"action": "append", "metavar": "URL"},
        name="--cors-origin",
    ),
    "max_queued": Flag("most prompts that wait for their first token"),
    "max_queued_tokens": Flag("most tokens of prompts that wait for their first token"),
    "max_prompts": Flag("most prompts in a request"),
    "max_choices": Flag("most texts a request asks for, choices of all its prompts"),
    "max_body_bytes": Flag(
        "most bytes of a request", {"type": byte_count, "metavar": "SIZE"}, format_bytes, name="--max-body"
    ),
    "request_timeout": Flag("seconds a request may take; 0: any time"),
    "stream_idle_timeout": Flag("seconds a client may leave a stream unread; 0: any time"),
    "shutdown_timeout": Flag("seconds from SIGTERM to the end; running requests get all but the last"),
    "stuck_after": Flag("seconds without a step, with work to do, after which the server is not ready"),
    "tool_parser": Flag("how the model writes tool calls; auto: as its template shows"),
    "reasoning_parser": Flag("how the model marks its reasoning; auto: as its template shows"),
    "native_null_first_logprob": Flag("in /generate, no log-probability for the first token asked for"),
    "data_dir": Flag("folder for files and batches; not given: none are taken"),
    "log_level": Flag("least level that is logged", {"choices": LOG_LEVELS}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_fields(parser.add_argument_group("server"), ServerSettings, SERVER_FLAGS)
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, serve: Serve) -> int:
    serve(engine_config(arguments), _settings(arguments))
    return 0


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    values: dict[str, Any] = given(arguments, SERVER_FLAGS)
    for name in ("api_keys", "cors_origins"):
        values[name] = tuple(values.get(name, ()))
    if key := os.environ.get("RADIXLM_API_KEY"):
        values["api_keys"] += (key,)
    with fields_as_flags(SERVER_FLAGS):
        return ServerSettings(**values)
