"""Recordings: a whole forward pass as one list of jobs, done in a single call.

Between two matrix products Python and torch do what takes microseconds when their code is in the processor's
cache and some tens of them when weights have just passed through it: for a small model more than the
products themselves. So the jobs that a pass hands to its team are written down once for each shape of a step,
and from then on done without Python in between. It is to a CPU what a CUDA graph is to a GPU.

What must hold: between its inputs and its output, the recorded function computes by jobs of the team alone
and takes all memory from `empty`; its jobs depend on the inputs by their addresses and on the plan by
`PlanSlot`.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cpu_attention import CpuPlan, PlanSlot
from .cpu_memory import zeros
from .cpu_team import Team
from .ops import PreparedPlan

MOST_KEPT = 256
"""Recordings that are kept: some 40 kB each."""
MOST_ROWS = 1024
"""Steps of more rows are not recorded: beside their work it would gain nothing."""
_CHUNK = 8 << 20
_LINE = 64

Pass = Callable[[Sequence[Tensor], PreparedPlan], Tensor]


@dataclass(slots=True)
class _Recording:
    jobs: NDArray[np.int64]
    inputs: list[Tensor]
    plan: PlanSlot
    output: Tensor


class Recorder:
    """Runs passes: each shape is recorded when it first comes, and replayed then and later."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._known: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._memory = _Workspace()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for an output of a job."""
        if self._team.recording is None:
            return torch.empty(tuple(shape), dtype=dtype)
        return self._memory.take(shape, dtype)

    def run(self, pass_: Pass, name: Hashable, inputs: Sequence[Tensor], plan: PreparedPlan) -> Tensor:
        """What `pass_(inputs, plan)` gives. It may lie in memory that the next call writes to.

        name: stands for whatever else the pass depends on.
        """
        assert isinstance(plan, CpuPlan), "a pass is run on what prepare made"
        key = (name, *(x.shape for x in inputs), len(plan.levels))
        if len(inputs[0]) > MOST_ROWS:
            return pass_(inputs, plan)
        recording = self._known.get(key) or self._record(pass_, inputs, plan)
        self._keep(key, recording)
        for kept, given in zip(recording.inputs, inputs, strict=True):
            kept.copy_(given)
        recording.plan.set(plan)
        self._team.play(recording.jobs)
        recording.plan.clear()
        return recording.output

    def _record(self, pass_: Pass, inputs: Sequence[Tensor], plan: CpuPlan) -> _Recording:
        kept = [torch.empty_like(x) for x in inputs]
        slot = PlanSlot(plan)
        self._memory.begin()
        self._team.recording = []
        try:
            output = pass_(kept, slot)
            jobs = np.array(self._team.recording, dtype=np.int64)
        finally:
            self._team.recording = None
        return _Recording(jobs, kept, slot, output)

    def _keep(self, key: Hashable, recording: _Recording) -> None:
        self._known[key] = recording
        self._known.move_to_end(key)
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)


class _Workspace:
    """Memory for what a recorded pass computes on the way, the same for all recordings: one plays at a time.

    A block is free again when nothing refers to the tensor it was for, nor to a view of it: jobs are done in
    the order in which they were recorded, so whoever gets it next writes to it after its last reader.
    """

    def __init__(self) -> None:
        self._chunks: list[NDArray[np.uint8]] = []
        self.begin()

    def begin(self) -> None:
        """A new recording: everything is free."""
        self._used = [0] * len(self._chunks)
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        rounded = max(_LINE, -(-size // _LINE) * _LINE)
        block = self._free[rounded].pop() if self._free[rounded] else self._cut(rounded)
        # torch keeps `owner` alive as long as any tensor of this storage.
        owner = block[:size]
        weakref.finalize(owner, self._free[rounded].append, block)
        return torch.from_numpy(owner).view(dtype).view(tuple(shape))

    def _cut(self, size: int) -> NDArray[np.uint8]:
        """From the first chunk that has room; a new one is a power of two, so that growing steps share it."""
        fits = (i for i, chunk in enumerate(self._chunks) if self._used[i] + size <= len(chunk))
        at = next(fits, len(self._chunks))
        if at == len(self._chunks):
            self._chunks.append(zeros((max(_CHUNK, 1 << (size - 1).bit_length()),), torch.uint8).numpy())
            self._used.append(0)
        start = self._used[at]
        self._used[at] += size
        return self._chunks[at][start : start + size]
