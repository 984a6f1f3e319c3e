"""Reading regular expressions of ECMA-262 into trees.

Of a character class it is told what both ECMA-262 and Python's `re` take for a member; a negated one leaves
out what either of them does. What they read differently as a whole is Unsupported, as is what no automaton
over characters can tell (look-around, back references, word boundaries).
"""

from __future__ import annotations

from typing import NamedTuple

import regex

from .schema_regex import ANY_CHAR, TOP, Alt, Cat, Chars, Edge, Ranges, Repeat, Tree, Unsupported, negated

MAX_COUNT = 5000

_SPACE: Ranges = ((9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                  (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000))  # fmt: skip
_DOUBTFUL_SPACE: Ranges = ((0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))
_CLASSES: dict[str, Ranges] = {"d": ((48, 57),), "w": ((48, 57), (65, 90), (95, 95), (97, 122)), "s": _SPACE}
_BEYOND_ASCII = {"d": r"[\p{Nd}--[\x00-\x7f]]", "w": r"[\p{L}\p{M}\p{N}\p{Pc}--[\x00-\x7f]]", "s": ""}
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_LOOKS = {"=": "a look-ahead", "!": "a look-ahead", "<=": "a look-behind", "<!": "a look-behind"}
_COUNT = regex.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP = regex.compile(r"\?(?:P?<[A-Za-z_][A-Za-z_0-9]*>|:)")
_PROPERTY = regex.compile(r"\{(?:[A-Za-z_]+=)?[A-Za-z_]+\}")


class BadPattern(Exception):
    """No regular expression at all: what is wrong, and where."""


def read_pattern(source: str) -> Tree:
    """The tree of what is matched, with its anchors. Raises Unsupported or BadPattern."""
    return _Parser(source).parse()


class _Item(NamedTuple):
    """A part of a character class: what it surely holds, and what it may hold in one dialect or the other."""

    narrow: Chars
    wide: Chars


def _sure(ranges: Ranges) -> _Item:
    return _Item(Chars(ranges), Chars(ranges))


def _class(letter: str) -> _Item:
    """A shorthand such as \\d, or its opposite in capitals."""
    ranges, beyond = _CLASSES[letter.lower()], _BEYOND_ASCII[letter.lower()]
    doubt = _DOUBTFUL_SPACE if letter in "sS" else ((128, TOP),)
    widest = ranges + doubt if letter in "sS" else ranges
    if letter.islower():
        return _Item(Chars(ranges, doubt=doubt), Chars(widest, beyond, doubt=doubt))
    return _Item(Chars(negated(widest), "", beyond, doubt), Chars(negated(ranges), doubt=doubt))


class _Parser:
    """Reads one pattern, left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._ignores_case = False

    def parse(self) -> Tree:
        if self._source.startswith("(?i)"):
            self._ignores_case, self._at = True, 4
        tree = self._alternatives(0)
        if self._at < len(self._source):
            raise self._bad("an unmatched )")
        return tree

    def _bad(self, what: str) -> BadPattern:
        return BadPattern(f"{what} at character {self._at}")

    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._next()
        if not character:
            raise self._bad("an unexpected end")
        self._at += 1
        return character

    def _alternatives(self, depth: int) -> Tree:
        if depth > 100:
            raise Unsupported("a pattern nested too deep")
        options = [self._sequence(depth)]
        while self._next() == "|":
            self._at += 1
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Alt(tuple(options))

    def _sequence(self, depth: int) -> Tree:
        items: list[Tree] = []
        while self._next() not in ("", "|", ")"):
            items.append(self._counted(self._atom(depth)))
        return items[0] if len(items) == 1 else Cat(tuple(items))

    def _counted(self, item: Tree) -> Tree:
        count = self._count()
        if count is None:
            return item
        if self._next() == "?":
            self._at += 1
        if (self._next() in ("*", "+", "?") and self._next()) or self._count() is not None:
            raise Unsupported("a count of a count")
        if isinstance(item, Edge):
            raise Unsupported("a repeated anchor")
        return Repeat(item, *count)

    def _count(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._next())
        if simple is not None:
            self._at += 1
            return simple
        found = _COUNT.match(self._source, self._at)
        if found is None:
            if self._source.startswith("{,", self._at):
                raise Unsupported("a count without a minimum, which dialects read differently")
            return None
        least = int(found[1])
        most = least if not found[2] else int(found[3]) if found[3] else None
        if max(least, most or 0) > MAX_COUNT:
            raise Unsupported(f"a count over {MAX_COUNT}")
        if most is not None and most < least:
            raise self._bad("a count whose ends are swapped")
        self._at = found.end()
        return least, most

    def _atom(self, depth: int) -> Tree:
        character = self._take()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self._char_class()
        if character == ".":
            return Chars(negated(_LINE_ENDS), doubt=_LINE_ENDS[1:])
        if character in "^$":
            return Edge(character == "^")
        if character in "*+?":
            raise self._bad("nothing to repeat")
        if character == "\\":
            return self._escape().narrow
        return self._cased(_sure(((ord(character), ord(character)),))).narrow

    def _group(self, depth: int) -> Tree:
        if self._next() == "?":
            found = _GROUP.match(self._source, self._at)
            if found is None:
                for mark, name in _LOOKS.items():
                    if self._source.startswith("?" + mark, self._at):
                        raise Unsupported(name)
                raise Unsupported(f"a group that starts with ({self._source[self._at : self._at + 2]}")
            self._at = found.end()
        tree = self._alternatives(depth + 1)
        if self._next() != ")":
            raise self._bad("a missing )")
        self._at += 1
        return tree

    def _escape(self) -> _Item:
        letter = self._take()
        if letter in "dDwWsS":
            return _class(letter)
        if letter in "pP" and (found := _PROPERTY.match(self._source, self._at)):
            self._at = found.end()
            chars = Chars((), f"\\{letter}{found[0]}")
            return _Item(chars, chars)
        code = self._code(letter)
        return self._cased(_sure(((code, code),)))

    def _code(self, letter: str) -> int:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "x":
            return self._hex(2)
        if letter == "u":
            return self._unicode()
        if letter == "c" and self._next().isascii() and self._next().isalpha():
            return ord(self._take()) % 32
        if letter == "0" and not self._next().isdigit():
            return 0
        if letter.isdigit() or letter == "k":
            raise Unsupported("a back reference")
        if letter in "bB":
            raise Unsupported("a word boundary")
        if letter.isascii() and letter.isalpha():
            raise Unsupported(f"\\{letter}, which dialects read differently")
        return ord(letter)

    def _hex(self, digits: int) -> int:
        text = self._source[self._at : self._at + digits]
        if len(text) < digits or any(digit not in "0123456789abcdefABCDEF" for digit in text):
            raise Unsupported("an incomplete escape")
        self._at += digits
        return int(text, 16)

    def _unicode(self) -> int:
        if self._next() == "{":
            end = self._source.find("}", self._at)
            digits = end - self._at - 1
            if not 1 <= digits <= 6:
                raise Unsupported("an incomplete escape")
            self._at += 1
            code = self._hex(digits)
            self._at += 1
            return min(code, TOP)
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._source.startswith("\\u", self._at):
            self._at += 2
            code = 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00) % 0x400
        if 0xD800 <= code < 0xE000:
            raise Unsupported("half a character")
        return code

    def _char_class(self) -> Tree:
        is_negated = self._next() == "^"
        self._at += is_negated
        if self._next() == "]":
            raise Unsupported("a class that starts with ], which dialects read differently")
        items: list[_Item] = []
        shorthands = ""
        while self._next() != "]":
            start = self._at
            item = self._class_item()
            shorthands += self._source[start + 1 : self._at] if self._source[start] == "\\" else ""
            items.append(item)
        self._at += 1
        if any(letter in shorthands and letter.upper() in shorthands for letter in "dws") and not is_negated:
            return ANY_CHAR
        return _joined(items, is_negated)

    def _class_item(self) -> _Item:
        first = self._class_atom()
        following = self._source[self._at : self._at + 2]
        if not following.startswith("-") or following == "-]" or len(following) < 2:
            return first
        low = first.narrow.ranges
        if not _is_one(first):
            return first
        self._at += 1
        last = self._class_atom()
        if not _is_one(last):
            raise Unsupported("a range that ends in a class, which dialects read differently")
        start, stop = low[0][0], last.narrow.ranges[0][0]
        if stop < start:
            raise self._bad("a range whose ends are swapped")
        return self._cased(_sure(((start, stop),)))

    def _class_atom(self) -> _Item:
        character = self._take()
        if character != "\\":
            return _sure(((ord(character), ord(character)),))
        if self._next() == "b":
            self._at += 1
            return _sure(((8, 8),))
        return self._escape()

    def _cased(self, item: _Item) -> _Item:
        """With the other case of its ASCII letters where the pattern ignores case."""
        if not self._ignores_case:
            return item
        ranges = list(item.narrow.ranges)
        for low, high in item.narrow.ranges:
            for first, last, shift in ((65, 90, 32), (97, 122, -32)):
                if max(low, first) <= min(high, last):
                    ranges.append((max(low, first) + shift, min(high, last) + shift))
        return _sure(tuple(ranges))


def _is_one(item: _Item) -> bool:
    ranges = item.narrow.ranges
    return item.narrow == item.wide and len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _joined(items: list[_Item], is_negated: bool) -> Chars:
    doubt = tuple(pair for item in items for pair in item.narrow.doubt)
    if is_negated:
        ranges = tuple(pair for item in items for pair in item.wide.ranges)
        return Chars(negated(ranges), "", "".join(item.wide.inside for item in items), doubt)
    ranges = negated(negated(tuple(pair for item in items for pair in item.narrow.ranges)))
    inside = "".join(item.narrow.inside for item in items)
    return Chars(ranges, inside, "".join(item.narrow.outside for item in items), doubt)
