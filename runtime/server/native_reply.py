"""NativeAnswer: one text of POST /generate from its events, as the JSON that clients of SGLang read. Pure.

Everything in it is cumulative, so that a chunk of a stream and the whole reply are the same object at
different times. It is kept as it is written: each chunk of a long stream writes what is new and copies the
rest. A prompt that came in parts is answered in parts too, in the last chunk of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..answer_meta import TokenText, finish_of, top_of, triple_of
from ..text_parts import Ids
from ..types import Event, TokenLogprob
from .replies import dumped

FindParts = Callable[[str, Ids, int | str | None], tuple[str | Ids, ...]]

_SLICE = 1000
"""Log-probabilities that are written in one go: between slices other threads have their turn."""


class NativeAnswer:
    """`token_text`, where given, is the text that goes with each log-probability. With `null_first` the first
    token of the prompt that is reported has no value, as in SGLang. `find_parts`, where given, makes parts of
    a whole text, its ids and what stopped it. With `holds` it is told how much is held."""

    def __init__(
        self,
        rid: str,
        *,
        reports: bool,
        token_text: TokenText | None = None,
        null_first: bool = False,
        find_parts: FindParts | None = None,
        holds: bool = False,
    ) -> None:
        self._rid = rid
        self._reports = reports
        self._token_text = token_text
        self._null_first = null_first
        self._find_parts = find_parts
        self._holds = holds
        self._news: list[Event] = []  # all of them, where parts are to be made of them
        self._text = bytearray()
        self._ids = _Listing()
        self._last_id: int | None = None
        self._input, self._input_top = _Listing(), _Listing()
        self._output, self._output_top = _Listing(), _Listing()
        self._last = Event(rid, 0)

    def add(self, event: Event) -> None:
        """Takes a while for many log-probabilities; may run on any thread."""
        self._last = event
        if self._find_parts is not None:
            self._news.append(replace(event, logprobs=(), prompt_logprobs=()))
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
        if self._find_parts is not None:
            meta["forced_tokens"] = self._last.forced_tokens
        if self._holds:
            meta["held_tokens"] = self._last.held_tokens or 0
        place = b"" if index is None else b',"index":%d' % index
        text = (b'{"text":"', self._text, b'","output_ids":[', self._ids.items, b"]", self._written_parts())
        return b"".join((*text, place, b',"meta_info":', dumped(meta)[:-1], *self._written_reports(), b"}}"))

    @property
    def finish(self) -> dict[str, object] | None:
        """Why it ended, None while it goes on."""
        return finish_of(self._last, self._ids.count, self._last_id)

    def _written_parts(self) -> bytes:
        if self._find_parts is None or self._last.finish_reason is None:
            return b""
        text = "".join(event.text for event in self._news)
        ids = tuple(token for event in self._news for token in event.token_ids)
        return b',"output_parts":%b' % dumped(self._find_parts(text, ids, self._last.matched_stop))

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
            values.extend([triple_of(entry, self._token_text) for entry in part])
            tops.extend([top_of(entry, self._token_text) for entry in part])


class _Listing:
    """A list that grows at its end: `items` is its JSON, without the brackets."""

    def __init__(self) -> None:
        self.count = 0
        self.items = bytearray()

    def extend(self, items: Sequence[object]) -> None:
        if items:
            self.items += (b"," if self.count else b"") + dumped(items)[1:-1]
            self.count += len(items)
