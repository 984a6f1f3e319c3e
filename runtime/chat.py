"""Checks a conversation before a chat template sees it.

Templates join strings without looking, so a wrong field would give a cryptic template error or, worse,
control text from a role name. Owns what a message may look like; knows no template and no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import msgspec

from .errors import InvalidRequest
from .text import quote

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_messages(messages: object) -> list[dict[str, object]]:
    """Copies of the messages with `content` as one string: text parts are joined by line breaks, and an
    assistant's null content (it only called tools) becomes empty. Arguments of tool calls that are the JSON
    text of an object become that object, which is what templates write. Fields that are null, and an empty
    list of tool calls, are left out, since templates ask whether a field is there. Others pass through
    unchanged.

    Raises InvalidRequest for anything else, naming the message by its position.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(f"messages must be a list of role and content, got {quote(messages)}")
    if not messages:
        raise InvalidRequest("messages must not be empty")
    return [_check_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def arguments_as_text(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Copies of checked messages in which arguments of calls are JSON text."""
    return [
        {**message, "tool_calls": [_in_text(call) for call in _calls(message)]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _calls(message: Mapping[str, object]) -> list[dict[str, dict[str, object]]]:
    calls = message["tool_calls"]
    assert isinstance(calls, list), "messages are checked"
    return calls


def _in_text(call: dict[str, dict[str, object]]) -> dict[str, object]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _check_message(where: str, message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content, got {quote(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequest(f"{where}.role must be a word such as 'user', got {quote(role)}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    found = {key: value for key, value in message.items() if value is not None}
    found["content"] = _text_of(where, content)
    if found.get("tool_calls") == []:
        del found["tool_calls"]
    if "tool_calls" in found:
        found["tool_calls"] = _tool_calls(f"{where}.tool_calls", found["tool_calls"])
    return found


def _text_of(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_part_text(where, part) for part in content)
    raise InvalidRequest(f"{where}.content must be text or a list of text parts, got {quote(content)}")


def _part_text(where: str, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidRequest(
        f"{where}.content has a part that is not text, which is all that is read here, got {quote(part)}"
    )


def _tool_calls(where: str, calls: object) -> list[dict[str, object]]:
    if not isinstance(calls, list | tuple):
        raise InvalidRequest(f"{where} must be a list, got {quote(calls)}")
    return [_tool_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(where: str, call: object) -> dict[str, object]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise InvalidRequest(f"{where} must be an object with a function, got {quote(call)}")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"{where}.function.name must be text, got {quote(name)}")
    if not isinstance(arguments, str | Mapping | None):
        raise InvalidRequest(f"{where}.function.arguments must be JSON text, got {quote(arguments)}")
    return {**call, "function": {**function, "arguments": _as_object(arguments)}}


def _as_object(arguments: str | Mapping[str, object] | None) -> object:
    """Text of anything but an object stays as it is: it was the model's, and the template may show it. So
    does one of an object that no template could write: the parser takes no lone surrogates."""
    if not arguments:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        found: object = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments
