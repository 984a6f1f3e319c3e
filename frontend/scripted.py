"""Scripted: a backend whose replies are given, for tests of programs. No model, no network, no waiting.

A token is a character, and its id the character's number, so that a program carries ids as it does with a
model and what it reuses can be counted. What must hold: the same calls in the same order get the
same replies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .call_checks import check_hint, check_sampling
from .chat_formats import named_format
from .closing import Closing, is_closed
from .errors import InvalidCall
from .protocol import (
    ChoiceScore,
    Delta,
    Ending,
    Frame,
    GenerateCall,
    Generated,
    Part,
    Sampling,
    ScoreCall,
    Scored,
)
from .script import Replies, Script, TextMemory, check_form, cut_at_stop, spread

Scores: TypeAlias = Mapping[str, float | Sequence[float]] | Callable[[str, str], float | Sequence[float]]


@dataclass(slots=True)
class ScriptedCall:
    """A call that came, its prompt as text, and what became of it."""

    prompt: str
    asked: GenerateCall | ScoreCall
    state: Literal["running", "answered", "failed", "cancelled"] = "running"


class Scripted(Closing):
    """A Backend for tests.

    `replies`: a text for every call; a list, of which every call takes the next (n = 2 takes two); a mapping
    from what stands last in the prompt, a text or a compiled pattern, to any of these ("" is for the rest);
    or a function of the prompt. An exception in the place of a text is raised. A reply is cut where `stop`
    says, and with `limit` after max_new_tokens characters; one that does not match the regex or is no JSON
    where a call asks for that is an error. Options that an engine refuses are refused here as well.

    `scores` are for select: for each choice the log-probability of every character of it, or a list with one
    for each, as a mapping or a function of prompt and choice. Without them the reply is the choice.
    `piece`: how many characters a stream gives at a time. `chat_template`: a name of chat_formats.FORMATS.

    `calls` are the calls that came, `ended` what was told of branches. These two, and all methods that are
    no coroutines, may be used from any thread.
    """

    def __init__(
        self,
        replies: Replies = "",
        *,
        scores: Scores | None = None,
        piece: int = 3,
        limit: bool = False,
        chat_template: str = "plain",
    ) -> None:
        if isinstance(piece, bool) or not isinstance(piece, int) or piece < 1:
            raise InvalidCall(f"piece must be a count of at least 1, got {piece!r:.200}")
        if not isinstance(limit, bool):
            raise InvalidCall(f"limit must be True or False, got {limit!r:.200}")
        if scores is not None and not callable(scores) and not isinstance(scores, Mapping):
            raise InvalidCall(
                "scores must map choices to log-probabilities, or be a function of prompt and choice, "
                f"got {scores!r:.200}"
            )
        self.calls: list[ScriptedCall] = []
        self.ended: list[tuple[tuple[str, ...], Ending]] = []
        self._script = Script(replies)
        self._scores = scores
        self._piece, self._limit = piece, limit
        self._format = named_format(chat_template)
        self._memory = TextMemory()
        self._failures: list[Exception] = []
        self._changed = threading.Condition()
        self._pause_after: int | None = None
        self._closed = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # -- for tests -------------------------------------------------------------------------------------

    @property
    def prompts(self) -> list[str]:
        """Of all calls, in order."""
        return [call.prompt for call in self.calls]

    def fail_next(self, error: Exception, times: int = 1) -> None:
        """The next calls raise it, and take no reply."""
        if not isinstance(error, Exception):
            raise InvalidCall(f"fail_next takes an error to raise, got {error!r:.200}")
        self._failures += [error] * times

    def pause(self, after: int = 0) -> None:
        """Let every call wait before its answer until `resume`; a stream gives so many pieces first."""
        self._pause_after = after

    def resume(self) -> None:
        with self._changed:
            self._pause_after = None
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            loop.call_soon_threadsafe(_release, waiter)

    def wait_for_calls(self, count: int, timeout: float = 10.0) -> None:
        """Block until so many calls have come in all. Not on the loop that runs them. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.calls) >= count, timeout):
                raise TimeoutError(f"{len(self.calls)} of {count} calls came within {timeout:g} s")

    # -- Backend ---------------------------------------------------------------------------------------

    async def generate(self, call: GenerateCall) -> list[Generated]:
        with self._recorded(call, call.parts) as prompt:
            _check(call)
            await self._gate(0)
            return self._texts(prompt, call)

    async def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        with self._recorded(call, call.parts) as prompt:
            _check(call)
            if call.sampling.n != 1:
                raise InvalidCall(f"a stream has one text, got n {call.sampling.n}")
            await self._gate(0)
            (done,) = self._texts(prompt, call)
            for count, start in enumerate(range(0, len(done.text), self._piece)):
                await self._gate(count)
                meta = {**done.meta, "finish_reason": None, "completion_tokens": start + self._piece}
                yield Delta(done.text[start : start + self._piece], meta)
                await asyncio.sleep(0)
            yield Delta("", done.meta, done)

    async def score(self, call: ScoreCall) -> Scored:
        if not call.choices:
            raise InvalidCall("choices must not be empty")
        with self._recorded(call, call.parts) as prompt:
            check_hint(call.hint)
            await self._gate(0)
            self._fail()
            cached = self._cached(prompt)
            self._memory.add(prompt)
            scores = self._choice_scores(prompt, call)
            new = len(prompt) - cached + sum(map(len, call.choices))
            return Scored(tuple(scores), len(prompt), cached, new)

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        self._check_open()
        return self._format.frame(roles)

    async def info(self) -> Mapping[str, object]:
        return {"runtime": "scripted", "calls": len(self.calls)}

    async def flush(self) -> None:
        running = sum(call.state == "running" for call in self.calls)
        if running:
            raise InvalidCall(f"the cache cannot be emptied while {running} calls run")
        self._memory.clear()

    def end(self, program_ids: Sequence[str], how: Ending) -> None:
        self.ended.append((tuple(program_ids), how))

    # -- closing: nothing is open, and calls that wait go on -------------------------------------------

    def _home(self) -> asyncio.AbstractEventLoop | None:
        return None

    async def _end(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self._closed = True
        self.resume()

    def _check_open(self) -> None:
        if self._closed:
            raise is_closed("Scripted")

    # -- replies ---------------------------------------------------------------------------------------

    def _texts(self, prompt: str, call: GenerateCall) -> list[Generated]:
        self._fail()
        cached = self._cached(prompt)
        texts = [self._text(prompt, call.sampling) for _ in range(call.sampling.n)]
        found = []
        for index, (text, stop) in enumerate(texts):
            self._memory.add(prompt + text[:-1])  # the last token's memory is never filled
            counts = (len(prompt), cached) if not index else (0, 0)
            found.append(_generated(prompt, text, stop, counts, call))
        return found

    def _text(self, prompt: str, sampling: Sampling) -> tuple[str, str | int | None]:
        """And the stop text that ended it, None at its end, or the number of characters it was cut after."""
        if not sampling.max_new_tokens:
            return "", 0
        reply = self._script.reply(prompt)
        if isinstance(reply, Exception):
            raise reply
        text, stop = cut_at_stop(reply, sampling.stop, sampling.stop_regex)
        if self._limit and len(text) > sampling.max_new_tokens:
            return text[: sampling.max_new_tokens], sampling.max_new_tokens
        check_form(reply, sampling)
        return text, stop

    def _choice_scores(self, prompt: str, call: ScoreCall) -> list[ChoiceScore]:
        scores = self._scores
        if scores is None:
            reply = self._script.reply(prompt)
            if isinstance(reply, Exception):
                raise reply
            if reply not in call.choices:
                raise InvalidCall(
                    f"the scripted reply {reply!r:.100} is none of the choices {list(call.choices)!r:.200}"
                )
            return [spread(choice, 0.0 if choice == reply else -1.0) for choice in call.choices]
        if callable(scores):
            return [spread(choice, scores(prompt, choice)) for choice in call.choices]
        missing = [choice for choice in call.choices if choice not in scores]
        if missing:
            raise InvalidCall(f"the script has no score for {missing!r:.200}")
        return [spread(choice, scores[choice]) for choice in call.choices]

    def _fail(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    def _cached(self, prompt: str) -> int:
        """The last token of a prompt is always computed."""
        return min(self._memory.common(prompt), max(0, len(prompt) - 1))

    # -- what happens when -----------------------------------------------------------------------------

    @contextmanager
    def _recorded(self, asked: GenerateCall | ScoreCall, parts: tuple[Part, ...]) -> Iterator[str]:
        self._check_open()
        call = ScriptedCall(_text_of(parts), asked)
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()
        try:
            yield call.prompt
        except (asyncio.CancelledError, GeneratorExit):
            call.state = "cancelled"
            raise
        except BaseException:
            call.state = "failed"
            raise
        call.state = "answered"

    async def _gate(self, given: int) -> None:
        """Wait while it is paused for a call that has given so many pieces."""
        while True:
            with self._changed:
                if self._pause_after is None or given < self._pause_after:
                    return
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._waiting.append((loop, waiter))
            await waiter


def _check(call: GenerateCall) -> None:
    check_sampling(call.sampling)
    check_hint(call.hint)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _text_of(parts: Sequence[Part]) -> str:
    return "".join(
        part if isinstance(part, str) else "".join(map(chr, part)) if isinstance(part, tuple) else part.text
        for part in parts
    )


def _generated(
    prompt: str, text: str, stop: str | int | None, counts: tuple[int, int], call: GenerateCall
) -> Generated:
    prompt_tokens, cached = counts
    is_cut = isinstance(stop, int)
    reason = {"type": "length", "length": stop} if is_cut else {"type": "stop", "matched": stop}
    meta: dict[str, object] = {
        "finish_reason": reason,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "completion_tokens": len(text),
    }
    if call.sampling.return_logprob:
        meta |= _logprobs(prompt, text, call.sampling)
    return Generated(
        text=text,
        parts=(tuple(map(ord, text)),) if text else (),
        finish_reason="length" if is_cut else "stop",
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        completion_tokens=len(text),
        held_tokens=None if call.hint.hold_s is None else max(0, len(prompt) + len(text) - 1),
        meta=meta,
    )


def _logprobs(prompt: str, text: str, sampling: Sampling) -> dict[str, object]:
    """Every character has log-probability -1."""
    start = len(prompt) if sampling.logprob_start_len in (None, -1) else sampling.logprob_start_len or 0
    entries = [
        [-1.0, ord(each), each if sampling.return_text_in_logprobs else None] for each in prompt + text
    ]
    if not start and prompt:
        entries[0][0] = None
    return {
        "input_token_logprobs": entries[start : len(prompt)],
        "output_token_logprobs": entries[len(prompt) :],
    }
