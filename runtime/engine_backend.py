"""EngineBackend: programs on an engine of this process, which works on a thread of its own.

It translates calls to requests and events to values; each call wakes its event loop once, when it is done, a
streamed one once a step. What must hold: a call that is cancelled, wherever it is, is aborted; errors are
those of frontend/errors.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from .. import __version__
from ..frontend.errors import BackendError, InvalidCall
from ..frontend.protocol import (
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
    text_of,
)
from ..frontend.protocol import Hint as CallHint
from .answers import Answer
from .chat_frames import frame_of
from .choice_scores import check_ended_well, nothing_before, read_scores
from .errors import InvalidRequest, RadixError
from .hints import NO_HINT, checked_hint
from .metrics import EngineStats
from .post import Mailbox, Post
from .sampling_params import SamplingParams
from .score import SCORING
from .text_parts import Ids, PartsEncoder
from .token_names import token_text
from .traffic import Course, Traffic
from .types import Event, Hint, Request
from .worker import EngineThread

if TYPE_CHECKING:
    from .engine import Engine

T = TypeVar("T")

_REMEMBERED = 4 << 20
"""Characters of runs whose ids are kept."""
_LONG_TEXT = 20_000
"""Characters from which on encoding takes so long that an event loop should not wait for it."""
_MOST_FRAMES = 1000


class EngineBackend:
    """A frontend.protocol.Backend over `engine`, until `close` or the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = EngineThread(engine)
        self._encoder = PartsEncoder(engine.tokenizer, remembered=_REMEMBERED)
        self._traffic = Traffic()
        self._names = count()
        self._frames: dict[tuple[str, ...], Frame] = {}
        self._posts: dict[asyncio.AbstractEventLoop, Post] = {}
        self._opening = threading.Lock()

    # -- of Backend --------------------------------------------------------------------------------

    async def generate(self, call: GenerateCall) -> list[Generated]:
        with _errors():
            sampling, hint = sampling_of(call.sampling), _hint(call.hint)
            before = self._encoder.before(call.parts)
        answers = await self.answers(
            call.parts, sampling, hint=hint, with_text=call.sampling.return_text_in_logprobs
        )
        return [self._generated(answer, before) for answer in answers]

    async def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        with _errors():
            if call.sampling.n != 1:
                raise InvalidRequest(f"a stream has one text, got n {call.sampling.n}")
            sampling, hint = sampling_of(call.sampling), _hint(call.hint)
            before = self._encoder.before(call.parts)
            request = await self._request(call.parts, sampling, hint)
            [answer] = self._answers(request, call.sampling.return_text_in_logprobs)
            news: Mailbox[Event | BaseException] = Mailbox()
            post = self._post()
            accepted = self._submit(request, lambda event: post.send(partial(news.put, event)))
            accepted.add_done_callback(_refusal_to(lambda error: post.send(partial(news.put, error))))
            goes_on = True
            try:
                while goes_on:
                    event = await news.get()
                    if isinstance(event, BaseException):
                        goes_on = False
                        raise event
                    goes_on = event.finish_reason is None
                    answer.add(event)
                    if goes_on and not event.text:
                        continue
                    if not goes_on:
                        _check_ended_well(answer.last)
                        self._traffic.settle()
                    done = None if goes_on else self._generated(answer, before)
                    yield Delta(event.text, answer.meta() if done is None else done.meta, done)
            finally:
                if goes_on:
                    self._thread.abort(request.id)

    async def score(self, call: ScoreCall) -> Scored:
        with _errors():
            if not call.choices:
                raise InvalidRequest("choices must hold at least one, got none")
            hint, encode = _hint(call.hint), self._encoder.joint
            size = _length(call.parts) + max(map(len, call.choices))
            context, continuations = await _beside(
                size * len(call.choices), partial(encode, call.parts, call.choices)
            )
            request = self._scoring(context, continuations, hint)
            scores = read_scores(continuations, context, await self._events(request))
            computed = scores.computed_tokens
            alone: tuple[tuple[float, ...], ...] = ((),) * len(continuations)
            if call.unconditional:
                before = nothing_before(self._engine.tokenizer)
                request = self._scoring(before, continuations, NO_HINT)
                found = read_scores(continuations, before, await self._events(request, counts=False))
                computed, alone = computed + found.computed_tokens, found.logprobs
            self._traffic.settle()
            return Scored(
                tuple(map(ChoiceScore, continuations, scores.logprobs, alone)),
                prompt_tokens=len(context),
                cached_tokens=scores.cached_tokens,
                computed_tokens=computed,
            )

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        with _errors():
            found = self._frames.get(roles)
            if found is None:
                made = frame_of(self._engine.tokenizer, roles)
                if len(self._frames) >= _MOST_FRAMES:
                    self._frames.clear()
                found = self._frames[roles] = Frame(made.before, made.after)
            return found

    async def info(self) -> Mapping[str, object]:
        """prompt_tokens, cached_tokens, optimal_tokens and generated_tokens are of the calls of programs,
        each prompt once; those of the engine, which counts each choice, are in internal_states."""
        with _errors():
            return {
                "runtime": "radixlm",
                "version": __version__,
                **asdict(self._engine.config),
                **asdict(self._engine.info()),
                "model_path": self._engine.config.model,
                "max_model_len": self._engine.max_length,
                **asdict(self._traffic.figures()),
                "internal_states": [asdict(self._thread.snapshot())],
            }

    async def flush(self) -> None:
        with _errors():
            await asyncio.wrap_future(self._thread.call(self._flush))

    def end(self, program_ids: Sequence[str], how: Ending) -> None:
        self._thread.call(partial(self._engine.end_programs, tuple(program_ids), how))

    async def close(self) -> None:
        """The engine with it."""
        await asyncio.to_thread(self.stop)

    async def answers(
        self,
        parts: Sequence[Part],
        sampling: SamplingParams,
        *,
        hint: Hint = NO_HINT,
        with_text: bool = False,
    ) -> list[Answer]:
        """The n texts that continue these parts. `with_text`: log-probabilities come with the texts of their
        tokens."""
        with _errors():
            request = await self._request(parts, sampling, hint)
            answers = self._answers(request, with_text)
            for event in await self._events(request):
                answers[event.index].add(event)
            for answer in answers:
                _check_ended_well(answer.last)
            self._traffic.settle()
            return answers

    # -- of the engine -----------------------------------------------------------------------------

    @property
    def is_here(self) -> bool:
        """Whether this is the engine's thread."""
        return self._thread.is_current

    def call(self, function: Callable[[], T]) -> T:
        """What a function gives on the engine's thread. Ctrl-C while it runs ends the batch that it is."""
        future = self._thread.call(function)
        try:
            return future.result()
        except KeyboardInterrupt:
            if not (future.done() or future.cancel()):
                self._engine.interrupt()
                wait((future,))
            raise

    def snapshot(self) -> EngineStats:
        """The figures after the last step."""
        return self._thread.snapshot()

    def stop(self) -> None:
        self._thread.close()

    # -- from calls to requests --------------------------------------------------------------------

    async def _request(self, parts: Sequence[Part], sampling: SamplingParams, hint: Hint) -> Request:
        ids = await _beside(_length(parts), partial(self._encoder.ids, parts))
        return Request(self._name(), ids, sampling, hint=hint)

    def _scoring(self, context: Ids, continuations: tuple[Ids, ...], hint: Hint) -> Request:
        return Request(self._name(), context, SCORING, continuations=continuations, hint=hint)

    def _name(self) -> str:
        return f"program-{next(self._names)}"

    def _answers(self, request: Request, with_text: bool) -> list[Answer]:
        named = partial(token_text, self._engine.tokenizer) if with_text else None
        return [Answer(request, named) for _ in request.choices]

    def _generated(self, answer: Answer, before: tuple[Ids, ...]) -> Generated:
        last = answer.last
        reason = last.finish_reason
        assert reason in ("stop", "length", "abort"), "an answer that is whole has ended well"
        is_first = last.index == 0
        return Generated(
            text=answer.text,
            parts=(*before, *answer.parts(self._engine.tokenizer)),
            finish_reason=reason,
            prompt_tokens=last.prompt_tokens if is_first else 0,
            cached_tokens=last.cached_tokens if is_first else 0,
            completion_tokens=last.completion_tokens,
            forced_tokens=last.forced_tokens,
            held_tokens=answer.held_tokens,
            meta=answer.meta(),
        )

    # -- from requests to events -------------------------------------------------------------------

    async def _events(self, request: Request, *, counts: bool = True) -> list[Event]:
        """All of them, once the last has come. The loop is not woken before."""
        events: list[Event] = []
        left = len(request.choices)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        post = self._post()

        def take(event: Event) -> None:
            nonlocal left
            events.append(event)
            left -= event.finish_reason is not None
            if not left:
                post.send(partial(_resolve, done, None))

        accepted = self._submit(request, take, counts=counts)
        accepted.add_done_callback(_refusal_to(lambda error: post.send(partial(_resolve, done, error))))
        try:
            await done
        except asyncio.CancelledError:
            self._thread.abort(request.id)
            raise
        return events

    def _submit(
        self, request: Request, take: Callable[[Event], None], *, counts: bool = True
    ) -> Future[None]:
        note = _Note(self._traffic, request).take if counts else _ignore

        def deliver(event: Event) -> None:
            note(event)
            take(event)

        return self._thread.submit(request, deliver)

    def _post(self) -> Post:
        loop = asyncio.get_running_loop()
        with self._opening:
            if loop not in self._posts:
                self._posts = {one: post for one, post in self._posts.items() if not one.is_closed()}
                self._posts[loop] = Post()
            return self._posts[loop]

    def _flush(self) -> None:
        if self._engine.has_work:
            raise InvalidRequest("the cache is flushed when nothing runs, but something does")
        self._engine.flush()


