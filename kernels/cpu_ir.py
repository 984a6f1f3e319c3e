"""Vector code for numba, written as LLVM IR where a loop in Python would not become the right instructions.

numba compiles it on the user's machine, so nothing needs a C compiler, and a vector of `LANES` floats is as
wide as the processor's. It owns what is particular to a processor (`LANES`, `MOST_ROWS`, `DOT`) and small
builders; kernels are in cpu_gemm.py and cpu_attention.py. Addresses are int64 and nothing checks them: who
calls a kernel vouches for its shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Any, Literal

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import config
from numba.extending import intrinsic
from numba.np.numpy_support import carray

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F16 = ir.FloatType(), ir.HalfType()

Builder = Any  # llvmlite's types are not annotated
Value = Any
Storage = Literal["float32", "bfloat16", "float16"]


def _features() -> set[str]:
    """What numba compiles for: this processor, or what NUMBA_CPU_FEATURES names (for trying others)."""
    chosen: str | None = vars(config)["CPU_FEATURES"]
    if chosen is None:
        return {name for name, on in llvm.get_host_cpu_features().items() if on}
    return {name[1:] for name in chosen.split(",") if name.startswith("+")}


_FEATURES = _features()
_HAS_512 = {"avx512f", "avx512bw", "avx512vl"} <= _FEATURES
_HAS_PAIRS = _HAS_512 or "avx2" in _FEATURES or ("sse2" in _FEATURES and "avx" not in _FEATURES)
LANES = 16 if _HAS_512 else 8 if "avx" in _FEATURES else 4
"""Floats in a vector register."""
MOST_ROWS = 12 if _HAS_512 or "neon" in _FEATURES else 6
"""Rows times two vectors of sums, two vectors of weights and one number fit in the registers."""
ROW_COUNTS = tuple(n for n in (1, 2, 4, 6, 8, 12) if n <= MOST_ROWS)
"""For how many rows at a time there is code: each takes time to compile."""
DOT: Literal["vnni512", "vnni256", "none"] = (
    "vnni512"
    if _HAS_512 and "avx512vnni" in _FEATURES
    else "vnni256"
    if "avxvnni" in _FEATURES and LANES == 8
    else "none"
)
"""The instruction that multiplies groups of four bytes and adds them up."""
PAIRS = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[LANES] if _HAS_PAIRS else None
"""Where there is none for bytes: the one that does so with pairs of 16 bits."""
HAS_FLOAT16 = bool(_FEATURES & {"f16c", "avx512f", "neon"})
"""Whether the processor converts float16, which no code of ours can do for it."""
_MULTIPLY_ADD = (
    "fma" if _FEATURES & {"fma", "avx512f", "neon"} else "fmuladd"
)  # in software, fma takes forever
PANEL = 2 * LANES
"""Columns that a kernel works on at a time."""

FLOATS = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)


def at(b: Builder, address: Value, offset: int, kind: Value) -> Value:
    """A pointer to `kind`, `offset` bytes from `address`."""
    return b.inttoptr(b.add(address, I64(offset)), kind.as_pointer())


def load(b: Builder, address: Value, offset: int, kind: Value) -> Value:
    return b.load(at(b, address, offset, kind), align=1)


def store(b: Builder, value: Value, address: Value, offset: int = 0) -> None:
    b.store(value, at(b, address, offset, value.type), align=1)


def splat(b: Builder, value: Value, count: int = LANES) -> Value:
    """A vector of `count` times the value."""
    kind = ir.VectorType(value.type, count)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
    return b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(_ints(count), [0] * count))


def zeros(kind: Value) -> Value:
    return ir.Constant(kind, None)


def call(b: Builder, name: str, result: Value, arguments: Sequence[Value]) -> Value:
    """Call an intrinsic function of LLVM."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(result, [a.type for a in arguments]), name)
    return b.call(function, arguments)


def fma(b: Builder, x: Value, y: Value, z: Value) -> Value:
    return call(b, f"llvm.{_MULTIPLY_ADD}.v{LANES}f32", FLOATS, (x, y, z))


def load_floats(b: Builder, address: Value, offset: int, storage: Storage) -> Value:
    """LANES numbers, `offset` numbers after the address, as float32."""
    if storage == "float32":
        return load(b, address, 4 * offset, FLOATS)
    if storage == "float16":
        return b.fpext(load(b, address, 2 * offset, ir.VectorType(F16, LANES)), FLOATS)
    wide = b.zext(load(b, address, 2 * offset, ir.VectorType(I16, LANES)), INTS)
    return b.bitcast(b.shl(wide, splat(b, I32(16))), FLOATS)


