"""GBNF, the grammars of llama.cpp, in llguidance's dialect of Lark.

Rules that never come back to themselves become terminals, which are matched as a whole: in a rule, the
library would give `[a-z]+ "x"` all letters to the first part and never come to the second. A rule goes on to
the next one's name, so line breaks need no care. What comes out is well formed: errors are found here, with
their place in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from ..errors import InvalidRequest
from ..text import quote

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<define>::=)
    |(?P<name>[A-Za-z0-9_-]+)
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<class>\[(?:\\.|[^\]\\])*\])
    |(?P<times>[*+?]|\{\s*\d*\s*(?:,\s*\d*\s*)?\})
    |(?P<mark>[|().])""",
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([\"\\\[\]nrt^-])|([^\\])", re.DOTALL
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_ANY = "/(?s:.)/"
_EMPTY = '""'


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def gbnf_to_lark(text: str) -> str:
    """Raises InvalidRequest with the place of what is wrong."""
    rules = _rules_of(text, list(_tokens_of(text)))
    if "root" not in rules:
        raise InvalidRequest("grammar needs a rule named root")
    numbers = {name: i for i, name in enumerate(rules)}
    for body in rules.values():
        for token in body:
            if token.kind == "name" and token.text not in rules:
                raise _error(text, token, "is no rule")
    terminals = _terminals(rules)
    names = {name: f"{'T' if name in terminals else 'r'}{i}" for name, i in numbers.items()}
    lines = [f"{names[name]}: {_body(text, body, names)}" for name, body in rules.items()]
    return "\n".join([f"start: {names['root']}", *lines, ""])


def _tokens_of(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _error(text, _Token("", text[at : at + 20], at), "cannot be read")
        kind = found.lastgroup
        assert kind is not None, "each way to match has a name"
        if kind != "space":
            yield _Token(kind, found[0], at)
        at = found.end()


def _rules_of(text: str, tokens: list[_Token]) -> dict[str, list[_Token]]:
    rules: dict[str, list[_Token]] = {}
    body: list[_Token] | None = None
    for token, following in zip_longest(tokens, tokens[1:]):
        if token.kind == "name" and following is not None and following.kind == "define":
            if token.text in rules:
                raise _error(text, token, "is defined twice")
            body = rules[token.text] = []
        elif body is None or (token.kind == "define" and body):
            raise _error(text, token, "stands where the name of a rule and ::= should")
        elif token.kind != "define":
            body.append(token)
    return rules


def _terminals(rules: dict[str, list[_Token]]) -> set[str]:
    """The rules that come to an end without referring to themselves, however far around."""
    needs = {name: {token.text for token in body if token.kind == "name"} for name, body in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    waiting = [name for name, needed in needs.items() if not needed]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        for user in users[name]:
            needs[user].discard(name)
            if not needs[user]:
                waiting.append(user)
    return found


def _body(text: str, body: list[_Token], names: dict[str, str]) -> str:
    written: list[str] = []
    open_groups: list[int] = []
    last: int | None = None  # where what can be repeated begins
    for token in body:
        if token.kind == "times":
            if last is None:
                raise _error(text, token, "repeats nothing")
            written[last:] = ["(", *written[last:], ")", _times(text, token)]
            continue
        if token.text == "(":
            open_groups.append(len(written))
        elif token.text in ("|", ")"):
            if not written or written[-1] in ("(", "|"):
                written.append(_EMPTY)
            if token.text == ")" and not open_groups:
                raise _error(text, token, "closes nothing")
        last = open_groups.pop() if token.text == ")" else len(written)
        written.append(_item(text, token, names))
        if token.text in ("|", "("):
            last = None
    if open_groups:
        raise _error(text, body[-1], "ends the rule, but a ) is missing")
    if not written or written[-1] == "|":
        written.append(_EMPTY)
    return " ".join(written)


def _item(text: str, token: _Token, names: dict[str, str]) -> str:
    if token.kind == "name":
        return names[token.text]
    if token.kind == "literal":
        return json.dumps("".join(char for char, _ in _characters(text, token)))
    if token.kind == "class":
        return _class(text, token)
    return _ANY if token.text == "." else token.text


def _times(text: str, token: _Token) -> str:
    if token.text in "*+?":
        return token.text
    least, comma, most = re.sub(r"[\s{}]", "", token.text).partition(",")
    if not least and not most:
        raise _error(text, token, "needs a number")
    if most and int(most or 0) < int(least or 0):
        raise _error(text, token, "has its numbers the wrong way round")
    return f"{{{least or 0}{comma}{most}}}"


def _class(text: str, token: _Token) -> str:
    """Each character by its number, so that none means more to the other side than here."""
    characters = list(_characters(text, token))
    is_negated = bool(characters) and characters[0] == ("^", False)
    del characters[: int(is_negated)]
    if not characters:
        raise _error(text, token, "holds no character")
    parts: list[str] = []
    for i, (char, is_escaped) in enumerate(characters):
        is_range = char == "-" and not is_escaped and 0 < i < len(characters) - 1 and parts[-1] != "-"
        parts.append("-" if is_range else rf"\x{{{ord(char):x}}}")
    return f"/[{'^' * is_negated}{''.join(parts)}]/"


def _characters(text: str, token: _Token) -> Iterator[tuple[str, bool]]:
    """What is between the quotes or brackets, and whether it was escaped."""
    inside = token.text[1:-1]
    at = 0
    while at < len(inside):
        found = _CHARACTER.match(inside, at)
        number = None if found is None else found[1] or found[2] or found[3]
        code = int(number, 16) if number else 0
        if found is None or code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise _error(
                text, _Token("", inside[at : at + 10], token.at + 1 + at), "is no escape of a character"
            )
        yield (chr(code) if number else _ESCAPED.get(found[4], found[4]) or found[5]), found[5] is None
        at = found.end()


def _error(text: str, token: _Token, what: str) -> InvalidRequest:
    line = text.count("\n", 0, token.at) + 1
    column = token.at - text.rfind("\n", 0, token.at)
    return InvalidRequest(f"grammar: {quote(token.text)} at line {line}, column {column} {what}")
