"""From a step's logits to what becomes of its rows: sampled tokens, ends, values of known tokens, failures.

It looks at sequences and moves their streams on, and decides nothing about pages or turns. Everything is
asked of the logits at once (readings.py). A row whose logits are not finite, or whose grammar cannot go on,
fails alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from .batch import Batch, LogitSpan
from .errors import RequestFailed
from .output import OutputStream
from .readings import Known, Readings
from .sampling import Sampled, SampleRow
from .sequence import Sequence as Tokens
from .types import Outcome, Plan, SequenceKey, SlotValue, TokenLogprob

NO_TOKEN = "no token could be chosen: the logits are not finite, or every token is forbidden"
NO_VALUE = "no log-probability could be computed: the logits are not finite"

Find = Callable[[SequenceKey], Tokens | None]
Read = Callable[[Tensor, Sequence[Known], Sequence[int], Sequence[SampleRow]], Readings]


def step_outcomes(
    plan: Plan,
    batch: Batch,
    logits: Tensor,
    find: Find,
    streams: Mapping[SequenceKey, OutputStream],
    read: Read,
) -> list[Outcome]:
    """One outcome for each row of the plan. `find` gives the sequence of a key, `read` answers questions
    about the logits."""
    outcomes = {row.key: Outcome(row.key) for row in plan.rows}
    asking: list[tuple[Tokens, int, Known]] = []
    sampling = []
    for span in batch.spans:
        if span.row.samples:
            error = streams[span.row.key].error
            if error is not None:
                outcomes[span.row.key] = Outcome(span.row.key, finish="error", error=error)
                continue
            sampling.append(span)
        seq = find(span.row.key)
        assert seq is not None, "a row belongs to a sequence that has not ended"
        question = _question(span, seq)
        if question is not None:
            asking.append((seq, span.row.logits_from + 1, question))
    readings = read(
        logits,
        [question for _, _, question in asking],
        [span.first + span.count - 1 for span in sampling],
        [streams[span.row.key].sample_row() for span in sampling],
    )
    for (seq, first, question), answer in zip(asking, readings.known, strict=True):
        outcomes[seq.key] = _take(seq, first, question.token_ids, answer, streams[seq.key])
    for i, span in enumerate(sampling):
        key = span.row.key
        if outcomes[key].finish is None:
            outcomes[key] = _push(streams[key], outcomes[key], readings.sampled, i)
    return list(outcomes.values())


def _question(span: LogitSpan, seq: Tokens) -> Known | None:
    """What the logits are to say of tokens that are known: the logits of position p are those of token p + 1,
    as far as that belongs to the prompt. Of a context, those of its last position are for the branches."""
    if seq.branches:
        firsts = [branch.tokens[seq.prompt_len] for branch in seq.branches]
        return Known(span.first + span.count - 1, firsts, one_row=True)
    first = span.row.logits_from + 1
    params = seq.request.sampling
    end = seq.prompt_len if params.logprobs is None else len(seq.tokens)
    tokens = seq.tokens[first : min(span.row.logits_to + 1, end)]
    if not tokens:
        return None
    return Known(span.first, tokens, top=params.logprobs if (params.logprobs or 0) > 1 else None)


def _take(
    seq: Tokens,
    first: int,
    tokens: Sequence[int],
    answer: Sequence[SlotValue | TokenLogprob],
    stream: OutputStream,
) -> Outcome:
    """The outcome of a row that asked about tokens from position `first` on: of the prompt, then those that a
    grammar forced behind it or behind a sampled one."""
    top = seq.request.sampling.logprobs or 0
    entries: list[TokenLogprob] = []
    values: list[SlotValue] = []
    for token, each in zip(tokens, answer, strict=True):
        value = each.value if isinstance(each, TokenLogprob) else each
        if value is None or math.isnan(value.best_logprob):
            return Outcome(seq.key, finish="error", error=NO_VALUE)
        values.append(value)
        entries.append(each if isinstance(each, TokenLogprob) else value.entry(token, top))
    if seq.branches:
        return Outcome(seq.key, branch_values=tuple(values))
    of_prompt = max(0, min(len(values), seq.prompt_len - first))
    if top > 1:  # else they are told from beside their slots
        stream.add_prompt_logprobs(entries[:of_prompt])
    stream.add_logprobs(entries[of_prompt:])
    return Outcome(seq.key, values=tuple(values))


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
