"""What a program appends to its state: texts, generations, selections and role blocks, as values.

Nothing runs here. `+` joins expressions in order, so that `"Q: " + gen("a") + "."` is one of them. Names and
arguments are those of SGLang's frontend language, which programs are written in already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TypeAlias

from .choices import ChoicesMethod, as_method
from .errors import InvalidCall, Unsupported
from .options import ALIASES, check_forms, check_names, one_name, read_choices, read_options
from .types import Reader, check_regex, choice_of, ends_of, pattern_of, schema_of

ROLES = ("system", "user", "assistant", "tool")


class Expression:
    """Base of all; `a + b` is a then b, and either may be a text."""

    __slots__ = ()

    def __add__(self, other: Appendable) -> Chain:
        return Chain((*_items(self), *_items(as_expression(other))))

    def __radd__(self, other: Appendable) -> Chain:
        return as_expression(other) + self


@dataclass(frozen=True, slots=True)
class Text(Expression):
    """Text, appended as it is. With `is_plain` the spelling of a control token in it is text."""

    text: str
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """Text that the model writes. `options` are fields of protocol.Sampling that differ from the defaults of
    the run; `reader` makes a value of the text, and `ends` are stops beside all others."""

    name: str | None
    options: Mapping[str, object] = field(default_factory=dict)
    reader: Reader | None = None
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """The best of some texts, as the method has it. A temperature above 0 draws from the scores."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleBegin(Expression):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Expression):
    role: str


@dataclass(frozen=True, slots=True)
class Chain(Expression):
    items: tuple[Expression, ...]


Appendable: TypeAlias = "str | Expression | Sequence[Appendable]"


