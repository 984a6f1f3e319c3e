"""The order in which the items of a batch start: depth-first over the trie of their first prompts.

Items whose prompts begin alike stand together, so that what they share is needed without a break and is then
done with; subtrees come in the order of their first item. Prompts are compared in steps of some characters,
about as long as what a cache keeps at a time: items that have no more than that in common stay in the order
in which they were given. A pure function of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix

_STEP = 32
"""Characters."""


def item_order(keys: Sequence[str]) -> list[int]:
    """Every index once; `keys` are the first prompts, as far as they are known."""
    found: list[int] = []
    common = len(commonprefix(keys))  # noqa: RUF071  # of texts, not of paths
    groups = [(list(range(len(keys))), common // _STEP * _STEP)]
    while groups:  # no recursion: prompts may have a long beginning in common
        members, start = groups.pop()
        if len(members) == 1:
            found += members
            continue
        parts: dict[str, list[int]] = {}
        for index in members:
            parts.setdefault(keys[index][start : start + _STEP], []).append(index)
        if parts.keys() == {""}:  # equal to the end
            found += members
            continue
        groups += [(part, start + _STEP) for part in reversed(parts.values())]
    return found
