"""RadixLM: a runtime for programs of language-model calls. `import radixlm as rx`.

The names below are looked up when they are first used, so that importing the package (or any of its
torch-free modules) never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runtime.config import EngineConfig
    from .runtime.engine import Engine
    from .runtime.errors import (
        EngineStopped,
        InvalidConfig,
        InvalidModel,
        InvalidRequest,
        RadixError,
        TooLarge,
    )
    from .runtime.prompts import Prompt
    from .runtime.sampling_params import SamplingParams
    from .runtime.score_items import ScoreItem
    from .runtime.types import Completion, ItemScore, ScoredContinuation, TokenLogprob

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineStopped",
    "InvalidConfig",
    "InvalidModel",
    "InvalidRequest",
    "ItemScore",
    "Prompt",
    "RadixError",
    "SamplingParams",
    "ScoreItem",
    "ScoredContinuation",
    "TokenLogprob",
    "TooLarge",
]

_HOME = {
    "Completion": ".runtime.types",
    "Engine": ".runtime.engine",
    "EngineConfig": ".runtime.config",
    "EngineStopped": ".runtime.errors",
    "InvalidConfig": ".runtime.errors",
    "InvalidModel": ".runtime.errors",
    "InvalidRequest": ".runtime.errors",
    "ItemScore": ".runtime.types",
    "Prompt": ".runtime.prompts",
    "RadixError": ".runtime.errors",
    "SamplingParams": ".runtime.sampling_params",
    "ScoreItem": ".runtime.score_items",
    "ScoredContinuation": ".runtime.types",
    "TokenLogprob": ".runtime.types",
    "TooLarge": ".runtime.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Engine":
        _prepare_for_torch()
    value: object = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def _prepare_for_torch() -> None:
    """Set what torch reads when it is loaded; once it is, setting it would only mislead."""
    import os
    import sys

    from .runtime.environment import prepare_environment

    if "torch" not in sys.modules:
        prepare_environment(os.environ)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
