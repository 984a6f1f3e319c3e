"""The order in which prompts known as a whole reuse most: depth-first over their trie.

Going through a trie depth-first, what prompts share is needed until its subtree is done, and never again.
So a cache that forgets the least recently used finds all that an endless one would, as long as it holds the
longest prompt: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (2024),
section 3, show it for one prompt at a time.

Of all depth-first orders this is the one nearest the order given: at every level, subtrees come in the order
of their first prompt, so that what stands first in a file is answered first. But a prompt that ends where
others go on comes after those and finds itself whole: a conversation that is asked for after each turn is
computed at once, not turn by turn. Pure functions of integers: priorities and namespaces are the caller's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_TOKEN = array("q").itemsize


def trie_order(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Indices of the prompts: for any tokens, those that begin with them stand together, and last among those
    the prompts that go no further. Else by the first of each group. Token ids fit 64 bits."""
    keys = [_key(prompt) for prompt in prompts]
    ordered = sorted(range(len(keys)), key=keys.__getitem__)
    return _leaves(_trie([keys[index] for index in ordered], ordered))


def shared_with_previous(prompts: Iterable[Sequence[int]]) -> list[int]:
    """How many leading tokens each prompt has in common with the one before it, the first one none.

    In trie order no earlier prompt has more: their sum is what a cache that never forgets would find.
    """
    return [_common_bytes(a, b) // _TOKEN for a, b in pairwise([b"", *map(_key, prompts)])]


@dataclass(slots=True)
class _Node:
    """Prompts that begin with the same `depth` bytes; the children differ after them. `first` is the least
    index. A single prompt lies one byte below its end: under what it shares, even with an equal one."""

    depth: int
    first: int
    children: list[_Node] = field(default_factory=list)


def _trie(keys: Sequence[bytes], indices: Sequence[int]) -> _Node:
    """The trie of sorted keys, without nodes that have one child. Each key leaves the path to the one before
    it where their common prefix ends; what that path has below is complete."""
    path = [_Node(0, len(keys))]
    shared = (_common_bytes(a, b) for a, b in pairwise([b"", *keys]))
    for depth, key, index in zip(shared, keys, indices, strict=True):
        while path[-1].depth > depth:
            done = path.pop()
            if path[-1].depth < depth:
                path.append(_Node(depth, done.first))
            _attach(done, path[-1])
        path.append(_Node(len(key) + 1, index))
    while len(path) > 1:
        done = path.pop()
        _attach(done, path[-1])
    return path[0]


def _attach(child: _Node, parent: _Node) -> None:
    parent.children.append(child)
    parent.first = min(parent.first, child.first)


def _leaves(root: _Node) -> list[int]:
    """Each node's children in turn. No recursion: a trie may be as deep as a batch is long."""
    found = []
    stack = root.children and [root]
    while stack:
        node = stack.pop()
        if node.children:
            ends = node.depth + 1
            stack.extend(sorted(node.children, key=lambda n: (n.depth == ends, n.first), reverse=True))
        else:
            found.append(node.first)
    return found


def _key(prompt: Sequence[int]) -> bytes:
    """Bytes that are equal as far as the tokens are; they sort and compare many times faster than tuples."""
    return array("q", prompt).tobytes()


def _common_bytes(a: bytes, b: bytes) -> int:
    """Bytes of whole tokens that both begin with, found by halving: comparing a run costs next to nothing."""
    low, high = 0, min(len(a), len(b)) // _TOKEN
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * _TOKEN : middle * _TOKEN] == b[low * _TOKEN : middle * _TOKEN]:
            low = middle
        else:
            high = middle - 1
    return low * _TOKEN
