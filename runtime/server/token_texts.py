"""Texts of clients as tokens, without making others wait, and the character at which each token begins.

How one token is written is in token_names.py. Knows no wire format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from ..detokenizer import IncrementalDetokenizer
from ..errors import TooLarge
from ..tokenizer import Tokenizer
from .engine_face import EngineFace

T = TypeVar("T")

_LONG_TEXT = 20_000
"""Characters from which on encoding takes so long that the event loop should not wait for it."""


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
    """Token ids of each text, see Tokenizer.encode."""
    encode = tokenizer.encode
    return await beside(sum(map(len, texts)), lambda: [tuple(encode(text, bos=bos)) for text in texts])


def check_characters(engine: EngineFace, count: int) -> None:
    """Raises TooLarge for a text of so many characters if no tokens could make it fit: telling how many they
    would be takes seconds."""
    longest = engine.tokenizer.longest_token
    if longest is not None and count > engine.max_length * longest:
        raise TooLarge(
            f"a text of {count} characters can never fit: context and pool hold {engine.max_length} tokens "
            f"of at most {longest} bytes"
        )


async def beside(characters: int, work: Callable[[], T]) -> T:
    """What comes of work on so many characters: if they are many, beside the event loop, one after the
    other, so that it takes one core at most."""
    if characters <= _LONG_TEXT:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_one_thread(), work)


@cache
def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="radixlm-texts")
