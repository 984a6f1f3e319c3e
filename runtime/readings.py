"""What a step asks of its logits, and the answer: values of tokens that are known, and tokens to choose.

All of it is asked at once, so that a device answers with one transfer (device_sampling.py). Here are the
questions, and the answer where the logits are in the host's memory. Knows neither sequences nor pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .logprobs import slot_values, token_logprobs, values_after
from .sampling import Sampled, SampleRow, sample
from .types import SlotValue, TokenLogprob

Choose = Callable[[Tensor, Sequence[SampleRow]], Sampled]


@dataclass(frozen=True, slots=True)
class Known:
    """Tokens of which the value is asked: token_ids[i] under logits row first + i, or all under the row
    `first`. `top` None asks for no more than a SlotValue each, a number for that many alternatives."""

    first: int
    token_ids: Sequence[int]
    one_row: bool = False
    top: int | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """`known[i]` answers question i: a TokenLogprob with at least one alternative where `top` was a number,
    else a SlotValue, whose `best_logprob` is NaN under a row that is no distribution. `sampled` has an entry
    for each row to choose for."""

    known: list[list[SlotValue] | list[TokenLogprob]]
    sampled: Sampled


def read_logits(
    logits: Tensor,
    known: Sequence[Known],
    places: Sequence[int],
    rows: Sequence[SampleRow],
    choose: Choose = sample,
) -> Readings:
    """Answers of logits (L, V) float32 on the host, which are only read; rows[i] chooses from row places[i]
    of them. `places` ascend. `choose` is sampling.sample with what else that needs."""
    values = [_known(logits, question) for question in known]
    chosen = logits if len(places) == len(logits) else logits[torch.tensor(places, dtype=torch.int64)]
    return Readings(values, choose(chosen, rows))


def _known(logits: Tensor, question: Known) -> list[SlotValue] | list[TokenLogprob]:
    ids = question.token_ids
    if question.one_row:
        return values_after(logits[question.first], ids)
    rows = logits[question.first : question.first + len(ids)]
    if question.top is None:
        return slot_values(rows, ids)
    return token_logprobs(rows, ids, max(1, question.top))
