"""Bare-metal image that runs a model on a simulated board: start-up code, a main loop that reads and writes by
semihosting, and a linker script.

The loop reads the inputs of one run after the other from the file ``inputs``, and writes to ``outputs`` after each run:
the code that the model returned and the ticks before each kernel call and at the end (all 32 bits), then the outputs. A
last word MARKER proves that the program came to its end: one that faults could end without an error.

llvmlite has no assembler for other machines than this one, so the few instructions that no compiler emits are written
as numbers.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from ...codegen.llvm.assemble import assemble
from ...program.package import Package
from ...support.errors import CompileError
from ..c.library import CInterface
from ..linker import linker
from .library import missing_symbols, objects, sizes
from .machines import McuDescription
from .program import quoted

MARKER = 0x600DBEEF

#: the semihosting call as a function (operation, parameter) -> result, and what is added to its address
_CALLS = {
    "arm-m": (struct.pack("<HH", 0xBEAB, 0x4770), 1),  # bkpt 0xab; bx lr
    # slli x0, x0, 31; ebreak; srai x0, x0, 7; ret
    "riscv": (struct.pack("<IIII", 0x01F01013, 0x00100073, 0x40705013, 0x00008067), 0),
    "aarch64": (struct.pack("<II", 0xD45E0000, 0xD65F03C0), 0),  # hlt 0xf000; ret
}


def build(package: Package, machine: McuDescription, lay: CInterface, folder: Path) -> tuple[Path, dict[str, int]]:
    """Link the image; returns its path, and the bytes of the model in it by section (without start-up code).

    UsageError if there is no linker, CompileError if something is missing.
    """
    path = linker("ld.lld", "emulation", "emulate")
    made = objects(package, machine, lay, probe=True)
    sections = sizes(made, lay)
    made["start.o"] = assemble(start_llvm(lay, machine), machine.code)
    needs = [s for s in missing_symbols(made) if not s.startswith("tw_at_")]  # those the linker script defines
    if needs:
        why = "" if machine.fpu else f": {machine.name} has no FPU"
        raise CompileError(
            f"the kernels call functions of a support library{why}: {', '.join(needs)}",
            stage="emulate",
            hint="the image is built without one; integers need none, and floats none on machines with an FPU",
        )
    for name, data in made.items():
        (folder / name).write_bytes(data)
    (folder / "image.ld").write_text(script(machine))
    image = folder / "image.elf"
    command = [path, "-T", "image.ld", "-o", image.name, "--gc-sections", *made]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"the linker failed: {done.stderr.strip()[:1500]}", stage="emulate")
    return image, sections


def script(machine: McuDescription) -> str:
    """The linker script: code and constants in one region, data in another, its first values behind the constants."""
    code, data, vectors = machine.board.code, machine.board.data, machine.board.vectors
    apart = f"  VECTORS (rx) : ORIGIN = {vectors.origin:#x}, LENGTH = {vectors.size:#x}\n" if vectors else ""
    return f"""\
