"""OutputStream: from the tokens of one sequence to its text, its end and its events.

It owns what is particular to one sequence outside the scheduler: the detokenizer, the stop checker, the
random stream's key and the log-probabilities not yet delivered. It decides *how* a sequence ends by its
tokens (end of text, a stop id, a stop string, its length); that it ends is carried out by the scheduler.
What must hold: joined `text` of all events is the final text, and nothing after the terminal event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .detokenizer import IncrementalDetokenizer
from .errors import RequestFailed
from .random_stream import stream_key
from .sampling import SampleRow
from .sequence import Sequence as Tokens
from .stops import StopChecker
from .tokenizer import Tokenizer
from .types import Event, FinishReason, Outcome, TokenLogprob


class OutputStream:
    """The output side of `seq`; `seed` is what its random numbers are drawn from."""

    def __init__(self, seq: Tokens, tokenizer: Tokenizer, eos_ids: Collection[int], seed: int) -> None:
        params = seq.request.sampling
        self._seq, self._params, self._seed = seq, params, seed
        self._eos_ids = eos_ids
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, after=seq.request.prompt_ids
        )
        self._stops = StopChecker(params.stop, params.stop_regex)
        self._text: list[str] = []
        self._output: list[int] = []
        self._told = 0  # how many of them earlier events had
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] = []
        self._next_value = seq.first_value  # the position whose value is told next
        self._matched: int | str | None = None
        if params.prompt_logprobs_start == 0:
            self._prompt_logprobs.append(TokenLogprob(seq.tokens[0], None))

    def sample_row(self) -> SampleRow:
        """What sampling the next token needs to know."""
        seq = self._seq
        key, prompt = stream_key(self._seed, ()), seq.request.prompt_ids
        choice, position = seq.key.choice, len(seq.tokens)
        return SampleRow(self._params, prompt, self._output, self._eos_ids, key, choice, position)

    def add_prompt_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        self._prompt_logprobs += entries

    def push(self, token: int, logprob: TokenLogprob | None) -> Outcome:
        """Take one sampled token. Raises RequestFailed if a stop pattern takes too long."""
        self._output.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        finish = self._finish_by_id(token)
        if finish is None:
            finish = self._push_text(token)
        if finish is None and len(self._output) >= self._params.max_tokens:
            finish = "length"
        return Outcome(self._seq.key, (token,), finish)

    def _finish_by_id(self, token: int) -> FinishReason | None:
        if token in self._params.stop_token_ids:
            self._matched = token
            return "stop"
        if token in self._eos_ids and not self._params.ignore_eos:
            self._matched = token
            return "stop"
        return None

    def _push_text(self, token: int) -> FinishReason | None:
        delta = self._detokenizer.push((token,))
        if len(self._output) < self._params.min_tokens:
            self._text.append(delta)
            return None
        return self._check(delta)

    def _check(self, delta: str) -> FinishReason | None:
        if not delta:
            return None
        update = self._stops.push(delta)
        self._text.append(update.text)
        if update.matched is None:
            return None
        self._matched = update.matched
        return "stop"

    def event(self) -> Event:
        """News since the last event, of a sequence that goes on."""
        return self._event(None, None)

    def last_event(self, reason: FinishReason, error: str | None) -> Event:
        """The terminal event; text held back for a stop string that never came is released."""
        if isinstance(self._matched, str):
            return self._event(reason, error)
        try:
            if self._check(self._detokenizer.finish()) is None:
                self._text.append(self._stops.finish())
            elif reason == "length":
                reason = "stop"
        except RequestFailed as failure:
            reason, error = "error", str(failure)
        return self._event(reason, error)

    def _event(self, reason: FinishReason | None, error: str | None) -> Event:
        seq = self._seq
        if seq.wants_values:
            self._tell_values()
        event = Event(
            request_id=seq.key.request_id,
            index=seq.key.choice,
            text="".join(self._text),
            token_ids=tuple(self._output[self._told :]),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
            prompt_tokens=seq.prompt_len,
            cached_tokens=seq.cached_tokens,
            completion_tokens=len(self._output),
            computed_tokens=seq.computed_tokens,
            finish_reason=reason,
            matched_stop=self._matched,
            error=error,
        )
        self._text.clear()
        self._told = len(self._output)
        self._logprobs.clear()
        self._prompt_logprobs.clear()
        return event

    def _tell_values(self) -> None:
        """What the sequence has learnt of its prompt since the last event, computed or found."""
        seq, top = self._seq, self._params.logprobs or 0
        values = seq.known_run(self._next_value, seq.prompt_len)
        tokens = seq.tokens[self._next_value : self._next_value + len(values)]
        self._prompt_logprobs += [
            value.entry(token, top) for token, value in zip(tokens, values, strict=True)
        ]
        self._next_value += len(values)
