"""Kernels compiled for a GPU that is not here, and what the machine code tells.

Run as a script it launches, for each target, the cases of compile_cases.py on tensors without memory that say
they are on a GPU. Triton's own launch path then decides what is constant and what is aligned, as it would
there, and compiles; nothing is started. Of each kernel the registers, shared memory and instructions are read
with the tools that Triton carries, and written as JSON or as a Markdown table. `compiled` does so in a child
process, in which Triton's interpreter is off, and whose cache is empty when it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SHARED_LIMIT = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program may have, by target."""

MATRIX = {80: ("HMMA",), 90: ("HGMMA", "HMMA"), 100: ("UTCHMMA", "HMMA")}
"""Matrix instructions by target; the first is that of large tiles."""

_TOLD = ("BLOCK", "KIND", "GELU", "WORDS", "residual_ptr", "rows")
_PROCESSORS = {80: 108, 90: 132, 100: 148}
_COUNTED = {
    "16-byte loads": r"LDG\.E\.(?:\w+\.)*128|LDGSTS\.E\.(?:\w+\.)*128|UTMALDG",
    "16-byte copies to shared memory": r"LDGSTS\.E\.(?:\w+\.)*128|UTMALDG",
    "16-byte stores": r"STG\.E\.(?:\w+\.)*128|UTMASTG",
    "8-byte loads": r"LDG\.E\.(?:\w+\.)*64|LDGSTS\.E\.(?:\w+\.)*64",
    "2-byte loads": r"LDG\.E\.(?:\w+\.)*[US]16",
    "2-byte stores": r"STG\.E\.(?:\w+\.)*[US]16",
    "spills": r"STL|LDL",
    **{name: name + r"(?![A-Z])" for names in MATRIX.values() for name in names},
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel of a case for one target. options: its constants, and arguments that are None. local: bytes
    of stack and local memory a thread. counts: how many instructions of a kind, without those that there are
    none of. error: why there is no code; all else is zero then."""

    case: str
    kernel: str
    arch: int
    options: dict[str, Any] = field(default_factory=dict)
    warps: int = 0
    stages: int = 0
    registers: int = 0
    local: int = 0
    shared: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    error: str = ""

    @property
    def spills(self) -> int:
        """Bytes in memory that belong in registers, and instructions that move them."""
        return self.local + self.counts.get("spills", 0)


def compiled(cases: Sequence[str], archs: Sequence[int]) -> list[Compiled]:
    """What a child process finds for these cases."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        targets = [str(arch) for arch in archs]
        child = subprocess.run(
            [sys.executable, "-P", __file__, "--json", report, "--archs", *targets, "--cases", *cases],
            env={**environment, "TRITON_CACHE_DIR": f"{folder}/cache", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if child.returncode:
            raise RuntimeError(f"the compiling process failed:\n{child.stdout}\n{child.stderr}")
        return [Compiled(**one) for one in json.loads(report.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compile the kernels for GPUs that are not here.")
    parser.add_argument("--archs", nargs="*", type=int, choices=SHARED_LIMIT, default=list(SHARED_LIMIT))
    parser.add_argument("--cases", nargs="*", help="names of cases, default: all")
    parser.add_argument("--json", type=Path, help="write everything to this file, else print a table")
    options = parser.parse_args()
    sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
    import triton

    from testkit.compile_cases import CASES

    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET must not be set: nothing is compiled in the interpreter")
    found = [one for arch in options.archs for name in options.cases or CASES for one in _compile(name, arch)]
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found]))
    else:
        print(f"Triton {triton.__version__}\n\n{table(found)}")


def table(found: Sequence[Compiled]) -> str:
    """Markdown, one line a kernel and target."""
    lines = [
        "| case | kernel | sm | warps | stages | registers | shared KB | spills | instructions |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for one in found:
        counts = ", ".join(f"{n} {kind}" for kind, n in one.counts.items() if kind != "spills")
        tile = " ".join(_told(*option) for option in one.options.items() if option[0].startswith(_TOLD))
        lines.append(
            f"| {one.case} | {one.kernel} {tile} | {one.arch} | {one.warps} | {one.stages} | {one.registers} "
            f"| {one.shared / 1024:.1f} | {one.spills} | {one.error or counts} |"
        )
    return "\n".join(lines)


def _told(name: str, value: Any) -> str:
    return f"without {name.removesuffix('_ptr')}" if value is None else f"{name}={value}"


def _compile(case: str, arch: int) -> list[Compiled]:
    """Each kernel that the case launches, once; what went wrong is told by the last of them."""
    from testkit.compile_cases import CASES

    done: dict[str, Compiled] = {}
    with _target(arch) as launched:
        try:
            CASES[case]()
        except Exception as error:
            message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            done["error"] = Compiled(case, "", arch, error=message)
    found = {kernel.hash: _read(case, arch, kernel) for kernel in launched}
    return [*found.values(), *done.values()]


@contextmanager
def _target(arch: int) -> Iterator[list[Any]]:
    """Launches compile for `arch`, and are listed; tensors are made on a GPU of that kind, without memory.

    Its number is the target's, so that nothing that is remembered of one GPU is believed of another.
    """
    import torch
    import triton
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    class Device:
        multi_processor_count = _PROCESSORS[arch]
        major, minor = divmod(arch, 10)
        shared_memory_per_block_optin = SHARED_LIMIT[arch]

    class Driver:
        get_current_device = staticmethod(lambda: arch)
        get_current_stream = staticmethod(lambda device: 0)
        get_current_target = staticmethod(lambda: GPUTarget("cuda", arch, 32))

    launched: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launched.append(run(self, *args, grid=grid, warmup=True, **options))
        return launched[-1]

    told = {
        "current_device": lambda: arch,
        "get_device_properties": lambda device=None: Device(),
        "get_device_capability": lambda device=None: divmod(arch, 10),
    }
    kept = {name: getattr(torch.cuda, name) for name in told}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tensor without memory is asked for its address
        triton.runtime.driver.set_active(Driver())
        JITFunction.run = compile_only
        for name, function in told.items():
            setattr(torch.cuda, name, function)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                yield launched
        finally:
            JITFunction.run = run
            for name, function in kept.items():
                setattr(torch.cuda, name, function)


def _read(case: str, arch: int, kernel: Any) -> Compiled:
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, code = (_output(tool, option, file.name) for option in ("-res-usage", "-sass"))
    sizes = {name: int(size) for name, size in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    instructions = Counter(re.findall(r"/\*\w{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]+)", code))
    assert instructions, f"the machine code of {kernel.metadata.name} could be read"
    counts = {
        kind: n
        for kind, pattern in _COUNTED.items()
        if (n := sum(k for name, k in instructions.items() if re.match(pattern, name)))
    }
    names = kernel.src.fn.arg_names
    return Compiled(
        case=case,
        kernel=kernel.metadata.name.strip("_").removesuffix("_kernel"),
        arch=arch,
        options={
            name: value
            for (at, *_), value in kernel.src.constants.items()
            if (name := names[at]).isupper() or value is None
        },
        warps=kernel.metadata.num_warps,
        stages=kernel.metadata.num_stages,
        registers=sizes["REG"],
        local=sizes["STACK"] + sizes["LOCAL"],
        shared=kernel.metadata.shared,
        counts=counts,
    )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
