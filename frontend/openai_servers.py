"""What servers of OpenAI's API take beside it. Pure.

OpenAI's own takes no more than it says; others ignore or refuse what they do not know, so nothing is sent
that a server is not known to take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .errors import InvalidCall, Unsupported
from .native_api import either

ServerName = Literal["auto", "openai", "radixlm", "sglang", "vllm", "other"]

_OPTIONS = {
    "min_new_tokens": "min_tokens",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
}
"""Names of Sampling that OpenAI's API does not have, and the fields that stand for them elsewhere."""


@dataclass(frozen=True, slots=True)
class Server:
    """`options`: fields beside OpenAI's. `structure`: the field for each way to say how a text looks, all
    inside of the field `nested` if that is set. `continues`: what makes it continue an answer that has begun.
    `takes_hints`: of programs. `reads`: it may be asked for no token at all. `limit`: the field for how
    many tokens a chat answer may have. `sends_temperature`: 1, its default, is sent as well, since the model
    may have a default of its own."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    structure: Mapping[str, str] = field(default_factory=dict)
    nested: str = ""
    continues: Mapping[str, object] = field(default_factory=dict)
    takes_hints: bool = False
    reads: bool = False
    limit: str = "max_tokens"
    sends_temperature: bool = True

    def structure_fields(self, way: str, value: object) -> dict[str, object]:
        """`way` is regex, grammar, json_schema or choice. Raises Unsupported."""
        if way == "choice" and "choice" not in self.structure and "regex" in self.structure:
            assert isinstance(value, list), "choices are a list"
            way, value = "regex", either(value)
        name = self.structure.get(way)
        if name is None:
            raise Unsupported(
                f"this server ({self.name}) is not known to take a {way}: use json_schema= on a chat model, "
                "which is part of the API, RuntimeEndpoint(url), or say what the server is by "
                'server="radixlm", "sglang" or "vllm"'
            )
        if self.nested:
            return {self.nested: {name: value}}
        return {name: value}


_ANSWER = {"continue_final_message": True, "add_generation_prompt": False}

_SERVERS = (
    Server("openai", limit="max_completion_tokens", sends_temperature=False),
    Server("other"),
    Server(
        "radixlm",
        options={**_OPTIONS, **{name: name for name in ("stop_regex", "relaxed", "compact")}},
        structure={
            "regex": "regex",
            "grammar": "ebnf",
            "json_schema": "json_schema",
            "choice": "choice",
        },
        continues=_ANSWER,
        takes_hints=True,
        reads=True,
    ),
    Server(
        "sglang",
        options=_OPTIONS,
        structure={"regex": "regex", "grammar": "ebnf", "json_schema": "json_schema"},
        continues={"continue_final_message": True},
    ),
    Server(
        "vllm",
        options=_OPTIONS,
        structure={"regex": "regex", "grammar": "grammar", "json_schema": "json", "choice": "choice"},
        nested="structured_outputs",
        continues=_ANSWER,
    ),
)
SERVERS: Mapping[str, Server] = {each.name: each for each in _SERVERS}
"""vLLM takes structured_outputs from 0.11 on."""


def check_server(name: object) -> None:
    if name not in get_args(ServerName):
        raise InvalidCall(f"server must be one of {', '.join(get_args(ServerName))}, got {name!r:.200}")


def server_from_models(models: object) -> Server:
    """From the answer of /v1/models: who owns the first model."""
    data = models.get("data") if isinstance(models, Mapping) else None
    card = data[0] if isinstance(data, list) and data else None
    owner = card.get("owned_by") if isinstance(card, Mapping) else None
    return SERVERS.get(str(owner), SERVERS["other"]) if owner != "openai" else SERVERS["other"]


def schema_of(text: str) -> object:
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise InvalidCall(f"json_schema must be JSON: {error}; got {text!r:.200}") from None
    return schema
