"""LLVM IR of a model's C API: the run function, weights, tensor descriptors, and small support functions.

    i32 <name>_run(arena, arena_size, inputs..., outputs...)

With `probe` every kernel call is preceded by ``tw_probe(number)``, which whoever measures provides.
"""

from __future__ import annotations

import numpy as np

from ...codegen.llvm.function_text import FunctionText
from ...program.package import Package
from ...program.program import COPY, BufferRef, Call
from ..c.library import CInterface, weight_name
from .machines import McuDescription


def quoted(data: bytes) -> str:
    """An LLVM string constant."""
    return 'c"' + "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data) + '"'


def weights_llvm(package: Package, lay: CInterface) -> str:
    """The weights as read-only data, one symbol an array."""
    lines = []
    for i, array in enumerate(package.constants):
        data = np.ascontiguousarray(array).tobytes() or b"\0"
        lines.append(f"@{weight_name(lay, i)} = constant [{len(data)} x i8] {quoted(data)}, align {lay.align}")
    return "\n".join(lines) + "\n"


class ProgramText(FunctionText):
    """Writes the module of the run function."""

    def __init__(self, package: Package, lay: CInterface, machine: McuDescription, probe: bool) -> None:
        super().__init__()
        self.package, self.lay, self.probe = package, lay, probe
        self.word = f"i{machine.bits}"

    def text(self) -> str:
        p, lay, w = self.package.program, self.lay, self.word
        arrays = [f"%a{i}" for i in range(len(p.inputs) + len(p.outputs))]
        params = ", ".join(["ptr %arena", f"{w} %size", *(f"ptr {a}" for a in arrays)])
        sizes = [t.numpy_dtype.itemsize for t in (*p.inputs, *p.outputs)]
        self.refuse([self.is_null(a) for a in ["%arena", *arrays]], 1)
        uneven = [("%arena", lay.align), *((a, s) for a, s in zip(arrays, sizes, strict=True) if s > 1)]
        self.refuse([self.is_uneven(a, s) for a, s in uneven], 2)
        self.refuse([self.value(f"icmp ult {w} %size, {lay.arena}")], 3)
        arities: dict[str, int] = {}
        for number, call in enumerate(p.calls):
            if self.probe:
                self.add(f"call void @tw_probe(i32 {number})")
            self.call(call)
            arities[call.symbol] = len(call.args)
        if self.probe:
            self.add(f"call void @tw_probe(i32 {len(p.calls)})")
        self.add("ret i32 0")
        used = sorted({a.index for c in p.calls for a in c.args if a.space == "constant"})
        head = [f"@{weight_name(lay, i)} = external constant [{max(p.constants[i].nbytes, 1)} x i8]" for i in used]
        head += [f"declare void @{s}({'ptr, ' * (n + 1)}{w}, {w}) nounwind" for s, n in arities.items() if s != COPY]
        if COPY in arities:
            head.append(f"declare void @llvm.memcpy.p0.p0.{w}(ptr, ptr, {w}, i1)")
        if self.probe:
            head.append("declare void @tw_probe(i32) nounwind")
        body = "\n".join(self.lines)
        return (
            "\n".join(head) + f"\ndefine i32 @{lay.name}_run({params}) nounwind {{\n{body}\n}}\n" + self.descriptors()
        )

    def is_null(self, a: str) -> str:
        return self.value(f"icmp eq ptr {a}, null")

    def is_uneven(self, a: str, size: int) -> str:
        number = self.value(f"ptrtoint ptr {a} to {self.word}")
        low = self.value(f"and {self.word} {number}, {size - 1}")
        return self.value(f"icmp ne {self.word} {low}, 0")

    def refuse(self, conditions: list[str], code: int) -> None:
        """Return an error code if one of the conditions holds."""
        any_of = conditions[0]
        for c in conditions[1:]:
            any_of = self.value(f"or i1 {any_of}, {c}")
        self.add(f"br i1 {any_of}, label %refuse{code}, label %go{code}")
        self.label(f"refuse{code}")
        self.add(f"ret i32 {code}")
        self.label(f"go{code}")

    def call(self, call: Call) -> None:
        pointers = [self.pointer(ref) for ref in call.args]
        w = self.word
        if call.symbol == COPY:
            size = call.args[0].nbytes
            self.add(f"call void @llvm.memcpy.p0.p0.{w}(ptr {pointers[1]}, ptr {pointers[0]}, {w} {size}, i1 false)")
            return
        scratch = "null" if call.scratch is None else self.pointer(call.scratch)
        args = ", ".join(f"ptr {x}" for x in (*pointers, scratch))
        self.add(f"call void @{call.symbol}({args}, {w} 0, {w} 1)")

    def pointer(self, ref: BufferRef) -> str:
        inputs = len(self.lay.program.inputs)
        base = {
            "arena": "%arena",
            "input": f"%a{ref.index}",
            "output": f"%a{inputs + ref.index}",
            "constant": f"@{weight_name(self.lay, ref.index)}",
        }[ref.space]
        return self.behind(base, ref.offset, self.word)

    def descriptors(self) -> str:
        """The arrays ``<name>_inputs`` and ``<name>_outputs`` of the header."""
        n, w = self.lay.name, self.word
        lines = [f"%tensor = type {{ ptr, ptr, {w}, i32, ptr }}"]
        for what, infos in (("inputs", self.lay.program.inputs), ("outputs", self.lay.program.outputs)):
            rows = []
            for i, t in enumerate(infos):
                name, dtype = t.name.encode() + b"\0", t.dtype.encode() + b"\0"
                shape = t.shape or (1,)
                at = f"{what}{i}"
                lines.append(f"@{at}.name = private unnamed_addr constant [{len(name)} x i8] {quoted(name)}")
                lines.append(f"@{at}.dtype = private unnamed_addr constant [{len(dtype)} x i8] {quoted(dtype)}")
                dims = ", ".join(f"i32 {d}" for d in shape)
                lines.append(f"@{at}.shape = private unnamed_addr constant [{len(shape)} x i32] [{dims}]")
                row = f"ptr @{at}.name, ptr @{at}.dtype, {w} {t.nbytes}, i32 {len(t.shape)}, ptr @{at}.shape"
                rows.append(f"%tensor {{ {row} }}")
            count = max(len(rows), 1)
            text = ", ".join(rows) if rows else "%tensor zeroinitializer"
            lines.append(f"@{n}_{what} = constant [{count} x %tensor] [{text}]")
        return "\n".join(lines) + "\n"


