"""What transformers' `generate` says in float32, and where another run must say the same.

A step counts while transformers' own two best logits stand clearly apart: nearer than TIE, float32 itself
does not decide, and what follows is another text. So a prompt counts up to its first such step, and not
beyond. End-of-text ids are ignored: both sides go on to the asked number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from radixlm.runtime.types import Completion, TokenLogprob

TIE = 1e-3


@dataclass(frozen=True, slots=True)
class Reference:
    """A greedy continuation; margins[i] is the distance of the two best logits of step i."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]

    @property
    def counted(self) -> int:
        """How many steps count: those before the first near tie."""
        return next((i for i, margin in enumerate(self.margins) if margin < TIE), len(self.margins))

    def first_difference(self, tokens: Sequence[int]) -> int | None:
        """The first counted step at which `tokens` has something else, or nothing. None: they agree."""
        for i, token in enumerate(self.tokens[: self.counted]):
            if i >= len(tokens) or tokens[i] != token:
                return i
        return None


def load_gguf_reference(path: Path) -> PreTrainedModel:
    """transformers' own way from a GGUF file to a float32 model; ours is not involved."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return without_end(model)


def without_end(model: PreTrainedModel) -> PreTrainedModel:
    """The model, which from now on generates past any end of text."""
    settings: Any = model.generation_config  # typed as optional, and always there for a causal model
    settings.eos_token_id = None
    settings.pad_token_id = 0
    return model


def reference(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> Reference:
    """One prompt by itself, without padding. `model` is one of `without_end`."""
    generate: Any = model.generate
    with torch.inference_mode():
        out = generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=max_tokens,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.stack([step[0].float().topk(2).values for step in out.logits])
    return Reference(
        tokens=tuple(out.sequences[0, len(prompt) :].tolist()),
        margins=tuple((best[:, 0] - best[:, 1]).tolist()),
    )


def counted_share(references: Sequence[Reference]) -> float:
    """The share of all steps that count; near 1, or a comparison says little."""
    return sum(r.counted for r in references) / sum(len(r.margins) for r in references)


def differences(references: Sequence[Reference], completions: Sequence[Completion]) -> list[str]:
    """One line for each prompt that differs in a step that counts."""
    lines = []
    for i, (expected, got) in enumerate(zip(references, completions, strict=True)):
        at = expected.first_difference(got.output_ids)
        if got.error is not None:
            lines.append(f"prompt {i}: {got.error}")
        elif at is not None:
            wanted, found = expected.tokens[at : at + 3], got.output_ids[at : at + 3]
            lines.append(f"prompt {i} differs at step {at}: {found}, not {wanted}")
    return lines


def logprob_differences(expected: Sequence[Completion], completions: Sequence[Completion]) -> list[str]:
    """One line for each completion whose tokens or log-probabilities differ in a single bit."""
    lines = []
    for i, (one, other) in enumerate(zip(expected, completions, strict=True)):
        if one.output_ids != other.output_ids:
            lines.append(f"prompt {i}: other tokens")
        elif one.logprobs != other.logprobs:
            lines.append(f"prompt {i}: {_first_unequal(one.logprobs, other.logprobs)}")
    return lines


def _first_unequal(one: Sequence[TokenLogprob], other: Sequence[TokenLogprob]) -> str:
    for step, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return f"step {step} has {b.logprob!r} {b.top}, not {a.logprob!r} {a.top}"
    return f"{len(other)} log-probabilities, not {len(one)}"
