"""From logits to tokens: what one step's rows sample, and the log-probabilities they asked for.

For each row, in this order:
  1. raw log-probabilities are read (logprobs.py), before anything below;
  2. logit_bias is added;
  3. repetition_penalty, over prompt and output: a score below 0 is multiplied, another divided by it;
  4. frequency_penalty for each occurrence and presence_penalty once, over the output, are subtracted;
  5. below min_tokens, whatever would end the row by its id is forbidden;
  6. greedy: the best score, ties by lower id. Otherwise temperature, then top-k, then top-p (the smallest set
     of likeliest tokens with at least that mass), then min-p (relative to the likeliest), ties by lower id;
     what is left is drawn by inverting its distribution function, ids rising, at the row's random number.

A row's result depends on its own logits and its `SampleRow` alone, bit for bit: each row is worked on by
itself, in tensors of its own, but for the argmax, which rounds nothing. Scores stay float32 up to step 5, as
in transformers; probabilities are float64. The caller's logits are only read. No random state lives here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .logprobs import best_ids, slot_values, token_logprobs
from .sampling_params import SamplingParams
from .types import SlotValue, TokenLogprob

# Nearly every nucleus is smaller than this; sorting the whole vocabulary is kept for those that are not.
_NUCLEUS_GUESS = 1024


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row brings to sampling beside its logits. The sequences are read only.

    `output_ids` are all tokens generated so far, `eos_ids` what ends a text of this model. `uniform` is
    random_stream.uniform_for(...) of the token to choose; a greedy row does not read it.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    eos_ids: Collection[int]
    uniform: float

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that would end the row while it is below min_tokens; an ignored end of text ends nothing."""
        if len(self.output_ids) >= self.params.min_tokens:
            return ()
        return (*self.params.stop_token_ids, *(() if self.params.ignore_eos else self.eos_ids))

    @property
    def takes_raw_best(self) -> bool:
        """Whether the row's token is the argmax of its unchanged logits."""
        params = self.params
        return params.greedy and not (params.logit_bias or params.needs_history or self.forbidden_ids)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One entry a row. `logprobs` is None where none were asked for.

    `bad` rows have the token id -1 and no logprobs: their logits hold NaN or +inf or nothing finite, or all
    that could be chosen is forbidden. They do not touch the others.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    bad: list[bool]
    values: list[SlotValue | None]


def sample(logits: Tensor, rows: Sequence[SampleRow]) -> Sampled:
    """Choose one token for each row of `logits` (R, V) float32, as the head of this module says."""
    assert logits.dtype == torch.float32, f"sampling is of float32 logits, got {logits.dtype}"
    assert len(logits) == len(rows), f"one SampleRow a row, got {len(rows)} for {tuple(logits.shape)}"
    if not rows:
        return Sampled([], [], [], [])
    best = logits.numpy().argmax(axis=1)  # ten times as fast as torch's
    token_ids = best.tolist()
    # argmax takes NaN for the largest: this one value tells NaN, +inf and "nothing finite" from a usable row.
    most = logits.numpy()[np.arange(len(rows)), best].tolist()
    for i, row in enumerate(rows):
        if not math.isfinite(most[i]):
            token_ids[i] = -1
        elif not row.takes_raw_best:
            token_ids[i] = _choose(logits[i], row)
    asked = [_logprob(logits[i], token_ids[i], row.params.logprobs) for i, row in enumerate(rows)]
    logprobs, values = [entry for entry, _ in asked], [value for _, value in asked]
    return Sampled(token_ids, logprobs, [token_id < 0 for token_id in token_ids], values)


def adjusted_logits(raw: Tensor, row: SampleRow) -> Tensor:
    """Steps 2 to 5 on one row's logits `raw` (V): a new tensor. History and ends outside V are not there."""
    scores = raw.clone()
    if row.params.logit_bias:
        assert row.params.logit_bias[-1][0] < len(raw), "ids of logit_bias are checked against the vocabulary"
        ids, biases = zip(*row.params.logit_bias, strict=True)
        scores[_ids(ids, raw)] += torch.tensor(biases, dtype=scores.dtype, device=scores.device)
    if row.params.needs_history:
        _penalise_repetition(scores, row)
        _penalise_output(scores, row)
    forbidden = _ids(row.forbidden_ids, raw)
    scores[forbidden] = -math.inf
    return scores


