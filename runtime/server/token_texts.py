"""Tokens as clients see them: a text for each, its bytes, and the character at which it begins.

A text of one token is for people and for keys of objects: different tokens should have different ones, so
what is no text by itself is spelled out. Texts become tokens here without making others wait. Knows no wire
format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..detokenizer import IncrementalDetokenizer
from ..tokenizer import Tokenizer

_LONG_TEXT = 20_000
"""Characters from which on encoding takes so long that the event loop should not wait for it."""


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """The text one token adds to a text, a leading space included. A control token is its name, bytes that
    are no whole characters are written `bytes:\\xe2\\x80`, an id without a token `token_id:5`."""
    piece = tokenizer.piece(token_id)
    if piece is None:
        return token_name(token_id)
    if token_id in tokenizer.special_ids:
        return piece
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_name(token_id: int) -> str:
    """A text that no two tokens share."""
    return f"token_id:{token_id}"


def token_bytes(tokenizer: Tokenizer, token_id: int) -> list[int]:
    """The bytes one token adds to a text; of all tokens of a text they are those of the text."""
    return list(tokenizer.token_bytes(token_id))


class TokenPlaces:
    """At which character of a text each token begins, asked in their order. A token with a part of a
    character begins where the character does, one that leaves no text where the next one does.

    The text starts at character `start`, behind the tokens `after`; of its own first `hidden` tokens it shows
    nothing."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        after: Sequence[int] = (),
        start: int = 0,
        hidden: int = 0,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, after=after
        )
        self._next = start
        self._hidden = hidden

    def place(self, token_id: int) -> int:
        """Of the next token, which this is."""
        found = self._next
        if self._hidden:
            self._hidden -= 1
        else:
            self._next += len(self._detokenizer.push((token_id,)))
        return found


async def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], *, bos: bool = True
) -> list[tuple[int, ...]]:
    """Token ids of each text, see Tokenizer.encode; long ones are encoded beside the event loop."""

    def encode() -> list[tuple[int, ...]]:
        return [tuple(tokenizer.encode(text, bos=bos)) for text in texts]

    if sum(map(len, texts)) > _LONG_TEXT:
        return await asyncio.to_thread(encode)
    return encode()
