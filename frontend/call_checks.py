"""What every engine refuses of a call, for backends that have no engine to ask. Pure.

The limits are those of RadixLM's own engine, in its words; a test holds the two together. What only a
model can tell (whether an id is in its vocabulary, whether a grammar can be compiled) is not looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .errors import InvalidCall
from .protocol import Hint, Sampling

_MOST_TEXTS = 1024
_MOST_STOPS = 32
_MOST_STOP_LENGTH = 1024
_MOST_LOGPROBS = 1000
_MOST_CHOICES = 20_000
_LONGEST_HOLD = 3600
_LONGEST_NAME = 200
_FORMS = {"regex": 8 << 10, "json_schema": 256 << 10, "grammar": 256 << 10}
"""And how many bytes each may have."""


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidCall that names the option, quotes its value, and says what is allowed."""
    _check_lengths(sampling)
    _check_stops(sampling)
    _check_choosing(sampling)
    _check_forms(sampling)
    if sampling.return_logprob:
        if sampling.top_logprobs_num is not None:
            _integer("top_logprobs_num", sampling.top_logprobs_num, 0, _MOST_LOGPROBS)
        if sampling.logprob_start_len is not None:
            _integer("logprob_start_len", sampling.logprob_start_len, -1)


def check_hint(hint: Hint) -> None:
    for name in ("program_id", "parent_id", "fork_group"):
        value = getattr(hint, name)
        if not _is_text(value) or len(value) > _LONGEST_NAME:
            raise InvalidCall(
                f"hint.{name} must be a text of at most {_LONGEST_NAME} characters, got {_quote(value)}"
            )
    if hint.hold_s is not None and not _is_number(hint.hold_s, 0, _LONGEST_HOLD):
        allowed = f"a number of seconds from 0 to {_LONGEST_HOLD}"
        raise InvalidCall(f"hint.hold_s must be {allowed}, got {_quote(hint.hold_s)}")


def _check_lengths(sampling: Sampling) -> None:
    _integer("max_new_tokens", sampling.max_new_tokens, 0)
    if sampling.min_new_tokens is not None:
        _integer("min_new_tokens", sampling.min_new_tokens, 0)
        if sampling.min_new_tokens > sampling.max_new_tokens:
            most = f"max_new_tokens ({sampling.max_new_tokens})"
            raise InvalidCall(f"min_new_tokens must be at most {most}, got {sampling.min_new_tokens}")
    _integer("n", sampling.n, 1, _MOST_TEXTS)


def _check_stops(sampling: Sampling) -> None:
    _texts("stop", sampling.stop)
    _texts("stop_regex", sampling.stop_regex)
    for pattern in sampling.stop_regex:
        if _matches_nothing(pattern):
            raise InvalidCall(f"stop_regex must not match the empty text, got {_quote(pattern)}")
    if not isinstance(sampling.stop_token_ids, list | tuple):
        got = _quote(sampling.stop_token_ids)
        raise InvalidCall(f"stop_token_ids must be a list of token ids, got {got}")
    for token in sampling.stop_token_ids:
        _integer("stop_token_ids: a token id", token, 0)
    if not isinstance(sampling.ignore_eos, bool):
        raise InvalidCall(f"ignore_eos must be True or False, got {_quote(sampling.ignore_eos)}")


def _check_choosing(sampling: Sampling) -> None:
    for name, least, most, above in (
        ("temperature", 0.0, math.inf, False),
        ("top_p", 0.0, 1.0, True),
        ("min_p", 0.0, 1.0, False),
        ("frequency_penalty", -2.0, 2.0, False),
        ("presence_penalty", -2.0, 2.0, False),
        ("repetition_penalty", 0.0, math.inf, True),
    ):
        value = getattr(sampling, name)
        if value is None or (_is_number(value, least, most) and not (above and value == least)):
            continue
        allowed = f"{'above' if above else 'of at least'} {least:g}"
        allowed += "" if most == math.inf else f" and at most {most:g}"
        raise InvalidCall(f"{name} must be a finite number {allowed}, got {_quote(value)}")
    if sampling.top_k is not None:
        _integer("top_k", sampling.top_k, -1)
    if sampling.seed is not None:
        _integer("seed", sampling.seed, -(2**63), 2**64 - 1)


