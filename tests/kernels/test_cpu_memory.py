"""Memory in huge pages: tensors that do not touch one another, live as long as they are used, and then go."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import psutil
import pytest
import torch

from radixlm.kernels.cpu_memory import CHUNK, HUGE, Arena, zeros

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def test_tensors_of_an_arena_keep_what_was_put_into_them() -> None:
    arena, chance = Arena(), random.Random(0)
    kept = []
    for n in range(400):
        shape = tuple(chance.randint(0, 40) for _ in range(chance.randint(1, 3)))
        made = torch.full(shape, n % 100, dtype=chance.choice(DTYPES))
        kept.append((made, arena.keep(made)))
        if n % 7 == 0:
            del kept[chance.randrange(len(kept))]
    assert all(one.dtype == other.dtype and torch.equal(one, other) for one, other in kept)
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for _, x in kept if x.nbytes)
    assert all(end <= following for (_, end), (following, _) in pairwise(spans))


def test_a_tensor_is_laid_out_in_the_order_of_its_numbers_and_begins_at_a_cache_line() -> None:
    arena = Arena()
    for shape in ((3, 5), (1, 7), (5, 3)):
        given = torch.arange(shape[0] * shape[1]).view(shape).t()
        found = arena.keep(given)
        assert found.is_contiguous()
        assert torch.equal(found, given)
        assert found.data_ptr() % 64 == 0


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_large_tensors_have_memory_of_their_own_and_small_ones_go_together() -> None:
    arena = Arena()
    small = arena.empty((10,), torch.float32)
    large = arena.empty((2 * CHUNK,), torch.int8)
    after = arena.empty((10,), torch.float32)
    assert 0 < after.data_ptr() - small.data_ptr() < CHUNK
    before = resident()
    large.fill_(1)
    assert resident() - before > CHUNK
    del large
    gc.collect()
    assert resident() - before < CHUNK
    after.fill_(2)
    assert after.sum() == 20


def test_a_chunk_goes_when_none_of_its_tensors_is_left() -> None:
    arena = Arena()
    tensors = [arena.empty((CHUNK // 8,), torch.int8) for _ in range(12)]
    before = resident()
    for one in tensors:
        one.fill_(1)
    assert resident() - before > CHUNK
    last = tensors[-1]
    del tensors, one
    gc.collect()
    assert resident() - before < 3 * CHUNK // 4, "the first chunk is given back, the arena's own is not"
    assert bool((last == 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_are_zeros_in_pages_of_their_own_that_cost_nothing_yet(dtype: torch.dtype) -> None:
    before = resident()
    found = zeros((3, 5, 1 << 23), dtype)
    assert resident() - before < 32 << 20
    assert (found.shape, found.dtype, found.is_contiguous()) == ((3, 5, 1 << 23), dtype, True)
    assert found.data_ptr() % HUGE == 0, "where a huge page can start"
    assert not found[::2, ::2, :: 1 << 18].any()
    found[2, 4, -1] = 1
    assert found[2, 4, -1] == 1
    assert zeros((0, 4), dtype).shape == (0, 4)


@pytest.mark.parametrize("shape", [(1 << 46,), (1 << 58, 3), (1 << 80,), (1 << 40, 1 << 40)], ids=str)
def test_more_than_any_machine_has_is_refused_as_such(shape: tuple[int, ...]) -> None:
    with pytest.raises(MemoryError, match=r"\d+ bytes cannot be had"):
        zeros(shape, torch.float32)
