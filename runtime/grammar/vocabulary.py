"""GrammarVocabulary: what engines of grammars know of a tokenizer, by bytes.

Each token is the bytes it adds to a text, so that a character of several tokens, half a character and a
leading space are what they are. Control tokens have no bytes: none can pass for text. Text to tokens is the
tokenizer's own way, as in the middle of a text (no space is put before it), and exact to the byte. Made once
for a model; a pickle of it leaves the tokenizer behind and then cuts texts by the longest token.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from ..errors import InvalidConfig
from .protocol import MaskRow

Encode = Callable[[str], list[int]]

_BEFORE = ("\n", "~", "0")
"""What may be put before a text so that the tokenizer takes it for the middle of one."""


class TextTokenizer(Protocol):
    """What is asked of a model's tokenizer."""

    special_ids: frozenset[int]
    eos_ids: frozenset[int]

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, bos: bool = True, special: bool = True) -> list[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def piece(self, token_id: int) -> str | None: ...


class GrammarVocabulary:
    """`tokens[i]` are the bytes of token i, empty for control tokens and ids without text. `width`: logits a
    row has, `words`: words of a mask row. `eos_ids`, sorted, end a text; they are control tokens here.
    `digest` names all of it but the way of `encode`."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_tokens: Mapping[int, str],
        eos_ids: Collection[int],
        width: int,
        tokenize: Encode | None = None,
    ) -> None:
        if not eos_ids:
            raise InvalidConfig(
                "grammars need a token that ends a text, but the model's tokenizer names none"
            )
        assert set(eos_ids) <= special_tokens.keys(), "what ends a text is no text"
        assert len(tokens) <= width, "every token has a logit"
        self.tokens = tuple(b"" if i in special_tokens else text for i, text in enumerate(tokens))
        self.special_tokens = dict(special_tokens)
        self.special_ids = frozenset(special_tokens)
        self.eos_ids = tuple(sorted(eos_ids))
        self.width = width
        self.words = -(-width // 32)
        self._tokenize = tokenize

    @classmethod
    def of(cls, tokenizer: TextTokenizer, width: int) -> Self:
        """Of a model whose rows have `width` logits. Ids past them cannot be written, and are left out.
        Raises InvalidConfig if nothing ends a text."""
        count = min(tokenizer.vocab_size, width)
        eos_ids = [i for i in tokenizer.eos_ids if i < width]
        special_ids = {i for i in tokenizer.special_ids if i < width} | set(eos_ids)
        names = {i: tokenizer.piece(i) or f"<{i}>" for i in sorted(special_ids)}
        tokens = [tokenizer.token_bytes(i) for i in range(count)]
        return cls(
            tokens, names, eos_ids, width, lambda text: tokenizer.encode(text, bos=False, special=False)
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.tokens, self.special_tokens, self.eos_ids, self.width)

    @cached_property
    def digest(self) -> str:
        known = hashlib.sha256()
        parts: list[object] = [self.width, self.eos_ids, sorted(self.special_tokens.items())]
        known.update(repr(parts).encode())
        known.update(b"".join(len(text).to_bytes(4, "little") + text for text in self.tokens))
        return known.hexdigest()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text that stands in the middle of another; control tokens spelled out are text.
        Where no tokens write a byte of it, they end before that byte."""
        wanted = text.encode()
        if self._tokenize is not None:
            for before in ("", *_BEFORE):
                ids = self._behind(before, text, self._tokenize)
                if self._write(ids, wanted):
                    return ids
        return self._longest_first(wanted)

    def can_write(self, token_id: int) -> bool:
        """Whether it is a token at all: one with text, or a control token."""
        if token_id in self.special_ids:
            return True
        return 0 <= token_id < len(self.tokens) and bool(self.tokens[token_id])

    def split_specials(self, text: str) -> list[str | int]:
        """The text with control tokens that are spelled out in it as their ids."""
        ids = {name: i for i, name in self.special_tokens.items()}
        parts = self._special_names.split(text) if ids else [text]
        return [ids.get(part, part) for part in parts if part]

    @cached_property
    def end_row(self) -> MaskRow:
        """The mask of what ends a text."""
        return mask_of(self.eos_ids, self.words)

    @cached_property
    def special_row(self) -> MaskRow:
        """The mask of the control tokens that do not end a text."""
        return mask_of([i for i in self.special_ids if i not in self.eos_ids], self.words)

    @cached_property
    def text_row(self) -> MaskRow:
        """The mask of every token with text."""
        return mask_of([i for i, text in enumerate(self.tokens) if text], self.words)

    @cached_property
    def _special_names(self) -> re.Pattern[str]:
        names = sorted(self.special_tokens.values(), key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, names))})")

    @cached_property
    def _id_of(self) -> dict[bytes, int]:
        return {text: i for i, text in reversed(list(enumerate(self.tokens))) if text}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))

    @staticmethod
    def _behind(before: str, text: str, tokenize: Encode) -> list[int]:
        ids = tokenize(before + text)
        if not before:
            return ids
        head = tokenize(before)
        return ids[len(head) :] if ids[: len(head)] == head else []

    def _write(self, ids: Iterable[int], wanted: bytes) -> bool:
        count = len(self.tokens)
        return b"".join([self.tokens[i] for i in ids if i < count]) == wanted

    def _longest_first(self, wanted: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(wanted):
            ends = range(min(len(wanted), at + self._longest), at, -1)
            found = next((end for end in ends if wanted[at:end] in self._id_of), None)
            if found is None:
                break
            ids.append(self._id_of[wanted[at:found]])
            at = found
        return ids


def mask_of(token_ids: Iterable[int], words: int) -> MaskRow:
    """A mask row with these bits, that nobody can write to."""
    bits = np.zeros(words * 32, np.bool_)
    bits[list(token_ids)] = True
    row = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
    row.flags.writeable = False
    return row
