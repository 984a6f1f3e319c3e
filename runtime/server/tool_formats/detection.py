"""Which form of calls a model writes: as it was set, or as its chat template shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ...errors import InvalidConfig, InvalidRequest
from ...text import quote
from .hermes import Hermes
from .llama3_json import Llama3Json
from .mistral import Mistral
from .protocol import ToolFormat
from .pythonic import Pythonic

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

AUTO = "auto"
GENERAL: ToolFormat = Hermes()
"""For models whose template takes no tools."""
PLAIN: ToolFormat = Llama3Json()
"""For calls that must be made, where the model's own form cannot be enforced."""

_FORMATS: dict[str, ToolFormat] = {
    "hermes": GENERAL,
    "llama3_json": PLAIN,
    "mistral": Mistral(),
    "pythonic": Pythonic(),
}
TOOL_PARSERS = (AUTO, *_FORMATS)
"""What may be set."""


def check_tool_parser(name: str) -> None:
    if name not in TOOL_PARSERS:
        raise InvalidConfig(f"tool_parser must be one of {', '.join(TOOL_PARSERS)}, got {quote(name)}")


@lru_cache(maxsize=8)
def takes_tools(tokenizer: Tokenizer) -> bool:
    """Whether the model's template writes the tools of a request: one is shown to it."""
    function = {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function}]
    try:
        return _NAME in tokenizer.render_chat([{"role": "user", "content": "?"}], tools=tools)
    except InvalidRequest:  # a template that takes no such conversation
        return "tools" in (tokenizer.chat_template(tools=True) or "")


_NAME = "show_me_whether_tools_are_shown"


def format_of(setting: str, tokenizer: Tokenizer) -> ToolFormat | None:
    """None if the template takes tools in a form that is not known."""
    template = (tokenizer.chat_template(tools=True) or "") if takes_tools(tokenizer) else ""
    if setting == "mistral" or (setting == AUTO and "[TOOL_CALLS]" in template):
        return Mistral(spaced="[TOOL_CALLS] [" in template)
    if setting != AUTO:
        return _FORMATS[setting]
    if not template:
        return GENERAL
    return next((sign.format for sign in _SIGNS if sign.is_in(template)), None)


@dataclass(frozen=True, slots=True)
class _Sign:
    """A format is that of a template with one of these texts and with none of the others."""

    format: ToolFormat
    texts: tuple[str, ...]
    others: tuple[str, ...] = ()

    def is_in(self, template: str) -> bool:
        has_others = any(text in template for text in self.others)
        return not has_others and any(text in template for text in self.texts)


_SIGNS = (
    _Sign(_FORMATS["pythonic"], ("func_name1(params_name1=", "<|tool_call_start|>")),
    _Sign(PLAIN, ('"parameters": dictionary of argument name', "<|python_tag|>")),
    _Sign(GENERAL, ("<tool_call>",), ("<function=", "<arg_key>")),
)
