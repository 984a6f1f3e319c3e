"""What SGLang's clients are told of an answer beside its text: how it ended, log-probabilities as triples.

The same over HTTP and in process. A triple is a value, a token id and, where it was asked for, the text of
the token. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from .types import Event, TokenLogprob

Triple = tuple[float | None, int, str | None]
TokenText = Callable[[int], str]


def finish_of(last: Event, count: int, last_id: int | None) -> dict[str, object] | None:
    """Why an answer of `count` tokens ended, None while it goes on. `last` is its last event so far,
    `last_id` its last token: at the end of a grammar, that token brought the end about."""
    reason = last.finish_reason
    if reason is None:
        return None
    if reason == "stop":
        return {"type": "stop", "matched": last_id if last.matched_stop is None else last.matched_stop}
    if reason == "length":
        return {"type": "length", "length": count}
    return {"type": "abort", "message": last.error or "the request was aborted"}


def triple_of(entry: TokenLogprob, text: TokenText | None) -> Triple:
    return _triple(entry.logprob, entry.token_id, text)


def top_of(entry: TokenLogprob, text: TokenText | None) -> list[Triple] | None:
    """None where nothing was predicted, or where no alternatives are wanted."""
    if entry.logprob is None or not entry.top:
        return None
    return [_triple(logprob, token, text) for token, logprob in entry.top]


def _triple(logprob: float | None, token: int, text: TokenText | None) -> Triple:
    return (logprob, token, None if text is None else text(token))
