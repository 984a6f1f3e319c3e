"""transformers behind the pipe, in float32 by its own GGUF route: padded batches and its continuous batching.

Nothing of ours takes part: no loader, no model, no setting of threads but their number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "lib"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import transformers
from child import Unavailable, serve

from testkit.exactness import load_gguf_reference

BATCH = 8
"""Rows of one forward pass when prompts are scored."""
ROWS = 16
"""Rows at once of a continuous batch."""


class Transformers:
    """A loaded model. Any: neither `generate` nor a model is typed."""

    model: Any

    def load(self, model: str, threads: int, continuous: bool) -> dict[str, object]:
        start = perf_counter()
        torch.set_num_threads(threads)
        self.model = load_gguf_reference(Path(model))
        self.continuous = continuous
        if continuous:
            self._try_continuous()
        return {
            "version": transformers.__version__,
            "load_s": perf_counter() - start,
            "notes": {"torch": torch.__version__, "attention": self.model.config._attn_implementation},
        }

    def _try_continuous(self) -> None:
        if not hasattr(self.model, "generate_batch"):
            raise Unavailable("this version has no generate_batch")
        try:
            self._generate_batch([[1, 2, 3]], 2)
        except Exception as error:
            raise Unavailable(f"generate_batch: {type(error).__name__}: {error}") from error

    def generate(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> dict[str, object]:
        """`concurrency` rows at once: padded batch after batch, or as one continuous batch, which has its own
        limit of rows."""
        start = perf_counter()
        if self.continuous:
            outputs = self._generate_batch(prompts, max_tokens)
        else:
            outputs = []
            for first in range(0, len(prompts), concurrency):
                outputs += self._generate_padded(prompts[first : first + concurrency], max_tokens)
        seconds = perf_counter() - start
        assert all(len(output) == max_tokens for output in outputs), "every row has the asked length"
        return {"seconds": seconds, "outputs": outputs}

    def stream(self, prompt: list[int], max_tokens: int) -> dict[str, object]:
        clock = FirstToken()
        start = perf_counter()
        output = self._generate_padded([prompt], max_tokens, streamer=clock)[0]
        return {"first_s": clock.at[1] - start, "seconds": perf_counter() - start, "output": output}

    def score(self, items: list[dict[str, Any]]) -> dict[str, object]:
        """One forward pass a batch of prompts of similar length, padded on the left. Choices of one token
        each come from the same row; longer ones are rows of their own."""
        start = perf_counter()
        rows: list[tuple[int, int, list[int], list[int]]] = []
        for index, item in enumerate(items):
            if all(len(choice) == 1 for choice in item["choices"]):
                rows.append((index, -1, item["prompt"], [choice[0] for choice in item["choices"]]))
            else:
                rows += [(index, i, item["prompt"], choice) for i, choice in enumerate(item["choices"])]
        logprobs: list[list[float]] = [[0.0] * len(item["choices"]) for item in items]
        rows.sort(key=lambda row: len(row[2]))
        for first in range(0, len(rows), BATCH):
            self._score_rows(rows[first : first + BATCH], logprobs)
        computed = sum(len(row[2]) for row in rows)
        return {"seconds": perf_counter() - start, "logprobs": logprobs, "computed_tokens": computed}

    def _score_rows(
        self, rows: list[tuple[int, int, list[int], list[int]]], logprobs: list[list[float]]
    ) -> None:
        texts = [prompt if i < 0 else [*prompt, *choice[:-1]] for _, i, prompt, choice in rows]
        keep = max(1 if i < 0 else len(choice) for _, i, _, choice in rows)
        ids, mask = _padded(texts)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.inference_mode():
            out = self.model(ids, attention_mask=mask, position_ids=positions, logits_to_keep=keep)
            found = out.logits.float().log_softmax(-1)
        for row, (index, i, _, choice) in zip(found, rows, strict=True):
            if i < 0:
                logprobs[index] = row[-1, choice].tolist()
            else:
                steps = row[len(row) - len(choice) :]
                logprobs[index][i] = steps[torch.arange(len(choice)), choice].sum().item()

    def _generate_padded(
        self, prompts: Sequence[list[int]], max_tokens: int, **extra: object
    ) -> list[list[int]]:
        ids, mask = _padded(prompts)
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, **extra
            )
        made: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return made

    def _generate_batch(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """One manager serves all calls: its pages outlive them. By default it takes most of the memory."""
        settings = transformers.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        limits = transformers.ContinuousBatchingConfig(
            page_size=32, num_blocks=1024, max_batch_tokens=512, max_requests_per_batch=ROWS
        )
        with torch.inference_mode():
            done = self.model.generate_batch(
                prompts, settings, limits, persistent_manager=True, max_new_tokens=max_tokens
            )
        outputs = [list(one.generated_tokens) for one in done.values()]
        assert len(outputs) == len(prompts), "every prompt has an answer"
        return outputs


class FirstToken:
    """A streamer that only looks at the clock: the prompt comes first, then each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: object) -> None:
        self.at.append(perf_counter())

    def end(self) -> None:
        pass


def _padded(prompts: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


if __name__ == "__main__":
    peer = Transformers()
    serve({name: getattr(peer, name) for name in ("load", "generate", "stream", "score")})
