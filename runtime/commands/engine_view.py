"""What a command needs of an engine, so that commands can be written and tested without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from ..config import EngineConfig
from ..metrics import EngineInfo, EngineStats
from ..progress import EngineProgress
from ..prompts import Prompt
from ..sampling_params import SamplingParams
from ..score_items import ScoreItem
from ..types import Completion, ItemScore


class EngineView(Protocol):
    """The part of `Engine` that commands use. A refused prompt of a list comes back as a completion that
    has `error`; results are in the order of the prompts, the n choices of one beside each other."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        on_progress: Callable[[EngineProgress], None] | None = None,
    ) -> list[Completion]: ...
    def score(
        self, context: Sequence[ScoreItem], *, on_progress: Callable[[EngineProgress], None] | None = None
    ) -> list[ItemScore]: ...
    def stats(self) -> EngineStats: ...
    def info(self) -> EngineInfo: ...
    @property
    def endpoint(self) -> object:
        """What programs run their calls on: a Backend of frontend/protocol.py."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


OpenEngine: TypeAlias = Callable[[EngineConfig], EngineView]
"""How a command gets its engine: the command line gives the real one, a test its own."""
