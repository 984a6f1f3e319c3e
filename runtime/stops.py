"""StopChecker: decides where generated text ends, and how much of it may be shown already.

Text is judged as if it came one character at a time: the answer ends at the first character that
completes any stop; if several are complete there, the one that starts earliest wins (so the longest),
then the caller's order. The result is therefore the same however the text is cut into deltas. Text is
cut at the start of the match, and text that may still become part of a match is held back.

Patterns use the `regex` syntax. They see the text so far: `$`, `\\b` and lookaheads at the end of a
pattern take the last character so far for the end. A match spans at most REGEX_SPAN characters and a
lookbehind sees at least as many before it, which bounds the work and the text held back. `pos` of a
search, unlike a slice, lets lookbehinds and `\\b` see the text before it. Knows no tokens and no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import regex

from .errors import InvalidRequest, RequestFailed
from .text import quote, require_text

MAX_STOPS = 32
"""Most stop strings of a request, and most stop patterns."""
MAX_STOP_LENGTH = 1024
"""Most characters of one stop string or pattern."""
REGEX_SPAN = 1024
"""Most characters a match of a stop pattern can have."""
MAX_REPEATS = 100_000
"""Most copies the minimum counts of a pattern may ask for; compiling takes time and memory for each."""
SLOW_SEARCH = 0.001
"""Seconds of processor time of one search from which it counts against the request's REGEX_SECONDS."""
REGEX_SECONDS = 0.5
"""Processor time that slow searches of one request may take in total."""

EMPTY_SECONDS = 0.05
"""Processor time a pattern may take on empty text when it is checked."""

_MINIMUM_COUNT = regex.compile(r"\{\s*(\d+)")
_VERBOSE_FLAG = regex.compile(r"\(\?[A-Za-z0-9-]*x")
_SEARCH_ANCHOR = regex.compile(r"(?<!\\)(?:\\\\)*\\[KG]")


@dataclass(frozen=True, slots=True)
class StopUpdate:
    """Text that is safe to show, the stop string or pattern that ended the answer, as it was given, and the
    text that matched it."""

    text: str
    matched: str | None = None
    matched_text: str = ""


