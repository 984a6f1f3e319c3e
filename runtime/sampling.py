"""From logits to tokens: what one step's rows sample, and the log-probabilities they asked for.

For each row, in this order:
  1. raw log-probabilities are read (logprobs.py), before anything below;
  2. logit_bias is added;
  3. repetition_penalty, over prompt and output: a score below 0 is multiplied, another divided by it;
  4. frequency_penalty for each occurrence and presence_penalty once, over the output, are subtracted;
  5. below min_tokens, whatever would end the row by its id is forbidden; of a row with a grammar, all that
     its mask does not allow;
  6. greedy: the best score, ties by lower id. Otherwise temperature, then top-k, then top-p (the smallest set
     of likeliest tokens with at least that mass), then min-p (relative to the likeliest), ties of scores by
     lower id; of what is left, the token with the largest sum of score / temperature and its Gumbel noise
     (random_stream.py), which draws each with its probability.

A row's result depends on its own logits and its `SampleRow` alone, bit for bit: each row is worked on by
itself, but for masks and the argmax, which round nothing. Scores stay float32 up to step 5, as
in transformers. Step 6 is float32 too, with temperature, top_p and min_p rounded to it, and made of nothing
but what every processor rounds alike; masses are sums of integers, which have no order. So kernels/sample.py
chooses the same token of the same scores. The caller's logits are only read. No random state lives here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.ops import Draw
from .grammar.protocol import MaskRow
from .logprobs import best_ids, slot_values, token_logprobs
from .random_stream import draw_words, gumbel, tail_of
from .sampling_params import SamplingParams
from .types import SlotValue, TokenLogprob

# Any temperature from here on makes all weights equal, and its inverse is still a normal float32.
_HOTTEST = 2.0**126
# A weight of 1 in units of mass. 2**18 such weights fit in 63 bits.
_MASS_OF_ONE = 2.0**44
# What an upper bound of noise may be too small by, as it is computed.
_SLACK = 1e-3

Forbid = Callable[[Tensor, Tensor, Tensor | None], None]
DrawAll = Callable[[Tensor, Sequence[Draw]], list[int]]
_Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one row brings to sampling beside its logits. The sequences are read only.

    `output_ids` are all tokens generated so far, `eos_ids` what ends a text of this model. `key` (that of
    the branch, random_stream.stream_key), `choice` and `position`, the place of the token to choose in its
    sequence, say which noise it gets; a greedy row does not read them. `mask` is what a grammar allows, with
    what may end the row already thought of.
    """

    params: SamplingParams
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    eos_ids: Collection[int]
    key: int
    choice: int
    position: int
    mask: MaskRow | None = None

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that would end the row while it is below min_tokens; an ignored end of text ends nothing."""
        if self.mask is not None or len(self.output_ids) >= self.params.min_tokens:
            return ()
        return (*self.params.stop_token_ids, *(() if self.params.ignore_eos else self.eos_ids))

    @property
    def takes_raw_best(self) -> bool:
        """Whether the row's token is the argmax of its unchanged logits."""
        params = self.params
        edited = params.logit_bias or params.needs_history or self.forbidden_ids or self.mask is not None
        return params.greedy and not edited


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


