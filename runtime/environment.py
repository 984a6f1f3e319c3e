"""What libraries read from the environment when they are loaded, set before torch is.

The only place in the package that touches the environment. How long threads of OpenMP spin while they wait
decides what a busy neighbour costs: with torch's defaults it slows each step about ten times. The command
line and the lazy `radixlm.Engine` call this; a program that imports torch first keeps what it has.
"""

from __future__ import annotations

from collections.abc import MutableMapping

_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # waiting threads sleep
    "KMP_BLOCKTIME": "0",  # the same for Intel's OpenMP
    # GNU OpenMP: spin about 0.2 ms before sleeping; measured on two cores, when whole steps ran on it: 57 ms
    # quiet and 136 ms with a busy neighbour, against 50/481 for the default and 61/89 for none
    "GOMP_SPINCOUNT": "10000",
    "TOKENIZERS_PARALLELISM": "false",  # no second pool of threads beside torch's
    "KINETO_LOG_LEVEL": "99",  # torch's profiler writes no lines of its own among ours
}


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Sets what libraries read when they are loaded, unless the user has set it."""
    for name, value in _ENVIRONMENT.items():
        environment.setdefault(name, value)
