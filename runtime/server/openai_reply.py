"""What the replies of OpenAI's routes have in common: how a choice ended, and the usage.

Pure: from events of the engine to parts of JSON, whether an answer is sent in one piece or in many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import RequestFailed
from ..sampling_params import SamplingParams
from ..types import Event, FinishReason
from .failures import Aborted, Busy
from .openai_body import StreamOptions


class Tally:
    """The tokens of a call so far, from the events of its jobs.

    The tokens of a prompt count once, whatever the number of its choices, and as cached count those that were
    so before any choice of it ran."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completions: dict[tuple[int, int], int] = {}
        self._reasons: dict[FinishReason, None] = {}

    def take(self, job: int, event: Event) -> None:
        _, cached = self._prompts.get(job, (0, event.cached_tokens))
        self._prompts[job] = (event.prompt_tokens, min(cached, event.cached_tokens))
        self._completions[job, event.index] = event.completion_tokens
        if event.finish_reason is not None:
            self._reasons[event.finish_reason] = None

    def usage(self) -> dict[str, object]:
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        completion = sum(self._completions.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def figures(self) -> Mapping[str, object]:
        """What a line of log says of the call."""
        return {
            "prompt_tokens": sum(tokens for tokens, _ in self._prompts.values()),
            "cached_tokens": self._cached,
            "completion_tokens": sum(self._completions.values()),
            "finish_reason": "+".join(self._reasons) or None,
        }

    @property
    def _cached(self) -> int:
        return sum(cached for _, cached in self._prompts.values())


def tally_of(jobs: Iterable[Iterable[Event]]) -> Tally:
    """Of all events of each job."""
    tally = Tally()
    for job, events in enumerate(jobs):
        for event in events:
            tally.take(job, event)
    return tally


def usage_of(jobs: Iterable[Iterable[Event]]) -> dict[str, object]:
    """The usage of a call, from all events of each of its jobs."""
    return tally_of(jobs).usage()


def chunk_usage(options: StreamOptions, tally: Tally) -> dict[str, object]:
    """The field in which a chunk with choices says what was used so far, if it says anything of it."""
    if not options.include_usage:
        return {}
    return {"usage": tally.usage() if options.continuous else None}


def joined(events: Sequence[Event]) -> Event:
    """All events of one choice as one: the last, with what all of them tell."""
    return replace(
        events[-1],
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        prompt_logprobs=tuple(entry for event in events for entry in event.prompt_logprobs),
    )


def by_choice(events: Sequence[Event], n: int) -> list[list[Event]]:
    """The events of a job's choices apart, by their index."""
    found: list[list[Event]] = [[] for _ in range(n)]
    for event in events:
        found[event.index].append(event)
    return found


def check_end(event: Event) -> None:
    """Raises RequestFailed for a choice that ended with an error, Aborted or Busy for one that was ended."""
    if event.finish_reason == "error":
        raise RequestFailed(event.error or "the request failed")
    if event.finish_reason == "abort":
        raise Aborted("the request was aborted") if event.error is None else Busy(event.error)


def stop_reason(event: Event, sampling: SamplingParams) -> int | str | None:
    """The stop text or token id of the request that ended the choice; None if it ended otherwise."""
    matched = event.matched_stop
    return matched if isinstance(matched, str) or matched in sampling.stop_token_ids else None
