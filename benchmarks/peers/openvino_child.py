"""OpenVINO GenAI behind the pipe: its continuous batching with prefix caching, on a GGUF file.

Runs in an environment that has openvino-genai. Requests are token ids, at most `concurrency` at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import openvino
import openvino_genai
from child import serve


class OpenVino:
    """A pipeline. Any: the library is not typed."""

    pipeline: Any

    def load(
        self, model: str, threads: int, properties: dict[str, object], cache_gb: int, chunk: int
    ) -> dict[str, object]:
        start = perf_counter()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = chunk
        asked = {"INFERENCE_NUM_THREADS": threads, **properties}
        self._open = partial(openvino_genai.ContinuousBatchingPipeline, model, scheduler, "CPU", asked)
        self.pipeline = self._open()
        return {
            "version": openvino_genai.__version__,
            "load_s": perf_counter() - start,
            "notes": {"inference precision": _precision(asked), "properties": properties},
        }

    def generate(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> dict[str, object]:
        start = perf_counter()
        done = self._run(prompts, _settings(max_tokens), concurrency)
        seconds = perf_counter() - start
        outputs = [list(one.generated_ids) for one in done]
        assert all(len(output) == max_tokens for output in outputs), "every row has the asked length"
        return {"seconds": seconds, "outputs": outputs}

    def stream(self, prompt: list[int], max_tokens: int) -> dict[str, object]:
        start, first = perf_counter(), None
        handle = self._add(0, prompt, _settings(max_tokens))
        output: list[int] = []
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            while handle.can_read():
                first = first or perf_counter() - start
                output += next(iter(handle.read().values())).generated_ids
        return {"first_s": first, "seconds": perf_counter() - start, "output": output}

    def score(self, items: list[dict[str, Any]]) -> dict[str, object]:
        """Each choice is a prompt, echoed with its log-probabilities but for what was found in the cache. So
        the cache is empty at first: a prompt that it holds whole has none."""
        self.pipeline = self._open()
        start = perf_counter()
        prompts = [[*item["prompt"], *choice] for item in items for choice in item["choices"]]
        settings = _settings(1)
        settings.echo, settings.logprobs = True, 1
        done = iter(self._run(prompts, settings, 16))
        logprobs = [[_sum_of(next(done), len(choice)) for choice in item["choices"]] for item in items]
        return {"seconds": perf_counter() - start, "logprobs": logprobs, "computed_tokens": None}

    def _run(self, prompts: Sequence[list[int]], settings: Any, concurrency: int) -> list[Any]:
        waiting = list(enumerate(prompts))[::-1]
        running: dict[int, Any] = {}
        done: list[Any] = [None] * len(prompts)
        while waiting or running:
            while waiting and len(running) < concurrency:
                index, prompt = waiting.pop()
                running[index] = self._add(index, prompt, settings)
            self.pipeline.step()
            for index, handle in list(running.items()):
                if handle.get_status().name == "FINISHED":
                    done[index] = handle.read_all()[0]
                    del running[index]
                elif handle.get_status().name != "RUNNING":
                    raise RuntimeError(f"request {index} ended as {handle.get_status().name}")
        return done

    def _add(self, index: int, prompt: list[int], settings: Any) -> Any:
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        return self.pipeline.add_request(index, ids, settings)


def _settings(max_tokens: int) -> Any:
    settings = openvino_genai.GenerationConfig()
    settings.max_new_tokens = settings.min_new_tokens = max_tokens
    settings.ignore_eos, settings.do_sample = True, False
    return settings


def _sum_of(done: Any, choice: int) -> float:
    """The last of the list is that of the generated token."""
    told = done.generated_log_probs[-choice - 1 : -1]
    if len(told) < choice:
        raise RuntimeError("a prompt that is cached whole has no log-probabilities")
    return float(sum(told))


def _precision(properties: dict[str, object]) -> str:
    """What a model compiled with the same properties reports; the pipeline does not show its own."""
    from openvino import opset13 as ops

    given = ops.parameter([1, 8], np.float32)
    model = openvino.Model([ops.relu(given)], [given], "one")
    compiled = openvino.Core().compile_model(model, "CPU", dict(properties))
    shown = {
        name: compiled.get_property(name)
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
    }
    return ", ".join(
        f"{name} {value.get_type_name() if hasattr(value, 'get_type_name') else value}"
        for name, value in shown.items()
    )


if __name__ == "__main__":
    peer = OpenVino()
    serve({name: getattr(peer, name) for name in ("load", "generate", "stream", "score")})
