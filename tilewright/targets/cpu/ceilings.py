"""Measures the rooflines of this CPU by four microbenchmarks in LLVM IR, which run on all threads.

    peak    multiply-adds on registers, as many chains as hide their latency     read   sums over memory
    write   one value to all of memory                                           copy   one half of memory to the other

Each runs several times, the fastest counts: what other processes take from a run is never negative. Where they take
more than a little of the cores, the measurement says so.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...codegen.llvm.assemble import assemble
from ...codegen.llvm.machine import code_key
from ...program.package import Package
from ...program.program import BufferRef, Call, Program, TensorInfo
from ...program.timeline import Stamps, Timeline
from ...schedule.ceilings import Ceilings, Level
from ...schedule.machine import TileProduct
from ...support.aligned import address, aligned_empty
from ...support.errors import CompileError
from .amx import INTRINSICS
from .description import CpuDescription, host
from .device import CpuRunner
from .program import assemble_program

#: bytes that a thread moves in one measured call, at least, and at most for one pass over a large memory
_MOVED = 32 << 20
_LARGEST = 512 << 20
_VECTORS = 8  # vectors of one step of a loop over memory
_STEPS = 1 << 14  # steps of the loop of multiply-adds in one measured call
_TIMES, _SECONDS = 4, 0.1
_QUIET = 0.9  # part of the cores that this process must have had


def machine_name() -> str:
    """The model of the processor, its features and its caches."""
    d = host()
    return f"{_model()}|{code_key(d)}|{d.l1_bytes}/{d.l2_bytes}/{d.l3_bytes}"


def _model() -> str:
    """The processor's name for itself, with the numbers that tell what it is where the name is vague."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}
    wanted = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    return " ".join(facts[k] for k in wanted if facts.get(k)) or platform.machine()


def measure(threads: int, precisions: Sequence[str] = (), memories: Sequence[str] = ()) -> Ceilings:
    """Measure this machine with `threads` threads; half a second for each precision and memory. Without names: all."""
    d, compute, used = host(), {}, Used()
    for name, (text, operations) in _peaks(d):
        if precisions and name not in precisions:
            continue
        try:
            taken = _fastest(text, threads, 4096, 4096, _STEPS, used)
        except CompileError:  # LLVM does not know the instruction under this name
            continue
        compute[name] = operations * _STEPS * threads / taken
    wanted = [s for s in _sizes(d, threads) if not memories or s[0] in memories]
    levels = [_level(name, capacity, size, threads, used) for name, capacity, size in wanted]
    return Ceilings(machine_name(), threads, compute, tuple(levels), used.part(threads) > _QUIET)


@dataclass
class Used:
    """Seconds that have passed while loops ran, and seconds of all cores together that this process had of them."""

    wall: float = 0.0
    cores: float = 0.0

    def part(self, threads: int) -> float:
        return self.cores / self.wall / threads if self.wall else 1.0


def _sizes(d: CpuDescription, threads: int) -> Iterator[tuple[str, int | None, int]]:
    """Name, capacity, and one thread's bytes to measure with, of every level of the memory.

    The capacity is less than the size: what fills a cache to the brim does not stay in it.
    """
    yield "L1", d.l1_bytes * threads * 3 // 4, d.l1_bytes // 2
    yield "L2", d.l2_bytes * threads * 3 // 4, d.l2_bytes // 2
    if d.l3_bytes > 2 * d.l2_bytes * threads:
        yield "L3", d.l3_bytes * 3 // 4, min(max(d.l3_bytes // 2 // threads, 2 * d.l2_bytes), 16 << 20)
    yield "DRAM", None, min(max(4 * d.l3_bytes, 64 << 20), _LARGEST) // threads


