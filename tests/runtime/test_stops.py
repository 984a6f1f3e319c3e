"""The stop checker, through deltas cut in every way: what is shown, what ends an answer, what is refused."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.errors import InvalidRequest, RequestFailed
from radixlm.runtime.stops import MAX_STOP_LENGTH, MAX_STOPS, REGEX_SPAN, StopChecker, validate_stops


def _run(checker: StopChecker, deltas: Iterable[str]) -> tuple[str, str | None]:
    """The whole answer: text shown until the end, and the stop that ended it."""
    shown = ""
    for delta in deltas:
        update = checker.push(delta)
        shown += update.text
        if update.matched is not None:
            assert checker.finish() == "", "nothing is released after a match"
            return shown, update.matched
    return shown + checker.finish(), None


def _cut(text: str, *places: int) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def _byte_cuts(text: str) -> Iterator[list[str]]:
    """Every two places between bytes, as a detokenizer would give the text: a split character comes late."""
    data = text.encode()
    for a, b in itertools.combinations(range(len(data) + 1), 2):
        first, second = (len(data[:place].decode(errors="ignore")) for place in (a, b))
        yield _cut(text, first, second)


@pytest.mark.parametrize("stop", ["END", "\n\n", "aab", "日本語", "🙂!", "é\u0301"])
@pytest.mark.parametrize("before", ["", "one two", "aaaa", "日本 日", "EN ENEN"])
def test_a_stop_string_cut_at_any_byte_gives_the_text_before_it(stop: str, before: str) -> None:
    text = before + stop + " never shown"
    expected = text.split(stop)[0]
    for deltas in _byte_cuts(text[: len(before + stop) + 3]):
        assert _run(StopChecker((stop,)), deltas) == (expected, stop)


@given(st.text("ab", max_size=24), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_streamed_text_ends_where_the_first_stop_is_complete(text: str, stops: list[str]) -> None:
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    end, length, matched = min(ends, default=(len(text), 0, None))
    expected = (text[: end + length], matched)
    assert _run(StopChecker(stops), [text]) == expected
    assert _run(StopChecker(stops), text) == expected


@given(st.text("ab\n", max_size=30), st.text("ab\n", min_size=1, max_size=5), st.data())
def test_what_is_shown_can_never_become_part_of_a_stop(text: str, stop: str, data: st.DataObject) -> None:
    checker, shown, pushed = StopChecker((stop,)), "", ""
    for delta in _cut(text, *data.draw(st.lists(st.integers(0, len(text)), max_size=6))):
        pushed += delta
        update = checker.push(delta)
        shown += update.text
        if update.matched is not None:
            break
        held = max(n for n in range(len(stop)) if pushed.endswith(stop[:n]))
        assert shown == pushed[: len(pushed) - held], "exactly the possible beginning of a stop is held back"
    assert shown == pushed.split(stop)[0] or stop not in pushed


def test_a_stop_of_three_tokens_is_never_shown_in_part() -> None:
    checker = StopChecker(("<|end|>",))
    shown = [checker.push(delta).text for delta in ("Paris", ".<|", "en", "d|>")]
    assert shown == ["Paris", ".", "", ""]


def test_text_that_only_looked_like_a_stop_is_released() -> None:
    checker = StopChecker(("STOP",))
    assert [checker.push(delta).text for delta in ("a ST", "AND", "S")] == ["a ", "STAND", ""]
    assert checker.finish() == "S"


def test_of_stops_complete_at_the_same_character_the_longest_wins() -> None:
    assert _run(StopChecker(("\n", "a\n", "b")), ["xa\n"]) == ("x", "a\n")


def test_a_shorter_stop_that_is_complete_does_not_wait_for_a_longer_one() -> None:
    assert _run(StopChecker(("\n\n", "\n")), ["x\n\ny"]) == ("x", "\n")
    assert _run(StopChecker(("abcd", "bc")), ["abcd"]) == ("a", "bc")


def test_without_stops_text_passes_through() -> None:
    checker = StopChecker()
    assert checker.push("any text").text == "any text"
    assert checker.finish() == ""


_PATTERNS = [
    "ab+a",
    "(?<=b)a",
    "a(?=b)",
    "(?<!a)bb",
    "(a|b)\\1",
    "a{2,3}b",
    "^a",
    "(?m)^b",
    "\\bb",
    "a$",
    "(?>ab|a)b",
    "[^a]\n",
    "(?:ab|ba)+b",
]


@pytest.mark.parametrize("pattern", _PATTERNS)
@given(text=st.text("ab\n", max_size=14), data=st.data())
def test_a_pattern_ends_text_at_the_first_character_that_completes_it(
    pattern: str, text: str, data: st.DataObject
) -> None:
    found = ((regex.search(pattern, text[:end]), end) for end in range(1, len(text) + 1))
    first = next((match for match, _ in found if match), None)
    expected = (text if first is None else text[: first.start()], None if first is None else pattern)
    deltas = _cut(text, *data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    assert _run(StopChecker((), (pattern,)), deltas) == expected


def test_a_pattern_holds_back_its_possible_beginning_only() -> None:
    checker = StopChecker((), (r"\n+Observation:",))
    assert [checker.push(delta).text for delta in ("think\n", "\nObs", "erver\n", "x")] == [
        "think",
        "",
        "\n\nObserver",
        "\nx",
    ]


def test_strings_and_patterns_work_together() -> None:
    assert _run(StopChecker(("END",), (r"\d{3}",)), ["no 12 EN", "D 123"]) == ("no 12 ", "END")
    assert _run(StopChecker(("END",), (r"\d{3}",)), ["no 12", "3 EN", "D"]) == ("no ", r"\d{3}")


def test_an_unlimited_pattern_holds_back_a_bounded_amount() -> None:
    start = "<" + "x" * (REGEX_SPAN - 2)
    assert _run(StopChecker((), ("<.*>",)), ["ab" + start, ">"]) == ("ab", "<.*>")
    checker = StopChecker((), ("<.*>",))
    assert [checker.push(delta).text for delta in (start, "x", "x", ">")] == ["", "", start + "xx", ">"]


def test_a_lookbehind_still_sees_text_that_was_shown_long_ago() -> None:
    checker = StopChecker((), (r"(?<=a.{600})b",))
    deltas = ["-" * 4000 + "a", *("x" * 100 for _ in range(6)), "b"]
    assert _run(checker, deltas) == ("-" * 4000 + "a" + "x" * 600, r"(?<=a.{600})b")


def test_a_pattern_that_takes_too_long_fails_its_request() -> None:
    checker = StopChecker((), ("(a|aa)+b",))
    with pytest.raises(RequestFailed, match=re.escape("stop_regex '(a|aa)+b' took over")):
        checker.push("a" * 100)


def test_searches_that_are_slow_again_and_again_use_up_the_budget() -> None:
    ticks = itertools.count(0, 0.02)
    checker = StopChecker((), ("ab",), clock=lambda: next(ticks))
    with pytest.raises(RequestFailed, match="processor time"):
        checker.push("x" * 100)


@pytest.mark.parametrize(
    ("stop", "stop_regex", "message"),
    [
        (("",), (), "stop entries must be non-empty strings, got ''"),
        ((3,), (), "stop entries must be non-empty strings, got 3"),
        (("a", "x\udcff"), (), "stop is not valid Unicode: '\\udcff' at character 1"),
        ((), ("\ud83d",), "stop_regex is not valid Unicode"),
        ("text", (), "stop must be a list of strings, got 'text'"),
        (None, (), "stop must be a list of strings, got None"),
        (("x",) * (MAX_STOPS + 1), (), f"at most {MAX_STOPS} entries, got {MAX_STOPS + 1}"),
        (
            ("x" * (MAX_STOP_LENGTH + 1),),
            (),
            f"at most {MAX_STOP_LENGTH} characters, got {MAX_STOP_LENGTH + 1}",
        ),
        ((), ("x" * (MAX_STOP_LENGTH + 1),), f"at most {MAX_STOP_LENGTH} characters"),
        ((), ("(",), r"stop_regex must be a valid pattern, got '('"),
        ((), ("(" * 900 + ")" * 900,), "at most"),
        ((), ("(" * 500 + ")" * 500,), "stop_regex"),
        ((), ("a*",), "must not match the empty text"),
        ((), ("x|",), "must not match the empty text"),
        ((), ("$",), "must not match the empty text"),
        ((), ("(?R)",), "takes too long even on empty text"),
        ((), (r"a\Kb",), r"must not use \K or \G"),
        ((), (r"\\\Gb",), r"must not use \K or \G"),
        ((), ("(?r)ab",), "must not use the reverse flag"),
        ((), ("(?ix)a b",), "must not use the verbose flag"),
        ((), ("(a{1000}){1000}",), "repeat counts multiply"),
        ((), ("a{99999999999999999999}",), "repeat counts multiply"),
    ],
)
def test_stops_that_are_not_allowed_are_refused_with_the_reason(
    stop: tuple[str, ...], stop_regex: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        validate_stops(stop, stop_regex)
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        StopChecker(stop, stop_regex)


@pytest.mark.parametrize(
    "pattern", [r"\\K", r"[\d]{3}-\d{4}", "[0-9a-f]{8}(-[0-9a-f]{4}){3}", "(?i)end", "日+"]
)
def test_ordinary_patterns_are_allowed(pattern: str) -> None:
    validate_stops((), (pattern,))
