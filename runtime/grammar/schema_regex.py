"""Regular expressions as trees of characters, and the trees written out for the engine.

A tree stands for the whole texts it matches. The syntax written is read alike by the engine's regular
expressions and by the `regex` module, which serves for matching texts that are known. What no tree can say
is Unsupported. Reading what callers write is schema_pattern's part.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Ranges: TypeAlias = tuple[tuple[int, int], ...]

TOP = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
MOST_TEXTS = 20_000
"""Most characters of texts that are to be excluded."""


class Unsupported(Exception):
    """What cannot be enforced: why, in a few words."""


class Chars(NamedTuple):
    """One character: in `ranges` or in the classes of `inside`, and not in those of `outside`; classes are
    Unicode ones, as the engine writes them. About those in `doubt` dialects disagree."""

    ranges: Ranges
    inside: str = ""
    outside: str = ""
    doubt: Ranges = ()


class Cat(NamedTuple):
    items: tuple[Tree, ...]


class Alt(NamedTuple):
    options: tuple[Tree, ...]


class Repeat(NamedTuple):
    item: Tree
    least: int
    most: int | None


class Edge(NamedTuple):
    """The start or the end of the text."""

    is_start: bool


Tree: TypeAlias = Chars | Cat | Alt | Repeat | Edge
EMPTY = Cat(())
ANY_CHAR = Chars(((0, TOP),))
ANYTHING = Repeat(ANY_CHAR, 0, None)
NOTHING = Alt(())
_NO_CHAR = "[a&&b]"
_CONTROLS: Ranges = ((0, 7), (11, 11), (14, 31), (127, 127))
"""What JSON of the engine has no spelling for, see json_grammar."""


def parts_of(tree: Tree) -> tuple[Tree, ...]:
    if isinstance(tree, Cat):
        return tree.items
    if isinstance(tree, Alt):
        return tree.options
    return (tree.item,) if isinstance(tree, Repeat) else ()


def negated(ranges: Ranges) -> Ranges:
    """All other characters."""
    result, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = max(start, high + 1)
    if start <= TOP:
        result.append((start, TOP))
    return tuple(result)


def literal(text: str) -> Tree:
    return Cat(tuple(Chars(((ord(character), ord(character)),)) for character in text))


def counted(least: int, most: int | None) -> Tree:
    """Every text of so many characters."""
    return Repeat(ANY_CHAR, least, most)


def all_but(texts: tuple[str, ...]) -> Tree:
    """Every text but these, as a tree of their letters. Raises Unsupported for very long ones."""
    if sum(map(len, texts)) > MOST_TEXTS or max(map(len, texts)) > 200:
        raise Unsupported("too many names to exclude")
    return _all_but(sorted(set(texts)), 0, 0, len(set(texts)))


def _all_but(texts: list[str], depth: int, start: int, stop: int) -> Tree:
    """Every rest of a text, where those of texts[start:stop] agree in their first `depth` characters."""
    options: list[Tree] = []
    if len(texts[start]) == depth:
        start += 1
    else:
        options.append(EMPTY)
    firsts: list[tuple[int, int]] = []
    while start < stop:
        first = texts[start][depth]
        end = start
        while end < stop and texts[end][depth] == first:
            end += 1
        firsts.append((ord(first), ord(first)))
        options.append(Cat((literal(first), _all_but(texts, depth + 1, start, end))))
        start = end
    return Alt((*options, Cat((Chars(negated(tuple(firsts))), ANYTHING))))


def lengths(tree: Tree) -> tuple[int, int | None]:
    """The least and the most characters of its texts; None for no limit."""
    if isinstance(tree, Chars):
        return 1, 1
    assert not isinstance(tree, Edge), "edges are resolved before a tree is used"
    if isinstance(tree, Repeat):
        least, most = lengths(tree.item)
        if most == 0 or tree.most == 0:
            return 0, 0
        return least * tree.least, None if most is None or tree.most is None else most * tree.most
    parts = [lengths(part) for part in parts_of(tree)] or [(0, 0)]
    mosts = [most for _, most in parts if most is not None]
    total, join = (sum, sum) if isinstance(tree, Cat) else (min, max)
    return total(least for least, _ in parts), join(mosts) if len(mosts) == len(parts) else None


def writable(tree: Tree) -> Tree:
    """Without characters that the engine cannot write: asked for one of them alone it would write nothing."""
    if isinstance(tree, Chars):
        return (
            tree if tree.ranges == ANY_CHAR.ranges else tree._replace(ranges=_without_controls(tree.ranges))
        )
    if isinstance(tree, Cat):
        return Cat(tuple(map(writable, tree.items)))
    if isinstance(tree, Alt):
        return Alt(tuple(map(writable, tree.options)))
    return tree._replace(item=writable(tree.item)) if isinstance(tree, Repeat) else tree


def can_be_written(text: str) -> bool:
    return not any(low <= ord(character) <= high for character in text for low, high in _CONTROLS)


def _without_controls(ranges: Ranges) -> Ranges:
    for first, last in _CONTROLS:
        if any(low <= last and high >= first for low, high in ranges):
            cut = ((low, min(high, first - 1)) for low, high in ranges)
            rest = ((max(low, last + 1), high) for low, high in ranges)
            ranges = tuple(pair for pair in dict.fromkeys((*cut, *rest)) if pair[0] <= pair[1])
    return tuple(sorted(ranges))


def write(tree: Tree) -> str:
    """In the engine's syntax, which the `regex` module's version 1 reads too."""
    if isinstance(tree, Chars):
        return _write_chars(tree)
    if isinstance(tree, Cat):
        return "".join(f"(?:{write(item)})" if isinstance(item, Alt) else write(item) for item in tree.items)
    if isinstance(tree, Alt):
        return "|".join(write(option) for option in tree.options) if tree.options else _NO_CHAR
    assert isinstance(tree, Repeat), "edges are resolved before a tree is written"
    item = write(tree.item)
    return (item if isinstance(tree.item, Chars) else f"(?:{item})") + _write_count(tree.least, tree.most)


def _write_count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if short is not None:
        return short
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def _write_chars(chars: Chars) -> str:
    if chars[:3] == ANY_CHAR[:3]:
        return "(?s:.)"
    ranges = [part for pair in chars.ranges for part in _cut_surrogates(*pair)]
    if not ranges and not chars.inside:
        return _NO_CHAR
    body = "".join(_one(low) if low == high else f"{_one(low)}-{_one(high)}" for low, high in ranges)
    body += chars.inside
    return f"[{body}--[{chars.outside}]]" if chars.outside else f"[{body}]"


def _cut_surrogates(low: int, high: int) -> list[tuple[int, int]]:
    first, last = _SURROGATES
    if high < first or low > last:
        return [(low, high)]
    return [pair for pair in ((low, first - 1), (last + 1, high)) if pair[0] <= pair[1]]


def _one(code: int) -> str:
    character = chr(code)
    if code > 127:
        return character
    return character if character.isalnum() or character in "_ " else f"\\x{code:02x}"
