"""A list of JSON objects behind the control token [TOOL_CALLS]: Mistral."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .ids import short_id
from .json_calls import JsonCallParser, Shape
from .protocol import CallParser, Json, Tool, one_or_more, tool_tag

_MARKER = "[TOOL_CALLS]"
_SHAPE = Shape(marker=_MARKER, opening=r"\s*\[\s*", closing=r"\s*\}", link=r"\s*,\s*", end=r"\s*\]")
_SEPARATOR = ", "


@dataclass(frozen=True, slots=True)
class Mistral:
    """See ToolFormat. `spaced`: a blank follows the marker, as in the templates of some versions."""

    spaced: bool = False

    @property
    def name(self) -> str:
        return "mistral"

    @property
    def shown(self) -> tuple[str, ...]:
        return (_MARKER,)

    @property
    def enforceable(self) -> bool:
        return True

    def offered(self, tools: Sequence[Tool], parallel: bool) -> Json:
        return {
            "type": "triggered_tags",
            "triggers": [_MARKER],
            "tags": [self.forced(tools, parallel)],
            "stop_after_first": True,
        }

    def forced(self, tools: Sequence[Tool], parallel: bool) -> Json:
        calls = [tool_tag(tool, _begin(tool.name), "}") for tool in tools]
        content = one_or_more(calls, _SEPARATOR, parallel)
        return {"type": "tag", "begin": self._begin, "content": content, "end": "]"}

    def parser(self, names: Iterable[str], *, live: bool) -> CallParser:
        return JsonCallParser(_SHAPE, names, live=live)

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        written = (f"{_begin(name)}{arguments}}}" for name, arguments in calls)
        return f"{self._begin}{_SEPARATOR.join(written)}]"

    def new_id(self) -> str:
        return short_id()

    @property
    def _begin(self) -> str:
        return f"{_MARKER} [" if self.spaced else f"{_MARKER}["


def _begin(name: str) -> str:
    return f'{{"name": "{name}", "arguments": '
