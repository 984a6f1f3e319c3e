"""The order in which a batch of requests that is known as a whole is given to the scheduler.

By priority, then namespace by namespace (namespaces share nothing), and inside one depth-first over the trie
of its prompts, so that the scheduler can admit subtree by subtree. Namespaces and subtrees come in the order
of their first request. Owns only the order: whoever submits a batch adds its requests in this order, each
with what it shares with the one before, and gives results in the order of the input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..radix.order import shared_with_previous, trie_order
from .types import Namespace, Request


class Place(NamedTuple):
    """A request's turn: which member of the batch it is, from 0 on, and how many tokens its prompt shares
    with the one before it. Without that number the scheduler may take it in any order."""

    member: int
    shared: int | None = None


def batch_order(requests: Sequence[Request]) -> list[Place]:
    """Every request of the batch once, those that share most beside each other."""
    groups: dict[tuple[int, Namespace], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        groups[-request.priority, request.namespace].append(index)
    found: list[Place] = []
    for _, indices in sorted(groups.items(), key=lambda group: group[0][0]):
        order = trie_order([requests[index].prompt_ids for index in indices])
        turns = [indices[at] for at in order]
        shared = shared_with_previous(requests[index].prompt_ids for index in turns)
        found += map(Place, turns, shared)
    return found
