"""ScoreBatch: items to score as requests of an engine, and their events put together to scores.

An item becomes one request for all continuations that follow the same context tokens, which is nearly always
one request in all. Which tokens those are is decided here:

- A text continuation of a text context: both are encoded together, because that is what the model would read.
  The continuation's tokens are those after the longest common beginning with the encoded context. So where
  a token reaches over the border it belongs to the continuation, with what it took of the context.
- Token ids are taken as they are, and text after ids is encoded by itself.
- A context without tokens is the model's token for the beginning of a text, if it has one.

It knows no engine: who has one submits `requests`, tells what was refused and hands the events over.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..radix.order import shared_with_previous, trie_order
from .errors import InvalidRequest
from .sampling_params import SamplingParams
from .score_items import ScoreItem, ScoreText
from .tokenizer import Tokenizer
from .types import Event, ItemScore, Namespace, Request, ScoredContinuation, TokenLogprob

SCORING = SamplingParams(max_tokens=0, temperature=0.0, logprobs=1)
Ids = tuple[int, ...]


class ScoreBatch:
    """Scores of `items`, in their order; `done` of them are complete. A request's id begins with `prefix`."""

    def __init__(
        self, items: Sequence[ScoreItem | InvalidRequest], tokenizer: Tokenizer, prefix: str
    ) -> None:
        self._tokenizer = tokenizer
        self._scores = [_score_of(item, str(i), tokenizer, f"{prefix}{i}") for i, item in enumerate(items)]
        self._by_request = {request.id: score for score in self._scores for request in score.requests}
        self.generated_tokens = 0
        self.done = sum(not score.open for score in self._scores)

    @property
    def requests(self) -> list[Request]:
        return [request for score in self._scores for request in score.requests]

    def refuse(self, refused: Mapping[str, InvalidRequest]) -> None:
        """What the engine did not take, by the id of the request: the whole item is refused."""
        for request_id, error in refused.items():
            score = self._by_request[request_id]
            score.open -= len(score.request(request_id).choices)
            score.error = score.error or str(error)
            self.done += not score.open

    def take(self, events: Iterable[Event]) -> None:
        """Events of requests that are not this batch's are ignored."""
        for event in events:
            score = self._by_request.get(event.request_id)
            if score is not None:
                score.take(event)
                self.done += event.finish_reason is not None and not score.open

    @property
    def total(self) -> int:
        return len(self._scores)

    @property
    def outstanding(self) -> int:
        return self.total - self.done

    def optimum(self) -> tuple[int, float]:
        """Tokens of what was accepted, each context once, and how many of them a cache that never forgets
        would find."""
        taken = [score for score in self._scores if score.error is None]
        requests = [request for score in taken for request in score.requests]
        own = sum(len(request.prompt_ids) + sum(map(len, request.continuations)) for request in requests)
        groups: dict[Namespace, list[Ids]] = defaultdict(list)
        for request in requests:
            groups[request.namespace] += [(*request.prompt_ids, *ids) for ids in request.continuations]
        return own, own - sum(map(_different_tokens, groups.values()))

    def results(self) -> list[ItemScore]:
        assert not self.outstanding, "scores are complete"
        return [score.result(self._tokenizer) for score in self._scores]


