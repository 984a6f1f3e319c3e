"""What a cache that never forgets would find, from hashes of prefixes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from radixlm.radix.replay import optimal_hit_rate
from radixlm.runtime.prefix_history import RUN, PrefixHistory


def known(history: PrefixHistory, tokens: Sequence[int], namespace: str = "") -> int:
    return history.enter(namespace, tuple(tokens)).known


@pytest.mark.parametrize("length", [0, 1, RUN - 1, RUN, RUN + 1, 5 * RUN + 3])
def test_a_text_is_new_once_and_then_known_in_whole_runs(length: int) -> None:
    history = PrefixHistory()
    assert known(history, range(length)) == 0
    assert known(history, range(length)) == length - length % RUN


def test_what_two_texts_share_is_known_up_to_the_run_in_which_they_part() -> None:
    history = PrefixHistory()
    known(history, [1] * 100)
    assert known(history, [1] * 50 + [2] * 50) == 48
    assert known(history, [1] * 50 + [2] * 10) == 48
    assert known(history, [2] * 100) == 0


def test_the_same_run_after_another_beginning_is_another_one() -> None:
    history = PrefixHistory()
    known(history, [*range(RUN), *[7] * RUN])
    assert known(history, [*range(1, RUN + 1), *[7] * RUN]) == 0
    assert known(history, [7] * RUN) == 0


def test_namespaces_share_nothing() -> None:
    history = PrefixHistory()
    known(history, range(64), "a")
    assert known(history, range(64), "b") == 0
    assert known(history, range(64), "a") == 64


def test_a_text_that_goes_on_is_one_text() -> None:
    history, text = PrefixHistory(), tuple(range(500))
    trail = history.enter("", text[:333])
    after = history.go_on(trail, text[trail.length :])
    assert (trail.length, after.length) == (320, 496)
    assert history.enter("", text) == history.go_on(history.enter("", text[:40]), text[32:])
    assert known(history, text) == 496


def test_going_on_tells_how_much_of_the_whole_was_known() -> None:
    history, text = PrefixHistory(), tuple(range(96))
    known(history, text[:64])
    assert history.go_on(history.enter("", text[:32]), text[32:]).known == 64
    other = (*text[:16], *[500] * 16)
    assert history.go_on(history.enter("", other), text[32:]).known == 16


def test_it_is_bounded_and_forgets_what_was_not_met_for_longest() -> None:
    history = PrefixHistory(100)
    first = [9] * (RUN * 20)
    for text in range(120):
        known(history, [text] * RUN)
        assert known(history, first) == (0 if text == 0 else len(first)), "what is met again and again stays"
        assert len(history) <= 100
    assert known(history, [0] * RUN) == 0, "forgotten"
    assert known(history, [119] * RUN) == RUN


def test_a_text_longer_than_the_memory_does_no_harm() -> None:
    history = PrefixHistory(8)
    for _ in range(3):
        known(history, range(100 * RUN))
        assert len(history) <= 8


def test_of_texts_in_whole_runs_it_finds_what_their_trie_says() -> None:
    generator = random.Random(4)
    texts = [[token for _ in range(8) for token in [generator.randrange(2)] * RUN] for _ in range(200)]
    history = PrefixHistory()
    found = sum(known(history, text) for text in texts)
    assert found / sum(map(len, texts)) == pytest.approx(optimal_hit_rate(texts))
