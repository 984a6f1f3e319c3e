"""How an answer is written and read: the form of its calls and its reasoning, and the grammar that holds it
so.

A call that is begun is always held to the form, and its arguments to the schema: exactly for a tool that is
strict, as far as masks reach for another. Pure; which form a model has is known in tool_formats and
reasoning.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidRequest
from ..sampling_params import SamplingParams
from ..structure import STRUCTURES
from ..text import quote
from ..tokenizer import Tokenizer
from .chat_body import ChatCall
from .reasoning import BEGIN, END, Start
from .settings import ServerSettings
from .tool_formats.detection import PLAIN, format_of
from .tool_formats.protocol import CallParser, Json, Tool, ToolFormat


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """`weaker` is for a grammar that cannot be compiled: it holds tools that are not strict to their names
    only; None if there is nothing to give up. `form` is that of calls, None if none are expected; there may
    be one, or several if `parallel`. `only_calls`: a grammar allows nothing else behind the reasoning."""

    sampling: SamplingParams
    weaker: SamplingParams | None
    form: ToolFormat | None
    names: tuple[str, ...]
    parallel: bool
    start: Start
    only_calls: bool = False

    def call_parser(self, *, streams: bool, has_reasoned: bool) -> CallParser:
        """Of an answer with calls. `has_reasoned`: what is to be read stands behind reasoning that came and
        ended, so that a grammar holds it that begins there."""
        assert self.form is not None, "calls are expected"
        after = self.sampling.grammar_after
        is_begun = after is None or (after == END and has_reasoned)
        is_held = self.sampling.structural_tag is not None and is_begun
        return self.form.parser(self.names, live=streams and is_held)


def form_of(call: ChatCall, tokenizer: Tokenizer, settings: ServerSettings) -> ToolFormat | None:
    """The form of the calls in the answer; None if it may hold none. Raises InvalidRequest for a model whose
    form is not known."""
    if not call.offers_tools:
        return None
    found = format_of(settings.tool_parser, tokenizer)
    if call.choice == "required" and (found is None or not found.enforceable):
        return PLAIN
    if found is None:
        raise InvalidRequest(
            "the form in which this model writes calls of tools is not known here: ask with tool_choice "
            "'required' or 'none', or start the server with --tool-parser"
        )
    return found


def plan_of(call: ChatCall, form: ToolFormat | None, start: Start, tokenizer: Tokenizer) -> AnswerPlan:
    """Raises InvalidRequest where what is asked for does not go together."""
    shown = (*(form.shown if form is not None else ()), *(() if start is Start.BEHIND else (BEGIN, END)))
    sampling = call.sampling
    if any(_is_control(text, tokenizer) for text in shown):
        sampling = replace(sampling, skip_special_tokens=False)
    tools = tuple(tool for tool in call.conversation.tools if call.named in (None, tool.name))
    names, parallel = tuple(tool.name for tool in tools), call.parallel and call.named is None
    if form is None:
        return AnswerPlan(_after_reasoning(sampling, start), None, None, (), False, start)
    _check_structure(call, form)
    if not form.enforceable:
        strict = next((tool.name for tool in tools if tool.strict), None)
        if strict is not None:
            raise InvalidRequest(
                f"{quote(strict)} is strict, but no grammar describes how this model writes calls "
                f"({form.name}): ask for it with tool_choice 'required'"
            )
        return AnswerPlan(sampling, None, form, names, parallel, start)
    held, weaker = _held(replace(call, parallel=parallel), form, tools, sampling)
    return AnswerPlan(
        _after_reasoning(held, start),
        None if weaker is None else _after_reasoning(weaker, start),
        form,
        names,
        parallel,
        start,
        only_calls=call.choice == "required",
    )


def _held(
    call: ChatCall, form: ToolFormat, tools: Sequence[Tool], sampling: SamplingParams
) -> tuple[SamplingParams, SamplingParams | None]:
    """The sampling, and its weaker form; the latter alone if the first is too large to be asked for."""
    if all(tool.strict for tool in tools):
        return _with_tag(call, form, tools, sampling), None
    names_only = [tool if tool.strict else Tool(tool.name, {"type": "object"}) for tool in tools]
    weaker = _with_tag(call, form, names_only, sampling)
    try:
        return _with_tag(call, form, tools, sampling), weaker
    except InvalidRequest:
        return weaker, None


def _with_tag(
    call: ChatCall, form: ToolFormat, tools: Sequence[Tool], sampling: SamplingParams
) -> SamplingParams:
    found: Json | None
    if call.choice == "required":
        found = form.forced(tools, call.parallel)
    elif sampling.json_schema is not None:
        answer = {"type": "json_schema", "json_schema": json.loads(str(sampling.json_schema))}
        found = {
            "type": "or",
            "elements": [form.forced(tools, call.parallel), answer | {"relaxed": sampling.relaxed}],
        }
    else:
        found = form.offered(tools, call.parallel)
    tag = {"type": "structural_tag", "format": found}
    return replace(sampling, json_schema=None, structural_tag=tag, relaxed=False)


def _check_structure(call: ChatCall, form: ToolFormat) -> None:
    given = next((name for name in STRUCTURES if getattr(call.sampling, name) is not None), None)
    if given not in (None, "json_schema"):
        raise InvalidRequest(f"{given} does not go with tools, unless tool_choice is 'none'")
    if given is not None and not form.enforceable:
        raise InvalidRequest(
            f"{given} does not go with tools for this model, whose calls ({form.name}) no grammar describes"
        )


def _after_reasoning(sampling: SamplingParams, start: Start) -> SamplingParams:
    """What an answer must look like is meant of what comes behind the reasoning."""
    if sampling.structure is None or start is Start.BEHIND or sampling.grammar_after is not None:
        return sampling
    return replace(sampling, grammar_after=END)


def _is_control(text: str, tokenizer: Tokenizer) -> bool:
    ids = tokenizer.encode(text, bos=False)
    return len(ids) == 1 and ids[0] in tokenizer.special_ids