@dataclass(slots=True)
class _Score:
    """One item on its way: `open` of its sequences have not ended. `places[i]` says where continuation i is:
    its request and the index there."""

    id: str
    texts: tuple[ScoreText, ...] = ()
    requests: tuple[Request, ...] = ()
    places: tuple[tuple[str, int], ...] = ()
    error: str | None = None
    open: int = 0
    entries: dict[tuple[str, int], list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    cached: dict[str, int] = field(default_factory=dict)
    computed: int = 0

    def request(self, request_id: str) -> Request:
        return next(request for request in self.requests if request.id == request_id)

    def take(self, event: Event) -> None:
        self.entries[event.request_id, event.index] += event.prompt_logprobs
        if event.finish_reason is None:
            return
        self.open -= 1
        self.computed += event.computed_tokens
        request = self.request(event.request_id)
        if event.index == request.choices[0]:
            self.cached[request.id] = min(event.cached_tokens, len(request.prompt_ids))
        if event.finish_reason in ("error", "abort"):
            self.error = self.error or event.error or "it was aborted"

    def result(self, tokenizer: Tokenizer) -> ItemScore:
        cached = min(self.cached.values(), default=0)
        if self.error is not None:
            return ItemScore(self.id, (), cached, self.computed, self.error)
        found = [
            _continuation(_as_text(text, tokenizer), self.entries[place])
            for text, place in zip(self.texts, self.places, strict=True)
        ]
        return ItemScore(self.id, tuple(found), cached, self.computed)


def _score_of(item: ScoreItem | InvalidRequest, name: str, tokenizer: Tokenizer, prefix: str) -> _Score:
    if isinstance(item, InvalidRequest):
        return _Score(name, error=str(item))
    name = name if item.id is None else item.id
    try:
        pairs = _split(item, tokenizer)
    except InvalidRequest as error:
        return _Score(name, error=str(error))
    groups: dict[Ids, list[Ids]] = defaultdict(list)
    places = []
    for context, ids in pairs:
        groups[context].append(ids)
        places.append((f"{prefix}.{list(groups).index(context)}", len(groups[context]) - 1))
    requests = tuple(
        Request(
            f"{prefix}.{i}",
            context,
            SCORING,
            item.salt,
            priority=item.priority,
            continuations=tuple(continuations),
        )
        for i, (context, continuations) in enumerate(groups.items())
    )
    choices = sum(len(request.choices) for request in requests)
    return _Score(name, item.continuations, requests, tuple(places), open=choices)


def _split(item: ScoreItem, tokenizer: Tokenizer) -> list[tuple[Ids, Ids]]:
    """The tokens of the context and of the continuation, for each continuation: see the module's head."""
    context, text = item.context, item.context if isinstance(item.context, str) else None
    ids = tuple(tokenizer.encode(context)) if isinstance(context, str) else context
    pairs = []
    for index, continuation in enumerate(item.continuations):
        if not isinstance(continuation, str):
            before, after = ids, continuation
        elif text is None:
            before, after = ids, tuple(tokenizer.encode(continuation, bos=False))
        else:
            whole = tuple(tokenizer.encode(text + continuation))
            common = _common(ids, whole)
            before, after = whole[:common], whole[common:]
        if not after:
            raise InvalidRequest(f"continuation {index} has no tokens of its own after the context")
        pairs.append((before or _beginning(tokenizer), after))
    return pairs


def _beginning(tokenizer: Tokenizer) -> Ids:
    if tokenizer.bos_id is None:
        raise InvalidRequest(
            "the context has no tokens, at least 1 is needed: the model has no token that begins a text"
        )
    return (tokenizer.bos_id,)


def _common(a: Ids, b: Ids) -> int:
    """Number of leading tokens that are equal."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def _different_tokens(prompts: Sequence[Ids]) -> int:
    """The tokens in the trie of the prompts: what has to be computed at least."""
    found = sum(shared_with_previous(prompts[index] for index in trie_order(prompts)))
    return sum(map(len, prompts)) - found


def _as_text(text: ScoreText, tokenizer: Tokenizer) -> str:
    return text if isinstance(text, str) else tokenizer.decode(text, skip_special_tokens=False)


def _continuation(text: str, entries: Sequence[TokenLogprob]) -> ScoredContinuation:
    logprobs = tuple(entry.logprob for entry in entries if entry.logprob is not None)
    assert len(logprobs) == len(entries) > 0, "every token after a context has a value"
    total = math.fsum(logprobs)
    return ScoredContinuation(
        text=text,
        token_ids=tuple(entry.token_id for entry in entries),
        token_logprobs=logprobs,
        logprob=total,
        mean_logprob=total / len(logprobs),
        is_greedy=all(entry.top[0][0] == entry.token_id for entry in entries),
    )
