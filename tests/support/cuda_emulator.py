"""Kernels for NVIDIA GPUs on this processor: their LLVM IR, with its intrinsics as functions of `cuda_emulator.c`.

`run` gives the results, or raises EmulationError for what a GPU would do silently: races, accesses out of bounds or not
aligned, reads of what nobody wrote, copies that are not waited for, barriers that not all threads come to.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from support.cuda_tensor_maps import map_of
from tilewright.codegen.gpu.launch import Launch
from tilewright.codegen.llvm.assemble import initialize_llvm
from tilewright.codegen.llvm.builtins import builtins_llvm
from tilewright.codegen.nvptx.emitter import NvptxKernel
from tilewright.schedule.nest import Nest
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.expr import Buffer

SOURCE = Path(__file__).with_name("cuda_emulator.c")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
#: between arrays, so that what is a little out of bounds of one is out of bounds of all
GAP, ALIGN = 4096, 256
GLOBAL, SHARED = 1, 3
#: shared memory, which begins at a multiple of this: its part of an address is what a descriptor has
SHARED_BYTES = 1 << 18
_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8, "i1": 1}
_ACCESS = re.compile(
    r"^\s*(?:%\S+ = )?(load|store) (<\d+ x \w+>|\w+)(?: (?:<[^>]*>|\S+))?, "
    r"ptr addrspace\(([13])\) (.+?), align (\d+)"
)
_ARRAY = re.compile(
    r"^@([\w.$]+) = internal (?:unnamed_addr )?addrspace\(3\) global \[(\d+) x (\w+)\] undef, align \d+$", re.M
)
_GROUP = re.compile(
    r"^(?P<before>.*?call \{[^}]*\}) asm sideeffect "
    r".*wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.f32\.(?P<dtype>\w+)"
    r'.*p, 1, 1, (?:(?P<across>[01]), )?(?P<turned>[01]); \}", "[^"]*"(?P<args>\(i(?P<first>32|64) .*\))'
)
_CALL = re.compile(r"@llvm\.nvvm\.([\w.]+)\(")
_REGISTERS = {f"{a}.{d}": i + 3 * (a == "ctaid") for a in ("tid", "ctaid") for i, d in enumerate("xyz")}
_FOUR = "{i32, i32, i32, i32}"


class EmulationError(Exception):
    """What a kernel did that it must not do; `line` is the one of the LLVM IR."""

    def __init__(self, message: str, line: str) -> None:
        super().__init__(f"{message}, at `{line}`" if line else message)
        self.line = line


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulator.so"
        command = ["cc", "-O2", "-std=c11", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        found = ctypes.CDLL(str(path))
    found.emu_run.restype = ctypes.c_char_p
    return found


def run(
    nest: Nest, emitted: NvptxKernel, arrays: dict[str, np.ndarray], *, text: str | None = None, backwards: bool = False
) -> dict[str, np.ndarray]:
    """The results of a kernel by name; `text` is LLVM IR to run instead (the optimized one, or one with a mistake)."""
    places = _places(nest, arrays)
    launch(text or emitted.text, emitted.launch, nest.name, places, _arguments(nest, emitted, places), backwards)
    return {n: places.read(n, nest.buffers()[n]) for n in nest.outputs}


def run_some(
    nest: Nest, emitted: NvptxKernel, arrays: dict[str, np.ndarray], blocks: Sequence[int]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What some blocks of the grid make of a kernel's results, and which elements they wrote, by name. Blocks are
    counted along x first."""
    places = _places(nest, arrays)
    marks = {n: np.zeros(places.all[n][1], np.uint8) for n in nest.outputs}
    args = _arguments(nest, emitted, places)
    launch(emitted.text, emitted.launch, nest.name, places, args, blocks=blocks, marks=marks)
    found = {}
    for n in nest.outputs:
        value = places.read(n, nest.buffers()[n])
        found[n] = value, marks[n].reshape(value.size, -1)[:, 0].reshape(value.shape).astype(bool)
    return found


