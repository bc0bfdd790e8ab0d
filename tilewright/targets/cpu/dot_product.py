"""Integer instructions that MLIR's dialects have no operation for: sums of products of bytes, upper words of products.

Kernels call them as functions (``@tw_dot_vnni512_us``); `with_definitions` puts their bodies, which LLVM inlines, in
place of the declarations. A sum of products is a loop of the schedule that is laid out and has the note ``dot``, the
name of one of `DOTS`:

    for l in vector(16): for q in unroll(4, notes={'dot': 'vnni512_us'}): acc[l] += x[k*4 + q] * w[k, l, q]

``dot4(w, a, b, c, d)`` is such a sum for a word of four bytes, ``acc[l] += dot4(w[l], x[k], x[k+1], x[k+2], x[k+3])``:
one instruction or a few, see `byte_words`.
"""

from __future__ import annotations

import re
from itertools import pairwise

from ...schedule.machine import DotProduct
from ...schedule.nest import For, Store
from ...support.errors import CompileError
from ...tensor.expr import Const, Expr, Load, Op
from . import byte_words
from .bf16 import DotEmitter
from .host import CpuDescription
from .values import Value

#: all instructions, with the tile of sums that fits the registers
DOTS = {
    d.name: d
    for d in (
        DotProduct("vnni512_us", 16, 4, ("u", "s"), 13, 2),
        DotProduct("vnni256_us", 8, 4, ("u", "s"), 6, 2),
        DotProduct("neon_ss", 4, 4, ("s", "s"), 8, 3),
        DotProduct("smlad_ss", 0, 4, ("s", "s"), 2, 2),
        DotProduct("mve_ss", 0, 16, ("s", "s"), 1, 4),
    )
}
DUAL_MULTIPLY = ("cortex-m4", "cortex-m7", "cortex-m33")


def dot_products(description: CpuDescription) -> tuple[DotProduct, ...]:
    """Those that a processor has, the best first."""
    have = set(description.features)
    names: list[str] = []
    if description.arch == "x86_64":
        if "avx512vnni" in have and description.vector_bytes == 64:
            names.append("vnni512_us")
        elif have & {"avx512vnni", "avxvnni"} and description.vector_bytes == 32:
            names.append("vnni256_us")
    elif description.arch == "aarch64" and "dotprod" in have:
        names.append("neon_ss")
    elif description.cpu in DUAL_MULTIPLY:
        names.append("smlad_ss")
    elif description.cpu == "cortex-m55":
        names.append("mve_ss")
    return tuple(DOTS[n] for n in names)


