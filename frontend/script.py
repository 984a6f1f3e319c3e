"""What a scripted backend answers, and what it would have had cached. Pure."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from .errors import InvalidCall
from .protocol import ChoiceScore, Sampling

Reply: TypeAlias = str | Exception
"""A text, or an error to raise."""
Answers: TypeAlias = Reply | Sequence[Reply] | Callable[[str], Reply]
"""One for every time, one after another, or a function of the prompt."""
Replies: TypeAlias = Answers | Mapping[str | re.Pattern[str], Answers]
"""The same for all prompts, or by what stands last in the prompt."""


class Script:
    """Finds the reply to a prompt.

    In a mapping a key is a text or a compiled pattern, and that one counts which ends last in the prompt, of
    two the longer; so a question is found before the header of an answer. The key "" is for all the rest.
    """

    def __init__(self, replies: Replies) -> None:
        """Raises InvalidCall."""
        if not callable(replies) and not isinstance(replies, str | Exception | Mapping | Sequence):
            raise InvalidCall(
                "replies must be a text, a list of texts, a mapping from what stands last in a prompt, or a "
                f"function of the prompt, got {replies!r:.200}"
            )
        for key in replies if isinstance(replies, Mapping) else ():
            if not isinstance(key, str | re.Pattern):
                raise InvalidCall(f"a key of replies must be a text or a compiled pattern, got {key!r:.200}")
        self._replies = replies
        self._given: dict[str | re.Pattern[str] | None, int] = {}

    def reply(self, prompt: str) -> Reply:
        """The next one. Raises InvalidCall if there is none, or a function gives none."""
        if not isinstance(self._replies, Mapping):
            return self._next(None, self._replies, prompt)
        key = self._key(self._replies, prompt)
        return self._next(key, self._replies[key], prompt)

    def _next(self, key: str | re.Pattern[str] | None, answers: Answers, prompt: str) -> Reply:
        if callable(answers):
            answers = answers(prompt)
        if isinstance(answers, str | Exception):
            return answers
        if not isinstance(answers, Sequence):
            raise InvalidCall(f"a scripted reply must be a text or an error, got {answers!r:.200}")
        count = self._given.get(key, 0)
        if count >= len(answers):
            raise InvalidCall(
                f"the script has {len(answers)} replies{_for(key)}, and this call needs one more; its prompt "
                f"ends in {prompt[-100:]!r}"
            )
        self._given[key] = count + 1
        answer = answers[count]
        if not isinstance(answer, str | Exception):
            raise InvalidCall(f"a scripted reply must be a text or an error, got {answer!r:.200}")
        return answer

    def _key(self, replies: Mapping[str | re.Pattern[str], Answers], prompt: str) -> str | re.Pattern[str]:
        found = [(*place, key) for key in replies if (place := _place(key, prompt)) is not None]
        if not found:
            keys = ", ".join(repr(key if isinstance(key, str) else key.pattern) for key in replies)
            raise InvalidCall(
                f"the script has no reply to a prompt that ends in {prompt[-100:]!r}; it knows {keys}"
            )
        return max(found, key=lambda each: each[:2])[2]


class TextMemory:
    """Texts that were there, to know how much of another one begins like one of them."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def common(self, text: str) -> int:
        """Characters at the beginning of a text that some text before it has as well."""
        place = bisect_left(self._texts, text)
        return max((_common(text, near) for near in self._texts[max(0, place - 1) : place + 1]), default=0)

    def add(self, text: str) -> None:
        place = bisect_left(self._texts, text)
        if place == len(self._texts) or self._texts[place] != text:
            self._texts.insert(place, text)

    def clear(self) -> None:
        self._texts.clear()


def cut_at_stop(text: str, stops: Sequence[str], patterns: Sequence[str]) -> tuple[str, str | None]:
    """The text before the first of them, and which it was."""
    found = [(text.find(stop), stop) for stop in stops if stop and stop in text]
    found += [(match.start(), match.group()) for each in patterns if (match := _search(each, text))]
    if not found:
        return text, None
    place, stop = min(found, key=lambda each: (each[0], -len(each[1])))
    return text[:place], stop


def _search(pattern: str, text: str) -> re.Match[str] | None:
    try:
        return re.search(pattern, text)
    except re.error as error:
        raise InvalidCall(
            f"a script cannot look for stop_regex {pattern!r:.200}, which Python's re does not read: {error}"
        ) from None


def spread(choice: str, score: float | Sequence[float]) -> ChoiceScore:
    values = (float(score),) * len(choice) if isinstance(score, int | float) else tuple(score)
    if len(values) != len(choice):
        raise InvalidCall(
            f"the scores of {choice!r:.100} must be a number, or one for each of its {len(choice)} "
            f"characters, got {len(values)}"
        )
    return ChoiceScore(tuple(map(ord, choice)), values, (0.0,) * len(choice))


def check_form(reply: str, sampling: Sampling) -> None:
    if sampling.json_schema is not None:
        try:
            json.loads(reply)
        except ValueError as error:
            raise InvalidCall(f"the scripted reply {reply!r:.200} is no JSON: {error}") from None
    if sampling.choice is not None and reply not in sampling.choice:
        raise InvalidCall(
            f"the scripted reply {reply!r:.200} is none of the choices {list(sampling.choice)!r:.200}"
        )
    if sampling.regex is not None and not _may_match(sampling.regex, reply):
        raise InvalidCall(
            f"the scripted reply {reply!r:.200} does not match the regex {sampling.regex!r:.200}"
        )


def _may_match(regex: str, text: str) -> bool:
    """Whatever Python's own dialect does not know may match anything."""
    try:
        return re.fullmatch(regex, text) is not None
    except re.error:
        return True


def _place(key: str | re.Pattern[str], prompt: str) -> tuple[int, int] | None:
    """Where its last occurrence ends, and how long it is."""
    if isinstance(key, str):
        start = prompt.rfind(key) if key else -1
        return (start + len(key), len(key)) if start >= 0 else None if key else (-1, 0)
    last = None
    for match in key.finditer(prompt):
        last = (match.end(), match.end() - match.start())
    return last


def _for(key: str | re.Pattern[str] | None) -> str:
    return "" if key is None else f" for {(key if isinstance(key, str) else key.pattern)!r}"


def _common(one: str, other: str) -> int:
    """Halving: comparing slices is much faster than comparing characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
