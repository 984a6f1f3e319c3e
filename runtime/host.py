"""What the engine asks of the machine: threads, and memory that is kept rather than returned.

Both are settings of the whole process, made when an engine is opened. What must be set before torch is
loaded, OpenMP's wait policy, is environment.py's.
"""

from __future__ import annotations

import ctypes

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 30


def prepare_host(threads: int | None) -> None:
    """Use `threads` threads (None: what torch chose, one a core) and keep freed memory for the next step.

    glibc maps every large tensor anew and returns it when it is freed, so that each chunk of a prompt pays
    for the same page faults again; other C libraries are left alone.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def return_free_memory() -> None:
    """Give the system what loading has freed, which would stay with the process for ever: half a gigabyte."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
