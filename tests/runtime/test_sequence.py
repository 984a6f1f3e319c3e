from __future__ import annotations

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.sequence import Sequence
from radixlm.runtime.types import Request, SequenceKey

PROMPT = tuple(range(10, 18))


def sequence(max_tokens: int = 4, prompt_logprobs_start: int | None = None, index: int = 0) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs_start=prompt_logprobs_start)
    return Sequence(Request("r", PROMPT, sampling), index)


def running(cached: int, max_tokens: int = 4, prompt_logprobs_start: int | None = None) -> Sequence:
    """A sequence that was admitted with its first `cached` prompt tokens already in the cache."""
    cache = PrefixCache(num_pages=16, page_size=2)
    if cached:
        first = cache.acquire(PROMPT[:cached], ("", ""), cached)
        assert first is not None
        cache.publish(first, PROMPT, cached)
        cache.release(first)
    seq = sequence(max_tokens, prompt_logprobs_start)
    lease = cache.acquire(seq.tokens, ("", ""), seq.reach)
    assert lease is not None
    seq.hold(lease)
    return seq


def test_the_choices_of_a_request_have_keys_of_their_own() -> None:
    assert sequence(index=1).key == SequenceKey("r", 1)


def test_the_first_row_starts_where_the_match_ends() -> None:
    row = running(cached=5).row(3)

    assert (row.start, row.stop, row.write_from, row.logits_from) == (5, 8, 5, 7)
    assert row.tokens == PROMPT[5:]
    assert row.samples


def test_a_full_hit_computes_the_last_token_again_and_writes_nothing() -> None:
    row = running(cached=8).row(1)

    assert (row.start, row.stop, row.write_from, row.logits_from) == (7, 8, 8, 7)
    assert row.samples


def test_a_chunk_that_ends_inside_the_prompt_wants_no_logits() -> None:
    row = running(cached=0).row(3)

    assert (row.start, row.stop, row.logits_from) == (0, 3, 3)
    assert not row.samples


@pytest.mark.parametrize(("wanted", "first"), [(0, 0), (1, 0), (2, 1), (8, 7), (99, 7)])
def test_prompt_logprobs_need_the_logits_one_position_earlier(wanted: int, first: int) -> None:
    assert sequence(prompt_logprobs_start=wanted).logits_needed_from == first


def test_prompt_logprobs_read_the_cached_part_again_without_writing_it() -> None:
    seq = running(cached=6, prompt_logprobs_start=3)

    row = seq.row(3)
    assert (row.start, row.stop, row.write_from, row.logits_from) == (2, 5, 5, 2)
    seq.advance(row)
    row = seq.row(3)
    assert (row.start, row.stop, row.write_from, row.logits_from) == (5, 8, 6, 5)


def test_logits_that_were_seen_are_not_computed_again_after_preemption() -> None:
    seq = running(cached=0, prompt_logprobs_start=0)
    seq.advance(seq.row(6))
    lease = seq.drop()

    assert seq.computed == 0
    seq.preemptions = 1
    lease.cached_tokens = 6
    seq.hold(lease)
    assert (seq.start, seq.row(2).logits_from) == (6, 6)


def test_a_replay_samples_only_at_its_end() -> None:
    seq = running(cached=0)
    seq.advance(seq.row(8))
    seq.tokens += [1, 2]
    seq.hold(seq.drop())

    assert not seq.row(9).samples
    assert (seq.row(10).samples, seq.row(10).logits_from) == (True, 8)


def test_only_the_first_admission_counts_as_a_cache_hit() -> None:
    seq = running(cached=4)
    lease = seq.drop()
    seq.preemptions = 1
    lease.cached_tokens = 8
    seq.hold(lease)

    assert (seq.cached_tokens, seq.computed) == (4, 8)


@pytest.mark.parametrize(("max_tokens", "reach"), [(0, 8), (1, 8), (2, 9), (50, 9)])
def test_admission_reaches_one_token_further_if_its_slot_will_be_written(max_tokens: int, reach: int) -> None:
    assert sequence(max_tokens).reach == reach


def test_nothing_is_sampled_when_no_token_is_asked_for() -> None:
    row = running(cached=0, max_tokens=0).row(8)

    assert (row.samples, row.logits_from) == (False, 8)


def test_the_block_table_follows_the_lease() -> None:
    seq = running(cached=0)
    assert seq.lease is not None
    before = seq.block_table()
    assert before == tuple(seq.lease.pages)
    assert seq.block_table() is before

    seq.lease.replace_from(len(before) - 1, [9])
    assert seq.block_table() == (*before[:-1], 9)
    seq.lease.replace_from(len(before), [10])
    assert seq.block_table() == (*before[:-1], 9, 10)


def test_the_output_is_what_follows_the_prompt() -> None:
    seq = sequence()
    seq.tokens += [3, 4]
    assert seq.output == [3, 4]
