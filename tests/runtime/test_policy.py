from __future__ import annotations

from radixlm.runtime.policy import AGE_LIMIT, Budget, Decision, RunningView, WaitingView, decide
from radixlm.runtime.types import SequenceKey


def key(name: str) -> SequenceKey:
    return SequenceKey(name, 0)


def decoding(
    name: str, *, arrival: int = 0, priority: int = 0, growth: int = 0, pages: int = 4
) -> RunningView:
    tokens = [1] * 9
    return RunningView(key(name), priority, arrival, ("",), tokens, 8, 1, pages, growth, 0, prefills=False)


def prefilling(
    name: str,
    tokens: list[int],
    *,
    computed: int = 0,
    arrival: int = 0,
    priority: int = 0,
    namespace: tuple[str, ...] = ("",),
    growth: int = 0,
    reserved: int = 0,
    group: str = "",
) -> RunningView:
    left = len(tokens) - computed
    return RunningView(
        key(name), priority, arrival, namespace, tokens, computed, left, 4, growth, reserved, True, group
    )


def candidate(
    name: str,
    *,
    arrival: int = 0,
    tokens: list[int] | None = None,
    cached: int = 0,
    pages: int = 1,
    priority: int = 0,
    preempted: bool = False,
    passed_over: int = 0,
    own_pages: int | None = None,
    group: str = "",
) -> WaitingView:
    tokens = [100 * arrival + offset for offset in range(8)] if tokens is None else tokens
    remaining = max(1, len(tokens) - cached)
    return WaitingView(
        key(name),
        priority,
        arrival,
        ("",),
        tokens,
        cached,
        remaining,
        pages,
        preempted,
        passed_over,
        own_pages,
        group,
    )


def budget(
    *,
    tokens: int = 64,
    slots: int = 8,
    pages: int = 100,
    shares: bool = True,
    above: int | None = None,
    idle_held: int = 0,
    beside_holds: int = 100,
) -> Budget:
    return Budget(tokens, slots, pages, 4, shares, above, idle_held, beside_holds)


def rows(decision: Decision) -> dict[str, int]:
    return {name.request_id: count for name, count in decision.rows}


def admitted(decision: Decision) -> dict[str, int]:
    """The admitted ones and their tokens, in order of admission."""
    return {name.request_id: count for name, count in decision.admit}


def test_everyone_who_decodes_gets_a_token_before_any_prefill() -> None:
    running = [prefilling("long", [7] * 90), decoding("a", arrival=1), decoding("b", arrival=2)]

    decision = decide("cache-aware", running, [], budget(tokens=10))

    assert rows(decision) == {"a": 1, "b": 1, "long": 8}


def test_the_older_prefill_goes_on_before_the_younger() -> None:
    running = [prefilling("young", [7] * 90, arrival=5), prefilling("old", [8] * 6, arrival=2)]

    assert rows(decide("fcfs", running, [], budget(tokens=10))) == {"old": 6, "young": 4}


def test_running_prefills_go_on_before_new_ones_of_the_same_priority() -> None:
    decision = decide(
        "cache-aware", [prefilling("p", [7] * 6)], [candidate("c", arrival=1)], budget(tokens=10)
    )

    assert rows(decision) == {"p": 6}
    assert admitted(decision) == {"c": 4}


def test_a_higher_priority_is_prefilled_before_running_prefills_of_a_lower() -> None:
    waiting = [candidate("urgent", arrival=1, priority=1)]

    decision = decide("fcfs", [prefilling("p", [7] * 90)], waiting, budget(tokens=10))

    assert admitted(decision) == {"urgent": 8}
    assert rows(decision) == {"p": 2}


def test_nothing_is_admitted_when_the_tokens_are_used_up() -> None:
    decision = decide("fcfs", [prefilling("p", [7] * 90)], [candidate("c", arrival=1)], budget(tokens=10))

    assert admitted(decision) == {}
    assert not decision.blocked


def test_the_longest_match_is_admitted_first() -> None:
    waiting = [
        candidate("cold", arrival=0),
        candidate("hot", arrival=1, cached=7),
        candidate("warm", arrival=2, cached=4),
    ]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["hot", "warm", "cold"]


def test_fcfs_admits_in_order_of_arrival() -> None:
    waiting = [candidate("hot", arrival=1, cached=7), candidate("cold", arrival=0)]

    assert list(admitted(decide("fcfs", [], waiting, budget()))) == ["cold", "hot"]


