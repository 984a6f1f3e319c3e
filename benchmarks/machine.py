"""What the machine can do at most: copy bandwidth and matrix rates, and the floor of a step from them.

A floor is the larger of two times: weights and unique keys and values read once at the bandwidth, and all
operations at the rate. Nothing else is counted, so no program can be faster, but for what stays in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import torch

WIDTH = {"float32": 4, "int8": 1}


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes a second of a copy, read and written, by its size; operations a second by precision."""

    copy: Mapping[str, float]
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Floors of one model on one machine, in seconds."""

    machine: Machine
    matrix_parameters: int
    layer_parameters: int
    kv_values_a_token: int
    attention_operations_a_pair: int

    def step(self, rows: int, shared: int, private: float, row: str) -> float:
        """A decode step of `rows` rows over `shared` tokens in common and `private` of each row's own."""
        tokens = shared + rows * private
        read = self.matrix_parameters * WIDTH[row] + 4 * self.kv_values_a_token * tokens
        attention = self.attention_operations_a_pair * rows * (shared + private)
        computed = 2 * self.matrix_parameters * rows / self.machine.rates[row]
        computed += attention / self.machine.rates["float32"]
        return max(read / self.machine.copy[row], computed)

    def prompt(self, tokens: int, row: str) -> float:
        """A whole prompt, whose head is needed for its last token only."""
        attention = self.attention_operations_a_pair * tokens * tokens / 2
        matrices = 2 * self.layer_parameters * tokens / self.machine.rates[row]
        return matrices + attention / self.machine.rates["float32"]


def measure(threads: int, weights: int) -> Machine:
    """`weights` is the number of parameters: copies are as large as the weights in each precision."""
    torch.set_num_threads(threads)
    copy = {row: _copy_bandwidth(weights * width) for row, width in WIDTH.items()}
    rates = {"float32": _matrix_rate(torch.float32), "bfloat16": _matrix_rate(torch.bfloat16)}
    rates["int8"] = _int8_rate()
    return Machine(copy, rates)


def _copy_bandwidth(size: int) -> float:
    source = torch.ones(size // 4)
    target = torch.empty_like(source)
    return 2 * size / _best(lambda: target.copy_(source))


def _matrix_rate(dtype: torch.dtype, n: int = 2048) -> float:
    a, b = torch.randn(n, n).to(dtype), torch.randn(n, n).to(dtype)
    return 2 * n**3 / _best(lambda: a @ b)


def _int8_rate(n: int = 2048) -> float:
    a = torch.randint(-127, 127, (n, n), dtype=torch.int8)
    b = torch.randint(-127, 127, (n, n), dtype=torch.int8)
    return 2 * n**3 / _best(lambda: torch._int_mm(a, b))


def _best(run: Callable[[], object], repeats: int = 7) -> float:
    """The fastest of some, after two that do not count: what the machine can do, not what it mostly does."""
    run(), run()
    seconds = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return min(seconds)
