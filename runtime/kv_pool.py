"""The memory of keys and values: one tensor for all layers, cut into pages.

It owns the tensor and its layout, and knows nothing of who holds which page. Pages of one head lie side by
side (head, page, slot, size), so that reading a run of pages is a few long copies; what others see has the
shape (pages, heads, slots, size) that the op table asks for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.ops import Ops
from .byte_size import format_bytes
from .errors import InvalidConfig
from .types import Copy


def page_bytes(num_layers: int, num_kv_heads: int, page_size: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values that one page takes over all layers."""
    return 2 * num_layers * num_kv_heads * page_size * head_dim * dtype.itemsize


def pages_within(memory: int, bytes_a_page: int) -> int:
    """How many pages fit into `memory` bytes. Raises InvalidConfig if not even one does."""
    pages = memory // bytes_a_page
    if pages < 1:
        raise InvalidConfig(f"kv_memory must hold at least one page of {bytes_a_page} bytes, got {memory}")
    return pages


class KvPool:
    """Keys and values of `num_pages` pages, zeroed; keys[i] and values[i] are layer i's (P, G, S, D)."""

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        ops: Ops,
    ) -> None:
        self._ops = ops
        try:
            storage = ops.zeros((2 * num_layers, num_kv_heads, num_pages, page_size, head_dim), dtype)
        except (RuntimeError, MemoryError, TypeError, OverflowError) as error:  # Type: over 64 bits
            wanted = num_pages * page_bytes(num_layers, num_kv_heads, page_size, head_dim, dtype)
            why = f": {error}" if isinstance(error, RuntimeError) else ""  # the others only repeat the size
            raise InvalidConfig(
                f"a pool of {num_pages} pages needs {format_bytes(wanted)}, more than can be had; "
                f"a smaller kv_memory or num_pages is needed{why}"
            ) from None
        self.pages: Tensor = storage.permute(0, 2, 1, 3, 4)
        self.keys = [self.pages[2 * i] for i in range(num_layers)]
        self.values = [self.pages[2 * i + 1] for i in range(num_layers)]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Carry out copy-on-write: before any KV write of the step."""
        if copies:
            self._ops.copy_pages(self.pages, [c.source for c in copies], [c.target for c in copies])