class IntegerEmitter(DotEmitter):
    """Emission of ``mulhsi`` and of loops with the note ``dot``."""

    #: our functions that the kernel calls, name -> declaration
    declared: dict[str, str]

    def call(self, name: str, args: list[Value], result: Value) -> Value:
        """A call of one of the functions that `with_definitions` knows."""
        types = f"({', '.join(a.type for a in args)}) -> {result.type}"
        self.declared[name] = f"func.func private @{name}{types}"
        return Value(
            self.op(f"func.call @{name}({', '.join(a.ssa for a in args)}) : {types}"), result.dtype, result.width
        )

    def apply(self, e: Op, args: list[Value]) -> Value:
        if e.op != "mulhsi":
            return super().apply(e, args)
        args, width = self._even(args)
        return self.call(f"tw_mulhsi_{width}", args, Value("", "i32", width))

    # ---- products of the bytes of words ----

    def _emit(self, e: Expr, memo: dict[int, Value]) -> Value:
        if isinstance(e, Op) and e.op == "dot4":
            return self.word_product(e, Value(self.const(0, "i32"), "i32"))
        return super()._emit(e, memo)

    def word_product(self, e: Op, acc: Value) -> Value:
        """``acc + dot4(w, x0, x1, x2, x3)``."""
        word = self.expr(e.args[0])
        args, width = self._even([acc, word, self.four_bytes(e.args[1:])])
        mask = e.args[0].args[1] if isinstance(e.args[0], Op) and e.args[0].op == "andi" else None
        small = isinstance(mask, Const) and mask.value >= 0 and mask.value & 0x80808080 == 0
        return self.call(f"{byte_words.PREFIX}{7 if small else 8}_{width}", args, Value("", "i32", width))

    def four_bytes(self, parts: tuple[Expr, ...]) -> Value:
        """Four signed bytes as a word: read at once where they lie side by side, the same for all lanes."""
        loads = [x for x in parts if isinstance(x, Load) and self.buffers[x.buffer].scope != "register"]
        side_by_side = len(loads) == 4 and all(self.neighbours(x, y) for x, y in pairwise(loads))
        if side_by_side and (self.vector is None or self.lane_stride(loads[0].buffer, loads[0].indices) == 0):
            return self._word(loads[0], 4)
        word: Value | None = None
        for i, x in enumerate(parts):
            part = self.elementwise("arith.extui", [self.expr(x)], "i32")
            part = self.elementwise("arith.shli", [part, Value(self.const(8 * i, "i32"), "i32")], "i32")
            word = part if word is None else self.elementwise("arith.ori", [word, part], "i32")
        assert word is not None
        return word

    # ---- sums of products ----

    def dot_loop(self, s: For) -> bool:
        """Emit a laid-out loop as one instruction; False for one that is too short for it to pay."""
        name = s.note("dot")
        if name is None:
            return False
        lanes, depth = DOTS[name].lanes, DOTS[name].depth
        acc, row, column = self._factors(s)
        if (self.vector.width if self.vector else 0) != lanes or (lanes == 0 and depth == 4 and s.trip != depth):
            if lanes:
                raise self.no_dot(s, f"it is not in a vector of {lanes} lanes")
            return False
        with self.bind(s.var, 0):
            if lanes:
                if self.lane_stride(row.buffer, row.indices) != 0:
                    row, column = column, row
                first, second = self._word(row, s.trip or 0), self._group(column, lanes, depth)
                first = Value(self.op(f"vector.broadcast {first.ssa} : i32 to vector<{lanes}xi32>"), "i32", lanes)
                arguments = [self.as_vector(self.expr(acc)), first, second]
                result = Value("", "i32", lanes)
            elif depth == 4:
                arguments = [self.expr(acc), self._word(row, 4), self._word(column, 4)]
                result = Value("", "i32")
            else:
                arguments = [self.expr(acc), self._bytes(row, depth, s.trip), self._bytes(column, depth, s.trip)]
                result = Value("", "i32")
            value = self.call(f"tw_dot_{name}", arguments, result)
            assert isinstance(s.body, Store)
            self.write(s.body.targets[0], value)
        return True

    def no_dot(self, s: For, why: str) -> CompileError:
        return CompileError(f"loop {s.var} is no sum of products of bytes: {why}", stage="emit")

    def _factors(self, s: For) -> tuple[Expr, Load, Load]:
        """(accumulator, bytes along the rows, bytes along the columns) of ``acc += ext(x) * ext(y)``."""
        t = s.body.targets[0] if isinstance(s.body, Store) and len(s.body.targets) == 1 else None
        v = t.value if t is not None else None
        if t is not None and isinstance(v, Op) and v.op == "addi":
            for acc, product in (v.args, v.args[::-1]):
                own = isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices
                if own and isinstance(product, Op) and product.op == "muli":
                    x, y = (a.args[0] if isinstance(a, Op) and len(a.args) == 1 else a for a in product.args)
                    if isinstance(x, Load) and isinstance(y, Load) and x.dtype == y.dtype == "i8":
                        return acc, x, y
        raise self.no_dot(s, "it does not add a product of two bytes")

    def _word(self, x: Load, count: int) -> Value:
        """`count` neighbouring bytes as an i32, the first lowest; zeros above."""
        buffer = self.buffers[x.buffer]
        base = self.address(buffer, x.indices, lane0=self.vector is not None).ssa
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        if count == 4:
            text = f"vector.load {memory}[{base}] : {kind}, vector<4xi8>"
            loaded = self.remember(buffer, text, Value("", "i8", 4))
            one = self.op(f"vector.bitcast {loaded.ssa} : vector<4xi8> to vector<1xi32>")
            return Value(self.op(f"vector.extract {one}[0] : i32 from vector<1xi32>"), "i32")
        word: Value | None = None
        for i in range(count):
            at = self.op(f"arith.addi {base}, {self.const(i, 'index')} : index") if i else base
            byte = self.remember(buffer, f"memref.load {memory}[{at}] : {kind}", Value("", "i8"))
            part = self.elementwise("arith.extui", [byte], "i32")
            if i:
                part = self.elementwise("arith.shli", [part, Value(self.const(8 * i, "i32"), "i32")], "i32")
            word = part if word is None else self.elementwise("arith.ori", [word, part], "i32")
        assert word is not None
        return word

    def _group(self, x: Load, lanes: int, depth: int) -> Value:
        """The words of all lanes; the buffer is packed, so that it may be read to the end of the tile."""
        buffer = self.buffers[x.buffer]
        if self.lane_stride(x.buffer, x.indices) != depth or x.buffer not in self.packed:
            raise CompileError(f"{x.buffer} is not packed for its instruction", stage="emit")
        base = self.address(buffer, x.indices, lane0=True).ssa
        count = lanes * depth
        text = f"vector.load {self.memory[buffer.name]}[{base}] : {self.memref(buffer)}, vector<{count}xi8>"
        loaded = self.remember(buffer, text, Value("", "i8", count))
        return Value(self.op(f"vector.bitcast {loaded.ssa} : vector<{count}xi8> to vector<{lanes}xi32>"), "i32", lanes)

    def _bytes(self, x: Load, depth: int, trip: int | None) -> Value:
        """`depth` neighbouring bytes as a vector, zeros behind the first `trip`."""
        buffer = self.buffers[x.buffer]
        base = self.address(buffer, x.indices).ssa
        memory, kind, shape = self.memory[buffer.name], self.memref(buffer), f"vector<{depth}xi8>"
        if trip == depth or x.buffer in self.packed:
            text = f"vector.load {memory}[{base}] : {kind}, {shape}"
        else:
            mask = self.op(f"vector.constant_mask [{trip}] : vector<{depth}xi1>")
            zero = self.const(0, "i8", depth)
            text = (
                f"vector.maskedload {memory}[{base}], {mask}, {zero} : {kind}, vector<{depth}xi1>, {shape} into {shape}"
            )
        return self.remember(buffer, text, Value("", "i8", depth))


