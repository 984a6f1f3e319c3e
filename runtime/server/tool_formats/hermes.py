"""Calls between <tool_call> and </tool_call>, a JSON object each: Hermes, Qwen, SmolLM3 and many more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .ids import long_id
from .json_calls import JsonCallParser, Shape
from .protocol import CallParser, Json, Tool, one_or_more, tool_tag

_MARKER = "<tool_call>"
_SHAPE = Shape(marker=_MARKER, opening=r"\s*", closing=r"\s*\}\s*</tool_call>")


class Hermes:
    """See ToolFormat."""

    name = "hermes"
    shown = (_MARKER, "</tool_call>")
    enforceable = True

    def offered(self, tools: Sequence[Tool], parallel: bool) -> Json:
        return {
            "type": "triggered_tags",
            "triggers": [_MARKER],
            "tags": _tags(tools),
            "stop_after_first": not parallel,
        }

    def forced(self, tools: Sequence[Tool], parallel: bool) -> Json:
        return one_or_more(_tags(tools), "\n", parallel)

    def parser(self, names: Iterable[str], *, live: bool) -> CallParser:
        return JsonCallParser(_SHAPE, names, live=live)

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        return "\n".join(_begin(name) + arguments + _END for name, arguments in calls)

    def new_id(self) -> str:
        return long_id()


_END = "}\n</tool_call>"


def _begin(name: str) -> str:
    return f'{_MARKER}\n{{"name": "{name}", "arguments": '


def _tags(tools: Sequence[Tool]) -> list[Json]:
    return [tool_tag(tool, _begin(tool.name), _END) for tool in tools]
