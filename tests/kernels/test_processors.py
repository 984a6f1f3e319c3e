"""Other processors than this one: the kernels compiled for their instructions, in a process of its own.

Compiling anew takes the time, so the two that differ most from one another stand for all; the others, and all
number formats, come with HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

_SSE2 = ("sse", "sse2", "cx8", "fxsr", "mmx")
_AVX = (*_SSE2, "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "avx")
_AVX2 = (*_AVX, "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")
_ALL = ("float32", "bfloat16", "float16")
_HALVES_IN_SOFTWARE = ("float32", "bfloat16")

pytestmark = pytest.mark.thorough

PROCESSORS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "sse2": ("x86-64", _SSE2, ("float32",), "4 none sse2.pmadd.wd"),
    "haswell": ("haswell", _AVX2, ("bfloat16",), "8 none avx2.pmadd.wd"),
    "sse2, all formats": ("x86-64", _SSE2, _HALVES_IN_SOFTWARE, "4 none sse2.pmadd.wd"),
    "no features named": ("generic", (), _HALVES_IN_SOFTWARE, "4 none None"),
    "sandybridge": ("sandybridge", _AVX, _HALVES_IN_SOFTWARE, "8 none None"),
    "haswell, all formats": ("haswell", _AVX2, _ALL, "8 none avx2.pmadd.wd"),
    "alderlake": ("alderlake", (*_AVX2, "avxvnni"), _ALL, "8 vnni256 avx2.pmadd.wd"),
    "skylake-avx512": ("skylake-avx512", _AVX512, _ALL, "16 none avx512.pmaddw.d.512"),
    "icelake": ("icelake-server", (*_AVX512, "avx512vnni"), _ALL, "16 vnni512 avx512.pmaddw.d.512"),
}
"""For each: its name, what it has, the formats to check, and the way of computing it must lead to."""
_ALWAYS = ("sse2", "haswell")


@pytest.mark.parametrize("name", PROCESSORS)
def test_kernels_are_right_on_a_processor_like(name: str, tmp_path: Path) -> None:
    processor, features, storages, way = PROCESSORS[name]
    if name not in _ALWAYS and os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
        pytest.skip("HYPOTHESIS_PROFILE=nightly looks longer")
    here = {feature for feature, has in llvm.get_host_cpu_features().items() if has}
    if missing := set(features) - here:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features),
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testkit.processor", *storages],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, way), done.stderr
