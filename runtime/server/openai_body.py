"""What the bodies of OpenAI's routes have in common, read from a parsed body: sampling, model, stream, salt.

Unknown fields are ignored, as clients send many; a field that would change the answer is applied or refused.
null means the default everywhere. A mistake is an InvalidRequest, which names the field and quotes the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InvalidRequest
from ..sampling_params import SamplingParams
from ..text import quote, require_text
from ..types import Hint
from .context import ServerContext
from .failures import ModelNotFound
from .field_values import read_integer, read_mapping, read_switch
from .openai_fields import SAMPLING_FIELDS
from .openai_structure import structure_of
from .part_fields import read_hint

MOST_ALTERNATIVES = 20
"""The largest number of alternatives a token that may be asked for: each costs memory for every token."""

_PRIORITIES = 1 << 31


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """include_usage: a last chunk with the usage, and no choices. continuous: the usage so far in each."""

    include_usage: bool = False
    continuous: bool = False


def sampling_of(
    body: Mapping[str, object], *, max_tokens_default: int, context: ServerContext, chat: bool
) -> SamplingParams:
    """All fields that say how the text is made, log-probabilities and structured output included. `chat`: of
    /v1/chat/completions, where logprobs is a switch beside top_logprobs; else it is a number."""
    _refuse_unsupported(body, chat)
    options = {name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None}
    options["max_tokens"] = _max_tokens(body, max_tokens_default)
    if switch(body, "include_stop_str_in_output"):
        options["no_stop_trim"] = True
    options |= _logprobs(body, chat) | structure_of(body)
    params = SamplingParams.from_mapping(options)
    most = context.settings.max_choices
    if params.n > most:
        raise InvalidRequest(f"n must be at most {most}, got {params.n}")
    _check_best_of(body.get("best_of"), params.n)
    return params


def check_model(body: Mapping[str, object], context: ServerContext) -> None:
    """Raises ModelNotFound for a model that is not the served one; none given is that one."""
    name = body.get("model")
    if name is None or name == "":
        return
    if not isinstance(name, str):
        raise InvalidRequest(f"model must be text, got {quote(name)}")
    if name != context.model:
        raise unknown_model(name, context)


def unknown_model(name: str, context: ServerContext) -> ModelNotFound:
    return ModelNotFound(f"there is no model {quote(name)} here, the served one is {context.model!r}")


def job_fields(body: Mapping[str, object]) -> tuple[str, int, Hint]:
    """cache_salt, priority and hint."""
    salt = body.get("cache_salt")
    priority = read_integer("priority", body.get("priority"), 0, least=-_PRIORITIES, most=_PRIORITIES)
    hint = read_hint(body.get("hint"), strict=True)
    return "" if salt is None else require_text("cache_salt", salt), priority, hint


def is_streamed(body: Mapping[str, object]) -> bool:
    return switch(body, "stream")


def stream_options(body: Mapping[str, object]) -> StreamOptions:
    if body.get("stream_options") is None:
        return StreamOptions()
    options = read_mapping("stream_options", body["stream_options"])
    if not is_streamed(body):
        raise InvalidRequest(f"stream_options goes with stream, got {quote(options)} without it")
    usage, continuous = (
        read_switch(f"stream_options.{name}", options.get(name))
        for name in ("include_usage", "continuous_usage_stats")
    )
    return StreamOptions(usage, continuous)


def switch(body: Mapping[str, object], name: str, default: bool = False) -> bool:
    """A field that is true or false."""
    return read_switch(name, body.get(name), default)


_NOTHING: tuple[object, ...] = ("", False)
_UNSUPPORTED: Mapping[str, tuple[tuple[object, ...], str]] = {
    "suffix": (_NOTHING, "texts are continued, gaps are not filled"),
    "use_beam_search": (_NOTHING, "ask for n choices"),
    "prompt_logprobs": (_NOTHING, "use echo with logprobs in /v1/completions"),
    "prompt_embeds": (_NOTHING, "send text or token ids"),
    "truncate_prompt_tokens": (_NOTHING, "send the prompt as long as it should be"),
    "allowed_token_ids": ((*_NOTHING, []), "use logit_bias or a grammar"),
    "bad_words": ((*_NOTHING, []), "use logit_bias"),
    "logits_processors": ((*_NOTHING, []), "use logit_bias or a grammar"),
    "custom_logit_processor": (_NOTHING, "use logit_bias or a grammar"),
    "lora_path": (_NOTHING, "this server has one model"),
    "typical_p": ((*_NOTHING, 1), "use top_p or min_p"),
    "tfs_z": ((*_NOTHING, 1), "use top_p or min_p"),
    "top_a": ((*_NOTHING, 0), "use min_p"),
    "mirostat": ((*_NOTHING, 0), "use temperature"),
    "xtc_probability": ((*_NOTHING, 0), "use temperature"),
    "dry_multiplier": ((*_NOTHING, 0), "use frequency_penalty"),
}
"""Fields that would change the answer: the values that ask for nothing, and what to do instead."""


def _refuse_unsupported(body: Mapping[str, object], chat: bool) -> None:
    for name, (neutral, instead) in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise InvalidRequest(f"{name} is not supported, {instead}; got {quote(value)}")
    if chat and body.get("echo") not in (None, False):
        raise InvalidRequest(f"echo is not supported in a chat, got {quote(body['echo'])}")


def _check_best_of(value: object, n: int) -> None:
    if value is not None and (value != n or isinstance(value, bool)):
        raise InvalidRequest(f"best_of must be n ({n}), since all choices are returned, got {quote(value)}")


def _max_tokens(body: Mapping[str, object], default: int) -> object:
    names = [name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    values = [body[name] for name in names]
    if len(values) > 1 and values[0] != values[1]:
        raise InvalidRequest(
            f"max_completion_tokens and max_tokens are the same, got {' and '.join(map(quote, values))}"
        )
    return values[0] if values else default


def _logprobs(body: Mapping[str, object], chat: bool) -> dict[str, object]:
    asked, top = body.get("logprobs"), body.get("top_logprobs")
    if not chat:
        return _limited("logprobs", asked)
    if asked is not None and not isinstance(asked, bool):
        raise InvalidRequest(f"logprobs must be true or false, got {quote(asked)}")
    if top is None or (top == 0 and not asked):
        return {"logprobs": asked}
    return {"logprobs": asked} | _limited("top_logprobs", top)


def _limited(name: str, value: object) -> dict[str, object]:
    if isinstance(value, int) and value > MOST_ALTERNATIVES:
        raise InvalidRequest(f"{name} must be at most {MOST_ALTERNATIVES}, got {quote(value)}")
    return {name: value}
