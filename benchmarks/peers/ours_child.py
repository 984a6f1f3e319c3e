"""Ours behind the same pipe as the peers: the engine in a process of its own, stepped as a server would.

What only the engine can tell (single steps, its own counters) has commands of its own at the end.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from child import Unavailable, serve
from common import MODEL
from engine_runs import decode_steps, difference, fixed_length

import radixlm
from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.score_items import ScoreItem
from radixlm.runtime.types import Event, Request


class Ours:
    """An engine, which `load` opens again with other options."""

    engine: Engine | None = None

    def load(self, threads: int, options: dict[str, object]) -> dict[str, object]:
        start = perf_counter()
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        try:
            self.engine = Engine(MODEL, threads=threads, **options)
        except InvalidConfig as error:
            raise Unavailable(str(error)) from error
        shape, info = self.engine.model_config, self.engine.info()
        parameters = {name: list(size) for name, size in shape.parameter_shapes().items()}
        linear = sum(size[0] * size[1] for size in parameters.values() if len(size) == 2)
        return {
            "version": radixlm.__version__,
            "load_s": perf_counter() - start,
            "notes": {
                **asdict(info),
                "matrix_parameters": linear,  # the head is the embedding
                "layer_parameters": linear - shape.vocab_size * shape.hidden_size,
                "kv_values_a_token": 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim,
                "attention_operations_a_pair": 4 * shape.num_layers * shape.num_heads * shape.head_dim,
            },
        }

    def generate(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> dict[str, object]:
        """The engine knows at most `concurrency` requests at a time, as from a client's pool."""
        engine = self._engine()
        start = perf_counter()
        waiting = list(enumerate(prompts))[::-1]
        outputs: list[list[int]] = [[] for _ in prompts]
        running = 0
        while waiting or running:
            while waiting and running < concurrency:
                index, prompt = waiting.pop()
                engine.add(Request(str(index), tuple(prompt), fixed_length(max_tokens)))
                running += 1
            for event in engine.step():
                outputs[int(event.request_id)] += event.token_ids
                running -= _ended(event)
        seconds = perf_counter() - start
        assert all(len(output) == max_tokens for output in outputs), "every row has the asked length"
        return {"seconds": seconds, "outputs": outputs}

    def stream(self, prompt: list[int], max_tokens: int) -> dict[str, object]:
        engine = self._engine()
        start, first = perf_counter(), None
        engine.add(Request("stream", tuple(prompt), fixed_length(max_tokens)))
        output: list[int] = []
        while engine.has_work:
            for event in engine.step():
                output += event.token_ids
                if first is None and event.token_ids:
                    first = perf_counter() - start
                _ended(event)
        return {"first_s": first, "seconds": perf_counter() - start, "output": output}

    def score(self, items: list[dict[str, Any]]) -> dict[str, object]:
        engine = self._engine()
        engine.flush()
        wanted = [ScoreItem(item["prompt"], item["choices"]) for item in items]
        start = perf_counter()
        results = engine.score(wanted)
        seconds = perf_counter() - start
        refused = [result.error for result in results if result.error is not None]
        assert not refused, f"every item can be scored, got {refused[:1]}"
        return {
            "seconds": seconds,
            "logprobs": [[choice.logprob for choice in result.continuations] for result in results],
            "computed_tokens": sum(result.computed_tokens for result in results),
        }

    # -- what only ours is asked -------------------------------------------------------------------

    def flush(self) -> int:
        return self._engine().flush()

    def decode_step(self, prompts: list[list[int]], steps: int) -> dict[str, object]:
        """Seconds of steps in which every row decodes, and the share the engine's host work took."""
        done = decode_steps(self._engine(), [tuple(prompt) for prompt in prompts], steps)
        return {"seconds": done.seconds, "counted": done.counted}

    def batch(self, prompts: list[list[int]], max_tokens: int) -> dict[str, object]:
        """The whole of `Engine.generate`, with what the engine counted."""
        engine = self._engine()
        engine.flush()
        before = engine.stats()
        start = perf_counter()
        engine.generate([tuple(prompt) for prompt in prompts], fixed_length(max_tokens))
        return {"seconds": perf_counter() - start, "counted": difference(before, engine.stats())}

    def _engine(self) -> Engine:
        assert self.engine is not None, "an engine is loaded before it is asked"
        return self.engine


def _ended(event: Event) -> bool:
    if event.error is not None:
        raise RuntimeError(f"request {event.request_id}: {event.error}")
    return event.finish_reason is not None


if __name__ == "__main__":
    peer = Ours()
    names = ("load", "generate", "stream", "score", "flush", "decode_step", "batch")
    serve({name: getattr(peer, name) for name in names})
