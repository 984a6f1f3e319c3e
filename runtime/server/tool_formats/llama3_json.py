"""An answer that is a JSON object with a name and parameters, or several with semicolons between: Llama 3.

Nothing marks such a call, so it must stand at the start of the answer: an answer that begins like a call has
to be one, any other is text to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .ids import long_id
from .json_calls import JsonCallParser, Shape
from .protocol import CallParser, Json, Tool, one_or_more, tool_tag

_SHAPE = Shape(marker="", opening=r"\s*", closing=r"\s*\}", link=r"\s*;\s*")
_SEPARATOR = "; "


class Llama3Json:
    """See ToolFormat."""

    name = "llama3_json"
    shown = ()
    enforceable = True

    def offered(self, tools: Sequence[Tool], parallel: bool) -> Json:
        other = {"type": "any_text", "not_beginning": ['{"name": "']}
        return {"type": "or", "elements": [self.forced(tools, parallel), other]}

    def forced(self, tools: Sequence[Tool], parallel: bool) -> Json:
        return one_or_more([tool_tag(tool, _begin(tool.name), "}") for tool in tools], _SEPARATOR, parallel)

    def parser(self, names: Iterable[str], *, live: bool) -> CallParser:
        return JsonCallParser(_SHAPE, names, live=live)

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        return _SEPARATOR.join(f"{_begin(name)}{arguments}}}" for name, arguments in calls)

    def new_id(self) -> str:
        return long_id()


def _begin(name: str) -> str:
    return f'{{"name": "{name}", "parameters": '