# ---- definitions in LLVM IR ----------------------------------------------------------------------------------------


def with_definitions(text: str, description: CpuDescription) -> str:
    """LLVM IR with the declarations of our functions replaced by their definitions for a processor."""
    wanted = re.findall(r"^declare [^\n]*@(tw_(?:mulhsi|dot)_\w+)\([^\n]*$", text, flags=re.M)
    if not wanted:
        return text
    text = re.sub(r"^declare [^\n]*@tw_(?:mulhsi|dot)_\w+\([^\n]*\n", "", text, flags=re.M)
    return text + "\n" + "\n".join(_definition(name, description) for name in wanted)


def _definition(name: str, description: CpuDescription) -> str:
    if name == "tw_mulhsi_0" and description.arch == "thumbv6m":
        return _UPPER_WORD_IN_HALVES
    if name.startswith("tw_mulhsi_"):
        return _upper_word(name, int(name.rpartition("_")[2]))
    if name.startswith(byte_words.PREFIX):
        return byte_words.definition(name, description)
    body = _DOTS[name.removeprefix("tw_dot_")]
    return body.replace("@NAME", f"@{name}")


def _upper_word(name: str, lanes: int) -> str:
    i32, i64 = (f"<{lanes} x i{n}>" if lanes else f"i{n}" for n in (32, 64))
    count = "splat (i64 32)" if lanes else "32"
    return f"""define internal {i32} @{name}({i32} %a, {i32} %b) alwaysinline nounwind {{
  %x = sext {i32} %a to {i64}
  %y = sext {i32} %b to {i64}
  %product = mul nsw {i64} %x, %y
  %upper = lshr {i64} %product, {count}
  %result = trunc {i64} %upper to {i32}
  ret {i32} %result
}}
"""


