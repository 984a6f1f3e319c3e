"""Programs: which sequences each program has under way, and what becomes of what it leaves when it ends.

Programs are known by the id in the hints of their requests, and only while they have a sequence or a hold:
nothing but a number of links to parents is kept of one that is gone. An ending takes effect once the last of
its sequences has ended, so that what they publish falls under it as well; holds end at once. What a program
has forked is cancelled with it, and done with it unless it has a sequence or a hold of its own by then. It
owns no queue: who is to be aborted, it says.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..radix.cache import PrefixCache
from .holds import Holds
from .lineage import Lineage
from .sequence import Sequence
from .types import Ending, FinishReason, SequenceKey


class Programs:
    """Told by the scheduler of each sequence, when it comes or is expected and when it has given its lease
    back."""

    def __init__(self, cache: PrefixCache, holds: Holds) -> None:
        self._cache = cache
        self._holds = holds
        self._live: dict[str, dict[SequenceKey, Sequence]] = {}
        self._endings: dict[str, Ending] = {}
        self._lineage = Lineage()

    def __len__(self) -> int:
        """How many have a sequence under way."""
        return len(self._live)

    def is_cancelled(self, seq: Sequence) -> bool:
        """Whether what it has computed is of no use to anybody."""
        return self._endings.get(seq.request.hint.program_id) == "cancelled"

    def begin(self, seq: Sequence) -> None:
        """It is under way, whether it was expected or not."""
        program_id = seq.request.hint.program_id
        if not program_id or seq.key in self._live.get(program_id, ()):
            return
        self._live.setdefault(program_id, {})[seq.key] = seq
        self._lineage.note(program_id, seq.request.hint.parent_id)

    def leave(self, seq: Sequence, reason: FinishReason) -> None:
        """It has ended. Its prefix is held if it asked for that and ended by itself."""
        hint = seq.request.hint
        if hint.hold_s is not None:
            seq.held_tokens = self._hold(seq, hint.hold_s) if reason in ("stop", "length") else 0
        if not hint.program_id:
            return
        if hint.done:
            self._endings.setdefault(hint.program_id, "done")
        live = self._live[hint.program_id]
        del live[seq.key]
        if not live:
            del self._live[hint.program_id]
            how = self._endings.pop(hint.program_id, None)
            if how is not None:
                self._finish(hint.program_id, how)

    def end(self, program_ids: Iterable[str], how: Ending) -> list[Sequence]:
        """See Ending. Returns the sequences that are to be aborted."""
        stopped: list[Sequence] = []
        if how == "cancelled":
            program_ids = self._lineage.family_of(program_ids)
        for program_id in program_ids:
            self._holds.release(program_id)
            live = self._live.get(program_id, {})
            if how == "cancelled":
                stopped += live.values()
            if how == "released":
                continue
            if not live:
                self._finish(program_id, how)
            elif how == "cancelled" or program_id not in self._endings:
                self._endings[program_id] = how
        return stopped

    def _hold(self, seq: Sequence, seconds: float) -> int:
        hint, request = seq.request.hint, seq.request
        if not hint.program_id or hint.done or hint.program_id in self._endings:
            return 0
        return self._holds.take(
            hint.program_id, request.id, seq.tokens, request.namespace, seconds, tenant=request.tenant
        )

    def _finish(self, program_id: str, how: Ending) -> None:
        """It is over, and so are those forked from it that have nothing of their own any more; whoever has is
        nobody's child from now on."""
        ending = [program_id] if program_id else []
        while ending:
            one = ending.pop()
            children = self._lineage.children_of(one)
            self._lineage.forget(one)
            self._holds.release(one)
            self._cache.end_owner(one, drop=how == "cancelled")
            ending += [child for child in children if not (child in self._live or self._holds.has(child))]
