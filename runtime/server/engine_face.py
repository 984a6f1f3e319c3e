"""EngineFace: what the server needs of an engine that works elsewhere, and LocalEngine, one on a thread.

Events arrive on a thread of the engine's; every question is answered by a future, but for `snapshot` and
`pulse`, which never wait for the engine and are therefore what health and metrics are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol

from ...radix.tree_view import TreeView
from ..engine import Engine
from ..grammar.spec import GrammarSpec
from ..metrics import EngineInfo, EngineStats
from ..tokenizer import Tokenizer
from ..types import Ending, Event, Request
from ..worker import EngineThread, Pulse


class EngineFace(Protocol):
    """See EngineThread for `submit` and `abort`. `max_length`: the most tokens a sequence can have."""

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def config(self) -> Mapping[str, object]:
        """The options of the engine, as settled."""
        ...

    @property
    def max_length(self) -> int: ...
    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Future[None]: ...
    def abort(self, request_id: str) -> Future[bool]: ...
    def end_programs(self, program_ids: Sequence[str], how: Ending) -> Future[None]:
        """See Ending."""
        ...

    def compile(self, spec: GrammarSpec) -> Future[object]:
        """Done when a request with that grammar need not wait for it, or is refused: InvalidRequest."""
        ...

    def flush(self) -> Future[int]: ...
    def tree(self, most_nodes: int) -> Future[TreeView]: ...
    def snapshot(self) -> EngineStats:
        """The figures after the last step."""
        ...

    def pulse(self) -> Pulse: ...
    def start_profile(self) -> Future[None]: ...
    def stop_profile(self, file: Path) -> Future[None]:
        """See Profiler."""
        ...


class LocalEngine:
    """An engine of this process on an EngineThread; `close` ends both."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = EngineThread(engine)
        self.tokenizer = engine.tokenizer
        self.info = engine.info()
        self.config: Mapping[str, object] = asdict(engine.config)
        self.max_length = engine.max_length

    def submit(self, request: Request, deliver: Callable[[Event], None]) -> Future[None]:
        return self._thread.submit(request, deliver)

    def abort(self, request_id: str) -> Future[bool]:
        return self._thread.abort(request_id)

    def end_programs(self, program_ids: Sequence[str], how: Ending) -> Future[None]:
        return self._thread.call(partial(self._engine.end_programs, program_ids, how))

    def compile(self, spec: GrammarSpec) -> Future[object]:
        future: Future[object] = self._engine.compile(spec)  # type: ignore[assignment]  # covariant, in effect
        return future

    def flush(self) -> Future[int]:
        return self._thread.call(self._engine.flush)

    def tree(self, most_nodes: int) -> Future[TreeView]:
        return self._thread.call(lambda: self._engine.cache.view(most_nodes))

    def snapshot(self) -> EngineStats:
        return self._thread.snapshot()

    def pulse(self) -> Pulse:
        return self._thread.pulse()

    def start_profile(self) -> Future[None]:
        return self._thread.call(self._engine.profiler.start)

    def stop_profile(self, file: Path) -> Future[None]:
        return self._thread.call(partial(self._engine.profiler.stop, file))

    def prepare(self) -> None:
        """Do now what would else be done beside somebody's text: load what the first grammars need, start
        their processes, look at every token once, compute a step."""
        _ = self.tokenizer.longest_token
        self._engine.prepare_grammars()
        self._thread.call(self._engine.warm_up).result()

    def close(self) -> None:
        self._thread.close()
