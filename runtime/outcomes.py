"""From a step's logits to what becomes of its rows: sampled tokens, ends, values of known tokens, failures.

It looks at sequences and moves their streams on, and decides nothing about pages or turns. A row whose logits
are not finite fails alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .batch import Batch, LogitSpan
from .errors import RequestFailed
from .logprobs import slot_values, token_logprobs, values_after
from .output import OutputStream
from .sampling import Sampled, SampleRow
from .sequence import Sequence as Tokens
from .types import Outcome, Plan, SequenceKey

NO_TOKEN = "no token could be chosen: the logits are not finite, or every token is forbidden"
NO_VALUE = "no log-probability could be computed: the logits are not finite"

Find = Callable[[SequenceKey], Tokens | None]
Choose = Callable[[Tensor, Sequence[SampleRow]], Sampled]


def step_outcomes(
    plan: Plan,
    batch: Batch,
    logits: Tensor,
    find: Find,
    streams: Mapping[SequenceKey, OutputStream],
    choose: Choose,
) -> list[Outcome]:
    """One outcome for each row of the plan. `find` gives the sequence of a key, `choose` samples."""
    outcomes = {row.key: Outcome(row.key) for row in plan.rows}
    sampling = []
    for span in batch.spans:
        seq = find(span.row.key)
        assert seq is not None, "a row belongs to a sequence that has not ended"
        rows = logits[span.first : span.first + span.count]
        outcome = outcomes[seq.key] = _read(span, seq, rows, streams[seq.key])
        if span.row.samples and outcome.finish is None:
            sampling.append(span)
    if sampling:
        last = [span.first + span.count - 1 for span in sampling]
        chosen = logits if len(last) == len(logits) else logits[torch.tensor(last)]
        sampled = choose(chosen, [streams[span.row.key].sample_row() for span in sampling])
        for i, span in enumerate(sampling):
            key = span.row.key
            outcomes[key] = _push(streams[key], outcomes[key], sampled, i)
    return list(outcomes.values())


def _read(span: LogitSpan, seq: Tokens, rows: Tensor, stream: OutputStream) -> Outcome:
    """What the logits say of tokens that are known: the logits of position p are those of token p + 1, as far
    as that belongs to the prompt. Of a context, those of its last position are for the branches."""
    if seq.branches:
        firsts = [branch.tokens[seq.prompt_len] for branch in seq.branches]
        return _checked(Outcome(seq.key, branch_values=tuple(values_after(rows[-1], firsts))))
    first = span.row.logits_from + 1
    tokens = seq.tokens[first : min(span.row.logits_to + 1, seq.prompt_len)]
    if not tokens:
        return Outcome(seq.key)
    rows = rows[: len(tokens)]
    if seq.wants_values:
        return _checked(Outcome(seq.key, values=tuple(slot_values(rows, tokens))))
    entries = token_logprobs(rows, tokens, seq.request.sampling.logprobs or 0)
    if any(math.isnan(entry.top[0][1]) if entry.top else True for entry in entries):
        return _no_value(seq.key)
    stream.add_prompt_logprobs(entries)
    return Outcome(seq.key, values=tuple(value for entry in entries if (value := entry.value) is not None))


def _checked(outcome: Outcome) -> Outcome:
    values = (*outcome.values, *outcome.branch_values)
    return _no_value(outcome.key) if any(math.isnan(value.best_logprob) for value in values) else outcome


def _no_value(key: SequenceKey) -> Outcome:
    return Outcome(key, finish="error", error=NO_VALUE)


def _push(stream: OutputStream, read: Outcome, sampled: Sampled, i: int) -> Outcome:
    """The sampled token of a row whose other logits were read before."""
    if sampled.bad[i]:
        return Outcome(read.key, finish="error", error=NO_TOKEN)
    try:
        outcome = stream.push(sampled.token_ids[i], sampled.logprobs[i])
    except RequestFailed as error:
        return Outcome(read.key, finish="error", error=str(error))
    value = sampled.values[i]
    return replace(outcome, values=read.values if value is None else (*read.values, value))