#: without a product of 64 bits: a = a1 * 2**16 + a0 with a0 >= 0, b alike
_UPPER_WORD_IN_HALVES = """define internal i32 @tw_mulhsi_0(i32 %a, i32 %b) noinline nounwind {
  %a0 = and i32 %a, 65535
  %a1 = ashr i32 %a, 16
  %b0 = and i32 %b, 65535
  %b1 = ashr i32 %b, 16
  %low = mul i32 %a0, %b0
  %carry = lshr i32 %low, 16
  %p = mul i32 %a1, %b0
  %middle = add i32 %p, %carry
  %m0 = and i32 %middle, 65535
  %m1 = ashr i32 %middle, 16
  %q = mul i32 %a0, %b1
  %other = add i32 %q, %m0
  %o1 = ashr i32 %other, 16
  %high = mul i32 %a1, %b1
  %s = add i32 %high, %m1
  %result = add i32 %s, %o1
  ret i32 %result
}
"""


def _vnni(lanes: int) -> str:
    v = f"<{lanes} x i32>"
    intrinsic = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return f"""declare {v} {intrinsic}({v}, {v}, {v})
define internal {v} @NAME({v} %acc, {v} %a, {v} %b) alwaysinline nounwind {{
  %result = call {v} {intrinsic}({v} %acc, {v} %a, {v} %b)
  ret {v} %result
}}
"""


def _neon() -> str:
    intrinsic = "@llvm.aarch64.neon.sdot.v4i32.v16i8"
    return f"""declare <4 x i32> {intrinsic}(<4 x i32>, <16 x i8>, <16 x i8>)
define internal <4 x i32> @NAME(<4 x i32> %acc, <4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {{
  %x = bitcast <4 x i32> %a to <16 x i8>
  %y = bitcast <4 x i32> %b to <16 x i8>
  %result = call <4 x i32> {intrinsic}(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)
  ret <4 x i32> %result
}}
"""


def _smlad(extend: str) -> str:
    """Bytes 0 and 2, then 1 and 3, as pairs of 16 bits; two dual multiply-adds."""
    signed, own = "@llvm.arm.sxtb16", f"@llvm.arm.{extend}"
    declared = "\n".join(f"declare i32 {f}(i32)" for f in dict.fromkeys((signed, own)))
    return f"""{declared}
declare i32 @llvm.arm.smlad(i32, i32, i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)
define internal i32 @NAME(i32 %acc, i32 %a, i32 %b) alwaysinline nounwind {{
  %ar = call i32 @llvm.fshr.i32(i32 %a, i32 %a, i32 8)
  %br = call i32 @llvm.fshr.i32(i32 %b, i32 %b, i32 8)
  %a0 = call i32 {own}(i32 %a)
  %b0 = call i32 {signed}(i32 %b)
  %a1 = call i32 {own}(i32 %ar)
  %b1 = call i32 {signed}(i32 %br)
  %first = call i32 @llvm.arm.smlad(i32 %a0, i32 %b0, i32 %acc)
  %second = call i32 @llvm.arm.smlad(i32 %a1, i32 %b1, i32 %first)
  ret i32 %second
}}
"""


_MVE = """declare i32 @llvm.arm.mve.vmldava.v16i8(i32, i32, i32, i32, <16 x i8>, <16 x i8>)
define internal i32 @NAME(i32 %acc, <16 x i8> %a, <16 x i8> %b) alwaysinline nounwind {
  %result = call i32 @llvm.arm.mve.vmldava.v16i8(i32 0, i32 0, i32 0, i32 %acc, <16 x i8> %a, <16 x i8> %b)
  ret i32 %result
}
"""

_DOTS = {
    "vnni512_us": _vnni(16),
    "vnni256_us": _vnni(8),
    "neon_ss": _neon(),
    "smlad_ss": _smlad("sxtb16"),
    "mve_ss": _MVE,
}