def as_expression(value: object) -> Expression:
    """Raises InvalidCall for what cannot be appended."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, list | tuple):
        return Chain(tuple(item for each in value for item in _items(as_expression(each))))
    raise InvalidCall(
        f"a state takes text and expressions such as gen(...), got {type(value).__name__} {value!r:.200}"
    )


def _items(expression: Expression) -> tuple[Expression, ...]:
    return expression.items if isinstance(expression, Chain) else (expression,)


# -- what people write -----------------------------------------------------------------------------


def plain(text: str) -> Expression:
    """Text of a person or a tool, outside of role blocks: the spelling of a control token in it is text, as
    it is in messages. Raises InvalidCall."""
    if isinstance(text, Expression):  # what stands for a text while a program is traced
        return text
    if not isinstance(text, str):
        raise InvalidCall(f"plain takes a text, got {type(text).__name__} {text!r:.200}")
    return Text(text, is_plain=True)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | Iterable[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    regex: str | None = None,
    json_schema: object = None,
    *,
    grammar: str | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    choice: object = None,
    relaxed: bool | None = None,
    compact: bool | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int | None = None,
    **unknown: object,
) -> Gen | Select:
    """Text that the model writes here, kept under `name`.

    Whatever is not given is the run's default. With `n` above 1 a list is kept, and its first text appended.
    `dtype` (int, float, str, bool), `regex`, `json_schema` (dict, JSON text, Pydantic model, dataclass or
    typing expression), `grammar` or `choice` (one of these texts, or of a Literal or an Enum, generated as
    any other) say what the text looks like; `relaxed` and `compact` are those of docs/structured-output.md.
    `max_new_tokens` and `min_new_tokens` are other names of `max_tokens` and `min_tokens`. `choices` makes it
    a `select`, to which no form belongs and no `n` but 1; the rest is of no use there. Raises InvalidCall.
    """
    if unknown:
        check_names("gen", unknown, GEN_OPTIONS)
    check_name(name)
    forms = {"dtype": dtype, "regex": regex, "json_schema": json_schema, "grammar": grammar, "choice": choice}
    if choices is not None:
        _check_select({**forms, "relaxed": relaxed, "compact": compact}, n)
        return select(name, choices, 0.0 if temperature is None else temperature, choices_method)
    if choices_method is not None:
        raise InvalidCall("choices_method is of no use without choices")
    check_forms(forms)
    reader: Reader | None = None
    if dtype is not None:
        regex, reader = pattern_of(dtype)
    elif regex is not None:
        check_regex(regex)
    schema = None
    if json_schema is not None:
        schema, reader = schema_of(json_schema)
    if choice is not None:
        choice, reader = choice_of(choice)
    lengths = {"max_tokens": max_tokens, "min_tokens": min_tokens}
    options = {
        **one_name({**lengths, "max_new_tokens": max_new_tokens, "min_new_tokens": min_new_tokens}),
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "ignore_eos": ignore_eos,
        "seed": seed,
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        "return_text_in_logprobs": return_text_in_logprobs,
        "regex": regex,
        "json_schema": schema,
        "grammar": grammar,
        "choice": choice,
        "relaxed": relaxed,
        "compact": compact,
    }
    given = read_options(options, {own: name for name, own in ALIASES.items() if lengths[name] is not None})
    if not given.get("stop", True):
        del given["stop"]  # nothing of its own
    return Gen(name, given, reader, () if dtype is None else ends_of(dtype))


def _check_select(forms: Mapping[str, object], n: object) -> None:
    """What says how a text is generated cannot be kept to where one is chosen."""
    given = [name for name, value in forms.items() if value is not None]
    if given:
        raise InvalidCall(
            f"choices are scored and not generated, so {' and '.join(given)} cannot be kept to: leave one "
            "out, or let one of the texts be generated by choice=[...]"
        )
    if n not in (None, 1):
        raise InvalidCall(f"of choices one is chosen, so n must be 1 beside them, got {n!r:.200}")


GEN_OPTIONS = tuple(name for name in signature(gen).parameters if name not in ("name", "unknown"))


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str | None = None,
) -> Select:
    """The text among `choices` that the method finds best, by the model's log-probabilities. Raises
    InvalidCall."""
    check_name(name)
    texts = read_choices("choices", choices)
    if not isinstance(temperature, int | float) or not 0 <= temperature < float("inf"):
        raise InvalidCall(f"temperature must be a number of at least 0, got {temperature!r}")
    return Select(name, texts, as_method(choices_method), float(temperature))


def gen_int(name: str | None = None, **options: object) -> Gen | Select:
    return gen(name, dtype=int, **options)  # type: ignore[arg-type]  # the names and types are gen's


def gen_float(name: str | None = None, **options: object) -> Gen | Select:
    return gen(name, dtype=float, **options)  # type: ignore[arg-type]


def gen_string(name: str | None = None, **options: object) -> Gen | Select:
    return gen(name, dtype=str, **options)  # type: ignore[arg-type]


def gen_bool(name: str | None = None, **options: object) -> Gen | Select:
    return gen(name, dtype=bool, **options)  # type: ignore[arg-type]


Role = tuple[Callable[..., Expression], Callable[[], Expression], Callable[[], Expression]]


def _role(role: str) -> Role:
    def block(expression: Appendable | None = None) -> Expression:
        if expression is None:
            return Chain((RoleBegin(role), RoleEnd(role)))
        return RoleBegin(role) + as_expression(expression) + RoleEnd(role)

    def begin() -> Expression:
        return RoleBegin(role)

    def end() -> Expression:
        return RoleEnd(role)

    block.__name__, begin.__name__, end.__name__ = role, f"{role}_begin", f"{role}_end"
    block.__doc__ = f"A message of the {role}, as the model's own chat template writes it."
    return block, begin, end


system, system_begin, system_end = _role("system")
user, user_begin, user_end = _role("user")
assistant, assistant_begin, assistant_end = _role("assistant")


def image(*_: object, **__: object) -> Expression:
    raise Unsupported("image is not supported by this model: it reads text only")


def video(*_: object, **__: object) -> Expression:
    raise Unsupported("video is not supported by this model: it reads text only")


def a_block(role: str) -> str:
    return f"{'an' if role.startswith('a') else 'a'} {role} block"


def check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidCall(f"a name must be text that is not empty, or None, got {name!r:.200}")
