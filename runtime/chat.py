"""Checks a conversation before a chat template sees it.

Templates join strings without looking, so a wrong field would give a cryptic template error or, worse,
control text from a role name. Owns what a message may look like; knows no template and no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .errors import InvalidRequest

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_messages(messages: object) -> list[dict[str, object]]:
    """Copies of the messages with `content` as one string: text parts are joined by line breaks, and an
    assistant's null content (it only called tools) becomes empty. Other fields pass through unchanged.

    Raises InvalidRequest for anything else, naming the message by its position.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(f"messages must be a list of role and content, got {messages!r}")
    if not messages:
        raise InvalidRequest("messages must not be empty")
    return [_check_message(index, message) for index, message in enumerate(messages)]


def _check_message(index: int, message: object) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"messages[{index}] must be an object with role and content, got {message!r}")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequest(f"messages[{index}].role must be a word such as 'user', got {role!r}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    return {**message, "content": _text_of(index, content)}


def _text_of(index: int, content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_part_text(index, part) for part in content)
    raise InvalidRequest(f"messages[{index}].content must be text or a list of text parts, got {content!r}")


def _part_text(index: int, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise InvalidRequest(f"messages[{index}].content has a part that is not text: {part!r}")