def test_priority_comes_before_matches_and_arrival() -> None:
    waiting = [candidate("hot", arrival=0, cached=7), candidate("urgent", arrival=1, priority=1)]

    for policy in ("cache-aware", "fcfs"):
        assert list(admitted(decide(policy, [], waiting, budget()))) == ["urgent", "hot"]


def test_who_was_passed_over_too_often_goes_first_in_order_of_arrival() -> None:
    waiting = [
        candidate("hot", arrival=0, cached=7),
        candidate("patient", arrival=2, passed_over=AGE_LIMIT),
        candidate("old", arrival=1, passed_over=AGE_LIMIT, cached=1),
        candidate("younger", arrival=3, passed_over=AGE_LIMIT - 1, cached=2),
    ]

    order = list(admitted(decide("cache-aware", [], waiting, budget())))
    assert order == ["old", "patient", "hot", "younger"]


def test_who_was_preempted_goes_first() -> None:
    waiting = [candidate("hot", arrival=0, cached=7), candidate("back", arrival=9, preempted=True)]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["back", "hot"]


def test_who_is_next_and_does_not_fit_holds_up_all_behind_it() -> None:
    running = [decoding("r")]
    waiting = [candidate("large", arrival=1, pages=9), candidate("small", arrival=2, pages=1)]

    decision = decide("fcfs", running, waiting, budget(pages=8))

    assert admitted(decision) == {}
    assert decision.blocked


def test_pages_that_running_ones_grow_by_are_not_given_to_new_ones() -> None:
    waiting = [candidate("c", arrival=1, pages=5)]

    assert not admitted(decide("fcfs", [decoding("r", growth=1)], waiting, budget(pages=5)))
    assert admitted(decide("fcfs", [decoding("r", growth=1)], waiting, budget(pages=6)))


def test_pages_that_a_prefill_has_still_to_take_are_not_given_to_new_ones() -> None:
    running = [prefilling("p", [7] * 90, growth=2, reserved=20)]
    waiting = [candidate("c", arrival=1, pages=3)]

    refused = decide("fcfs", running, waiting, budget(tokens=200, pages=24))
    assert rows(refused) == {"p": 90}
    assert not admitted(refused)
    assert refused.blocked
    assert admitted(decide("fcfs", running, waiting, budget(tokens=200, pages=25)))


def test_pages_reserved_for_later_preempt_nobody_now() -> None:
    running = [prefilling("p", [7] * 90, growth=2, reserved=20), decoding("d", arrival=1, growth=1)]

    assert rows(decide("fcfs", running, [], budget(tokens=10, pages=3))) == {"d": 1, "p": 9}
    assert decide("fcfs", running, [], budget(tokens=10, pages=2)).preempt == key("d")


def test_a_higher_priority_preempts_a_prefill_for_the_pages_it_has_still_to_take() -> None:
    running = [prefilling("p", [7] * 90, growth=2, reserved=20)]
    waiting = [candidate("urgent", arrival=1, priority=1, pages=24)]

    assert decide("fcfs", running, waiting, budget(pages=22)).preempt == key("p")


def test_each_admission_takes_its_pages_and_its_slot() -> None:
    waiting = [candidate(str(arrival), arrival=arrival, pages=3) for arrival in range(5)]

    assert len(admitted(decide("fcfs", [], waiting, budget(pages=7)))) == 2
    assert len(admitted(decide("fcfs", [], waiting, budget(slots=3)))) == 3


def test_the_first_is_admitted_whatever_its_match_pins_when_nothing_runs() -> None:
    waiting = [candidate("all", arrival=0, pages=9), candidate("next", arrival=1, pages=1)]

    assert list(admitted(decide("fcfs", [], waiting, budget(pages=8)))) == ["all"]


def test_the_youngest_of_the_lowest_priority_is_preempted_when_pages_run_out() -> None:
    running = [
        decoding("high", arrival=9, priority=1, growth=1),
        decoding("young", arrival=8, growth=1),
        decoding("old", arrival=1, growth=1),
    ]

    decision = decide("fcfs", running, [candidate("c")], budget(pages=2))

    assert decision == Decision(preempt=key("young"))


def test_after_a_preemption_only_a_higher_priority_is_admitted() -> None:
    waiting = [candidate("urgent", arrival=1, priority=2), candidate("same", arrival=2, priority=1)]

    decision = decide("cache-aware", [decoding("r", priority=1)], waiting, budget(above=1))

    assert list(admitted(decision)) == ["urgent"]


