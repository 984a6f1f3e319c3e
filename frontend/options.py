"""Options of calls: their names, what each takes, and how what was given is read. Pure.

The names are the fields of protocol.Sampling; what is wrong in kind is said at once, with the name that the
caller wrote, while ranges are the backend's to check. What is given is never changed, but copied.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real

from .errors import InvalidCall

FORMS = frozenset({"regex", "json_schema", "grammar", "choice"})
"""Ways to say what a text looks like, of which a call has one at most."""

OF_SCHEMAS = frozenset({"relaxed", "compact"})
"""How a json_schema is kept to."""

ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
"""Other names, which `gen` knew first; those of a run are the fields' own."""

_INTEGERS = frozenset(
    {
        "max_new_tokens",
        "min_new_tokens",
        "n",
        "top_k",
        "seed",
        "logprob_start_len",
        "top_logprobs_num",
    }
)
_NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    }
)
_SWITCHES = frozenset({"ignore_eos", "return_logprob", "return_text_in_logprobs", *OF_SCHEMAS})


def read_options(given: Mapping[str, object], called: Mapping[str, str] | None = None) -> dict[str, object]:
    """Those that are not None, as Sampling has them; `called` are names that the caller knows them by. Raises
    InvalidCall."""
    called = called or {}
    return {
        name: _read(name, called.get(name, name), value) for name, value in given.items() if value is not None
    }


def one_name(given: Mapping[str, object]) -> dict[str, object]:
    """The same under the fields' own names. Raises InvalidCall where both names of one are given."""
    found = {name: value for name, value in given.items() if name not in ALIASES}
    for name, own in ALIASES.items():
        value = given.get(name)
        if value is None:
            continue
        if found.get(own) is not None:
            raise InvalidCall(
                f"{name} and {own} are two names of one option, got {value!r:.100} and {found[own]!r:.100}"
            )
        found[own] = value
    return found


def check_forms(ways: Mapping[str, object]) -> None:
    """Raises InvalidCall if more than one of them is given."""
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) > 1:
        raise InvalidCall(f"of {', '.join(ways)} one may be given, got {' and '.join(chosen)}")


def read_texts(name: str, value: object) -> tuple[str, ...] | None:
    """A new tuple each time: what the caller passed is never changed, and no fork sees another's."""
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        found = tuple(value)
        if all(isinstance(text, str) for text in found):
            return found
    raise InvalidCall(f"{name} must be a text or a list of texts, got {value!r:.200}")


def read_ids(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else (value,)
    if all(isinstance(each, int) and not isinstance(each, bool) for each in found):
        return found
    raise InvalidCall(f"{name} must be a list of token ids, got {value!r:.200}")


def read_choices(name: str, value: object) -> tuple[str, ...]:
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if not found or not all(isinstance(each, str) and each for each in found):
        raise InvalidCall(f"{name} must be a list of texts that are not empty, got {value!r:.200}")
    if len(set(found)) < len(found):
        raise InvalidCall(f"{name} must differ, got {found!r:.200}")
    return found


def suggestion(name: str, known: Iterable[str]) -> str:
    """The known name that was meant, if one is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def check_names(who: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises InvalidCall for the first that is not known."""
    known = list(known)
    for name in given:
        if name not in known:
            advice = suggestion(name, known) or f"; its options are {', '.join(known)}"
            raise InvalidCall(f"{who} has no option {name!r}{advice}")


def _read(name: str, called: str, value: object) -> object:
    if name in _INTEGERS:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
        raise InvalidCall(f"{called} must be an integer, got {value!r:.200}")
    if name in _NUMBERS:
        if isinstance(value, Real) and not isinstance(value, bool):
            return value if isinstance(value, int | float) else float(value)
        raise InvalidCall(f"{called} must be a number, got {value!r:.200}")
    if name in _SWITCHES:
        if isinstance(value, bool):
            return value
        raise InvalidCall(f"{called} must be True or False, got {value!r:.200}")
    if name in ("stop", "stop_regex"):
        return read_texts(called, value)
    if name == "stop_token_ids":
        return read_ids(called, value)
    if name == "choice":
        return read_choices(called, value)
    if not isinstance(value, str):
        raise InvalidCall(f"{called} must be text, got {value!r:.200}")
    return value
