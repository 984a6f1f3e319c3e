"""A conversation as a body has it, with the tools that are offered in it: all that its prompt is made of.

Chat and /tokenize read it alike, so that what is counted is what is sent. Knows fields; renders nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidRequest, TooLarge
from ..text import quote
from .field_values import read_mapping, read_switch
from .tool_formats.protocol import Json, Tool

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` are as they came, for check_messages; `tool_list` are the tools as the template shows them,
    `tools` the same as they are called."""

    messages: object
    tools: tuple[Tool, ...]
    tool_list: tuple[Json, ...]
    template_kwargs: Json
    add_generation_prompt: bool
    continue_final: bool


def conversation_of(body: Mapping[str, object], most_messages: int) -> Conversation:
    """Raises InvalidRequest, and TooLarge for more messages, each of which is a token and takes its time."""
    messages = body.get("messages")
    if isinstance(messages, list) and len(messages) > most_messages:
        raise TooLarge(
            f"{len(messages)} messages can never fit: context and pool hold {most_messages} tokens"
        )
    tool_list = _tool_list(body.get("tools"))
    tools = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tool_list))
    _check_names(tools)
    continue_final = read_switch("continue_final_message", body.get("continue_final_message"))
    add_generation_prompt = read_switch(
        "add_generation_prompt", body.get("add_generation_prompt"), not continue_final
    )
    if continue_final and add_generation_prompt:
        raise InvalidRequest("continue_final_message needs add_generation_prompt to be false, got True")
    return Conversation(
        messages, tools, tool_list, _template_kwargs(body), add_generation_prompt, continue_final
    )


def _template_kwargs(body: Mapping[str, object]) -> Json:
    given = body.get("chat_template_kwargs")
    found = {} if given is None else dict(read_mapping("chat_template_kwargs", given))
    effort = body.get("reasoning_effort")
    if effort is None:
        return found
    if not isinstance(effort, str):
        raise InvalidRequest(f"reasoning_effort must be text, got {quote(effort)}")
    return {"reasoning_effort": effort, **found}


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
