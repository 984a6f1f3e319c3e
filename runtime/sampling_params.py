"""SamplingParams: how one request's tokens are chosen and when it ends.

Owns the checks of every value a client sends and the other spellings clients use for them. It knows no
model: ids are compared with a vocabulary only where one is given (`check_vocabulary`). Torch-free. A value
that exists is valid and normalised, so nothing behind it checks again; two values that mean the same text
compare and hash alike.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .errors import InvalidRequest
from .grammar.spec import GrammarSpec
from .stops import validate_stops
from .structure import STRUCTURES, WAYS, normal_form, spec_of
from .text import quote

MAX_CHOICES = 1024
MAX_STOPS = 32
MAX_LOGPROBS = 1000
MAX_BIASES = 4096

_GREEDY_BELOW = 1e-6
_SPELLINGS = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked when made: raises InvalidRequest with the received value and what is allowed.

    Length: max_tokens 0 computes the prompt and generates nothing; below min_tokens whatever would end the
    text by its id (end of sequence, stop_token_ids) is forbidden.
    n is 1 to 1024 choices of one prompt. stop and stop_regex are at most 32 texts each; the constructor also
    takes one text or a list. A stop_regex must not match the empty text, which is everywhere. no_stop_trim
    keeps what ended the text in it: the stop text, or the text that a stop token has.

    Choice: temperature below 1e-6 is greedy. top_k -1 or 0, top_p 1 and min_p 0 are off. Penalties of
    frequency and presence count the output only, repetition_penalty looks at prompt and output.
    logit_bias is kept as at most 4096 pairs (token id, bias) by rising id; the constructor also takes a
    mapping, whose keys may be decimal strings as JSON writes them.

    seed is any integer of 64 bits, signed or not; a negative one is the same seed as its two's complement.
    None draws one for the request.

    logprobs None reports none, 0 the chosen token's own, k also the k best. prompt_logprobs_start is the
    first prompt position whose log-probability is wanted.

    One of these says what the text must look like: regex, a pattern of the whole text; json_schema, a schema
    as JSON text, mapping or boolean, or a Python type; choice, texts to choose from (a Literal or Enum too);
    grammar, of grammar_kind "lark" or "gbnf" ("ebnf" is the same; None: gbnf if it is written with ::=);
    structural_tag, texts that begin a constrained part. `structure` is what it comes to. relaxed: what cannot
    be enforced of a schema is checked when the text is done, else it is refused. compact: JSON without
    whitespace. grammar_after: free text goes up to this one. See docs/structured-output.md.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs_start: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    regex: str | None = None
    json_schema: object = None
    choice: object = None
    grammar: str | None = None
    grammar_kind: str | None = None
    structural_tag: object = None
    relaxed: bool = False
    compact: bool = False
    grammar_after: str | None = None
    structure: GrammarSpec | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        self._check_lengths()
        self._check_stops()
        self._check_choosing()
        self._check_reports()
        for name, value in normal_form(self).items():
            self._keep(name, value)
        self._keep("structure", spec_of(self))

    @classmethod
    def from_mapping(
        cls, options: Mapping[str, object], base: SamplingParams | None = None
    ) -> SamplingParams:
        """From a client's object: null means the default, other engines' spellings are taken.

        `base` gives the values of options that are absent or null (None: those of this class).

        max_new_tokens and max_completion_tokens are max_tokens, min_new_tokens is min_tokens, sampling_seed
        is seed, guided_json json_schema, guided_regex regex, guided_choice choice, guided_grammar and ebnf
        are grammar. `logprobs` true with an optional `top_logprobs` is the chat form of logprobs. An empty
        string for a structured output field is unset. An unknown name raises InvalidRequest, which names its
        like.
        """
        if not isinstance(options, Mapping):
            raise InvalidRequest(f"sampling options must be an object, got {quote(options)}")
        # Any: values are a client's; __post_init__ checks the type of each.
        values: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, value in options.items():
            name = _known_name(key)
            if value is None or (value == "" and name in (*STRUCTURES, *WAYS)):
                continue
            if name in values:
                raise InvalidRequest(f"{spelled[name]} and {key} are the same option, give one of them")
            values[name], spelled[name] = value, key
        _fold_top_logprobs(values)
        return cls(**values) if base is None else replace(base, **values)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken; then nothing is drawn and no filter matters."""
        return self.temperature < _GREEDY_BELOW

    @property
    def needs_history(self) -> bool:
        """Whether a penalty is on, so that the tokens so far change the next one."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    def check_vocabulary(self, size: int) -> None:
        """Raise InvalidRequest if logit_bias or stop_token_ids name an id outside a vocabulary of `size`."""
        named = [("logit_bias", token_id) for token_id, _ in self.logit_bias]
        named += [("stop_token_ids", token_id) for token_id in self.stop_token_ids]
        for name, token_id in named:
            if token_id >= size:
                raise InvalidRequest(f"{name} must hold token ids below {size}, got {quote(token_id)}")

    def _check_lengths(self) -> None:
        _check_integer("max_tokens", self.max_tokens, 0)
        _check_integer("min_tokens", self.min_tokens, 0)
        if self.min_tokens > self.max_tokens:
            most = f"max_tokens ({quote(self.max_tokens)})"
            raise InvalidRequest(f"min_tokens must be at most {most}, got {quote(self.min_tokens)}")
        _check_integer("n", self.n, 1, MAX_CHOICES)

    def _check_stops(self) -> None:
        self._keep("stop", _texts("stop", self.stop))
        self._keep("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        self._keep("stop_regex", _texts("stop_regex", self.stop_regex))
        validate_stops(self.stop, self.stop_regex)
        _check_switch("ignore_eos", self.ignore_eos)
        _check_switch("skip_special_tokens", self.skip_special_tokens)
        _check_switch("no_stop_trim", self.no_stop_trim)

    def _check_choosing(self) -> None:
        for name, least, most in (
            ("temperature", 0.0, math.inf),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("frequency_penalty", -2.0, 2.0),
            ("presence_penalty", -2.0, 2.0),
            ("repetition_penalty", 0.0, math.inf),
        ):
            above = name in ("top_p", "repetition_penalty")
            self._keep(name, _number(name, getattr(self, name), least, most, above=above))
        _check_integer("top_k", self.top_k, -1)
        self._keep("logit_bias", _bias_pairs(self.logit_bias))
        if self.seed is not None:
            _check_integer("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_reports(self) -> None:
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs_start is not None:
            _check_integer("prompt_logprobs_start", self.prompt_logprobs_start, 0)

    def _keep(self, name: str, value: object) -> None:
        # Only for the normalised form of a field, and only while the value is being made.
        object.__setattr__(self, name, value)


_NAMES = tuple(each.name for each in fields(SamplingParams) if each.init)


def is_sampling_option(name: object) -> bool:
    """Whether `SamplingParams.from_mapping` knows an option of that name."""
    return isinstance(name, str) and (name in _NAMES or name in _SPELLINGS or name == "top_logprobs")


def _known_name(key: object) -> str:
    if isinstance(key, str) and is_sampling_option(key):
        return _SPELLINGS.get(key, key)
    near = difflib.get_close_matches(str(key), [*_NAMES, *_SPELLINGS, "top_logprobs"], n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(_NAMES)}"
    raise InvalidRequest(f"unknown sampling option {quote(key)}; {hint}")


# Any: see from_mapping.
def _fold_top_logprobs(values: dict[str, Any]) -> None:
    """Turn the chat form (a switch and a number) into the one number that SamplingParams has."""
    wanted, top = values.get("logprobs"), values.pop("top_logprobs", None)
    if top is not None:
        if wanted is not True:
            raise InvalidRequest(f"top_logprobs needs logprobs to be true, got {quote(wanted)}")
        _check_integer("top_logprobs", top, 0, MAX_LOGPROBS)
        values["logprobs"] = top
    elif isinstance(wanted, bool):
        values["logprobs"] = 0 if wanted else None


def _check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is not None and number >= least and (most is None or number <= most):
        return
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InvalidRequest(f"{name} must be an integer {allowed}, got {quote(value)}")


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, got {quote(value)}")


def _number(name: str, value: object, least: float, most: float, *, above: bool = False) -> float:
    """`value` as a float; `above` excludes `least` itself."""
    number = _finite(value)
    if number is not None and least <= number <= most and not (above and number == least):
        return number
    allowed = f"{'above' if above else 'of at least'} {least:g}"
    allowed += "" if most == math.inf else f" and at most {most:g}"
    raise InvalidRequest(f"{name} must be a finite number {allowed}, got {quote(value)}")


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float
        return None
    return number if math.isfinite(number) else None


def _texts(name: str, value: object) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and item for item in items):
        raise InvalidRequest(f"{name} must be a non-empty text or a list of them, got {quote(value)}")
    if len(items) > MAX_STOPS:
        raise InvalidRequest(f"{name} must hold at most {MAX_STOPS} texts, got {len(items)}")
    return tuple(dict.fromkeys(items))


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    items = () if value is None else value
    if not isinstance(items, list | tuple):
        raise InvalidRequest(f"{name} must be a list of token ids, got {quote(value)}")
    for item in items:
        _check_integer(f"{name}: a token id", item, 0)
    return tuple(dict.fromkeys(items))


def _bias_pairs(value: object) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    for key, bias in _bias_items(value):
        token_id = _from_decimal(key)
        _check_integer("logit_bias: a token id", token_id, 0)
        assert isinstance(token_id, int), "an id that passed its check is an integer"
        if token_id in pairs:
            raise InvalidRequest(f"logit_bias must name each token id once, got {token_id} twice")
        pairs[token_id] = _number(f"logit_bias of token {token_id}", bias, -100.0, 100.0)
    return tuple(sorted(pairs.items()))


def _bias_items(value: object) -> list[tuple[object, object]]:
    if value is None:
        return []
    if isinstance(value, Sized) and len(value) > MAX_BIASES:
        raise InvalidRequest(f"logit_bias may name at most {MAX_BIASES} token ids, got {len(value)}")
    items = list(value.items()) if isinstance(value, Mapping) else value
    if isinstance(items, list | tuple) and all(_is_pair(item) for item in items):
        return [(item[0], item[1]) for item in items]
    raise InvalidRequest(f"logit_bias must map token ids to numbers, got {quote(value)}")


def _from_decimal(key: object) -> object:
    """The number that a JSON object's key spells; other keys as they are."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
        return int(key)
    return key


def _is_pair(item: object) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2
