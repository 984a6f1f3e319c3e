"""SGLang's native routes: prompts are texts, choices are scored as whole texts. Knows no connection.

The parts of what is generated are its text, since this server takes no ids among texts; what is reused is
then what is tokenized alike again. In Plain parts the spelling of a control token is one, as everywhere in
SGLang. Hints are not sent, and a hold holds nothing, which is said in its report.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from .chat_formats import ChatFormat
from .choice_scores import ScoredText, choice_score, first_change
from .errors import BackendError, Unsupported
from .http_calls import HttpCalls
from .json_values import as_count, as_list, as_logprob, as_mapping
from .native_api import GrowingText, Reply, call_fields, check_text_only, deltas, either, read_texts
from .once import Once
from .protocol import (
    ChoiceScore,
    Delta,
    Ending,
    Frame,
    GenerateCall,
    Generated,
    Part,
    Plain,
    Sampling,
    ScoreCall,
    Scored,
    text_of,
)

_WINDOW = 8
"""Tokens at the end of a prompt that are looked at first for what a choice changes."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """`token`: what the server puts before every text, if anything. `ids`: what stands before a text of
    which also the first token is to be scored; a newline where there is no such token."""

    token: int | None
    ids: tuple[int, ...]


class SglangApi:
    """`in_pieces`: the server streams what is new, not all of a text again."""

    def __init__(self, calls: HttpCalls, chat_format: ChatFormat, *, in_pieces: bool = False) -> None:
        self._calls = calls
        self._format = chat_format
        self._in_pieces = in_pieces
        self._where = f"{calls.base_url}/generate"
        self._beginning = Once(self._ask_beginning)

    async def generate(self, call: GenerateCall) -> list[Generated]:
        reply = await self._calls.post("/generate", _body(call))
        found = read_texts(reply, call.sampling.n, _text_parts, self._where)
        return [_without_hold(each, call) for each in found]

    async def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        growing = GrowingText(_text_parts, self._where, in_pieces=self._in_pieces)
        chunks = self._calls.stream("/generate", _body(call, stream=True))
        async with aclosing(deltas(chunks, growing, self._where)) as news:
            async for delta in news:
                done = delta.done
                yield delta if done is None else replace(delta, done=_without_hold(done, call))

    async def score(self, call: ScoreCall) -> Scored:
        check_text_only(call.parts)
        prompt = text_of(call.parts)
        length = cached = 0
        if prompt:  # read first, so that what the choices share is computed once
            meta = as_mapping(
                as_mapping(await self._read({"text": prompt}), "reply")["meta_info"], "meta_info"
            )
            length = as_count(meta.get("prompt_tokens"), "prompt_tokens")
            cached = as_count(meta.get("cached_tokens"), "cached_tokens")
        texts, start, computed = await self._texts(prompt, call.choices, length)
        choices = [choice_score(text, start) for text in texts]
        if call.unconditional:
            choices, more = await self._with_unconditional(choices)
            computed += more
        return Scored(tuple(choices), length, cached, length - cached + computed)

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        return self._format.frame(roles)

    async def end(self, program_ids: list[str], how: Ending) -> None:
        """Not sent."""

    # -- scores ----------------------------------------------------------------------------------------

    async def _texts(
        self, prompt: str, choices: Sequence[str], length: int
    ) -> tuple[list[ScoredText], int, int]:
        """The texts from some token on, the place among these where choices begin, and what was computed."""
        whole = [prompt + choice for choice in choices]
        first = max(0, length - _WINDOW)
        while True:
            read, computed = await self._scored("text", [prompt, *whole] if prompt else whole, first)
            texts = read[1:] if prompt else read
            start = first_change(read[0].ids if prompt else await self._nothing(), texts)
            if start or not first:
                break
            first = max(0, first - 8 * _WINDOW) if first > 8 * _WINDOW else 0
        if start or first:
            return texts, start, computed
        before = (await self._beginning.get()).ids
        read, more = await self._scored("input_ids", [[*before, *text.ids] for text in texts], 0)
        return read, len(before), computed + more

    async def _with_unconditional(self, choices: list[ChoiceScore]) -> tuple[list[ChoiceScore], int]:
        before = (await self._beginning.get()).ids
        read, computed = await self._scored(
            "input_ids", [[*before, *choice.token_ids] for choice in choices], 0
        )
        alone = [choice_score(text, len(before)).logprobs for text in read]
        return [
            replace(choice, unconditional=values) for choice, values in zip(choices, alone, strict=True)
        ], computed

    async def _nothing(self) -> tuple[int, ...]:
        """What an empty prompt is."""
        token = (await self._beginning.get()).token
        return () if token is None else (token,)

    async def _ask_beginning(self) -> _Beginning:
        read, _ = await self._scored("text", ["a", "b", "\n"], 0)
        firsts = {text.ids[0] for text in read}
        if len(firsts) == 1 and all(len(text.ids) > 1 for text in read):
            token = firsts.pop()
            return _Beginning(token, (token,))
        return _Beginning(None, tuple(read[2].ids))

    async def _read(self, prompt: dict[str, object], **reports: object) -> object:
        sampling = {"max_new_tokens": 0, "temperature": 0.0}
        return await self._calls.post("/generate", {**prompt, "sampling_params": sampling, **reports})

    async def _scored(
        self, field: str, prompts: Sequence[object], first: int
    ) -> tuple[list[ScoredText], int]:
        """Each prompt from a token on. A start is always given: without one such a server tells nothing."""
        reply = await self._read({field: list(prompts)}, return_logprob=True, logprob_start_len=first)
        replies = [as_mapping(each, "reply") for each in as_list(reply, "replies")]
        metas = [as_mapping(each.get("meta_info"), "meta_info") for each in replies]
        if len(metas) != len(prompts):
            raise BackendError(f"{self._where} gave {len(metas)} replies to {len(prompts)} prompts")
        computed = sum(
            as_count(meta.get("prompt_tokens"), "prompt_tokens")
            - as_count(meta.get("cached_tokens"), "cached_tokens")
            for meta in metas
        )
        return [_scored_text(meta) for meta in metas], computed


def _scored_text(meta: Reply) -> ScoredText:
    """The first log-probability is null in SGLang, wherever it starts."""
    entries = [
        as_list(each, "entry") for each in as_list(meta.get("input_token_logprobs"), "log-probabilities")
    ]
    if not entries or any(len(entry) < 2 for entry in entries):
        raise BackendError(f"the server gave no log-probabilities of its prompt: {entries!r:.200}")
    ids = tuple(as_count(entry[1], "token id") for entry in entries)
    values = [None if entry[0] is None else as_logprob(entry[0], "log-probability") for entry in entries]
    return ScoredText(ids, ids, values)


def _body(call: GenerateCall, *, stream: bool = False) -> dict[str, object]:
    return {**_prompt(call.parts), **call_fields(_known(call.sampling), stream=stream)}


def _known(sampling: Sampling) -> Sampling:
    """In what such a server knows. Raises Unsupported."""
    for name in ("relaxed", "compact"):
        if getattr(sampling, name):
            raise Unsupported(f"SGLang's servers know no {name}: leave it out, or use RadixLM's")
    if sampling.choice is None:
        return sampling
    return replace(sampling, choice=None, regex=either(sampling.choice))


def _prompt(parts: tuple[Part, ...]) -> dict[str, object]:
    if parts and all(isinstance(part, tuple) for part in parts):
        return {"input_ids": [token for part in parts if not isinstance(part, str | Plain) for token in part]}
    check_text_only(parts)
    return {"text": text_of(parts)}


def _text_parts(reply: Reply, text: str) -> tuple[Part, ...]:
    return (text,) if text else ()


def _without_hold(generated: Generated, call: GenerateCall) -> Generated:
    if call.hint.hold_s is None:
        return generated
    meta = {**generated.meta, "not_done": "SGLang's servers cannot hold a prefix: 0 tokens are held"}
    return replace(generated, held_tokens=0, meta=meta)
