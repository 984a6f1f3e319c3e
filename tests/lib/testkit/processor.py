"""Run in a process of its own: are the kernels right on a processor with these instructions?

numba compiles for what NUMBA_CPU_NAME and NUMBA_CPU_FEATURES say. Arguments: the number formats to check, for
compiling is what takes the time. Prints the floats of a vector and how bytes are multiplied; fails with an
assertion where a result is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from radixlm.kernels import reference
from radixlm.kernels.cpu_ir import DOT, LANES, PAIRS
from radixlm.kernels.cpu_softmax import BLOCK
from radixlm.kernels.plan import PlanOptions
from radixlm.runtime.sampling import SampleRow, sample
from radixlm.runtime.sampling_params import SamplingParams
from testkit.compiled import as_bytes, attention, byte_product_of, drawer, fused, packed
from testkit.paged import Spec, attend, fill, grow, is_as_exact, make_queries
from testkit.paged import reference as reference_rows

EAGER = PlanOptions(align_tokens=BLOCK, min_saved_tokens=1)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_linears(storages: Sequence[torch.dtype]) -> None:
    weight, bias, x = normal(70, 33), normal(70, seed=1), normal(29, 33, seed=2)
    for storage in storages:
        stored = weight.to(storage)
        linear = packed(stored, bias)
        plain, truth = (
            torch.nn.functional.linear(x.to(one), stored.to(one), bias.to(one))
            for one in (torch.float32, torch.float64)
        )
        assert is_as_exact(linear(x), plain, truth), f"a linear of {storage}"
        assert torch.equal(linear(x), torch.cat([linear(row[None]) for row in x])), f"rows alone, {storage}"
    truth, allowed = byte_product_of(x, weight, bias)
    linear_of_bytes = as_bytes(weight, bias)
    found = linear_of_bytes(x)
    assert bool(((found.double() - truth).abs() <= 2 * allowed).all()), "a linear of bytes"
    assert torch.equal(found, torch.cat([linear_of_bytes(row[None]) for row in x])), "rows alone, bytes"


def check_attention(storages: Sequence[torch.dtype]) -> None:
    specs = [Spec(150, 140), Spec(140, 1, 0, 8), Spec(139, 1, 1, 8), Spec(70, 9, 0, 4), Spec(77, 1, 0, 4)]
    rows = grow(16, specs)
    queries = make_queries(rows, 6, 24)
    one = attention(6, 2)
    for storage in storages:
        pool = fill(rows, 2, 24, dtype=storage)
        found = attend(one, EAGER, rows, pool, queries)
        plain, truth = (
            torch.cat(reference_rows(rows, pool, queries, dtype)) for dtype in (torch.float32, torch.float64)
        )
        assert is_as_exact(torch.cat(found), plain, truth), f"attention over {storage}"
        alone = [attend(one, EAGER, rows.take([i]), pool, [queries[i]])[0] for i in range(len(specs))]
        assert all(map(torch.equal, found, alone)), f"rows alone, attention over {storage}"
        cut = [
            attend(one, EAGER, replace(rows.take([0]), starts=(a,), stops=(b,)), pool, queries)[0]
            for a, b in pairwise((10, 11, 63, 65, 128, 150))
        ]
        assert torch.equal(torch.cat(cut), found[0]), f"chunks, attention over {storage}"


def check_small_ops(storages: Sequence[torch.dtype]) -> None:
    ops = fused()
    x, residual, weight = normal(9, 45), normal(9, 45, seed=1), normal(45, seed=2)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-6)
    wanted = reference.rms_norm((x + residual).double(), weight.double(), 1e-6)
    torch.testing.assert_close(total, x + residual, rtol=0, atol=0)
    torch.testing.assert_close(normed.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(ops.rms_norm(x, weight, 1e-6)[3:4], ops.rms_norm(x[3:4], weight, 1e-6))
    gates = 4 * normal(9, 90)
    wanted = reference.silu_mul(gates.double())
    torch.testing.assert_close(ops.silu_mul(gates).double(), wanted, rtol=1e-5, atol=1e-6)
    for storage in storages:
        table = x.to(storage)
        assert torch.equal(ops.take_rows(table, torch.tensor([3, 0, 3])), table[[3, 0, 3]].float())
        check_writes(storage)


def check_writes(storage: torch.dtype) -> None:
    numbers = normal(5, 4 * 24)
    numbers[1, 72:78] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 1e-41, 1.00390625])
    keys, values = (torch.zeros(3, 1, 4, 24, dtype=storage) for _ in range(2))
    slots, positions = torch.tensor([5, 0, -1, 11, 2]), torch.tensor([3, 1, 4, 1, 5])
    angles = normal(6, 12, seed=5)
    cos, sin = angles.cos(), angles.sin()
    q = fused().turn_and_write(numbers, None, (cos, sin), positions, slots, keys, values)
    heads = numbers.view(5, 4, 24)
    turned = reference.rope(heads[:, :3], cos[positions], sin[positions])
    torch.testing.assert_close(q, turned[:, :2], rtol=1e-6, atol=1e-6)
    written = [0, 1, 3, 4]
    found = values.view(12, 24)[slots[written]]
    assert torch.equal(found.nan_to_num(7.0), heads[written, 3].to(storage).nan_to_num(7.0)), f"{storage}"
    assert torch.equal(found.isnan(), heads[written, 3].isnan()), f"NaN in {storage}"
    close = keys.view(12, 24)[slots[written]].float()
    error = torch.finfo(storage).eps
    torch.testing.assert_close(close, turned[written, 2], rtol=error, atol=error / 8)
    assert not values.view(12, 24)[[1, 3, 4, 6, 7, 8, 9, 10]].any(), "slots that nobody asked for"


def check_draws() -> None:
    ways = [SamplingParams(), SamplingParams(temperature=1.5, top_p=0.8), SamplingParams(min_p=0.1)]
    rows = [SampleRow(ways[i % 3], (), (), (), (i << 58) + 7, i % 2, i) for i in range(60)]
    for scale in (0.0, 1.0, 4.0):
        scores = scale * normal(60, 1001)
        wanted = sample(scores, rows).token_ids
        assert sample(scores, rows, draw=drawer()).token_ids == wanted, f"draws at scale {scale}"


if __name__ == "__main__":
    print(LANES, DOT, PAIRS)
    chosen = [getattr(torch, name) for name in sys.argv[1:]]
    check_linears(chosen)
    check_attention(chosen)
    check_small_ops(chosen)
    check_draws()
