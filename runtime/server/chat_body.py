"""A body of /v1/chat/completions as a ChatCall: the conversation, its tools, and how it is answered.

Knows the fields of this route; what it shares with completions is in openai_body.py. Nothing is rendered or
encoded here, and what a grammar must hold the answer to is in chat_tools.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRequest
from ..hints import NO_HINT
from ..sampling_params import SamplingParams
from ..text import quote
from ..types import Hint
from .context import ServerContext
from .conversation import Conversation, conversation_of
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
from .tool_formats.protocol import Tool

Choice = Literal["auto", "none", "required"]

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
    """What is asked. `named` is the tool that must be called, if one is named; then `choice` is required.
    With `returns_ids` the ids of prompt and answer are told, with `names_ids` tokens of log-probabilities are
    named by theirs."""

    conversation: Conversation
    choice: Choice
    named: str | None
    parallel: bool
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
        return bool(self.conversation.tools) and self.choice != "none"


def parse(body: Mapping[str, object], context: ServerContext) -> ChatCall:
    """Raises InvalidRequest, and ModelNotFound."""
    check_model(body, context)
    for name, instead in _UNSUPPORTED.items():
        if body.get(name) not in (None, [], {}):
            raise InvalidRequest(f"{name} is not supported, {instead}; got {quote(body[name])}")
    _check_modalities(body.get("modalities"))
    most = context.service.engine.max_length  # the engine stops where context or pool end
    conversation = conversation_of(body, most)
    choice, named = _choice(body.get("tool_choice"), conversation.tools)
    salt, priority, hint = job_fields(body)
    return ChatCall(
        conversation=conversation,
        choice=choice,
        named=named,
        parallel=switch(body, "parallel_tool_calls", True),
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
