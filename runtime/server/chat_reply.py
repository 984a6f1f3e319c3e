"""Replies of /v1/chat/completions, whole or in chunks, from the events of a call.

An answer's text goes through the reasoning splitter, and what is not reasoning through the parser of calls;
what comes out are deltas as clients get them. A whole message is made of the very same deltas, joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..token_names import token_bytes, token_name, token_text
from ..tokenizer import Tokenizer
from ..types import Event, TokenLogprob
from .chat_body import ChatCall
from .chat_tools import AnswerPlan
from .openai_reply import by_choice, check_end, joined, stop_reason, usage_of
from .reasoning import ReasoningSplitter
from .tool_formats.protocol import CallArguments, CallBegin, CallParser, Part, Text

Delta = dict[str, object]

_LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot write."""


class AnswerReader:
    """Reads the text of one choice. `streams`: its deltas are sent as they come."""

    def __init__(self, plan: AnswerPlan, *, streams: bool) -> None:
        self._plan, self._streams = plan, streams
        self._splitter = ReasoningSplitter(plan.start)
        self._parser: CallParser | None = None
        self._calls = 0

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def read(self, text: str, *, is_last: bool) -> list[Delta]:
        """What more text makes known."""
        splits = [self._splitter.push(text)]
        if is_last:
            splits.append(self._splitter.finish())
        reasoning = "".join(split.reasoning for split in splits)
        content = "".join(split.content for split in splits)
        deltas: list[Delta] = [{"reasoning_content": reasoning}] if reasoning else []
        told = (self._delta(part) for part in self._parts(content, is_last=is_last))
        return [*deltas, *(delta for delta in told if delta is not None)]

    def _parts(self, content: str, *, is_last: bool) -> list[Part]:
        if self._plan.form is None or (self._parser is None and not content):
            return [Text(content)] if content else []
        if self._parser is None:
            has_reasoned = self._splitter.has_ended
            self._parser = self._plan.call_parser(streams=self._streams, has_reasoned=has_reasoned)
        parts = self._parser.push(content)
        return parts + self._parser.finish() if is_last else parts

    def _delta(self, part: Part) -> Delta | None:
        """None for what belongs to a second call where one is all that was asked for, and for the beginning
        of a call that was cut off before its name was known."""
        if isinstance(part, Text):
            return None if self._plan.only_calls else {"content": part.text}
        self._calls += isinstance(part, CallBegin)
        if self._calls > 1 and not self._plan.parallel:
            return None
        index = self._calls - 1
        if isinstance(part, CallArguments):
            return {"tool_calls": [{"index": index, "function": {"arguments": part.text}}]}
        form = self._plan.form
        assert form is not None, "there are no calls without a form of them"
        function = {"name": part.name, "arguments": ""}
        call = {"index": index, "id": form.new_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}


class ChoiceChunks:
    """One choice in chunks, event by event."""

    def __init__(self, index: int, plan: AnswerPlan, call: ChatCall, tokenizer: Tokenizer) -> None:
        self._index, self._call, self._tokenizer = index, call, tokenizer
        self._reader = AnswerReader(plan, streams=True)
        self._has_begun = False

    def chunks(self, event: Event) -> list[dict[str, object]]:
        """What is new by this event, in chunks of their own. Raises as check_end does."""
        check_end(event)
        finish, more = event.finish_reason, _extras(event, self._call, self._tokenizer)
        deltas = self._reader.read(event.text, is_last=finish is not None)
        found: list[dict[str, object]] = [self._chunk(delta) for delta in deltas]
        if finish is not None:
            end = _finish_of(event, self._reader, self._call)
            found.append(self._chunk({}) | end)
        elif not found and any(more.values()):
            found.append(self._chunk({}))
        if found:
            found[0] |= more
        if not self._has_begun:
            self._has_begun = True
            found.insert(0, self._chunk({"role": "assistant", "content": ""}))
        return found

    def _chunk(self, delta: Delta) -> dict[str, object]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def reply_of(
    head: dict[str, object],
    prompt_ids: Sequence[int],
    plan: AnswerPlan,
    call: ChatCall,
    tokenizer: Tokenizer,
    events: Sequence[Event],
) -> dict[str, object]:
    """The whole reply, from all events of the call. Raises as check_end does."""
    choices = [
        _choice(index, joined(own), plan, call, tokenizer)
        for index, own in enumerate(by_choice(events, call.sampling.n))
    ]
    ids = {"prompt_token_ids": prompt_ids} if call.returns_ids else {}
    return {**head, "choices": choices, "usage": usage_of([events]), **ids}


def message_of(deltas: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Deltas put together, as clients do it."""
    texts = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, object]] = []
    for delta in deltas:
        for name in texts:
            texts[name] += str(delta.get(name, ""))
        parts = delta.get("tool_calls", ())
        assert isinstance(parts, list | tuple), "a delta lists its calls"
        for part in parts:
            if "id" in part:
                call = {key: value for key, value in part.items() if key != "index"}
                calls.append({**call, "function": dict(part["function"])})
            else:
                function = calls[part["index"]]["function"]
                assert isinstance(function, dict), "made above"
                function["arguments"] += part["function"]["arguments"]
    message: dict[str, object] = {"role": "assistant", "content": texts["content"], "refusal": None}
    if texts["reasoning_content"]:
        message["reasoning_content"] = texts["reasoning_content"]
    if calls:
        message |= {"content": texts["content"] or None, "tool_calls": calls}
    return message


def _choice(
    index: int, event: Event, plan: AnswerPlan, call: ChatCall, tokenizer: Tokenizer
) -> dict[str, object]:
    check_end(event)
    reader = AnswerReader(plan, streams=False)
    message = message_of(reader.read(event.text, is_last=True))
    end, more = _finish_of(event, reader, call), _extras(event, call, tokenizer)
    return {"index": index, "message": message, "logprobs": None, **end, **more}


def _finish_of(event: Event, reader: AnswerReader, call: ChatCall) -> dict[str, object]:
    called = reader.has_calls and event.finish_reason == "stop"
    return {
        "finish_reason": "tool_calls" if called else event.finish_reason,
        "stop_reason": stop_reason(event, call.sampling),
    }


def _extras(event: Event, call: ChatCall, tokenizer: Tokenizer) -> dict[str, object]:
    """What is told of the tokens, if it was asked for."""
    found: dict[str, object] = {}
    if call.sampling.logprobs is not None:
        entries = [_logprob(entry, call, tokenizer) for entry in event.logprobs]
        found["logprobs"] = {"content": entries, "refusal": None} if entries else None
    if call.returns_ids:
        found["token_ids"] = event.token_ids
    return found


def _logprob(entry: TokenLogprob, call: ChatCall, tokenizer: Tokenizer) -> dict[str, object]:
    assert entry.logprob is not None, "only the first token of a prompt has none"
    top = [_named(token, value, call, tokenizer) for token, value in entry.top]
    return {**_named(entry.token_id, entry.logprob, call, tokenizer), "top_logprobs": top}


def _named(token: int, logprob: float, call: ChatCall, tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "token": token_name(token) if call.names_ids else token_text(tokenizer, token),
        "logprob": max(logprob, _LEAST_LOGPROB),
        "bytes": token_bytes(tokenizer, token),
    }
