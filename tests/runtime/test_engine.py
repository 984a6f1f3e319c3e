"""The engine from outside: prompts of every form, choices, seeds, ends and what it tells of itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from radixlm.kernels import cpu_draw, cpu_fused
from radixlm.kernels.cpu_team import job
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import EngineStopped, InvalidConfig, InvalidRequest, TooLarge
from radixlm.runtime.progress import EngineProgress
from radixlm.runtime.prompts import Prompt, PromptInput
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.types import Completion, Event, Request, SequenceKey
from testkit.byte_tokenizer import BOS_ID, EOS_ID, FIRST_BYTE_ID, VOCAB_SIZE

OpenEngine = Callable[..., Engine]


def greedy(max_tokens: int = 6, **more: Any) -> SamplingParams:  # Any: fields of SamplingParams
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True, **more})


def drawn(max_tokens: int = 6, **more: Any) -> SamplingParams:
    return greedy(max_tokens, **{"temperature": 1.0, **more})


def run_out(engine: Engine) -> list[Event]:
    """All events until nothing is left to do."""
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    return events


def ids_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [completion.output_ids for completion in completions]


def numbers(count: int, start: int = 0) -> list[int]:
    """Token ids that look like nothing in particular."""
    return [2 + (i * i * 7 + i * 13) % (VOCAB_SIZE - 2) for i in range(start, start + count)]


def test_a_warm_up_compiles_what_draws_and_leaves_nothing_behind(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, mask = job(cpu_draw._draw_job._function), job(cpu_fused._mask_job._function)
    monkeypatch.setattr(cpu_draw, "_draw_job", draw)
    monkeypatch.setattr(cpu_fused, "_mask_job", mask)
    engine = open_engine()
    engine.warm_up()
    assert "address" in vars(draw), "it is compiled"
    assert "address" in vars(mask), "it is compiled"
    assert engine.cache.cached_tokens == 0
    assert not engine.has_work


# -- forms of prompts ------------------------------------------------------------------------------


def test_the_same_prompt_as_text_as_ids_and_as_a_prompt_has_the_same_completion(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine()
    ids = engine.tokenizer.encode("the thin air")
    forms: list[PromptInput] = ["the thin air", ids, Prompt("the thin air"), Prompt(tuple(ids))]
    completions = engine.generate(forms, greedy())
    assert len(set(ids_of(completions))) == 1
    assert {completion.prompt_tokens for completion in completions} == {len(ids)}


@pytest.mark.parametrize(
    "prompt", ["one", [5, 6, 7], {"messages": [{"role": "user", "content": "one"}]}, Prompt("one")]
)
def test_one_prompt_needs_no_list_around_it(open_engine: OpenEngine, prompt: PromptInput) -> None:
    engine = open_engine()
    alone, listed = engine.generate(prompt, greedy()), engine.generate([prompt], greedy())
    assert len(alone) == 1
    assert ids_of(alone) == ids_of(listed)


def test_a_chat_has_exactly_the_ids_of_its_rendered_template(open_engine: OpenEngine) -> None:
    engine = open_engine()
    [completion] = engine.generate({"messages": [{"role": "user", "content": "hi"}]}, greedy())
    spelled = [BOS_ID, *(FIRST_BYTE_ID + b for b in b"[user] hi"), EOS_ID]
    tail = [FIRST_BYTE_ID + b for b in b"\n[assistant] "]
    by_hand = engine.generate([spelled + tail], greedy())
    assert engine.encode(Prompt(({"role": "user", "content": "hi"},))).count(BOS_ID) == 1
    assert completion.text == by_hand[0].text


def test_no_prompts_give_no_completions(open_engine: OpenEngine) -> None:
    assert open_engine().generate([], greedy()) == []


def test_completions_come_in_the_order_of_the_prompts_whoever_ends_first(open_engine: OpenEngine) -> None:
    engine = open_engine(max_running=2)
    prompts: list[PromptInput] = [Prompt(tuple(numbers(9, i)), id=f"p{i}") for i in range(5)]
    lengths = [9, 1, 5, 0, 3]
    completions = engine.generate(prompts, [greedy(length) for length in lengths])
    assert [completion.id for completion in completions] == ["p0", "p1", "p2", "p3", "p4"]
    assert [completion.completion_tokens for completion in completions] == lengths
    assert [len(completion.output_ids) for completion in completions] == lengths


def test_prompts_without_an_id_are_numbered_by_place(open_engine: OpenEngine) -> None:
    completions = open_engine().generate(["a", Prompt("b", id="mine"), "c"], greedy(1))
    assert [completion.id for completion in completions] == ["0", "mine", "2"]


def test_equal_ids_in_one_batch_are_two_prompts(open_engine: OpenEngine) -> None:
    first, second = open_engine().generate([Prompt("a", id="x"), Prompt("b", id="x")], greedy())
    assert (first.id, second.id) == ("x", "x")
    assert first.output_ids != second.output_ids


def test_a_prompts_own_sampling_wins_over_that_of_the_batch(open_engine: OpenEngine) -> None:
    completions = open_engine().generate(["a", Prompt("a", sampling=greedy(2))], greedy(4))
    assert [completion.completion_tokens for completion in completions] == [4, 2]


def test_as_many_sampling_parameters_as_prompts_are_needed(open_engine: OpenEngine) -> None:
    with pytest.raises(InvalidRequest, match="got 1 sampling parameters for 2 prompts"):
        open_engine().generate(["a", "b"], [greedy()])


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([5, VOCAB_SIZE], f"token id {VOCAB_SIZE} is not in the vocabulary, ids are 0 to {VOCAB_SIZE - 1}"),
        ([5, -1], "at least 0, got -1"),
        ({"messages": [{"role": "pirate", "content": "arr"}]}, "role pirate is not supported"),
        ({"text": "a"}, "messages"),
        ("\ud83d", "not valid Unicode"),
        (numbers(256), "the context is 256 tokens"),
        (None, "must be a list of integers, got None"),
        (Prompt("a", sampling=SamplingParams(stop_token_ids=(VOCAB_SIZE,))), str(VOCAB_SIZE)),
        (Prompt("a", sampling=SamplingParams(prompt_logprobs_start=9)), "at most the 2 tokens .* got 9"),
    ],
)
def test_a_refused_prompt_says_why_and_the_others_are_answered(
    open_engine: OpenEngine, bad: Any, why: str
) -> None:
    engine = open_engine()
    before, refused, after = engine.generate(["good", bad, "good"], greedy())
    assert refused.finish_reason == "error"
    assert refused.output_ids == ()
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(refused.error)
    assert before.output_ids == after.output_ids != ()
    assert before.error is None
    assert after.error is None


def test_a_prompt_over_the_pool_is_refused_at_once_with_the_numbers(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=5)
    engine.add(Request("fits", tuple(numbers(19)), greedy(1)))
    with pytest.raises(TooLarge, match=r"room for 21 tokens .* pool holds 20 \(5 pages of 4\)"):
        engine.add(Request("too large", tuple(numbers(20)), greedy(1)))
    assert [event.request_id for event in run_out(engine)] == ["fits"]


def test_a_refused_request_leaves_its_id_free_and_changes_nothing(open_engine: OpenEngine) -> None:
    engine = open_engine()
    with pytest.raises(InvalidRequest):
        engine.add(Request("a", (VOCAB_SIZE,), greedy(n=3)))
    assert not engine.has_work
    engine.add(Request("a", (5,), greedy(1)))
    with pytest.raises(InvalidRequest, match="'a' is already in use"):
        engine.add(Request("a", (5,), greedy(1)))
    assert len(run_out(engine)) == 1
    engine.add(Request("a", (5,), greedy(1)))


def test_an_unknown_option_is_refused_with_those_that_exist(open_engine: OpenEngine) -> None:
    with pytest.raises(InvalidConfig, match=r"unknown engine option 'page_sise'; allowed are .*page_size"):
        open_engine(page_sise=4)


def test_options_on_top_of_a_config_win(open_engine: OpenEngine) -> None:
    engine = open_engine(config=EngineConfig(page_size=16, chunk_size=32), page_size=8)
    assert (engine.config.page_size, engine.config.chunk_size) == (8, 32)


def test_memory_below_one_page_is_refused(open_engine: OpenEngine) -> None:
    with pytest.raises(InvalidConfig, match="at least one page of 768 bytes, got 700"):
        open_engine(num_pages=None, kv_memory=700)


# -- choices and seeds -----------------------------------------------------------------------------


def test_choices_of_one_prompt_are_adjacent_numbered_and_differ(open_engine: OpenEngine) -> None:
    completions = open_engine().generate(["ab", "cd"], drawn(8, n=3, seed=7))
    assert [(c.id, c.index) for c in completions] == [(i, k) for i in "01" for k in range(3)]
    assert len(set(ids_of(completions)[:3])) == 3


def test_choices_with_a_seed_are_the_same_again_and_in_another_engine(open_engine: OpenEngine) -> None:
    first = open_engine()
    wanted = ids_of(first.generate("ab", drawn(8, n=3, seed=7)))
    assert ids_of(first.generate("ab", drawn(8, n=3, seed=7))) == wanted
    assert ids_of(open_engine(seed=5, max_running=2).generate("ab", drawn(8, n=3, seed=7))) == wanted
    assert ids_of(first.generate("ab", drawn(8, n=3, seed=8))) != wanted


def test_the_first_choice_of_many_is_the_only_choice_of_one(open_engine: OpenEngine) -> None:
    engine = open_engine()
    many, one = engine.generate("ab", drawn(8, n=4, seed=7)), engine.generate("ab", drawn(8, seed=7))
    assert many[0].output_ids == one[0].output_ids


@pytest.mark.parametrize("chunk_size", [5, 512])
def test_the_choices_of_a_prompt_compute_it_once(open_engine: OpenEngine, chunk_size: int) -> None:
    engine = open_engine(chunk_size=chunk_size)
    prompt = numbers(30)
    completions = engine.generate([prompt], drawn(4, n=5))
    assert sorted(c.cached_tokens for c in completions) == [0, 30, 30, 30, 30]
    assert engine.stats().hit_rate == pytest.approx(engine.stats().optimal_hit_rate)


def test_many_choices_have_one_terminal_event_each(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=40)
    engine.add(Request("r", tuple(numbers(6)), drawn(3, n=64)))
    ends = Counter(event.index for event in run_out(engine) if event.finish_reason is not None)
    assert ends == Counter(range(64))


def test_a_seeded_request_has_the_same_text_whatever_its_batch_mates(open_engine: OpenEngine) -> None:
    seeded = drawn(10, seed=3, top_p=0.9)
    [alone] = open_engine().generate("the tale", seeded)
    mates: list[PromptInput] = ["the tale", numbers(20), "the tal", "x", "the tale"]
    params = [drawn(4), greedy(7), drawn(9, seed=4), drawn(12, n=3), seeded]
    mixed = open_engine(max_running=3, chunk_size=7, seed=9).generate(mates, params)
    assert mixed[-1].output_ids == alone.output_ids
    assert mixed[-1].text == alone.text


def test_without_a_seed_the_engines_seed_decides(open_engine: OpenEngine) -> None:
    texts = [ids_of(open_engine(seed=seed).generate(["ab", "ab"], drawn(12))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1], "two requests without a seed draw differently"


# -- ends ------------------------------------------------------------------------------------------


def plain(engine: Engine, max_tokens: int = 12) -> Completion:
    """What the engine says to one prompt when nothing stops it."""
    [completion] = engine.generate([numbers(12)], greedy(max_tokens))
    return completion


def test_the_number_of_tokens_ends_a_text(open_engine: OpenEngine) -> None:
    completion = plain(open_engine(), 5)
    assert (completion.finish_reason, completion.completion_tokens, completion.matched_stop) == (
        "length",
        5,
        None,
    )


def test_no_tokens_can_be_asked_for(open_engine: OpenEngine) -> None:
    engine = open_engine(chunk_size=5)
    for cached in (0, 12):
        completion = plain(engine, 0)
        assert (completion.finish_reason, completion.text, completion.output_ids) == ("length", "", ())
        assert (completion.cached_tokens, completion.error) == (cached, None)
    assert engine.stats().generated_tokens == 0


def test_the_full_context_ends_a_text(open_engine: OpenEngine) -> None:
    [completion] = open_engine(max_context=16).generate([numbers(12)], greedy(100))
    assert (completion.finish_reason, completion.completion_tokens) == ("length", 4)


def test_a_stop_id_ends_a_text_and_is_among_its_ids_but_not_in_the_text(open_engine: OpenEngine) -> None:
    engine = open_engine()
    whole = plain(engine).output_ids
    stop = whole[5]
    first = whole.index(stop)
    [completion] = engine.generate([numbers(12)], greedy(12, stop_token_ids=(stop,)))
    assert (completion.finish_reason, completion.matched_stop) == ("stop", stop)
    assert completion.output_ids == whole[: first + 1]
    assert completion.text == engine.generate([numbers(12)], greedy(first))[0].text


def test_end_of_text_ends_unless_it_is_ignored(open_engine: OpenEngine) -> None:
    engine = open_engine()
    forced = greedy(4, logit_bias=((EOS_ID, 100.0),))
    [ignored] = engine.generate("ab", forced)
    assert (ignored.finish_reason, ignored.output_ids) == ("length", (EOS_ID,) * 4)
    [ended] = engine.generate("ab", greedy(4, logit_bias=((EOS_ID, 100.0),), ignore_eos=False))
    assert (ended.finish_reason, ended.output_ids, ended.matched_stop, ended.text) == (
        "stop",
        (EOS_ID,),
        EOS_ID,
        "",
    )


def test_no_end_comes_before_the_least_number_of_tokens(open_engine: OpenEngine) -> None:
    engine = open_engine()
    forced = greedy(9, logit_bias=((EOS_ID, 100.0),), ignore_eos=False, min_tokens=3)
    [completion] = engine.generate("ab", forced)
    assert completion.completion_tokens == 4
    assert EOS_ID not in completion.output_ids[:3]
    assert completion.finish_reason == "stop"


def spell(engine: Engine, **more: Any) -> Completion:
    """A text of the letters a to d: a bias leaves nothing else."""
    ids = [FIRST_BYTE_ID + b for b in b"abcd"]
    [completion] = engine.generate([ids], greedy(24, logit_bias=tuple((i, 60.0) for i in ids), **more))
    return completion


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_stop_string_ends_a_text_before_it(open_engine: OpenEngine, length: int) -> None:
    engine = open_engine()
    whole = spell(engine).text
    stop = whole[8 : 8 + length]
    completion = spell(engine, stop=(stop,))
    assert (completion.finish_reason, completion.matched_stop) == ("stop", stop)
    assert completion.text == whole[: whole.index(stop)]
    assert completion.completion_tokens == whole.index(stop) + length


def test_a_stop_pattern_ends_a_text_before_it(open_engine: OpenEngine) -> None:
    engine = open_engine()
    whole = spell(engine).text
    pattern = f"{whole[6]}.{whole[8]}"
    completion = spell(engine, stop_regex=(pattern,))
    assert (completion.finish_reason, completion.matched_stop) == ("stop", pattern)
    assert whole.startswith(completion.text)
    assert len(completion.text) <= 6


def test_a_stop_string_that_never_comes_takes_nothing_away(open_engine: OpenEngine) -> None:
    engine = open_engine()
    whole = spell(engine).text
    assert spell(engine, stop=(whole[-3:] + "never",)).text == whole


def test_the_texts_and_ids_of_all_events_are_those_of_the_completion(open_engine: OpenEngine) -> None:
    engine = open_engine()
    letters = tuple((FIRST_BYTE_ID + byte, 60.0) for byte in "abд".encode())
    sampling = drawn(40, n=3, seed=2, stop=("abab", "дд"), temperature=5.0, logit_bias=letters)
    completions = engine.generate([numbers(9)], sampling)
    engine.add(Request("r", tuple(numbers(9)), sampling))
    events = run_out(engine)
    for completion in completions:
        mine = [event for event in events if event.index == completion.index]
        assert "".join(event.text for event in mine) == completion.text
        assert tuple(token for event in mine for token in event.token_ids) == completion.output_ids
        assert [event.finish_reason for event in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == completion.finish_reason
        totals = [event.completion_tokens for event in mine]
        assert totals == sorted(totals)


# -- life of an engine -----------------------------------------------------------------------------


def test_progress_is_told_at_every_step(open_engine: OpenEngine) -> None:
    seen: list[EngineProgress] = []
    open_engine().generate(["ab", "cd", ""], greedy(3), on_progress=seen.append)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].generated_tokens) == (3, 3, 6)


def test_two_requests_of_sixty_percent_of_the_pool_both_finish(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=20)
    prompts: list[PromptInput] = [numbers(24), numbers(24, 100)]
    completions = engine.generate(prompts, greedy(24))
    assert [c.completion_tokens for c in completions] == [24, 24]
    assert 1 <= engine.stats().preemptions <= 2
    roomy = open_engine(num_pages=40).generate(prompts, greedy(24))
    assert ids_of(completions) == ids_of(roomy)


def test_many_requests_get_through_a_pool_of_three_pages(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=3, seed=1)
    prompts: list[PromptInput] = [numbers(1 + i % 9, 17 * i) for i in range(40)]
    completions = engine.generate(prompts, greedy(3))
    assert all(c.completion_tokens == 3 for c in completions)
    assert ids_of(completions) == ids_of(open_engine().generate(prompts, greedy(3)))


def test_a_replay_after_preemption_counts_as_no_hit(open_engine: OpenEngine) -> None:
    engine = open_engine(num_pages=20)
    completions = engine.generate([numbers(24), numbers(24, 100)], greedy(24))
    assert engine.stats().preemptions > 0
    assert [c.cached_tokens for c in completions] == [0, 0]
    assert engine.stats().cached_tokens == 0


def test_abort_of_what_is_unknown_or_over_says_so(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.add(Request("r", (5,), greedy(1)))
    run_out(engine)
    assert not engine.abort("r")
    assert not engine.abort("never there")


@pytest.mark.parametrize(("steps", "state"), [(0, "waiting"), (1, "prefilling"), (6, "decoding")])
def test_an_abort_ends_all_choices_with_one_event_each(
    open_engine: OpenEngine, steps: int, state: str
) -> None:
    engine = open_engine(chunk_size=8)
    engine.add(Request("r", tuple(numbers(20)), greedy(50, n=2)))
    engine.add(Request("other", tuple(numbers(3)), greedy(2)))
    events = [event for _ in range(steps) for event in engine.step()]
    assert any(event.request_id == "r" and event.token_ids for event in events) == (state == "decoding")
    assert engine.abort("r")
    events += run_out(engine)
    ends = {
        SequenceKey(e.request_id, e.index): e.finish_reason for e in events if e.finish_reason is not None
    }
    assert ends == {("r", 0): "abort", ("r", 1): "abort", ("other", 0): "length"}
    assert len([e for e in events if e.finish_reason is not None]) == 3


def test_an_aborted_request_leaves_what_it_computed_to_others(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.add(Request("r", tuple(numbers(20)), greedy(50)))
    engine.step()
    engine.abort("r")
    run_out(engine)
    assert engine.generate([numbers(20)], greedy(1))[0].cached_tokens == 20


def test_flush_forgets_all_that_is_not_in_use(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.generate([numbers(20)], greedy(4))
    engine.add(Request("r", tuple(numbers(20, 50)), greedy(4)))
    engine.step()
    used = engine.cache.num_pages - engine.cache.free_pages
    dropped = engine.flush()
    assert 0 < dropped < used
    [event] = [event for event in run_out(engine) if event.finish_reason is not None]
    assert event.finish_reason == "length"
    engine.flush()
    assert engine.cache.free_pages == engine.cache.num_pages
    assert engine.generate([numbers(20)], greedy(1))[0].cached_tokens == 0


def test_a_closed_engine_takes_nothing_more(open_engine: OpenEngine) -> None:
    engine = open_engine()
    engine.add(Request("r", (5,), greedy(50)))
    engine.step()
    engine.close()
    engine.close()
    assert not engine.has_work
    assert engine.step() == []
    with pytest.raises(EngineStopped):
        engine.add(Request("s", (5,), greedy(1)))
    with pytest.raises(EngineStopped):
        engine.generate("ab", greedy(1))


def test_an_engine_as_a_context_manager_is_closed_at_its_end(open_engine: OpenEngine) -> None:
    with open_engine() as engine:
        engine.generate("ab", greedy(1))
    with pytest.raises(EngineStopped):
        engine.generate("ab", greedy(1))


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"prefix_cache": False}, {"num_pages": 12, "chunk_size": 7}, {"page_size": 16}], ids=str
)
def test_the_figures_agree_with_what_was_done(open_engine: OpenEngine, options: dict[str, Any]) -> None:
    engine = open_engine(**options)
    stem = numbers(17)
    prompts: list[PromptInput] = [stem + numbers(4, 40 * i) for i in range(6)]
    completions = engine.generate(prompts, drawn(5, n=2, seed=1))
    stats = engine.stats()
    assert stats.prompt_tokens == 12 * 21 == sum(c.prompt_tokens for c in completions)
    assert stats.cached_tokens == sum(c.cached_tokens for c in completions)
    assert stats.generated_tokens == sum(c.completion_tokens for c in completions) == 60
    assert stats.hit_rate == stats.cached_tokens / stats.prompt_tokens
    assert stats.optimal_hit_rate == pytest.approx(1 - (17 + 6 * 4) / (12 * 21))
    assert stats.hit_rate <= stats.optimal_hit_rate + 1e-9
    assert (stats.hit_rate > 0) == (options.get("prefix_cache", True))
    assert 0 < stats.page_fill <= 1
    assert stats.peak_pages * engine.config.page_size >= 6
    assert 0 < stats.peak_pages <= stats.num_pages == engine.cache.num_pages
    assert stats.page_size == engine.config.page_size
    assert stats.steps >= 5
    assert 0 < stats.radix_s < stats.schedule_s
    assert stats.schedule_s + stats.forward_s < stats.wall_s
    assert stats.prefill_tok_s > 0
    assert stats.decode_tok_s > 0
    assert all(math.isfinite(getattr(stats, name)) for name in type(stats).__dataclass_fields__)


def test_pages_that_a_step_took_and_gave_back_count_for_the_peak(open_engine: OpenEngine) -> None:
    engine = open_engine(prefix_cache=False)
    engine.generate([numbers(10)], greedy(1))
    stats = engine.stats()
    assert engine.cache.free_pages == engine.cache.num_pages
    assert stats.peak_pages == 3
    assert stats.page_fill == pytest.approx(10 / 12)


def test_an_unused_engine_has_figures_too(open_engine: OpenEngine) -> None:
    stats = open_engine().stats()
    assert (stats.prompt_tokens, stats.hit_rate, stats.page_fill, stats.decode_tok_s) == (0, 0.0, 0.0, 0.0)


def test_an_engine_says_what_it_is(open_engine: OpenEngine) -> None:
    engine = open_engine()
    info = engine.info()
    assert (info.model, info.family, info.dtype) == (engine.config.model, "llama", "float32")
    assert 1 <= info.weight_bytes / (4 * info.parameters) < 1.2, "rows are padded to whole panels"
    assert info.kv_bytes == 64 * 2 * 2 * 4 * 12 * 4, "pages, keys and values, layers, slots, size, bytes"
    assert (info.num_pages, info.page_size, info.max_context) == (64, 4, 256)
    assert (info.attention, info.quantization) == ("cpu", "none")
    assert info.threads >= 1


def test_memory_decides_on_the_number_of_pages(open_engine: OpenEngine) -> None:
    info = open_engine(num_pages=None, kv_memory=10_000).info()
    assert info.num_pages == 10_000 // (2 * 2 * 4 * 12 * 4)
    assert info.kv_bytes <= 10_000


def test_generate_is_refused_while_other_requests_are_under_way_and_loses_none_of_their_events(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine()
    engine.add(Request("mine", (3, 4, 5), SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)))
    with pytest.raises(InvalidRequest, match="idle"):
        engine.generate("abc")
    events = [event for _ in range(5) for event in engine.step()]
    assert [event.finish_reason for event in events if event.finish_reason] == ["length"]


def test_an_engine_closed_in_the_middle_of_generate_ends_it_with_an_error(open_engine: OpenEngine) -> None:
    engine = open_engine()
    with pytest.raises(EngineStopped, match="closed"):
        engine.generate(
            "abc", SamplingParams(max_tokens=50, ignore_eos=True), on_progress=lambda _: engine.close()
        )


@pytest.mark.parametrize("sampling", [{"max_tokens": 3}, [None], "x", 5])
def test_sampling_of_another_type_is_refused_with_what_came(open_engine: OpenEngine, sampling: Any) -> None:
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        open_engine().generate(["a"], sampling)


@pytest.mark.parametrize("prompts", [None, 5, (p for p in "ab")])
def test_prompts_of_another_type_are_refused_with_what_came(open_engine: OpenEngine, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="got"):
        open_engine().generate(prompts)


def test_two_engines_work_at_the_same_time_on_two_threads(open_engine: OpenEngine) -> None:
    sampling = greedy(12, logprobs=2)
    batches: list[list[PromptInput]] = [
        [numbers(3 + 5 * i, 10 * i) for i in range(6)],
        [numbers(30), numbers(9, 50), numbers(30)],
    ]
    wanted = [open_engine().generate(batch, sampling) for batch in batches]
    engines = [open_engine(), open_engine()]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda engine, batch: engine.generate(batch, sampling), engines, batches))
    assert found == wanted
