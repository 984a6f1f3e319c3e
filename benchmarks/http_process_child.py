"""The engine process: it owns the engine, carries out calls between steps, sends the news of a step at once.

    python -P http_process_child.py FOLDER

FOLDER has the two sockets of who started it. The engine runs on the main thread, and there is no other one of
Python's but for what the engine starts. What must hold: it ends when it is told to, or when its standard
input is closed, which is what remains of a parent that was killed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

import http_process_wire as wire
import zmq

from radixlm.runtime.environment import prepare_environment
from radixlm.runtime.errors import RadixError

if TYPE_CHECKING:
    from radixlm.runtime.engine import Engine
    from radixlm.runtime.grammar.protocol import CompiledGrammar

_LINGER_MS = 2000


class EngineProcess:
    """Serves the engine that the first call asks for, until it is stopped."""

    def __init__(self, folder: str) -> None:
        self._zmq = zmq.Context()
        self._calls, self._news = self._zmq.socket(zmq.PULL), self._zmq.socket(zmq.PUSH)
        for each in (self._calls, self._news):  # nobody who asks or answers is ever blocked
            each.set_hwm(0)
        self._calls.bind(wire.address(folder, "calls"))
        self._news.connect(wire.address(folder, "news"))
        self._answers: deque[wire.Answer] = deque()  # other threads add to it, see _compiled
        self._grammars: dict[int, Future[CompiledGrammar]] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = zmq.Poller()
        for waited_for in (self._calls, self._woken, sys.stdin.fileno()):
            self._poller.register(waited_for, zmq.POLLIN)
        self._engine: Engine

    def run(self) -> None:
        from radixlm.runtime.engine import Engine  # loads torch

        try:
            if sys.stdin.fileno() in dict(self._poller.poll()):
                return
            asked = wire.decode_call(self._calls.recv())
            assert isinstance(asked, wire.Open), "an engine is opened before it is asked"
            self._engine = Engine(config=asked.config)
            self._send(_opened(self._engine))
            with self._engine:
                while self._next():
                    self._send(wire.Step(self._engine.step(), self._engine.stats()))
        except BaseException as error:  # whatever it is, those who wait must hear of it
            self._send(wire.Died(*wire.words(error)))
            if not isinstance(error, RadixError):
                raise
        finally:
            self._zmq.destroy(linger=_LINGER_MS)

    def _next(self) -> bool:
        """Carry out the calls that have come; wait for one while there is no work. False when it is time to
        stop."""
        while True:
            found = dict(self._poller.poll(0 if self._engine.has_work else None))
            if sys.stdin.fileno() in found:
                return False
            if self._woken.fileno() in found:
                self._woken.recv(4096)
            if self._calls in found and not self._take_calls():
                return False
            self._send_answers()
            if self._engine.has_work:
                return True

    def _take_calls(self) -> bool:
        """All that are there. False: the last of them is Stop."""
        while self._calls.poll(0):
            call = wire.decode_call(self._calls.recv())
            match call:
                case wire.Stop():
                    return False
                case wire.Compile():
                    future = self._grammars[call.call] = self._engine.compile(call.spec)
                    future.add_done_callback(partial(self._compiled, call.call))
                case wire.Forget():
                    if unwanted := self._grammars.get(call.call):
                        unwanted.cancel()
                case wire.Open():
                    raise AssertionError("an engine is opened once")
                case _:
                    self._answers.append(self._answer(call))
        return True

    def _answer(self, call: wire.Asked) -> wire.Answer:
        """What raises belongs to who asked: the engine goes on."""
        try:
            return wire.Answer(call.call, self._carried_out(call))
        except Exception as error:
            return wire.failed(call.call, error)

    def _carried_out(self, call: wire.Asked) -> wire.Value:
        engine = self._engine
        match call:
            case wire.Submit():
                engine.add(call.request())
            case wire.Abort():
                return engine.abort(call.request_id)
            case wire.Flush():
                return engine.flush()
            case wire.ViewTree():
                return engine.cache.view(call.most_nodes)
            case wire.StartProfile():
                engine.profiler.start()
            case wire.StopProfile():
                engine.profiler.stop(Path(call.file))
            case wire.Compile():
                raise AssertionError("a grammar is answered when it is there")
        return None

    def _compiled(self, call: int, future: Future[CompiledGrammar]) -> None:
        """On any thread."""
        error = None if future.cancelled() else future.exception()
        self._answers.append(wire.Answer(call) if error is None else wire.failed(call, error))
        with suppress(BlockingIOError):  # full: it is going to wake up
            self._waker.send(b"\0")

    def _send_answers(self) -> None:
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        for answer in answers:
            self._grammars.pop(answer.call, None)
        if answers:
            self._send(wire.Answers(answers))

    def _send(self, news: wire.News) -> None:
        self._news.send(wire.encode(news))


def _opened(engine: Engine) -> wire.Opened:
    return wire.Opened(engine.info(), engine.config, engine.max_length, engine.stats())


def main() -> None:
    prepare_environment(os.environ)
    # The parent waits for the end of its standard output, which nobody may keep open or write to.
    os.dup(1)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM):  # for the whole group: the parent decides what comes of it
        signal.signal(number, lambda *_: None)
    EngineProcess(sys.argv[1]).run()


if __name__ == "__main__":
    main()
