"""The body of POST /generate as a NativeCall: what each of its prompts asks for, checked. Pure.

Fields that are not known are ignored, at the top and in sampling_params, unless the answer would not be what
was asked for without them: input that is no text, an adapter, anything that looks like structured output.
null means the default. What is one value, or a list with one for each prompt, is spread over them here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import InvalidRequest
from ..hints import NO_HINT
from ..sampling_params import SamplingParams, is_sampling_option
from ..text import quote, require_text
from ..types import Hint
from .field_values import read_integer, read_switch
from .part_fields import InputParts, read_hint, read_parts
from .settings import ServerSettings

T = TypeVar("T")

Content = str | tuple[int, ...] | InputParts

_CONTENTS = ("text", "input_ids", "input_parts")
_NEEDED = (
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "session_params",
    "custom_logit_processor",
)
"""Fields of SGLang's that change the answer and are not supported."""
MOST_ALTERNATIVES = 100
"""The most alternatives a token that may be asked for: each costs memory for every token."""

_PRIORITIES = _POSITIONS = 1 << 31
_REPORTS = ("logprobs", "top_logprobs", "prompt_logprobs_start")
"""Options of SamplingParams that fields beside sampling_params stand for here."""
_STRUCTURE = re.compile(r"guided|structur|schema|regex|grammar|gbnf|lark|choice|json|response_format", re.I)
"""What names of structured output look like."""


@dataclass(frozen=True, slots=True)
class NativePrompt:
    """One prompt of a call. `rid` is None where the server has to make one up."""

    content: Content
    sampling: SamplingParams
    rid: str | None
    cache_salt: str
    extra_key: str
    hint: Hint = NO_HINT

    @property
    def reports(self) -> bool:
        """Whether log-probabilities are wanted."""
        return self.sampling.logprobs is not None


@dataclass(frozen=True, slots=True)
class NativeCall:
    """`is_list`: the reply is a list, of the choices of all prompts, those of one prompt together.
    `with_text`: the text of tokens comes with their log-probabilities."""

    prompts: tuple[NativePrompt, ...]
    is_list: bool
    stream: bool
    with_text: bool
    priority: int


def parse_call(body: Mapping[str, object], settings: ServerSettings) -> NativeCall:
    """Raises InvalidRequest that names the field and quotes its value."""
    _refuse_unsupported(body)
    contents, several = _contents(body, settings.max_prompts)
    count = len(contents)
    each = zip(
        contents,
        _samplings(body, count),
        _spread(body, "rid", count, _name, None),
        _spread(body, "cache_salt", count, _text, ""),
        _spread(body, "extra_key", count, _text, ""),
        _spread(body, "hint", count, _hint, NO_HINT),
        strict=True,
    )
    prompts = tuple(NativePrompt(*fields) for fields in each)
    _text("session_id", body.get("session_id"), "")  # one engine shares all it can anyway
    choices = sum(prompt.sampling.n for prompt in prompts)
    if choices > max(count, settings.max_choices):
        raise InvalidRequest(f"a request may ask for {settings.max_choices} texts, got {choices} by n")
    return NativeCall(
        prompts,
        is_list=several or choices > 1,
        stream=read_switch("stream", body.get("stream")),
        with_text=read_switch("return_text_in_logprobs", body.get("return_text_in_logprobs")),
        priority=_priority("priority", body.get("priority"), 0),
    )


def _refuse_unsupported(body: Mapping[str, object]) -> None:
    for name in _NEEDED:
        if body.get(name) not in (None, "", [], {}):
            raise InvalidRequest(f"{name} is not supported, got {quote(body[name])}")
    _refuse_structure(body, "beside sampling_params")


def _refuse_structure(names: Mapping[str, object], place: str) -> None:
    """Those that are set: a text without the structure that was asked for is of no use."""
    for name, value in names.items():
        if _STRUCTURE.search(name) and value not in (None, "", False):
            raise InvalidRequest(
                f"{quote(name)} is unknown {place}; structured output is regex, json_schema, ebnf or "
                f"structural_tag in sampling_params; got {quote(value)}"
            )


