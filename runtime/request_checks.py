"""What an engine refuses of a batch or a request before it is queued, whether or not it would fit.

The values of the sampling are checked when they are made; here is what needs the number of prompts, the
vocabulary, the length of the prompt or the kind of request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import inf

from .errors import InvalidRequest
from .prompts import Prompt
from .sampling_params import SamplingParams
from .text import quote
from .types import Request


def each_sampling(
    prompts: Sequence[Prompt | InvalidRequest],
    sampling: SamplingParams | Sequence[SamplingParams] | None,
    prompt_logprobs: int | None,
) -> list[SamplingParams]:
    """The sampling of each prompt: its own, or the batch's. `prompt_logprobs` is laid over all of them."""
    defaults = _defaults(sampling, len(prompts))
    own = [None if isinstance(prompt, InvalidRequest) else prompt.sampling for prompt in prompts]
    found = [first or second for first, second in zip(own, defaults, strict=True)]
    if prompt_logprobs is None:
        return found
    return [replace(params, prompt_logprobs_start=prompt_logprobs) for params in found]


def _defaults(sampling: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    params = list(sampling) if isinstance(sampling, Sequence) else [sampling]
    wrong = [item for item in params if not isinstance(item, SamplingParams)]
    if wrong:
        raise InvalidRequest(f"sampling must be SamplingParams or a list of them, got {wrong[0]!r}")
    if len(params) != count:
        raise InvalidRequest(f"got {len(params)} sampling parameters for {count} prompts")
    return params


def check_request(request: Request, vocab_size: int) -> None:
    """Raises InvalidRequest, quoting what is wrong."""
    ids = chain(request.prompt_ids, *request.continuations)
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise InvalidRequest(
            f"token id {quote(wrong)} is not in the vocabulary, ids are 0 to {vocab_size - 1}"
        )
    start = request.sampling.prompt_logprobs_start
    if start is not None and start > len(request.prompt_ids):
        raise InvalidRequest(
            f"prompt_logprobs_start must be at most the {len(request.prompt_ids)} tokens of the prompt, "
            f"got {start}"
        )
    request.sampling.check_vocabulary(vocab_size)
    seconds = request.hint.hold_s
    if seconds is not None and not 0 <= seconds < inf:
        raise InvalidRequest(f"hold_s must be a number of seconds from 0, got {quote(seconds)}")
    if request.continuations:
        _check_scoring(request)


def _check_scoring(request: Request) -> None:
    if not request.prompt_ids:
        raise InvalidRequest("the context has no tokens, at least 1 is needed")
    if not all(request.continuations):
        raise InvalidRequest(f"continuation {request.continuations.index(())} has no tokens")
    sampling = request.sampling
    if (sampling.max_tokens, sampling.n, sampling.prompt_logprobs_start) != (0, 1, None):
        raise InvalidRequest(
            "a request with continuations generates nothing: it needs max_tokens 0, n 1 and no "
            f"prompt_logprobs_start, got {sampling.max_tokens}, {sampling.n} and "
            f"{sampling.prompt_logprobs_start}"
        )
