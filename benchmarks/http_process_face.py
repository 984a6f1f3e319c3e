"""ProcessEngine: an engine in a process of its own behind the same face as one on a thread.

Calls go out from whoever makes them; one thread takes the news and hands out events, a step's at a time. The
tokenizer is loaded here too: text never crosses. What must hold is what holds of EngineThread: each accepted
request gets exactly one terminal event a choice, and each call an answer, also if the process is killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, TypeAlias

import http_process_wire as wire
import zmq

from radixlm.radix.tree_view import TreeView
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.embedded import resolve_model, user_cache
from radixlm.runtime.errors import EngineStopped, InvalidRequest, RadixError
from radixlm.runtime.grammar.spec import GrammarSpec
from radixlm.runtime.metrics import EngineStats
from radixlm.runtime.tokenizer import Tokenizer
from radixlm.runtime.types import Event, FinishReason, Request
from radixlm.runtime.weights import open_model
from radixlm.runtime.worker import Pulse

Deliver: TypeAlias = Callable[[Event], None]

_CHILD = Path(__file__).resolve().with_name("http_process_child.py")
_LOOK_MS = 1000
"""How often it is looked at whether the process lives, beside the end of its output."""
_LAST_NEWS_MS = 200
_END_SECONDS = 10.0


class ProcessEngine:
    """Opens an engine of `config` in a process, and returns when it can be asked; `close` ends both. Raises
    InvalidConfig and InvalidModel as Engine does. Methods may be called from any thread."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = TemporaryDirectory(prefix="radixlm-engine-")
        self._zmq = zmq.Context()
        # Who connects can send before the other side is there, and also when it is gone.
        self._calls, self._news = self._socket(zmq.PUSH), self._socket(zmq.PULL)
        self._calls.connect(wire.address(self._folder.name, "calls"))
        self._news.bind(wire.address(self._folder.name, "news"))
        command = [sys.executable, "-P", str(_CHILD), self._folder.name]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None, "the child's output is piped"
        self._output = self._child.stdout
        self._poller = zmq.Poller()
        self._poller.register(self._news, zmq.POLLIN)
        self._poller.register(self._output.fileno(), zmq.POLLIN)
        self._lock = threading.Lock()  # of the socket for calls, and of all that follows
        self._numbers = 0
        self._pending: dict[int, Future[Any]] = {}  # Any: each call has a result of its own type
        self._submitted: dict[int, str] = {}
        self._listeners: dict[str, tuple[Deliver, set[int]]] = {}
        self._busy_since: float | None = None
        self._cause = ""
        self._stopping = self._closed = False
        try:
            self.tokenizer = _tokenizer(config)
            self._calls.send(wire.encode(wire.Open(config)))
            opened = self._opened()
        except BaseException:
            self._clean_up()
            raise
        self.info, self.max_length, self._stats = opened.info, opened.max_length, opened.stats
        self.config: Mapping[str, object] = asdict(opened.config)
        self._thread = threading.Thread(target=self._listen, name="radixlm-engine-news", daemon=True)
        self._thread.start()

    @property
    def process_id(self) -> int:
        return self._child.pid

    # -- questions ---------------------------------------------------------------------------------

    def snapshot(self) -> EngineStats:
        return self._stats

    def pulse(self) -> Pulse:
        since = self._busy_since
        alive = self._thread.is_alive() and not self._cause
        return Pulse(alive, since is not None, 0.0 if since is None else monotonic() - since)

    def tree(self, most_nodes: int) -> Future[TreeView]:
        return self._ask(lambda call: wire.ViewTree(call, most_nodes))

    # -- commands ----------------------------------------------------------------------------------

    def submit(self, request: Request, deliver: Deliver) -> Future[None]:
        def announce(call: int) -> wire.Submit:
            if request.id in self._listeners:
                raise InvalidRequest(f"request id {request.id!r} is already in use")
            self._submitted[call] = request.id
            self._listeners[request.id] = (deliver, set(request.choices))
            if self._busy_since is None:
                self._busy_since = monotonic()
            return wire.Submit.of(call, request)

        return self._ask(announce)

    def abort(self, request_id: str) -> Future[bool]:
        return self._ask(lambda call: wire.Abort(call, request_id))

    def compile(self, spec: GrammarSpec) -> Future[object]:
        number = 0

        def announce(call: int) -> wire.Compile:
            nonlocal number
            number = call
            return wire.Compile(call, spec)

        def forget(answered: Future[object]) -> None:
            if answered.cancelled():
                self._tell(wire.Forget(number))

        found: Future[object] = self._ask(announce)
        found.add_done_callback(forget)
        return found

    def flush(self) -> Future[int]:
        return self._ask(wire.Flush)

    def start_profile(self) -> Future[None]:
        return self._ask(wire.StartProfile)

    def stop_profile(self, file: Path) -> Future[None]:
        return self._ask(lambda call: wire.StopProfile(call, str(file)))

    def prepare(self) -> None:
        """Load now what the first grammars would load beside somebody's text, and start their processes."""
        first = (GrammarSpec("regex", "[ab]+"), GrammarSpec("json", '{"pattern":"^a+$"}'))
        for future in [self.compile(spec) for spec in first]:
            future.exception()

    def close(self) -> None:
        """End what runs, with its terminal events, and the process. Closing twice is one close."""
        with self._lock:
            self._stopping = True
        self._tell(wire.Stop())
        self._thread.join()
        if not self._closed:
            self._closed = True
            self._clean_up()

    # -- calls -------------------------------------------------------------------------------------

    def _ask(self, announce: Callable[[int], wire.Call]) -> Future[Any]:
        """A call and the future of its answer. `announce` makes it, in the lock, or raises why not."""
        future: Future[Any] = Future()
        with self._lock:
            if self._stopping or self._cause:
                future.set_exception(EngineStopped(self._reason()))
                return future
            number = self._numbers = self._numbers + 1
            try:
                call = announce(number)
            except RadixError as error:
                future.set_exception(error)
                return future
            self._pending[number] = future
            self._calls.send(wire.encode(call))
        return future

    def _tell(self, call: wire.Call) -> None:
        """A call without an answer; to nobody if nobody is left."""
        with self._lock:
            if not self._closed:
                self._calls.send(wire.encode(call))

    # -- news, on a thread of their own --------------------------------------------------------------

    def _listen(self) -> None:
        cause = ""
        try:
            while (news := self._next_news()) is not None:
                match news:
                    case wire.Answers():
                        self._settle(news.answers)
                    case wire.Step():
                        self._stats = news.stats
                        self._deliver(news.events)
                    case wire.Died():
                        cause = f": {news.message}"
        except BaseException as error:  # whatever it is, those who wait must hear of it
            cause = f": {type(error).__name__}: {error}"
        self._end(cause)

    def _next_news(self) -> wire.News | None:
        """None when the process has ended and all that it sent has been read."""
        wait = _LOOK_MS
        while True:
            found = dict(self._poller.poll(wait))
            if self._news in found:
                return wire.decode_news(self._news.recv())
            if wait == _LAST_NEWS_MS:
                return None
            if found or self._child.poll() is not None:
                self._poller.modify(self._output.fileno(), 0)
                wait = _LAST_NEWS_MS

    def _settle(self, answers: Sequence[wire.Answer]) -> None:
        for answer in answers:
            with self._lock:
                future = self._pending.pop(answer.call)
                request_id = self._submitted.pop(answer.call, None)
                if answer.error and request_id is not None:  # it was refused and has no events
                    del self._listeners[request_id]
                    self._rest()
            if future.set_running_or_notify_cancel():
                if answer.error:
                    future.set_exception(wire.error_of(answer.error, answer.message))
                else:
                    future.set_result(answer.value)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            with self._lock:
                deliver, open_choices = self._listeners.get(event.request_id, (None, set()))
                if event.finish_reason is not None:
                    open_choices.discard(event.index)
                if deliver is not None and not open_choices:
                    del self._listeners[event.request_id]
            if deliver is not None and not _took(deliver, event):
                with self._lock:
                    self._listeners.pop(event.request_id, None)
                self.abort(event.request_id)
        with self._lock:
            self._rest()

    def _rest(self) -> None:
        """A step was made, or nothing is left to do."""
        self._busy_since = monotonic() if self._listeners else None

    def _end(self, cause: str) -> None:
        """Answer everybody: those who run with a terminal event, those who ask with EngineStopped."""
        with self._lock:
            self._cause = cause or ("" if self._stopping else f": its process ended ({self._child.wait()})")
            reason = self._reason()
            ended: FinishReason = "error" if self._cause else "abort"
            self._stopping, self._busy_since = True, None
            listeners, self._listeners = self._listeners, {}
            pending, self._pending = self._pending, {}
        for request_id, (deliver, open_choices) in listeners.items():
            for index in sorted(open_choices):
                _took(deliver, Event(request_id, index, finish_reason=ended, error=reason))
        for future in pending.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineStopped(reason))

    def _reason(self) -> str:
        return f"the engine has stopped{self._cause}"

    # -- the process -------------------------------------------------------------------------------

    def _opened(self) -> wire.Opened:
        news = self._next_news()
        if isinstance(news, wire.Died):
            raise wire.error_of(news.error, news.message)
        if not isinstance(news, wire.Opened):
            raise EngineStopped(f"the engine's process ended ({self._child.wait()}) before it could be asked")
        return news

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        """Without a limit to what may wait in it, so that nobody blocks."""
        found = self._zmq.socket(kind)
        found.set_hwm(0)
        return found

    def _clean_up(self) -> None:
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._zmq.destroy(linger=0)
        self._folder.cleanup()


def _tokenizer(config: EngineConfig) -> Tokenizer:
    """The one that the engine has."""
    path = resolve_model(config.model, with_weights=config.load_format != "dummy")
    source = open_model(path, config.load_format, cache=user_cache(), seed=config.seed)
    return Tokenizer.load(source.path, user_cache(), source.eos_ids)


def _took(deliver: Deliver, event: Event) -> bool:
    """Whether the listener took the event. Its failure is its own: others wait for theirs."""
    try:
        deliver(event)
    except Exception:
        return False
    return True
