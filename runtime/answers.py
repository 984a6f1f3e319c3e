"""Answer: one text put together from its events, with what is told of it beside. Pure.

Everything it tells is cumulative, so that it may be asked at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from .answer_meta import TokenText, finish_of, top_of, triple_of
from .text_parts import Ids, output_parts
from .tokenizer import Tokenizer
from .types import Event, Request, TokenLogprob


class Answer:
    """Of one choice of a request. `token_text`, where given, is the text that goes with log-probabilities."""

    def __init__(self, request: Request, token_text: TokenText | None = None) -> None:
        self._request = request
        self._token_text = token_text
        self._began = perf_counter()
        self._texts: list[str] = []
        self._ids: list[int] = []
        self._reports: dict[str, list[object]] = {
            f"{side}_{kind}_logprobs": [] for side in ("input", "output") for kind in ("token", "top")
        }
        self.last = Event(request.id, 0)

    def add(self, event: Event) -> None:
        self.last = event
        self._texts.append(event.text)
        self._ids += event.token_ids
        self._report("input", event.prompt_logprobs)
        self._report("output", event.logprobs)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def ids(self) -> Ids:
        return tuple(self._ids)

    @property
    def held_tokens(self) -> int | None:
        """How many are held; None if no hold was asked for."""
        return None if self._request.hint.hold_s is None else self.last.held_tokens or 0

    def parts(self, tokenizer: Tokenizer) -> tuple[str | Ids, ...]:
        """What continues the prompt with this text, see text_parts.py."""
        return output_parts(
            tokenizer,
            self.text,
            self.ids,
            self.last.matched_stop,
            after=self._request.prompt_ids,
            skip_special_tokens=self._request.sampling.skip_special_tokens,
        )

    def meta(self) -> dict[str, object]:
        """By SGLang's names."""
        last_id = self._ids[-1] if self._ids else None
        found: dict[str, object] = {
            "id": self._request.id,
            "finish_reason": finish_of(self.last, len(self._ids), last_id),
            "prompt_tokens": self.last.prompt_tokens,
            "completion_tokens": len(self._ids),
            "cached_tokens": self.last.cached_tokens,
            "forced_tokens": self.last.forced_tokens,
            "e2e_latency": perf_counter() - self._began,
        }
        if self.held_tokens is not None:
            found["held_tokens"] = self.held_tokens
        if self._request.sampling.logprobs is not None:
            found |= {name: list(values) for name, values in self._reports.items()}
            found["output_token_logprobs_length"] = len(self._reports["output_token_logprobs"])
        return found

    def _report(self, side: str, entries: Sequence[TokenLogprob]) -> None:
        named = self._token_text
        self._reports[f"{side}_token_logprobs"] += [triple_of(entry, named) for entry in entries]
        self._reports[f"{side}_top_logprobs"] += [top_of(entry, named) for entry in entries]
