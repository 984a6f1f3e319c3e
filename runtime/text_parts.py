"""Parts of a text to token ids, and what was generated back to parts: how a program carries tokens exactly.

Neighbouring texts are one run and are encoded as one text; ids stand as they are. In a Plain stretch the
spelling of a control token is text. The first run gets what the tokenizer puts before a text, unless it
begins with that token's spelling; a run behind ids is encoded as text in the middle. What must hold: the text
of output parts is exactly the text that was shown, and as much of it as possible is ids. Knows no engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol, TypeAlias

from .detokenizer import IncrementalDetokenizer
from .errors import InvalidRequest
from .text import quote
from .text_borders import last_border
from .tokenizer import Tokenizer

Ids: TypeAlias = tuple[int, ...]


class PlainText(Protocol):
    """Text in which no control token is read."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Plain:
    """A PlainText."""

    text: str


Part: TypeAlias = str | PlainText | Ids
"""A str may spell control tokens, as templates do."""


# -- parts to ids ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring texts; `plain` are the places of stretches in which no control token is read."""

    text: str
    plain: tuple[tuple[int, int], ...] = ()

    def and_then(self, text: str) -> _Run:
        return _Run(self.text + text, self.plain)

    def behind(self, place: int) -> _Run:
        """The rest of it, from a character on."""
        plain = ((max(0, begin - place), end - place) for begin, end in self.plain if end > place)
        return _Run(self.text[place:], tuple(plain))


class PartsEncoder:
    """Of one tokenizer. It remembers the ids of runs, of so many characters together, as the runs of a
    conversation come again with each of its calls. Several threads may use it."""

    def __init__(self, tokenizer: Tokenizer, *, remembered: int = 0) -> None:
        self._tokenizer = tokenizer
        self._most, self._size = remembered, 0
        self._known: OrderedDict[tuple[_Run, bool], Ids] = OrderedDict()
        self._changing = Lock()

    def ids(self, parts: Sequence[Part]) -> Ids:
        """Never none: nothing at all is what a text begins with. Raises InvalidRequest."""
        return self._joined(_pieces(parts)) or self._beginning()

    def before(self, parts: Sequence[Part]) -> tuple[Ids, ...]:
        """What the prompt has and the parts have not: where they are nothing, what a text begins with. It
        goes before what continues them, or the next prompt would lack it."""
        return () if _pieces(parts) else (self._beginning(),)

    def joint(self, parts: Sequence[Part], choices: Sequence[str]) -> tuple[Ids, tuple[Ids, ...]]:
        """The ids of a context and of each choice behind it, where the end of the parts and a choice are
        encoded as one text.

        Where a choice changes tokens at the end of the parts, those belong to the choices: to all of them,
        from the first token that any of them changes. Raises InvalidRequest.
        """
        pieces = _pieces(parts)
        last = pieces.pop() if pieces and isinstance(pieces[-1], _Run) else _Run("")
        assert isinstance(last, _Run), "what is no run are ids"
        head, tail, is_first = self._cut(last, not pieces)
        alone = self._encoded(tail, is_first) if tail.text or is_first else ()
        wholes = [self._encoded(tail.and_then(choice), is_first) for choice in choices]
        border = min((_common(alone, whole) for whole in wholes), default=len(alone))
        for index, whole in enumerate(wholes):
            if len(whole) == border:
                raise InvalidRequest(f"choice {index} has no tokens of its own, got {quote(choices[index])}")
        context = (*self._joined(pieces), *head, *alone[:border])
        return context or self._beginning(), tuple(whole[border:] for whole in wholes)

    def _cut(self, run: _Run, is_first: bool) -> tuple[Ids, _Run, bool]:
        """The ids of all before the last border of a run (none, if none is known), and the rest of it, which
        is then no longer first: so that a long text is encoded once, and only its end for each choice."""
        place = last_border(self._tokenizer.hugging_face.backend_tokenizer, run.text)
        if place is None:
            return (), run, is_first
        tail, whole = run.behind(place), self._encoded(run, is_first)
        ids = self._encoded(tail, is_first=False)
        head = whole[: len(whole) - len(ids)]
        if head + ids != whole:  # something is put behind every text
            return (), run, is_first
        return head, tail, False

    def _joined(self, pieces: Sequence[_Run | Ids]) -> Ids:
        found: list[int] = []
        for place, piece in enumerate(pieces):
            found += piece if isinstance(piece, tuple) else self._encoded(piece, is_first=not place)
        return tuple(found)

    def _encoded(self, run: _Run, is_first: bool) -> Ids:
        key = (run, is_first)
        with self._changing:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        bos = is_first and not self._spells_bos(run)
        ids = tuple(self._tokenizer.encode_mixed(run.text, run.plain, bos=bos, middle=not is_first))
        self._remember(key, ids)
        return ids

    def _spells_bos(self, run: _Run) -> bool:
        """Whether it begins with the token that the tokenizer would put before it."""
        bos_id = self._tokenizer.bos_id
        spelling = None if bos_id is None else self._tokenizer.piece(bos_id)
        if spelling is None or not run.text.startswith(spelling):
            return False
        return not run.plain or run.plain[0][0] >= len(spelling)

    def _beginning(self) -> Ids:
        found = beginning(self._tokenizer)
        if not found:
            raise InvalidRequest("the prompt is empty, and the model has no token that begins a text")
        return found

    def _remember(self, key: tuple[_Run, bool], ids: Ids) -> None:
        size = len(key[0].text)
        with self._changing:
            if key in self._known or size > self._most:
                return
            self._known[key] = ids
            self._size += size
            while self._size > self._most:
                (oldest, _), _ = self._known.popitem(last=False)
                self._size -= len(oldest.text)


