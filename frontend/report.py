"""What the calls of a program cost, as the backend counted, and why what could be reused was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .protocol import Generated, Scored


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call, in tokens. `expected`: how many of the prompt this program had computed before, on this line,
    so that a cache that forgets nothing has them. `generated` counts all n texts. `tells_reused`: the backend
    says what it found in its cache. `note`: what it could not do. `is_hold`: it only reads and keeps."""

    name: str | None
    prompted: int
    reused: int
    expected: int
    generated: int = 0
    forced: int = 0
    tells_reused: bool = True
    note: str = ""
    is_hold: bool = False

    @classmethod
    def of(cls, name: str | None, first: Generated, found: Sequence[Generated], expected: int) -> CallReport:
        return cls(
            name,
            first.prompt_tokens,
            first.cached_tokens,
            _known(expected, first.prompt_tokens),
            sum(each.completion_tokens for each in found),
            sum(each.forced_tokens for each in found),
            first.tells_cached,
            str(first.meta.get("not_done", "")),
        )

    @classmethod
    def of_hold(cls, found: Generated, expected: int) -> CallReport:
        return replace(cls.of("hold", found, [found], expected), is_hold=True)

    @classmethod
    def of_scores(cls, name: str | None, scored: Scored, expected: int) -> CallReport:
        return cls(
            name,
            scored.prompt_tokens,
            scored.cached_tokens,
            _known(expected, scored.prompt_tokens),
            tells_reused=scored.tells_cached,
        )

    @property
    def recomputed(self) -> int:
        """Tokens that had been computed before, and were again; 0 where nobody knows."""
        return max(0, self.expected - self.reused) if self.tells_reused else 0

    @property
    def why(self) -> str:
        """Why what was computed was, in words; empty if all was reused. What nobody knows is said as well."""
        if self.note:
            return self.note
        if self.prompted == 0:
            return "the backend counts no tokens"
        if not self.tells_reused:
            return "the backend does not say what it reused"
        reasons = []
        if self.recomputed:
            reasons.append(
                f"{self.recomputed} had been computed before and were evicted, or read as other tokens"
            )
        if (new := self.prompted - max(self.expected, self.reused)) > 0:
            reasons.append(f"{new} were new")
        return "; ".join(reasons)


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Tokens of all calls of a state, holds among them. `recomputed` are those that had been computed before
    on the same line: what evictions cost."""

    calls: tuple[CallReport, ...]

    @property
    def prompted(self) -> int:
        return sum(call.prompted for call in self.calls)

    @property
    def reused(self) -> int:
        return sum(call.reused for call in self.calls)

    @property
    def recomputed(self) -> int:
        return sum(call.recomputed for call in self.calls)

    @property
    def generated(self) -> int:
        return sum(call.generated for call in self.calls)

    @property
    def forced(self) -> int:
        return sum(call.forced for call in self.calls)

    def __str__(self) -> str:
        holds = sum(call.is_hold for call in self.calls)
        made = _count(len(self.calls) - holds, "call") + (f" and {_count(holds, 'hold')}" if holds else "")
        lines = [
            f"{made}: {self.prompted} tokens prompted, {self.reused} reused, "
            f"{self.recomputed} recomputed, {self.generated} generated, {self.forced} of them forced"
        ]
        for call in self.calls:
            why = f" ({call.why})" if call.why else ""
            reused = call.reused if call.tells_reused else "?"
            lines.append(f"  {call.name or '-'}: {reused} of {call.prompted} reused{why}")
        return "\n".join(lines)


def _known(expected: int, prompted: int) -> int:
    """The last token of a prompt is always computed, for what comes after it."""
    return min(expected, max(0, prompted - 1))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
