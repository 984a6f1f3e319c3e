"""Select methods: which of some texts a model finds best, from the log-probabilities of their tokens.

Pure functions of protocol.Scored; they know no backend. Every number they use is one that the backend
computed: a missing one is an error that says so, never a zero. Of equal scores the first choice wins. Names
and metadata are those of SGLang's methods, and whatever follows their calling convention is a method here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from .errors import BackendError, InvalidCall, Unsupported
from .protocol import ChoiceScore, Scored

TokenLogprobs: TypeAlias = "list[list[object]]"
"""[log-probability, token id, None] for each token: the form in which SGLang writes them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The place of the best choice; one number a choice, of which that has the highest, where the method
    compares numbers; and what metadata it adds."""

    index: int
    scores: list[float] | None = None
    meta: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChoicesDecision:
    """What a method of one's own returns: the text chosen, and metadata for `s.get_meta_info(name)`."""

    decision: str
    meta_info: Mapping[str, object] | None = None


class ChoicesSamplingMethod(Protocol):
    """A method of one's own: any callable that takes these keywords; as base class it is optional.

    All lists are in the order of the choices. `normalized_prompt_logprobs` are the means of
    `input_token_logprobs`; `output_token_logprobs` are empty, since nothing is generated. The unconditional
    ones are there if the callable has a true attribute `requires_unconditional_logprobs`.
    """

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return False

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[TokenLogprobs],
        output_token_logprobs: list[TokenLogprobs],
        unconditional_token_logprobs: list[TokenLogprobs] | None = None,
    ) -> ChoicesDecision: ...


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """A name, and a function of the choices and their scores, in which no number is missing.
    `requires_unconditional_logprobs`: Scored must have them."""

    name: str
    judge: Callable[[Sequence[str], Scored], Verdict] = field(repr=False)
    requires_unconditional_logprobs: bool = False

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float] = (),
        input_token_logprobs: Sequence[Sequence[Sequence[Any]]],  # Any: numbers, as JSON has them
        output_token_logprobs: Sequence[Sequence[Sequence[Any]]] = (),
        unconditional_token_logprobs: Sequence[Sequence[Sequence[Any]]] | None = None,
    ) -> ChoicesDecision:
        """SGLang's convention, so that a method of one's own can ask this one."""
        unconditional = unconditional_token_logprobs or [()] * len(input_token_logprobs)
        scores = tuple(
            ChoiceScore(tuple(each[1] for each in given), _numbers(given), _numbers(alone))
            for given, alone in zip(input_token_logprobs, unconditional, strict=True)
        )
        choice = choose(self, choices, Scored(scores))
        return ChoicesDecision(choice.text, choice.meta)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen. `meta`: SGLang's keys, "method", "index", counts of tokens, and "scores" where the
    method has them."""

    index: int
    text: str
    meta: dict[str, object]


def choose(
    method: ChoicesMethod,
    choices: Sequence[str],
    scored: Scored,
    *,
    temperature: float = 0.0,
    uniform: Callable[[], float] = random.random,
) -> Choice:
    """The best of the choices. With a temperature above 0 it is drawn instead, with probabilities in
    proportion to exp(score / temperature): `uniform` gives a number of [0, 1).

    Raises BackendError if the scores are not what the method needs, Unsupported if the backend has none and
    the method cannot do without, InvalidCall if a method of one's own
    decides for something else, or has no scores to draw from.
    """
    if scored.chosen is not None:
        return _chosen_there(method, choices, scored, temperature)
    _check(method, choices, scored)
    meta = {**_sglang_meta(scored, method.requires_unconditional_logprobs), "method": method.name}
    verdict = method.judge(choices, scored)
    index = verdict.index
    if temperature > 0:
        if verdict.scores is None:
            raise InvalidCall(
                f"temperature must be 0 for {method.name}, which has no scores, got {temperature}"
            )
        index = _drawn(verdict.scores, temperature, uniform)
    scores = {} if verdict.scores is None else {"scores": verdict.scores}
    return Choice(
        index, choices[index], {**_figures(scored), **meta, **verdict.meta, **scores, "index": index}
    )


def _chosen_there(
    method: ChoicesMethod, choices: Sequence[str], scored: Scored, temperature: float
) -> Choice:
    """What a backend chose that knows no scores: token by token, as when it generates."""
    index = scored.chosen
    if index is None or not 0 <= index < len(choices):
        raise BackendError(f"the backend chose number {index} of {len(choices)} choices")
    if method not in (token_length_normalized, greedy_token_selection):
        raise Unsupported(
            f"choices_method {method.name} needs log-probabilities of the choices, and this backend only "
            "says which one it takes: leave it out, or use RuntimeEndpoint(url)"
        )
    if temperature > 0:
        raise Unsupported(
            f"temperature must be 0 for a select whose scores this backend does not know, got {temperature}"
        )
    return Choice(index, choices[index], {**_figures(scored), "method": "chosen_by_backend", "index": index})


def _figures(scored: Scored) -> dict[str, object]:
    """Counts of tokens, as far as they are known."""
    if not scored.tells_cached:
        return {"prompt_tokens": scored.prompt_tokens}
    return {
        "prompt_tokens": scored.prompt_tokens,
        "cached_tokens": scored.cached_tokens,
        "computed_tokens": scored.computed_tokens,
    }


def as_method(value: object) -> ChoicesMethod:
    """A method by its name, a callable that follows SGLang's convention, or None for the default.
    Raises InvalidCall."""
    if value is None:
        return token_length_normalized
    if isinstance(value, ChoicesMethod):
        return value
    if isinstance(value, str) and value in METHODS:
        return METHODS[value]
    if callable(value) and not isinstance(value, type):
        return _foreign(cast("ChoicesSamplingMethod", value))
    raise InvalidCall(
        f"choices_method must be one of {', '.join(METHODS)}, or a callable, got {value!r:.200}"
    )


# -- the methods


def _by_mean(_: Sequence[str], scored: Scored) -> Verdict:
    return _highest([_mean(choice.logprobs) for choice in scored.choices])


def _by_sum(_: Sequence[str], scored: Scored) -> Verdict:
    return _highest([math.fsum(choice.logprobs) for choice in scored.choices])


def _by_gain(_: Sequence[str], scored: Scored) -> Verdict:
    gains = [
        _mean([_gain(*pair) for pair in zip(choice.logprobs, choice.unconditional, strict=True)])
        for choice in scored.choices
    ]
    return _highest(gains, {"normalized_unconditional_prompt_logprobs": gains})


def _by_elimination(_: Sequence[str], scored: Scored) -> Verdict:
    length = max(len(choice.token_ids) for choice in scored.choices)
    rows = [_extended(choice.logprobs, length) for choice in scored.choices]
    left = list(range(len(rows)))
    for at in range(length):
        if len(left) == 1:
            break
        best = max(rows[index][at] for index in left)
        begun = [choice.token_ids[: at + 1] for choice in scored.choices]
        # Rows that ran side by side may differ in their last bits, so equal tokens are told by their ids.
        winners = {begun[index] for index in left if rows[index][at] == best}
        left = [index for index in left if begun[index] in winners or rows[index][at] == best]
    return Verdict(left[0], meta={"greedy_logprob_matrix": rows})


token_length_normalized = ChoicesMethod("token_length_normalized", _by_mean)
"""The highest mean log-probability of a token. Choices that share a long, likely ending gain by it."""

greedy_token_selection = ChoicesMethod("greedy_token_selection", _by_elimination)
"""Token by token: of the choices still left, those stay whose token is likeliest at that place; choices that
have the token in common stay together, and so do equal numbers. A choice that has ended goes on with the mean
of its own tokens, as in SGLang: against "organism" as "organ" and "ism", "organ" wins if that mean is
higher than the log-probability of "ism". So a choice that another one continues is neither preferred for
being short nor lost for it."""

unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized", _by_gain, True)
"""The highest mean of what the prompt adds to the log-probability of a token: conditional minus
unconditional. A choice that is likely anywhere gains nothing by it. Needs a second scoring."""

total = ChoicesMethod("total", _by_sum)
"""The highest sum: how likely the whole text is. Short choices gain by it."""

METHODS: Mapping[str, ChoicesMethod] = {
    method.name: method
    for method in (
        token_length_normalized,
        greedy_token_selection,
        unconditional_likelihood_normalized,
        total,
    )
}


def _highest(scores: list[float], meta: dict[str, object] | None = None) -> Verdict:
    """The first of the highest."""
    return Verdict(max(range(len(scores)), key=scores.__getitem__), scores, meta or {})


def _drawn(scores: list[float], temperature: float, uniform: Callable[[], float]) -> int:
    best = max(scores)
    if math.isinf(best):  # nothing possible, or something infinitely better than nothing: no proportions
        return scores.index(best)
    weights = [math.exp((score - best) / temperature) for score in scores]
    mark = uniform() * math.fsum(weights)
    passed = 0.0
    for index, weight in enumerate(weights):
        passed += weight
        if mark < passed:
            return index
    return scores.index(best)  # rounding left the mark at the very end


def _mean(values: Sequence[float]) -> float:
    if -math.inf in values:  # whatever else stands there, infinities of the other sign as well
        return -math.inf
    return math.fsum(values) / len(values)


def _extended(logprobs: Sequence[float], length: int) -> list[float]:
    return [*logprobs, *[_mean(logprobs)] * (length - len(logprobs))]


def _gain(conditional: float, unconditional: float) -> float:
    """What is impossible after the prompt gains nothing, whatever it was before."""
    return conditional if math.isinf(conditional) else conditional - unconditional


# -- in the terms of SGLang


def _sglang_meta(scored: Scored, unconditional: bool) -> dict[str, Any]:  # Any: they are keywords as well
    meta: dict[str, Any] = {
        "normalized_prompt_logprobs": [_mean(choice.logprobs) for choice in scored.choices],
        "input_token_logprobs": [_wire(choice, choice.logprobs) for choice in scored.choices],
        "output_token_logprobs": [[] for _ in scored.choices],
    }
    if unconditional:
        alone = [_wire(choice, choice.unconditional) for choice in scored.choices]
        meta["unconditional_token_logprobs"] = alone
    return meta


def _wire(choice: ChoiceScore, logprobs: Sequence[float]) -> TokenLogprobs:
    return [[logprob, token, None] for logprob, token in zip(logprobs, choice.token_ids, strict=True)]


def _foreign(decide: ChoicesSamplingMethod) -> ChoicesMethod:
    """A callable that follows SGLang's convention."""
    name = str(getattr(decide, "__name__", type(decide).__name__))
    unconditional = bool(getattr(decide, "requires_unconditional_logprobs", False))

    def judge(choices: Sequence[str], scored: Scored) -> Verdict:
        told = decide(choices=list(choices), **_sglang_meta(scored, unconditional))
        decision = getattr(told, "decision", told)
        if decision not in choices:
            raise InvalidCall(
                f"choices_method {name} must decide for one of the choices, got {decision!r:.200}"
            )
        return Verdict(choices.index(decision), meta=dict(getattr(told, "meta_info", None) or {}))

    return ChoicesMethod(name, judge, unconditional)


# -- what is refused


def _check(method: ChoicesMethod, choices: Sequence[str], scored: Scored) -> None:
    if not choices or len(scored.choices) != len(choices):
        raise BackendError(f"the backend scored {len(scored.choices)} of {len(choices)} choices")
    for text, choice in zip(choices, scored.choices, strict=True):
        if not choice.token_ids:
            raise InvalidCall(f"choice {text!r:.200} adds no token to the prompt, so it has no likelihood")
        _check_numbers(text, "log-probabilities", choice.logprobs, choice)
        if method.requires_unconditional_logprobs:
            _check_numbers(text, "unconditional log-probabilities", choice.unconditional, choice)


def _check_numbers(text: str, what: str, values: Sequence[object], choice: ChoiceScore) -> None:
    if len(values) != len(choice.token_ids):
        raise BackendError(
            f"the backend gave {len(values)} {what} for choice {text!r:.200}, "
            f"which has {len(choice.token_ids)} tokens"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise BackendError(f"{what} of choice {text!r:.200} must be numbers, the backend gave {value!r}")


def _numbers(entries: Sequence[Sequence[Any]]) -> tuple[float, ...]:  # Any: as JSON has it; checked later
    return tuple(entry[0] for entry in entries)
