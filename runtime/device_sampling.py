"""Sampling and log-probabilities where the logits are, for all rows at once, by ops that wait for nobody.

What a step asks goes over in one copy, and one transfer brings back the tokens and the log-probabilities that
were asked for, of sampled and of known tokens: the only moment of a step in which the host waits for the
device. The order of steps and the draw are those of sampling.py; scores are float32 throughout, so that two
tokens within rounding of each other may change places. Beside the logits there is a block of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..kernels.ops import Ops
from .readings import Known, Readings
from .sampling import Sampled, SampleRow, repeated, repetition_factor
from .types import SlotValue, TokenLogprob

_Edit = tuple[int, int, float]
# Rows whose distributions are worked out together: enough to fill a device, few beside a prompt's logits.
_BLOCK = 256
# No vocabulary has so many tokens: any larger top_k means the same, and this one fits 32 bits.
_ANY_TOP_K = (1 << 31) - 1


def read_on_device(
    logits: Tensor, known: Sequence[Known], places: Sequence[int], rows: Sequence[SampleRow], ops: Ops
) -> Readings:
    """The answers of `readings.read_logits`, with what is asked for and what is found each in one copy."""
    assert ops.sample is not None, "this backend samples where its logits are"
    assert len(places) == len(rows), f"one place a row, got {len(places)} for {len(rows)}"
    if not (known or rows):
        return Readings([], Sampled([], [], [], []))
    asked = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    ways, slots = _ways(known, [places[i] for i in asked])
    ids = [token_id for question in known for token_id in question.token_ids]
    columns = [ways, slots, ids, places, asked]
    tensors = [torch.tensor(column, dtype=torch.int64) for column in columns]
    masked = [i for i, row in enumerate(rows) if row.mask is not None]
    tensors += [_packed(rows), torch.tensor(masked, dtype=torch.int64), _masks(rows)]
    tensors += _edits(rows, logits.shape[1])
    way_rows, slot, told_ids, chosen_rows, which, packed, mask_rows, masks, *edits = ops.upload(tensors)
    found, pick_ids = [], told_ids
    if rows:
        chosen = logits if len(places) == len(logits) else logits[chosen_rows]
        scores = _edited(chosen, edits) if edits else chosen.clone() if masked else chosen
        if masked:
            ops.logit_mask(scores, masks.view(torch.int32).view(len(masked), -1), mask_rows)
        drawn = _draw(scores, packed, ops.sample)
        if scores is not chosen:  # what is edited may hide that a row's own logits are of no use
            drawn = torch.where(chosen.amax(dim=1).isfinite(), drawn, -1)
        found.append(drawn.double())
        pick_ids = torch.cat([told_ids, drawn[which].clamp(min=0)])
    top = _most_alternatives(known, rows, logits.shape[1])
    if ways:
        found += _log_probabilities(logits, way_rows, slot, pick_ids, top)
    numbers = torch.cat([part.flatten() for part in found]).tolist()
    token_ids = [int(x) for x in numbers[: len(rows)]]
    answers = _Answers(numbers[len(rows) :], slots, len(ways), top)
    return Readings(*_told(answers, known, rows, asked, token_ids))


def _ways(known: Sequence[Known], places: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rows of logits whose distribution is worked out, and for each token asked about, which of them says its
    value: the tokens that are known, then one for each of `places`."""
    ways: list[int] = []
    slots: list[int] = []
    for question in known:
        count = len(question.token_ids)
        slots += [len(ways)] * count if question.one_row else range(len(ways), len(ways) + count)
        ways += range(question.first, question.first + (1 if question.one_row else count))
    slots += range(len(ways), len(ways) + len(places))
    return ways + list(places), slots


def _packed(rows: Sequence[SampleRow]) -> Tensor:
    """What all rows say of how they draw, column after column, in 64 bits each."""
    params = [row.params for row in rows]
    numbers = [*map(_temperature, rows), *(p.top_p for p in params), *(p.min_p for p in params)]
    whole = [min(max(0, p.top_k), _ANY_TOP_K) for p in params]
    whole += [*(_signed(r.key) for r in rows), *(r.position for r in rows), *(r.choice for r in rows)]
    bits = torch.tensor(numbers, dtype=torch.float64).view(torch.int64)
    return torch.cat([bits, torch.tensor(whole, dtype=torch.int64)])


def _draw(scores: Tensor, packed: Tensor, draw: Callable[..., Tensor]) -> Tensor:
    """A token for each row of scores, -1 for a row that is bad."""
    count = len(scores)
    temperature, top_p, min_p = packed[: 3 * count].view(torch.float64).float().view(3, count)
    top_k, keys, positions, choices = packed[3 * count :].view(4, count)
    return draw(scores, temperature, top_k.int(), top_p, min_p, keys, positions, choices)


def _masks(rows: Sequence[SampleRow]) -> Tensor:
    """What grammars allow, row after row, each with an even number of words: two travel as one."""
    masks = [row.mask for row in rows if row.mask is not None]
    if not masks:
        return torch.empty(0, dtype=torch.int64)
    wide = np.zeros((len(masks), masks[0].size + masks[0].size % 2), dtype=np.int32)
    for i, mask in enumerate(masks):
        wide[i, : mask.size] = mask
    return torch.from_numpy(wide.reshape(-1)).view(torch.int64)


def _temperature(row: SampleRow) -> float:
    return 0.0 if row.params.greedy else row.params.temperature


def _most_alternatives(known: Sequence[Known], rows: Sequence[SampleRow], vocabulary: int) -> int:
    counts = [question.top or 0 for question in known] + [row.params.logprobs or 0 for row in rows]
    return min(max(1, *counts), vocabulary)


