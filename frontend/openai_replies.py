"""Answers of /chat/completions and /completions as texts and news, whole or from chunks. Pure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing

from .choice_scores import ScoredText
from .errors import BackendError, Unreachable, Unsupported
from .http_failures import raise_failure
from .json_values import as_count, as_ids, as_list, as_logprob, as_mapping, as_text
from .native_api import Reply
from .protocol import Delta, FinishReason, Generated

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
}
_NO_ECHO = (
    "this server gives no log-probabilities of a prompt (echo with logprobs), without which select cannot "
    "score: use RuntimeEndpoint(url), or generate with json_schema= an enum of the choices"
)


def read_choices(reply: object, n: int, where: str) -> list[Generated]:
    """The n texts in order. What all of them took is the first's, but for tokens that are counted."""
    body = as_mapping(reply, "reply")
    choices = [as_mapping(each, "choice") for each in as_list(body.get("choices"), "choices")]
    choices.sort(key=lambda choice: as_count(choice.get("index"), "index"))
    if len(choices) != n:
        raise BackendError(f"{where} gave {len(choices)} texts, {n} were asked for")
    texts = []
    for index, choice in enumerate(choices):
        text = GrowingChoice(where)
        text.add(choice)
        texts.append(text.generated(_share(body.get("usage"), index, n)))
    return texts


class GrowingChoice:
    """One choice, put together from its pieces; a whole one is its only piece."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._text = ""
        self._reason: FinishReason | None = None
        self._entries: list[list[object]] = []
        self._tops: list[object] = []
        self._has_logprobs = False

    @property
    def has_ended(self) -> bool:
        return self._reason is not None

    def add(self, piece: Reply) -> str:
        """The text that is new."""
        text = _text_in(piece, self._where)
        self._text += text
        reason = piece.get("finish_reason")
        if reason is not None:
            self._reason = self._known(reason)
        if isinstance(piece.get("logprobs"), Mapping):
            self._has_logprobs = True
            self._add_logprobs(as_mapping(piece["logprobs"], "logprobs"))
        return text

    def generated(self, usage: Mapping[str, int]) -> Generated:
        assert self._reason is not None, "the text has ended"
        return Generated(
            text=self._text,
            parts=(self._text,) if self._text else (),
            finish_reason=self._reason,
            prompt_tokens=usage.get("prompt_tokens", 0),
            cached_tokens=usage.get("cached_tokens", 0),
            completion_tokens=len(self._entries) or usage.get("completion_tokens", 0),
            meta={**self.meta(), **usage},
            tells_cached="cached_tokens" in usage,
        )

    def meta(self) -> dict[str, object]:
        """In SGLang's words. A token has no id here, and its text instead."""
        reason = None if self._reason is None else {"type": self._reason}
        found: dict[str, object] = {"finish_reason": reason}
        if self._has_logprobs:
            found["output_token_logprobs"] = list(self._entries)
            found["output_top_logprobs"] = list(self._tops)
        return found

    def _known(self, reason: object) -> FinishReason:
        if reason == "content_filter":
            raise BackendError(f"{self._where}: the server's content filter ended the answer")
        if reason == "abort":
            raise Unreachable(f"{self._where}: the server broke the call off")
        known = _REASONS.get(str(reason))
        if known is None:
            raise BackendError(f"{self._where} ended a text for a reason that is not known: {reason!r:.200}")
        return known

    def _add_logprobs(self, logprobs: Reply) -> None:
        if logprobs.get("content") is not None:  # chat
            for each in as_list(logprobs["content"], "logprobs.content"):
                entry = as_mapping(each, "log-probability")
                self._entries.append([entry.get("logprob"), None, entry.get("token")])
                tops = [as_mapping(top, "log-probability") for top in _listed(entry.get("top_logprobs"))]
                self._tops.append([[top.get("logprob"), None, top.get("token")] for top in tops])
        elif logprobs.get("token_logprobs") is not None:
            values = as_list(logprobs["token_logprobs"], "token_logprobs")
            names = as_list(logprobs.get("tokens"), "tokens")
            self._entries += [[value, None, name] for value, name in zip(values, names, strict=True)]
            for top in _listed(logprobs.get("top_logprobs")):
                self._tops.append([[value, None, name] for name, value in _pairs(top)])


async def read_chunks(chunks: AsyncGenerator[object, None], where: str) -> AsyncGenerator[Delta, None]:
    """News of the one text of a stream; the last when all has been read, with what the call took."""
    text, usage = GrowingChoice(where), None
    async with aclosing(chunks):
        async for chunk in chunks:
            raise_failure(chunk, where)
            body = as_mapping(chunk, "chunk")
            usage = body.get("usage") or usage
            for choice in _listed(body.get("choices")):
                new = text.add(as_mapping(choice, "choice"))
                yield Delta(new, text.meta())
    if not text.has_ended:
        raise Unreachable(f"{where}: the stream ended before the text did")
    done = text.generated(_share(usage, 0, 1))
    yield Delta("", done.meta, done)


def read_echo(choice: Reply, text: str, numbers: dict[Hashable, int]) -> ScoredText:
    """The tokens of a text that was echoed. Those without ids are numbered by their names."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        raise Unsupported(_NO_ECHO)
    values = as_list(logprobs.get("token_logprobs"), "token_logprobs")
    names = as_list(logprobs.get("tokens"), "tokens")
    places = as_list(logprobs.get("text_offset"), "text_offset")
    count = sum(as_count(place, "text_offset") < len(text) for place in places)
    if not count or len(values) < count or len(names) < count:
        raise Unsupported(_NO_ECHO)
    ids = [numbers.setdefault(str(name), len(numbers)) for name in names[:count]]
    if choice.get("prompt_token_ids") is not None:
        prompt_ids = as_ids(choice["prompt_token_ids"], "prompt_token_ids")
        ids = list(prompt_ids[len(prompt_ids) - count :])  # a token that begins all texts may not be echoed
    known = [None if value is None else as_logprob(value, "log-probability") for value in values[:count]]
    return ScoredText(ids, ids, known)


def usage_of(value: object) -> dict[str, int]:
    """Counts of tokens. Those of the prompt and of the answer are 0 where they are not told; what was cached
    is left out then, since 0 would say that nothing was."""
    usage = value if isinstance(value, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return {
        "prompt_tokens": as_count(usage.get("prompt_tokens"), "prompt_tokens"),
        "completion_tokens": as_count(usage.get("completion_tokens"), "completion_tokens"),
        **({} if cached is None else {"cached_tokens": as_count(cached, "cached_tokens")}),
    }


def _share(usage: object, index: int, n: int) -> dict[str, int]:
    """Of one of n texts: generated tokens are told for all together, and spread evenly."""
    counts = usage_of(usage)
    generated = counts["completion_tokens"]
    share = generated // n + (index < generated % n)
    return {**(counts if not index else dict.fromkeys(counts, 0)), "completion_tokens": share}


def _text_in(piece: Reply, where: str) -> str:
    """Of a completion, a chat message, or a piece of either."""
    if "text" in piece:
        return as_text(piece["text"] or "", "text")
    message = as_mapping(piece.get("message") or piece.get("delta") or {}, "message")
    if message.get("refusal"):
        raise BackendError(f"{where}: the model refuses: {message['refusal']!r:.200}")
    return as_text(message.get("content") or "", "content")


def _listed(value: object) -> list[object]:
    return list(as_list(value or [], "list"))


def _pairs(value: object) -> list[tuple[str, object]]:
    return list(as_mapping(value or {}, "top log-probabilities").items())