class StopChecker:
    """Watches one answer. Raises InvalidRequest for stops that are not allowed (see `validate_stops`)."""

    def __init__(
        self,
        stop: Sequence[str] = (),
        stop_regex: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        _check_texts("stop", stop)
        _check_texts("stop_regex", stop_regex)
        budget = _Budget(clock)
        self._watchers: list[_StringWatcher | _RegexWatcher] = [_StringWatcher(text) for text in stop]
        self._watchers += [_RegexWatcher(pattern, budget) for pattern in stop_regex]
        self._held = ""
        self._ended = False

    def push(self, delta: str) -> StopUpdate:
        """Judge more text. Once `matched` is set the answer is over, and nothing may be pushed after it.

        Raises RequestFailed when a pattern takes too long; only this request is affected.
        """
        assert not self._ended, "no text comes after a stop has matched"
        if not self._watchers:
            return StopUpdate(delta)
        hits = [hit for watcher in self._watchers if (hit := watcher.advance(delta)) is not None]
        text = self._held + delta
        if not hits:
            safe = len(text) - max(watcher.held for watcher in self._watchers)
            self._held = text[safe:]
            return StopUpdate(text[:safe])
        hit = min(hits, key=lambda hit: (hit.end, -hit.length))
        end = len(self._held) + hit.end
        start = end - hit.length
        assert start >= 0, "text of a match is never shown before it is complete"
        self._held, self._ended = "", True
        return StopUpdate(text[:start], hit.stop, text[start:end])

    def finish(self) -> str:
        """Give what is held back: the answer ended for another reason. Empty after a match."""
        held, self._held, self._ended = self._held, "", True
        return held


def validate_stops(stop: Sequence[str], stop_regex: Sequence[str]) -> None:
    """Raise InvalidRequest for too many, empty, too long or non-text stops, those that UTF-8 cannot carry,
    and for patterns that do not compile, match the empty text, cost too much, or search in a way that a
    stream cannot follow."""
    _check_texts("stop", stop)
    _check_texts("stop_regex", stop_regex)
    for pattern in stop_regex:
        _compile(pattern)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A stop of `length` characters that is complete `end` characters into the delta."""

    end: int
    length: int
    stop: str


class _StringWatcher:
    """Knuth-Morris-Pratt: `held` is the longest prefix of the stop that the text ends with."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.held = 0

    def advance(self, delta: str) -> _Hit | None:
        stop, fallback, length = self._stop, self._fallback, self.held
        if length == 0 and stop[0] not in delta:
            return None
        for end, character in enumerate(delta, 1):
            while length and stop[length] != character:
                length = fallback[length - 1]
            if stop[length] == character:
                length += 1
                if length == len(stop):
                    return _Hit(end, length, stop)
        self.held = length
        return None


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that it also ends with."""
    table = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = table[length - 1]
        if stop[position] == stop[length]:
            length += 1
        table[position] = length
    return table


class _RegexWatcher:
    """Searches after each character; a partial match tells where a later match could begin.

        text:   [..... behind .....|........ may begin a match ........]
                0                  begin                       len(text)

    Nothing before `begin` can start a match; it is kept for lookbehinds only.
    """

    def __init__(self, pattern: str, budget: _Budget) -> None:
        self._source = pattern
        self._pattern = _compile(pattern)
        self._budget = budget
        self._text = ""
        self._begin = 0
        self.held = 0

    def advance(self, delta: str) -> _Hit | None:
        before = len(self._text)
        self._text += delta
        for end in range(before + 1, len(self._text) + 1):
            begin = max(self._begin, end - REGEX_SPAN)
            match = self._budget.search(self._pattern, self._text, begin, end)
            if match is not None and not match.partial:
                return _Hit(end - before, end - match.start(), self._source)
            self._begin = end if match is None else match.start()
        self._forget()
        return None

    def _forget(self) -> None:
        size = len(self._text)
        self._begin = max(self._begin, size - REGEX_SPAN)
        self.held = size - self._begin
        surplus = self._begin - REGEX_SPAN
        if surplus > REGEX_SPAN:
            self._text = self._text[surplus:]
            self._begin -= surplus


class _Budget:
    """The processor time one request's patterns may still take. Quick searches are free, and a busy machine
    costs nothing, because the clock is that of the thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = REGEX_SECONDS

    def search(self, pattern: regex.Pattern[str], text: str, begin: int, end: int) -> regex.Match[str] | None:
        started = self._clock()
        try:
            match = pattern.search(text, begin, end, partial=True, timeout=max(self._left, SLOW_SEARCH))
        except (TimeoutError, MemoryError):
            raise _too_slow(pattern) from None
        spent = self._clock() - started
        if spent >= SLOW_SEARCH:
            self._left -= spent
            if self._left <= 0:
                raise _too_slow(pattern)
        return match


def _too_slow(pattern: regex.Pattern[str]) -> RequestFailed:
    return RequestFailed(
        f"stop_regex {pattern.pattern!r} took over {REGEX_SECONDS} s of processor time on this answer"
    )


def _check_texts(name: str, stops: Sequence[str]) -> None:
    if isinstance(stops, str) or not isinstance(stops, Sequence):
        raise InvalidRequest(f"{name} must be a list of strings, got {quote(stops)}")
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} may have at most {MAX_STOPS} entries, got {len(stops)}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidRequest(f"{name} entries must be non-empty strings, got {quote(stop)}")
        if len(stop) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                f"{name} entries may have at most {MAX_STOP_LENGTH} characters, got {len(stop)}: {stop[:9]!r}"
            )
        require_text(name, stop)


def _compile(pattern: str) -> regex.Pattern[str]:
    _check_repeats(pattern)
    if _SEARCH_ANCHOR.search(pattern):
        raise InvalidRequest(f"stop_regex {pattern!r} must not use \\K or \\G")
    try:
        compiled = regex.compile(pattern)
        matches_nothing = compiled.search("", timeout=EMPTY_SECONDS) is not None
    except TimeoutError:
        raise InvalidRequest(f"stop_regex {pattern!r} takes too long even on empty text") from None
    except (regex.error, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"stop_regex must be a valid pattern, got {pattern!r}: {error}") from None
    if matches_nothing:
        raise InvalidRequest(f"stop_regex must not match the empty text, got {pattern!r}")
    if compiled.flags & regex.REVERSE:
        raise InvalidRequest(f"stop_regex {pattern!r} must not use the reverse flag (?r)")
    return compiled


def _check_repeats(pattern: str) -> None:
    """Bound what compiling costs before it starts. The product of all minimum counts is at least what nested
    ones ask for. The verbose flag is refused because it lets counts be written with spaces and comments."""
    if _VERBOSE_FLAG.search(pattern):
        raise InvalidRequest(f"stop_regex {pattern!r} must not use the verbose flag (?x)")
    copies = 1
    for digits in _MINIMUM_COUNT.findall(pattern):
        copies *= max(1, int(digits))
        if copies > MAX_REPEATS:
            raise InvalidRequest(
                f"stop_regex {pattern!r}: the repeat counts multiply to more than {MAX_REPEATS}"
            )