def test_a_higher_priority_preempts_a_lower_for_its_slot() -> None:
    running = [decoding("old", arrival=0), decoding("young", arrival=1)]
    waiting = [candidate("urgent", arrival=2, priority=1)]

    assert decide("fcfs", running, waiting, budget(slots=2)).preempt == key("young")


def test_a_higher_priority_preempts_a_lower_for_its_pages() -> None:
    running = [decoding("old", arrival=0), decoding("young", arrival=1)]
    waiting = [candidate("urgent", arrival=2, priority=1, pages=8)]

    assert decide("fcfs", running, waiting, budget(pages=2)).preempt == key("young")


def test_nobody_is_preempted_if_that_cannot_help() -> None:
    running = [decoding("low", arrival=0, pages=4), decoding("high", arrival=1, priority=1)]
    waiting = [candidate("urgent", arrival=2, priority=1, pages=8)]

    decision = decide("fcfs", running, waiting, budget(pages=2))

    assert decision.preempt is None
    assert decision.blocked


def test_equals_never_preempt_each_other() -> None:
    decision = decide("fcfs", [decoding("r")], [candidate("c", arrival=1)], budget(slots=1))

    assert decision.preempt is None
    assert not decision.blocked


def test_a_sibling_waits_for_the_prefill_that_computes_its_prefix() -> None:
    shared = [5] * 8
    running = [prefilling("first", [*shared, 1, 2], computed=4)]
    sibling = candidate("second", arrival=1, tokens=[*shared, 3, 4], cached=4)

    assert not admitted(decide("cache-aware", running, [sibling], budget()))


def test_of_siblings_that_arrive_together_one_is_admitted() -> None:
    waiting = [candidate(str(n), arrival=n, tokens=[5] * 8 + [n]) for n in range(4)]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["0"]


def test_others_pass_a_sibling_that_waits() -> None:
    waiting = [
        candidate("0", arrival=0, tokens=[5] * 8),
        candidate("1", arrival=1, tokens=[5] * 8),
        candidate("2", arrival=2, tokens=[6] * 8),
    ]

    assert list(admitted(decide("fcfs", [], waiting, budget()))) == ["0", "2"]


def test_less_than_a_page_is_not_waited_for() -> None:
    running = [prefilling("first", [5, 5, 5, 1, 1, 1])]

    assert admitted(decide("fcfs", running, [candidate("c", tokens=[5, 5, 5, 2, 2, 2])], budget()))


def test_a_part_that_is_computed_already_is_not_waited_for() -> None:
    running = [prefilling("first", [5] * 8 + [1] * 8, computed=8)]

    assert admitted(decide("fcfs", running, [candidate("c", tokens=[5] * 8, cached=4)], budget()))


def test_nobody_waits_across_namespaces_or_for_a_lower_priority_or_without_a_cache() -> None:
    tokens = [5] * 8
    foreign = prefilling("foreign", tokens, namespace=("salt",))
    sibling = candidate("c", arrival=1, tokens=tokens)

    assert admitted(decide("fcfs", [foreign], [sibling], budget()))
    assert admitted(decide("fcfs", [prefilling("p", tokens)], [sibling._replace(priority=1)], budget()))
    assert admitted(decide("fcfs", [prefilling("p", tokens)], [sibling], budget(shares=False)))


def test_a_match_that_differs_before_its_end_is_no_sibling() -> None:
    running = [prefilling("first", [1, 1, 1, 1, 5, 5, 5, 5])]
    other = candidate("c", tokens=[2, 2, 2, 2, 5, 5, 5, 5], cached=4)

    assert admitted(decide("fcfs", running, [other], budget()))


# -- a batch that is known as a whole ------------------------------------------------------------------


def test_a_batch_keeps_its_order_whatever_is_cached() -> None:
    waiting = [
        candidate("third", arrival=3, cached=7, own_pages=1),
        candidate("first", arrival=1, own_pages=2),
        candidate("second", arrival=2, cached=4, own_pages=1),
    ]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["first", "second", "third"]


def test_a_single_request_with_a_match_goes_before_a_batch_and_one_without_after() -> None:
    waiting = [
        candidate("batch", arrival=1, cached=7, own_pages=1),
        candidate("hot", arrival=2, cached=4),
        candidate("cold", arrival=3),
    ]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["hot", "batch", "cold"]


