"""Copy whole pages, keys and values of all layers: pool[:, targets[i]] = pool[:, sources[i]], in one launch.

    pool              (N, P, G, S, D)  float32, bfloat16 or float16  strides of N, P and G are free,
                                                                     a page of a head is S D numbers in a row
    sources, targets  (C)              int64, on the pool's device   contiguous

Copies run side by side in no order: no page may be both a source and a target, or a target twice. Nothing
here waits for the device, so page ids are believed unless `debug` asks for them to be read and checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit(do_not_specialize=["num_planes", "num_heads", "num_chunks"])
def _copy_pages_kernel(  # type: ignore[no-untyped-def]
    pool_ptr,
    sources_ptr,
    targets_ptr,
    num_planes,
    num_heads,
    num_chunks,  # of a head's page
    plane_stride,
    page_stride,
    head_stride,
    PAGE_NUMBERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)  # in 32 bits, where division is cheap
    chunk, program = program % num_chunks, program // num_chunks
    head, program = program % num_heads, program // num_heads
    plane, pair = (program % num_planes).to(tl.int64), program // num_planes
    source, target = tl.load(sources_ptr + pair), tl.load(targets_ptr + pair)
    number = chunk * BLOCK + tl.arange(0, BLOCK)
    within = number < PAGE_NUMBERS
    at = pool_ptr + plane * plane_stride + head.to(tl.int64) * head_stride + number
    numbers = tl.load(at + source * page_stride, mask=within, other=0.0)  # (BLOCK)
    tl.store(at + target * page_stride, numbers, mask=within)


@dataclass(frozen=True, slots=True)
class Tile:
    """So many numbers of a head's page are one program's."""

    block: int
    warps: int


def _tile_for(page_numbers: int) -> Tile:
    """16 numbers a thread: two loads of 16 bytes on their way in half precision."""
    if page_numbers <= 512:
        return Tile(triton.next_power_of_2(page_numbers), 1)
    return Tile(1024, 2) if page_numbers <= 1024 else Tile(2048, 4)


def copy_pages(pool: Tensor, sources: Tensor, targets: Tensor, *, debug: bool = False) -> None:
    """In place. debug: read the page ids, which waits for the device, and refuse what the pool has not."""
    _check(pool, sources, targets)
    if debug:
        _check_pages(pool, sources, targets)
    planes, _, heads, slots, size = pool.shape
    tile = _tile_for(slots * size)
    num_chunks = triton.cdiv(slots * size, tile.block)
    programs = len(sources) * planes * heads * num_chunks
    if programs:
        _copy_pages_kernel[(programs,)](
            pool,
            sources,
            targets,
            planes,
            heads,
            num_chunks,
            *pool.stride()[:3],
            slots * size,
            tile.block,
            num_warps=tile.warps,
        )


def _check(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    if pool.dtype not in _DTYPES:
        raise ValueError(f"pool must be float32, bfloat16 or float16, got {pool.dtype}")
    if pool.dim() != 5 or not pool.shape[3] * pool.shape[4]:
        raise ValueError(f"pool must have shape (N, P, G, S, D), got {tuple(pool.shape)}")
    if pool.stride()[3:] != (pool.shape[4], 1):
        raise ValueError(f"a page of a head must be numbers side by side, got strides {pool.stride()}")
    for name, pages in (("sources", sources), ("targets", targets)):
        if pages.dtype != torch.int64 or pages.device != pool.device:
            raise ValueError(
                f"{name} must be int64 on {pool.device} as the pool is, got {pages.dtype} on {pages.device}"
            )
        if pages.dim() != 1 or not pages.is_contiguous():
            raise ValueError(
                f"{name} must be a contiguous row, "
                f"got shape {tuple(pages.shape)} and strides {pages.stride()}"
            )
    if len(sources) != len(targets):
        raise ValueError(f"each source must have its target, got {len(sources)} and {len(targets)}")


def _check_pages(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    ids, places = sources.tolist(), targets.tolist()
    for name, pages in (("sources", ids), ("targets", places)):
        wrong = [page for page in pages if not 0 <= page < pool.shape[1]]
        if wrong:
            raise ValueError(f"{name} must be pages from 0 to {pool.shape[1] - 1}, got {wrong[0]}")
    if len(set(places)) < len(places) or set(ids) & set(places):
        raise ValueError(
            f"no page may be a target twice, or a source and a target, got sources {ids} and targets {places}"
        )
