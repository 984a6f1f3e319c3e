"""NativeAnswer: one text of POST /generate from its events, as the JSON that clients of SGLang read. Pure.

Everything in it is cumulative, so that a chunk of a stream and the whole reply are the same object at
different times. It is kept as it is written: each chunk of a long stream writes what is new and copies the
rest. Log-probabilities are triples of value, token id and, where it was asked for, the text of the token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Event, TokenLogprob
from .replies import dumped

Triple = tuple[float | None, int, str | None]
TokenText = Callable[[int], str]

_SLICE = 1000
"""Log-probabilities that are written in one go: between slices other threads have their turn."""


class NativeAnswer:
    """`token_text`, where given, is the text that goes with each log-probability. With `null_first` the first
    token of the prompt that is reported has no value, as in SGLang."""

    def __init__(
        self, rid: str, *, reports: bool, token_text: TokenText | None = None, null_first: bool = False
    ) -> None:
        self._rid = rid
        self._reports = reports
        self._token_text = token_text
        self._null_first = null_first
        self._text = bytearray()
        self._ids = _Listing()
        self._last_id: int | None = None
        self._input, self._input_top = _Listing(), _Listing()
        self._output, self._output_top = _Listing(), _Listing()
        self._last = Event(rid, 0)

    def add(self, event: Event) -> None:
        """Takes a while for many log-probabilities; may run on any thread."""
        self._last = event
        self._text += dumped(event.text)[1:-1]
        self._ids.extend(event.token_ids)
        if event.token_ids:
            self._last_id = event.token_ids[-1]
        prompt = event.prompt_logprobs
        if self._null_first and prompt and not self._input.count:
            prompt = (TokenLogprob(prompt[0].token_id, None), *prompt[1:])
        self._report(prompt, self._input, self._input_top)
        self._report(event.logprobs, self._output, self._output_top)

    def written(self, e2e_latency: float, index: int | None = None) -> bytes:
        """The answer so far, after so many seconds. `index` is its place among those of a stream."""
        meta = {
            "id": self._rid,
            "finish_reason": self.finish,
            "prompt_tokens": self._last.prompt_tokens,
            "completion_tokens": self._ids.count,
            "cached_tokens": self._last.cached_tokens,
            "e2e_latency": e2e_latency,
        }
        place = b"" if index is None else b',"index":%d' % index
        text = (b'{"text":"', self._text, b'","output_ids":[', self._ids.items, b"]", place)
        return b"".join((*text, b',"meta_info":', dumped(meta)[:-1], *self._written_reports(), b"}}"))

    @property
    def finish(self) -> dict[str, object] | None:
        """Why it ended, None while it goes on."""
        reason = self._last.finish_reason
        if reason is None:
            return None
        if reason == "stop":
            matched = (
                self._last.matched_stop
            )  # None at the end of a grammar, which its last token brings about
            return {"type": "stop", "matched": self._last_id if matched is None else matched}
        if reason == "length":
            return {"type": "length", "length": self._ids.count}
        return {"type": "abort", "message": self._last.error or "the request was aborted"}

    def _written_reports(self) -> tuple[bytes | bytearray, ...]:
        """More fields of meta_info."""
        if not self._reports:
            return ()
        return (
            b',"input_token_logprobs":[',
            self._input.items,
            b'],"output_token_logprobs":[',
            self._output.items,
            b'],"output_token_logprobs_length":%d' % self._output.count,
            b',"input_top_logprobs":[',
            self._input_top.items,
            b'],"output_top_logprobs":[',
            self._output_top.items,
            b"]",
        )

    def _report(self, entries: Sequence[TokenLogprob], values: _Listing, tops: _Listing) -> None:
        for start in range(0, len(entries), _SLICE):
            part = entries[start : start + _SLICE]
            values.extend([self._triple(entry.logprob, entry.token_id) for entry in part])
            tops.extend([self._top(entry) for entry in part])

    def _top(self, entry: TokenLogprob) -> list[Triple] | None:
        """None where nothing was predicted, or where no alternatives are wanted."""
        if entry.logprob is None or not entry.top:
            return None
        return [self._triple(logprob, token) for token, logprob in entry.top]

    def _triple(self, logprob: float | None, token: int) -> Triple:
        return (logprob, token, None if self._token_text is None else self._token_text(token))


class _Listing:
    """A list that grows at its end: `items` is its JSON, without the brackets."""

    def __init__(self) -> None:
        self.count = 0
        self.items = bytearray()

    def extend(self, items: Sequence[object]) -> None:
        if items:
            self.items += (b"," if self.count else b"") + dumped(items)[1:-1]
            self.count += len(items)