def load_number(b: Builder, address: Value, storage: Storage) -> Value:
    """One number as float32."""
    if storage == "float32":
        return load(b, address, 0, F32)
    if storage == "float16":
        return b.fpext(load(b, address, 0, F16), F32)
    return b.bitcast(b.shl(b.zext(load(b, address, 0, I16), I32), I32(16)), F32)


def fetch(b: Builder, address: Value) -> None:
    """Have the cache line at this address fetched for reading, into the second level."""
    place = b.inttoptr(address, I8.as_pointer())
    call(b, "llvm.prefetch.p0", ir.VoidType(), (place, I32(0), I32(2), I32(1)))


def loop(
    b: Builder, count: Value, starts: Sequence[Value], body: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """Run `body(i, values)` for i in 0 .. count-1, at least once, each turn's values being what the last
    gave.
    """
    before, inside, after = b.block, b.append_basic_block("turn"), b.append_basic_block("after")
    b.branch(inside)
    b.position_at_end(inside)
    i = b.phi(I64)
    i.add_incoming(I64(0), before)
    values = [b.phi(start.type) for start in starts]
    for value, start in zip(values, starts, strict=True):
        value.add_incoming(start, before)
    results = body(i, values)
    following = b.add(i, I64(1))
    i.add_incoming(following, b.block)
    for value, result in zip(values, results, strict=True):
        value.add_incoming(result, b.block)
    b.cbranch(b.icmp_signed("<", following, count), inside, after)
    b.position_at_end(after)
    return results


def transposed(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """LANES vectors of LANES floats: what was number i of vector j is number j of vector i."""
    made, bit = list(rows), 1
    while bit < LANES:  # vectors and numbers trade this bit of their indices
        for i in (i for i in range(LANES) if not i & bit):
            pair = made[i], made[i | bit]
            for kept in (0, bit):
                places = [(j & ~bit | kept) + (LANES if j & bit else 0) for j in range(LANES)]
                made[i | kept] = b.shuffle_vector(*pair, ir.Constant(INTS, places))
        bit *= 2
    return made


def by_rows(b: Builder, rows: Value, emit: Callable[[int], None], counts: Sequence[int] = ROW_COUNTS) -> None:
    """Run the code that `emit(n)` writes for n = rows, one of the counts."""
    end = b.append_basic_block("end")
    choose = b.switch(rows, end)
    for n in counts:
        block = b.append_basic_block(f"rows{n}")
        choose.add_case(I64(n), block)
        b.position_at_end(block)
        emit(n)
        b.branch(end)
    b.position_at_end(end)


def function(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make `emit(builder, *values) -> value or None` callable from compiled code, with these numba types."""

    def wrap(emit: Callable[..., Any]) -> Any:
        signature = result(*arguments)

        def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
            made = emit(builder, *values)
            return context.get_dummy_value() if made is None else made

        def typed(*_: Any) -> Any:
            return signature, generate

        # numba asks for a parameter for each argument, behind the typing context.
        names = ["context", *(f"a{i}" for i in range(len(arguments)))]
        parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        typed.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return intrinsic(typed)

    return wrap


def _ints(count: int) -> Value:
    return ir.VectorType(I32, count)


def inner(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that only compiled code calls: without what Python would need, which takes long."""
    compile_: Any = njit  # its type does not know these two
    wrap: Callable[[Callable[..., Any]], Any] = compile_(
        error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )
    return wrap


# -- single numbers in memory, and what threads need ---------------------------------------------------


@function(types.voidptr, types.int64)
def pointer(b: Builder, address: Value) -> Value:
    return b.inttoptr(address, I8.as_pointer())


@function(types.int64, types.int64)
def load_int(b: Builder, address: Value) -> Value:
    return load(b, address, 0, I64)


@function(types.void, types.int64, types.int64)
def store_int(b: Builder, address: Value, value: Value) -> None:
    store(b, value, address)


@function(types.float32, types.int64, types.int64)
def load_float32(b: Builder, address: Value, index: Value) -> Value:
    """The number address[index], as float32."""
    return load_number(b, b.add(address, b.mul(index, I64(4))), "float32")


@function(types.float32, types.int64, types.int64)
def load_float16(b: Builder, address: Value, index: Value) -> Value:
    return load_number(b, b.add(address, b.mul(index, I64(2))), "float16")


@function(types.float32, types.int64, types.int64)
def load_bfloat16(b: Builder, address: Value, index: Value) -> Value:
    return load_number(b, b.add(address, b.mul(index, I64(2))), "bfloat16")


@function(types.void, types.int64, types.int64, types.float32)
def store_float32(b: Builder, address: Value, index: Value, value: Value) -> None:
    """The number to address[index]."""
    store(b, value, b.add(address, b.mul(index, I64(4))))


@function(types.void, types.int64, types.int64, types.float32)
def store_float16(b: Builder, address: Value, index: Value, value: Value) -> None:
    store(b, b.fptrunc(value, F16), b.add(address, b.mul(index, I64(2))))


@function(types.void, types.int64, types.int64, types.float32)
def store_bfloat16(b: Builder, address: Value, index: Value, value: Value) -> None:
    """Rounded to the nearest, ties to even; NaN stays NaN."""
    bits = b.bitcast(value, I32)
    odd = b.and_(b.lshr(bits, I32(16)), I32(1))
    rounded = b.lshr(b.add(bits, b.add(odd, I32(0x7FFF))), I32(16))
    kept = b.select(b.fcmp_unordered("uno", value, value), I32(0x7FC0), rounded)
    store(b, b.trunc(kept, I16), b.add(address, b.mul(index, I64(2))))


@function(types.int64, types.int64)
def atomic_load(b: Builder, address: Value) -> Value:
    return b.load_atomic(at(b, address, 0, I64), "seq_cst", 8)


@function(types.void, types.int64, types.int64)
def atomic_store(b: Builder, address: Value, value: Value) -> None:
    b.store_atomic(value, at(b, address, 0, I64), "seq_cst", 8)


@function(types.int64, types.int64, types.int64)
def atomic_add(b: Builder, address: Value, value: Value) -> Value:
    """Adds, and returns what was there before."""
    return b.atomic_rmw("add", at(b, address, 0, I64), value, "seq_cst")


@function(types.int64, types.int64, types.int64)
def atomic_swap(b: Builder, address: Value, value: Value) -> Value:
    return b.atomic_rmw("xchg", at(b, address, 0, I64), value, "seq_cst")


@function(types.boolean, types.int64, types.int64, types.int64)
def atomic_replace(b: Builder, address: Value, expected: Value, value: Value) -> Value:
    """Whether `expected` was there, and has been replaced."""
    done = b.cmpxchg(at(b, address, 0, I64), expected, value, "seq_cst", "seq_cst")
    return b.extract_value(done, 1)


@function(types.void, types.int64, types.int64)
def call_job(b: Builder, job: Value, item: Value) -> None:
    """Call the function whose address is the first word of `job`: void (job, item)."""
    kind = ir.FunctionType(ir.VoidType(), [I64, I64])
    address = load(b, job, 0, I64)
    b.call(b.inttoptr(address, kind.as_pointer()), [job, item])


@function(types.void)
def pause(b: Builder) -> None:
    """Tell the processor that this is a loop that waits."""
    if "sse2" in _FEATURES:
        call(b, "llvm.x86.sse2.pause", ir.VoidType(), ())


@function(types.int32)
def yield_processor(b: Builder) -> Value:
    """Let another thread run on this core: sched_yield of the C library."""
    return call(b, "sched_yield", I32, ())


@function(types.void, types.int64)
def prefetch(b: Builder, address: Value) -> None:
    fetch(b, address)


@function(types.void, types.int64, types.int64, types.int64)
def copy_bytes(b: Builder, target: Value, source: Value, count: Value) -> None:
    to, start = (b.inttoptr(address, I8.as_pointer()) for address in (target, source))
    call(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), (to, start, count, ir.IntType(1)(0)))


@inner()
def rows_at_once(rows: int) -> int:
    """How many of so many rows to work on now: a number that there is code for."""
    if rows >= MOST_ROWS and (rows >= 2 * MOST_ROWS or rows - MOST_ROWS not in (1, 2, 3, 4) or MOST_ROWS < 8):
        return MOST_ROWS
    if rows >= 8 and MOST_ROWS >= 8:
        return 8
    return 6 if rows >= 6 else 4 if rows >= 4 else 2 if rows >= 2 else 1


@inner()
def floats(address, count):  # type: ignore[no-untyped-def]
    """`count` float32 at an address, as an array."""
    return carray(pointer(address), count, np.float32)


@inner()
def signed(address, count):  # type: ignore[no-untyped-def]
    """`count` int8 at an address, as an array."""
    return carray(pointer(address), count, np.int8)


@inner()
def shorts(address, count):  # type: ignore[no-untyped-def]
    """`count` int16 at an address, as an array."""
    return carray(pointer(address), count, np.int16)


@inner()
def words(address, count):  # type: ignore[no-untyped-def]
    """`count` int64 at an address, as an array."""
    return carray(pointer(address), count, np.int64)


@inner()
def halves(address, count):  # type: ignore[no-untyped-def]
    """`count` int32 at an address, as an array."""
    return carray(pointer(address), count, np.int32)
