"""Replies of /v1/completions, whole or in chunks, from the events of a call.

A choice in one piece is its only chunk: both are made here, so that chunks put together are the whole. The
text of a choice begins with the prompt where that is echoed, and places of tokens are in that text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..token_names import token_name, token_text
from ..tokenizer import Tokenizer
from ..types import Event, TokenLogprob
from .completion_body import CompletionCall, PromptValue
from .openai_reply import by_choice, check_end, joined, stop_reason, usage_of
from .token_texts import TokenPlaces

_LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot write."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's ids. Where it is echoed, `text` is what is shown, and of `hidden` tokens before it nothing:
    they were put there by the tokenizer. `shows_special`: it has control tokens by their names."""

    ids: tuple[int, ...]
    text: str = ""
    hidden: int = 0
    shows_special: bool = False


def encoded_prompt(
    value: PromptValue, ids: tuple[int, ...], call: CompletionCall, tokenizer: Tokenizer
) -> EncodedPrompt:
    """Of a prompt as it was given; a text is echoed as it came."""
    if not call.echo:
        return EncodedPrompt(ids)
    if isinstance(value, str):
        return EncodedPrompt(ids, value, _count_added(value, ids, tokenizer), shows_special=True)
    skip = call.sampling.skip_special_tokens
    return EncodedPrompt(ids, tokenizer.decode(ids, skip), shows_special=not skip)


def _count_added(text: str, ids: Iterable[int], tokenizer: Tokenizer) -> int:
    """How many control tokens stand before the first one of the text."""
    count = 0
    for token in ids:
        piece = tokenizer.piece(token)
        if token not in tokenizer.special_ids or piece is None or text.startswith(piece):
            break
        count += 1
    return count


class ChoiceParts:
    """One choice, part by part."""

    def __init__(self, index: int, prompt: EncodedPrompt, call: CompletionCall, tokenizer: Tokenizer) -> None:
        self._index, self._prompt, self._call, self._tokenizer = index, prompt, call, tokenizer
        self._has_begun = False
        if call.sampling.logprobs is not None:
            self._before = TokenPlaces(
                tokenizer, skip_special_tokens=not prompt.shows_special, hidden=prompt.hidden
            )
            self._behind = TokenPlaces(
                tokenizer,
                skip_special_tokens=call.sampling.skip_special_tokens,
                after=prompt.ids,
                start=len(prompt.text),
            )

    def part(self, event: Event) -> dict[str, object] | None:
        """What is new by this event, None if nothing that anybody asked for. Raises as check_end does."""
        check_end(event)
        call, text = self._call, event.text
        begins = not self._has_begun
        if begins:
            text = self._prompt.text + text
        logprobs = None if call.sampling.logprobs is None else self._logprobs(event)
        ids: dict[str, object] = {"token_ids": event.token_ids} if call.returns_ids else {}
        if not (text or logprobs or event.finish_reason or (ids and event.token_ids)):
            return None
        self._has_begun = True
        if begins and call.returns_ids:
            ids["prompt_token_ids"] = self._prompt.ids
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": event.finish_reason,
            "stop_reason": stop_reason(event, call.sampling),
            **ids,
        }

    def _logprobs(self, event: Event) -> dict[str, object] | None:
        entries = (*event.prompt_logprobs, *event.logprobs)
        if not entries:
            return None
        size = len(self._prompt.text)
        places = [min(self._before.place(entry.token_id), size) for entry in event.prompt_logprobs]
        places += [self._behind.place(entry.token_id) for entry in event.logprobs]
        return {
            "text_offset": places,
            "token_logprobs": [_as_json(entry.logprob) for entry in entries],
            "tokens": [self._name(entry.token_id) for entry in entries],
            "top_logprobs": [self._alternatives(entry) for entry in entries],
        }

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        """The token and the best ones, best first. Of two with the same text the better one has it as its
        key; but the token itself always does, and another with its text then has its id."""
        if entry.logprob is None:
            return None
        pairs = list(entry.top)
        if all(token != entry.token_id for token, _ in pairs):
            pairs.append((entry.token_id, entry.logprob))
        own = self._name(entry.token_id)
        found: dict[str, float | None] = {}
        for token, value in pairs:
            key = own if token == entry.token_id else self._name(token)
            if key == own and token != entry.token_id:
                key = token_name(token)
            found.setdefault(key, _as_json(value))
        return found

    def _name(self, token: int) -> str:
        return token_name(token) if self._call.names else token_text(self._tokenizer, token)


def parts_of(
    prompts: Sequence[EncodedPrompt], call: CompletionCall, tokenizer: Tokenizer
) -> list[list[ChoiceParts]]:
    """For each prompt its choices; they are numbered through."""
    n = call.sampling.n
    return [
        [ChoiceParts(at * n + choice, prompt, call, tokenizer) for choice in range(n)]
        for at, prompt in enumerate(prompts)
    ]


def reply_of(
    head: dict[str, object],
    prompts: Sequence[EncodedPrompt],
    call: CompletionCall,
    tokenizer: Tokenizer,
    found: Sequence[Sequence[Event]],
) -> dict[str, object]:
    """The whole reply, from all events of each prompt. Raises as check_end does."""
    choices = [
        choice.part(joined(events))
        for parts, job in zip(parts_of(prompts, call, tokenizer), found, strict=True)
        for choice, events in zip(parts, by_choice(job, call.sampling.n), strict=True)
    ]
    return {**head, "choices": choices, "usage": usage_of(found)}


def _as_json(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, _LEAST_LOGPROB)