def test_a_preempted_member_of_a_batch_comes_first() -> None:
    waiting = [
        candidate("next", arrival=1, own_pages=1),
        candidate("back", arrival=2, preempted=True, own_pages=1),
    ]

    assert list(admitted(decide("cache-aware", [], waiting, budget()))) == ["back", "next"]


SHARED = [5] * 8


def subtree_and_next(pages: int = 3) -> list[WaitingView]:
    """Two that wait for a prefill of SHARED, each with two pages of its own, and one of the next subtree."""
    return [
        candidate("one", arrival=1, tokens=[*SHARED, 1], pages=4, own_pages=2),
        candidate("two", arrival=2, tokens=[*SHARED, 2], pages=4, own_pages=2),
        candidate("next", arrival=3, tokens=[6] * 8, pages=pages, own_pages=3),
    ]


def test_the_next_subtree_begins_if_there_is_room_for_it_beside_the_members_that_wait() -> None:
    running = [prefilling("first", SHARED, reserved=2)]

    assert list(admitted(decide("cache-aware", running, subtree_and_next(), budget(pages=2 + 7)))) == ["next"]
    decision = decide("cache-aware", running, subtree_and_next(), budget(pages=2 + 6))
    assert admitted(decision) == {}
    assert rows(decision) == {"first": 8}
    assert not decision.blocked, "it waits for its turn, not for pages"


def test_what_waits_counts_in_the_step_that_admits_the_first_of_its_subtree() -> None:
    first = candidate("first", tokens=SHARED, pages=2, own_pages=2)

    decision = decide("cache-aware", [], [first, *subtree_and_next()], budget(pages=2 + 6))
    assert list(admitted(decision)) == ["first"]
    decision = decide("cache-aware", [], [first, *subtree_and_next()], budget(pages=2 + 7))
    assert list(admitted(decision)) == ["first", "next"]


def test_nobody_is_preempted_to_begin_a_subtree_early() -> None:
    running = [
        prefilling("first", SHARED, priority=1, reserved=2),
        decoding("low", arrival=9, pages=50),
    ]
    waiting = [view._replace(priority=1) for view in subtree_and_next()]

    assert decide("cache-aware", running, waiting, budget(pages=2 + 6)).preempt is None


def test_a_single_request_does_not_stand_back_for_members_that_wait() -> None:
    running = [prefilling("first", SHARED, reserved=2)]
    *members, _ = subtree_and_next()
    single = candidate("single", arrival=3, tokens=[6] * 8, pages=3)

    decision = decide("cache-aware", running, [*members, single], budget(pages=2 + 3))

    assert list(admitted(decision)) == ["single"]


# -- those that were forked together -------------------------------------------------------------------


def test_siblings_come_right_behind_the_first_of_them() -> None:
    waiting = [
        candidate("b0", arrival=0, cached=1, group="b"),
        candidate("warm", arrival=1, cached=4),
        candidate("a0", arrival=2, cached=6, group="a"),
        candidate("b1", arrival=3, group="b"),
        candidate("a1", arrival=4, group="a"),
        candidate("hot", arrival=5, cached=7),
    ]

    by_match = list(admitted(decide("cache-aware", [], waiting, budget())))
    by_arrival = list(admitted(decide("fcfs", [], waiting, budget())))

    assert by_match == ["hot", "a0", "a1", "warm", "b0", "b1"]
    assert by_arrival == ["b0", "b1", "warm", "a0", "a1", "hot"]


def test_siblings_of_one_that_runs_come_before_the_others_of_their_priority() -> None:
    running = [prefilling("a0", [9] * 3, arrival=1, group="a")]
    waiting = [
        candidate("hot", arrival=0, cached=7),
        candidate("patient", arrival=2, passed_over=AGE_LIMIT),
        candidate("a1", arrival=3, group="a"),
        candidate("urgent", arrival=4, priority=1),
    ]

    by_match = list(admitted(decide("cache-aware", running, waiting, budget())))
    by_arrival = list(admitted(decide("fcfs", running, [waiting[0], *waiting[2:]], budget())))

    assert by_match == ["urgent", "patient", "a1", "hot"]
    assert by_arrival == ["urgent", "hot", "a1"]


def test_groups_of_two_priorities_or_namespaces_are_two_groups() -> None:
    running = [prefilling("other", [9] * 3, arrival=1, group="a", namespace=("salt",))]
    waiting = [
        candidate("hot", arrival=2, cached=7),
        candidate("a1", arrival=3, group="a"),
        candidate("first", arrival=4, priority=1, group="a"),
    ]

    assert list(admitted(decide("cache-aware", running, waiting, budget()))) == ["first", "hot", "a1"]