def support_llvm(machine: McuDescription) -> str:
    """Copying and clearing memory, which LLVM calls by name; weak, so that those of a C library go first."""
    w = f"i{machine.bits}"
    parts = [_SUPPORT.replace("WORD", w)]
    if machine.code.triple.startswith("thumb"):
        parts += [_AEABI, _DIVISION]
    if machine.fpu:
        parts.append(_ROUND)
    return "\n".join(parts)


_SUPPORT = """\
define weak ptr @memcpy(ptr %to, ptr %from, WORD %size) #0 {
  br label %test
test:
  %i = phi WORD [ 0, %0 ], [ %next, %body ]
  %more = icmp ult WORD %i, %size
  br i1 %more, label %body, label %done
body:
  %s = getelementptr i8, ptr %from, WORD %i
  %d = getelementptr i8, ptr %to, WORD %i
  %x = load i8, ptr %s
  store i8 %x, ptr %d
  %next = add WORD %i, 1
  br label %test
done:
  ret ptr %to
}

define weak ptr @memmove(ptr %to, ptr %from, WORD %size) #0 {
  %below = icmp ult ptr %to, %from
  br i1 %below, label %up, label %down
up:
  %p = call ptr @memcpy(ptr %to, ptr %from, WORD %size)
  ret ptr %to
down:
  %i = phi WORD [ %size, %0 ], [ %last, %body ]
  %more = icmp ne WORD %i, 0
  br i1 %more, label %body, label %done
body:
  %last = sub WORD %i, 1
  %s = getelementptr i8, ptr %from, WORD %last
  %d = getelementptr i8, ptr %to, WORD %last
  %x = load i8, ptr %s
  store i8 %x, ptr %d
  br label %down
done:
  ret ptr %to
}

define weak ptr @memset(ptr %to, i32 %value, WORD %size) #0 {
  %byte = trunc i32 %value to i8
  br label %test
test:
  %i = phi WORD [ 0, %0 ], [ %next, %body ]
  %more = icmp ult WORD %i, %size
  br i1 %more, label %body, label %done
body:
  %d = getelementptr i8, ptr %to, WORD %i
  store i8 %byte, ptr %d
  %next = add WORD %i, 1
  br label %test
done:
  ret ptr %to
}

attributes #0 = { nounwind noinline "no-builtins" }
"""

