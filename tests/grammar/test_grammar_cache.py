"""The cache of compiled grammars: its bound, what goes first, and how failures are kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixlm.runtime.grammar.grammar_cache import Failure, GrammarCache
from radixlm.runtime.grammar.protocol import Grammar, Report
from radixlm.runtime.grammar.spec import GrammarSpec

EXACT = Report()


@dataclass
class Sized:
    """A compiled grammar of some size."""

    size_bytes: int
    report: Report = EXACT

    def start(self) -> Grammar:
        raise AssertionError("nothing is generated with it")

    def check(self, text: str) -> str | None:
        return None


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


ROOM_FOR_THREE = 3 * (10_000 + 1024 + 16)


def spec(text: str) -> GrammarSpec:
    return GrammarSpec("regex", text)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> GrammarCache:
    return GrammarCache(ROOM_FOR_THREE, most_failure_bytes=10_000, now=clock)


def fill(cache: GrammarCache, *texts: str) -> None:
    for text in texts:
        cache.keep(spec(text), Sized(10_000))
        cache.check()


def known(cache: GrammarCache, texts: str) -> str:
    return "".join(text for text in texts if cache.find(spec(text)) is not None)


def test_what_was_kept_is_found_itself(cache: GrammarCache) -> None:
    compiled = Sized(5)
    cache.keep(spec("a"), compiled)
    assert cache.find(spec("a")) is compiled
    assert cache.find(spec("b")) is None


@pytest.mark.parametrize(
    "other",
    [
        GrammarSpec("lark", "a"),
        GrammarSpec("regex", "a", relaxed=True),
        GrammarSpec("regex", "a", compact=True),
        GrammarSpec("regex", "a", after="</think>"),
    ],
)
def test_every_part_of_a_spec_counts(cache: GrammarCache, other: GrammarSpec) -> None:
    cache.keep(spec("a"), Sized(5))
    assert cache.find(other) is None


def test_the_least_recently_used_goes_first(cache: GrammarCache) -> None:
    fill(cache, "a", "b", "c")
    cache.find(spec("a"))
    fill(cache, "d")
    assert known(cache, "abcd") == "acd"
    assert cache.stats().evictions == 1


def test_a_grammar_larger_than_the_cache_is_not_kept_and_drives_nothing_out(cache: GrammarCache) -> None:
    fill(cache, "a")
    cache.keep(spec("b"), Sized(ROOM_FOR_THREE))
    assert known(cache, "ab") == "a"


def test_the_text_of_a_spec_counts_as_well(cache: GrammarCache) -> None:
    cache.keep(spec("a" * ROOM_FOR_THREE), Sized(0))
    assert cache.stats().entries == 0


def test_a_grammar_that_has_grown_is_noticed_when_it_is_used(cache: GrammarCache) -> None:
    fill(cache, "a", "b")
    growing = Sized(10)
    cache.keep(spec("c"), growing)
    growing.size_bytes = 12_000
    assert cache.find(spec("c")) is growing
    cache.check()
    assert known(cache, "abc") == "bc"


def test_keeping_a_spec_again_counts_it_once(cache: GrammarCache) -> None:
    fill(cache, "a", "a", "a", "a")
    assert cache.stats().entries == 1
    assert cache.stats().bytes < ROOM_FOR_THREE / 2


def test_a_failure_is_found_with_its_message(cache: GrammarCache) -> None:
    cache.keep_failure(spec("("), "no such group", for_good=True)
    assert cache.find(spec("(")) == Failure("no such group")
    assert cache.stats().failures == 1


def test_a_failure_that_says_nothing_for_good_is_forgotten_after_a_while(
    cache: GrammarCache, clock: Clock
) -> None:
    cache.keep_failure(spec("a"), "took too long", for_good=False)
    cache.keep_failure(spec("b"), "is wrong", for_good=True)
    clock.seconds = 59.0
    assert known(cache, "ab") == "ab"
    clock.seconds = 60.0
    assert known(cache, "ab") == "b"
    cache.check()


def test_failures_are_bounded_and_take_no_room_from_grammars(cache: GrammarCache) -> None:
    fill(cache, "a", "b", "c")
    for number in range(100):
        cache.keep_failure(spec(f"({number}"), "no such group", for_good=True)
        cache.check()
    assert cache.stats().failures == 10_000 // (1024 + 15 + 3) == 9
    assert known(cache, "abc") == "abc"


def test_a_failure_whose_text_is_larger_than_the_bound_is_not_kept(cache: GrammarCache) -> None:
    cache.keep_failure(spec("x" * 20_000), "too long", for_good=True)
    assert cache.stats().failures == 0


def test_a_spec_that_compiles_after_all_is_no_failure_any_more(cache: GrammarCache) -> None:
    cache.keep_failure(spec("a"), "took too long", for_good=False)
    fill(cache, "a")
    assert isinstance(cache.find(spec("a")), Sized)
    cache.keep_failure(spec("a"), "took too long", for_good=False)
    cache.check()


def test_hits_and_misses_are_counted(cache: GrammarCache) -> None:
    fill(cache, "a")
    cache.keep_failure(spec("b"), "is wrong", for_good=True)
    assert known(cache, "abcd") == "ab"
    assert (cache.stats().hits, cache.stats().misses) == (2, 2)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["keep", "fail", "find"]), st.integers(0, 7), st.integers(0, 30_000)),
        max_size=60,
    )
)
def test_the_bounds_hold_whatever_is_done(steps: list[tuple[str, int, int]]) -> None:
    cache = GrammarCache(ROOM_FOR_THREE, most_failure_bytes=5_000)
    for what, number, size in steps:
        if what == "keep":
            cache.keep(spec(str(number)), Sized(size))
        elif what == "fail":
            cache.keep_failure(spec(str(number)), "x" * (size // 10), for_good=True)
        else:
            cache.find(spec(str(number)))
        cache.check()


def test_threads_may_use_it_at_once(cache: GrammarCache) -> None:
    def use(seed: int) -> None:
        for number in range(300):
            fill(cache, str((seed + number) % 11))
            cache.find(spec(str(number % 7)))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.check()
    assert cache.stats().hits + cache.stats().misses == 1200
