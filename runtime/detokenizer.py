"""IncrementalDetokenizer: turns token ids into text piece by piece, never half a character.

Joined deltas equal `Tokenizer.decode` of all ids, exactly, and a token costs the same however long the
text is. Two ways, chosen by how the tokenizer decodes:

- byte-level: every token stands for fixed bytes, which run through an incremental UTF-8 decoder;
- all others: what a token adds can depend on its neighbours, so a small window is decoded again. The
  window is the group of tokens that gave the last text (the context) plus those that came since; what
  the whole gives beyond the context alone is new. The context keeps a leading space from being
  stripped as if the text began there.

Knows nothing of stop strings; those work on the text that comes out here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from .tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer:
    """One answer's text. Special tokens leave no text unless `skip_special_tokens` is False.

    `after` are the ids the answer continues (the prompt; only the last ordinary one is looked at). With
    them a first token that begins with a space keeps it, so that prompt text + answer text is the text
    of both; without them tokenizers that strip the first space of a text strip it here as well.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, after: Sequence[int] = ()
    ) -> None:
        skipped: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._stream: _ByteStream | _WindowStream
        if tokenizer.decoding == "byte-level":
            self._stream = _ByteStream(tokenizer, skipped)
        else:
            self._stream = _WindowStream(tokenizer, skipped, after)

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that these ids complete: whole characters that no later token can change."""
        return self._stream.push(token_ids)

    def finish(self) -> str:
        """The rest, once no token will follow: bytes that make no character become U+FFFD."""
        return self._stream.finish()


class _ByteStream:
    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        skipped, token_bytes = self._skipped, self._token_bytes
        return self._utf8.decode(b"".join([token_bytes(i) for i in token_ids if i not in skipped]))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowStream:
    """decode(context + pending) minus decode(context) is what `pending` adds.

    A run of byte pieces (<0xE2><0x82>...) is one unit to such tokenizers: one bad byte spoils the whole
    run, so nothing of it is sure until an ordinary token ends it. A context therefore always ends with
    an ordinary token, and no run is ever split over two windows.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int], after: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._context = _last_ordinary(tokenizer, skipped, after)
        self._known = self._decode(self._context)
        self._pending: list[int] = []

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        text = self._decode(self._context + self._pending)[len(self._known) :]
        self._context, self._known, self._pending = self._pending, "", []
        return text

    def _push_one(self, token_id: int) -> str:
        piece = self._tokenizer.piece(token_id)
        if token_id in self._skipped or piece is None:
            return ""
        self._pending.append(token_id)
        if self._tokenizer.is_byte_piece(piece):
            return ""
        text = self._decode(self._context + self._pending)
        if len(text) == len(self._known) or not text.startswith(self._known) or self._is_cut(text):
            return ""
        delta = text[len(self._known) :]
        self._context, self._pending = self._pending, []
        self._known = self._decode(self._context)
        return delta

    def _is_cut(self, text: str) -> bool:
        """Whether the last character may be half a one: only where bytes hide in ordinary pieces."""
        return self._tokenizer.decoding == "other" and text.endswith(_REPLACEMENT)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""


def _last_ordinary(tokenizer: Tokenizer, skipped: frozenset[int], ids: Sequence[int]) -> list[int]:
    for token_id in reversed(ids):
        piece = tokenizer.piece(token_id)
        if token_id not in skipped and piece is not None and not tokenizer.is_byte_piece(piece):
            return [token_id]
    return []