def _level(name: str, capacity: int | None, size: int, threads: int, used: Used) -> Level:
    """Reading, writing and copying with `size` bytes a thread in use."""
    d = host()
    step = _VECTORS * d.vector_bytes
    passes = max(_MOVED // size, 1)
    speeds = []
    for text, parts in ((_read(d), 1), (_write(d), 1), (_copy(d), 2)):
        each = max(size // parts // step, 1) * step
        taken = _fastest(text, threads, each, each, passes, used)
        speeds.append(parts * each * passes * threads / taken)
    return Level(name, capacity, *speeds)


# ---- running ----


def _fastest(text: str, threads: int, read: int, written: int, passes: int, used: Used) -> float:
    """Seconds of one call of the kernel @loop in its fastest run. Each thread has `read` bytes to read and `written`
    to write, and goes over them `passes` times."""
    d = host()
    control = np.array([written, passes], np.int64)
    x, y = (aligned_empty(n * threads, 4096).view(np.float32) for n in (read, written))
    x[:] = 0.5  # pages that were never written to share one page of zeros
    infos = [TensorInfo("control", (2,), "i64"), TensorInfo("x", x.shape, "f32"), TensorInfo("y", y.shape, "f32")]
    refs = [BufferRef("input", 0, 0, 16), BufferRef("input", 1, 0, x.nbytes), BufferRef("output", 0, 0, y.nbytes)]
    call = Call("loop", tuple(refs), (2,))
    # the first call wakes the other threads: it runs unmeasured
    program = Program(tuple(infos[:2]), (infos[2],), (), (call, call, call))
    package = Package("cpu", d.to_json(), program, assemble_program(program, {"loop": assemble(text, d)}, d), [])
    runner = CpuRunner(package, threads, timed=True)
    context, stamps = runner.context(), Stamps(runner.threads, len(program.calls))
    taken: list[float] = []
    start, cores = time.perf_counter(), time.process_time()
    try:
        while len(taken) < 2 * _TIMES or time.perf_counter() < start + _SECONDS:
            stamps.clear()
            context.run([address(control), address(x)], [address(y)], stamps)
            taken += Timeline.of(stamps, runner.seconds_per_tick).seconds()[1:].tolist()
        used.wall += time.perf_counter() - start
        used.cores += time.process_time() - cores
    finally:
        context.close()
    return min(taken)


# ---- the loops, as LLVM IR ----

_HEAD = """\
define void @loop(ptr %control, ptr %x, ptr %y, ptr %scratch, i64 %tid, i64 %n) {{
entry:
  %bytes = load i64, ptr %control
  %p_passes = getelementptr i64, ptr %control, i64 1
  %passes = load i64, ptr %p_passes
  %at = mul i64 %bytes, %tid
  %from = getelementptr i8, ptr %x, i64 %at
  %to = getelementptr i8, ptr %y, i64 %at
  {start}
  br label %pass
pass:
  %p = phi i64 [ 0, %entry ], [ %p1, %passed ]
{carried}
  br label %step
step:
  %i = phi i64 [ 0, %pass ], [ %i1, %step ]
{body}
  %i1 = add i64 %i, {step}
  %more = icmp ult i64 %i1, {end}
  br i1 %more, label %step, label %passed
passed:
  %p1 = add i64 %p, 1
  %again = icmp ult i64 %p1, %passes
  br i1 %again, label %pass, label %done
done:
{finish}
  ret void
}}
"""


def _over_memory(d: CpuDescription, body: Callable[[int, str], list[str]], sums: bool = False) -> str:
    """A loop over memory in steps of several vectors. `body` gives the lines for vector k of its type."""
    vector = f"<{d.vector_bytes // 4} x float>"
    lines, carried, finish = [], [], []
    for k in range(_VECTORS):
        lines += [f"  %o{k} = add i64 %i, {k * d.vector_bytes}", *body(k, vector)]
        if sums:
            zero = "zeroinitializer"
            carried.append(f"  %s{k} = phi {vector} [ {zero}, %entry ], [ %t{k}, %passed ]")
            lines.insert(0, f"  %a{k} = phi {vector} [ %s{k}, %pass ], [ %t{k}, %step ]")
            finish += [
                f"  %d{k} = getelementptr i8, ptr %to, i64 {k * d.vector_bytes}",
                f"  store {vector} %t{k}, ptr %d{k}, align 4",
            ]
    return _HEAD.format(
        start=f"%value = load {vector}, ptr %x, align 4",
        carried="\n".join(carried),
        body="\n".join(lines),
        step=_VECTORS * d.vector_bytes,
        end="%bytes",
        finish="\n".join(finish),
    )


def _read(d: CpuDescription) -> str:
    def body(k: int, vector: str) -> list[str]:
        return [
            f"  %r{k} = getelementptr i8, ptr %from, i64 %o{k}",
            f"  %v{k} = load {vector}, ptr %r{k}, align 4",
            f"  %t{k} = fadd {vector} %a{k}, %v{k}",
        ]

    return _over_memory(d, body, sums=True)


def _write(d: CpuDescription) -> str:
    """`volatile`, so that LLVM does not make a call of memset from the loop."""

    def body(k: int, vector: str) -> list[str]:
        return [
            f"  %w{k} = getelementptr i8, ptr %to, i64 %o{k}",
            f"  store volatile {vector} %value, ptr %w{k}, align 4",
        ]

    return _over_memory(d, body)


def _copy(d: CpuDescription) -> str:
    def body(k: int, vector: str) -> list[str]:
        return [
            f"  %r{k} = getelementptr i8, ptr %from, i64 %o{k}",
            f"  %v{k} = load volatile {vector}, ptr %r{k}, align 4",
            f"  %w{k} = getelementptr i8, ptr %to, i64 %o{k}",
            f"  store volatile {vector} %v{k}, ptr %w{k}, align 4",
        ]

    return _over_memory(d, body)


def _peaks(d: CpuDescription) -> Iterator[tuple[str, tuple[str, int]]]:
    """Precision, the loop that reaches its peak, and its operations a pass (one step)."""
    for name, element, size in (("f32", "float", 4), ("f64", "double", 8)):
        lanes = d.vector_bytes // size
        suffix = f"v{lanes}f{8 * size}"
        vector = f"<{lanes} x {element}>"
        function = f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})"
        yield name, _chains(d, vector, vector, f"@llvm.fma.{suffix}", "{a}, {a}, {acc}", function, 2 * lanes)
    tiles = {t.dtype: t for t in d.tiles if t.name in ("amx_bf16", "amx_us")}
    yield from ((dtype, _tile_products(t)) for dtype, t in tiles.items())
    if "avx512bf16" in d.features and "bf16" not in tiles:
        halves, name = "<32 x bfloat>", "@llvm.x86.avx512bf16.dpbf16ps.512"
        function = f"declare <16 x float> {name}(<16 x float>, {halves}, {halves})"
        yield "bf16", _chains(d, "<16 x float>", halves, name, "{acc}, {a}, {a}", function, 64)
    if "avx512vnni" in d.features and "i8" not in tiles:
        words, bytes_, name = "<16 x i32>", "<64 x i8>", "@llvm.x86.avx512.vpdpbusd.512"
        function = f"declare {words} {name}({words}, {bytes_}, {bytes_})"
        yield "i8", _chains(d, words, bytes_, name, "{acc}, {a}, {a}", function, 128)


