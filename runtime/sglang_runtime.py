"""Runtime: an engine under the name and with the options of SGLang's in-process runtime, for its programs.

Options that mean the same here are translated; one that means nothing here is refused, never ignored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .config import EngineConfig
from .engine import Engine, ModelName
from .engine_backend import EngineBackend
from .errors import InvalidConfig
from .sampling_params import SamplingParams
from .text import quote

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

T = TypeVar("T")


class Runtime:
    """`Runtime(model_path="smollm2-135m", ...)`: options are those of Engine, or SGLang's spellings of them.
    Raises InvalidConfig and InvalidModel. `endpoint` is what programs run on."""

    def __init__(self, model_path: ModelName | None = None, **options: object) -> None:
        fields = _fields(options)
        if model_path is not None and "model" in fields:
            raise InvalidConfig("model_path and model are the same option, give one of them")
        self._engine = Engine(model_path, **fields)
        self.endpoint: EngineBackend = self._engine.endpoint

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, object] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> str:
        """A reply of /generate as JSON text: a list for several prompts or choices."""
        options = dict(sampling_params or {})
        if return_logprob:
            start = None if logprob_start_len in (None, -1) else logprob_start_len
            options |= {"logprobs": top_logprobs_num or 0, "prompt_logprobs_start": start}
        params = SamplingParams.from_mapping(options)
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        found = _wait(lambda: self._generate(prompts, params))
        return json.dumps(found[0] if isinstance(prompt, str) and params.n == 1 else found)

    def flush_cache(self) -> None:
        """Forget what is cached. Raises InvalidCall while anything runs."""
        _wait(self.endpoint.flush)

    def get_server_info(self) -> dict[str, object]:
        """What is served, and figures."""
        return dict(_wait(self.endpoint.info))

    def get_tokenizer(self) -> PreTrainedTokenizerFast:
        """transformers' own, which must not be changed."""
        return self._engine.tokenizer.hugging_face

    def shutdown(self) -> None:
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def _generate(self, prompts: Sequence[str], params: SamplingParams) -> list[dict[str, object]]:
        found = await asyncio.gather(*(self.endpoint.answers((text,), params) for text in prompts))
        return [
            {"text": answer.text, "output_ids": answer.ids, "meta_info": answer.meta()}
            for answers in found
            for answer in answers
        ]


_SPELLINGS = {
    "model_path": "model",
    "random_seed": "seed",
    "context_length": "max_context",
    "max_running_requests": "max_running",
    "chunked_prefill_size": "chunk_size",
}
_POLICIES = {"lpm": "cache-aware", "dfs-weight": "cache-aware", "fcfs": "fcfs"}
_INSTEAD = {
    "mem_fraction_static": "kv_memory says how many bytes keys and values may take",
    "tokenizer_path": "the tokenizer is the model's own",
    "chat_template": "the chat template is the model's own",
    "tp_size": "a model is not split",
    "dp_size": "a model is not split",
    "log_level": "nothing is logged",
    "port": "it serves no network; radixlm serve does",
    "host": "it serves no network; radixlm serve does",
}


def _fields(options: Mapping[str, object]) -> dict[str, Any]:  # Any: each is checked by EngineConfig
    """Options of an engine from both spellings."""
    found: dict[str, object] = {}
    for name, value in options.items():
        field, meant = _SPELLINGS.get(name, name), value
        if name == "schedule_policy":
            if value not in _POLICIES:
                raise InvalidConfig(f"{name} must be one of {', '.join(_POLICIES)}, got {quote(value)}")
            field, meant = "policy", _POLICIES[str(value)]
        elif name == "disable_radix_cache":
            if not isinstance(value, bool):
                raise InvalidConfig(f"{name} must be true or false, got {quote(value)}")
            field, meant = "prefix_cache", not value
        elif name in _INSTEAD:
            raise InvalidConfig(f"{name} has no meaning here: {_INSTEAD[name]}; got {quote(value)}")
        elif field not in EngineConfig.__dataclass_fields__:
            raise InvalidConfig(
                f"{name} has no meaning here, got {quote(value)}; see EngineConfig for options"
            )
        if field in found:
            raise InvalidConfig(f"{name} says the same as an option before it: {field}")
        found[field] = meant
    return found


def _wait(work: Callable[[], Coroutine[Any, Any, T]]) -> T:  # Any: what a coroutine sends is of no meaning
    """What comes of a coroutine, in a loop of its own; also where the caller is in a loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="radixlm-runtime") as threads:
        return threads.submit(lambda: asyncio.run(work())).result()
