"""Reasoning: told apart from the answer however it is cut, and where an answer begins by its prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from radixlm.runtime.server.reasoning import ReasoningSplitter, Start, habit_of
from radixlm.runtime.tokenizer import Tokenizer
from testkit.byte_tokenizer import build_byte_tokenizer

HEAD = "{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}\n{% endfor %}"
ANSWER = "{% if add_generation_prompt %}assistant: "
SILENT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
HYBRID = f"{HEAD}{ANSWER}{SILENT}{{% endif %}}"
ALWAYS = f"{HEAD}{ANSWER}<think>\n{{% endif %}}"
ASKED = HEAD + ANSWER + "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
NEVER = f"{HEAD}{ANSWER}{{% endif %}}"
USER = [{"role": "user", "content": "?"}]


def split(start: Start, pieces: Iterable[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(start)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("start", "text", "expected"),
    [
        (Start.INSIDE, "\nI see.\n</think>\n\nYes.\n", ("I see.", "Yes.\n")),
        (Start.INSIDE, "I see.\n\n</th", ("I see.\n\n</th", "")),
        (Start.INSIDE, "a </thin b\n\nc</think>d</think>", ("a </thin b\n\nc", "d</think>")),
        (Start.INSIDE, "\n\n</think>\n\n", ("", "")),
        (Start.INSIDE, "", ("", "")),
        (Start.BEFORE, "<think>\nI see.\n</think>\n\nYes.", ("I see.", "Yes.")),
        (Start.BEFORE, "\n <think>I see", ("I see", "")),
        (Start.BEFORE, "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
        (Start.BEFORE, "\nYes. <think>x</think>", ("", "\nYes. <think>x</think>")),
        (Start.BEFORE, " <thin", ("", " <thin")),
        (Start.BEHIND, "\n<think>x</think>\n", ("", "\n<think>x</think>\n")),
    ],
)
def test_both_texts_are_the_same_however_the_answer_is_cut(
    start: Start, text: str, expected: tuple[str, str]
) -> None:
    assert split(start, [text]) == expected
    assert split(start, text) == expected
    for at in range(1, len(text)):
        assert split(start, [text[:at], text[at:]]) == expected


def test_reasoning_is_told_as_soon_as_it_is_sure() -> None:
    splitter = ReasoningSplitter(Start.INSIDE)
    assert splitter.push("I see") == ("I see", "")
    assert splitter.push(".\n</th") == (".", "")
    assert splitter.push("e") == ("\n</the", "")


def start_of(template: str, setting: str = "auto", continued: str | None = None, **options: Any) -> Start:
    tokenizer = build_byte_tokenizer(chat_template=template)
    ids = tuple(tokenizer.apply_chat_template(USER, template_kwargs=options))
    return habit_of(setting, tokenizer).start(tokenizer, ids, continued)


def test_the_end_of_the_prompt_says_where_the_answer_begins() -> None:
    assert start_of(ALWAYS) is Start.INSIDE
    assert start_of(HYBRID) is Start.BEFORE
    assert start_of(HYBRID, enable_thinking=False) is Start.BEHIND
    assert start_of(ASKED) is Start.BEHIND
    assert start_of(ASKED, thinking=True) is Start.INSIDE
    assert start_of(NEVER) is Start.BEHIND, "that it drops reasoning of earlier turns means nothing"


def test_a_parser_that_is_set_wins_over_the_template() -> None:
    assert start_of(NEVER, "think") is Start.BEFORE
    assert start_of(HYBRID, "none") is start_of(ALWAYS, "none") is Start.BEHIND


def test_an_answer_that_continues_a_message_begins_where_that_ended() -> None:
    assert start_of(HYBRID, continued="<think>\nSo far") is Start.INSIDE
    assert start_of(HYBRID, continued="<think>\nSo</think>\n\nIt") is Start.BEHIND
    assert start_of(HYBRID, continued="It") is Start.BEHIND


def test_a_template_that_refuses_a_plain_question_shows_nothing() -> None:
    tokenizer: Tokenizer = build_byte_tokenizer(chat_template="</think>{{ raise_exception('no') }}")
    assert habit_of("auto", tokenizer).thinks is False
    assert habit_of("auto", build_byte_tokenizer(chat_template=None)).thinks is False