MEMORY {{
{apart}  CODE (rx) : ORIGIN = {code.origin:#x}, LENGTH = {code.size:#x}
  DATA (rw) : ORIGIN = {data.origin:#x}, LENGTH = {data.size:#x}
}}
ENTRY(tw_entry)
SECTIONS {{
  .vectors : {{ KEEP(*(.vectors)) }} > {"VECTORS" if vectors else "CODE"}
  .text : {{ *(.text .text.*) *(.rodata .rodata.*) }} > CODE
  .ARM.exidx : {{ *(.ARM.exidx*) }} > CODE
  .data : {{ tw_at_data = .; *(.data .data.* .sdata .sdata.*) . = ALIGN(8); tw_at_data_end = .; }} > DATA AT > CODE
  tw_at_data_values = LOADADDR(.data);
  .bss (NOLOAD) : {{ *(.bss .bss.* .sbss .sbss.* COMMON) }} > DATA
  tw_at_stack = ORIGIN(DATA) + LENGTH(DATA);
  /DISCARD/ : {{ *(.comment .note.* .eh_frame*) }}
}}
"""


def start_llvm(lay: CInterface, machine: McuDescription) -> str:
    """The start-up code, the main loop and the counter of instructions."""
    w = f"i{machine.bits}"
    code, plus = _CALLS[machine.semihosting]
    p = lay.program
    calls = len(p.calls)
    arrays, reads, writes, args = [], [], [], []
    for i, t in enumerate((*p.inputs, *p.outputs)):
        arrays.append(f"@array{i} = internal global [{max(t.nbytes, 1)} x i8] zeroinitializer, align 16")
        args.append(f"ptr @array{i}")
        step = f"call {w} @transfer(i32 {{op}}, {w} {{file}}, ptr @array{i}, {w} {t.nbytes})"
        if i < len(p.inputs):
            reads.append(f"  %read{i} = " + step.format(op=6, file="%in"))
        else:
            writes.append(f"  %write{i} = " + step.format(op=5, file="%out"))
    args = [f"ptr @arena, {w} {lay.arena}", *args]
    return "\n".join(
        (
            _COMMON.format(
                w=w,
                size=machine.bits // 8,
                code=f"[{len(code)} x i8] {quoted(code)}",
                plus=plus,
                arrays="\n".join(arrays),
                arena=lay.arena,
                align=lay.align,
                stamps=calls + 1,
                stamp_bytes=4 * (calls + 1),
                params=", ".join(["ptr", w, *["ptr"] * (len(p.inputs) + len(p.outputs))]),
                args=", ".join(args),
                name=lay.name,
                reads="\n".join(reads),
                writes="\n".join(writes),
                marker=MARKER,
            ),
            _CLOCKS[machine.board.clock].replace("WORD", w),
            _entry(machine),
        )
    )


def _entry(machine: McuDescription) -> str:
    """What runs first: sets the stack and switches on what must be, then calls @tw_main."""
    if machine.board.start == "process":
        return "define void @tw_entry() noinline nounwind {\n  call void @tw_main()\n  ret void\n}\n"
    if machine.board.start == "arm-m":
        return _ARM_ENTRY
    top = machine.board.data.origin + machine.board.data.size
    words = (
        0x137 | top & 0xFFFFF000,  # lui sp, top
        0x000062B7,  # lui t0, 6
        0x60028293,  # addi t0, t0, 0x600: floats and vectors on
        0x3002A073,  # csrs mstatus, t0
        0x00000317,  # auipc t1, 0
        0x00C32303 if machine.bits == 32 else 0x01033303,  # lw t1, 12(t1) or ld t1, 16(t1)
        0x00030067,  # jr t1
    )
    code = struct.pack(f"<{len(words)}I", *words) + b"\0" * (0 if machine.bits == 32 else 4)
    stub = f"<{{ [{len(code)} x i8] {quoted(code)}, ptr @tw_main }}>"
    return f'@tw_entry = constant <{{ [{len(code)} x i8], ptr }}> {stub}, section ".vectors", align 16\n'


_COMMON = """\
@semihosting = internal constant {code}, section ".text.semihosting", align 16
@name_in = internal constant [7 x i8] c"inputs\\00"
@name_out = internal constant [8 x i8] c"outputs\\00"
@arena = internal global [{arena} x i8] zeroinitializer, align {align}
@stamps = internal global [{stamps} x i32] zeroinitializer
@runs = internal global i32 0
@word = internal global i32 0
{arrays}
@tw_at_data = external global i8
@tw_at_data_end = external global i8
@tw_at_data_values = external global i8

declare i32 @{name}_run({params})
declare ptr @memcpy(ptr, ptr, {w})

; semihosting: the parameters lie in memory
define internal {w} @host(i32 %op, ptr %block) noinline nounwind {{
  %f = getelementptr i8, ptr @semihosting, i32 {plus}
  %r = call {w} %f(i32 %op, ptr %block)
  ret {w} %r
}}

define internal {w} @transfer(i32 %op, {w} %file, ptr %data, {w} %bytes) noinline nounwind {{
  %block = alloca [3 x {w}], align 8
  %b1 = getelementptr {w}, ptr %block, i32 1
  %b2 = getelementptr {w}, ptr %block, i32 2
  %address = ptrtoint ptr %data to {w}
  store volatile {w} %file, ptr %block
  store volatile {w} %address, ptr %b1
  store volatile {w} %bytes, ptr %b2
  %r = call {w} @host(i32 %op, ptr %block)
  ret {w} %r
}}

; open(name, mode): 1 reads, 5 writes, both binary
define internal {w} @open(ptr %name, {w} %mode, {w} %length) noinline nounwind {{
  %address = ptrtoint ptr %name to {w}
  %as_pointer = inttoptr {w} %mode to ptr
  %r = call {w} @transfer(i32 1, {w} %address, ptr %as_pointer, {w} %length)
  ret {w} %r
}}

define internal void @tw_main() noinline nounwind {{
  %end = ptrtoint ptr @tw_at_data_end to {w}
  %begin = ptrtoint ptr @tw_at_data to {w}
  %bytes = sub {w} %end, %begin
  %copied = call ptr @memcpy(ptr @tw_at_data, ptr @tw_at_data_values, {w} %bytes)
  call void @clock_start()
  %in = call {w} @open(ptr @name_in, {w} 1, {w} 6)
  %out = call {w} @open(ptr @name_out, {w} 5, {w} 7)
  %first = call {w} @transfer(i32 6, {w} %in, ptr @runs, {w} 4)
  %runs = load volatile i32, ptr @runs
  br label %test
test:
  %i = phi i32 [ 0, %0 ], [ %next, %body ]
  %more = icmp ult i32 %i, %runs
  br i1 %more, label %body, label %done
body:
{reads}
  %code = call i32 @{name}_run({args})
  store volatile i32 %code, ptr @word
  %w1 = call {w} @transfer(i32 5, {w} %out, ptr @word, {w} 4)
  %w2 = call {w} @transfer(i32 5, {w} %out, ptr @stamps, {w} {stamp_bytes})
{writes}
  %next = add i32 %i, 1
  br label %test
done:
  store volatile i32 {marker}, ptr @word
  %w3 = call {w} @transfer(i32 5, {w} %out, ptr @word, {w} 4)
  %closed_block = alloca {w}, align 8
  store volatile {w} %out, ptr %closed_block
  %closed = call {w} @host(i32 2, ptr %closed_block)
  call void @leave()
  unreachable
}}

define internal void @leave() noinline nounwind {{
  ; SYS_EXIT: the reason is the parameter itself on 32-bit machines, a block of two words on 64-bit ones
  %block = alloca [2 x {w}], align 8
  %b1 = getelementptr {w}, ptr %block, i32 1
  store volatile {w} 131110, ptr %block
  store volatile {w} 0, ptr %b1
  %wide = icmp eq i32 {size}, 8
  %plain = inttoptr {w} 131110 to ptr
  %parameter = select i1 %wide, ptr %block, ptr %plain
  %r = call {w} @host(i32 24, ptr %parameter)
  ret void
}}

define void @tw_probe(i32 %number) noinline nounwind {{
  %now = call i32 @clock()
  %slot = getelementptr i32, ptr @stamps, i32 %number
  store volatile i32 %now, ptr %slot
  ret void
}}
"""

_CLOCKS = {
    # SysTick counts 24 bits down; the stamps count up
    "systick": """\
define internal void @clock_start() noinline nounwind {
  store volatile i32 16777215, ptr inttoptr (i32 3758153748 to ptr)
  store volatile i32 0, ptr inttoptr (i32 3758153752 to ptr)
  store volatile i32 5, ptr inttoptr (i32 3758153744 to ptr)
  ret void
}
define internal i32 @clock() noinline nounwind {
  %now = load volatile i32, ptr inttoptr (i32 3758153752 to ptr)
  %up = sub i32 0, %now
  %low = and i32 %up, 16777215
  ret i32 %low
}
""",
    "cycles": """\
declare i64 @llvm.readcyclecounter()
define internal void @clock_start() noinline nounwind {
  ret void
}
define internal i32 @clock() noinline nounwind {
  %now = call i64 @llvm.readcyclecounter()
  %low = trunc i64 %now to i32
  ret i32 %low
}
""",
    "": """\
define internal void @clock_start() noinline nounwind {
  ret void
}
define internal i32 @clock() noinline nounwind {
  ret i32 0
}
""",
}

#: the vector table: stack, reset, faults; the FPU (and vectors) are switched on before anything may use them
_ARM_ENTRY = """\
@tw_at_stack = external global i8
@vectors = constant [16 x ptr] [
  ptr @tw_at_stack, ptr @tw_entry, ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault,
  ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault, ptr @fault
], section ".vectors", align 128

define void @tw_entry() noinline nounwind {
  %old = load volatile i32, ptr inttoptr (i32 3758157192 to ptr)
  %new = or i32 %old, 15728640
  store volatile i32 %new, ptr inttoptr (i32 3758157192 to ptr)
  call void @tw_main()
  ret void
}

define internal void @fault() noinline nounwind {
  call void @leave()
  ret void
}
"""
