"""Tokens as people see them: a text for each, and its bytes.

A text of one token is for people and for keys of objects: different tokens should have different ones, so
what is no text by itself is spelled out.
"""

from __future__ import annotations

from .tokenizer import Tokenizer


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
