"""What a model's chat template writes around the content of a message: for text that is built piece by piece.

A conversation is rendered with marks for its contents, and what stands between them is cut apart such that
frames and contents joined are what the template writes. A header of an answer is that of the template's own
generation prompt. A model without a template gets lines that begin with the role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import InvalidRequest
from .text import quote
from .tokenizer import Tokenizer

MOST_ROLES = 1000
_OPEN, _CLOSE = "\uf8d0", "\uf8d1"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Around the content of the last of some messages: `before` from the end of the message before it,
    `after` to where the message ends."""

    before: str
    after: str


def frame_of(tokenizer: Tokenizer, roles: Sequence[str]) -> ChatFrame:
    """Of the last message of a conversation with these roles. Raises InvalidRequest for no roles, for what
    the template refuses, and where it would have to write an earlier message again."""
    if not 0 < len(roles) <= MOST_ROLES:
        raise InvalidRequest(f"roles must be 1 to {MOST_ROLES}, got {len(roles)}")
    if tokenizer.chat_template() is None:
        return ChatFrame(f"{roles[-1].upper()}: ", "\n")
    return _Framer(tokenizer, tuple(roles)).frame()


class _Framer:
    def __init__(self, tokenizer: Tokenizer, roles: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._roles = roles

    def frame(self) -> ChatFrame:
        roles = self._roles
        after = self._after(roles)
        if roles[-1] == "assistant" and len(roles) > 1:
            return ChatFrame(self._behind(roles[:-1], self._render(roles[:-1], answer=True)), after)
        text = self._whole(roles)
        begin = self._content(text, len(roles) - 1)[0]
        if len(roles) == 1:
            return ChatFrame(text[:begin], after)
        return ChatFrame(self._behind(roles[:-1], text[:begin]), after)

    def _behind(self, roles: tuple[str, ...], text: str) -> str:
        """What a text has behind the last of these messages, frame included."""
        end = self._content(text, len(roles) - 1)[1]
        rest, after = text[end:], self._after(roles)
        if not rest.startswith(after) or _OPEN in rest:
            raise InvalidRequest(
                f"the chat template writes a message of {quote(roles[-1])} in another way once "
                f"{quote(self._roles[-1])} follows, so its text cannot be built piece by piece"
            )
        return rest[len(after) :]

    def _after(self, roles: tuple[str, ...]) -> str:
        """What follows the content of the last message."""
        last = len(roles) - 1
        text = self._whole(roles)
        end = self._content(text, last)[1]
        following = text.find(_OPEN, end)
        return text[end:] if following < 0 else text[end:following]

    def _whole(self, roles: tuple[str, ...]) -> str:
        """The messages, or, where a template does not write the last one by itself (a system message that it
        writes into that of the user), with one of a user behind them."""
        error: InvalidRequest | None = None
        for tried in (roles, (*roles, "user")):
            try:
                text = self._render(tried, answer=False)
            except InvalidRequest as refused:
                error = error or refused
                continue
            if _mark(len(roles) - 1) in text:
                return text
        raise error or InvalidRequest(f"the chat template does not write a message of {quote(roles[-1])}")

    def _render(self, roles: tuple[str, ...], *, answer: bool) -> str:
        messages = [{"role": role, "content": _mark(index)} for index, role in enumerate(roles)]
        return self._tokenizer.render_chat(messages, answer)

    def _content(self, text: str, index: int) -> tuple[int, int]:
        """The place of a content."""
        begin = text.find(_mark(index))
        if begin < 0:
            raise InvalidRequest(f"the chat template does not write message {index} of {len(self._roles)}")
        return begin, begin + len(_mark(index))


def _mark(index: int) -> str:
    return f"{_OPEN}{index}{_CLOSE}"