_AEABI = "\n".join(
    f"""define weak void @__aeabi_mem{kind}{width}(ptr %to, {params}i32 %size{tail}) #0 {{
  %r = call ptr @mem{call}
  ret void
}}"""
    for width in ("", "4", "8")
    for kind, params, tail, call in (
        ("cpy", "ptr %from, ", "", "cpy(ptr %to, ptr %from, i32 %size)"),
        ("move", "ptr %from, ", "", "move(ptr %to, ptr %from, i32 %size)"),
        ("set", "", ", i32 %value", "set(ptr %to, i32 %value, i32 %size)"),
        ("clr", "", "", "set(ptr %to, i32 0, i32 %size)"),
    )
)

#: to the nearest whole number, halves to even, for an FPU without an instruction for it: 2**23 has no fraction left
_ROUND = """\
declare float @llvm.copysign.f32(float, float)
declare float @llvm.fabs.f32(float)

define weak float @roundevenf(float %x) #0 {
  %large = call float @llvm.copysign.f32(float 8388608.0, float %x)
  %sum = fadd float %x, %large
  %whole = fsub float %sum, %large
  %result = call float @llvm.copysign.f32(float %whole, float %x)
  %size = call float @llvm.fabs.f32(float %x)
  %fraction = fcmp olt float %size, 8388608.0
  %y = select i1 %fraction, float %result, float %x
  ret float %y
}
"""

#: division for cores without the instruction, bit by bit: quotient in the low word, remainder in the high one
_DIVISION = """\
define weak i64 @__aeabi_uidivmod(i32 %a, i32 %b) #0 {
  br label %test
test:
  %i = phi i32 [ 32, %0 ], [ %left, %body ]
  %q = phi i32 [ 0, %0 ], [ %q2, %body ]
  %r = phi i32 [ 0, %0 ], [ %r3, %body ]
  %more = icmp ne i32 %i, 0
  br i1 %more, label %body, label %done
body:
  %left = sub i32 %i, 1
  %top = lshr i32 %r, 31
  %carry = icmp ne i32 %top, 0
  %bits = lshr i32 %a, %left
  %bit = and i32 %bits, 1
  %r1 = shl i32 %r, 1
  %r2 = or i32 %r1, %bit
  %large = icmp uge i32 %r2, %b
  %fits = or i1 %carry, %large
  %less = sub i32 %r2, %b
  %r3 = select i1 %fits, i32 %less, i32 %r2
  %one = zext i1 %fits to i32
  %q1 = shl i32 %q, 1
  %q2 = or i32 %q1, %one
  br label %test
done:
  %low = zext i32 %q to i64
  %wide = zext i32 %r to i64
  %high = shl i64 %wide, 32
  %both = or i64 %low, %high
  ret i64 %both
}

define weak i32 @__aeabi_uidiv(i32 %a, i32 %b) #0 {
  %both = call i64 @__aeabi_uidivmod(i32 %a, i32 %b)
  %q = trunc i64 %both to i32
  ret i32 %q
}

define weak i64 @__aeabi_idivmod(i32 %a, i32 %b) #0 {
  %sa = ashr i32 %a, 31
  %sb = ashr i32 %b, 31
  %xa = xor i32 %a, %sa
  %ua = sub i32 %xa, %sa
  %xb = xor i32 %b, %sb
  %ub = sub i32 %xb, %sb
  %both = call i64 @__aeabi_uidivmod(i32 %ua, i32 %ub)
  %uq = trunc i64 %both to i32
  %up = lshr i64 %both, 32
  %ur = trunc i64 %up to i32
  %s = xor i32 %sa, %sb
  %xq = xor i32 %uq, %s
  %q = sub i32 %xq, %s
  %xr = xor i32 %ur, %sa
  %r = sub i32 %xr, %sa
  %low = zext i32 %q to i64
  %wide = zext i32 %r to i64
  %high = shl i64 %wide, 32
  %result = or i64 %low, %high
  ret i64 %result
}

define weak i32 @__aeabi_idiv(i32 %a, i32 %b) #0 {
  %both = call i64 @__aeabi_idivmod(i32 %a, i32 %b)
  %q = trunc i64 %both to i32
  ret i32 %q
}
"""
