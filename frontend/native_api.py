"""What RadixLM's and SGLang's own /generate have in common: how a call is written and a text is read. Pure.

Only what is set is written: servers have different defaults, and older ones refuse names they do not know.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

from .errors import BackendError, InvalidCall, Unreachable
from .http_failures import error_of, raise_failure
from .json_values import as_count, as_list, as_mapping, as_text
from .protocol import Delta, FinishReason, Generated, Part, Sampling

Reply: TypeAlias = Mapping[str, object]
PartsOf: TypeAlias = Callable[[Reply, str], tuple[Part, ...]]
"""The parts of a text, from the reply that has it."""

_NAMES = {"seed": "sampling_seed", "grammar": "ebnf"}
_OPTIONS = (
    "min_new_tokens",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "regex",
    "json_schema",
    "grammar",
)
_LISTS = ("stop", "stop_token_ids", "stop_regex")
_TOKEN_LISTS = ("output_token_logprobs", "output_top_logprobs")
_REPORTS = ("logprob_start_len", "top_logprobs_num")


def call_fields(sampling: Sampling, *, stream: bool = False) -> dict[str, object]:
    """The fields of a body beside its prompt."""
    options: dict[str, object] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.n != 1:
        options["n"] = sampling.n
    for name in _OPTIONS:
        if getattr(sampling, name) is not None:
            options[_NAMES.get(name, name)] = getattr(sampling, name)
    if sampling.top_k == 0:  # off, which SGLang knows as -1 only
        options["top_k"] = -1
    for name in _LISTS:
        if getattr(sampling, name):
            options[name] = list(getattr(sampling, name))
    if sampling.choice is not None:
        options["choice"] = list(sampling.choice)
    for name in ("ignore_eos", "relaxed", "compact"):
        if getattr(sampling, name):
            options[name] = True
    fields: dict[str, object] = {"sampling_params": options}
    if sampling.return_logprob:
        fields["return_logprob"] = True
        fields |= {name: getattr(sampling, name) for name in _REPORTS if getattr(sampling, name) is not None}
        if sampling.return_text_in_logprobs:
            fields["return_text_in_logprobs"] = True
    if stream:
        fields["stream"] = True
    return fields


def read_texts(reply: object, n: int, parts_of: PartsOf, where: str) -> list[Generated]:
    """The n texts of a reply, which is an object for one of them."""
    entries = as_list(reply, "reply") if isinstance(reply, list) else [reply]
    if len(entries) != n:
        raise BackendError(f"{where} gave {len(entries)} texts, {n} were asked for")
    return [
        read_text(as_mapping(entry, "text"), parts_of, where, is_first=not index)
        for index, entry in enumerate(entries)
    ]


def read_text(reply: Reply, parts_of: PartsOf, where: str, *, is_first: bool = True) -> Generated:
    """One text that has ended. Raises BackendError if it failed."""
    text = as_text(reply.get("text"), "text")
    meta = as_mapping(reply.get("meta_info"), "meta_info")
    held = meta.get("held_tokens")
    return Generated(
        text=text,
        parts=parts_of(reply, text),
        finish_reason=_finish(meta.get("finish_reason"), where),
        prompt_tokens=as_count(meta.get("prompt_tokens"), "prompt_tokens") if is_first else 0,
        cached_tokens=as_count(meta.get("cached_tokens"), "cached_tokens") if is_first else 0,
        completion_tokens=as_count(meta.get("completion_tokens"), "completion_tokens"),
        forced_tokens=as_count(meta.get("forced_tokens"), "forced_tokens"),
        held_tokens=None if held is None else as_count(held, "held_tokens"),
        meta=meta,
        tells_cached=not is_first or meta.get("cached_tokens") is not None,
    )


class GrowingText:
    """One text of a stream. Its chunks are cumulative; with `in_pieces` each holds what is new, also of the
    lists that have an entry for each generated token."""

    def __init__(self, parts_of: PartsOf, where: str, *, in_pieces: bool = False) -> None:
        self._parts_of, self._where, self._in_pieces = parts_of, where, in_pieces
        self._text = ""
        self._lists: dict[str, list[object]] = {}

    def take(self, chunk: object) -> Delta:
        reply = as_mapping(chunk, "chunk")
        text = as_text(reply.get("text"), "text")
        if self._in_pieces:
            text = self._text + text
        if not text.startswith(self._text):
            raise BackendError(f"{self._where} took back text that it had streamed: {self._text[-80:]!r}")
        new, self._text = text[len(self._text) :], text
        meta = as_mapping(reply.get("meta_info"), "meta_info")
        if self._in_pieces:
            meta = {**meta, **self._joined(meta)}
        if meta.get("finish_reason") is None:
            return Delta(new, meta)
        whole = {**reply, "text": text, "meta_info": meta}
        return Delta(new, meta, read_text(whole, self._parts_of, self._where))

    def _joined(self, meta: Reply) -> dict[str, object]:
        """Servers of some versions give these lists whole beside a text in pieces."""
        count = as_count(meta.get("completion_tokens"), "completion_tokens")
        for name in _TOKEN_LISTS:
            new = meta.get(name)
            if isinstance(new, list):
                before = self._lists.get(name, [])
                is_piece = len(before) + len(new) <= count
                self._lists[name] = [*before, *new] if is_piece else list(new)
        return dict(self._lists)


async def deltas(
    chunks: AsyncGenerator[object, None], growing: GrowingText, where: str
) -> AsyncGenerator[Delta, None]:
    """News from the events of a stream. The last is given when all has been read, so that the connection
    can be used again."""
    last: Delta | None = None
    async with aclosing(chunks):
        async for chunk in chunks:
            raise_failure(chunk, where)
            delta = growing.take(chunk)
            if delta.done is None:
                yield delta
            else:
                last = delta
    if last is None:
        raise Unreachable(f"{where}: the stream ended before the text did")
    yield last


def _finish(value: object, where: str) -> FinishReason:
    """SGLang writes an object, and None where nothing was to be generated in some versions."""
    if value is None:
        return "length"
    kind = value.get("type") if isinstance(value, Mapping) else value
    if kind == "abort":  # by somebody who may; with a status it is a failure of SGLang's
        status = value.get("status_code") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(status, int):
            raise error_of(status, str(value.get("message") or "the call was aborted"), None, where)
        return "abort"
    if kind == "stop":
        return "stop"
    if kind == "length":
        return "length"
    raise BackendError(f"{where} ended a text for a reason that is not known: {value!r:.200}")


def either(texts: Sequence[str]) -> str:
    """A regex of one of these texts, for servers that take no list of them."""
    return "|".join(f"({re.escape(each)})" for each in texts)


def check_text_only(parts: tuple[Part, ...]) -> None:
    """For servers that take a prompt as text."""
    if any(isinstance(part, tuple) for part in parts):
        raise InvalidCall(
            "the prompt holds token ids among its texts, and this server takes texts: a state that was begun "
            "on another backend cannot go on here"
        )