class _Note:
    """Tells the traffic of one request, by its events."""

    def __init__(self, traffic: Traffic, request: Request) -> None:
        self._traffic, self._request = traffic, request
        self._course: Course | None = None
        self._outputs: dict[int, list[int]] = {}

    def take(self, event: Event) -> None:
        request, ended = self._request, event.finish_reason
        if self._course is None:
            if ended in ("abort", "error"):
                return
            cached = min(event.cached_tokens, len(request.prompt_ids))
            self._course = self._traffic.begin(request.prompt_ids, request.namespace, cached)
        output = self._outputs.setdefault(event.index, [])
        output += event.token_ids
        if ended is None or ended == "error":
            return
        generated = len(output)
        if request.continuations and event.index >= 0:
            output += request.continuations[event.index]
        self._traffic.end(self._course, tuple(output), generated)


def _check_ended_well(last: Event) -> None:
    """That somebody ended its program is no failure of a text."""
    if last.finish_reason != "abort" or last.error:
        check_ended_well(last)


def _ignore(event: Event) -> None:
    """An event that counts nowhere."""


def sampling_of(given: Sampling) -> SamplingParams:
    """As the engine takes it. Raises InvalidRequest."""
    options: dict[str, object] = {
        "max_tokens": given.max_new_tokens,
        "min_tokens": given.min_new_tokens,
        "n": given.n,
        "stop": given.stop,
        "stop_token_ids": given.stop_token_ids,
        "stop_regex": given.stop_regex,
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": given.top_k,
        "min_p": given.min_p,
        "frequency_penalty": given.frequency_penalty,
        "presence_penalty": given.presence_penalty,
        "repetition_penalty": given.repetition_penalty,
        "ignore_eos": given.ignore_eos,
        "seed": given.seed,
        "regex": given.regex,
        "json_schema": given.json_schema,
        "grammar": given.grammar,
        "choice": given.choice,
        "relaxed": given.relaxed,
        "compact": given.compact,
    }
    if given.return_logprob:
        start = given.logprob_start_len
        options["logprobs"] = given.top_logprobs_num or 0
        options["prompt_logprobs_start"] = None if start is None or start == -1 else start
    params = SamplingParams.from_mapping(options)
    if params.logprobs is not None and params.prompt_logprobs_start is None and not params.max_tokens:
        return replace(params, prompt_logprobs_start=0)  # what is only read has no other log-probabilities
    return params


def _hint(given: CallHint) -> Hint:
    return checked_hint(
        program_id=given.program_id,
        parent_id=given.parent_id,
        fork_group=given.fork_group,
        hold_s=given.hold_s,
        done=given.done,
    )


def _length(parts: Sequence[Part]) -> int:
    """In characters."""
    return len(text_of(parts))


async def _beside(characters: int, work: Callable[[], T]) -> T:
    """What comes of work on so many characters: if they are many, on another thread."""
    return work() if characters <= _LONG_TEXT else await asyncio.to_thread(work)


def _refusal_to(tell: Callable[[BaseException], None]) -> Callable[[Future[None]], None]:
    def look(accepted: Future[None]) -> None:
        error = accepted.exception()
        if error is not None:
            tell(error)

    return look


def _resolve(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return  # it was cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


@contextmanager
def _errors() -> Iterator[None]:
    """Those of the engine as those that programs know."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidCall(str(error)) from error
    except RadixError as error:
        raise BackendError(str(error)) from error
