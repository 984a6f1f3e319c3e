"""transformers as the peer: the same checkpoint by its own GGUF route, float32, and the two ways it is timed.

Nothing here uses our loader or our model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from radixlm.runtime.embedded import resolve_model
from testkit.exactness import load_gguf_reference


class Peer:
    """A loaded model. Texts go on past their end, so that every run has the asked length."""

    def __init__(self, model: str) -> None:
        self.path: Path = resolve_model(model)
        # Any: transformers' generate is not typed.
        self.model: Any = load_gguf_reference(self.path)

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """Greedy, as one batch padded on the left."""
        width = max(map(len, prompts))
        rows = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self.model.generate(
                rows, attention_mask=mask, do_sample=False, max_new_tokens=max_tokens, min_new_tokens=None
            )
        made: list[list[int]] = out[:, width:].tolist()
        assert all(len(tokens) == max_tokens for tokens in made), "every row has the asked length"
        return made

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """The log-probability of each of `tokens` after `prompt`, by one forward pass."""
        both = torch.tensor([[*prompt, *tokens]])
        with torch.inference_mode():
            logits = self.model(both).logits[0, len(prompt) - 1 : -1].float()
        rows = logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(list(tokens))]
        made: list[float] = rows.tolist()
        return made
