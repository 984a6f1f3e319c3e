"""Each kernel's time against its floor, and the goals.

The floor is the larger of two times: the bytes that must move, at the bandwidth of a copy measured in the
same run, and the operations, at the rate of a bfloat16 product of matrices. Calls over several inputs,
together several times the cache, are recorded as one graph, whose median time is taken: so launching costs
nothing, and an op that waited for the device could not be recorded. Inputs are random. At tiny sizes, without
a GPU, everything is run once and nothing is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from radixlm.kernels.copy_pages import copy_pages
from radixlm.kernels.kv_write import turn_and_write
from radixlm.kernels.logit_mask import logit_mask
from radixlm.kernels.ops import Ops
from radixlm.kernels.plan import AttentionSpec, PlanOptions, build_plan, read_tokens
from radixlm.kernels.rms_norm import add_rms_norm, rms_norm
from radixlm.kernels.sample import sample
from radixlm.kernels.silu_mul import silu_mul
from radixlm.kernels.triton_ops import triton_ops
from radixlm.kernels.triton_plan import WIDE_ROWS

from . import llama
from .report import Place, Row

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 16
SHARE_NOTHING = 1 << 30
"""As min_saved_tokens: no run of pages is worth reading once for several rows."""

Call = Callable[[], object]
Goal = tuple[str, float, float]
"""What is to be at least how much, and what it is."""


def rows(place: Place) -> Iterator[Row]:
    clock = Clock.measured(place)
    rates = {"copy TB/s": clock.copy / 1e12, "bf16 TFLOP/s": clock.matrix / 1e12}
    yield clock.judged("the machine", rates)
    yield from _decode(place, clock)
    yield from _prefill(place, clock)
    yield from _streams(place, clock)
    yield from _model_step(place, clock)


@dataclass(frozen=True, slots=True)
class Clock:
    """Times calls. copy: bytes a second, read and written; matrix: operations a second. Without a GPU it runs
    them and says that a call took a second."""

    is_off: bool
    copy: float
    matrix: float

    @classmethod
    def measured(cls, place: Place) -> Clock:
        clock = cls(place.is_small, 1.0, 1.0)
        count, width = (1 << 10, 32) if place.is_small else (1 << 30, 8192)
        source = torch.randn(count, device=place.device, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        copied = clock.seconds([lambda: target.copy_(source)])
        a, b = (torch.randn(width, width, device=place.device, dtype=torch.bfloat16) for _ in range(2))
        multiplied = clock.seconds([lambda: a @ b])
        return cls(place.is_small, 2 * source.nbytes / copied, 2 * width**3 / multiplied)

    def seconds(self, calls: Sequence[Call]) -> float:
        """The median time of one of the calls."""
        for call in calls:
            call()
        if self.is_off:
            return 1.0
        from triton.testing import do_bench

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        milliseconds: float = do_bench(graph.replay, warmup=10, rep=60, return_mode="median")
        return milliseconds / 1000 / len(calls)

    def row(self, name: str, calls: Sequence[Call], size: float, at_least: float | None = None) -> Row:
        """size: bytes that one call must move. at_least: the share of the floor's speed that is the goal."""
        seconds = self.seconds(calls)
        share = size / self.copy / seconds
        figures = {"ms": seconds * 1e3, "floor/time": share, "TB/s": size / seconds / 1e12, "GB": size / 1e9}
        return self.judged(name, figures, None if at_least is None else ("floor/time", at_least, share))

    def judged(self, name: str, figures: dict[str, float], goal: Goal | None = None) -> Row:
        """Figures are kept only where the clock runs."""
        if self.is_off:
            return Row(name, "not timed")
        if goal is None:
            return Row(name, "measured", figures)
        of, least, value = goal
        return Row(name, "holds" if value >= least else "does not hold", {**figures, f"goal: {of} >=": least})


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows over pages of their own and of all, in shuffled places; several layers of keys and values."""

    tables: list[np.ndarray]
    starts: list[int]
    stops: list[int]
    q: list[Tensor]
    pools: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, place: Place, count: int, shared: int, cached: int, new: int, layers: int) -> _Batch:
        """Each row: `shared` tokens of all, `cached` of its own, and `new` ones that are computed."""
        own = -(-(cached + new) // PAGE)
        total = shared // PAGE + count * own
        order = np.random.default_rng(1).permutation(total).astype(np.int32)
        common, rest = order[: shared // PAGE], order[shared // PAGE :].reshape(count, own)
        dtype = torch.float32 if place.is_small else torch.bfloat16
        heads, kv_heads, size = shape(place)
        pools = []
        for _ in range(layers):
            storage = torch.randn(2, kv_heads, total, PAGE, size, device=place.device, dtype=dtype)
            keys, values = storage.permute(0, 2, 1, 3, 4)
            pools.append((keys, values))
        q = [torch.randn(count * new, heads, size, device=place.device, dtype=dtype) for _ in range(layers)]
        start = shared + cached
        tables = [np.concatenate((common, one)) for one in rest]
        return cls(tables, [start] * count, [start + new] * count, q, pools)

    def calls(self, ops: Ops, options: PlanOptions) -> tuple[list[Call], dict[str, float]]:
        """One call a layer, and how many GB the plan reads of each layer's keys and values."""
        size = self.q[0].shape[2]
        plan = build_plan(
            self.tables,
            self.starts,
            self.stops,
            page_size=PAGE,
            spec=AttentionSpec(size**-0.5),
            options=options,
        )
        prepared = ops.prepare(plan)
        pairs = list(zip(self.q, self.pools, strict=True))
        calls: list[Call] = [partial(ops.attend, q, *pool, prepared) for q, pool in pairs]
        a_token = 2 * self.pools[0][0].shape[1] * size * self.q[0].element_size()
        group = self.q[0].shape[1] // self.pools[0][0].shape[1]
        read = read_tokens(plan, WIDE_ROWS // group)
        figures = {"read once GB": read.once * a_token / 1e9, "by tile GB": read.by_tile * a_token / 1e9}
        return calls, figures

    def compared(self, name: str, calls: Sequence[Call]) -> Row:
        """Whether the last layer's call says what the gathered keys of each row give in float64.

        Each row has one new token. Rounding of weights and outputs to bfloat16 is an error of a third of eps.
        """
        ours, q, (keys, values) = calls[-1](), self.q[-1], self.pools[-1]
        assert isinstance(ours, Tensor), "attention gives a tensor"
        worst = 0.0
        for i, (table, stop) in enumerate(zip(self.tables, self.stops, strict=True)):
            pages = torch.from_numpy(table).long().to(q.device)
            k, v = (one[pages].transpose(0, 1).flatten(1, 2)[:, :stop].double() for one in (keys, values))
            grouped = q[i].double().unflatten(0, (len(k), -1))
            weights = (grouped @ k.transpose(1, 2) * q.shape[2] ** -0.5).softmax(-1)
            truth = (weights @ v).flatten(0, 1)
            worst = max(worst, float((ours[i].double() - truth).norm() / truth.norm()))
        is_right = worst < max(torch.finfo(q.dtype).eps, 1e-6)
        return Row(f"{name}: as gathered", "right" if is_right else "wrong", {"error": worst})


def shape(place: Place) -> tuple[int, int, int]:
    return (4, 2, 16) if place.is_small else (HEADS, KV_HEADS, SIZE)


def _table(place: Place) -> Ops:
    dtype = torch.float32 if place.is_small else torch.bfloat16
    return triton_ops(*shape(place), device=place.device, dtype=dtype)


def _decode(place: Place, clock: Clock) -> Iterator[Row]:
    ops = _table(place)
    options = ops.plan_options
    if place.is_small:
        options = replace(options, align_tokens=PAGE, min_saved_tokens=1)
    alone = replace(options, min_saved_tokens=SHARE_NOTHING)
    count, long, shared, own = (2, 20, 32, 8) if place.is_small else (64, 4096, 8192, 256)
    _, kv_heads, size = shape(place)

    batch = _Batch.of(place, count, 0, long - 1, 1, 2)
    name = f"decode {count} x {long}, nothing shared"
    a_token = 2 * kv_heads * size * batch.q[0].element_size()
    calls, _ = batch.calls(ops, options)
    needed = count * long * a_token + 2 * batch.q[0].nbytes
    yield batch.compared(name, calls)
    yield clock.row(name, calls, needed, 0.85)
    del batch, calls

    batch = _Batch.of(place, count, shared, own - 1, 1, 3)
    name = f"decode {count} x ({shared} shared + {own})"
    calls, read = batch.calls(ops, options)
    yield batch.compared(f"{name}, sharing on", calls)
    together = clock.seconds(calls)
    calls, read_alone = batch.calls(ops, alone)
    yield batch.compared(f"{name}, sharing off", calls)
    apart = clock.seconds(calls)
    floor = ((shared + count * own) * a_token + 2 * batch.q[0].nbytes) / clock.copy
    yield clock.judged(f"{name}, sharing off", {"ms": apart * 1e3, **read_alone})
    figures = {"ms": together * 1e3, "floor/time": floor / together, "times faster": apart / together, **read}
    yield clock.judged(f"{name}, sharing on", figures, ("times faster", 10.0, apart / together))


def _prefill(place: Place, clock: Clock) -> Iterator[Row]:
    ops = _table(place)
    count, cached, new = (2, 24, 8) if place.is_small else (8, 2048, 2048)
    heads, _, size = shape(place)
    batch = _Batch.of(place, count, 0, cached, new, 1)
    calls, _ = batch.calls(ops, ops.plan_options)
    ours = clock.seconds(calls)
    flash, is_equal = _flash(place, batch, calls[0]())
    theirs = clock.seconds([flash])
    operations = 4 * count * heads * size * sum(range(cached + 1, cached + new + 1))
    figures = {
        "ms": ours * 1e3,
        "TFLOP/s": operations / ours / 1e12,
        "floor/time": operations / clock.matrix / ours,
        "flash ms": theirs * 1e3,
        "of flash": theirs / ours,
    }
    name = f"prefill {count} x {new} after {cached}"
    yield Row(f"{name}: as torch's", "right" if is_equal else "wrong")
    yield clock.judged(name, figures, ("of flash", 0.6, theirs / ours))


def _flash(place: Place, batch: _Batch, ours: object) -> tuple[Call, bool]:
    """torch's attention of the same rows on contiguous tensors, and whether it says the same."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    count, group = len(batch.tables), batch.q[0].shape[1] // batch.pools[0][0].shape[1]
    new, stop = len(batch.q[0]) // count, batch.stops[0]
    tables = torch.from_numpy(np.stack(batch.tables)).long().to(place.device)
    keys, values = (
        pages[tables].transpose(1, 2).flatten(2, 3)[:, :, :stop].repeat_interleave(group, 1).contiguous()
        for pages in batch.pools[0]
    )
    q = batch.q[0].unflatten(0, (count, new)).transpose(1, 2).contiguous()
    backend = SDPBackend.MATH if place.is_small else SDPBackend.FLASH_ATTENTION

    def flash() -> Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=causal_lower_right(new, stop)
            )

    theirs = flash().transpose(1, 2).flatten(0, 1).double()
    assert isinstance(ours, Tensor), "attention gives a tensor"
    error = (ours.double() - theirs).norm() / theirs.norm()
    return flash, bool(error < 4 * torch.finfo(ours.dtype).eps)


def _streams(place: Place, clock: Clock) -> Iterator[Row]:
    """Ops that read and write once. Sizes are several times the cache."""
    heads, _, size = shape(place)
    count, width = (3, 40) if place.is_small else (1 << 15, 14336)
    x, residual = (_numbers(place, count, heads * size) for _ in range(2))
    weight = torch.rand(heads * size, device=place.device)
    calls: list[Call] = [lambda: rms_norm(x, weight, 1e-5)]
    yield clock.row("rms_norm", calls, 2 * x.nbytes, 0.8)
    calls = [lambda: add_rms_norm(x, residual, weight, 1e-5)]
    yield clock.row("add_rms_norm", calls, 4 * x.nbytes, 0.8)
    gate_up = _numbers(place, count // 2 + 1, 2 * width)
    yield clock.row("silu_mul", [lambda: silu_mul(gate_up)], gate_up.nbytes * 1.5, 0.8)
    yield from _pages(place, clock, count)
    yield from _logits(place, clock)


def _pages(place: Place, clock: Clock, count: int) -> Iterator[Row]:
    heads, kv_heads, size = shape(place)
    num_pages, device = count // PAGE + 2, place.device
    qkv = _numbers(place, count, (heads + 2 * kv_heads) * size)
    pool = _numbers(place, 4, kv_heads, num_pages, PAGE, size).permute(0, 2, 1, 3, 4)
    turns = torch.rand(count, size // 2, device=device)
    position, pages = torch.arange(count, device=device), torch.randperm(num_pages, device=device)
    slots = pages[position // PAGE] * PAGE + position % PAGE
    keys, values = pool[0], pool[1]

    def write() -> Tensor:
        angles = (turns, turns)
        return turn_and_write(qkv, None, angles, position, slots, keys, values, num_heads=heads)

    yield clock.row("kv_write", [write], 2 * qkv.nbytes, 0.8)
    sources, targets = pages[: num_pages // 2], pages[num_pages // 2 : num_pages // 2 * 2]
    moved = 2 * pool.nbytes * len(sources) / num_pages
    yield clock.row("copy_pages", [lambda: copy_pages(pool, sources, targets)], moved)


def _numbers(place: Place, *sizes: int) -> Tensor:
    return torch.randn(*sizes, device=place.device, dtype=torch.float32 if place.is_small else torch.bfloat16)


def _logits(place: Place, clock: Clock) -> Iterator[Row]:
    count, vocabulary = (2, 70) if place.is_small else (2048, 128256)
    device, few = place.device, min(64, count) if not place.is_small else 2
    logits = 3 * torch.randn(count, vocabulary, device=device)
    words = torch.randint(-(1 << 31), 1 << 31, (count, -(-vocabulary // 32)), device=device).int()
    words *= torch.rand(words.shape, device=device) < 0.05  # a grammar allows few of all tokens
    bits = torch.tensor([1 << i for i in range(31)] + [-(1 << 31)], device=device).int()
    allowed = sum(int(((words & bit) != 0).sum()) for bit in bits)
    # No more need be moved than the mask, and a number for each token that is not allowed.
    needed = words.nbytes + 4 * (logits.numel() - allowed)
    yield clock.row("logit_mask", [lambda: logit_mask(logits, words, None)], needed, 0.8)

    fresh = [3 * torch.randn(few, vocabulary, device=device) for _ in range(1 if place.is_small else 8)]
    one, none = torch.ones(few, device=device), torch.zeros(few, device=device)
    keys, choices = torch.arange(few, device=device), torch.zeros(few, device=device).long()
    for name, top_k, top_p in (("all tokens", 0, 1.0), ("top-k 50, top-p 0.9", 50, 0.9)):
        asked = (one, none.int() + top_k, one * top_p, none, keys, keys, choices)
        calls: list[Call] = [partial(sample, scores, *asked) for scores in fresh]
        yield clock.row(f"sample {few} x {vocabulary}, {name}", calls, fresh[0].nbytes)


def _model_step(place: Place, clock: Clock) -> Iterator[Row]:
    """A decode step of a whole model, recorded as one graph: its layers, its head, no sampling."""
    rows, tokens = (2, 5) if place.is_small else (64, 1024)
    step, needed = llama.decode_step(place, rows, tokens)
    seconds = clock.seconds([step])
    floor = needed / clock.copy
    figures = {"ms": seconds * 1e3, "floor ms": floor * 1e3, "floor/time": floor / seconds}
    goal = ("floor/time", 1 / 1.5, floor / seconds)
    yield clock.judged(f"a decode step of a 1B model, {rows} rows x {tokens}", figures, goal)