def _places(nest: Nest, arrays: dict[str, np.ndarray]) -> Places:
    places = Places()
    for p in nest.params:
        read = p.name not in nest.outputs
        places.add(p.name, p.size * NUMPY[p.dtype].itemsize, arrays.get(p.name), only_read=read)
    return places


def _arguments(nest: Nest, emitted: NvptxKernel, places: Places) -> list[str | int | np.ndarray]:
    """Names of parameters, and the tensor maps behind them."""
    told = emitted.maps if isinstance(emitted, NvptxKernel) else ()  # others' GPUs have none
    maps = [map_of(m, places.all[nest.params[m.parameter].name][0]) for m in told]
    return [*(p.name for p in nest.params), *maps]


def launch(
    text: str, on: Launch, kernel: str, places: Places, args: Sequence[str | int | np.ndarray], backwards: bool = False,
    blocks: Sequence[int] | None = None, marks: Mapping[str, np.ndarray] | None = None,
) -> None:  # fmt: skip
    """Run a kernel on the places of these names, or on addresses in one of them, behind which come tensor maps; `marks`
    get what bytes it wrote."""
    lib = library()
    regions = [(n, *found, GLOBAL) for n, found in places.all.items()]
    slab = np.empty(2 * SHARED_BYTES, np.uint8)
    start = at = -(-slab.ctypes.data // SHARED_BYTES) * SHARED_BYTES
    found = re.search(r'"nvvm.cluster_dim"="(\d+)', text)
    cluster = int(found[1]) if found else 1
    addresses, shared = {}, []
    for name, count, kind in _ARRAY.findall(text):
        addresses[name], size = at, int(count) * _bytes(kind)
        shared.append((name, at, size, 0, SHARED))
        at = -(-(at + size + GAP) // 1024) * 1024
    assert at <= start + SHARED_BYTES, "the arrays of a block with gaps between are too large for the emulator"
    host, sites = host_ir(text, kernel, len(args), addresses)
    context, engine = _compiled(host)
    lib.emu_shared(ctypes.c_void_p(start), ctypes.c_int64(at - start), cluster)
    for name, base, size, written, space in [*regions, *shared]:
        mark = ctypes.c_void_p(marks[name].ctypes.data) if marks and name in marks else None
        where = (name.encode(), ctypes.c_void_p(base), ctypes.c_int64(size))
        assert lib.emu_memory(*where, space, written, mark), name
    found = [places.all[a][0] if isinstance(a, str) else a if isinstance(a, int) else a.ctypes.data for a in args]
    pointers = (ctypes.c_void_p * len(found))(*found)
    sizes = [(ctypes.c_int * 3)(*s) for s in (on.grid, on.block)]
    blocks = None if blocks is None else sorted({b // cluster for b in blocks})
    some = None if blocks is None else (ctypes.c_int * len(blocks))(*blocks)
    entry = ctypes.c_void_p(engine.get_function_address("emu_entry"))
    message = lib.emu_run(entry, pointers, *sizes, int(backwards), some, len(blocks or ())).decode()
    engine.close()  # before its context
    del context
    if message:
        site = lib.emu_failed_site()
        raise EmulationError(message, sites[site] if 0 <= site < len(sites) else "")


class Places:
    """Memory for arrays, with gaps between: address, bytes, and what it is at first, by name."""

    def __init__(self) -> None:
        self.all: dict[str, tuple[int, int, int]] = {}
        self.kept: list[np.ndarray] = []

    def add(self, name: str, size: int, value: np.ndarray | None, *, only_read: bool = False) -> int:
        """Memory of so many bytes that holds an array, or what nobody wrote; its address."""
        memory = np.full(size + 2 * GAP + ALIGN, 0xFF, np.uint8)
        base = -(-(memory.ctypes.data + GAP) // ALIGN) * ALIGN
        start = base - memory.ctypes.data
        if value is not None:
            memory[start : start + size] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self.kept.append(memory)
        self.all[name] = (base, size, 0 if value is None else 2 if only_read else 1)
        return base

    def read(self, name: str, b: Buffer) -> np.ndarray:
        base, size, _ = self.all[name]
        data = (ctypes.c_uint8 * size).from_address(base)
        return np.frombuffer(bytes(data), NUMPY[b.dtype]).reshape(b.shape)


def host_ir(text: str, kernel: str, params: int, addresses: dict[str, int]) -> tuple[str, list[str]]:
    """LLVM IR of a kernel for this processor, and the line of each number that accesses give as their place."""
    lines, sites, used = [], [], set()
    for line in text.splitlines():
        if line.startswith(("target ", "source_filename", "attributes ", "declare ", "!", ";")):
            if line.startswith("declare ") and "llvm.nvvm." not in line:
                lines.append(re.sub(r" #\d+", "", line))
            continue
        if (found := _ARRAY.match(line)) is not None:
            at = f"inttoptr (i64 {addresses[found[1]]} to ptr)"
            lines.append(f"@{found[1]} = private alias i8, ptr {at}")
            continue
        access = _ACCESS.match(line)
        if access is not None:
            kind, type_, space, where, align = access.groups()
            where = where.replace("addrspace(3)", "").replace("addrspace(1)", "")
            lines.append(
                f"  call void @emu_{kind}(ptr {where}, i32 {_bytes(type_)}, i32 {align}, i32 {space}, i32 {len(sites)})"
            )
            sites.append(line.strip())
        if (group := _GROUP.search(line)) is not None:
            held = "held" if group["first"] == "32" else "shared"
            turned = int(group["turned"]) + 2 * int(group["across"] or 0)
            name = f"wgmma.{group['n']}.{group['dtype']}.{held}.{turned}"
            used.add(name)
            lines.append(f"  call void @emu_site(i32 {len(sites)})")
            sites.append(line.strip())
            line = f"{group['before']} @emu.{name}{group['args']}"
        elif "fence.proxy.async" in line:
            line = "  call void @emu_proxy_fence()"
        elif (call := _CALL.search(line)) is not None:
            used.add(call[1])
            if not call[1].startswith("read."):
                lines.append(f"  call void @emu_site(i32 {len(sites)})")
                sites.append(line.strip())
            line = line.replace("@llvm.nvvm.", "@emu.")
        lines.append(_plain(line))
    arguments = [
        f"  %a{i} = getelementptr ptr, ptr %args, i64 {i}\n  %p{i} = load ptr, ptr %a{i}" for i in range(params)
    ]
    call = ", ".join(f"ptr %p{i}" for i in range(params))
    lines += ["define void @emu_entry(ptr %args) {", *arguments, f"  call void @{kernel}({call})", "  ret void", "}"]
    return "\n".join([*lines, _HEAD, *(_definition(n) for n in sorted(used)), builtins_llvm()]), sites


def _plain(line: str) -> str:
    """Without address spaces, calling conventions and references to attributes and metadata."""
    line = re.sub(r" addrspace\([137]\)", "", line).replace("ptx_kernel ", "").replace("addrspacecast", "bitcast")
    line = re.sub(r'byval\(\[128 x i8\]\) |"nvvm.grid_constant" ', "", line)
    line = re.sub(r', ![\w.]+ !\d+| #\d+(?= |$)|"nvvm\.\w+"="[^"]*"', "", line)
    return line.replace(" captures(none)", "")


def _bytes(kind: str) -> int:
    found = re.fullmatch(r"<(\d+) x (\w+)>", kind)
    if found:
        return int(found[1]) * _bytes(found[2])
    return _SIZES[kind] if kind in _SIZES else int(kind[1:]) // 8


_HEAD = """
declare void @emu_load(ptr, i32, i32, i32, i32)
declare void @emu_store(ptr, i32, i32, i32, i32)
declare void @emu_site(i32)
declare i32 @emu_register(i32)
declare void @emu_barrier()
declare void @emu_barrier_of(i32, i32)
declare void @emu_warp_barrier()
declare i32 @emu_shuffle(i32, i32, i32)
declare float @emu_exp2(float)
declare void @emu_copy(ptr, ptr, i32)
declare void @emu_commit()
declare void @emu_wait(i32)
declare void @emu_ldmatrix(ptr, i32, i32, ptr)
declare void @emu_mma(i32, ptr, ptr)
declare void @emu_proxy_fence()
declare void @emu_group_commit()
declare void @emu_group_wait(i32)
declare void @emu_group_product(i32, i32, i32, i64, ptr, i64, ptr, ptr)
declare void @emu_mbarrier_init(ptr, i32)
declare void @emu_mbarrier_arrive(ptr, i32)
declare i32 @emu_mbarrier_wait(ptr, i32)
declare void @emu_bulk(ptr, ptr, ptr, i32, ptr, i32, i32)
declare void @emu_cluster_wait()
declare ptr @emu_mapa(ptr, i32)
declare void @emu_mbarrier_arrive_at(ptr)
"""
_DP4A = """define i32 @emu.{name}(i32 %a, i32 %b, i32 %c) {{
  %x = bitcast i32 %a to <4 x i8>
  %y = bitcast i32 %b to <4 x i8>
  %wx = {x} <4 x i8> %x to <4 x i32>
  %wy = {y} <4 x i8> %y to <4 x i32>
  %p = mul <4 x i32> %wx, %wy
  %s = call i32 @llvm.vector.reduce.add.v4i32(<4 x i32> %p)
  %r = add i32 %s, %c
  ret i32 %r
}}
"""


def _definition(name: str) -> str:
    """The function that an intrinsic is here."""
    if name.startswith("read.ptx.sreg."):
        which = _REGISTERS[name.removeprefix("read.ptx.sreg.")]
        return f"define i32 @emu.{name}() {{\n  %r = call i32 @emu_register(i32 {which})\n  ret i32 %r\n}}"
    if name.startswith("wgmma."):
        return _group(name)
    if name.startswith(("mbarrier.", "fence.mbarrier_init")):
        return _mbarrier(name)
    if name.startswith("cp.async.bulk.tensor."):
        return _bulk(name)
    if name.startswith("barrier.cluster."):
        call = "  call void @emu_cluster_wait()\n" if name.endswith("wait") else ""
        return f"define void @emu.{name}() {{\n{call}  ret void\n}}"
    if name == "mapa.shared.cluster":
        body = "  %r = call ptr @emu_mapa(ptr %p, i32 %n)\n  ret ptr %r"
        return f"define ptr @emu.{name}(ptr %p, i32 %n) {{\n{body}\n}}"
    if name.endswith("aligned.count"):
        body = "  call void @emu_barrier_of(i32 %n, i32 %count)\n  ret void"
        return f"define void @emu.{name}(i32 %n, i32 %count) {{\n{body}\n}}"
    if name.startswith("setmaxnreg."):
        return f"define void @emu.{name}(i32 %n) {{\n  ret void\n}}"
    if name.startswith("barrier."):
        return f"define void @emu.{name}(i32 %n) {{\n  call void @emu_barrier()\n  ret void\n}}"
    if name == "ex2.approx.ftz.f32":
        return f"define float @emu.{name}(float %x) {{\n  %r = call float @emu_exp2(float %x)\n  ret float %r\n}}"
    if name == "bar.warp.sync":
        return f"define void @emu.{name}(i32 %n) {{\n  call void @emu_warp_barrier()\n  ret void\n}}"
    if name.startswith("shfl.sync."):
        _, _, how, dtype = name.split(".")
        kind, which = "float" if dtype == "f32" else "i32", ("bfly", "idx").index(how)
        lines = [
            f"define {kind} @emu.{name}(i32 %mask, {kind} %x, i32 %n, i32 %c) {{",
            f"  %v = bitcast {kind} %x to i32",
            f"  %w = call i32 @emu_shuffle(i32 %v, i32 %n, i32 {which})",
            f"  %r = bitcast i32 %w to {kind}",
        ]
        return "\n".join([*lines, f"  ret {kind} %r", "}"])
    if name.startswith("cp.async.c") and name.endswith("group"):
        return f"define void @emu.{name}() {{\n  call void @emu_commit()\n  ret void\n}}"
    if name == "cp.async.wait.group":
        return f"define void @emu.{name}(i32 %n) {{\n  call void @emu_wait(i32 %n)\n  ret void\n}}"
    if name.startswith("cp.async."):
        size = name.rpartition(".")[2]
        call = f"call void @emu_copy(ptr %to, ptr %from, i32 {size})"
        return f"define void @emu.{name}(ptr %to, ptr %from) {{\n  {call}\n  ret void\n}}"
    if name.startswith("idp4a."):
        x, y = ("sext" if s == "s" else "zext" for s in name.split(".")[1:])
        return _DP4A.format(name=name, x=x, y=y)
    if name.startswith("ldmatrix."):
        return _ldmatrix(name)
    assert name.startswith("mma.m16n8"), name
    return _mma(name)


def _mbarrier(name: str) -> str:
    """A barrier in shared memory."""
    if name.startswith("fence."):
        return f"define void @emu.{name}() {{\n  ret void\n}}"
    if name == "mbarrier.init.shared":
        body = "  call void @emu_mbarrier_init(ptr %p, i32 %n)\n  ret void"
        return f"define void @emu.{name}(ptr %p, i32 %n) {{\n{body}\n}}"
    if ".try.wait.parity." in name:
        body = "  %r = call i32 @emu_mbarrier_wait(ptr %p, i32 %n)\n  %o = icmp ne i32 %r, 0\n  ret i1 %o"
        return f"define i1 @emu.{name}(ptr %p, i32 %n) {{\n{body}\n}}"
    assert ".arrive." in name, name
    if name.endswith(".space.cluster"):
        body = "  call void @emu_mbarrier_arrive_at(ptr %p)\n  ret void"
        return f"define void @emu.{name}(ptr %p, i32 %n) {{\n{body}\n}}"
    bytes_ = "%n" if ".expect.tx." in name else "0"  # else it is one arrival
    body = f"  call void @emu_mbarrier_arrive(ptr %p, i32 {bytes_})\n  ret i64 0"
    return f"define i64 @emu.{name}(ptr %p, i32 %n) {{\n{body}\n}}"


def _bulk(name: str) -> str:
    rank = int(name[-2])
    params = ", ".join(f"i32 %x{i}" for i in range(rank))
    lines = [f"define void @emu.{name}(ptr %to, ptr %p, ptr %map, {params}, i16 %m, i64 %h, i1 %a, i1 %b, i32 %g) {{"]
    lines.append(f"  %w = alloca [{rank} x i32]")
    for i in range(rank):
        lines += [f"  %w{i} = getelementptr i32, ptr %w, i64 {i}", f"  store i32 %x{i}, ptr %w{i}"]
    lines += ["  %mask = zext i16 %m to i32", "  %several = zext i1 %a to i32"]
    lines.append(f"  call void @emu_bulk(ptr %to, ptr %p, ptr %map, i32 {rank}, ptr %w, i32 %mask, i32 %several)")
    return "\n".join([*lines, "  ret void", "}"])


def _ldmatrix(name: str) -> str:
    count = int(re.search(r"\.x(\d)\.", name)[1])  # type: ignore[index]
    kind = "{" + ", ".join(["i32"] * count) + "}"
    lines = [f"define {kind} @emu.{name}(ptr %p) {{", "  %m = alloca [4 x i32]"]
    lines.append(f"  call void @emu_ldmatrix(ptr %p, i32 {count}, i32 {int('.trans.' in name)}, ptr %m)")
    return "\n".join([*lines, *_result(kind, "i32", count), "}"])


def _group(name: str) -> str:
    """Products of groups of warps, and what orders them."""
    if name == "wgmma.fence.sync.aligned":
        return f"define void @emu.{name}() {{\n  ret void\n}}"
    if name == "wgmma.commit_group.sync.aligned":
        return f"define void @emu.{name}() {{\n  call void @emu_group_commit()\n  ret void\n}}"
    if name == "wgmma.wait_group.sync.aligned":
        body = "  %m = trunc i64 %n to i32\n  call void @emu_group_wait(i32 %m)\n  ret void"
        return f"define void @emu.{name}(i64 %n) {{\n{body}\n}}"
    _, columns, dtype, first, turned = name.split(".")
    count = int(columns) // 2
    kind = f"{{{', '.join(['float'] * count)}}}"
    params = ", ".join(f"float %x{i}" for i in range(count))
    given = "i64 %a" if first == "shared" else ", ".join(f"i32 %h{i}" for i in range(4))
    lines = [f"define {kind} @emu.{name}({given}, i64 %b, {params}) {{", "  %h = alloca [4 x i32]"]
    for i in range(4 if first == "held" else 0):
        lines += [f"  %ph{i} = getelementptr i32, ptr %h, i64 {i}", f"  store i32 %h{i}, ptr %ph{i}"]
    lines += [f"  %m = alloca [{count} x float]", f"  %w = alloca [{count} x float]"]
    for i in range(count):
        lines += [f"  %w{i} = getelementptr float, ptr %w, i64 {i}", f"  store float %x{i}, ptr %w{i}"]
    half = int(dtype == "f16")
    x = "i64 %a, ptr null" if first == "shared" else "i64 0, ptr %h"
    lines.append(
        f"  call void @emu_group_product(i32 {half}, i32 {columns}, i32 {turned}, {x}, i64 %b, ptr %w, ptr %m)"
    )
    return "\n".join([*lines, *_result(kind, "float", count), "}"])


def _mma(name: str) -> str:
    kind = next(i for i, k in enumerate(("bf16", "f32.f32", "s8")) if name.endswith(k))
    factor, sums = ("<2 x half>" if kind == 1 else "i32"), ("i32" if kind == 2 else "float")
    types = [factor] * 6 + [sums] * 4
    lines = [
        f"define {{{', '.join([sums] * 4)}}} @emu.{name}({', '.join(f'{t} %x{i}' for i, t in enumerate(types))}) {{"
    ]
    lines += ["  %m = alloca [4 x i32]", "  %w = alloca [10 x i32]"]
    for i, t in enumerate(types):
        lines += [f"  %w{i} = getelementptr i32, ptr %w, i64 {i}", f"  store {t} %x{i}, ptr %w{i}"]
    lines.append(f"  call void @emu_mma(i32 {kind}, ptr %w, ptr %m)")
    return "\n".join([*lines, *_result("{" + ", ".join([sums] * 4) + "}", sums, 4), "}"])


def _result(kind: str, part: str, count: int) -> list[str]:
    lines, last = [], "poison"
    for i in range(count):
        lines += [f"  %q{i} = getelementptr i32, ptr %m, i64 {i}", f"  %v{i} = load {part}, ptr %q{i}"]
        lines.append(f"  %r{i} = insertvalue {kind} {last}, {part} %v{i}, {i}")
        last = f"%r{i}"
    return [*lines, f"  ret {kind} {last}"]


def _compiled(text: str):
    from llvmlite import binding as llvm

    initialize_llvm(llvm.get_default_triple())
    for name in re.findall(r"declare \S+ @(emu_\w+)\(", _HEAD):
        llvm.add_symbol(name, ctypes.cast(getattr(library(), name), ctypes.c_void_p).value)
    context = llvm.create_context()
    module = llvm.parse_assembly(text, context=context)
    module.verify()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    maker = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=1, jit=True)
    module.triple, module.data_layout = llvm.get_default_triple(), str(maker.target_data)
    builder = llvm.create_pass_builder(maker, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, maker)
    engine.finalize_object()
    return context, engine


def conflicts() -> int:
    """How often ``ldmatrix`` had to read once more in the last run, because rows lay in the same banks."""
    return int(library().emu_conflicts())
