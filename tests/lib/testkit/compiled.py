"""The CPU's ops over memory full of NaN, and the arithmetic of bytes as integers do it.

Teams of threads are made once for each number of threads; memory for outputs comes poisoned, so that whatever
an op leaves unwritten shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.cpu_attention import CpuAttention
from radixlm.kernels.cpu_draw import CpuDraw
from radixlm.kernels.cpu_fused import CpuFused
from radixlm.kernels.cpu_linear import ByteLinear, PackedLinear
from radixlm.kernels.cpu_memory import Arena
from radixlm.kernels.cpu_team import Team


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for an output: NaN, or bytes that nobody would write."""
    return torch.full(tuple(shape), torch.nan if dtype.is_floating_point else 85, dtype=dtype)


@cache
def team(threads: int) -> Team:
    return Team(threads)


def attention(heads: int, kv_heads: int, threads: int = 2) -> CpuAttention:
    return CpuAttention(heads, kv_heads, team(threads), poisoned)


def fused(threads: int = 2) -> CpuFused:
    return CpuFused(team(threads), poisoned)


def drawer(threads: int = 2) -> CpuDraw:
    return CpuDraw(team(threads))


def packed(weight: Tensor, bias: Tensor | None, threads: int = 2) -> PackedLinear:
    return PackedLinear(weight, bias, team(threads), Arena(), poisoned)


def as_bytes(weight: Tensor, bias: Tensor | None, threads: int = 2) -> ByteLinear:
    return ByteLinear(weight, bias, team(threads), Arena(), poisoned)


def rounded_to_bytes(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rows of float32 as whole numbers from -127 to 127, and a scale for each row."""
    x = rows.numpy()
    most = np.abs(x).max(axis=1).astype(np.float32)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    return np.rint(x * inverse[:, None]).astype(np.int64), most / np.float32(127)


def byte_product_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """What a linear of bytes gives for rows of numbers, summed in 64 bits, and how far float32 may be off."""
    whole, row_scales = rounded_to_bytes(x)
    # Weights are divided by their scale, rows are multiplied by its inverse.
    scales = weight.abs().amax(dim=1) / 127
    divided = weight / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    columns = divided.round().numpy().astype(np.int64)
    exact = torch.from_numpy(whole @ columns.T).float().double()
    scaled = exact * (torch.from_numpy(row_scales)[:, None] * scales).double()
    add = torch.zeros(len(weight)) if bias is None else bias
    return scaled + add.double(), (scaled.abs() + add.double().abs()) * 2.0**-23