class Scratch:
    """Memory for the scores of some rows, kept from step to step: fresh memory costs more than what is done
    in it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def scores(self, rows: int, size: int) -> Tensor:
        """(rows, size) float32; what it held before is gone."""
        if self._memory.numel() < rows * size:
            self._memory = torch.empty(rows * size)
        return self._memory[: rows * size].view(rows, size)


def sample(
    logits: Tensor,
    rows: Sequence[SampleRow],
    forbid: Forbid | None = None,
    scratch: Scratch | None = None,
    draw: DrawAll | None = None,
) -> Sampled:
    """Choose one token for each row of `logits` (R, V) float32, as the head of this module says. `forbid`,
    the op `logit_mask`, is needed where a row has a mask. `draw`, the op of this name, is for speed."""
    assert logits.dtype == torch.float32, f"sampling is of float32 logits, got {logits.dtype}"
    assert len(logits) == len(rows), f"one SampleRow a row, got {len(rows)} for {tuple(logits.shape)}"
    if not rows:
        return Sampled([], [], [], [])
    best, most = _best(logits)
    token_ids = best.tolist()
    usable = np.isfinite(most)
    edited = [i for i, row in enumerate(rows) if usable[i] and not row.takes_raw_best]
    if edited:
        scores = (scratch or Scratch()).scores(len(edited), logits.shape[1])
        torch.index_select(logits, 0, torch.tensor(edited), out=scores)
        chosen = _choose(scores, [rows[i] for i in edited], forbid, draw)
        for i, token_id in zip(edited, chosen, strict=True):
            token_ids[i] = token_id
    for i in np.flatnonzero(~usable).tolist():
        token_ids[i] = -1
    asked = [_logprob(logits[i], token_ids[i], row.params.logprobs) for i, row in enumerate(rows)]
    logprobs, values = [entry for entry, _ in asked], [value for _, value in asked]
    return Sampled(token_ids, logprobs, [token_id < 0 for token_id in token_ids], values)


def _best(scores: Tensor) -> tuple[NDArray[np.int64], _Floats]:
    """The place of the largest of each row, and it: NaN or infinite if the row is of no use, as argmax takes
    NaN for the largest."""
    numbers = scores.numpy()
    best = numbers.argmax(axis=1)  # ten times as fast as torch's
    return best, numbers[np.arange(len(best)), best]


def _choose(
    scores: Tensor, rows: Sequence[SampleRow], forbid: Forbid | None, draw: DrawAll | None
) -> list[int]:
    """The tokens of rows with finite scores, which are changed; -1 if nothing is left to choose from."""
    for row, own in zip(rows, scores, strict=True):
        edit_scores(own, row)
    masks = [(i, row.mask) for i, row in enumerate(rows) if row.mask is not None]
    if masks:
        assert forbid is not None, "where a row has a mask, the op that applies it is given"
        allowed = torch.from_numpy(np.stack([mask for _, mask in masks]))
        forbid(scores, allowed, torch.tensor([i for i, _ in masks]))
    chosen, together = [], []
    for i, (best, most) in enumerate(zip(*_best(scores), strict=True)):
        params = rows[i].params
        if not math.isfinite(most):
            chosen.append(-1)
        elif params.greedy:
            chosen.append(int(best))
        elif draw is None:
            chosen.append(_draw(scores[i], float(most), rows[i]))
        else:
            chosen.append(int(best))  # until all of these are drawn
            together.append(_asked(i, int(best), rows[i], scores.shape[1]))
    if draw is not None and together:
        for one, token_id in zip(together, draw(scores, together), strict=True):
            chosen[one.row] = token_id
    return chosen


def edit_scores(scores: Tensor, row: SampleRow) -> None:
    """Steps 2 to 5 but for masks, in place. History and ends outside of the vocabulary are not there."""
    if row.params.logit_bias:
        assert row.params.logit_bias[-1][0] < len(scores), "ids of logit_bias are checked against it"
        ids, biases = zip(*row.params.logit_bias, strict=True)
        scores[_ids(ids, scores)] += torch.tensor(biases, dtype=scores.dtype)
    if row.params.needs_history:
        _penalise_repetition(scores, row)
        _penalise_output(scores, row)
    if row.forbidden_ids:
        scores[_ids(row.forbidden_ids, scores)] = -math.inf


def _penalise_repetition(scores: Tensor, row: SampleRow) -> None:
    if row.params.repetition_penalty == 1.0:
        return
    seen = _ids({*row.prompt_ids, *row.output_ids}, scores)
    scores[seen] = repeated(scores[seen], repetition_factor(row.params))


def repetition_factor(params: SamplingParams) -> float:
    """Kept to what float32 can hold: a factor that became 0 or inf would make NaN."""
    limits = torch.finfo(torch.float32)
    return min(max(params.repetition_penalty, limits.tiny), limits.max)


def repeated(values: Tensor, factor: float | Tensor) -> Tensor:
    """Scores of tokens that were seen before."""
    limit = torch.finfo(values.dtype).max
    return torch.where(values < 0, values * factor, values / factor).clamp(max=limit)


def _penalise_output(scores: Tensor, row: SampleRow) -> None:
    frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
    if frequency == presence == 0.0:
        return
    counts = Counter(row.output_ids)
    seen = _ids(counts, scores)
    costs = [count * frequency + presence for token_id, count in counts.items() if token_id < len(scores)]
    scores[seen] -= torch.tensor(costs, dtype=scores.dtype, device=scores.device)


def _draw(scores: Tensor, most: float, row: SampleRow) -> int:
    """Temperature, filters and the draw. `most` is the largest score; weights are relative to its own, 1."""
    params, ids, values = row.params, np.arange(len(scores)), scores.numpy()
    if 0 < params.top_k < len(values):
        ids = best_ids(scores, params.top_k).sort().values.numpy()
        values = values[ids]
    with np.errstate(over="ignore"):
        scaled = (values - np.float32(most)) * _inverse(params.temperature)
    tails = tail_of(draw_words(row.key, row.choice, row.position, ids))
    share, least = np.float32(params.top_p), np.float32(params.min_p)
    if share >= 1.0 and least == 0.0:
        return int(ids[_winner(scaled, tails)])
    weights = _weights(scaled)
    masses = (weights * np.float32(_MASS_OF_ONE)).astype(np.int64)
    wanted = float(share) * float(masses.sum()) if share < 1.0 else math.inf
    scaled[weights < least] = -math.inf
    return int(ids[_winner_in_nucleus(values, scaled, tails, masses, wanted)])


def _asked(place: int, best: int, row: SampleRow, size: int) -> Draw:
    params = row.params
    scale, top_k = float(_inverse(params.temperature)), params.top_k if 0 < params.top_k < size else 0
    return Draw(place, best, row.key, row.position, row.choice, scale, params.top_p, params.min_p, top_k)


def _inverse(temperature: float) -> np.float32:
    return np.float32(1.0) / np.float32(min(temperature, _HOTTEST))


def _weights(scaled: _Floats) -> _Floats:
    """exp(scaled), of numbers up to 0: 2**-halvings times the series of what is left over.

    Below the range of float32 it stays at some 1e-35.
    """
    x = np.maximum(scaled, np.float32(-80.0))
    halvings = (x * -1.4426950408889634 + 0.5).astype(np.int32)
    # ln 2 in two parts, the first short enough for its multiples to be exact.
    steps = halvings.astype(np.float32)
    r = (x + steps * 0.693359375) - steps * 2.1219444005469057e-4
    series = np.full_like(r, 1 / 5040)
    for factor in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        series = series * r + np.float32(factor)
    weights: _Floats = series * ((127 - halvings) << 23).view(np.float32)
    return weights


def _winner_in_nucleus(
    values: _Floats, scaled: _Floats, tails: _Floats, masses: NDArray[np.int64], wanted: float
) -> int:
    """The place of the winner among the fewest best `values` with the `wanted` mass, ties by lower place.

    Whether a winner is one of them is told by the mass before it in order; if not, nothing behind it is
    either, and those before it are looked at again. No order is ever made, and few rounds are needed, since
    the winner of a round lies in the nucleus with its share as probability.
    """
    places = np.arange(len(values))
    while True:
        winner = _winner(scaled, tails)
        before = values > values[winner]
        before[:winner] |= values[:winner] == values[winner]
        if not before.any() or float(masses[before].sum()) < wanted:
            return int(places[winner])
        places, values, scaled, tails, masses = (x[before] for x in (places, values, scaled, tails, masses))


def _winner(scaled: _Floats, tails: _Floats) -> int:
    """The place of the largest sum of `scaled` and noise, the first of a tie."""
    # Noise is -log(-log(1 - tail)), at most -log(tail): few can win, and only theirs is worked out.
    bounds = scaled - np.log(tails) + np.float32(_SLACK)
    first = bounds.argmax()
    enough = scaled[first] + gumbel(tails[first : first + 1])
    rivals = (bounds >= enough).nonzero()[0]
    return int(rivals[(scaled[rivals] + gumbel(tails[rivals])).argmax()])


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