def beginning(tokenizer: Tokenizer) -> Ids:
    """What an empty text is: the token that a text begins with, or else one that ends the text before it."""
    if tokenizer.bos_id is not None:
        return (tokenizer.bos_id,)
    return tuple(sorted(tokenizer.eos_ids)[:1])


def _pieces(parts: Sequence[Part]) -> list[_Run | Ids]:
    """Runs and ids in turn, none of them empty."""
    found: list[_Run | Ids] = []
    texts: list[str] = []
    plain: list[tuple[int, int]] = []
    length = 0
    for part in parts:
        if isinstance(part, tuple):
            if not part:
                continue
            if texts:
                found.append(_Run("".join(texts), tuple(plain)))
                texts, plain, length = [], [], 0
            found.append(part)
            continue
        text = part if isinstance(part, str) else part.text
        if not text:
            continue
        if not isinstance(part, str):
            plain.append((length, length + len(text)))
        texts.append(text)
        length += len(text)
    if texts:
        found.append(_Run("".join(texts), tuple(plain)))
    return found


def _common(a: Ids, b: Ids) -> int:
    """Number of leading tokens that are equal."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


# -- ids to parts ----------------------------------------------------------------------------------


def output_parts(
    tokenizer: Tokenizer,
    text: str,
    ids: Ids,
    matched: int | str | None,
    *,
    after: Sequence[int],
    skip_special_tokens: bool = True,
) -> tuple[str | Ids, ...]:
    """What continues the prompt `after` with exactly `text`, of which `ids` were generated: all ids if they
    stand for it; where a stop cut one of them, those before it, and the rest as text. `matched` is what
    stopped it: an id, which is not part of the text, a text or a pattern, or None."""

    def shown(count: int) -> str:
        stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens, after=after)
        return stream.push(ids[:count]) + stream.finish()

    whole = len(ids)
    if isinstance(matched, int) and ids and ids[-1] == matched:
        whole -= 1
    for count in (whole, len(ids)):
        if shown(count) == text:
            return (ids[:count],) if count else ()
    stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens, after=after)
    count = length = 0
    while count < whole and text.startswith(piece := stream.push((ids[count],)), length):
        length += len(piece)
        count += 1
    while not text.startswith(prefix := shown(count)):  # it ended within a character, or a pending one
        count -= 1
    rest = text[len(prefix) :]
    return (*((ids[:count],) if count else ()), *((rest,) if rest else ()))
