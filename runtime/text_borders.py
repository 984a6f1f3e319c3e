"""Borders: where a text may be cut so that its pieces, encoded apart, have the ids of the whole.

Proven for byte-level tokenizers whose words are cut by patterns that are known here, and told of nobody else.
A border lies between a character and a space behind it, between a letter and the end of its line, or between
a letter and a mark of Chinese or Japanese. What must hold, and why it does: no alternative of these patterns
matches across a border, none looks behind itself, and none looks past the first character that is no space;
so words before a border do not depend on what follows it, nor those behind it on what comes before. No merge
joins two words, and no added token of such a tokenizer has a border in it or reaches beyond its spelling.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers

# Behind any of these letters, which every Unicode has had.
_LETTER = r"[A-Za-z\u4e00-\u9fa5\u3041-\u3096\u30a1-\u30fa]"
_BORDER = re.compile(rf"(?<=\S)(?= )|(?<={_LETTER})(?=[\n\u3001\u3002\uff0c\uff01\uff1a\uff1b\uff1f])")
_STRIDE = 256
"""Characters at the end of a text that are looked through first."""

_LETTERS = frozenset(
    (r" ?\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"(?:[^\r\n\p{L}\p{N}])?\p{L}+")
)
_SPACES = r"\s+"
_ALTERNATIVES = _LETTERS | {
    _SPACES,
    r"\s+(?!\S)",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,3}",
    r"\p{N}{1,3}+",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"),
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"'(?i:[sdmt]|ll|ve|re)",
}
"""What matches a word in GPT-2, and in what has been made of its pattern since: Llama 3, Qwen, SmolLM3."""


def last_border(core: tokenizers.Tokenizer, text: str) -> int | None:
    """The last place that is a border of the text, whatever comes behind it; None if none is known."""
    if not _has_borders(core):
        return None
    reach = _STRIDE
    while True:
        begin = max(0, len(text) - reach)
        # The character before the stretch shows whether it begins with a border.
        found = [match.start() for match in _BORDER.finditer(text, begin)]
        if found:
            return found[-1]
        if not begin:
            return None
        reach *= 4


def _has_borders(core: tokenizers.Tokenizer) -> bool:
    """Whether what the head of this module says is proven of this tokenizer."""
    if core.pre_tokenizer is None or (core.normalizer is not None and not _composes(core.normalizer)):
        return False
    model: Any = core.model
    if type(model).__name__ != "BPE" or model.dropout:
        return False
    steps = _steps(json.loads(core.pre_tokenizer.__getstate__()))
    if not (all(map(_is_local, steps)) and any(map(_cuts_words, steps))):
        return False
    return all(
        not (token.rstrip or token.single_word or _BORDER.search(token.content))
        for token in core.get_added_tokens_decoder().values()
    )


def _composes(normalizer: Any) -> bool:
    """Whether it is the one that only joins marks to the letter before them, as no border does."""
    return type(normalizer).__name__ == "NFC"


def _steps(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [each for inner in step["pretokenizers"] for each in _steps(inner)]


def _is_local(step: dict[str, Any]) -> bool:
    """Whether what it does on one side of a border does not depend on the other."""
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    return step["type"] == "Digits" or _is_known_split(step)


def _cuts_words(step: dict[str, Any]) -> bool:
    """Whether it cuts at every border."""
    return (step["type"] == "ByteLevel" and step["use_regex"]) or _is_known_split(step)


def _is_known_split(step: dict[str, Any]) -> bool:
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return False
    pattern = step["pattern"].get("Regex", "")
    alternatives = set(_alternatives(pattern))
    return _SPACES in alternatives and bool(_LETTERS & alternatives) and alternatives <= _ALTERNATIVES


def _alternatives(pattern: str) -> list[str]:
    """What stands between the | of a pattern that are not within parentheses."""
    found, depth, begin = [], 0, 0
    for place, character in enumerate(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and not depth:
            found.append(pattern[begin:place])
            begin = place + 1
    return [*found, pattern[begin:]]
