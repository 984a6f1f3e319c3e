"""Replay of a trace of prompts through the bookkeeping alone: what a pool and a policy would have reached.

No model runs and no memory is allocated, so traces of millions of tokens and pools of any size can be
compared. Prompts are processed one after another, which is the least sharing a server would see: it
tells what the cache keeps, not what concurrency adds. All prompts of a trace lie in one namespace;
namespaces share nothing, so rate their traces apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .cache import PrefixCache
from .node import Namespace
from .order import shared_with_previous, trie_order


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Rates lie in 0..1. peak_pages: the most pages that were not free at once, evictable ones included."""

    prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    optimal_hit_rate: float
    evicted_pages: int
    peak_pages: int


def replay(
    prompts: Iterable[Sequence[int]],
    num_pages: int,
    page_size: int,
    *,
    eviction: Literal["lru", "priority"] = "lru",
    namespace: Namespace = (),
) -> ReplayReport:
    """Acquire, publish and release each prompt in turn. One larger than the whole pool counts as a miss."""
    cache = PrefixCache(num_pages, page_size, eviction=eviction)
    trace = [tuple(prompt) for prompt in prompts]
    cached = peak = 0
    for tokens in trace:
        lease = cache.acquire(tokens, namespace, len(tokens))
        if lease is None:
            continue
        cached += lease.cached_tokens
        peak = max(peak, num_pages - cache.free_pages)
        cache.take_copies()
        cache.settle()
        cache.publish(lease, tokens, len(tokens))
        cache.release(lease)
    total = sum(map(len, trace))
    return ReplayReport(
        prompt_tokens=total,
        cached_tokens=cached,
        hit_rate=cached / total if total else 0.0,
        optimal_hit_rate=optimal_hit_rate(trace),
        evicted_pages=cache.stats().evicted_pages,
        peak_pages=peak,
    )


def optimal_hit_rate(prompts: Iterable[Sequence[int]]) -> float:
    """The share of prompt tokens that an endless cache would find: each node of their trie is computed once.

    Depth-first, the longest common prefix of a prompt with any earlier one is that with the one before it.
    """
    trace = [tuple(prompt) for prompt in prompts]
    total = sum(map(len, trace))
    found = sum(shared_with_previous(trace[index] for index in trie_order(trace)))
    return found / total if total else 0.0
