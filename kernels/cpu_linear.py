"""Linear layers on a CPU: weights packed once for oneDNN, which makes small batches cheaper and, unlike a
plain matrix product, gives each row the same bits whatever the number of rows.

That last point is a property of the processor and the library, so it is tried when a weight is packed and
never assumed: `steady_from` is the least number of rows from which on it holds. Shorter inputs are padded.

oneDNN compiles and keeps a kernel for each number of rows it meets, so above `_BLOCK` rows only multiples of
it are run and the rest is padding: a few dozen kernels for each shape of a weight, not one for every length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

_BLOCK = 32
# Numbers of rows that are really run: any up to a block, then whole blocks.
_PROBES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 64, 96, 128, 160, 192, 224, 256, 512)
NEVER = 1 << 30


class NotDeterministic(RuntimeError):
    """This processor's libraries give a row other bits in other batches."""


def pack_linear(weight: Tensor, bias: Tensor | None, *, steady: bool) -> Callable[[Tensor], Tensor]:
    """weight (N, K) -> a function (T, K) -> (T, N). `steady` asks for row-invariant bits.

    Raises NotDeterministic if they are asked for and this processor's library does not give them.
    """
    if not _can_pack(weight.dtype):
        if steady:
            raise NotDeterministic(f"row-invariant linear layers need oneDNN for {weight.dtype}")
        return lambda x: torch.nn.functional.linear(x, weight, bias)
    least = steady_from(weight.shape[0], weight.shape[1], weight.dtype) if steady else 0
    if least == NEVER:
        raise NotDeterministic(f"oneDNN's linear of {tuple(weight.shape)} is not row-invariant here")
    packed = _pack(weight)

    def apply(x: Tensor) -> Tensor:
        rows = x.shape[0]
        padding = _rows_to_run(max(rows, least)) - rows
        if padding == 0:
            return _packed_linear(x, packed, bias)
        return _packed_linear(torch.nn.functional.pad(x, (0, 0, 0, padding)), packed, bias)[:rows]

    return apply


def _rows_to_run(rows: int) -> int:
    return rows if rows <= _BLOCK else -(-rows // _BLOCK) * _BLOCK


@cache
def steady_from(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """The least number of rows from which on a packed linear gives each row the same bits; NEVER if none.

    Wide heads are tried on a slice of 4,096 outputs: the kernel is chosen by rows and inputs.
    """
    generator = torch.Generator().manual_seed(0)
    packed = _pack(torch.randn(min(outputs, 4096), inputs, generator=generator).to(dtype))
    x = torch.randn(1, inputs, generator=generator).to(dtype).repeat(max(_PROBES), 1)
    wanted = _packed_linear(x, packed, None)[0]
    least = NEVER
    for rows in reversed(_PROBES):
        if not bool((_packed_linear(x[:rows], packed, None) == wanted).all()):
            break
        least = rows
    return least


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def _packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out
