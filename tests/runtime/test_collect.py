"""Events of one batch put together: order, refusals, strangers, and the best a cache could do."""

from __future__ import annotations

import pytest

from radixlm.runtime.collect import Collector
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Event, Request, TokenLogprob


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), *, n: int = 1, salt: str = "") -> Request:
    return Request(name, prompt, SamplingParams(n=n), salt)


def end(name: str, index: int = 0, text: str = "", tokens: tuple[int, ...] = ()) -> Event:
    return Event(name, index, text, tokens, completion_tokens=len(tokens), finish_reason="stop")


def test_completions_stand_in_the_order_of_the_prompts_not_of_their_ends() -> None:
    collector = Collector()
    collector.expect(request("a", n=2), "first")
    collector.refuse("b", "second", "too long", 9)
    collector.expect(request("c"), "third")
    collector.take([end("c"), end("a", 1)])
    assert (collector.outstanding, collector.done, collector.total) == (1, 3, 4)
    collector.take([end("a", 0)])
    named = [(completion.id, completion.index) for completion in collector.completions()]
    assert named == [("first", 0), ("first", 1), ("second", 0), ("third", 0)]


def test_a_refused_prompt_has_its_reason_and_length() -> None:
    collector = Collector()
    collector.refuse("b", "second", "too long", 9)
    [completion] = collector.completions()
    assert (completion.error, completion.finish_reason, completion.prompt_tokens) == ("too long", "error", 9)


def test_pieces_of_a_completion_are_joined_and_its_totals_are_those_of_the_last_event() -> None:
    collector = Collector()
    collector.expect(request("a"), "x")
    entries = TokenLogprob(7, -1.0), TokenLogprob(8, -2.0)
    prompt = (TokenLogprob(1, None),)
    collector.take([Event("a", 0, "he", (7,), (entries[0],), prompt, 3, 2, 1)])
    collector.take([Event("a", 0, "y", (8,), (entries[1],), (), 3, 2, 2, "stop", "!", None)])
    [completion] = collector.completions()
    assert (completion.text, completion.output_ids) == ("hey", (7, 8))
    assert (completion.logprobs, completion.prompt_logprobs) == (entries, prompt)
    assert (completion.prompt_tokens, completion.cached_tokens, completion.completion_tokens) == (3, 2, 2)
    assert (completion.finish_reason, completion.matched_stop) == ("stop", "!")
    assert collector.generated_tokens == 2


def test_events_of_others_are_not_taken() -> None:
    collector = Collector()
    collector.expect(request("a"), "x")
    collector.take([end("stranger", tokens=(1, 2)), end("a")])
    assert collector.generated_tokens == 0
    assert len(collector.completions()) == 1


def test_completions_cannot_be_had_before_all_are_there() -> None:
    collector = Collector()
    collector.expect(request("a"), "x")
    with pytest.raises(AssertionError, match="complete"):
        collector.completions()


def test_the_optimum_counts_each_prefix_once_a_namespace() -> None:
    collector = Collector()
    collector.expect(request("a", (1, 2, 3)), "a")
    collector.expect(request("b", (1, 2, 4), n=2), "b")
    collector.expect(request("c", (1, 2, 3), salt="other"), "c")
    collector.refuse("d", "d", "too long", 5)
    tokens, hits = collector.optimum()
    assert tokens == 12
    assert hits == pytest.approx((9 - 4) + 0)


def test_a_batch_without_prompts_has_no_optimum() -> None:
    assert Collector().optimum() == (0, 0)
