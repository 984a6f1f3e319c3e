"""Sampling where the logits are: the steps of sampling.py for all rows at once, by ops that wait for nobody.

What rows ask goes over in one copy, and one transfer brings back the tokens and the log-probabilities that
were asked for: the only moment of a step in which the host waits for the device. The order of steps and the
draw are those of sampling.py; scores are float32 throughout, so that two tokens within rounding of each other
may change places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.ops import Ops
from .sampling import Sampled, SampleRow, repeated, repetition_factor
from .types import SlotValue, TokenLogprob

_Edit = tuple[int, int, float]


def sample_on_device(logits: Tensor, rows: Sequence[SampleRow], ops: Ops) -> Sampled:
    """Choose one token for each row of `logits` (R, V) float32, which are only read."""
    assert ops.sample is not None, "this backend samples where its logits are"
    assert len(logits) == len(rows), f"one SampleRow a row, got {len(rows)} for {tuple(logits.shape)}"
    if not rows:
        return Sampled([], [], [], [])
    numbers = torch.tensor(
        [[_temperature(r), r.params.top_p, r.params.min_p] for r in rows], dtype=torch.float64
    )
    whole = [[max(0, r.params.top_k), _signed(r.key), r.position, r.choice] for r in rows]
    packed = torch.cat([numbers.T.flatten().view(torch.int64), torch.tensor(whole).T.flatten()])
    asked = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    edits = _edits(rows, logits.shape[1])
    sent, which, *told = ops.upload([packed, torch.tensor(asked, dtype=torch.int64), *edits])
    count = len(rows)
    temperature, top_p, min_p = sent[: 3 * count].view(torch.float64).float().view(3, count)
    top_k, keys, positions, choices = sent[3 * count :].view(4, count)
    scores = _edited(logits, told) if told else logits
    ids = ops.sample(scores, temperature, top_k.int(), top_p, min_p, keys, positions, choices)
    if told:  # what is edited may hide that a row's own logits are of no use
        ids = torch.where(logits.amax(dim=1).isfinite(), ids, -1)
    found = [ids.double()]
    most = max((rows[i].params.logprobs or 0 for i in asked), default=0)
    top = max(1, min(most, logits.shape[1]))
    if asked:
        found += _log_probabilities(logits[which], ids[which], top)
    fetched = torch.cat([part.flatten() for part in found]).tolist()
    token_ids = [int(x) for x in fetched[:count]]
    values, logprobs = _told(fetched[count:], asked, token_ids, rows, top)
    return Sampled(token_ids, logprobs, [token < 0 for token in token_ids], values)


def _temperature(row: SampleRow) -> float:
    return 0.0 if row.params.greedy else row.params.temperature


def _log_probabilities(raw: Tensor, ids: Tensor, top: int) -> list[Tensor]:
    """Of each row: the token's, then the ids of the `top` best, then theirs; all (R, ...) float64. Of equal
    ones at the end of a top list, any may be in it."""
    peaks = raw.amax(dim=1, keepdim=True)
    totals = (raw - peaks).exp().sum(dim=1, keepdim=True).log()
    best = raw.topk(top, dim=1)
    chosen = raw.gather(1, ids.clamp(min=0)[:, None])
    return [
        (chosen - peaks - totals).double(),
        best.indices.double(),
        (best.values - peaks - totals).double(),
    ]


def _told(
    numbers: list[float], asked: list[int], token_ids: list[int], rows: Sequence[SampleRow], top: int
) -> tuple[list[SlotValue | None], list[TokenLogprob | None]]:
    values: list[SlotValue | None] = [None] * len(rows)
    logprobs: list[TokenLogprob | None] = [None] * len(rows)
    count = len(asked)
    chosen, ids, bests = numbers[:count], numbers[count : count + count * top], numbers[count + count * top :]
    for n, i in enumerate(asked):
        if token_ids[i] < 0:
            continue
        pairs = zip(map(int, ids[n * top : n * top + top]), bests[n * top : n * top + top], strict=True)
        best = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))  # ties by lower id
        values[i] = SlotValue(chosen[n], *best[0])
        logprobs[i] = TokenLogprob(token_ids[i], chosen[n], tuple(best[: rows[i].params.logprobs or 0]))
    return values, logprobs


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
