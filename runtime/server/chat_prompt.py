"""From the messages and tools of a call to the token ids of its prompt.

The model's own template writes the prompt. Where it takes no tools, they are described in a system message,
and calls and results of earlier turns are written as plain text, so that any model can be asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ..chat import arguments_as_text, check_messages
from ..chat_marks import texts_in
from ..tokenizer import Tokenizer
from .conversation import Conversation
from .tool_formats.detection import GENERAL, takes_tools
from .tool_formats.protocol import Json, ToolFormat

Messages = list[dict[str, object]]

_TEXT = 100
"""Characters that are encoded in the time in which a template writes one more message."""


def prompt_ids(
    asked: Conversation,
    form: ToolFormat | None,
    tokenizer: Tokenizer,
    check_length: Callable[[int], None],
    *,
    offers_tools: bool = True,
) -> tuple[int, ...]:
    """`form` is that of calls in the answer, for `check_length` see ChatOptions. Raises InvalidRequest."""
    messages = check_messages(asked.messages)
    tools = asked.tool_list if offers_tools else ()
    if not takes_tools(tokenizer):
        messages, tools = in_words(messages, tools, form or GENERAL), ()
    ids = tokenizer.apply_chat_template(
        messages,
        asked.add_generation_prompt,
        tools=list(tools) or None,
        template_kwargs=asked.template_kwargs,
        continue_final_message=asked.continue_final,
        check_length=check_length,
    )
    return tuple(ids)


def continued_text(asked: Conversation) -> str | None:
    """The text of the last message, if that is what the answer continues."""
    return str(check_messages(asked.messages)[-1]["content"]) if asked.continue_final else None


def count_characters(asked: Conversation) -> int:
    """Of all texts that are rendered; each of them is as much work as some characters more."""
    texts = texts_in([asked.messages, asked.tool_list, asked.template_kwargs])
    return sum(_TEXT + len(text) for text in texts)


# -- templates without tools ---------------------------------------------------------------------------


def in_words(messages: Messages, tools: Sequence[Json], form: ToolFormat) -> Messages:
    """The conversation without fields that a template without tools does not know."""
    found: Messages = []
    for message in arguments_as_text(messages):
        if message["role"] == "tool":
            _add_result(found, str(message["content"]))
        elif "tool_calls" in message:
            found.append(_with_calls(message, form))
        else:
            found.append(message)
    return _with_description(found, _description(tools, form)) if tools else found


def _add_result(messages: Messages, result: str) -> None:
    """Results that follow each other are one message, as some templates want roles to alternate."""
    text = f"{_RESULT}\n{result}\n</tool_response>"
    if messages and messages[-1]["role"] == "user" and str(messages[-1]["content"]).startswith(_RESULT):
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{text}"}
    else:
        messages.append({"role": "user", "content": text})


_RESULT = "<tool_response>"


def _with_calls(message: Mapping[str, object], form: ToolFormat) -> dict[str, object]:
    calls = message["tool_calls"]
    assert isinstance(calls, list), "messages are checked"
    functions = [call["function"] for call in calls]
    text = form.write([(each["name"], each["arguments"]) for each in functions])
    parts = [part for part in (str(message["content"]), text) if part]
    return {"role": message["role"], "content": "\n".join(parts)}


def _with_description(messages: Messages, description: str) -> Messages:
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{description}"}, *messages[1:]]
    return [{"role": "system", "content": description}, *messages]


def _description(tools: Sequence[Json], form: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.write([("function_name", '{"argument": "value"}')])
    return (
        f"You can call functions. Each line describes one:\n{listed}\n"
        f"To call a function, write its name and arguments like this:\n{example}"
    )
