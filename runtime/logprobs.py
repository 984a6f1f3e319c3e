"""Raw log-probabilities of tokens, and the best tokens of a distribution.

Used for generated and for prompt tokens alike, so that the two are one number for the same logits. Raw means
of the model's own distribution: before temperature, bias, penalties and masks. Knows nothing of requests.

A row's result depends on that row alone, bit for bit: each row is normalised by itself, because a reduction
over a whole matrix may cut its sums differently for different numbers of rows. That also bounds memory: a
few rows beside the logits, whatever the length of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .types import TokenLogprob


def token_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """The log-probability of token_ids[i] under row i of `logits` (R, V) float32, and the row's `top` best.

    Values are float32: the same token has one number as the chosen one and in the top list. Best first, ties
    by lower id, so that the first is the greedy choice. A row that holds NaN gives NaN and no top list. Reads
    the logits only.
    """
    assert logits.dtype == torch.float32, f"log-probabilities are of float32 logits, got {logits.dtype}"
    assert len(logits) == len(token_ids), (
        f"one token a row, got {len(logits)} rows and {len(token_ids)} tokens"
    )
    if not token_ids:
        return []
    # Two parts, subtracted one after the other: their sum would lose the small one beside large logits.
    peaks = logits.amax(dim=1)
    totals = torch.stack([_log_total(row, peak) for row, peak in zip(logits, peaks, strict=True)])
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    values = (logits.gather(1, chosen).squeeze(1) - peaks - totals).tolist()
    bests = [_best(*parts, top) for parts in zip(logits, peaks, totals, strict=True)]
    return [TokenLogprob(*entry) for entry in zip(token_ids, values, bests, strict=True)]


def best_ids(scores: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest of `scores` (V), at least 1, best first, ties by lower id; all if V is less.

    The order of topk itself is open for ties, and so is which of them it takes at the end of its list.
    """
    least = scores.topk(min(count, len(scores)), sorted=False).values.min()
    candidates = (scores >= least).nonzero().squeeze(1)
    order = scores[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:count]]


def _log_total(row: Tensor, peak: Tensor) -> Tensor:
    return (row - peak).exp_().sum().log()


def _best(row: Tensor, peak: Tensor, total: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    ids = best_ids(row, count)
    return tuple(zip(ids.tolist(), (row[ids] - peak - total).tolist(), strict=True))
