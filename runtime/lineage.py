"""Lineage: which programs were forked from which, as far as their hints said so.

A link is there from the first call of a branch that names its parent until either of them is forgotten, and
of no more than a number of branches: the oldest are forgotten then, and so end only when they themselves are
said to. It knows neither sequences nor pages, nor what an ending does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MOST_LINKS = 1 << 14


class Lineage:
    """Remembers the parents of up to `most` programs."""

    def __init__(self, most: int = MOST_LINKS) -> None:
        self._most = most
        self._parents: OrderedDict[str, str] = OrderedDict()
        self._children: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._parents)

    def note(self, child: str, parent: str) -> None:
        """The child was forked from the parent, whatever was said before."""
        if not child or not parent or child == parent:
            return
        if self._parents.get(child) == parent:
            self._parents.move_to_end(child)
            return
        self._unlink(child)
        self._parents[child] = parent
        self._children.setdefault(parent, {})[child] = None
        if len(self._parents) > self._most:
            self._unlink(next(iter(self._parents)))

    def children_of(self, parent: str) -> list[str]:
        """In the order in which they came."""
        return list(self._children.get(parent, ()))

    def family_of(self, heads: Iterable[str]) -> list[str]:
        """These, and all that were forked from one of them or from one of those; each once, whatever callers
        said, and looked at once, however many heads are of one family."""
        found = dict.fromkeys(heads)
        todo = list(found)
        while todo:
            fresh = [child for child in self.children_of(todo.pop()) if child not in found]
            found.update(dict.fromkeys(fresh))
            todo += fresh
        return list(found)

    def forget(self, program_id: str) -> None:
        """It is over: its children are nobody's from now on."""
        self._unlink(program_id)
        for child in self.children_of(program_id):
            self._unlink(child)

    def _unlink(self, child: str) -> None:
        parent = self._parents.pop(child, None)
        if parent is None:
            return
        children = self._children[parent]
        del children[child]
        if not children:
            del self._children[parent]
