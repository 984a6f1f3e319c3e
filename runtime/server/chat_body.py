"""A body of /v1/chat/completions as a ChatCall: the conversation, its tools, and how it is answered.

Knows the fields of this route; what it shares with completions is in openai_body.py. Nothing is rendered or
encoded here, and what a grammar must hold the answer to is in chat_tools.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRequest
from ..hints import NO_HINT
from ..sampling_params import SamplingParams
from ..text import quote
from ..types import Hint
from .context import ServerContext
from .field_values import read_mapping, read_switch
from .openai_body import (
    StreamOptions,
    check_model,
    is_streamed,
    job_fields,
    sampling_of,
    stream_options,
    switch,
)
from .openai_fields import INTEGER, OBJECT, SWITCH, TEXT, Schema
from .tool_formats.protocol import Json, Tool

Choice = Literal["auto", "none", "required"]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MANY: Schema = {"type": "array", "items": {"type": "object"}}

FIELDS: Mapping[str, Schema] = {
    "messages": {**_MANY, "description": "role and content each; content is text or text parts"},
    "tools": {**_MANY, "type": ["array", "null"], "description": "functions that the model may call"},
    "tool_choice": {
        "type": ["string", "object", "null"],
        "description": "auto, none, required, or an object that names a function",
    },
    "parallel_tool_calls": {**SWITCH, "description": "false allows one call at most; default true"},
    "logprobs": {**SWITCH, "description": "answer with log-probabilities of the tokens"},
    "top_logprobs": {**INTEGER, "description": "alternatives a token, 0 to 20"},
    "chat_template_kwargs": {**OBJECT, "description": "variables of the model's chat template"},
    "reasoning_effort": {**TEXT, "description": "the same as a variable of that name"},
    "add_generation_prompt": {
        **SWITCH,
        "description": "the prompt ends with the head of an answer; default true",
    },
    "return_tokens_as_token_ids": {**SWITCH, "description": "token_id:5 in place of a token's text"},
    "continue_final_message": {**SWITCH, "description": "the answer continues the last message"},
}


@dataclass(frozen=True, slots=True)
class ChatCall:
    """What is asked. `messages` are as they came, for check_messages; `tool_list` are the tools as the
    template shows them, `tools` the same as they are called. `named` is the one that must be called, if one
    is named; then `choice` is required. With `returns_ids` the ids of prompt and answer are told, with
    `names_ids` tokens of log-probabilities are named by theirs."""

    messages: object
    tools: tuple[Tool, ...]
    tool_list: tuple[Json, ...]
    choice: Choice
    named: str | None
    parallel: bool
    template_kwargs: Json
    add_generation_prompt: bool
    continue_final: bool
    sampling: SamplingParams
    stream: bool
    options: StreamOptions
    salt: str
    priority: int
    returns_ids: bool
    names_ids: bool
    hint: Hint = NO_HINT

    @property
    def offers_tools(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and self.choice != "none"


def parse(body: Mapping[str, object], context: ServerContext) -> ChatCall:
    """Raises InvalidRequest, and ModelNotFound."""
    check_model(body, context)
    for name, instead in _UNSUPPORTED.items():
        if body.get(name) not in (None, [], {}):
            raise InvalidRequest(f"{name} is not supported, {instead}; got {quote(body[name])}")
    _check_modalities(body.get("modalities"))
    tool_list = _tool_list(body.get("tools"))
    tools = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tool_list))
    _check_names(tools)
    choice, named = _choice(body.get("tool_choice"), tools)
    continue_final = switch(body, "continue_final_message")
    add_generation_prompt = switch(body, "add_generation_prompt", not continue_final)
    if continue_final and add_generation_prompt:
        raise InvalidRequest("continue_final_message needs add_generation_prompt to be false, got True")
    most = context.service.engine.max_length  # the engine stops where context or pool end
    salt, priority, hint = job_fields(body)
    return ChatCall(
        messages=body.get("messages"),
        tools=tools,
        tool_list=tool_list,
        choice=choice,
        named=named,
        parallel=switch(body, "parallel_tool_calls", True),
        template_kwargs=_template_kwargs(body),
        add_generation_prompt=add_generation_prompt,
        continue_final=continue_final,
        sampling=sampling_of(body, max_tokens_default=most, context=context, chat=True),
        stream=is_streamed(body),
        options=stream_options(body),
        salt=salt,
        priority=priority,
        hint=hint,
        returns_ids=switch(body, "return_token_ids"),
        names_ids=switch(body, "return_tokens_as_token_ids"),
    )


_UNSUPPORTED = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "answers are text",
    "web_search_options": "nothing is looked up",
    "chat_template": "the model's own template is used",
    "documents": "give them in chat_template_kwargs, or as messages",
    "mm_processor_kwargs": "messages are text",
}
"""Fields that would change the answer, and what to do instead."""


def _check_modalities(value: object) -> None:
    if value not in (None, ["text"]):
        raise InvalidRequest(f"modalities may be ['text'], got {quote(value)}")


def _template_kwargs(body: Mapping[str, object]) -> Json:
    given = body.get("chat_template_kwargs")
    found = {} if given is None else dict(read_mapping("chat_template_kwargs", given))
    effort = body.get("reasoning_effort")
    if effort is None:
        return found
    if not isinstance(effort, str):
        raise InvalidRequest(f"reasoning_effort must be text, got {quote(effort)}")
    return {"reasoning_effort": effort, **found}


# -- tools ---------------------------------------------------------------------------------------------


def _tool_list(value: object) -> tuple[Json, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"tools must be a list, got {quote(value)}")
    return tuple(read_mapping(f"tools[{index}]", tool) for index, tool in enumerate(value))


def _tool(where: str, tool: Json) -> Tool:
    if tool.get("type", "function") != "function":
        raise InvalidRequest(f"{where}.type must be 'function', got {quote(tool['type'])}")
    function = read_mapping(f"{where}.function", tool.get("function"))
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.function.name must be 1 to 128 letters, digits or any of _.:/-, got {quote(name)}"
        )
    strict = read_switch(f"{where}.function.strict", function.get("strict"))
    return Tool(name, _parameters(f"{where}.function.parameters", function.get("parameters"), strict), strict)


def _parameters(where: str, value: object, strict: bool) -> Json:
    """The schema of the arguments, which are an object. A function takes what it declares and nothing more,
    unless its schema says of undeclared keys what they are, or is strict and so taken at its word."""
    if value is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema = read_mapping(where, value)
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest(f"{where}.type must be 'object', got {quote(kind)}")
    found = {**schema, "type": "object"}
    if "properties" in schema and not strict and _OPENING.isdisjoint(schema):
        found["additionalProperties"] = False
    return found


_OPENING = {
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "if",
    "dependentSchemas",
    "$ref",
    "$dynamicRef",
}
"""Keywords that say something of keys beside those in `properties`."""


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(f"tools[{index}].function.name must be there once, got {tool.name!r} again")
        seen.add(tool.name)


def _choice(value: object, tools: tuple[Tool, ...]) -> tuple[Choice, str | None]:
    if value is None or value == "auto":
        return "auto", None
    if value == "none":
        return "none", None
    if not tools:
        raise InvalidRequest(f"tool_choice needs tools, got {quote(value)} without any")
    if value == "required":
        return "required", None
    name = _named(value)
    if name is None:
        allowed = "'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}"
        raise InvalidRequest(f"tool_choice must be {allowed}, got {quote(value)}")
    if name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"tool_choice must name one of the tools, got {quote(name)}")
    return "required", name


def _named(value: object) -> str | None:
    if not isinstance(value, Mapping) or value.get("type") != "function":
        return None
    function = value.get("function")
    name = function.get("name") if isinstance(function, Mapping) else value.get("name")
    return name if isinstance(name, str) else None