def test_by_arrival_siblings_do_not_pass_one_that_was_passed_over_too_often() -> None:
    running = [prefilling("a0", [9] * 3, arrival=0, group="a")]
    waiting = [
        candidate("patient", arrival=1, passed_over=AGE_LIMIT),
        candidate("a1", arrival=2, group="a"),
    ]

    assert list(admitted(decide("fcfs", running, waiting, budget()))) == ["patient", "a1"]
    waiting[0] = waiting[0]._replace(passed_over=AGE_LIMIT - 1)
    assert list(admitted(decide("fcfs", running, waiting, budget()))) == ["a1", "patient"]


def test_slots_are_kept_for_siblings_that_wait_for_the_prefill_of_their_first() -> None:
    first = prefilling("first", SHARED, group="a")
    siblings = [candidate(str(n), arrival=n, tokens=[*SHARED, n], group="a") for n in (1, 2)]
    other = candidate("other", arrival=3)

    assert not admitted(decide("cache-aware", [first], [*siblings, other], budget(slots=3)))
    assert admitted(decide("cache-aware", [first], [*siblings, other], budget(slots=4)))
    alone = first._replace(group="")
    assert admitted(decide("cache-aware", [alone], [*siblings, other], budget(slots=3)))


def test_nobody_of_a_lower_priority_is_preempted_for_a_slot_that_is_kept() -> None:
    running = [prefilling("first", SHARED, priority=1, group="a"), decoding("low", arrival=9)]
    sibling = candidate("sibling", arrival=1, tokens=[*SHARED, 1], priority=1, group="a")
    other = candidate("other", arrival=2, priority=1)

    decision = decide("cache-aware", running, [sibling, other], budget(slots=3))

    assert (decision.preempt, admitted(decision)) == (None, {})


# -- holds ---------------------------------------------------------------------------------------------


def test_whoever_runs_alone_breaks_holds_for_its_next_page() -> None:
    decision = decide("fcfs", [decoding("r", growth=3)], [], budget(pages=1, idle_held=4))

    assert decision == Decision(give_way=2)


def test_of_several_that_decode_one_is_preempted_before_a_hold_is_broken() -> None:
    running = [decoding("old", growth=1), decoding("young", arrival=1, growth=1)]

    assert decide("fcfs", running, [], budget(pages=1, idle_held=4)) == Decision(preempt=key("young"))


def test_prefills_do_not_lose_what_was_reserved_for_them_to_a_hold() -> None:
    running = [prefilling(name, [7] * 90, growth=2) for name in "ab"]

    assert decide("fcfs", running, [], budget(pages=3, idle_held=4)) == Decision(give_way=1)


def test_when_nothing_runs_the_next_in_turn_breaks_holds() -> None:
    waiting = [candidate("large", arrival=0, pages=9), candidate("small", arrival=1, pages=1)]

    assert decide("fcfs", [], waiting, budget(pages=8, idle_held=4)) == Decision(give_way=1)
    assert list(admitted(decide("fcfs", [], waiting, budget(pages=9, idle_held=4)))) == ["large"]


def test_while_others_run_the_next_in_turn_waits_for_them_first() -> None:
    waiting = [candidate("large", arrival=1, pages=9)]

    decision = decide("fcfs", [decoding("r")], waiting, budget(pages=8, idle_held=4, beside_holds=9))

    assert (decision.blocked, decision.give_way) == (True, 0)


def test_who_would_not_fit_beside_the_holds_even_alone_does_not_wait_for_others() -> None:
    waiting = [candidate("large", arrival=1, pages=9)]

    decision = decide("fcfs", [decoding("r")], waiting, budget(pages=5, idle_held=4, beside_holds=8))
    assert decision == Decision(give_way=4)
    decision = decide("fcfs", [decoding("r")], waiting, budget(pages=4, idle_held=4, beside_holds=8))
    assert (decision.blocked, decision.give_way) == (True, 0)


def test_no_hold_is_broken_for_one_that_lacks_more_than_pages() -> None:
    waiting = [candidate("large", arrival=1, pages=9)]

    for limits in (budget(pages=5, slots=1, idle_held=9, beside_holds=8), budget(tokens=1, pages=5)):
        decision = decide("fcfs", [decoding("r")], waiting, limits)
        assert (decision.give_way, admitted(decision)) == (0, {})
