"""The pool's tensor: its size, its layout, and copies of pages over all layers."""

from __future__ import annotations

import pytest
import torch

from radixlm.kernels.cpu import cpu_ops
from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.kv_pool import KvPool, page_bytes, pages_within
from radixlm.runtime.types import Copy


def make_pool(num_pages: int = 5, dtype: torch.dtype = torch.float32) -> KvPool:
    """Three layers, two heads of four numbers, pages of eight slots."""
    return KvPool(3, 2, 4, num_pages=num_pages, page_size=8, dtype=dtype, ops=cpu_ops(4, 2, threads=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_page_takes_the_bytes_it_is_said_to_take(dtype: torch.dtype) -> None:
    pool = make_pool(7, dtype)
    assert pool.pages.numel() * dtype.itemsize == 7 * page_bytes(3, 2, 8, 4, dtype)


def test_memory_is_rounded_down_to_whole_pages() -> None:
    assert [pages_within(memory, 100) for memory in (100, 199, 200)] == [1, 1, 2]
    with pytest.raises(InvalidConfig, match="at least one page of 100 bytes, got 99"):
        pages_within(99, 100)


def test_every_layer_has_keys_and_values_of_its_own() -> None:
    pool = make_pool()
    assert {tuple(one.shape) for one in (*pool.keys, *pool.values)} == {(5, 2, 8, 4)}
    parts = (*pool.keys, *pool.values)
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [float(part.mean()) for part in parts] == list(range(6))


def test_pages_of_one_head_lie_side_by_side() -> None:
    keys = make_pool().keys[1]
    assert keys[:, 0].is_contiguous()


def test_a_copy_takes_a_page_along_in_all_layers_and_touches_no_other() -> None:
    pool = make_pool()
    pool.pages.copy_(torch.randn(pool.pages.shape))
    before = pool.pages.clone()
    pool.copy([Copy(4, 1, 3), Copy(0, 2, 8)])
    for page, source in enumerate((0, 4, 0, 3, 4)):
        slots = 3 if page == 1 else 8
        assert torch.equal(pool.pages[:, page, :, :slots], before[:, source, :, :slots])


def test_a_new_pool_is_zeros_and_no_copies_leave_it_so() -> None:
    pool = make_pool()
    pool.copy([])
    assert not pool.pages.any()


@pytest.mark.parametrize("pages", [1 << 38, 1 << 58, 1 << 80])
def test_a_pool_that_cannot_be_had_is_refused_with_its_size(pages: int) -> None:
    with pytest.raises(InvalidConfig, match=r"a pool of \d+ pages needs \S+ GiB, .* smaller kv_memory"):
        make_pool(pages)
