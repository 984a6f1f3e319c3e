"""ScriptedFace: an engine for tests of the server, whose answers are known texts.

Tokens are those of a real tokenizer; stops, lengths, choices and log-probabilities are as a real engine gives
them, one event a token, all made-up numbers being the same each time. Nothing is computed or cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from radixlm.radix.tree_view import TreeView
from radixlm.runtime.detokenizer import IncrementalDetokenizer
from radixlm.runtime.errors import InvalidRequest, TooLarge
from radixlm.runtime.grammar.spec import GrammarSpec
from radixlm.runtime.metrics import EngineInfo, EngineStats
from radixlm.runtime.stops import StopChecker
from radixlm.runtime.tokenizer import Tokenizer
from radixlm.runtime.types import Ending, Event, FinishReason, Request, TokenLogprob
from radixlm.runtime.worker import Pulse

Script = Callable[[Request], str]


class ScriptedFace:
    """`script` gives the text of every choice of a request. `hold` makes answers stop after so many tokens
    until `release` is called; what is aborted meanwhile ends."""

    def __init__(
        self, tokenizer: Tokenizer, script: Script, *, max_length: int = 4096, hold: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.requests: list[Request] = []
        self.specs: list[GrammarSpec] = []
        self.endings: list[tuple[tuple[str, ...], Ending]] = []
        self.alive = True
        self.quiet_for = 0.0
        self._script = script
        self._hold = hold
        self._released = threading.Event()
        self.config: dict[str, object] = {}
        self._aborted: set[str] = set()
        self.info = EngineInfo(
            model="scripted",
            family="llama",
            parameters=1,
            weight_bytes=4,
            dtype="float32",
            num_pages=64,
            page_size=16,
            kv_bytes=1 << 20,
            max_context=max_length,
            threads=1,
            quantization="none",
            attention="cpu",
        )

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Future[None]:
        future: Future[None] = Future()
        length = len(request.prompt_ids)
        if not length:
            future.set_exception(InvalidRequest("the prompt has no tokens, at least 1 is needed"))
        elif length + 1 > self.max_length:
            future.set_exception(TooLarge(f"the request needs room for {length + 1} tokens"))
        else:
            self.requests.append(request)
            future.set_result(None)
            threading.Thread(target=self._answer, args=(request, deliver), daemon=True).start()
        return future

    def release(self) -> None:
        self._released.set()

    def abort(self, request_id: str) -> Future[bool]:
        self._aborted.add(request_id)
        return _done(True)

    def end_programs(self, program_ids: Sequence[str], how: Ending) -> Future[None]:
        self.endings.append((tuple(program_ids), how))
        return _done(None)

    def compile(self, spec: GrammarSpec) -> Future[object]:
        self.specs.append(spec)
        return _done(object())

    def flush(self) -> Future[int]:
        return _done(0)

    def tree(self, most_nodes: int) -> Future[TreeView]:
        raise AssertionError("a script has no tree")

    def snapshot(self) -> EngineStats:
        raise AssertionError("a script has no figures")

    def start_profile(self) -> Future[None]:
        raise AssertionError("a script computes nothing")

    def stop_profile(self, file: Path) -> Future[None]:
        raise AssertionError("a script computes nothing")

    def pulse(self) -> Pulse:
        return Pulse(self.alive, bool(self.quiet_for), self.quiet_for)

    def _answer(self, request: Request, deliver: Callable[[Event], None]) -> None:
        for index in range(request.sampling.n):
            for event in self._events(request, index):
                deliver(event)

    def _events(self, request: Request, index: int) -> Iterator[Event]:
        params, text = request.sampling, self._script(request)
        ids = [*self.tokenizer.encode(text, bos=False), *sorted(self.tokenizer.eos_ids)[:1]]
        detokenizer = IncrementalDetokenizer(
            self.tokenizer, skip_special_tokens=params.skip_special_tokens, after=request.prompt_ids
        )
        stops = StopChecker(params.stop, params.stop_regex)
        prompt = self._prompt_logprobs(request)
        for count, token in enumerate(ids[: params.max_tokens], 1):
            if self._hold is not None and count > self._hold:
                while not self._released.wait(0.005) and request.id not in self._aborted:
                    pass
            finish: FinishReason | None = "stop" if token in self.tokenizer.eos_ids else None
            matched: int | str | None = token if finish else None
            delta = "" if finish else detokenizer.push((token,))
            update = stops.push(delta) if delta else None
            shown = update.text if update else ""
            if update is not None and update.matched is not None:
                finish, matched = "stop", update.matched
            elif finish is None and count == params.max_tokens:
                finish = "length"
            if request.id in self._aborted:
                finish, matched = "abort", None
            if finish not in (None, "abort") and (update is None or update.matched is None):
                shown += stops.finish()
            event = self._event(request, index, shown, (token,), count)
            yield replace(event, finish_reason=finish, matched_stop=matched, prompt_logprobs=prompt)
            prompt = ()
            if finish:
                return
        if not params.max_tokens:
            event = self._event(request, index, "", (), 0)
            yield replace(event, finish_reason="length", prompt_logprobs=prompt)

    def _event(self, request: Request, index: int, text: str, ids: tuple[int, ...], count: int) -> Event:
        logprobs = tuple(self._entry(i, request.sampling.logprobs) for i in ids)
        return Event(
            request_id=request.id,
            index=index,
            text=text,
            token_ids=ids,
            logprobs=() if request.sampling.logprobs is None else logprobs,
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=len(request.prompt_ids) // 2,
            completion_tokens=count,
        )

    def _prompt_logprobs(self, request: Request) -> tuple[TokenLogprob, ...]:
        start, ids = request.sampling.prompt_logprobs_start, request.prompt_ids
        if start is None:
            return ()
        entries = [self._entry(ids[i], request.sampling.logprobs) for i in range(max(start, 1), len(ids))]
        return ((TokenLogprob(ids[0], None),) if start == 0 else ()) + tuple(entries)

    def _entry(self, token: int, top: int | None) -> TokenLogprob:
        """Each token is the best one, the next ids are a little worse."""
        best = [(token + i, -0.25 * (i + 1)) for i in range(top or 0)]
        return TokenLogprob(token, -0.25, tuple(best))


T = TypeVar("T")


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
