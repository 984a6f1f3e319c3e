"""ScoreItem: a context and the continuations of it to score, before they have token ids.

Owns the forms an item may take and what is wrong with a badly formed one, as prompts.py does for prompts. It
knows no tokenizer. An item that exists has at least one continuation, none of them empty; its context may be
empty, which the model may have a token for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from .errors import InvalidRequest
from .prompts import as_token_ids
from .text import quote, require_text

ScoreText: TypeAlias = str | tuple[int, ...]
"""Text or token ids."""


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """One item; the constructor also takes lists. Raises InvalidRequest if it is malformed.

    Items with different `salt` never share cached pages. `id` comes back on the result; None lets the engine
    choose one.
    """

    context: ScoreText
    continuations: tuple[ScoreText, ...]
    salt: str = ""
    id: str | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        # Only the normalised forms of two fields, and only while the item is being made.
        object.__setattr__(self, "context", _text_or_ids("context", self.context))
        object.__setattr__(self, "continuations", _continuations(self.continuations))
        require_text("namespace", self.salt)
        if self.id is not None:
            require_text("id", self.id)
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise InvalidRequest(f"priority must be an integer, got {quote(self.priority)}")


ScoreInput: TypeAlias = str | Sequence[int] | ScoreItem | Sequence[ScoreItem]
"""What `score` takes first: a context, an item or a list of items."""


def as_items(
    given: ScoreInput, continuations: Sequence[str | Sequence[int]] | None
) -> tuple[list[ScoreItem | InvalidRequest], bool]:
    """The items, and whether a list of them was given; what is no item in such a list stands for itself."""
    if continuations is not None:
        if isinstance(given, ScoreItem):
            raise InvalidRequest("continuations must be left out where the first argument is a ScoreItem")
        context = cast("ScoreText", given)  # ScoreItem checks both
        return [ScoreItem(context, cast("tuple[ScoreText, ...]", continuations))], False
    if isinstance(given, ScoreItem):
        return [given], False
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidRequest(f"score needs a context with continuations, or items, got {quote(given)}")
    return [_item(index, item) for index, item in enumerate(given)], True


def _item(index: int, item: object) -> ScoreItem | InvalidRequest:
    if isinstance(item, ScoreItem):
        return item
    return InvalidRequest(f"item {index} must be a ScoreItem, got {quote(item)}")


def _continuations(value: object) -> tuple[ScoreText, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidRequest(f"continuations must be a list of texts or of lists of ids, got {quote(value)}")
    if not value:
        raise InvalidRequest("continuations must hold at least one, got none")
    found = tuple(_text_or_ids(f"continuation {index}", item) for index, item in enumerate(value))
    if not all(found):
        empty = next(index for index, item in enumerate(found) if not item)
        raise InvalidRequest(f"continuation {empty} is empty")
    return found


def _text_or_ids(name: str, value: object) -> ScoreText:
    if isinstance(value, str):
        return require_text(name, value)
    try:
        return as_token_ids(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error}") from None
