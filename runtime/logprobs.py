"""Raw log-probabilities of tokens, and the best tokens of a distribution.

Used for generated and for prompt tokens alike, so that the two are one number for the same logits. Raw means
of the model's own distribution: before temperature, bias, penalties and masks. Knows nothing of requests.

A row's result depends on that row alone, bit for bit, whatever rows stand beside it: every row is summed by
one pass over it. A reduction over a single row may be cut among threads, so that is never asked for. Memory
is bounded by a block of a few rows beside the logits, whatever the length of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .types import SlotValue, TokenLogprob

# Enough rows for a call of torch to cost nothing beside its work, few enough to stay in a cache.
_BLOCK = 16


def token_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-probability of token_ids[i] under row i of `logits` (R, V) float32, and the row's `top` best.

    Values are float32: the same token has one number as the chosen one and in the top list. Best first, ties
    by lower id, so that the first is the greedy choice. A row that holds NaN gives NaN and no top list. Reads
    the logits only.
    """
    found: list[TokenLogprob] = []
    for rows, ids, peaks, totals in _blocks(logits, token_ids):
        values = _values_of(rows, ids, peaks, totals)
        bests = [_best(*parts, top) for parts in zip(rows, peaks, totals, strict=True)]
        found += [TokenLogprob(*entry) for entry in zip(ids, values, bests, strict=True)]
    return found


def slot_values(logits: Tensor, token_ids: Sequence[int]) -> list[SlotValue]:
    """The same for each row with its one best token, and much faster than a top list of one.

    `best_logprob` is NaN for a row that is no distribution: one that holds NaN or +inf, or nothing finite.
    """
    found: list[SlotValue] = []
    for rows, ids, peaks, totals in _blocks(logits, token_ids):
        bests = rows.max(dim=1).indices.tolist()
        values, most = _values_of(rows, ids, peaks, totals), _values_of(rows, bests, peaks, totals)
        found += map(SlotValue, values, bests, most)
    return found


def values_after(row: Tensor, token_ids: Sequence[int]) -> list[SlotValue]:
    """`slot_values` of several tokens under the one row of logits (V)."""
    rows = row.unsqueeze(0)
    [(_, _, peaks, totals)] = _blocks(rows, token_ids[:1])
    best = int(rows.max(dim=1).indices)
    chosen = row[torch.tensor([*token_ids, best], dtype=torch.int64, device=row.device)]
    *values, most = (chosen - peaks - totals).tolist()
    return [SlotValue(value, best, most) for value in values]


def best_ids(scores: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of `scores` (V), at least 1, best first, ties by lower id; all if V is less.

    The order of topk itself is open for ties, and so is which of them it takes at the end of its list.
    """
    least = scores.topk(min(count, len(scores)), sorted=False).values.min()
    candidates = (scores >= least).nonzero().squeeze(1)
    order = scores[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:count]]


def _blocks(
    logits: Tensor, token_ids: Sequence[int]
) -> Iterator[tuple[Tensor, Sequence[int], Tensor, Tensor]]:
    """Rows, their tokens, largest logits, and logarithms of what exp(logit - largest) sums up to.

    The two parts are subtracted from a logit one after the other: their sum would lose the small one beside
    large logits.
    """
    assert logits.dtype == torch.float32, f"log-probabilities are of float32 logits, got {logits.dtype}"
    assert len(logits) == len(token_ids), (
        f"one token a row, got {len(logits)} rows and {len(token_ids)} tokens"
    )
    space = logits.new_zeros((min(_BLOCK, max(2, len(logits))), logits.shape[1]))
    for start in range(0, len(token_ids), _BLOCK):
        rows = logits[start : start + _BLOCK]
        peaks = rows.amax(dim=1)
        shifted = space[: len(rows)]
        torch.sub(rows, peaks.unsqueeze(1), out=shifted).exp_()
        totals = space[: max(2, len(rows))].sum(dim=1)[: len(rows)].log_()
        yield rows, token_ids[start : start + _BLOCK], peaks, totals


def _values_of(rows: Tensor, ids: Sequence[int], peaks: Tensor, totals: Tensor) -> list[float]:
    """The log-probability of one token a row."""
    chosen = torch.tensor(ids, dtype=torch.int64, device=rows.device).unsqueeze(1)
    values: list[float] = (rows.gather(1, chosen).squeeze(1) - peaks - totals).tolist()
    return values


def _best(row: Tensor, peak: Tensor, total: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    ids = best_ids(row, count)
    return tuple(zip(ids.tolist(), (row[ids] - peak - total).tolist(), strict=True))
