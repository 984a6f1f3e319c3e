"""A body of /v1/completions as a CompletionCall.

Knows the fields of this route; what it shares with chat is in openai_body.py. Nothing is encoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import InvalidRequest, TooLarge
from ..hints import NO_HINT
from ..sampling_params import SamplingParams
from ..text import quote
from ..types import Hint
from .context import ServerContext
from .openai_body import (
    StreamOptions,
    check_model,
    is_streamed,
    job_fields,
    sampling_of,
    stream_options,
    switch,
)
from .openai_fields import SWITCH, Schema

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, of this route."""

PromptValue = str | tuple[int, ...]
_ID_LIMIT = 1 << 31

FIELDS: Mapping[str, Schema] = {
    "prompt": {
        "description": "a text, token ids, or a list of either",
        "oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}},
            {"type": "array", "items": {"type": "integer"}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ],
    },
    "echo": {**SWITCH, "description": "the prompt comes before the text, its log-probabilities too"},
    "logprobs": {"type": ["integer", "null"], "description": "alternatives a token, 0 to 20"},
    "best_of": {"type": ["integer", "null"], "description": "must be n"},
    "add_special_tokens": {**SWITCH, "description": "what the model puts before a text; default true"},
    "return_tokens_as_token_ids": {**SWITCH, "description": "token_id:5 in place of a token's text"},
}


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """What is asked. A prompt is a text or ids, of which there are some. With `names`, tokens of
    log-probabilities are named by their ids; with `returns_ids`, the ids of prompt and text are told."""

    prompts: tuple[PromptValue, ...]
    sampling: SamplingParams
    echo: bool
    stream: bool
    options: StreamOptions
    salt: str
    priority: int
    adds_special: bool
    names: bool
    returns_ids: bool
    hint: Hint = NO_HINT


def parse(body: Mapping[str, object], context: ServerContext) -> CompletionCall:
    """Raises InvalidRequest, and ModelNotFound."""
    check_model(body, context)
    prompts = _prompts(body.get("prompt"), context.settings.max_prompts, context.service.engine.max_length)
    sampling = sampling_of(body, max_tokens_default=DEFAULT_MAX_TOKENS, context=context, chat=False)
    _check_choices(len(prompts), sampling.n, context)
    echo = switch(body, "echo")
    if echo and sampling.logprobs is not None:
        sampling = replace(sampling, prompt_logprobs_start=0)
    salt, priority, hint = job_fields(body)
    return CompletionCall(
        prompts=prompts,
        sampling=sampling,
        echo=echo,
        stream=is_streamed(body),
        options=stream_options(body),
        salt=salt,
        priority=priority,
        hint=hint,
        adds_special=switch(body, "add_special_tokens", True),
        names=switch(body, "return_tokens_as_token_ids"),
        returns_ids=switch(body, "return_token_ids"),
    )


def _check_choices(prompts: int, n: int, context: ServerContext) -> None:
    most = max(context.settings.max_prompts, context.settings.max_choices)
    if prompts * n > most:
        raise InvalidRequest(f"a request may have {most} choices in all, got {prompts} prompts with n {n}")


def _prompts(value: object, most: int, most_tokens: int) -> tuple[PromptValue, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"prompt must be text, token ids or a list of either, got {quote(value)}")
    if isinstance(value[0], int):
        return (_token_ids("prompt", value, most_tokens),)
    if len(value) > most:
        raise InvalidRequest(f"prompt may hold {most} prompts, got {len(value)}")
    return tuple(
        item if isinstance(item, str) else _token_ids(f"prompt[{index}]", item, most_tokens)
        for index, item in enumerate(value)
    )


def _token_ids(name: str, value: object, most: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{name} must be text or a list of token ids, got {quote(value)}")
    if len(value) > most:  # to look at millions of them would make everyone wait
        raise TooLarge(f"{name} has {len(value)} tokens, but context and pool hold {most}")
    # In JSON, what is an integer is of this very type.
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) < _ID_LIMIT:
        return tuple(value)
    index = next(i for i, item in enumerate(value) if type(item) is not int or not 0 <= item < _ID_LIMIT)
    raise InvalidRequest(f"{name}[{index}] must be a token id, got {quote(value[index])}")