def _tile_products(product: TileProduct) -> tuple[str, int]:
    """As `_chains`, on registers that hold matrices: six of sums, and one of each factor."""
    chains, intrinsic = 6, f"@llvm.x86.{INTRINSICS[product.name]}"
    table = [1, *[0] * 15, *[product.row_bytes, 0] * product.registers, *[0] * 16, *[product.rows] * product.registers]
    shapes = "".join(f"\\{n:02X}" for n in [*table, *[0] * (64 - len(table))])
    load = "call void @llvm.x86.tileloadd64(i8 {}, ptr %x, i64 64)"
    zero = [f"call void @llvm.x86.tilezero(i8 {k})" for k in range(chains)]
    start = ["call void @llvm.x86.ldtilecfg(ptr @shapes)", *zero, load.format(6), load.format(7)]
    text = _HEAD.format(
        start="\n  ".join(start),
        carried="",
        body="\n".join(f"  call void {intrinsic}(i8 {k}, i8 6, i8 7)" for k in range(chains)),
        step=1,
        end="4",
        finish="  call void @llvm.x86.tilerelease()",
    )
    declared = [
        f'@shapes = private constant [64 x i8] c"{shapes}", align 64',
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilerelease()",
        "declare void @llvm.x86.tilezero(i8 immarg)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        f"declare void {intrinsic}(i8 immarg, i8 immarg, i8 immarg)",
    ]
    operations = 2 * product.rows * product.columns * product.depth
    return "\n".join([*declared, text]), 4 * chains * operations


def _chains(
    d: CpuDescription, vector: str, operand: str, function: str, arguments: str, declaration: str, operations: int
) -> tuple[str, int]:
    """Chains of one instruction that depends on itself: all registers but a few, so that none has to wait."""
    chains = 24 if d.vector_registers >= 32 else 12
    # they begin with different numbers, or LLVM would see that one chain is enough
    carried = [f"  %s{k} = phi {vector} [ %z{k}, %entry ], [ %t{k}, %passed ]" for k in range(chains)]
    start, body, finish = [f"%value = load {operand}, ptr %x, align 4"], [], []
    for k in range(chains):
        start.append(f"  %q{k} = getelementptr i8, ptr %x, i64 {k * d.vector_bytes}")
        start.append(f"  %z{k} = load {vector}, ptr %q{k}, align 4")
    for k in range(chains):
        body.append(f"  %a{k} = phi {vector} [ %s{k}, %pass ], [ %t{k}, %step ]")
    for k in range(chains):
        given = arguments.format(acc=f"{vector} %a{k}", a=f"{operand} %value")
        body.append(f"  %t{k} = call {vector} {function}({given})")
        finish += [
            f"  %d{k} = getelementptr i8, ptr %to, i64 {k * d.vector_bytes}",
            f"  store {vector} %t{k}, ptr %d{k}, align 4",
        ]
    text = _HEAD.format(
        start="\n".join(start),
        carried="\n".join(carried),
        body="\n".join(body),
        step=1,
        end="4",
        finish="\n".join(finish),
    )
    return f"{declaration}\n{text}", 4 * chains * operations