def _log_probabilities(
    logits: Tensor, ways: Tensor, slots: Tensor, ids: Tensor, top: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The value of ids[i] under logits row ways[slots[i]]; then of each way the best id, the lowest of equal
    ones, the ids of the `top` best, and their values: all float64. Of equal ones at the end of a top list,
    any may be in it."""
    firsts, bests, best_ids, peaks, totals = [], [], [], [], []
    for start in range(0, len(ways), _BLOCK):
        rows = logits[ways[start : start + _BLOCK]]
        peak = rows.amax(dim=1, keepdim=True)
        total = (rows - peak).exp_().sum(dim=1, keepdim=True).log_()
        best = rows.topk(top, dim=1)
        firsts.append(rows.max(dim=1).indices.double())  # of equal ones topk may give any
        bests.append((best.values - peak - total).double())
        best_ids.append(best.indices.double())
        peaks.append(peak[:, 0])
        totals.append(total[:, 0])
    peak, total = torch.cat(peaks)[slots], torch.cat(totals)[slots]
    chosen = logits[ways[slots], ids]
    return (chosen - peak - total).double(), torch.cat(firsts), torch.cat(best_ids), torch.cat(bests)


class _Answers:
    """The numbers of `_log_probabilities`, read one token after the other."""

    def __init__(self, numbers: list[float], slots: list[int], ways: int, top: int) -> None:
        self._slots, self._top, self._at = slots, top, 0
        sizes = (len(slots), ways, ways * top, ways * top)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._values, self._firsts, self._ids, self._bests = (
            numbers[start : start + size] for start, size in zip(starts, sizes, strict=True)
        )

    def next(self, token_id: int, count: int) -> tuple[SlotValue, TokenLogprob]:
        """Of the next token asked about: its value, and the same with `count` alternatives."""
        value, way = self._values[self._at], self._slots[self._at]
        self._at += 1
        part = slice(way * self._top, (way + 1) * self._top)
        first, bests = int(self._firsts[way]), self._bests[part]
        ids = [i for i in map(int, self._ids[part]) if i != first][: self._top - 1]
        rest = sorted(zip(ids, bests[1:], strict=True), key=lambda pair: (-pair[1], pair[0]))
        best = [(first, bests[0]), *rest]
        return SlotValue(value, *best[0]), TokenLogprob(token_id, value, tuple(best[:count]))


def _told(
    answers: _Answers, known: Sequence[Known], rows: Sequence[SampleRow], asked: list[int], ids: list[int]
) -> tuple[list[list[SlotValue] | list[TokenLogprob]], Sampled]:
    found: list[list[SlotValue] | list[TokenLogprob]] = []
    for question in known:
        pairs = [answers.next(token_id, max(1, question.top or 0)) for token_id in question.token_ids]
        if question.top is None:
            found.append([value for value, _ in pairs])
        else:
            found.append([entry for _, entry in pairs])
    values: list[SlotValue | None] = [None] * len(rows)
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    for i in asked:
        value, entry = answers.next(ids[i], rows[i].params.logprobs or 0)
        if ids[i] >= 0:
            values[i], logprobs[i] = value, entry
    return found, Sampled(ids, logprobs, [token_id < 0 for token_id in ids], values)


def _edits(rows: Sequence[SampleRow], vocabulary: int) -> list[Tensor]:
    """What rows want changed in their scores before anything is drawn, as flat columns over all rows: row, id
    and amount of what is added, then of factors, then of costs; row and id of what is forbidden. None if no
    row wants anything.
    """
    added: list[_Edit] = []
    scaled: list[_Edit] = []
    spent: list[_Edit] = []
    forbidden: list[_Edit] = []
    for i, row in enumerate(rows):
        params = row.params
        added += [(i, token, bias) for token, bias in params.logit_bias]
        if params.repetition_penalty != 1.0:
            factor = repetition_factor(params)
            scaled += [(i, token, factor) for token in {*row.prompt_ids, *row.output_ids}]
        frequency, presence = params.frequency_penalty, params.presence_penalty
        if frequency or presence:
            counts = Counter(row.output_ids)
            spent += [(i, token, n * frequency + presence) for token, n in counts.items()]
        forbidden += [(i, token, 0.0) for token in row.forbidden_ids]
    kinds = (added, scaled, spent, forbidden)
    if not any(kinds):
        return []
    columns = [
        column for edits in kinds for column in _columns([edit for edit in edits if edit[1] < vocabulary])
    ]
    return columns[:-1]  # what is forbidden has no amount


def _edited(logits: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """A changed copy, by the columns of `_edits`."""
    rows, ids, bias, seen_rows, seen, factors, out_rows, out, costs, gone_rows, gone = columns
    scores = logits.clone()
    scores[rows, ids] += _amounts(bias)
    scores[seen_rows, seen] = repeated(scores[seen_rows, seen], _amounts(factors))
    scores[out_rows, out] -= _amounts(costs)
    scores[gone_rows, gone] = -torch.inf
    return scores


def _columns(edits: Sequence[_Edit]) -> list[Tensor]:
    """Amounts travel as the bits of float64."""
    rows, ids, amounts = zip(*edits, strict=True) if edits else ((), (), ())
    places = [torch.tensor(column, dtype=torch.int64) for column in (rows, ids)]
    return [*places, torch.tensor(amounts, dtype=torch.float64).view(torch.int64)]


def _amounts(bits: Tensor) -> Tensor:
    return bits.view(torch.float64).float()


def _signed(key: int) -> int:
    """The same 64 bits as a signed number."""
    return key - (1 << 64) if key >= 1 << 63 else key