def _contents(body: Mapping[str, object], most: int) -> tuple[list[Content], bool]:
    """The prompts, and whether they came as a list."""
    text, ids, parts = (body.get(name) for name in _CONTENTS)
    given = [name for name in _CONTENTS if body.get(name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"one of text, input_ids and input_parts is needed, got {' and '.join(given) or 'none'}"
        )
    if parts is not None:
        return [read_parts("input_parts", parts)], False
    if isinstance(text, str):
        return [text], False
    if text is not None:
        return [require_text("text", item) for item in _items("text", text, most)], True
    if isinstance(ids, list) and ids and not isinstance(ids[0], list):
        return [_token_ids("input_ids", ids)], False
    return [_token_ids("input_ids", item) for item in _items("input_ids", ids, most)], True


def _items(name: str, value: object, most: int) -> Sequence[object]:
    if not isinstance(value, list) or not value:
        kind = "a text" if name == "text" else "a list of token ids"
        raise InvalidRequest(f"{name} must be {kind} or a list of them that is not empty, got {quote(value)}")
    if len(value) > most:
        raise InvalidRequest(f"{name} may hold {most} prompts, got {len(value)}")
    return value


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or set(map(type, value)) != {int}:
        raise InvalidRequest(f"{name} must be a list of token ids that is not empty, got {quote(value)}")
    return tuple(value)


def _samplings(body: Mapping[str, object], count: int) -> list[SamplingParams]:
    """What each prompt's text is sampled by. Prompts with the same options share one object."""
    nothing: dict[str, object] = {}
    options = _spread(body, "sampling_params", count, _options, nothing)
    reports = _spread(body, "return_logprob", count, read_switch, False)
    starts = _spread(body, "logprob_start_len", count, _start, -1)
    tops = _spread(body, "top_logprobs_num", count, _top, 0)
    made: dict[tuple[int, bool, int, int], SamplingParams] = {}
    found = []
    for each in zip(options, reports, starts, tops, strict=True):
        key = (id(each[0]), *each[1:])
        if key not in made:
            made[key] = _sampling(*each)
        found.append(made[key])
    return found


def _sampling(options: dict[str, object], reports: bool, start: int, top: int) -> SamplingParams:
    if not reports:
        return SamplingParams.from_mapping(options)
    first = None if start < 0 else start
    params = SamplingParams.from_mapping({**options, "logprobs": top, "prompt_logprobs_start": first})
    if first is None and not params.max_tokens:
        return replace(params, prompt_logprobs_start=0)  # what is only read has no other log-probabilities
    return params


def _options(name: str, value: object, default: dict[str, object]) -> dict[str, object]:
    """What SamplingParams knows of them."""
    if value is None:
        return default
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object, got {quote(value)}")
    spaces = value.get("spaces_between_special_tokens")
    read_switch("spaces_between_special_tokens", spaces)  # there are none, whatever it says
    known = {key: option for key, option in value.items() if is_sampling_option(key)}
    _refuse_structure({key: value[key] for key in value.keys() - known.keys()}, "in sampling_params")
    return {key: option for key, option in known.items() if key not in _REPORTS}


def _spread(
    body: Mapping[str, object], name: str, count: int, read: Callable[[str, object, T], T], default: T
) -> list[T]:
    """The value of each prompt, from one for all or a list."""
    value = body.get(name)
    if not isinstance(value, list):
        return [read(name, value, default)] * count
    if len(value) != count:
        raise InvalidRequest(f"{name} must hold one entry a prompt, {count} in all, got {len(value)}")
    return [read(name, item, default) for item in value]


def _name(name: str, value: object, default: str | None) -> str | None:
    if value == "":
        raise InvalidRequest(f"{name} must be a text that is not empty, got ''")
    return default if value is None else require_text(name, value)


def _text(name: str, value: object, default: str) -> str:
    return default if value is None else require_text(name, value)


def _hint(name: str, value: object, default: Hint) -> Hint:
    return read_hint(value)


def _priority(name: str, value: object, default: int) -> int:
    return read_integer(name, value, default, least=-_PRIORITIES, most=_PRIORITIES)


def _start(name: str, value: object, default: int) -> int:
    return read_integer(name, value, default, least=-1, most=_POSITIONS)


def _top(name: str, value: object, default: int) -> int:
    return read_integer(name, value, default, least=0, most=MOST_ALTERNATIVES)
