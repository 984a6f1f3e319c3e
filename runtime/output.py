"""OutputStream: from the tokens of one sequence to its text, its end and its events.

It owns what is particular to one sequence outside the scheduler: the detokenizer, the stop checker, the
random stream's key, its place in a grammar and the log-probabilities not yet delivered. It decides *how* a
sequence ends by its tokens (end of text, a stop id, a stop string, the end of its grammar, its length); that
it ends is carried out by the scheduler. Tokens that a grammar forces follow a sampled one at once, and their
log-probabilities a step later; then text and tokens are held back, so that an event tells them together.
What must hold: joined `text` of all events is the final text, and nothing after the terminal event.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from .detokenizer import IncrementalDetokenizer
from .errors import RequestFailed
from .guide import Guide
from .random_stream import stream_key
from .sampling import SampleRow
from .sequence import Sequence as Tokens
from .stops import StopChecker
from .tokenizer import Tokenizer
from .types import Event, FinishReason, Outcome, TokenLogprob


class OutputStream:
    """The output side of `seq`; `seed` is what its random numbers are drawn from, `max_length` the most
    tokens a sequence may have. `guide` is set before it starts, if it has a grammar, and `is_refused` if the
    one it asked for cannot be had; `waited` when its first step begins."""

    guide: Guide | None = None
    is_refused = False
    waited: float | None = None

    def __init__(
        self, seq: Tokens, tokenizer: Tokenizer, eos_ids: Collection[int], seed: int, max_length: int
    ) -> None:
        params = seq.request.sampling
        self._seq, self._params, self._seed = seq, params, seed
        self._eos_ids = eos_ids
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, after=seq.request.prompt_ids
        )
        self._stops = StopChecker(params.stop, params.stop_regex)
        self._room = min(params.max_tokens, max_length - seq.prompt_len)
        self._text: list[tuple[int, str]] = []  # pieces, each with how many tokens there were then
        self._whole: list[str] = []  # all pieces, where they are checked at the end
        self._output: list[int] = []
        self._told = 0  # how many of them earlier events had
        self._forced = 0
        self._logprobs: list[TokenLogprob] = []
        self._known_logprobs = 0
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
        mask = None if self.guide is None else self.guide.mask
        return SampleRow(self._params, prompt, self._output, self._eos_ids, key, choice, position, mask)

    @property
    def error(self) -> str | None:
        """Why it cannot go on."""
        return None if self.guide is None else self.guide.error

    @property
    def count(self) -> int:
        """How many tokens were generated."""
        return len(self._output)

    @property
    def unchecked(self) -> str | None:
        """The text of a sequence that has ended, where masks did not see to all that was asked for."""
        return "".join(self._whole) if self.guide is not None and self.guide.is_relaxed else None

    def add_prompt_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        self._prompt_logprobs += entries

    def add_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        """Of tokens that were generated and are not told yet."""
        self._logprobs += entries
        self._known_logprobs += len(entries)

    def begin(self) -> list[int]:
        """The tokens that a grammar forces before any is sampled."""
        if self.guide is None or self._params.prompt_logprobs_start is not None:
            return []
        forced = self._next_forced(to_the_end=False)
        for token in forced:
            finish = self._take(token)
            assert finish is None, "tokens forced at the beginning do not end a sequence"
        self._forced += len(forced)
        return forced

    def push(self, token: int, logprob: TokenLogprob | None) -> Outcome:
        """Take one sampled token and those that are forced behind it. Raises RequestFailed if a stop pattern
        takes too long or the grammar cannot go on."""
        if logprob is not None:
            self.add_logprobs([logprob])
        tokens, finish = [token], self._take(token)
        if self.guide is not None and finish is None:
            for forced in self._next_forced(to_the_end=self._params.logprobs is None):
                tokens.append(forced)
                self._forced += 1
                finish = self._take(forced)
                if finish is not None:
                    break
        return Outcome(self._seq.key, tuple(tokens), finish)

    def _next_forced(self, *, to_the_end: bool) -> list[int]:
        """Unless they may go `to_the_end`, the model must still be asked behind them: for a token at the
        beginning, for their log-probabilities later. Where a stop text might end them, that is not known."""
        assert self.guide is not None, "a grammar forces tokens"
        if not to_the_end and (self._params.stop or self._params.stop_regex):
            return []
        forced = self.guide.forced(self._room - len(self._output), to_the_end=to_the_end)
        if to_the_end:
            return forced
        return list(takewhile(lambda token: token not in self._params.stop_token_ids, forced))

    def _take(self, token: int) -> FinishReason | None:
        """One more token of the output, and whether it ends the sequence."""
        self._output.append(token)
        finish = self._finish_by_id(token)
        if finish is None and self.guide is not None:
            self.guide.accept(token)
        if finish is None:
            finish = self._push_text(token)
        if finish is None and self.guide is not None and self.guide.is_done:
            finish = "stop"
        if finish is None and len(self._output) >= self._params.max_tokens:
            finish = "length"
        return finish

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
            self._add_text(delta)
            return None
        return self._check(delta)

    def _add_text(self, piece: str) -> None:
        self._show(piece)
        if self.guide is not None and self.guide.is_relaxed:
            self._whole.append(piece)

    def _show(self, piece: str) -> None:
        self._text.append((len(self._output), piece))

    def _check(self, delta: str) -> FinishReason | None:
        if not delta:
            return None
        update = self._stops.push(delta)
        self._add_text(update.text)
        if update.matched is None:
            return None
        self._matched = update.matched
        if self._params.no_stop_trim:
            self._show(update.matched_text)
        return "stop"

    def event(self) -> Event:
        """News since the last event, of a sequence that goes on."""
        return self._event(None, None)

    def last_event(self, reason: FinishReason, error: str | None) -> Event:
        """The terminal event; text held back for a stop string that never came is released."""
        if isinstance(self._matched, int) and self._params.no_stop_trim:
            self._add_text(self._stops.finish())
            self._show(self._detokenizer.push((self._matched,)) + self._detokenizer.finish())
        elif not isinstance(self._matched, str):
            try:
                if self._check(self._detokenizer.finish()) is None:
                    self._add_text(self._stops.finish())
                elif reason == "length":
                    reason = "stop"
            except RequestFailed as failure:
                reason, error = "error", str(failure)
        return self._event(reason, error)

    def _event(self, reason: FinishReason | None, error: str | None) -> Event:
        seq = self._seq
        if seq.wants_values:
            self._tell_values()
        known = len(self._output) if self._params.logprobs is None else self._known_logprobs
        told = [piece for count, piece in self._text if count <= known]
        event = Event(
            request_id=seq.key.request_id,
            index=seq.key.choice,
            text="".join(told),
            token_ids=tuple(self._output[self._told : known]),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=tuple(self._prompt_logprobs),
            prompt_tokens=seq.prompt_len,
            cached_tokens=seq.cached_tokens,
            completion_tokens=len(self._output),
            computed_tokens=seq.computed_tokens,
            finish_reason=reason,
            matched_stop=self._matched,
            error=error,
            forced_tokens=self._forced,
            refused=self.is_refused,
            held_tokens=None if reason is None else seq.held_tokens,
            waited_s=self.waited,
        )
        del self._text[: len(told)]
        self._told = known
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