def _check_forms(sampling: Sampling) -> None:
    given = [name for name in (*_FORMS, "choice") if getattr(sampling, name) not in (None, "")]
    if len(given) > 1:
        raise InvalidCall(f"at most one of {', '.join(_FORMS)}, choice is allowed, got {' and '.join(given)}")
    for name in ("relaxed", "compact"):
        if not isinstance(getattr(sampling, name), bool):
            raise InvalidCall(f"{name} must be True or False, got {_quote(getattr(sampling, name))}")
        if getattr(sampling, name) and "json_schema" not in given:
            raise InvalidCall(f"{name} goes with json_schema, got it without")
    if "choice" in given:
        _check_choice(sampling.choice)
    for name in _FORMS.keys() & set(given):
        value = getattr(sampling, name)
        if not _is_text(value) or len(value.encode()) > _FORMS[name]:
            raise InvalidCall(f"{name} must be a text of at most {_FORMS[name]:,} bytes, got {_quote(value)}")
    if sampling.json_schema:
        try:
            schema = json.loads(sampling.json_schema)
        except (RecursionError, ValueError) as error:
            raise InvalidCall(
                f"json_schema must be JSON ({error}), got {_quote(sampling.json_schema)}"
            ) from None
        if not isinstance(schema, dict | bool):
            raise InvalidCall(
                f"json_schema must be an object, true or false, got {_quote(sampling.json_schema)}"
            )
        _check_schema(sampling.json_schema)


@lru_cache(maxsize=256)
def _check_schema(text: str) -> None:
    """By the schema of schemas. Patterns and formats are not looked at: engines know others."""
    from jsonschema import Draft202012Validator, FormatChecker, SchemaError
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    kind: Any = Draft202012Validator  # Any: jsonschema makes its classes at run time
    if isinstance(schema, dict) and isinstance(schema.get("$schema"), str):
        kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema, format_checker=FormatChecker(()))
    except RecursionError:
        raise InvalidCall(f"json_schema is nested too deep, got {_quote(text)}") from None
    except SchemaError as error:
        where = "".join(f"/{step}" for step in error.absolute_path) or "/"
        raise InvalidCall(f"json_schema is no schema: {error.message:.200} at {where}") from None


def _check_choice(choice: object) -> None:
    is_list = isinstance(choice, list | tuple) and 0 < len(choice) <= _MOST_CHOICES
    if not is_list or not all(_is_text(each) and each for each in choice):  # type: ignore[attr-defined]
        raise InvalidCall(
            f"choice must be a list of 1 to {_MOST_CHOICES:,} texts that are not empty, got {_quote(choice)}"
        )


def _integer(name: str, value: object, least: int, most: int | None = None) -> None:
    is_one = isinstance(value, int) and not isinstance(value, bool)
    if is_one and least <= value and (most is None or value <= most):  # type: ignore[operator]
        return
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise InvalidCall(f"{name} must be an integer {allowed}, got {_quote(value)}")


def _is_number(value: object, least: float, most: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float
        return False
    return math.isfinite(number) and least <= number <= most


def _texts(name: str, values: Sequence[object]) -> None:
    if not isinstance(values, list | tuple) or not all(_is_text(each) and each for each in values):
        raise InvalidCall(f"{name} must hold texts that are not empty, got {_quote(values)}")
    if len(values) > _MOST_STOPS:
        raise InvalidCall(f"{name} must hold at most {_MOST_STOPS} texts, got {len(values)}")
    for each in values:
        if len(str(each)) > _MOST_STOP_LENGTH:
            raise InvalidCall(
                f"{name} entries may have at most {_MOST_STOP_LENGTH} characters, got {len(str(each))}"
            )


def _is_text(value: object) -> bool:
    """Which can be encoded: half an emoji cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _quote(value: object) -> str:
    try:
        return f"{value!r:.200}"
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a value too large to print"


def _matches_nothing(pattern: str) -> bool:
    """As far as Python's own dialect can tell; engines know a richer one."""
    try:
        return re.search(pattern, "") is not None
    except re.error:
        return False
