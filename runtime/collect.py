"""Collector: the events of one batch of prompts, put together to completions in the order of the prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ..radix.replay import optimal_hit_rate
from .types import Completion, Event, Namespace, Request, SequenceKey


class Collector:
    """Knows what was asked and what has come back. `name(request)` is the id its completions carry."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._order: list[SequenceKey] = []
        self._events: dict[SequenceKey, list[Event]] = defaultdict(list)
        self._done: dict[SequenceKey, Completion] = {}
        self._prompts: dict[Namespace, list[tuple[int, ...]]] = defaultdict(list)
        self.generated_tokens = 0

    def expect(self, request: Request, name: str) -> None:
        """`request` was accepted: a completion is due for each of its choices."""
        self._names[request.id] = name
        for index in range(request.sampling.n):
            self._order.append(SequenceKey(request.id, index))
            self._prompts[request.namespace].append(request.prompt_ids)

    def refuse(self, request_id: str, name: str, error: str, prompt_tokens: int) -> None:
        """The prompt was not accepted: its completion says why."""
        key = SequenceKey(request_id, 0)
        self._order.append(key)
        self._done[key] = Completion(name, 0, "", (), prompt_tokens, 0, 0, "error", error=error)

    def take(self, events: Iterable[Event]) -> None:
        """Events of requests that are not this batch's are ignored."""
        for event in events:
            if event.request_id in self._names:
                key = SequenceKey(event.request_id, event.index)
                self._events[key].append(event)
                self.generated_tokens += len(event.token_ids)
                if event.finish_reason is not None:
                    self._done[key] = _completion(self._names[event.request_id], self._events.pop(key))

    @property
    def outstanding(self) -> int:
        return len(self._order) - len(self._done)

    @property
    def done(self) -> int:
        return len(self._done)

    @property
    def total(self) -> int:
        return len(self._order)

    def optimum(self) -> tuple[int, float]:
        """Prompt tokens accepted, and how many of them a cache that never forgets would find."""
        tokens = [sum(map(len, prompts)) for prompts in self._prompts.values()]
        rates = [optimal_hit_rate(prompts) for prompts in self._prompts.values()]
        return sum(tokens), sum(count * rate for count, rate in zip(tokens, rates, strict=True))

    def completions(self) -> list[Completion]:
        """In the order in which prompts were announced, the choices of one beside each other."""
        assert not self.outstanding, "completions are complete"
        return [self._done[key] for key in self._order]


def _completion(name: str, events: list[Event]) -> Completion:
    last = events[-1]
    assert last.finish_reason is not None, "the last event of a sequence is terminal"
    return Completion(
        id=name,
        index=last.index,
        text="".join(event.text for event in events),
        output_ids=tuple(token for event in events for token in event.token_ids),
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        completion_tokens=last.completion_tokens,
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        error=last.error,
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        prompt_logprobs=tuple(entry for event in events for entry in event.prompt_logprobs),
        forced_tokens=last.forced_tokens,
    )