def _penalise_repetition(scores: Tensor, row: SampleRow) -> None:
    if row.params.repetition_penalty == 1.0:
        return
    limits = torch.finfo(scores.dtype)
    # Kept to what the scores' type can hold: a factor that became 0 or inf would make NaN.
    penalty = min(max(row.params.repetition_penalty, limits.tiny), limits.max)
    seen = _ids({*row.prompt_ids, *row.output_ids}, scores)
    values = scores[seen]
    scores[seen] = torch.where(values < 0, values * penalty, values / penalty).clamp(max=limits.max)


def _penalise_output(scores: Tensor, row: SampleRow) -> None:
    frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
    if frequency == presence == 0.0:
        return
    counts = Counter(row.output_ids)
    seen = _ids(counts, scores)
    costs = [count * frequency + presence for token_id, count in counts.items() if token_id < len(scores)]
    scores[seen] -= torch.tensor(costs, dtype=scores.dtype, device=scores.device)


def _choose(raw: Tensor, row: SampleRow) -> int:
    """The token of one row with finite logits, or -1 if nothing is left to choose from."""
    scores = adjusted_logits(raw, row)
    best = scores.argmax()
    most = scores[best].item()
    if not math.isfinite(most):
        return -1
    if row.params.greedy:
        return int(best.item())
    return _draw(scores, most, row.params, row.uniform)


def _draw(scores: Tensor, most: float, params: SamplingParams, uniform: float) -> int:
    """Temperature, filters and the draw. `most` is the largest score; weights are relative to its own, 1."""
    assert 0.0 <= uniform < 1.0, f"a random number lies in [0, 1), got {uniform}"
    # None stands for all ids. Kept ids go back to rising order at each cut, so that ties mean the lower id.
    ids: Tensor | None = None
    if 0 < params.top_k < len(scores):
        ids = best_ids(scores, params.top_k).sort().values
    kept = scores if ids is None else scores[ids]
    weights = ((kept.double() - most) / params.temperature).exp_()
    if params.top_p < 1.0:
        nucleus = _nucleus(weights, params.top_p).sort().values
        weights, ids = weights[nucleus], nucleus if ids is None else ids[nucleus]
    if params.min_p > 0.0:
        weights = weights.where(weights >= params.min_p, 0.0)
    mass = weights.cumsum(0)
    # The first whose share ends beyond the number; one of weight 0 ends where the one before it does.
    place = torch.searchsorted(mass, uniform * mass[-1], right=True)
    return int(place.item() if ids is None else ids[place].item())


def _nucleus(weights: Tensor, share: float) -> Tensor:
    """Places of the fewest `weights` that hold `share` of the sum, heaviest first, with the crossing one."""
    wanted = share * weights.sum()
    places = best_ids(weights, _NUCLEUS_GUESS)
    mass = weights[places].cumsum(0)
    if len(places) < len(weights) and bool(mass[-1] < wanted):
        places = weights.sort(descending=True, stable=True).indices
        mass = weights[places].cumsum(0)
    return places[: int(torch.searchsorted(mass, wanted).item()) + 1]


def _ids(ids: Collection[int], scores: Tensor) -> Tensor:
    """Those of `ids` that `scores` has, as an index. A vocabulary may be larger than a model's output."""
    return torch.tensor([i for i in ids if i < len(scores)], dtype=torch.int64, device=scores.device)


def _logprob(raw: Tensor, token_id: int, top: int | None) -> tuple[TokenLogprob | None, SlotValue | None]:
    if top is None or token_id < 0:
        return None, None
    if top <= 1:
        [value] = slot_values(raw.unsqueeze(0), [token_id])
        return value.entry(token_id, top), value
    [entry] = token_logprobs(raw.unsqueeze(0), [token_id], top)
    return entry, entry.value
