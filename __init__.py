"""RadixLM: a runtime for programs of language-model calls. `import radixlm as rx`.

The names below are looked up when they are first used, so that importing the package (or any of its
torch-free modules) never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frontend.backends import flush_cache, get_server_info, set_default_backend
    from .frontend.batch_items import ItemFailed
    from .frontend.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        total,
        unconditional_likelihood_normalized,
    )
    from .frontend.endpoint import RuntimeEndpoint
    from .frontend.errors import (
        BackendError,
        BranchFailed,
        Cancelled,
        InvalidCall,
        ProgramError,
        TimedOut,
        UnknownVariable,
        Unreachable,
        Unsupported,
    )
    from .frontend.expressions import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_bool,
        gen_float,
        gen_int,
        gen_string,
        image,
        plain,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
        video,
    )
    from .frontend.group import first, k_of_n, vote
    from .frontend.http_options import Retries
    from .frontend.openai import OpenAI
    from .frontend.program import Program, function, program
    from .frontend.report import CacheReport
    from .frontend.scripted import Scripted
    from .frontend.state import ProgramState
    from .frontend.types import Unreadable
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
    "BackendError",
    "BranchFailed",
    "CacheReport",
    "Cancelled",
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "Completion",
    "Engine",
    "EngineConfig",
    "EngineStopped",
    "InvalidCall",
    "InvalidConfig",
    "InvalidModel",
    "InvalidRequest",
    "ItemFailed",
    "ItemScore",
    "OpenAI",
    "Program",
    "ProgramError",
    "ProgramState",
    "Prompt",
    "RadixError",
    "Retries",
    "Runtime",
    "RuntimeEndpoint",
    "SamplingParams",
    "ScoreItem",
    "ScoredContinuation",
    "Scripted",
    "TimedOut",
    "TokenLogprob",
    "TooLarge",
    "UnknownVariable",
    "Unreachable",
    "Unreadable",
    "Unsupported",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "first",
    "flush_cache",
    "function",
    "gen",
    "gen_bool",
    "gen_float",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "k_of_n",
    "plain",
    "program",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "total",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
    "vote",
]

_HOME = {
    "CacheReport": ".frontend.report",
    "ChoicesDecision": ".frontend.choices",
    "ChoicesSamplingMethod": ".frontend.choices",
    "ItemFailed": ".frontend.batch_items",
    "Unreadable": ".frontend.types",
    "function": ".frontend.program",
    "program": ".frontend.program",
    "Program": ".frontend.program",
    "gen": ".frontend.expressions",
    "plain": ".frontend.expressions",
    "select": ".frontend.expressions",
    "gen_int": ".frontend.expressions",
    "gen_float": ".frontend.expressions",
    "gen_string": ".frontend.expressions",
    "gen_bool": ".frontend.expressions",
    "system": ".frontend.expressions",
    "user": ".frontend.expressions",
    "assistant": ".frontend.expressions",
    "system_begin": ".frontend.expressions",
    "system_end": ".frontend.expressions",
    "user_begin": ".frontend.expressions",
    "user_end": ".frontend.expressions",
    "assistant_begin": ".frontend.expressions",
    "assistant_end": ".frontend.expressions",
    "image": ".frontend.expressions",
    "video": ".frontend.expressions",
    "first": ".frontend.group",
    "k_of_n": ".frontend.group",
    "vote": ".frontend.group",
    "ProgramState": ".frontend.state",
    "set_default_backend": ".frontend.backends",
    "flush_cache": ".frontend.backends",
    "get_server_info": ".frontend.backends",
    "RuntimeEndpoint": ".frontend.endpoint",
    "OpenAI": ".frontend.openai",
    "Retries": ".frontend.http_options",
    "Scripted": ".frontend.scripted",
    "token_length_normalized": ".frontend.choices",
    "greedy_token_selection": ".frontend.choices",
    "unconditional_likelihood_normalized": ".frontend.choices",
    "total": ".frontend.choices",
    "ProgramError": ".frontend.errors",
    "BackendError": ".frontend.errors",
    "BranchFailed": ".frontend.errors",
    "Cancelled": ".frontend.errors",
    "InvalidCall": ".frontend.errors",
    "TimedOut": ".frontend.errors",
    "UnknownVariable": ".frontend.errors",
    "Unreachable": ".frontend.errors",
    "Unsupported": ".frontend.errors",
    "Runtime": ".runtime.sglang_runtime",
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
